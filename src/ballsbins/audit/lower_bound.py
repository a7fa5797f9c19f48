"""From test statistics with and without the canary to lower bounds on ε and δ that hold with a stated confidence.

If a mechanism is (ε, δ)-DP then P(E) ≤ e^ε·Q(E) + δ for every event E, and with P and Q exchanged. So with a lower
confidence bound p on P(E) and an upper one q on Q(E), at a given δ

    ε ≥ log((p − δ)/q),        and at a given ε        δ ≥ p − e^ε·q.

The event (and for the second, the ε) is chosen on one half of the runs and judged on the other, so that the choice
costs no confidence. The bounds p and q are Clopper and Pearson's, exact for any number of runs.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Array = NDArray[np.float64]
Direction = Literal["remove", "add"]
DIRECTIONS: tuple[Direction, ...] = ("remove", "add")
_THRESHOLDS = 2000


class Evidence(NamedTuple):
    """The run is not (ε′, δ)-DP for any ε′ below `epsilon`.

    The event "statistic at least the threshold" has probability at least `often` with the canary and at most
    `rarely` without; in the direction "add" it is "below the threshold", and the reverse.
    """

    epsilon: float
    delta: float
    direction: Direction
    threshold: float
    often: float
    rarely: float


def epsilon_at_least(present: Array, absent: Array, delta: float, error: float) -> Evidence:
    """The bound at this δ; it fails with probability at most `error`."""
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
    """The bound at the ε of a grid where it is largest relative to the `claimed` δ; fails with at most `error`."""
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
    edges = np.geomspace(1, len(both), 200).astype(np.int64) - 1  # the tails tell the most
    return np.unique(np.concatenate([both[places], both[edges], both[::-1][edges]]))


def _epsilon(often: Array, rarely: Array, delta: float) -> Array:
    with np.errstate(divide="ignore"):
        return np.log(np.maximum(often - delta, 0.0)) - np.log(rarely)


def rates(
    way: Direction, present: Array, absent: Array, threshold: Array, error: float
) -> tuple[Array, Array]:
    """Confidence bounds p and q at every threshold, from sorted statistics; either fails with half of `error`."""
    above = [len(side) - np.searchsorted(side, threshold) for side in (present, absent)]
    if way == "remove":
        return at_least(above[0], len(present), error / 2), at_most(above[1], len(absent), error / 2)
    below = [len(side) - count for side, count in zip((present, absent), above, strict=True)]
    return at_least(below[1], len(absent), error / 2), at_most(below[0], len(present), error / 2)


def at_least(hits: NDArray[np.int64], runs: int, error: float) -> Array:
    """Clopper and Pearson's lower bound on a probability."""
    k = np.asarray(hits, np.float64)
    bound = stats.beta.ppf(error, np.maximum(k, 1.0), runs - k + 1.0)
    return np.where(k > 0, bound, 0.0)


def at_most(hits: NDArray[np.int64], runs: int, error: float) -> Array:
    """Clopper and Pearson's upper bound on a probability."""
    k = np.asarray(hits, np.float64)
    bound = stats.beta.isf(error, k + 1.0, np.maximum(runs - k, 1.0))
    return np.where(k < runs, bound, 1.0)
