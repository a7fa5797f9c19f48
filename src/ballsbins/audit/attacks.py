"""Simulate many runs of ABLQ at once on the worst data for the sampler, and apply the best test to their releases.

The query is ψ(x) = x for numbers in [−1, 1], as in the proofs that the paper's dominating pairs are tight (theorem
3.1 for balls-and-bins). One example is the canary: 1, or ⊥. All others are 0. For shuffling they are −1, because the
place that the canary leaves empty in a batch of known size then reveals it (the pair (P_S, Q_S) of the paper).

The observation x_t is the response of step t, minus its value for a batch without the canary's place. It is noise,
plus `present` (or `absent`, for ⊥) in the canary's batch. The likelihood ratio of the two cases is the most powerful
statistic (Neyman and Pearson). For balls-and-bins it is (1/T)·Σ_t e^{(x_t − 1/2)/σ²}, with the claimed σ.

The noise and the arithmetic are those of training: integers from `ballsbins.noise`, added to the sum in units of a
`Grid`, multiplied by the unit and rounded to float32 (`released`). So an audit can see what floating point reveals;
`learned` looks only for that.

**Low bits.** `learned` attacks only floating point: it uses the low bits of a value, not what its size says about
the sum. Noise that is drawn as a float32 number and added in float32 reveals the sum in two ways. First, 1 − 0.99
leaves trailing zeros that noise of that size does not have. Second, many float32 numbers are not σ·z for any float32
z, so they cannot be noise alone. Here values are sorted into cells by their exponent, the number of trailing zeros of
their mantissa, and whether noise alone could have that value. Separate runs count how often the canary's batch and
other batches fall into each cell, and the ratio of the two counts gives the statistic of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ballsbins.audit.queries import released
from ballsbins.errors import InvalidInputError
from ballsbins.mechanism import Mechanism
from ballsbins.samplers import BallsAndBins, Deterministic, Poisson, Shuffle
from ballsbins.samplers.key import Key

Array = NDArray[np.float64]
_CHUNK_NUMBERS = 2**21  # observations held at once: 16 MB


@dataclass(frozen=True)
class Game:
    """What the canary adds to its batch if it is present and if it is absent, and the best test.

    `log_ratio`, the logarithm of the likelihood ratio, takes observations of shape (trials, epochs, steps).
    """

    present: float
    absent: float
    log_ratio: Callable[[Array], Array]


def game_of(mechanism: Mechanism) -> Game:
    """Return the game with the worst data for the mechanism's sampler, and the matching test."""
    sampler, variance = mechanism.sampler, mechanism.noise_multiplier**2
    if sampler.max_batch_size is not None or not mechanism.finished:
        raise InvalidInputError(
            "the mechanism", mechanism, "of whole epochs, without a largest batch",
            "Audit the same mechanism without these; what they change is exact and small.",
        )  # fmt: skip

    def ratio(x: Array, height: float) -> Array:
        """Log of the ratio of the densities of N(height, σ²) and N(0, σ²)."""
        return (height * x - 0.5 * height**2) / variance

    def one_bin(x: Array, height: float = 1.0) -> Array:
        """The canary is in one uniformly random batch of each epoch, independently."""
        logs: Array = log_mean_exp(ratio(x, height)).sum(axis=1)
        return logs

    match sampler:
        case BallsAndBins(redraw=True):
            return Game(1.0, 0.0, one_bin)
        case BallsAndBins():  # the same batch in every epoch: ratios multiply before they are averaged
            return Game(1.0, 0.0, lambda x: log_mean_exp(ratio(x, 1.0).sum(axis=1)))
        case Shuffle():
            return Game(2.0, 1.0, lambda x: one_bin(x, 2.0) - one_bin(x, 1.0))
        case Poisson():
            log_in, log_out = (
                -np.log(sampler.steps),
                np.log1p(-1.0 / sampler.steps) if sampler.steps > 1 else -np.inf,
            )
            return Game(1.0, 0.0, lambda x: np.logaddexp(log_out, log_in + ratio(x, 1.0)).sum(axis=(1, 2)))
        case Deterministic():  # the canary is the first example, and so in the first batch
            return Game(1.0, 0.0, lambda x: ratio(x[:, :, 0], 1.0).sum(axis=1))
    raise InvalidInputError(
        "sampler", sampler, "BallsAndBins, Poisson, Shuffle or Deterministic",
        "For another sampler no worst data set is known here.",
    )  # fmt: skip


