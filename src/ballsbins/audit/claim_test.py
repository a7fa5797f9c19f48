"""`ballsbins audit`: does the claimed ε stand up to the best attack on the mechanism as run?

Test statistics with and without the canary give lower bounds on ε and δ that hold with a stated confidence. If a
mechanism is (ε, δ)-DP, then P(E) ≤ e^ε·Q(E) + δ for every event E, and the same with P and Q exchanged. So with a
lower confidence bound p on P(E) and an upper one q on Q(E), at a given δ

    ε ≥ log((p − δ)/q),        and at a given ε        δ ≥ p − e^ε·q.

The event (and for the second bound, the ε) is chosen on one half of the runs and tested on the other half, so the
choice costs no confidence. The bounds p and q are those of Clopper and Pearson, exact for any number of runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from ballsbins import _check
from ballsbins.accounting.curve import DIRECTIONS, Direction
from ballsbins.audit.attacks import game_of, learned, observations, statistics
from ballsbins.bound import Bound
from ballsbins.mechanism import Mechanism

Array = NDArray[np.float64]
_THRESHOLDS = 2000


class Evidence(NamedTuple):
    """Evidence that the run is not (ε′, δ)-DP for any ε′ below `epsilon`.

    The event "statistic at least the threshold" has probability at least `often` with the canary and at most
    `rarely` without. In the direction "add" the event is "statistic below the threshold", with probability at least
    `often` without the canary and at most `rarely` with it.
    """

    epsilon: float
    delta: float
    direction: Direction
    threshold: float
    often: float
    rarely: float


def epsilon_at_least(present: Array, absent: Array, delta: float, error: float) -> Evidence:
    """Bound ε from below at this δ; the bound fails with probability at most `error`."""
    (tune, judge) = _halves(present, absent)
    thresholds = _candidates(*tune)
    found = []
    for way in DIRECTIONS:
        often, rarely = rates(way, *tune, thresholds, error)
        found.append(_epsilon(often, rarely, delta))
    best = np.unravel_index(np.argmax(found), np.shape(found))
    way, threshold = DIRECTIONS[best[0]], thresholds[best[1]]
    often, rarely = rates(way, *judge, threshold[None], error)
    epsilon = max(0.0, float(_epsilon(often, rarely, delta)[0]))
    return Evidence(epsilon, delta, way, float(threshold), float(often[0]), float(rarely[0]))


def delta_at_least(present: Array, absent: Array, epsilon: Array, claimed: Array, error: float) -> Evidence:
    """Bound δ at the grid's ε where it is largest relative to the `claimed` δ; fails with probability ≤ `error`."""
    (tune, judge) = _halves(present, absent)
    thresholds = _candidates(*tune)
    scale = np.exp(epsilon)[:, None]
    found = []
    for way in DIRECTIONS:
        often, rarely = rates(way, *tune, thresholds, error)
        found.append((often - scale * rarely) / claimed[:, None])
    best = np.unravel_index(np.argmax(found), np.shape(found))
    way, chosen, threshold = DIRECTIONS[best[0]], float(epsilon[best[1]]), thresholds[best[2]]
    often, rarely = rates(way, *judge, threshold[None], error)
    delta = max(0.0, float(often[0] - np.exp(chosen) * rarely[0]))
    return Evidence(chosen, delta, way, float(threshold), float(often[0]), float(rarely[0]))


def _halves(present: Array, absent: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    half = len(present) // 2
    first, second = np.sort(present[:half]), np.sort(present[half:])
    return (first, np.sort(absent[:half])), (second, np.sort(absent[half:]))


def _candidates(present: Array, absent: Array) -> Array:
    both = np.sort(np.concatenate([present, absent]))
    places = np.linspace(0, len(both) - 1, _THRESHOLDS).astype(np.int64)
    edges = np.geomspace(1, len(both), 200).astype(np.int64) - 1  # the tails are the most informative
    return np.unique(np.concatenate([both[places], both[edges], both[::-1][edges]]))


def _epsilon(often: Array, rarely: Array, delta: float) -> Array:
    with np.errstate(divide="ignore"):
        return np.log(np.maximum(often - delta, 0.0)) - np.log(rarely)


def rates(
    way: Direction, present: Array, absent: Array, threshold: Array, error: float
) -> tuple[Array, Array]:
    """Confidence bounds p and q at every threshold, from sorted statistics; each fails with half of `error`."""
    above = [len(side) - np.searchsorted(side, threshold) for side in (present, absent)]
    if way == "remove":
        return at_least(above[0], len(present), error / 2), at_most(above[1], len(absent), error / 2)
    below = [len(side) - count for side, count in zip((present, absent), above, strict=True)]
    return at_least(below[1], len(absent), error / 2), at_most(below[0], len(present), error / 2)


def at_least(hits: NDArray[np.int64], runs: int, error: float) -> Array:
    """The lower confidence bound of Clopper and Pearson on a probability."""
    k = np.asarray(hits, np.float64)
    bound = stats.beta.ppf(error, np.maximum(k, 1.0), runs - k + 1.0)
    return np.where(k > 0, bound, 0.0)


def at_most(hits: NDArray[np.int64], runs: int, error: float) -> Array:
    """The upper confidence bound of Clopper and Pearson on a probability."""
    k = np.asarray(hits, np.float64)
    bound = stats.beta.isf(error, k + 1.0, np.maximum(runs - k, 1.0))
    return np.where(k < runs, bound, 1.0)


_LEAST_TRIALS = 100
_LEARN_FROM = 2  # the low-bits attack learns from trials / _LEARN_FROM other runs of each kind
_OTHER_RUNS = 2**61  # added to the seed, so that the attack learns from other runs than it is tested on
_GRID = 33  # values of ε at which the whole claimed curve is tested


@dataclass(frozen=True)
class Finding:
    """What the runs show, and what was claimed for the same δ."""

    shown: Evidence
    claimed: Bound

    @property
    def consistent(self) -> bool:
        """Whether the claim may be true."""
        return self.shown.epsilon <= float(self.claimed.upper)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "delta": self.shown.delta,
            "epsilon_at_least": self.shown.epsilon,
            "claimed_epsilon": self.claimed.to_dict(),
            "consistent": self.consistent,
            "direction": self.shown.direction,
            "threshold": self.shown.threshold,
            "event_at_least": self.shown.often,
            "event_on_the_other_side_at_most": self.shown.rarely,
        }


