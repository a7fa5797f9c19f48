"""Losses of an epoch that stopped early, or of fixed bins visited unequally often: bins of several kinds.

Of T bins some have the noise multiplier σ₁, some σ₂, …, and the rest were not visited at all: their Z is 1. So
S = (ΣZ + T − visited)/T. After t of T steps there are t bins with σ. If fixed bins are kept for E epochs, t of them
were visited E times, with σ/√E, and the others E − 1 times. Under P one bin, any of the T, is spiked.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ballsbins.accounting.curve import ADD, Direction
from ballsbins.accounting.monte_carlo.pairs import Losses, Untilted
from ballsbins.accounting.monte_carlo.plain import sum_of_z, with_spikes


@dataclass(frozen=True)
class Unfinished(Untilted):
    """All coordinates drawn; `kinds` are numbers of bins with their noise multipliers."""

    kinds: tuple[tuple[int, float], ...]
    steps: int
    direction: Direction

    @property
    def row(self) -> int:
        return sum(bins for bins, _ in self.kinds)

    def losses(self, rng: np.random.Generator, count: int) -> Losses:
        """Exact losses."""
        spiked = (
            rng.random(count) * self.steps
        )  # the number of the spiked bin; bins count from the first kind on
        rest = np.full(count, float(self.steps - self.row))
        ones, first = [], 0
        for bins, sigma in self.kinds:
            s = 1.0 / sigma
            rest += sum_of_z(rng, count, bins - 1, s)
            here = (spiked >= first) & (spiked < first + bins) & (self.direction != ADD)
            ones.append(s * rng.standard_normal(count) + s * s * np.where(here, 0.5, -0.5))
            first += bins
        with np.errstate(divide="ignore"):
            loss = with_spikes(np.stack(ones, axis=1), rest, self.steps)
        loss = -loss if self.direction == ADD else loss
        return loss, loss
