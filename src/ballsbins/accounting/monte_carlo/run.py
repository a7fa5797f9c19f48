"""Draw many losses: reproducibly, in parallel, resumably, in bounded memory.

Samples come in blocks; block i of a run has its own generator, seeded by (seed, stream, i), and the size of a block
depends on the sampler alone. Counts of losses are integers, so their sum does not depend on who drew what: one
seed, one answer, on any number of workers.

Looks are taken after 1, 2, 4, 8, … blocks; `Outcome` keeps the counts of the last one. A run that ends as planned
is judged at its planned number of samples with 9/10 of β; whatever is shown before, or after a run was extended, is
judged at the last look, with shares of the other 1/10 (`confidence.spend`). Both together fail with probability β.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from ballsbins import extras, validate
from ballsbins.accounting.curve import Array, Interval
from ballsbins.accounting.monte_carlo import confidence
from ballsbins.accounting.monte_carlo.estimate import Lattice, Moments, Tally, moments
from ballsbins.accounting.monte_carlo.pairs import LossSampler, log_range
from ballsbins.accounting.monte_carlo.state import Entry, StateFile
from ballsbins.errors import InvalidInputError

_BLOCK = 2**20  # numbers drawn for one block
_SAVE_SECONDS = 30.0
PLANNED_SHARE = 0.9


@dataclass(frozen=True)
class Outcome:
    """Counts so far, and those of the last look."""

    sampler: LossSampler
    tally: Tally
    look: int  # number of the last look, −1 before the first
    looked: Tally
    planned: int  # the number of samples first planned
    wanted: int  # the number of samples now wanted
    seconds: float = 0.0

    @property
    def as_planned(self) -> bool:
        """Whether the samples are those first planned, neither fewer nor more."""
        return self.tally.count == self.planned == self.wanted

    def moments(self, epsilon: float) -> Moments:
        """Mean and variance of the contributions, in units of the range."""
        return moments(self.tally, self.sampler.tilt, epsilon)

    def log_delta(self, epsilon: float | Array, beta: float, bound: str = "kl") -> Interval:
        """Bounds on log δ at each ε, each side of each failing with probability at most β."""
        points = np.atleast_1d(np.asarray(epsilon, dtype=np.float64))
        if self.as_planned:
            tally, share = self.tally, PLANNED_SHARE * beta
        elif self.look >= 0:
            tally, share = self.looked, confidence.spend((1.0 - PLANNED_SHARE) * beta, self.look)
        else:
            return Interval(np.full(points.shape, -np.inf), np.zeros(points.shape), np.zeros(points.shape))
        found = [moments(tally, self.sampler.tilt, float(point)) for point in points]
        low, high = np.array([f.mean_low for f in found]), np.array([f.mean_high for f in found])
        m = float(tally.count)
        if bound == "kl":
            lower = confidence.log_kl_lower(low, m, share)
            upper = confidence.log_kl_upper(high, m, share)
        else:
            spread = np.array([(f.variance_low, f.variance_high) for f in found]).T
            lower = confidence.log_bernstein_lower(low, spread[0], m, share)
            upper = confidence.log_bernstein_upper(high, spread[1], m, share)
        tilt, kappa = self.sampler.tilt, self.sampler.log_weight
        scale = np.array([log_range(kappa, tilt, float(point)) for point in points])
        error = self.sampler.log_weight_error
        lower, upper = lower + scale - error, np.minimum(upper + scale + error, 0.0)
        with np.errstate(divide="ignore"):
            value = np.log(0.5 * (low + high)) + scale
        lower = np.minimum(lower, upper)
        return Interval(lower, np.clip(value, lower, upper), upper)


Progress = Callable[[Outcome], None]


def block_size(sampler: LossSampler) -> int:
    """Samples in one block: a matter of the sampler alone."""
    return int(np.clip(_BLOCK // max(sampler.row, 1), 1, 2**14))


def draw_blocks(
    sampler: LossSampler, lattice: Lattice, seed: int, stream: int, first: int, last: int, samples: int
) -> Tally:
    """Count the losses of blocks first … last − 1, as far as they are among the first `samples`."""
    size = block_size(sampler)
    lows, highs = [], []
    for block in range(first, last):
        sequence = np.random.SeedSequence(seed, spawn_key=(stream, block))
        low, high = sampler.losses(np.random.Generator(np.random.SFC64(sequence)), size)
        inside = min(size, samples - block * size)
        lows.append(low[:inside])
        highs.append(high[:inside])
    return Tally.of(lattice, np.concatenate(lows), np.concatenate(highs))


def run(
    sampler: LossSampler,
    lattice: Lattice,
    samples: int,
    *,
    seed: int = 0,
    stream: int = 0,
    workers: int = 1,
    progress: Progress | None = None,
    state: StateFile | None = None,
    limit: int | None = None,
) -> Outcome:
    """Draw so many samples, or as many as there is time for: Ctrl-C, or `limit`, returns what there is."""
    validate.integer("samples", samples, 1, 10**15, advice="More samples make the bounds tighter.")
    validate.integer("seed", seed, 0, advice="Any integer; one seed gives one answer.")
    validate.integer("workers", workers, 1, advice="State the number of processes to use.")
    size = block_size(sampler)
    blocks = -(-samples // size)
    question = f"{sampler!r} {lattice!r} seed={seed} stream={stream} block={size}"
    entry = None if state is None else state.get(question)
    outcome, done = _start(sampler, lattice, samples, entry)
    if outcome.tally.count > samples:
        advice = "Ask for as many or more, or name another file."
        raise InvalidInputError(
            "samples", samples, f"at least {outcome.tally.count}, the number saved in the state file", advice
        )
    begun = saved = time.monotonic()
    tasks = _tasks(done, blocks)
    whole = outcome  # without a last, partial block: what can be continued
    try:
        for last, tally in _drawn(sampler, lattice, seed, stream, samples, tasks, workers):
            outcome = replace(
                outcome, tally=outcome.tally.merge(tally), seconds=outcome.seconds + time.monotonic() - begun
            )
            begun = time.monotonic()
            if last & (last - 1) == 0 and last * size <= samples:  # 1, 2, 4, … blocks
                outcome = replace(outcome, look=last.bit_length() - 1, looked=outcome.tally)
            if last * size <= samples:
                whole, done = outcome, last
            if progress is not None:
                progress(outcome)
            if state is not None and time.monotonic() - saved > _SAVE_SECONDS:
                state.put(question, _entry(whole, done))
                saved = time.monotonic()
            if limit is not None and last * size >= limit:
                break
    except KeyboardInterrupt:
        outcome = whole if whole.tally.count < samples else outcome
    if state is not None:
        state.put(question, _entry(whole, done))
    return outcome


def _tasks(done: int, blocks: int) -> Iterator[tuple[int, int]]:
    """Runs of blocks that end at every power of two; the caller cuts them no further."""
    while done < blocks:
        look = 1 << done.bit_length() if done else 1
        stop = min(blocks, look, done + max(1, min(64, done // 4)))
        if stop == blocks and stop - done > 1:  # the last block may be partial: alone
            stop -= 1
        yield done, stop
        done = stop


def _drawn(
    sampler: LossSampler,
    lattice: Lattice,
    seed: int,
    stream: int,
    samples: int,
    tasks: Iterator[tuple[int, int]],
    workers: int,
) -> Iterator[tuple[int, Tally]]:
    """The tallies of tasks, in order."""
    if workers == 1:
        for first, last in tasks:
            yield last, draw_blocks(sampler, lattice, seed, stream, first, last, samples)
        return
    joblib = extras.load("joblib", feature="Monte Carlo on several workers", extra="parallel")
    plan = list(tasks)
    calls = (
        joblib.delayed(draw_blocks)(sampler, lattice, seed, stream, first, last, samples)
        for first, last in plan
    )
    found = joblib.Parallel(n_jobs=workers, return_as="generator")(calls)
    for (_, last), tally in zip(plan, found, strict=True):
        yield last, tally


def _entry(outcome: Outcome, done: int) -> Entry:
    head = [outcome.planned, done, outcome.tally.count, outcome.look, outcome.looked.count]
    head.append(int(1000 * outcome.seconds))
    parts = [outcome.tally.low, outcome.tally.high, outcome.looked.low, outcome.looked.high]
    return np.concatenate([np.array(head, dtype=np.int64), *parts])


def _start(sampler: LossSampler, lattice: Lattice, samples: int, entry: Entry | None) -> tuple[Outcome, int]:
    """An outcome without samples, or the one that was saved; and the blocks done."""
    empty = Tally.empty(lattice)
    if entry is None:
        return Outcome(sampler, empty, -1, empty, samples, samples), 0
    planned, done, count, look, looked_count, milliseconds = (int(x) for x in entry[:6])
    low, high, looked_low, looked_high = entry[6:].reshape(4, lattice.size + 1)
    outcome = Outcome(
        sampler,
        Tally(lattice, count, low, high),
        look,
        Tally(lattice, looked_count, looked_low, looked_high),
        planned,
        samples,
        milliseconds / 1000.0,
    )
    return outcome, done