@dataclass(frozen=True)
class Audit:
    """What `trials` runs with the canary, and as many without, show about a claim.

    `at_delta` is the bound on ε at the requested δ. A small δ needs very many runs, so `sharpest` tests the whole
    claimed curve, at the δ where the runs come closest to refuting it (None if they show no δ above 0 anywhere).
    `low_bits` is another bound on ε at the requested δ, from what floating point reveals (`attacks.learned`). All
    lower bounds hold at once with probability at least `confidence`. If the mechanism is what it claims to be, they
    are all below its claim.
    """

    mechanism: Mechanism
    at_delta: Finding
    sharpest: Finding | None
    low_bits: Finding
    confidence: float
    trials: int
    seed: int

    @property
    def consistent(self) -> bool:
        """Whether the claim may be true."""
        findings = (self.at_delta, self.low_bits, self.sharpest)
        return all(finding.consistent for finding in findings if finding is not None)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "mechanism": self.mechanism.to_dict(),
            "consistent": self.consistent,
            "confidence": self.confidence,
            "at_delta": self.at_delta.to_dict(),
            "sharpest": None if self.sharpest is None else self.sharpest.to_dict(),
            "low_bits": self.low_bits.to_dict(),
            "trials": self.trials,
            "seed": self.seed,
        }


def audit(
    mechanism: Mechanism,
    delta: float,
    *,
    trials: int = 100_000,
    confidence: float = 0.999,
    seed: int = 0,
    secret_noise_multiplier: float | None = None,
) -> Audit:
    """Attack a mechanism many times with the canary and as often without, and compare with its claim.

    Args:
        mechanism: the claimed mechanism, with whole epochs only and without truncation.
        delta: δ at which its ε is tested, strictly between 0 and 1.
        trials: the number of runs with the canary, and of runs without, at least 100. A small δ needs very many.
        confidence: the probability with which all lower bounds hold, strictly between 0 and 1.
        seed: the same seed gives the same audit.
        secret_noise_multiplier: the noise multiplier actually used, if it differs from the claim. This negative
            control shows that the audit would notice.

    Returns:
        What the runs show, and what is claimed.

    Raises:
        InvalidInputError: an argument is out of its range, or the mechanism cannot be audited.

    Example:
        >>> from ballsbins import BallsAndBins, Mechanism
        >>> mechanism = Mechanism(BallsAndBins(steps=10), noise_multiplier=1.0)
        >>> audit(mechanism, delta=1e-2, trials=1000).consistent
        True
        >>> audit(mechanism, delta=1e-2, trials=1000, secret_noise_multiplier=0.1).consistent
        False
    """
    advice = "More runs see smaller probabilities: ε of 10 needs about a million."
    count = _check.integer("trials", trials, _LEAST_TRIALS, 10**9, advice=advice)
    sure = _check.real(
        "confidence", confidence, 0.0, 1.0, open_left=True, open_right=True,
        advice="It is the probability that the lower bounds hold.",
    )  # fmt: skip
    _check.integer("seed", seed, 0, 2**60, advice="The same seed gives the same audit.")
    sigma = mechanism.noise_multiplier
    if secret_noise_multiplier is not None:
        sigma = _check.real(
            "secret_noise_multiplier", secret_noise_multiplier, 0.0, open_left=True,
            advice="It is the noise that is really added, for the negative control.",
        )  # fmt: skip
    game_of(mechanism)  # first refuse a mechanism that cannot be audited
    claim = mechanism.epsilon(delta)
    sides = [statistics(mechanism, sigma, present=there, trials=count, seed=seed) for there in (True, False)]
    error = (1.0 - sure) / 3
    at_delta = Finding(epsilon_at_least(sides[0], sides[1], float(delta), error), claim)
    grid = np.linspace(0.0, float(claim.upper), _GRID)
    claimed = np.maximum(mechanism.delta(grid).upper, float(delta))
    found = delta_at_least(sides[0], sides[1], grid, claimed, error)
    sharpest = None if found.delta <= 0.0 else Finding(found, mechanism.epsilon(found.delta))
    taught_by = [
        observations(
            mechanism, sigma, present=there, trials=max(count // _LEARN_FROM, 1), seed=seed + _OTHER_RUNS
        )
        for there in (True, False)
    ]
    score = learned(taught_by[0], taught_by[1], sigma)
    bits = [
        statistics(mechanism, sigma, present=there, trials=count, seed=seed, score=score)
        for there in (True, False)
    ]
    low_bits = Finding(epsilon_at_least(bits[0], bits[1], float(delta), error), claim)
    return Audit(mechanism, at_delta, sharpest, low_bits, sure, count, seed)
