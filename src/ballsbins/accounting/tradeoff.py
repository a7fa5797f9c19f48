"""Compute from a privacy curve what an attacker can do: the true-positive rate at a given false-positive rate.

A test that tells P from Q with false-positive rate α = Q(E) has true-positive rate P(E) ≤ D_K(P‖Q) + K·α for every
K > 0, and the best test attains the minimum over K (the curve and the trade-off function are convex duals):

    TPR(α) = min_{K > 0} f(K),      f(K) = δ(log K) + K·α .

Every K gives an upper bound. For the lower bound, the range of K is cut into cells, each with a floor below f:

- δ falls and K·α rises, so f ≥ δ(log K₂) + K₁·α in [K₁, K₂]. The leftmost cell has K₁ = 0; the rightmost has
  K₂ = ∞, where δ ≥ 0.
- f is convex, so in a cell it lies above the extended line through the two points to its left, and above the one
  through the two points to its right.

The cells with the lowest floors are split until the two bounds agree. So the lower bound holds wherever the minimum
is, even if the bounds on δ are far apart. At α = 0 the rate is 0: noise is Gaussian, so Q(E) = 0 implies P(E) = 0.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ballsbins.accounting.curve import Array, Curve, Direction, U

# B1, B21: docs/derivation.md. The bounds hold whatever the numbers of rounds, cells and pieces are.
_LARGEST = 700.0  # largest |ε| at which a curve is evaluated
_FIRST = np.array([0.0, 0.25, 1.0])  # the first ε to evaluate: a choice
# Then go farther out by these factors, on the left at least to −½.
_FARTHER, _LEFT_FACTOR, _LEFT = np.array([2.0, 4.0]), 4.0, -0.5
_ROUNDS = 12  # rounds of splitting
_CELLS = 12  # cells split per round
_PIECES = 8  # pieces per cell
_AGREE = 1e-10  # relative distance of the bounds at which to stop
_SHARE = 0.05  # or this share of the distance that the curve's own bounds leave
_NARROW = 1e-6  # a cell beside the best point is not split if it is narrower than this in ε
_ROUNDING = 16 * U  # rounding of exp and of the sum δ + Kα (B1)
_LINE = 32 * U  # rounding of a point on an extended line, relative to the size of its terms (B21)


def true_positive_rate(
    curve: Curve, direction: Direction, false_positive_rate: float
) -> tuple[float, float, float]:
    """Return (lower, value, upper) of the largest true-positive rate of any test."""
    if false_positive_rate in (0.0, 1.0):
        return (false_positive_rate,) * 3
    lower, value, upper, _ = _minimise(curve, direction, false_positive_rate)
    return lower, value, upper


def best_threshold(
    curve: Curve, direction: Direction, false_positive_rate: float, between: tuple[float, float]
) -> float:
    """Return the ε between two others at which δ(ε) + e^ε·α is least, by the curve's upper bounds."""
    return _minimise(curve, direction, false_positive_rate, between)[3]


class _Points:
    """The curve at all ε evaluated so far, in increasing order, and f there."""

    def __init__(self, curve: Curve, direction: Direction, alpha: float) -> None:
        self._curve, self._direction, self._alpha = curve, direction, alpha
        self.epsilon: Array = np.empty(0)
        self.delta: Array = np.empty((3, 0))

    def ask(self, new: Array) -> None:
        """Evaluate the curve at new ε."""
        found = self._curve.log_delta(new, self._direction)
        epsilon = np.append(self.epsilon, new)
        order = np.argsort(epsilon, kind="stable")
        self.epsilon = epsilon[order]
        self.delta = np.hstack([self.delta, np.exp([found.lower, found.value, found.upper])])[:, order]

    @property
    def f(self) -> Array:
        return self.delta + np.exp(self.epsilon) * self._alpha

    def surround(self) -> None:
        """Go farther out until the minimum is inside: f(K) ≥ K₁·α right of K₁, f(K) ≥ δ(log K₀) left of K₀."""
        most = min(-math.log(self._alpha), _LARGEST)
        self.ask(np.unique(np.minimum(_FIRST, most)))
        while self.epsilon[-1] < most and math.exp(self.epsilon[-1]) * self._alpha < self.f[2].min():
            self.ask(np.unique(np.minimum(self.epsilon[-1] * _FARTHER, most)))
        while self.epsilon[0] > -_LARGEST and self.delta[0, 0] < min(self.f[2].min(), 1.0):
            self.ask(np.array([max(min(_LEFT_FACTOR * self.epsilon[0], _LEFT), -_LARGEST)]))


