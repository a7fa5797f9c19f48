"""What is known where there are curves below the truth and one above, but none for it.

Each bound holds by itself, so each is searched by itself (`search.epsilon_at`): the lower ones are costly and, far
above their own root, where only the upper one matters, the costliest.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ballsbins.accounting.composition import Accuracy, ComposedCurve
from ballsbins.accounting.curve import Array, Curve, Direction, Interval
from ballsbins.errors import AccuracyError

_LEAST_COMPOSED = 0.05  # with less noise a single epoch gives away all there is


def below_epochs(one: Curve, sigma: float, epochs: int, accuracy: Accuracy | None = None) -> list[Curve]:
    """Curves below several epochs, from one that is below a single one: itself, and itself composed."""
    if epochs == 1 or sigma < _LEAST_COMPOSED:
        return [one]
    return [one, ComposedCurve([(one, epochs)], accuracy)]


class Between:
    """From the largest of some curves below to the one above; the value is the safe one."""

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


class _AsFarAsKnown:
    """A curve, and nothing (δ ≥ 0) where it fails, there and beyond: to try takes seconds."""

    def __init__(self, curve: Curve) -> None:
        self._curve = curve
        self._reach: dict[Direction, float] = {}
        self.method, self.confidence = curve.method, curve.confidence

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
