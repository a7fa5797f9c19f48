"""Shuffling: what is known is a lower and an upper bound.

Lower, the larger of two:
- the pair that x ↦ max_t x_t induces on the pair of proposition S-dominated (means 2 and 1), i.e. the paper's
  S_C bound with C optimised; several epochs by composing that pair, rounded so that it stays dominated
  (`lower_bound`, `composition`);
- δ_B, which proposition B-vs-S-and-D shows to be no larger, over as many epochs.
Upper: Deterministic's, since any fixed assignment of examples to batches is that (the same proposition).

The two may be far apart. `value` is the upper one: whoever trains with shuffled batches can rely on no less.
"""

from __future__ import annotations

import numpy as np

from ballsbins.accounting.balls_and_bins.lower_bound import MaximumCurve
from ballsbins.accounting.composition import Accuracy, ComposedCurve
from ballsbins.accounting.curve import Array, Curve, Direction, Interval
from ballsbins.accounting.deterministic import GaussianCurve
from ballsbins.errors import AccuracyError

LEAST_COMPOSED = 0.05  # with less noise a single epoch gives away all there is


class ShuffleCurve:
    """Bounds on the privacy curve of `epochs` shuffled epochs, the first `whole` of them with all `steps`.

    `balls_and_bins` is the curve of balls-and-bins with the same noise, steps and epochs.
    """

    def __init__(
        self,
        noise_multiplier: float,
        steps: int,
        epochs: int,
        whole: int,
        balls_and_bins: Curve,
        accuracy: Accuracy | None = None,
    ) -> None:
        """An unfinished last epoch counts for the upper bound and for balls-and-bins, not for S_C."""
        self._upper = GaussianCurve(noise_multiplier, epochs)
        self._lower: list[Curve] = [balls_and_bins]
        self._reach: dict[
            tuple[int, Direction], float
        ] = {}  # up to which ε a lower bound is known to be of use
        if whole > 0:
            one = MaximumCurve(noise_multiplier, steps, 2.0, 1.0)
            self._lower.append(one)
            if whole > 1 and noise_multiplier >= LEAST_COMPOSED:
                self._lower.append(ComposedCurve([(one, whole)], accuracy))

    @property
    def method(self) -> str:
        return "bounds"

    @property
    def confidence(self) -> float:
        return min(curve.confidence for curve in self._lower)

    def log_delta(self, epsilon: Array, direction: Direction) -> Interval:
        """The largest lower bound, and the upper bound as value.

        Each lower bound holds by itself, so where one is not to be had to the usual accuracy, which happens far out,
        it is done without, there and beyond: to try takes seconds.
        """
        upper = self._upper.log_delta(epsilon, direction).upper
        lower = np.full(epsilon.shape, -np.inf)
        size = np.abs(epsilon)
        for number, curve in enumerate(self._lower):
            here = np.flatnonzero(size < self._reach.get((number, direction), np.inf))
            while here.size:
                try:
                    lower[here] = np.maximum(lower[here], curve.log_delta(epsilon[here], direction).lower)
                    break
                except AccuracyError:
                    self._reach[number, direction] = 0.3 * float(np.median(size[here]))
                    here = here[size[here] < self._reach[number, direction]]
        return Interval(np.minimum(lower, upper), upper, upper)
