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

from ballsbins.accounting.balls_and_bins.lower_bound import MaximumCurve
from ballsbins.accounting.between import Between, below_epochs
from ballsbins.accounting.composition import Accuracy
from ballsbins.accounting.curve import Curve
from ballsbins.accounting.deterministic import GaussianCurve


class ShuffleCurve(Between):
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
        below = [balls_and_bins]
        if whole > 0:
            one = MaximumCurve(noise_multiplier, steps, 2.0, 1.0)
            below += below_epochs(one, noise_multiplier, whole, accuracy)
        super().__init__(below, GaussianCurve(noise_multiplier, epochs))
