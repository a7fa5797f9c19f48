"""Rényi differential privacy of balls-and-bins, and the upper bound on δ that follows from it.

With S the likelihood ratio of one epoch under Q (docs/accounting.md: the mean of T log-normals Z_t of mean 1),

    D_α(P‖Q) = log E[S^α] / (α−1)             (remove),
    D_α(Q‖P) = log E[S^{−β}] / (α−1), β = α−1   (add).

**remove, integer α.** E[S^α] = T^{−α} α! [x^α] (Σ_{j≤α} e^{j(j−1)s²/2} x^j/j!)^T: a power of a power series,
by repeated squaring in logs. All coefficients are positive, so nothing cancels (the recurrence for a power
has negative terms once α > T + 1). Between integers α ↦ log E[S^α] is convex: a chord is an upper bound.

**add, any real β > 0.** E[S^{−β}] = 1/Γ(β) ∫₀^∞ θ^{β−1} L(θ/T)^T dθ with L(ω) = E e^{−ωZ}. Both integrals use the
trapezoidal rule, in log θ and in the Gaussian, where it converges geometrically. Steps are halved until the result
changes by less than 10⁻⁹, and that is then added.

**δ from it** (Canonne, Kamath and Steinke 2020, prop. 12, as in dp_accounting): for every α > 1

    log δ(ε) ≤ (α−1)·(E·D_α − ε + log(1 − 1/α)) − log α .

This bound is far from tight and serves only for comparison: the exact curve is cheaper and better.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from scipy.special import gammaln

from ballsbins.accounting.curve import ADD, ANSWER, REMOVE, Array, Curve, Direction, Interval
from ballsbins.errors import AccuracyError

ORDERS: tuple[float, ...] = (
    *(1 + x / 10 for x in range(1, 10)), *range(2, 65), 72, 80, 96, 112, 128, 160, 192, 256,
)  # fmt: skip
MOST_ORDER = 1024  # largest order: a product of two series then takes a matrix of 1024²
# B19: docs/derivation.md.
# Rounding of a sum in logs, relative to its summands, for each squaring: ninety roundings (B19).
_ROUNDING = 1e-14
_TOLERANCE = 1e-9  # two resolutions this close are accepted, and this is added to the finer one (B19)
_HALVINGS = 8  # most halvings of both steps
_KEPT_SERIES, _KEPT_MOMENTS = 64, 4096  # results of `log_moments` and `log_inverse_moment` kept in memory
# Where to search for the maximum over y = log θ: e^{βy} is e⁻⁴⁰ of its mean at −40/β, and L is small at 60 and more
# (its Gaussian tail at 12 deviations); number of points; and accuracy of the maximum, 0.1.
_LOW, _LOW_TAIL, _HIGH, _HIGH_TAIL, _SCAN, _FOUND = 60.0, 40, 60.0, 12, 33, 0.1
_PROBE, _PER_PROBE = 0.1, 100  # distance from the maximum at which to measure the curvature; 1/0.1²
_STEP, _LEAST_CURVATURE = 0.7, 2.0  # in deviations: a Gaussian is then off by e^{−2π²/0.7²} = 10⁻¹⁷
_GONE, _STRIDE = 45, 1.3  # the integrand is followed to e⁻⁴⁵ of its maximum
_BLOCK = 256  # points at a time, to limit memory
_NEWTON = 30  # Newton steps for log w: each doubles the digits
_LEFT, _RIGHT = -14.0, 11.0  # deviations of the Gaussian integral near 0: φ is 10⁻⁴³ and 10⁻²⁷ there
_NEAR = -3  # if the centre is above this, that range is used
_GAP, _GAP_IN_S = 0.25, 0.5  # step of that integral, in deviations, and in units of σ
_SIDE, _SLOPE_TAIL = 12.0, 50  # elsewhere, follow this many deviations, or e-folds, to a side
_HALF = -0.5  # if L − 1 is above this, log1p keeps more digits than log


def renyi_divergence(
    noise_multiplier: float, steps: int, orders: Sequence[float], direction: Direction
) -> Array:
    """Return an upper bound on D_α of one epoch at orders α > 1, tight at integers (remove) or everywhere (add)."""
    if direction == REMOVE:
        logs = log_moments(noise_multiplier, steps, math.ceil(max(orders)))
        lower = np.floor(orders).astype(int)
        share = np.asarray(orders) - lower
        upper = np.minimum(lower + 1, logs.size - 1)
        chord = (1 - share) * logs[lower] + share * logs[upper]
    else:
        chord = np.array([log_inverse_moment(noise_multiplier, steps, alpha - 1) for alpha in orders])
    return np.asarray(chord / (np.asarray(orders) - 1), dtype=np.float64)


@lru_cache(maxsize=_KEPT_SERIES)
def log_moments(noise_multiplier: float, steps: int, most: int) -> Array:
    """Return upper bounds on log E[S^α] for α = 0 … `most`."""
    j = np.arange(most + 1)
    power = 0.5 * j * (j - 1.0) / noise_multiplier**2 - gammaln(j + 1)
    result = None
    count = steps
    while count:
        if count & 1:
            result = power if result is None else _times(result, power)
        count >>= 1
        if count:
            power = _times(power, power)
    assert result is not None
    logs = result + gammaln(j + 1) - j * math.log(steps)
    error = _ROUNDING * (np.abs(result) + gammaln(j + 1) + j * math.log(steps)) * (1 + steps.bit_length())
    error[:2] = 0.0
    logs[:2] = 0.0  # E[1] = E[S] = 1
    return np.asarray(np.maximum(logs, 0.0) + error, dtype=np.float64)


def _times(a: Array, b: Array) -> Array:
    """Return the log of the product of two power series with log coefficients a and b, truncated to their length."""
    n = a.size
    index = np.arange(n)
    shift = index[:, None] - index[None, :]
    terms = np.where(shift >= 0, a[None, :] + b[np.maximum(shift, 0)], -np.inf)
    top = terms.max(axis=1)
    return np.asarray(top + np.log(np.exp(terms - top[:, None]).sum(axis=1)), dtype=np.float64)


@lru_cache(maxsize=_KEPT_MOMENTS)
def log_inverse_moment(noise_multiplier: float, steps: int, beta: float) -> float:
    """Return an upper bound on log E[S^{−β}] for real β > 0."""
    before = math.inf
    for level in range(_HALVINGS):
        value = _inverse_moment(noise_multiplier, steps, beta, 2.0**-level)
        if abs(value - before) <= _TOLERANCE * (1 + abs(value)):
            return value + _TOLERANCE * (1 + abs(value))
        before = value
    raise AccuracyError(
        f"The Rényi divergence of order {beta + 1:g} at noise_multiplier={noise_multiplier:g}, steps={steps} "
        "cannot be had to 9 digits. Use the exact curve."
    )


def _inverse_moment(sigma: float, steps: int, beta: float, refine: float) -> float:
    """Return log of 1/Γ(β) ∫ e^{βy + T·log L(e^y/T)} dy; the integrand is log-concave in y = log θ."""

    def exponent(y: Array) -> Array:
        return beta * y + steps * _log_laplace(y - math.log(steps), sigma, refine)

    low, high = -_LOW - _LOW_TAIL / beta, _HIGH + math.log(steps) + (_HIGH_TAIL * sigma + beta + 1) / sigma**2
    while high - low > _FOUND:
        scan = np.linspace(low, high, _SCAN)
        k = int(np.argmax(exponent(scan)))
        low, high = float(scan[max(k - 1, 0)]), float(scan[min(k + 1, _SCAN - 1)])
    top = 0.5 * (low + high)
    left, peak, right = exponent(np.array([top - _PROBE, top, top + _PROBE]))
    curvature = _PER_PROBE * (2 * peak - left - right)
    step = refine * _STEP / math.sqrt(max(curvature, _LEAST_CURVATURE))
    ends = []
    for sign in (-1, 1):
        far = 2.0 * step
        while exponent(np.array([top + sign * far]))[0] > peak - _GONE:
            far *= _STRIDE
        ends.append(far)
    cells = np.arange(-math.ceil(ends[0] / step), math.ceil(ends[1] / step) + 1)
    y = np.asarray(top + step * cells, dtype=np.float64)
    blocks = [np.exp(exponent(y[k : k + _BLOCK]) - peak).sum() for k in range(0, y.size, _BLOCK)]
    return float(peak + math.log(sum(blocks) * step) - gammaln(beta))


def _log_laplace(log_omega: Array, sigma: float, refine: float) -> Array:
    """Return log L(ω) = log E exp(−ω e^{sg − s²/2}), integrated where it matters; from L − 1 if that is small."""
    s = 1 / sigma
    # The exponent −ωe^{sg−s²/2} − g²/2 is largest at g = −w/s with w e^w = ωs²e^{−s²/2}; u = log w by Newton.
    target = log_omega + 2 * math.log(s) - 0.5 * s * s
    u = np.where(target > 1, np.log(np.maximum(target, 1.0)), np.minimum(target, 0.0))
    for _ in range(_NEWTON):
        u = u - (np.exp(u) + u - target) / (np.exp(u) + 1)
    centre = -np.exp(u) / s
    result = np.empty(log_omega.size)
    near = centre > _NEAR
    if near.any():
        gap = refine * min(_GAP, _GAP_IN_S / s)
        g = np.arange(_LEFT, _RIGHT + s + gap, gap)
        with np.errstate(over="ignore"):
            loss = np.exp(log_omega[near, None] + s * g - 0.5 * s * s)
        weight = np.exp(-0.5 * g * g) * gap / math.sqrt(2 * math.pi)
        short = np.vecdot(np.expm1(-loss), weight)
        with np.errstate(divide="ignore"):
            plain = np.log(np.vecdot(np.exp(-loss), weight))
        result[near] = np.where(short > _HALF, np.log1p(np.maximum(short, _HALF)), plain)
    if not near.all():
        c = centre[~near, None]
        # the curvature is 1 + w; to the left, the integrand decays like e^{cΔ}, not like a Gaussian
        width = 1 / np.sqrt(1 - s * c)
        left = max(_SIDE, float(np.max(_SLOPE_TAIL / (-c * width))))
        gap = _GAP * refine
        g = c + width * np.arange(-left, _SIDE + gap, gap)
        with np.errstate(over="ignore"):
            terms = -np.exp(log_omega[~near, None] + s * g - 0.5 * s * s) - 0.5 * g * g
        most = terms.max(axis=1, keepdims=True)
        total = np.exp(terms - most).sum(axis=1) * width[:, 0] * gap / math.sqrt(2 * math.pi)
        result[~near] = most[:, 0] + np.log(total)
    return result


class RenyiCurve(Curve):
    """The upper bound on the curve of `epochs` epochs from Rényi divergences; the lower bound is trivial."""

    def __init__(
        self, noise_multiplier: float, steps: int, epochs: int = 1, orders: Sequence[float] = ORDERS
    ) -> None:
        """Compute the divergences, which add up over epochs."""
        self._alpha = np.asarray(orders, dtype=np.float64)
        self._divergence = {
            direction: epochs * renyi_divergence(noise_multiplier, steps, orders, direction)
            for direction in (REMOVE, ADD)
        }

    kind = "upper bound"
    method = "Rényi"

    def at(self, epsilon: Array, direction: Direction) -> Interval:
        """Return the upper bound on log δ at the best order."""
        upper = np.minimum(self._best(epsilon, direction) + ANSWER, 0.0)
        return Interval(np.full(epsilon.shape, -np.inf), upper, upper)

    def _best(self, epsilon: Array, direction: Direction) -> Array:
        alpha = self._alpha[:, None]
        slack = self._divergence[direction][:, None] - epsilon + np.log1p(-1 / alpha)
        return np.asarray(np.minimum(((alpha - 1) * slack - np.log(alpha)).min(axis=0), 0.0))