def observations(
    mechanism: Mechanism, noise_multiplier: float, *, present: bool, trials: int, seed: int
) -> Iterator[tuple[NDArray[np.float32], Array]]:
    """Run the mechanism `trials` times with noise of `noise_multiplier`, some runs at a time.

    Yields:
        The observations, of shape (runs, epochs, steps), and the sums before the noise.
    """
    game = game_of(mechanism)
    height = game.present if present else game.absent
    shape = (mechanism.epochs, mechanism.sampler.steps)
    key = Key.from_seed(2 * seed + present)
    if height == 0.0:  # the canary's place does not matter, so it is not drawn
        places: Any = _nowhere(mechanism.epochs)
    else:
        places = _places(mechanism, trials, key)
    chunk = max(1, _CHUNK_NUMBERS // (shape[0] * shape[1]))
    for begin in range(0, trials, chunk):
        end = min(trials, begin + chunk)
        sums = np.zeros((end - begin, *shape))
        for epoch, (trial, step) in enumerate(places):
            rows = slice(*np.searchsorted(trial, (begin, end)))
            sums[trial[rows] - begin, epoch, step[rows]] += height
        yield released(sums, noise_multiplier, key, ("audit", begin)), sums


def statistics(
    mechanism: Mechanism,
    noise_multiplier: float,
    *,
    present: bool,
    trials: int,
    seed: int,
    score: Callable[[Array], Array] | None = None,
) -> Array:
    """Compute the log likelihood ratio, or another `score`, for each of `trials` independent runs."""
    chosen = game_of(mechanism).log_ratio if score is None else score
    runs = observations(mechanism, noise_multiplier, present=present, trials=trials, seed=seed)
    return np.concatenate([chosen(observed.astype(np.float64)) for observed, _ in runs])


# for each epoch: trials in ascending order, and the canary's step in each
Places = list[tuple[NDArray[np.int64], NDArray[np.int64]]]


def _nowhere(epochs: int) -> Places:
    nothing = np.empty(0, np.int64)
    return [(nothing, nothing)] * epochs


def _places(mechanism: Mechanism, trials: int, key: Key) -> Places:
    """Draw the canary's place in every run with the sampler itself."""
    sampler = mechanism.sampler
    if isinstance(sampler, Shuffle):
        return [_shuffled(sampler, trials, key, epoch, mechanism.epochs) for epoch in range(mechanism.epochs)]
    if not sampler.is_random:
        first = next(step for step, batch in enumerate(mechanism.batches(sampler.steps, key)) if 0 in batch)
        return [(np.arange(trials), np.full(trials, first))] * mechanism.epochs
    # Balls-and-bins and Poisson place every example independently of all others. So each example of one draw can be
    # the canary of a separate run.
    return [_sorted(_members(mechanism, trials, key, epoch)) for epoch in range(mechanism.epochs)]


def _members(
    mechanism: Mechanism, trials: int, key: Key, epoch: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    for step, batch in enumerate(mechanism.batches(trials, key, epoch)):
        yield batch.astype(np.int64), np.full(len(batch), step)


def _sorted(
    members: Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    trial, step = (np.concatenate(parts) for parts in zip(*members, strict=True))
    order = np.argsort(trial, kind="stable")
    return trial[order], step[order]


def _shuffled(
    sampler: Shuffle, trials: int, key: Key, epoch: int, epochs: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Shuffle as many examples as batches for every run: the canary's place in the order is its batch.

    In a uniformly random order of many examples, the orders within disjoint groups are independent and uniform. So
    one draw serves a whole chunk of runs: each run is a group of T examples, and the first one is the canary.
    """
    steps = sampler.steps
    chunk = max(1, _CHUNK_NUMBERS // steps)
    found = []
    for number, begin in enumerate(range(0, trials, chunk)):
        runs = min(chunk, trials - begin)
        order = sampler.order(runs * steps, key, number * epochs + epoch)
        places: NDArray[np.int64] = np.empty(len(order), np.int64)
        places[order] = np.arange(len(order))
        places = places.reshape(runs, steps)
        found.append((places < places[:, :1]).sum(axis=1))
    return np.arange(trials), np.concatenate(found)


def log_mean_exp(values: Array) -> Array:
    """Compute log(mean(exp(values))) over the last axis, without overflow."""
    largest = values.max(axis=-1, keepdims=True)
    logs: Array = np.log(np.exp(values - largest).mean(axis=-1)) + largest[..., 0]
    return logs


_MANTISSA = 23  # bits of float32
_CELLS = 2 * 256 * (_MANTISSA + 1)
_NEIGHBOURS = range(-2, 3)  # if some z gives the value, it is among the float32 neighbours of value / σ

Observed = NDArray[np.float32]


def cells_of(values: Observed, noise_multiplier: float) -> NDArray[np.int64]:
    """Return the cell of every value: exponent, trailing zeros, and whether it is σ·z in float32 for a float32 z."""
    bits = values.view(np.uint32).astype(np.int64)
    exponent, mantissa = (bits >> _MANTISSA) & 0xFF, bits & (2**_MANTISSA - 1)
    lowest = mantissa & -mantissa  # 0 for a power of two, whose mantissa is all zeros
    zeros = np.where(lowest > 0, np.log2(np.maximum(lowest, 1)), _MANTISSA).astype(np.int64)
    scale = np.float32(noise_multiplier)
    guess = (values / scale).view(np.int32)
    possible = np.zeros(values.shape, np.int64)
    for steps in _NEIGHBOURS:
        possible |= scale * (guess + np.int32(steps)).view(np.float32) == values
    return (exponent * (_MANTISSA + 1) + zeros) * 2 + possible


def learned(
    present: Iterable[tuple[Observed, Array]],
    absent: Iterable[tuple[Observed, Array]],
    noise_multiplier: float,
) -> Callable[[Array], Array]:
    """Return the score of a run, learned from other runs with the canary and without.

    Args:
        present: observations and sums of runs with the canary; values with a nonzero sum come from its batch.
        absent: the same without the canary; values with a nonzero sum are used if there are any, otherwise all.
        noise_multiplier: σ of the noise.
    """
    counts = [np.ones(_CELLS), np.ones(_CELLS)]
    for side, runs in enumerate((absent, present)):
        for observed, sums in runs:
            values = observed[sums != 0.0] if sums.any() else observed.reshape(-1)
            counts[side] += np.bincount(cells_of(values, noise_multiplier), minlength=_CELLS)
    logs: Array = np.log(counts[1] / counts[1].sum()) - np.log(counts[0] / counts[0].sum())

    def score(observed: Array) -> Array:
        each = logs[cells_of(observed.astype(np.float32), noise_multiplier)]
        total: Array = log_mean_exp(each).sum(axis=1)
        return total

    return score
