"""Several epochs (algorithm "mce-multiple-epochs" of the paper).

Redrawn bins: losses of independent epochs add, L(P^⊗k‖Q^⊗k) = ΣL. A tilt survives (κ adds up, τ stays); an event
does not, since a large loss in one epoch is not needed for a large sum.
Fixed bins: the sum of the E numbers of a bin is sufficient, so E epochs at σ are one epoch at σ/√E.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ballsbins import _check
from ballsbins.accounting.monte_carlo.pairs import Losses, LossSampler
from ballsbins.accounting.monte_carlo.unfinished import Unfinished
from ballsbins.errors import InvalidInputError


@dataclass(frozen=True)
class Epochs:
    """Independent epochs, each with losses from `one`, and perhaps a last one that stopped early."""

    one: LossSampler
    epochs: int
    last: Unfinished | None = None

    def __post_init__(self) -> None:
        """Refuse events."""
        _check.integer("epochs", self.epochs, 1, advice="State how often the data is passed.")
        if self.epochs > 1 and math.isfinite(self.one.least_epsilon):
            raise InvalidInputError(
                "sampler",
                type(self.one).__name__,
                "one without an event for several epochs",
                'Use "plain", "order-statistics" or "tilted".',
            )

        if self.last is not None and self.one.tilt > 0.0:
            raise InvalidInputError(
                "sampler",
                type(self.one).__name__,
                "one without a tilt for an unfinished last epoch",
                'Use "plain" or "order-statistics".',
            )

    @property
    def row(self) -> int:
        return max(self.one.row, 0 if self.last is None else self.last.row)

    @property
    def tilt(self) -> float:
        return self.one.tilt

    @property
    def log_weight(self) -> float:
        """κ of the product."""
        return self.epochs * self.one.log_weight

    @property
    def log_weight_error(self) -> float:
        return self.epochs * self.one.log_weight_error

    @property
    def least_epsilon(self) -> float:
        return self.one.least_epsilon

    def losses(self, rng: np.random.Generator, count: int) -> Losses:
        """Sums of losses, one epoch at a time, so that memory does not grow with their number."""
        low, high = np.zeros(count), np.zeros(count)
        for _ in range(self.epochs):
            below, above = self.one.losses(rng, count)
            low, high = low + below, high + above
        if self.last is not None:
            loss, _ = self.last.losses(rng, count)
            low, high = low + loss, high + loss
        return low, high
