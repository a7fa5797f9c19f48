"""Cheap estimates of the answer: closed forms for the call, one table on the real axis for the put. Not bounds.

A contour costs a millisecond and serves a neighbourhood, so it pays to know that neighbourhood first. This module
also has two bounds, `log_small_put` and Chernoff's (`PutSketch.log_bound`). They often prove that the direction "add"
is not the larger one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import erfcx, log_ndtr, ndtr, ndtri

from ballsbins.accounting.one_epoch.basket import Basket
from ballsbins.accounting.one_epoch.contours import LARGEST_LOG_SADDLE
from ballsbins.accounting.one_epoch.quadrature import Real, Strikes, drift_of

_LOG_ROOT_TAU = 0.5 * np.log(2.0 * np.pi)
_ROOT_HALF, _ROOT_HALF_PI = np.sqrt(0.5), np.sqrt(0.5 * np.pi)
_ORDERS = np.arange(1.0, 4.0)[:, None]  # orders of moments
_RARE = 0.01  # expected number of large Z in one epoch: two at once hardly ever happen
# How far beyond its strike a large Z is followed, in units of 1/g: the density has fallen by e⁻⁶ or more.
_BEHIND = 6.0
_GAUSS_X, _GAUSS_W = np.polynomial.legendre.leggauss(16)  # for a large Z: enough for two digits
# The table of puts in log c: its steps, their growth beyond the first ones, how many of each, and where the blocks
# that are computed together end. The first steps cover the puts that matter; the last reach the largest double.
_FINE, _GROWTH, _FINE_STEPS, _GROWING_STEPS, _BLOCKS = 0.5, 1.15, 47, 38.0, [24, 36, 48, 60, 70]
_LAST_GAP = 0.1  # the last two points are not closer than this
_SAFETY = 1e-9  # far more than the relative rounding of either bound (B15 of docs/derivation.md)
_LOWEST = -1000.0  # if a bound on log δ is below this, no better one is searched for
_LEAST_VALUE, _LEAST_SKEWNESS = 1e-300, 1e-5  # to avoid 0/0; with less skewness a log-normal is a Gaussian
_LEAST_X, _FAR_X = -30.0, 1e3  # arguments of Mills' ratio: below, 1 to all digits; above, its asymptotic form
_CLOSE = 0.3  # up to this s(1 + |x|), a difference of Mills' ratios is s times the slope, to two digits
_NOISE_POINTS = (24, 16)  # points of the two passes for a rough σ: a choice


def log_call(kinds: Sequence[tuple[int, float | Real]], k_minus_1: Real, *, smooth: bool = True) -> Real:
    """Estimate log E[(S−K)₊] for K > 1, assuming that no Z is large, or exactly one is.

    A Z is large if it exceeds half the jump that alone would reach K, and a level that any Z exceeds only once in a
    hundred epochs. All other Z together are the body. It is approximated by a shifted log-normal with the right three
    moments or, beside a large Z, by a Gaussian. The mean error of log δ is 0.02; it may reach 0.5 if a few large Z
    decide together. `kinds` are those of a basket; their noise may also be an array. Without `smooth`, the body
    beside a large Z is replaced by its mean: off by up to 1, in a third of the time.
    """
    t = float(sum(count for count, _ in kinds))
    noise = [(float(count), 1.0 / np.broadcast_to(sigma, k_minus_1.shape)) for count, sigma in kinds]
    log_large = np.log1p(0.5 * t * k_minus_1)
    for _, s in noise:
        log_large = np.maximum(log_large, s * (-ndtri(_RARE / t) - 0.5 * s))
    # totals of the Z that are not large: log of their probability, how far the mean is below T, and cumulants
    log_none, short, variance, third = np.zeros((4, *k_minus_1.shape))
    each = []
    for count, s in noise:
        first = log_large / s + 0.5 * s
        log_small = log_ndtr(first)
        m1, m2, m3 = np.exp(
            _ORDERS * (_ORDERS - 1.0) * (0.5 * s * s) + log_ndtr(first - _ORDERS * s) - log_small
        )
        gap = (ndtr(s - first) - ndtr(-first)) * np.exp(-log_small)
        log_none, short = log_none + count * log_small, short + count * gap
        variance, third = variance + count * (m2 - m1 * m1), third + count * (m3 - 3 * m1 * m2 + 2 * m1**3)
        each.append((count, s, first, log_small, gap))
    deviation = np.sqrt(np.maximum(variance, _LEAST_VALUE))
    # a log-normal with mean 1 and variance y² has skewness y³ + 3y
    y = 2.0 * np.sinh(np.arcsinh(0.5 * np.maximum(third / deviation**3, _LEAST_SKEWNESS)) / 3)
    scale = deviation / y
    above = t * k_minus_1 + short  # distance of the strike above the mean of the body
    body = np.log(scale) + _log_black_scholes(np.log1p(above / scale), np.sqrt(np.log1p(y * y)))
    # with almost no noise the moments overflow: ignore the body
    log = np.where(np.isnan(body), -np.inf, body) + log_none
    for count, s, first, log_small, gap in each:
        one = _log_one_jump(1.0 + above - gap, s, first, deviation if smooth else None)
        log = np.logaddexp(log, np.log(count) + one + log_none - log_small)
    return np.asarray(log - np.log(t), dtype=np.float64)


def _log_one_jump(strike: Real, s: Real, first: Real, deviation: Real | None) -> Real:
    """Return log E[(Z + body − strike)₊; Z large], where Z is large from g = `first` on, and the body is Gaussian.

    The body has mean 0. Without it, this is a closed form. With it, (z − strike)₊ becomes
    (z − strike)₊ + d·h(|z − strike|/d) with h(y) = φ(y) − y·Q(y). That part is integrated on both sides of the
    strike.
    """
    at = np.log(strike) / s + 0.5 * s
    inside = np.maximum(ndtr(s - first) - strike * ndtr(-first), _LEAST_VALUE)
    plain = np.where(first > at, np.log(inside), _log_black_scholes(np.log(strike), s))
    if deviation is None:
        return plain
    begin = np.maximum(first, at)
    width = np.stack([begin - first, np.maximum(at - first, 0.0) + _BEHIND / np.maximum(at, 1.0)])
    g = np.stack([first, begin])[:, :, None] + 0.5 * width[:, :, None] * (_GAUSS_X + 1.0)
    away = np.abs(np.exp(s[:, None] * (g - 0.5 * s[:, None])) - strike[:, None]) / deviation[:, None]
    # relative to the density at `first`, which may underflow
    exponent = 0.5 * (first[:, None] ** 2 - g * g - away * away)
    share = np.exp(exponent) * (1.0 - away * (_ROOT_HALF_PI * erfcx(away * _ROOT_HALF)))
    smooth = deviation * (0.5 * width * np.vecdot(share, _GAUSS_W)).sum(axis=0) / (2.0 * np.pi)
    more = np.log(np.maximum(smooth, _LEAST_VALUE)) - 0.5 * first * first
    return np.logaddexp(plain, np.where(np.isnan(more), -np.inf, more))


def rough_noise(steps: int, epsilon: float, log_delta: float, low: float, high: float) -> float:
    """Estimate the σ between `low` and `high` at which one epoch of that many steps has δ(ε) = e^{log_delta}."""
    with np.errstate(all="ignore"):
        for count in _NOISE_POINTS:
            sigma = np.exp(np.linspace(np.log(low), np.log(high), count))
            log = log_call([(steps, sigma)], np.full(count, np.expm1(epsilon)))
            at = int(np.clip(np.searchsorted(-np.minimum.accumulate(log), -log_delta), 1, count - 1))
            low, high = float(sigma[at - 1]), float(sigma[at])
            share = (log_delta - log[at - 1]) / (log[at] - log[at - 1])
    return low * (high / low) ** float(np.clip(share, 0.0, 1.0)) if np.isfinite(share) else low


def _log_black_scholes(log_k: Real, s: Real | float) -> Real:
    """Return log E[(Z−K)₊], K ≥ 1, of a log-normal Z with mean 1 and log-deviation s, to two digits or more.

    With Mills' ratio R it is log φ(x) + log(R(x) − R(x+s)), x = log K/s − s/2; the difference is −s·R′ if s is small.
    """
    x = np.maximum(log_k / s - 0.5 * s, _LEAST_X)
    ratio = _ROOT_HALF_PI * erfcx(x * _ROOT_HALF)
    middle = x + 0.5 * s
    slope = np.where(
        middle < _FAR_X, 1.0 - middle * _ROOT_HALF_PI * erfcx(middle * _ROOT_HALF), 1.0 / (middle**2 + 3)
    )
    far = _ROOT_HALF_PI * erfcx((x + s) * _ROOT_HALF)
    gap = np.where(s * (1.0 + np.abs(x)) < _CLOSE, s * slope, ratio - far)
    return np.asarray(np.log(gap) - 0.5 * x * x - _LOG_ROOT_TAU, dtype=np.float64)


def cubic(at: Real, x: Real, y: Real) -> Real:
    """Interpolate between increasing x: the cubic through the four points around, clipped to their range."""
    first = np.clip(np.searchsorted(x, at) - 2, 0, x.size - 4)
    window = first[:, None] + np.arange(4)
    away, values = x[window] - at[:, None], y[window]
    gap = away[:, :, None] - away[:, None, :] + np.eye(4)
    weight = np.prod(np.where(np.eye(4, dtype=bool), 1.0, -away[:, None, :]) / gap, axis=2)
    found = (weight * values).sum(axis=1)
    return np.asarray(np.clip(found, values.min(axis=1), values.max(axis=1)), dtype=np.float64)


def log_small_put(basket: Basket, strikes: Strikes) -> Real:
    """Return an upper bound on log put(K), K > 0: the payoff is at most K, and 0 unless every Z is below TK (B15).

    E(K−S)₊ ≤ K·Pr[S < K] ≤ K·Π Pr[Z ≤ TK], a closed form that is tiny where K is far below 1.
    """
    log_k = np.log(strikes.k)
    log_z = log_k + np.log(float(basket.size))
    log_all = sum(n * log_ndtr(sigma * log_z + 0.5 / sigma) for n, sigma in basket.kinds)
    return np.asarray(log_k + (1.0 - _SAFETY) * log_all + _SAFETY * (1.0 + np.abs(log_k)), dtype=np.float64)


class PutSketch:
    """A table of put(K) with the parameter c > 0, the saddle of the integrand, so no equation has to be solved.

    K(c) = E_c[S] + 2/(Tc) under the density tilted by e^{−cTS}, and there, with the variance of cTS so tilted,

        log put ≈ TcK + Σ log L(c) − log(cT) − ½ log(2π(variance + 2)).

    The table grows towards small K as far as needed.
    """

    def __init__(self, basket: Basket) -> None:
        """Tabulate the puts that are not very deep."""
        self._basket, self._t = basket, float(basket.size)
        growing = _FINE * _GROWTH ** np.arange(1.0, _GROWING_STEPS + 1.0)
        steps = np.concatenate([np.full(_FINE_STEPS, _FINE), growing])
        log_c = np.log(0.5 / self._t) + np.concatenate([[0.0], np.cumsum(steps)])
        log_c = np.append(log_c[log_c < LARGEST_LOG_SADDLE - _LAST_GAP], LARGEST_LOG_SADDLE)
        self._ahead = [part for part in np.split(log_c, _BLOCKS) if part.size]
        self._exact: dict[
            int, tuple[float, float]
        ] = {}  # what `Basket.exponent` has at some rows of the table
        self._fill(np.empty((7, 0)))

    def _fill(self, known: Real) -> None:
        log_c = self._ahead.pop(0)
        c = np.exp(log_c)
        transform, plain, mean, gap, variance = self._basket.on_axis(c)
        # TcK + Σ log L with the K of the docstring: of its two forms, use the one without cancellation
        exponent = np.where(plain == self._t, mean + transform, transform - gap) + 2.0
        log_put = exponent - np.log(self._t) - log_c - _LOG_ROOT_TAU - 0.5 * np.log(variance + 2.0)
        scaled = self._t * c
        rows = np.stack(
            [log_c, transform, plain, (mean + 2.0) / scaled, (2.0 - gap) / scaled, variance, log_put]
        )
        self._table = np.hstack([known, rows])

    def strikes(self, least_k: float, least_log: float = -np.inf) -> tuple[Strikes, Real]:
        """Return the table's strikes, in decreasing order, and log put there, down to `least_k` or `least_log`."""
        while self._ahead and self._table[3, -1] >= least_k and self._table[6, -1] > least_log:
            self._fill(self._table)
        return Strikes(self._table[3], self._table[4]), self._table[6]

    def saddles(self, k: Real) -> tuple[Real, Real]:
        """Estimate the c of each K, and the curvature there in log c; beyond the table, return its last values."""
        known = self.strikes(float(k.min()))[0].k
        log_c, variance = (np.interp(-np.log(k), -np.log(known), self._table[row]) for row in (0, 5))
        return np.exp(log_c), variance + 2.0

    def log_put(self, k: Real) -> Real:
        """Estimate log put(K): by a cubic between the strikes of the table, by a straight line beyond the last."""
        strikes, log = self.strikes(float(k.min()))
        rows = np.isfinite(log) & (strikes.k > 0.0)
        position, log, at = -np.log(strikes.k[rows]), log[rows], -np.log(k)
        slope = (log[-1] - log[-2]) / (position[-1] - position[-2])
        return np.where(at > position[-1], log[-1] + slope * (at - position[-1]), cubic(at, position, log))

    def log_bound(self, strikes: Strikes) -> Real:
        """Return an upper bound on log put(K): (K−S)₊ ≤ e^{cT(K−S)}/(e·cT) for every c > 0.

        The table is only used to find a good c, and is not extended for bounds that are already very low. At that c
        the bound is computed with all digits, because the table has too few digits if T or c is large.
        """
        while True:
            log_c, transform, plain = self._table[:3]
            bounds = self._chernoff(strikes, log_c, transform, plain)
            best = np.where(np.isfinite(bounds), bounds, np.inf)
            if (
                not self._ahead
                or (best.min(axis=1) - np.log(strikes.k)).max() < _LOWEST
                or self._table[3, -1] < strikes.k.min()
            ):
                break
            self._fill(self._table)
        rows, at = np.unique(best.argmin(axis=1), return_inverse=True)
        new = [int(row) for row in rows if int(row) not in self._exact]
        if new:
            values = self._basket.exponent(np.exp(log_c[new]) + 0j)
            self._exact |= {row: (v.real, p) for row, v, p in zip(new, *values, strict=True)}
        exact = np.array([self._exact[int(row)] for row in rows]).T
        found = self._chernoff(strikes, log_c[rows], *exact)[np.arange(len(strikes.k)), at]
        return np.where(np.isnan(found), np.inf, found)

    def _chernoff(self, strikes: Strikes, log_c: Real, transform: Real, plain: Real) -> Real:
        """Return log of the bound for each strike (row) and c (column), raised by more than its rounding (B15)."""
        scaled = self._t * np.exp(log_c)
        drift = drift_of(self._basket.size, strikes, plain, scaled)
        size = 1.0 + np.abs(drift) + np.abs(transform)
        return np.asarray(drift + transform - 1.0 - np.log(scaled) + _SAFETY * size, dtype=np.float64)
