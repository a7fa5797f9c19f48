"""Sum over a fixed set of quadrature nodes, for many strikes K at once, and estimate the error.

    put(K)  = E[(K−S)₊] = (1/π) Im ∫ exp(ωTK + Σ log L(ω)) / (T ω²) dω      over the upper half of a path right of 0,
    call(K) = E[(S−K)₊] = (1/π) ∫ exp(…at −r) sin(phase) / (T r²) dr + (1/π) Im ∫_lift …        (docs/accounting.md).

Neither the nodes nor the transform depend on K, so a curve computes its transform only once. A contour is built for
one strike and serves its neighbours as long as its own error estimate is small.

At the end are two functions that numpy does not offer with full accuracy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import factorial

from ballsbins.accounting.curve import U

Complex = NDArray[np.complex128]
Real = NDArray[np.float64]
Flags = NDArray[np.bool_]
Indices = NDArray[np.intp]

# B7, B8, … are the numbered bounds of docs/derivation.md.
DROP = 42.0  # terms below e⁻⁴² = 6·10⁻¹⁹ of the largest are left out (B8)
# Number of roundings per term, and per unit of the sum in its exponent (B7).
ROUNDINGS, PER_LOAD = 16.0, 4.0
INNER_SAFETY = 4.0  # factor on the sampled error of the transform: the worst point may be between probes (B6)
BEYOND = 16.0  # what lies beyond the end of a path is less than this many times its last term (B8)
# If a rule differs from a coarser one by d, its error is taken as (8d)^power, at most d; more if d is not small.
_DISTANCE_SAFETY = 8.0
_TRAPEZOIDAL_POWER, _TRAPEZOIDAL_CLOSE = 1.4, 1e-2  # halving the step squares the error: power 2 (B9)
# d up to which the trapezoidal rule is seen to converge like that; up to 10⁻² the error is d (B9)
_SETTLED = 1e-5
_GAUSS_POWER, _GAUSS_CLOSE = 1.25, 1e-4  # 20 nodes against 12: power 20/12 = 1.67 (B10)

# up to this |z|, log|1 + z| comes from log1p of |1 + z|² − 1, which has no cancellation there
_FEW_BITS = 0.5
# Up to this |q|, e₂ is a power series (beyond, e^{−q} − 1 + q loses less than three bits); its remainder; and 1/k!.
_SERIES, _SERIES_REST, _FACTORIALS = 1.0, 1e-17, (1.0 / factorial(np.arange(21))).tolist()


@dataclass(frozen=True)
class Strikes:
    """K together with K − 1, because in doubles neither can be computed accurately from the other."""

    k: Real
    k_minus_1: Real

    @classmethod
    def from_log(cls, log_k: Real) -> Strikes:
        """K = exp(log_k)."""
        return cls(np.exp(log_k), np.expm1(log_k))

    def moved(self, *by: float) -> Strikes:
        """Return the same strikes times 1 + x, for each x of `by` in turn."""
        k = np.concatenate([self.k * (1.0 + x) for x in by])
        return Strikes(k, np.concatenate([self.k_minus_1 + x * self.k for x in by]))

    def __getitem__(self, rows: slice | Indices) -> Strikes:
        return Strikes(self.k[rows], self.k_minus_1[rows])


@dataclass(frozen=True)
class Estimate:
    """Logarithm of a positive number and its relative error (inf where the contour gives no answer).

    `rough` is the part of the error that more or other nodes would remove; the rest is rounding.
    """

    log: Real
    error: Real
    rough: Real

    @classmethod
    def nothing(cls, strikes: Strikes) -> Estimate:
        """Return an estimate without an answer for any strike."""
        return cls(*(np.full(strikes.k.shape, value) for value in (-np.inf, np.inf, np.inf)))

    def where(self, served: Flags) -> Estimate:
        """Return the same estimate, restricted to the strikes served."""
        return Estimate(self.log, *(np.where(served, part, np.inf) for part in (self.error, self.rough)))


@dataclass(frozen=True)
class Nodes:
    """Quadrature nodes of a path off the cut, or one row of them for every strike.

    `log_weight` includes 1/(πTω²) and dω.
    """

    omega: Complex
    transform: Complex
    plain: Real
    log_weight: Complex
    inner: float | Real  # relative error of `transform`
    last: int | Indices = -1  # index of the last node; entries behind it have no weight

    @classmethod
    def rows(cls, paths: Sequence[Nodes], which: Indices) -> Nodes:
        """Return for each strike the nodes of its path, padded to one length."""
        counts = np.array([len(path.omega) for path in paths])
        omega, transform, log_weight = np.zeros((3, len(paths), counts.max()), dtype=complex)
        plain = np.zeros(omega.shape)
        log_weight.real = -np.inf
        for row, (path, count) in enumerate(zip(paths, counts, strict=True)):
            omega[row, :count], transform[row, :count] = path.omega, path.transform
            plain[row, :count], log_weight[row, :count] = path.plain, path.log_weight
        inner = np.array([path.inner for path in paths])[which, None]
        return cls(omega[which], transform[which], plain[which], log_weight[which], inner, counts[which] - 1)

    def terms(self, bins: int, strikes: Strikes) -> tuple[Complex, Real]:
        """Return the complex exponent of every term (strikes × nodes) and the total size of its summands."""
        drift = drift_of(bins, strikes, self.plain, float(bins) * self.omega)
        load = np.abs(drift) + np.abs(self.transform)
        drift += self.transform + self.log_weight
        return drift, load


def drift_of(bins: int, strikes: Strikes, plain: Real, scaled: Any) -> Any:
    """Return ω·(T(K−1) + plain) for strikes × nodes, from T·ω, because T·K may overflow."""
    t = float(bins)
    return np.where(plain == t, strikes.k[:, None], strikes.k_minus_1[:, None] + plain / t) * scaled


def scaled_by(bins: int, log_r: Real) -> Real:
    """Return T·r to all digits, even if r is below the normal doubles."""
    root = np.exp(0.5 * log_r)
    return np.asarray((float(bins) * root) * root, dtype=np.float64)


def slope_sum(exponent: Complex, load: Real, nodes: Nodes) -> tuple[Real, Real, Real]:
    """Return (scale, all Im e^exponent, error of their sum), the last two relative to e^scale; overwrites `load`."""
    scale = exponent.real.max(axis=1)
    size = np.exp(exponent.real - scale[:, None])
    load *= U * PER_LOAD
    load += U * ROUNDINGS + INNER_SAFETY * nodes.inner * np.abs(nodes.transform)
    slack = np.vecdot(size, load)
    # what lies beyond the last node falls off at least geometrically
    slack += BEYOND * size[np.arange(len(size)), nodes.last]
    return scale, size * np.sin(exponent.imag), slack


def halved(parts: Real) -> tuple[Real, Real, Real]:
    """Return the trapezoidal sum with all nodes, with every second and with every fourth."""
    return parts.sum(axis=1), 2.0 * parts[:, ::2].sum(axis=1), 4 * parts[:, ::4].sum(axis=1)


def trapezoidal_error(fine: Real, coarse: Real, coarser: Real, shifted: Real | None = None) -> Real:
    """Estimate the relative error of the trapezoidal rule from its distances to those with 2 and 4 times the step.

    The rule converges geometrically: halving the step squares the error, so the two distances obey d ≈ d₄²/4 (as is
    observed). So if two of the three sums agree by accident, the third reveals it; and two sums with four times the
    step, shifted by a quarter of it, do not both agree by accident. The error of the finest would be about d²; 1.4 is
    used as the power (B9).
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        square = (coarser / fine - 1.0) ** 2
        if shifted is not None:
            square = square + (shifted / fine - 1.0) ** 2
        d = np.maximum(np.abs(coarse / fine - 1.0), square / 4)
    squared = np.minimum((_DISTANCE_SAFETY * d) ** _TRAPEZOIDAL_POWER, d)
    rough = np.where(d < _TRAPEZOIDAL_CLOSE, d, np.maximum(d, 1.0))
    return np.asarray(np.where(d < _SETTLED, squared, rough), dtype=np.float64)


