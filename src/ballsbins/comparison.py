"""A run beside the same run under other samplers: where one becomes the better, and what a Poisson claim is worth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from ballsbins import _check
from ballsbins.accounting.curve import DIRECTIONS, Array, Curve
from ballsbins.accounting.search import LARGEST_EPSILON, epsilon_at
from ballsbins.bound import Bound
from ballsbins.mechanism import Mechanism, check_run
from ballsbins.samplers import SAMPLERS, BallsAndBins, Deterministic, Poisson, Shuffle

ClaimedBy = Literal["exact", "rdp"]  # how a Poisson accountant may have computed what it claims
_LEAST_EPSILON = 1e-9  # where δ of the first run is that small from the start
_NEAREST = 1e-3  # of the largest ε: below it no crossover is looked for
_FIRST_POINTS = 6  # of ε, asked together
_CLOSE = 0.01  # to which it is found, relative
_MOST_ROUNDS = 20


def at_equal_noise(mechanism: Mechanism, *, truncated: bool = False) -> dict[str, Mechanism]:
    """The same run under every sampler, by the sampler's name.

    Args:
        mechanism: the run; it stands first in the answer, as it is.
        truncated: whether the others truncate their batches as `mechanism` does, where their sizes vary.

    Returns:
        The run itself and, with the same noise, steps and epochs, the run under each sampler of the paper's
        comparison whose name differs.

    Example:
        >>> from ballsbins import BallsAndBins, Mechanism
        >>> from ballsbins.comparison import at_equal_noise
        >>> list(at_equal_noise(Mechanism(BallsAndBins(1000), noise_multiplier=0.5)))
        ['balls-and-bins', 'Poisson', 'shuffle', 'deterministic']
    """
    check_run("mechanism", mechanism)
    own = mechanism.sampler
    runs = {own.name: mechanism}
    for kind in SAMPLERS:
        other = kind(own.steps)
        if truncated and other.random_sizes and own.max_batch_size is not None:
            assert own.num_examples is not None  # the sampler sees to that
            other = other.truncated_to(own.max_batch_size, own.num_examples)
        runs.setdefault(other.name, mechanism.under(other))
    return runs


@dataclass(frozen=True)
class Crossover:
    """δ_first(ε) is proved larger than δ_second(ε) at `left` and smaller at `right`, left < right; both may be None.

    Between the two the bounds do not tell. Errata 6 of the paper: at small ε balls-and-bins is the *worse* of it and
    Poisson; above the crossover it is the better one.
    """

    left: float | None
    right: float | None


def crossover(first: Mechanism, second: Mechanism, least_delta: float = 1e-10) -> Crossover:
    """Find where the curve of `first` falls below that of `second` for increasing ε ≥ 0, proved on both sides.

    Args:
        first: the run whose δ is the larger one at small ε.
        second: the run to compare it with.
        least_delta: the search ends at the ε at which δ of `first` has come down to this, a probability in (0, 1).

    Returns:
        The ends of a short interval of ε that has the crossover; an end is None where it is not proved.

    Raises:
        AccuracyError: δ of one of the two cannot be computed with a known error.

    Example:
        >>> from ballsbins import BallsAndBins, Mechanism
        >>> from ballsbins.comparison import at_equal_noise, crossover
        >>> runs = at_equal_noise(Mechanism(BallsAndBins(1000), noise_multiplier=0.5))
        >>> found = crossover(runs["balls-and-bins"], runs["Poisson"])
        >>> 0 < found.left < found.right < 1
        True
    """
    check_run("first", first)
    check_run("second", second)
    least_delta = _check.delta(least_delta)
    known = max(float(epsilon_at(first.curve, way, np.log([least_delta]))[1, 0]) for way in DIRECTIONS)
    largest = min(max(known, _LEAST_EPSILON), LARGEST_EPSILON)  # it may be 0 or ∞
    pair = _Pair(first.curve, second.curve)
    pair.ask(np.concatenate([[0.0], np.geomspace(_NEAREST * largest, largest, _FIRST_POINTS)]))
    for _ in range(_MOST_ROUNDS):
        left, right = pair.bracket
        if left is None or right is None or right - left < _CLOSE * right:
            break
        pair.ask(np.clip(pair.root * (1.0 + 0.4 * _CLOSE * np.array([-1.0, 1.0])), left, right))
        if pair.bracket == (left, right):
            break
    return Crossover(*pair.bracket)


class _Pair:
    """Two curves at all ε asked so far: where one is proved to be the larger."""

    def __init__(self, first: Curve, second: Curve) -> None:
        self._curves = first, second
        self._epsilon, self._signs, self._gaps = np.empty(0), np.empty(0), np.empty(0)

    def ask(self, epsilon: Array) -> None:
        """Compare the two at some ε, by their bounds: +1 where δ_first > δ_second is proved, −1 where < is."""
        one, two = (
            _larger([curve.log_delta(epsilon, way).rows for way in DIRECTIONS]) for curve in self._curves
        )
        signs = np.where(one[0] > two[2], 1.0, np.where(one[2] < two[0], -1.0, 0.0))
        with np.errstate(invalid="ignore"):
            gaps = one[1] - two[1]
        order = np.argsort(np.append(self._epsilon, epsilon), kind="stable")
        self._epsilon = np.append(self._epsilon, epsilon)[order]
        self._signs, self._gaps = np.append(self._signs, signs)[order], np.append(self._gaps, gaps)[order]

    @property
    def bracket(self) -> tuple[float | None, float | None]:
        """The last ε at which the first is proved larger, and the next one at which it is proved smaller."""
        above = np.flatnonzero(self._signs > 0)
        left = None if above.size == 0 else float(self._epsilon[above[-1]])
        below = np.flatnonzero((self._signs < 0) & (self._epsilon > (-1.0 if left is None else left)))
        return left, None if below.size == 0 else float(self._epsilon[below[0]])

    @property
    def root(self) -> float:
        """Where the difference of the logarithms is 0, between the ends of the bracket: by a chord."""
        left, right = (int(np.flatnonzero(self._epsilon == end)[0]) for end in self.bracket)
        a, b = self._epsilon[left], self._epsilon[right]
        up, down = self._gaps[left], self._gaps[right]
        chord = a + (b - a) * up / (up - down)
        return float(chord) if a < chord < b else float(0.5 * (a + b))


def _larger(directions: Sequence[Any]) -> Array:
    return np.asarray(np.maximum(*directions))


@dataclass(frozen=True)
class PoissonClaim:
    """The ε of a run that was accounted for as Poisson sampling, by how its batches may really have been drawn.

    `claimed` is the ε that was reported, where that is known rather than the noise.
    """

    run: Mechanism
    delta: float
    poisson: Bound
    shuffle: Bound
    deterministic: Bound
    balls_and_bins: Bound
    claimed: float | None = None

    @property
    def claim(self) -> float:
        """The ε that was reported: as it was stated, or the most that Poisson accounting can have claimed."""
        return float(self.poisson.upper) if self.claimed is None else self.claimed

    @property
    def false_if_shuffled(self) -> bool:
        """Whether it is proved that shuffled batches have a larger ε than Poisson accounting claims at most."""
        return float(self.shuffle.lower) > self.claim

    @property
    def factor(self) -> float:
        """How many times the claim the ε of shuffled batches is, at least; infinitely many where 0 is claimed."""
        return float(self.shuffle.lower) / self.claim if self.claim > 0 else math.inf

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "run": {
                "noise_multiplier": self.run.noise_multiplier,
                "steps": self.run.sampler.steps,
                "epochs": self.run.epochs,
                "last_epoch_steps": self.run.last_epoch_steps,
            },
            "delta": self.delta,
            "claimed_epsilon": self.claimed,
            "epsilon": {
                "poisson": self.poisson.to_dict(),
                "shuffle": self.shuffle.to_dict(),
                "deterministic": self.deterministic.to_dict(),
                "balls_and_bins": self.balls_and_bins.to_dict(),
            },
            "report_is_false_if_shuffled": self.false_if_shuffled,
        }


def poisson_claim(run: Mechanism, delta: float, claimed: float | None = None) -> PoissonClaim:
    """Account for a run that was reported as Poisson sampling, under each way its batches may have been drawn.

    Args:
        run: what was run, under any sampler of the right number of steps.
        delta: δ of the claim, a probability in (0, 1).
        claimed: the ε that was reported, if `run` was found from it (`noise_of_claim`); None if only the noise is
            known, so that the claim is what Poisson accounting says of it.

    Returns:
        ε at `delta` for Poisson sampling (the claim), shuffled, deterministic and balls-and-bins batches.

    Raises:
        InvalidInputError: `delta` is not in (0, 1).

    Example:
        >>> from ballsbins import Mechanism, Poisson
        >>> from ballsbins.comparison import poisson_claim
        >>> claim = poisson_claim(Mechanism(Poisson(steps=10_000), noise_multiplier=0.5), delta=1e-6)
        >>> claim.false_if_shuffled, round(claim.factor, 1)
        (True, 5.6)
    """
    check_run("run", run)
    kinds = (Poisson, Shuffle, Deterministic, BallsAndBins)
    poisson, shuffle, deterministic, bins = (run.under(kind).epsilon(delta) for kind in kinds)
    return PoissonClaim(run, delta, poisson, shuffle, deterministic, bins, claimed)


def noise_of_claim(
    steps: int, epochs: int, *, epsilon: float, delta: float, accountant: ClaimedBy = "exact"
) -> Mechanism:
    """Find the run that a Poisson accountant would have reported this ε for.

    Args:
        steps: T, the number of batches in one epoch.
        epochs: how often the data was passed.
        epsilon: the ε that was claimed, above 0 and at most 700.
        delta: the δ at which it was claimed, strictly between 0 and 1.
        accountant: how it was computed. "exact" for privacy loss distributions (PRV, PLD) whose error is small;
            "rdp" for Rényi divergences, the default of Opacus until 1.4 and of TF Privacy, which claim more than the
            truth, so that the noise was larger.

    Returns:
        The run with Poisson batches and the noise multiplier that goes with the claim.

    Raises:
        InvalidInputError: an argument is out of its range.
        UnreachableTargetError: no noise multiplier belongs to the claim.

    Example:
        >>> from ballsbins.comparison import noise_of_claim
        >>> run = noise_of_claim(235, 10, epsilon=3.0, delta=1e-5, accountant="rdp")
        >>> f"{run.noise_multiplier:.3f}"
        '0.742'
    """
    from ballsbins.calibration import calibrate, least_noise_of

    _check.one_of("accountant", accountant, get_args(ClaimedBy), advice="PRV and PLD are close to exact.")
    tight = calibrate(Poisson(steps), epsilon=epsilon, delta=delta, epochs=epochs)
    if accountant == "exact":
        return tight

    def claimed(sigma: float) -> float:
        return _rdp_epsilon(steps, steps * epochs, sigma, delta)

    return replace(tight, noise_multiplier=least_noise_of(claimed, epsilon, start=tight.noise_multiplier))


def _rdp_epsilon(steps: int, taken: int, sigma: float, delta: float) -> float:
    """What an accountant of Rényi divergences says of Poisson batches."""
    import dp_accounting

    one_step = dp_accounting.PoissonSampledDpEvent(1.0 / steps, dp_accounting.GaussianDpEvent(sigma))
    accountant = dp_accounting.rdp.RdpAccountant()
    accountant.compose(one_step, taken)
    return float(accountant.get_epsilon(delta))