def _minimise(
    curve: Curve, direction: Direction, alpha: float, between: tuple[float, float] | None = None
) -> tuple[float, float, float, float]:
    """Return lower, value and upper of min f, and the ε of the upper bound; search `between` two ε, if given."""
    points = _Points(curve, direction, alpha)
    if between is None:
        points.surround()
    else:
        points.ask(np.linspace(*between, _PIECES + 1))
    for left in range(_ROUNDS, -1, -1):
        epsilon, (below, _, above) = points.epsilon, points.f
        floor = _floors(epsilon, points.delta[0], points.delta[2], alpha)
        best, lowest = int(np.argmin(above)), float(below.min())
        tolerance = max(_AGREE, _SHARE * (1.0 - lowest / above[best]))
        cells = _to_split(floor[1:-1], min(lowest, 1.0) * (1.0 - tolerance), best, epsilon)
        inside = np.arange(1, _PIECES) / _PIECES
        new = np.setdiff1d(epsilon[cells, None] + np.diff(epsilon)[cells, None] * inside, epsilon)
        if left == 0 or not new.size:
            break
        points.ask(new)
    upper = min(float(above[best]) * (1 + _ROUNDING), 1.0)
    lower = min(max(float(floor.min()) * (1 - _ROUNDING), alpha), upper)  # random guessing is a test, too
    return lower, min(max(float(points.f[1].min()), lower), upper), upper, float(epsilon[best])


def _to_split(floor: Array, wanted: float, best: int, epsilon: Array) -> NDArray[np.intp]:
    """Return cells to split: those with the lowest floors, if below `wanted`; if any, also those beside `best`."""
    lowest = np.argsort(floor, kind="stable")[:_CELLS]
    lowest = lowest[floor[lowest] < wanted]
    if not lowest.size:
        return lowest
    beside = np.arange(max(best - 1, 0), min(best + 1, floor.size))
    return np.union1d(lowest, beside[np.diff(epsilon)[beside] > _NARROW])


def _floors(epsilon: Array, below: Array, above: Array, alpha: float) -> Array:
    """Return lower bounds on f left of all points, in the cells between them, and right of all, from bounds on δ."""
    k, gap = np.exp(epsilon), np.diff(epsilon)
    low, high = below + k * alpha, above + k * alpha
    simple = np.concatenate([below[:1], below[1:] + k[:-1] * alpha, k[-1:] * alpha])
    width = k[:-1] * np.expm1(gap)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        # for cell i, between points i and i+1: a line that ends at its left end, and one that starts at its right end
        left = (low[1:-2] - high[:-3]) / width[:-2]
        right = (high[3:] - low[2:-1]) / width[2:]
        here = width[1:-1]
        start, stop = low[1:-2], low[2:-1]
        size = np.abs(start) + np.abs(stop) + (np.abs(left) + np.abs(right)) * here
        from_left = start + np.minimum(left, 0.0) * here
        from_right = stop - np.maximum(right, 0.0) * here
        meet = (stop - start - right * here) / (left - right)
        crossing = np.where((meet >= 0.0) & (meet <= here) & (left < right), start + left * meet, -np.inf)
        lines = np.fmax(np.fmax(from_left, from_right), crossing) - _LINE * size
    simple[2:-2] = np.fmax(simple[2:-2], lines)
    return simple
