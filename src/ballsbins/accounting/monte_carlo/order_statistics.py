"""Losses bounded from both sides by a few order statistics (algorithm "order-sampling" of the paper).

For y^(1) ≥ … ≥ y^(R) and orders 1 = k₁ < … < k_r, with k₀ = 0 and k_{r+1} = R + 1 (the paper prints R, with which the
weights sum to R − 1 and the bound can fail: R = 1 shows it),

    Σ (k_i − k_{i−1}) e^{y^(k_i)/σ²}  ≤  Σ_t e^{x_t/σ²}  ≤  Σ (k_{i+1} − k_i) e^{y^(k_i)/σ²}.

The paper multiplies z_i ∼ Beta(R − k_i + 1, k_i − k_{i−1}). The same law, of the *upper* tails V_i = 1 − Φ(y^(k_i)/σ)
and so without loss of digits where the largest values are: uniform order statistics are normalised partial sums of
exponentials,

    V_i = Γ_i/Γ,   Γ_i = Γ_{i−1} + Gamma(k_i − k_{i−1}),   Γ = Γ_r + Gamma(R + 1 − k_r),

one exponential for each consecutive order and one gamma for every other.

Z(V) = exp(−s·Φ⁻¹(V) − s²/2) is read from a table, linear in V within bins that are 2⁻⁹ of an octave, found from
the leading bits of V without a logarithm. Z″ = s·Z·(s + x)/φ(x)² bounds the error of each chord: `relative` for
V ≤ ½ and `absolute` above, both added outwards. Where the table cannot be that good (large σ) Z is computed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from scipy.special import ndtri

from ballsbins.accounting.curve import ADD, Array, Direction
from ballsbins.accounting.monte_carlo.orders import Orders, checked
from ballsbins.accounting.monte_carlo.pairs import Losses, Untilted
from ballsbins.accounting.monte_carlo.plain import with_spikes

_BITS = 9
_OCTAVES = 60
_GOOD = 1e-5
_CACHED = 2**15  # numbers worked on at a time


def upper_tails(
    rng: np.random.Generator, count: int, draws: int | Array, orders: Orders, above: Array | None = None
) -> Array:
    """V of the order statistics, shape (orders, count); given `above` = 1 − Φ(y*/σ), of draws that are below y*."""
    gaps = np.diff(np.append(0, orders))
    v = np.empty((gaps.size, count))
    start = 0
    while start < gaps.size:  # runs of equal gaps, each drawn in one call
        stop = start + 1
        while stop < gaps.size and gaps[stop] == gaps[start]:
            stop += 1
        if gaps[start] == 1:
            rng.standard_exponential(out=v[start:stop])
        else:
            rng.standard_gamma(float(gaps[start]), out=v[start:stop])
        start = stop
    for i in range(1, gaps.size):  # np.cumsum along this axis takes three times as long
        np.add(v[i - 1], v[i], out=v[i])
    total = v[-1] + rng.standard_gamma(np.broadcast_to(np.asarray(draws) + 1.0 - orders[-1], (count,)))
    v *= 1.0 / total
    if above is not None:
        v *= 1.0 - above
        v += above
    return v


@dataclass(frozen=True)
class _Table:
    """Chords of Z(V) over bins of V, or none where they would be poor."""

    s: float
    first: int = 0
    intercept: Array = field(default_factory=lambda: np.empty(0))
    slope: Array = field(default_factory=lambda: np.empty(0))
    relative: float = 1e-14
    absolute: float = 0.0

    def __call__(self, v: Array) -> Array:
        """Z at the upper tails v; v is overwritten."""
        if self.slope.size == 0 or v.min() < 2.0**-_OCTAVES:
            return z_of_tail(v, self.s)
        height = max(_CACHED // v.shape[-1], 1)
        for start in range(0, v.shape[0], height):  # a few rows at a time stay in the cache
            part = v[start : start + height]
            bins = part.view(np.int64) >> (52 - _BITS)
            bins -= self.first
            part *= self.slope.take(bins, mode="clip")
            part += self.intercept.take(bins, mode="clip")
        return v


def z_of_tail(v: Array, s: float) -> Array:
    """Z = exp(s·x − s²/2) at the x whose upper tail is v."""
    return np.asarray(np.exp(-s * ndtri(v) - 0.5 * s * s))


@lru_cache(maxsize=8)
def table(s: float) -> _Table:
    """The table for s = 1/σ."""
    first = int(np.array(2.0**-_OCTAVES).view(np.int64)) >> (52 - _BITS)
    last = int(np.array(1.0).view(np.int64)) >> (52 - _BITS)
    edges = (np.arange(first, last + 1, dtype=np.int64) << (52 - _BITS)).view(np.float64)
    left, right = edges[:-1], edges[1:]
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        z = z_of_tail(edges, s)
        slope = np.diff(z) / (right - left)
        x = np.abs(ndtri(right))
        far = np.maximum(np.abs(ndtri(left)), x)  # φ is least, and s + |x| largest, at the outer end
        phi = np.exp(-0.5 * far * far) / math.sqrt(2.0 * math.pi)
        error = s * z[:-1] * (s + far) / phi**2 * (right - left) ** 2 / 8.0
        error = np.minimum(error, z[:-1] - z[1:])  # between two ends of a monotone function
    low = right <= 0.5
    # Z grows no more than twofold within a bin for any s in use, so the error relative to the right end is safe
    relative = float(np.max(error[low] / z[1:][low]))
    absolute = float(np.max(error[~low]))
    if not (math.isfinite(relative) and relative <= 5 * _GOOD and absolute <= _GOOD):
        return _Table(s)
    return _Table(s, first, z[:-1] - slope * left, slope, relative, absolute)


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
    z = known(upper_tails(rng, count, draws, orders, above))
    below = np.diff(np.append(0, orders)).astype(np.float64)
    over = np.append(np.diff(orders), 0).astype(np.float64)
    last = np.asarray(draws) + 1.0 - orders[-1]
    low, high = below @ z, over @ z + last * z[-1]
    slack = known.absolute * np.asarray(draws, dtype=np.float64)
    return np.maximum(low * (1.0 - known.relative) - slack, 0.0), high * (1.0 + known.relative) + slack


@dataclass(frozen=True)
class OrderStatistics(Untilted):
    """Bounds on the loss from the orders given, R = T − 1 beside the spiked coordinate, or R = T for `add`."""

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
