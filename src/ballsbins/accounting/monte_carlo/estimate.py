"""From sampled losses to bounds on δ at every ε, in constant memory.

Losses are counted on a lattice; upper bounds are rounded up and lower bounds down. So one set of samples serves all
ε, and 10⁹ samples take no more memory than 10⁵. Two estimates merge by adding integers, which is exactly associative,
so the answer cannot depend on how the work was divided.

The contribution of a loss, in units of its range b(ε) (see `pairs`),

    f(L) = (1 − e^{ε−L})₊ e^{−τ(L−ε)} / c_τ,      c_τ = τ^τ/(1+τ)^{1+τ},

rises up to L* = ε + log((1+τ)/τ), where it is 1, and falls beyond. Write f = f↑ − f↓ with both parts increasing,
f↑(L) = f(min(L, L*)), f↓(L) = 1 − f(max(L, L*)). For a loss known to lie in [l, h],

    f↑(l) − f↓(h) ≤ inf f ≤ f ≤ sup f = f↑(h) − f↓(l),

so means over samples only need the two counts, not the pairs. The same holds with f² for second moments.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ballsbins.accounting.curve import Array
from ballsbins.errors import InvalidInputError

Counts = NDArray[np.int64]

STEP = 4e-4  # spacing of the lattice in units of 1/(1+τ): it costs about this relative amount of δ
_ROUNDING = 1e-12  # more than the rounding of the points of a lattice
_REACH = 37.0  # how far a lattice reaches: e^−37 is below rounding


@dataclass(frozen=True, slots=True)
class Lattice:
    """The numbers start + step·i for i = 0 … size−1."""

    start: float
    step: float
    size: int

    @staticmethod
    def around(least: float, most: float, tilt: float) -> Lattice:
        """The lattice for estimates at least ≤ ε ≤ most: losses below `least` contribute nothing."""
        step = STEP / (1.0 + tilt)
        reach = _REACH / max(tilt, 1.0)
        return Lattice(least, step, math.ceil((most - least + reach) / step) + 2)

    @property
    def points(self) -> Array:
        return np.asarray(self.start + self.step * np.arange(self.size), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Tally:
    """Counted losses. `low[0]` counts −∞ and `high[size]` counts +∞; the other entries count lattice points."""

    lattice: Lattice
    count: int
    low: Counts
    high: Counts

    @staticmethod
    def empty(lattice: Lattice) -> Tally:
        """No samples yet."""
        zeros = np.zeros(lattice.size + 1, dtype=np.int64)
        return Tally(lattice, 0, zeros, zeros.copy())

    @staticmethod
    def of(lattice: Lattice, low: Array, high: Array) -> Tally:
        """Count losses known to lie in [low, high]."""
        wrong = np.flatnonzero(~(low <= high))
        if wrong.size:
            pair = (float(low[wrong[0]]), float(high[wrong[0]]))
            advice = "Return numbers, the lower bound on the loss first; ±∞ is allowed."
            raise InvalidInputError("bounds on a loss", pair, "a lower and an upper one", advice)
        size = lattice.size
        ends = np.array([0.0, float(size)])
        down = np.clip(np.floor((low - lattice.start) / lattice.step) + 1.0, *ends).astype(np.intp)
        up = np.clip(np.ceil((high - lattice.start) / lattice.step), *ends).astype(np.intp)
        return Tally(
            lattice,
            low.size,
            np.bincount(down, minlength=size + 1).astype(np.int64),
            np.bincount(up, minlength=size + 1).astype(np.int64),
        )

    def merge(self, other: Tally) -> Tally:
        """Both sets of samples together."""
        if self.lattice != other.lattice:
            raise InvalidInputError(
                "lattice", other.lattice, f"{self.lattice}", "Merge estimates of one and the same question."
            )
        return Tally(self.lattice, self.count + other.count, self.low + other.low, self.high + other.high)


@dataclass(frozen=True, slots=True)
class Moments:
    """Mean and unbiased variance of contributions in units of their range, bounded on both sides."""

    count: int
    mean_low: float
    mean_high: float
    variance_low: float  # a bound on the variance of the contributions whose mean is mean_low
    variance_high: float

    @property
    def standard_error(self) -> float:
        """The standard error of the mean, in units of the range."""
        return math.sqrt(max(self.variance_high, 0.0) / self.count)


def _shape(distance: Array, tilt: float) -> tuple[Array, Array]:
    """f↑ and f↓ at L = ε + distance."""
    peak = math.log1p(1.0 / tilt) if tilt > 0.0 else math.inf
    entropy = tilt * math.log(tilt) - (1.0 + tilt) * math.log1p(tilt) if tilt > 0.0 else 0.0

    def f(x: Array) -> Array:
        with np.errstate(invalid="ignore"):
            tilted = np.exp(-tilt * x - entropy) if tilt > 0.0 else np.ones_like(x)
            return np.where(x > 0.0, -np.expm1(-x) * tilted, 0.0)

    rising = np.minimum(f(np.clip(distance, 0.0, peak)), 1.0)
    if math.isinf(peak):
        return rising, np.zeros_like(distance)
    return rising, np.clip(1.0 - f(np.maximum(distance, peak)), 0.0, 1.0)


def moments(tally: Tally, tilt: float, epsilon: float) -> Moments:
    """Estimates of δ(ε) from the samples, in units of the range b(ε)."""
    points = tally.lattice.points
    if epsilon < points[0] - _ROUNDING:
        raise InvalidInputError(
            "epsilon", epsilon, f"at least {points[0]}", "These samples were counted for larger ones."
        )
    # use only points with counts; −∞ comes before the lattice for low counts, +∞ after it for high counts
    low_at, high_at = np.flatnonzero(tally.low), np.flatnonzero(tally.high)
    low_count, high_count = tally.low[low_at], tally.high[high_at]
    rise_low, fall_low = _shape(np.append(-np.inf, points)[low_at] - epsilon, tilt)
    rise_high, fall_high = _shape(np.append(points, np.inf)[high_at] - epsilon, tilt)
    m = float(tally.count)

    def averages(r: tuple[Array, Array], d: tuple[Array, Array]) -> tuple[float, float]:
        high = float(high_count @ r[1] - low_count @ d[0]) / m
        low = float(low_count @ r[0] - high_count @ d[1]) / m
        return max(low, 0.0), max(high, low, 0.0)

    low, high = averages((rise_low, rise_high), (fall_low, fall_high))
    squares = (rise_low**2, rise_high**2), (1.0 - (1.0 - fall_low) ** 2, 1.0 - (1.0 - fall_high) ** 2)
    _, square = averages(*squares)
    bessel = m / max(m - 1.0, 1.0)
    return Moments(
        tally.count,
        low,
        min(high, 1.0),
        max(square - low * low, 0.0) * bessel,
        max(square - high * high, 0.0) * bessel,
    )


def moments_of_shares(tally: Tally, rest: float) -> Moments:
    """The same estimates if the contributions themselves were counted, in units of their range."""
    (low, low_count), (high, high_count) = shares(tally, rest)
    m = float(tally.count)
    mean_low, mean_high = float(low @ low_count) / m, min(float(high @ high_count) / m, 1.0)
    bessel = m / max(m - 1.0, 1.0)
    return Moments(
        tally.count,
        mean_low,
        mean_high,
        float(np.square(low - mean_low) @ low_count) / m * bessel,
        float(np.square(high - mean_high) @ high_count) / m * bessel,
    )


def shares(tally: Tally, rest: float) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Counted contributions: lower bounds and how often each occurred, and upper bounds, to which `rest` is added."""
    below, above = np.flatnonzero(tally.low), np.flatnonzero(tally.high)
    points = tally.lattice.points
    return (
        (np.append(0.0, points)[below], tally.low[below].astype(np.float64)),
        (np.minimum(np.append(points, 1.0)[above] + rest, 1.0), tally.high[above].astype(np.float64)),
    )
