"""The grid of a run: how large its unit must be for the noise to cover every rounding of the sums.

The clipped sum is released as unit·(k + r): k is the sum in units, rounded to integers, and r = round(2²⁶·N(0, 1)).
Because k is an integer, k + r = round(k + 2²⁶·N(0, 1)), a post-processing of the continuous Gaussian mechanism with
the query k. Its noise multiplier is 2²⁶/Δ, where Δ = max ‖k − k′‖ over neighbouring data. With

    unit = σ·C·(1 + η)·2⁻²⁶

and η as below, Δ ≤ 2²⁶/σ. So the noise multiplier is at least σ, and every accountant of the Gaussian mechanism holds
unchanged. An example moves k for two reasons (step numbers refer to docs/floating_point.md):

* its clipped contribution, of norm at most C, and its effect on the rounding of the sum: together C·(1 + excess),
  where `excess` bounds ‖(Ŝ − Ŝ′) − (S − S′)‖/C for the arithmetic in use (steps 3 and 4);
* rounding to the grid: because |rint a − rint b| ≤ |a − b| + 1, each dense coordinate moves by at most 1 more. Each
  coordinate that is rounded separately for one example (rows of a table) moves by at most ½ more (step 5).

In units that is 2²⁶/(σ(1 + η))·(1 + excess) + √(dense + scattered/4), which is at most 2²⁶/σ if

    η ≥ (excess + ρ)/(1 − ρ),   ρ = σ·√(dense + scattered/4)·2⁻²⁶ .
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from ballsbins import _check
from ballsbins.errors import InvalidInputError
from ballsbins.noise import SCALE

UNIT_ROUNDOFF = 2.0**-53  # of float64
UNIT_ROUNDOFF_32 = 2.0**-24
# A norm is the root of a float64 sum of squares of float32 values. All terms are at least 0, so its relative error is
# below γ_n/2 < 6·10⁻⁸ for up to 10⁹ terms, plus a few roundings. Clipping to C·(1 − margin) keeps the true norm
# within C (step 3).
CLIP_MARGIN = 1e-7
_MOST_COORDINATES = 10**9
_SPARE = 1e-12  # covers the rounding of η and unit themselves
_LARGEST = 2.0**52  # |k + r| must be exact in float64
_LARGEST_ETA = 0.5
# so far from the float32 underflow threshold that underflow moves k by less than 1
_SMALLEST_UNIT, _LARGEST_UNIT = (
    2.0**-80,
    2.0**80,
)


def gamma(count: int, roundoff: float) -> float:
    """γ_n = n·u/(1 − n·u): the largest relative error of n roundings."""
    product = count * roundoff
    return product / (1.0 - product) if product < 1.0 else math.inf


def excess_of(rows: int, roundoff: float = UNIT_ROUNDOFF) -> float:
    """How much summing `rows` contributions adds to sensitivity, in any order, with or without fused multiply-adds.

    |Ŝ − S| ≤ γ_n·Σ|aᵢ||vᵢ| in every entry, so ‖Ŝ − S‖ ≤ γ_n·n·C by Minkowski's inequality, for both neighbours. The
    division by the unit rounds once more: 4n·u. If sums of chunks are added up, `rows` is the size of a chunk,
    because all chunks except the example's have the same bits.
    """
    return 2.0 * rows * gamma(rows, roundoff) + 4.0 * rows * UNIT_ROUNDOFF


@dataclass(frozen=True)
class Grid:
    """The unit of a run and the errors that it covers.

    Attributes:
        noise_multiplier: σ, as stated and accounted for.
        clip_norm: C.
        rows: the largest number of examples in a step.
        excess: what the arithmetic of the sums adds to the sensitivity, in units of C: `excess_of`.
        dense: the number of coordinates of the sum that are rounded once for all examples.
        scattered: the number of coordinates of one example that are rounded separately and then added as integers.
    """

    noise_multiplier: float
    clip_norm: float
    rows: int
    excess: float
    dense: int
    scattered: int = 0

    def __post_init__(self) -> None:
        """Refuse settings that cannot be covered, and give the numbers."""
        advice = (
            "Without noise there is no grid, and nothing can be claimed: state a noise multiplier above 0."
        )
        _check.real("noise_multiplier", self.noise_multiplier, 0.0, open_left=True, advice=advice)
        advice = "It is the largest norm of one example's gradient."
        _check.real("clip_norm", self.clip_norm, 0.0, open_left=True, advice=advice)
        _check.integer("the most examples of a step", self.rows, 1, advice="A step has at least one.")
        advice = "Norms of longer gradients are not proved to be right: train fewer parameters."
        _check.integer(
            "the number of parameters", self.dense + self.scattered, 1, _MOST_COORDINATES, advice=advice
        )
        largest = self.rows * SCALE / self.noise_multiplier
        most = self.most_rows(self.noise_multiplier)
        if self.rows > most:
            raise InvalidInputError(
                "the largest sum in units of the grid, rows · 2²⁶/σ",
                f"{self.rows:,} · 2²⁶/{self.noise_multiplier:g} = {largest:.3g}",
                f"below 2⁵¹ = {_LARGEST / 2:.3g}, or integers overflow",
                f"Use batches of at most {most:,} examples, or more noise.",
            )
        if not self.eta <= _LARGEST_ETA:
            raise InvalidInputError(
                "η, the part of the noise that covers rounding,",
                f"{self.eta:.3g}",
                f"at most {_LARGEST_ETA}",
                f"It comes from σ = {self.noise_multiplier:g} with {self.dense:,} parameters and from sums of "
                f"{self.rows:,} examples: use less noise, fewer parameters or smaller batches.",
            )
        if not _SMALLEST_UNIT <= self.unit <= _LARGEST_UNIT:
            raise InvalidInputError(
                "the unit of the grid, σ·C·2⁻²⁶,", f"{self.unit:.3g}",
                f"from {_SMALLEST_UNIT:.3g} to {_LARGEST_UNIT:.3g}",
                "Gradients of that size under- or overflow in float32: scale the loss, and the clip norm with it.",
            )  # fmt: skip

    @staticmethod
    def most_rows(noise_multiplier: float) -> int:
        """The largest number of examples in a step whose sum cannot overflow."""
        return int(_LARGEST * noise_multiplier / SCALE / 2.0)

    @cached_property
    def eta(self) -> float:
        """η: the relative amount of noise added beyond σ·C, to cover rounding."""
        rho = self.noise_multiplier * math.sqrt(self.dense + self.scattered / 4.0) / SCALE
        return (self.excess + rho) / (1.0 - rho) + _SPARE if rho < 1.0 else math.inf

    @property
    def unit(self) -> float:
        """The length of one step of the grid."""
        return self.noise_multiplier * self.clip_norm * (1.0 + self.eta) / SCALE

    @property
    def clip_limit(self) -> float:
        """The limit for computed norms that keeps the true norms within the clip norm."""
        return self.clip_norm * (1.0 - CLIP_MARGIN)
