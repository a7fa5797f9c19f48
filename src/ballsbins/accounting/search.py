"""From a privacy curve to its inverse: ε from δ, and the value of a free parameter that meets a target.

Everything is monotone and searched in logarithms; what is returned lies on the safe side and has been checked there:
an upper ε is one at which the upper δ is within the target, a calibrated value is one at which the target holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.optimize import brentq

from ballsbins.accounting.between import Between
from ballsbins.accounting.curve import Curve, Direction
from ballsbins.errors import UnreachableTargetError

LARGEST_EPSILON = 700.0  # e^700 is about the largest double
_SMALLEST_EPSILON = 1e-12
_FAR = 1e4  # log δ is not followed farther below the target than this


class _Side:
    """One of `lower`, `value`, `upper` as a function of a scalar ε minus the target, sharing their evaluations."""

    def __init__(self, curve: Curve, direction: Direction, log_delta: float) -> None:
        self._curve, self._direction, self._target = curve, direction, log_delta
        self._known: dict[float, tuple[float, float, float]] = {}

    def __call__(self, epsilon: float, side: int) -> float:
        if epsilon not in self._known:
            found = self._curve.log_delta(np.array([epsilon]), self._direction)
            self._known[epsilon] = (float(found.lower[0]), float(found.value[0]), float(found.upper[0]))
        return max(self._known[epsilon][side] - self._target, -_FAR)

    def bracket(self, side: int) -> tuple[float, float] | None:
        """The closest evaluated ε left and right of the root."""
        left = [e for e in self._known if self(e, side) > 0.0]
        right = [e for e in self._known if self(e, side) <= 0.0]
        return (max(left), min(right)) if left and right and max(left) < min(right) else None


def epsilon_at(curve: Curve, direction: Direction, log_delta: float) -> tuple[float, float, float]:
    """(lower, value, upper) of the least ε ≥ 0 with δ(ε) ≤ e^{log_delta} in one direction; upper may be ∞."""
    if isinstance(curve, Between):
        upper = epsilon_at(curve.above, direction, log_delta)[2]
        lower = max(epsilon_at(below, direction, log_delta)[0] for below in curve.below)
        return min(lower, upper), upper, upper
    sides = _Side(curve, direction, log_delta)
    start = min(float(getattr(curve, "scale", 1.0)), LARGEST_EPSILON)
    if sides(start, 2) <= 0.0 and sides(0.0, 2) <= 0.0:
        return 0.0, 0.0, 0.0
    value = _root(sides, 1, start=start)
    upper = _beside(sides, 2, value, 1.0)
    lower = min(_beside(sides, 0, value, -1.0), LARGEST_EPSILON)  # beyond that nothing was looked at
    return lower, min(max(value, lower), upper), upper


def _beside(sides: _Side, side: int, value: float, away: float) -> float:
    """The root of a bound on the safe side of the value's root: a verified step if it is close, else a search."""
    if math.isfinite(value) and value > 0.0:
        gap = max(abs(sides(value, side) - sides(value, 1)), 1e-15)
        there = value * (1.0 + away * 1e-9)
        slope = max(abs(sides(there, 1) - sides(value, 1)) / (1e-9 * value), 1e-300)
        step = max(1.5 * gap / slope, 1e-15 * value)
        if step < 1e-5 * value:
            for _ in range(4):
                if away * sides(value + away * step, side) <= 0.0:
                    return value + away * step
                step *= 3.0
    root = _root(sides, side, start=min(value, LARGEST_EPSILON) if value > 0.0 else 1.0)
    step = 1e-14 * root
    while 0.0 < root < math.inf and away * sides(root, side) > 0.0:
        root = max(root + away * step, 0.0)
        step *= 4.0
    return root


def _root(sides: _Side, side: int, *, start: float) -> float:
    """Where one side crosses the target."""
    if sides(start, side) <= 0.0 and sides(0.0, side) <= 0.0:
        return 0.0
    near = _around(sides, side, start)
    if near is None:
        return math.inf
    left, right = near
    if sides(right, side) == -_FAR:  # a cliff or −∞: halve until it can be interpolated
        for _ in range(60):
            middle = 0.5 * (left + right)
            if sides(middle, side) > 0.0:
                left = middle
            else:
                right = middle
                if sides(middle, side) > -_FAR:
                    break
    return float(brentq(lambda e: sides(e, side), left, right, xtol=1e-14 * right, rtol=1e-13))


def _around(sides: _Side, side: int, start: float) -> tuple[float, float] | None:
    """A bracket of the root, grown from `start` by doubling or halving."""
    known = sides.bracket(side)
    if known is not None and known[0] > 0.0:
        return known
    right = min(start, LARGEST_EPSILON)
    left = 0.0
    while sides(right, side) > 0.0:
        left = right
        if right >= LARGEST_EPSILON:
            return None
        right = min(2.0 * right, LARGEST_EPSILON)
    while left == 0.0:
        middle = 0.5 * right
        if middle < _SMALLEST_EPSILON:
            return 0.0, right
        if sides(middle, side) > 0.0:
            left = middle
        else:
            right = middle
    return left, right


def least(
    excess: Callable[[float], float],
    low: float,
    high: float,
    *,
    start: float,
    relative: float,
    what: str,
    stride: float = 2.0,
) -> float:
    """The least x in [low, high], to the relative accuracy stated, at which the decreasing `excess` is ≤ 0.

    The bracket grows from `start` by factors of `stride`; `what` names x in the error raised if excess(high) > 0.
    """
    known: dict[float, float] = {}

    def at(log_x: float) -> float:
        if log_x not in known:
            known[log_x] = max(min(excess(math.exp(log_x)), _FAR), -_FAR)
        return known[log_x]

    bottom, top, step = math.log(low), math.log(high), math.log(stride)
    left = right = math.log(start)
    while at(right) > 0.0:
        if right >= top:
            raise UnreachableTargetError(
                f"no {what} up to {high:g} meets the target: at {high:g} it is still missed by a factor of "
                f"{math.exp(min(at(right), 700.0)):.3g}. Allow a larger epsilon or delta, or fewer epochs."
            )
        left, right = right, min(right + step, top)
        step *= 1.5
    while at(left) <= 0.0:
        if left <= bottom:
            return low
        right, left = left, max(left - step, bottom)
        step *= 1.5
    root = float(brentq(at, left, right, xtol=0.3 * relative, rtol=1e-14))
    nudge = 0.1 * relative
    while at(root) > 0.0:
        root = min(root + nudge, right)
        nudge *= 2.0
    return math.exp(root)
