"""What is known where there are curves below the truth and one above, and none for it, or one that may fail.

Each bound holds by itself, so each is searched by itself (`search.epsilon_at`): the lower ones are costly and, far
above their own root, where only the upper one matters, the costliest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ballsbins.accounting.composition import Accuracy, ComposedCurve
from ballsbins.accounting.curve import Array, Curve, Direction, Interval, Kind
from ballsbins.errors import AccuracyError

_SPLITS = 3  # a vector with points that have no answer is halved so often to find those that have one
_LEAST_COMPOSED = 0.05  # with less noise a single epoch gives away all there is


def below_epochs(one: Curve, sigma: float, epochs: int, accuracy: Accuracy | None = None) -> list[Curve]:
    """Curves below several epochs, from one that is below a single one: itself, and itself composed."""
    if epochs == 1 or sigma < _LEAST_COMPOSED:
        return [one]
    return [one, ComposedCurve([(one, epochs)], accuracy)]


class Between:
    """From the largest of some curves below to the one above; the value is the safe one."""

    kind: Kind = "bounds"

    def __init__(self, below: Sequence[Curve], above: Curve, method: str = "bounds") -> None:
        """Where a curve below is not to be had it is done without."""
        self.below, self.above, self.method = [_AsFarAsKnown(curve) for curve in below], above, method

    @property
    def confidence(self) -> float:
        """All must hold."""
        return min(curve.confidence for curve in (*self.below, self.above))

    def log_delta(self, epsilon: Array, direction: Direction) -> Interval:
        """Bounds on log δ(ε)."""
        upper = self.above.log_delta(epsilon, direction).upper
        lower = np.max([curve.log_delta(epsilon, direction).lower for curve in self.below], axis=0)
        return Interval(np.minimum(lower, upper), upper, upper)


class OrBounds:
    """A curve, never above a bound that costs nothing, and bounds where it has no answer (`AccuracyError`)."""

    def __init__(self, curve: Curve, bounds: Between, deep: float = -np.inf) -> None:
        """`bounds` are on the same δ, in closed form. Where they prove log δ < `deep` the curve is not asked."""
        self.curve, self.bounds, self._deep = curve, bounds, deep
        self.method, self.kind, self.confidence = curve.method, curve.kind, curve.confidence

    @property
    def scale(self) -> float:
        return float(getattr(self.curve, "scale", 1.0))

    @property
    def rough_epsilon(self) -> Any:
        """The curve's own first guess of ε from log δ, if it has one."""
        return getattr(self.curve, "rough_epsilon", None)

    @property
    def log_upper(self) -> Any:
        """The curve's own cheap upper bound on log δ, if it has one."""
        return getattr(self.curve, "log_upper", None)

    def log_delta(self, epsilon: Array, direction: Direction) -> Interval:
        """The curve's bounds on log δ(ε) where it has any."""
        epsilon = np.asarray(epsilon, dtype=np.float64)
        above = self.bounds.above.log_delta(epsilon, direction).upper
        rows = np.full((3, epsilon.size), np.nan)
        at = np.argsort(np.abs(epsilon), kind="stable")
        self._answer(at[above[at] >= self._deep], epsilon, direction, rows, _SPLITS)
        missing = np.isnan(rows[2])
        if missing.any():
            found = self.bounds.log_delta(epsilon[missing], direction)
            rows[:, missing] = found.lower, found.value, found.upper
        lower, value, upper = np.minimum(rows, above)
        return Interval(lower, value, upper)

    def _answer(
        self, at: NDArray[np.intp], epsilon: Array, direction: Direction, rows: Array, splits: int
    ) -> None:
        """Put the curve's answers in place, in parts where it has none for all together."""
        if not at.size:
            return
        try:
            found = self.curve.log_delta(epsilon[at], direction)
        except AccuracyError:
            if splits > 0 and at.size > 1:
                for half in np.array_split(at, 2):
                    self._answer(half, epsilon, direction, rows, splits - 1)
        else:
            rows[:, at] = found.lower, found.value, found.upper


class _AsFarAsKnown:
    """A curve, and nothing (δ ≥ 0) where it fails, there and beyond: to try takes seconds."""

    def __init__(self, curve: Curve) -> None:
        self._curve = curve
        self._reach: dict[Direction, float] = {}
        self.method, self.kind, self.confidence = curve.method, curve.kind, curve.confidence

    @property
    def scale(self) -> float:
        return float(getattr(self._curve, "scale", 1.0))

    def log_delta(self, epsilon: Array, direction: Direction) -> Interval:
        """The curve's own bounds; −∞ where it has none, which only as a lower bound is one."""
        found = Interval(*(np.full(epsilon.shape, -np.inf) for _ in range(3)))
        size = np.abs(epsilon)
        here = np.flatnonzero(size < self._reach.get(direction, np.inf))
        while here.size:
            try:
                part = self._curve.log_delta(epsilon[here], direction)
            except AccuracyError:
                self._reach[direction] = 0.3 * float(np.median(size[here]))
                here = here[size[here] < self._reach[direction]]
                continue
            found.lower[here], found.value[here], found.upper[here] = part.lower, part.value, part.upper
            break
        return found
