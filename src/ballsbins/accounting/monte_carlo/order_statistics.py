"""Losses bounded from both sides by a few order statistics (algorithm "order-sampling" of the paper).

For y^(1) ≥ … ≥ y^(R) and orders 1 = k₁ < … < k_r, with k₀ = 0 and k_{r+1} = R + 1 (the paper prints R, with which the
weights sum to R − 1 and the bound can fail: R = 1 shows it),

    Σ (k_i − k_{i−1}) e^{y^(k_i)/σ²}  ≤  Σ_t e^{x_t/σ²}  ≤  Σ (k_{i+1} − k_i) e^{y^(k_i)/σ²}.

The paper multiplies z_i ∼ Beta(R − k_i + 1, k_i − k_{i−1}). We draw the same law, but of the *upper* tails
V_i = 1 − Φ(y^(k_i)/σ), so the largest values lose no digits: uniform order statistics are normalised partial sums of
exponentials,

    V_i = Γ_i/Γ,   Γ_i = Γ_{i−1} + Gamma(k_i − k_{i−1}),   Γ = Γ_r + Gamma(R + 1 − k_r),

one exponential for each consecutive order and one gamma for every other order.

Z(V) = exp(−s·Φ⁻¹(V) − s²/2) is read from a table. It is linear in V within bins of 2⁻⁹ of an octave of V or, above ½,
of 1 − V; the leading bits give the bin without a logarithm. Z″ = s·Z·(s + x)/φ(x)² bounds the error of each chord by
`relative`, which widens the bounds. V itself is rounded, which changes Z by at most `rounding`. If the table cannot
be accurate enough (σ below about ⅛), Z is computed directly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from scipy.special import ndtri

from ballsbins.accounting.curve import ADD, Array, Direction
from ballsbins.accounting.monte_carlo import kernel
from ballsbins.accounting.monte_carlo.orders import Orders, checked
from ballsbins.accounting.monte_carlo.pairs import Losses, Untilted
from ballsbins.accounting.monte_carlo.plain import with_spikes

_BITS = 9  # leading bits of the mantissa that choose a bin within its octave
_SHIFT = 52 - _BITS  # the remaining bits of a double's mantissa
_OCTAVES = 60  # the table goes down to V = 2^−60; should a smaller V occur, Z is computed directly
_TABLE_ROUNDING = 1e-14  # relative rounding of a table of Z
_LOST, _LARGEST_TAIL = 1e-13, 0.01  # rounding of V; least 1 − V that occurs, times R
_ROOT_TAU, _STEEPEST = 2.6, 30.0  # a little more than √(2π); beyond e^30 the bound is useless
_GOOD = 5e-5  # largest relative error of a table; with a larger one Z is computed directly
_CACHED = 2**15  # numbers processed at a time: they stay in the cache


def upper_tails(
    rng: np.random.Generator, count: int, draws: int | Array, orders: Orders, above: Array | None = None
) -> Array:
    """V of the order statistics, shape (orders, count); with `above` = 1 − Φ(y*/σ), of draws given to be below y*."""
    gaps = np.diff(np.append(0, orders)).astype(np.float64)
    v = np.empty((gaps.size, count))
    fast = kernel.compiled(v.size)
    if fast is None:
        partial_sums(rng, gaps, v)
    else:
        fast[0](rng, gaps, v)
    total = v[-1] + rng.standard_gamma(np.broadcast_to(np.asarray(draws) + 1.0 - orders[-1], (count,)))
    v *= 1.0 / total
    if above is not None:
        v *= 1.0 - above
        v += above
    return v


def partial_sums(rng: np.random.Generator, gaps: Array, v: Array) -> None:
    """v[i] = v[i−1] + Gamma(gaps[i]); the NumPy form of `kernel`."""
    start = 0
    while start < gaps.size:  # runs of equal gaps, each drawn in one call
        stop = start + 1
        while stop < gaps.size and gaps[stop] == gaps[start]:
            stop += 1
        if gaps[start] == 1.0:
            rng.standard_exponential(out=v[start:stop])
        else:
            rng.standard_gamma(gaps[start], out=v[start:stop])
        start = stop
    for i in range(1, gaps.size):  # np.cumsum along this axis takes three times as long
        np.add(v[i - 1], v[i], out=v[i])


@dataclass(frozen=True)
class _Table:
    """Chords of Z(V) over bins of V up to ½ and, from `half` on, of 1 − V; empty if they would be inaccurate."""

    s: float
    first: int = 0
    half: int = 0
    intercept: Array = field(default_factory=lambda: np.empty(0))
    slope: Array = field(default_factory=lambda: np.empty(0))
    relative: float = 1e-14

    def sums(self, v: Array, weights: Array) -> Array:
        """weights @ Z(v), row by row; v must increase from row to row and is overwritten."""
        count = v.shape[1]
        found = np.zeros((2, count))
        if self.slope.size == 0 or v[0].min() < 2.0**-_OCTAVES:
            return np.asarray(np.einsum("wi,ij->wj", weights, z_of_tail(v, self.s)))
        fast = kernel.compiled(0)
        if fast is not None:
            facts = (self.slope, self.intercept, _SHIFT, self.first, self.half)
            fast[1](v, v.view(np.int64), *facts, weights, found)
            return found
        height = max(_CACHED // count, 1)
        terms = np.empty((height + 1, count))
        for start in range(0, v.shape[0], height):  # a few rows at a time stay in the cache
            z = self.chords(v[start : start + height])
            for row, weight in zip(found, weights[:, start : start + height], strict=True):
                part = terms[: z.shape[0] + 1]
                part[0] = row
                np.multiply(z, weight[:, None], out=part[1:])
                np.add.reduce(part, axis=0, out=row)  # in the order of rows, as in `kernel`
        return found

    def chords(self, v: Array) -> Array:
        """Z(v), written over v."""
        if v[-1].max() <= 0.5:
            bins = (v.view(np.int64) >> _SHIFT) - self.first
        else:
            high = v > 0.5
            np.subtract(1.0, v, out=v, where=high)
            bins = np.maximum((v.view(np.int64) >> _SHIFT) - self.first, 0)
            bins += self.half * high
        v *= self.slope.take(bins, mode="clip")
        v += self.intercept.take(bins, mode="clip")
        return v


def z_of_tail(v: Array, s: float) -> Array:
    """Z = exp(s·x − s²/2) at the x whose upper tail is v."""
    return np.asarray(np.exp(-s * ndtri(v) - 0.5 * s * s))


@lru_cache(maxsize=8)
def table(s: float) -> _Table:
    """The table for s = 1/σ."""
    first = int(np.array(2.0**-_OCTAVES).view(np.int64)) >> _SHIFT
    last = (int(np.array(0.5).view(np.int64)) >> _SHIFT) + 1  # ½ itself is in the first bin beyond
    edges = (np.arange(first, last + 1, dtype=np.int64) << _SHIFT).view(np.float64)
    left, right = edges[:-1], edges[1:]
    x = -ndtri(edges)  # ≥ 0 but for the last
    far = np.maximum(np.abs(x[:-1]), np.abs(x[1:]))  # φ is least, and s + |x| largest, at the outer end
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        phi = np.exp(-0.5 * far * far) / math.sqrt(2.0 * math.pi)
        parts = []
        for side in (1.0, -1.0):  # V = u, then V = 1 − u
            z = np.exp(side * s * x - 0.5 * s * s)
            slope = np.diff(z) / (right - left)
            most, least = np.maximum(z[:-1], z[1:]), np.minimum(z[:-1], z[1:])
            error = s * most * (s + far) / phi**2 * (right - left) ** 2 / 8 / least
            parts.append((z[:-1] - slope * left, slope, error))
    relative = max(float(np.max(error)) for _, _, error in parts)
    if not (math.isfinite(relative) and relative <= _GOOD):
        return _Table(s)
    intercept, slope = (np.concatenate([part[k] for part in parts]) for k in (0, 1))
    return _Table(s, first, left.size, intercept, slope, relative + _TABLE_ROUNDING)


def rounding(s: float, draws: float) -> float:
    """The error of Z if V is off by 10⁻¹³ and V = 1 − 0.01/R is the largest that occurs: |dZ/dV| = s·Z/φ."""
    x = -ndtri(_LARGEST_TAIL / draws)
    steepest = max(0.0, 0.5 * x * x - s * x) - 0.5 * s * s  # of log Z/φ on [−x, 0]
    return _LOST * _ROOT_TAU * s * math.exp(min(steepest, _STEEPEST))


def weights(orders: Orders, draws: int) -> Array:
    """The weights of the order statistics in the lower and in the upper bound."""
    ends = np.append(0, orders), np.append(orders, draws + 1)
    return np.stack([np.diff(end) for end in ends]).astype(np.float64)


def bounded_sums(
    rng: np.random.Generator,
    count: int,
    draws: int | Array,
    orders: Orders,
    s: float,
    above: Array | None = None,
) -> tuple[Array, Array]:
    """Lower and upper bounds on sums of `draws` (a number, or one for each sum) independent Z."""
    known = table(s)
    v = upper_tails(rng, count, draws, orders, above)
    end = v[-1:].copy()  # the last order has weight R + 1 − k_r, which may differ from sum to sum
    low, high = known.sums(v, weights(orders, int(orders[-1])))
    high += (np.asarray(draws) - orders[-1]) * known.sums(end, np.ones((2, 1)))[0]
    most = np.asarray(draws, dtype=np.float64)
    slack = most * rounding(s, float(np.max(most)))
    return np.maximum(low * (1.0 - known.relative) - slack, 0.0), high * (1.0 + known.relative) + slack


@dataclass(frozen=True)
class OrderStatistics(Untilted):
    """Bounds on the loss from the given orders: R = T − 1 draws besides the spiked coordinate, or R = T for `add`."""

    sigma: float
    steps: int
    direction: Direction
    orders: tuple[int, ...]

    def __post_init__(self) -> None:
        """Check the orders."""
        checked(self.orders, self.draws)

    @property
    def draws(self) -> int:
        """R."""
        return self.steps if self.direction == ADD else self.steps - 1

    @property
    def row(self) -> int:
        return len(self.orders)

    def losses(self, rng: np.random.Generator, count: int) -> Losses:
        """Lower and upper bounds on the loss."""
        s = 1.0 / self.sigma
        orders = np.array(self.orders, dtype=np.int64)
        if self.direction == ADD:
            low, high = bounded_sums(rng, count, self.draws, orders, s)
            with np.errstate(divide="ignore"):
                return math.log(self.steps) - np.log(high), math.log(self.steps) - np.log(low)
        spiked = (s * rng.standard_normal(count) + 0.5 * s * s)[:, None]
        low, high = bounded_sums(rng, count, self.draws, orders, s)
        return with_spikes(spiked, low, self.steps), with_spikes(spiked, high, self.steps)