def gauss_error(fine: Real, coarse: Real) -> Real:
    """Estimate the relative error of Gauss–Legendre panels with 20 nodes from their distance to those with 12.

    Convergence is again geometric, which gives a power of 20/12 = 1.67. The power used is 1.25, and nothing is
    claimed from rough agreement (B10).
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        d = np.abs(coarse / fine - 1.0)
    return np.where(
        d < _GAUSS_CLOSE, np.minimum((_DISTANCE_SAFETY * d) ** _GAUSS_POWER, d), np.maximum(d, 1.0)
    )


def worst(gap: Real) -> float:
    """Return the largest of some errors; NaN from 0/0 is ignored, and if nothing else is left, the error is ∞."""
    known = gap[~np.isnan(gap)]
    return float(known.max()) if known.size else np.inf


def estimate_of(scale: Real, total: Real, slack: Real, rough: Real) -> Estimate:
    with np.errstate(divide="ignore", invalid="ignore"):
        error = slack / np.abs(total) + rough
        log = scale + np.log(total)
    good = (total > 0.0) & np.isfinite(log)
    return Estimate(np.where(good, log, -np.inf), error, rough).where(good)


def complex_log1p(z: Complex) -> Complex:
    """Return log(1 + z) to full relative accuracy in both parts (near 0, numpy's complex log1p is less accurate)."""
    x, y = z.real, z.imag
    with np.errstate(invalid="ignore", divide="ignore"):
        small = 0.5 * np.log1p(x * (2.0 + x) + y * y)
        modulus = np.where(np.abs(z) < _FEW_BITS, small, np.log(np.abs(1.0 + z)))
    return modulus + 1j * np.arctan2(y, 1.0 + x)


def second_remainder(q: Any) -> Any:
    """Return e₂(q) = e^{−q} − 1 + q without cancellation."""
    size = np.abs(q)
    near = size < _SERIES
    if near.all():
        return _series(q, size)
    result, far = np.empty_like(q), ~near
    beyond = q[far]
    result[far] = np.exp(-beyond) - 1.0 + beyond
    result[near] = _series(q[near], size[near])
    return result


def _series(q: Any, size: Real) -> Any:
    """Return the same by a power series, with as many terms as the largest |q| needs."""
    if not size.size:
        return np.zeros_like(q)
    largest, terms, rest = float(size.max()), 3, 1.0
    while rest > _SERIES_REST and terms < len(_FACTORIALS):
        rest *= largest / terms
        terms += 1
    p = -q
    series = np.full_like(p, _FACTORIALS[terms - 1])
    for coefficient in _FACTORIALS[terms - 2 : 1 : -1]:
        series *= p
        series += coefficient
    series *= p
    series *= p
    return series
