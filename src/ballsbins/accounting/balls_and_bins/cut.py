"""L(−r + i0), the Laplace transform of the log-normal on the upper side of its cut, in real arithmetic.

Along the cut the exponent of laplace.py is F(X) = ρ e^X − X²/2 with ρ = r s² e^{−s²/2}. While ρ < 1/e it has two
real saddles X₁ < 1 < X₂, the roots of ρ e^X = X. The contour follows the real axis to X₂ and leaves it on the
path of steepest descent Im F = 0. With X = a − ib that condition reads ρ e^a sin b = a b, so the path is explicit,

    a(b) = −W₋₁(−ρ sin b / b),   b from 0 to π,        Re F = R(b) = a b cot b − (a² − b²)/2,

and, since everything before X₂ is real and dX = da − i db on the descent,

    −Im L(−r+i0) = σ/√(2π) ∫₀^π exp(σ² R(b)) db,

an integral of positive terms: the imaginary part, be it 10⁻³⁰⁰ of the real one, is obtained without cancellation.
(The log-normal is a generalised gamma convolution; arg L(−r+i0)/(−π) is the distribution function of its Thorin
measure, so the phase only ever grows with r.) With b = 2 arctan sinh t the integrand also decays doubly
exponentially where σ is small.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import lambertw, ndtr

from ballsbins.accounting.balls_and_bins.laplace import REACH, Flags, Real, second_remainder

LARGEST_LOG_RHO = -1.02  # just before the two saddles meet at ρ = 1/e
_LOG_ROOT_TAU = 0.5 * np.log(2.0 * np.pi)
_DECAY = 41.0  # e⁻⁴¹ of the largest term is below double precision


_LADDER = np.geomspace(1e-3, 45.0, 36)


@cache
def _half_gauss(nodes: int) -> tuple[Real, Real]:
    """Gauss–Legendre nodes and weights on [0, 1]."""
    x, w = np.polynomial.legendre.leggauss(nodes)
    return 0.5 * (x + 1.0), 0.5 * w


@dataclass(frozen=True, slots=True)
class CutValues:
    """At each r: Re log L (+ ω where centred), log of the phase θ = −arg L, and the relative error of the phase."""

    real: Real
    log_phase: Real
    centred: Flags
    error: Real


def largest_log_r(sigma: float) -> float:
    """The end of the stretch of the cut on which `on_cut` works."""
    return float(LARGEST_LOG_RHO + 2.0 * np.log(sigma) + 0.5 / sigma**2)


def larger_root(c: Real) -> Real:
    """The root a ≥ 1 of a − log a = c, for c ≥ 1: that is −W₋₁(−e^{−c})."""
    d = np.maximum(c - 1.0, 0.0)
    u = np.sqrt(2.0 * d)
    near = 1.0 + u * (1.0 + u * (1.0 / 3.0 + u * (1.0 / 36.0 - u / 270.0)))
    a = np.where(d < 4.0, near, c + np.log(c + np.log(c + np.log(np.maximum(c, 1.0)))))
    for _ in range(2):  # Halley
        f, slope = a - np.log(a) - c, 1.0 - 1.0 / a
        step = 2.0 * f * slope / (2.0 * slope * slope - f / (a * a))
        a = np.where(d > 1e-10, np.maximum(a - step, 1.0), a)
    return a


def _descent(log_rho: Real, sigma: float, nodes: int) -> tuple[Real, Real, Real]:
    """(log of the scale, scaled −Im L, scaled real part) of the descent from X₂, by Gauss–Legendre in √t."""
    x2 = larger_root(-log_rho)
    top = x2 - 0.5 * x2 * x2

    def exponent(t: Real, log_rho: Real, top: Real) -> tuple[Real, Real]:
        sinh, cosh = np.sinh(t), np.cosh(t)
        b = 2.0 * np.arctan(sinh)
        cot = (1.0 - sinh * sinh) / (2.0 * sinh)
        a = larger_root(-log_rho + np.log(b * cosh * cosh / (2.0 * sinh)))
        fall = sigma**2 * (a * b * cot - 0.5 * (a * a - b * b) - top) + np.log(2.0 / cosh)
        return fall, np.where(a > 1.0, (1.0 / b - cot) * a / (a - 1.0), 0.0)  # and da/db

    ladder = exponent(_LADDER[None, :], log_rho[:, None], top[:, None])[0] < -_DECAY
    high = _LADDER[ladder.argmax(axis=1)]
    v, w = _half_gauss(nodes)
    t = high[:, None] * (v * v)[None, :]
    fall, slope = exponent(t, log_rho[:, None], top[:, None])
    terms = np.exp(fall) * (2.0 * v * w)[None, :] * high[:, None]
    scale = sigma**2 * top + np.log(sigma) - _LOG_ROOT_TAU
    return scale, terms.sum(axis=1), (terms * slope).sum(axis=1)


def _along_axis(r: Real, s: float, end: Real, shift: Real, form: NDArray[np.int_], refine: float) -> Real:
    """∫ of the chosen form of e^{rZ(x)} φ(x) from −∞ to `end`: panels common to all r, and a last one of its own."""
    x16, w16 = _half_gauss(16)
    panel = min(2.0, 2.0 / s) / refine
    whole = np.maximum(((end + REACH) / panel).astype(int), 0)
    total = np.zeros_like(r)
    count = int(whole.max())
    common = (-REACH + panel * (np.arange(count)[:, None] + x16[None, :])).ravel()
    inside = np.repeat(np.arange(count), 16)[None, :] < whole[:, None]
    last = -REACH + panel * whole
    own = last[:, None] + (end - last)[:, None] * x16[None, :]
    for x, weight, mask in (
        (common[None, :], np.tile(w16 * panel, count)[None, :], inside),
        (own, (end - last)[:, None] * w16[None, :], None),
    ):
        log_phi = -0.5 * x * x - _LOG_ROOT_TAU
        log_z = s * x - 0.5 * s * s
        for kind in (0, 1, 2):
            rows = form == kind
            if not rows.any():
                continue
            mine = rows if len(x) > 1 else slice(None)  # the common nodes are one row
            rate, log_f, w = r[rows, None], log_phi[mine], weight[mine]
            if kind == 2:
                f = second_remainder(-rate * np.expm1(log_z[mine])) * (np.exp(log_f) * w)
            elif kind == 1:
                f = np.expm1(rate * np.exp(log_z[mine])) * (np.exp(log_f) * w)
            else:
                f = np.exp(rate * np.exp(log_z[mine]) + log_f - shift[rows, None]) * w
            total[rows] += (f if mask is None else np.where(mask[rows], f, 0.0)).sum(axis=1)
    return total


def on_cut(log_r: Real, sigma: float, refine: float = 1.0) -> CutValues:
    """L(−r + i0) for log r up to `largest_log_r(sigma)`."""
    s = 1.0 / sigma
    log_rho = log_r - 2.0 * np.log(sigma) - 0.5 * s * s
    r = np.exp(log_r)
    x1 = -lambertw(-np.exp(log_rho), 0).real
    x2 = larger_root(-log_rho)
    scale, minus_imaginary, real = _descent(log_rho, sigma, round(48 * refine))
    _, coarse, _ = _descent(log_rho, sigma, round(32 * refine))

    spread = min(1.0, float(np.sqrt(np.expm1(min(s * s, 50.0)))))
    centred = (r * spread < 1.5) if s < 2.5 else np.zeros(r.shape, dtype=bool)
    near_one = np.zeros(r.shape, dtype=bool)
    if s >= 2.5:
        near_one = (r < 1.5) | (sigma**2 * np.abs(x1 - 0.5 * x1 * x1) < 0.7)
    plain = ~(centred | near_one)
    shift = np.where(plain, sigma**2 * (x1 - 0.5 * x1 * x1), 0.0)

    # the real axis up to X₂, or as far as there is Gaussian mass
    far = REACH + np.where(centred, 2.0 * s, np.where(near_one, s, 0.0))
    far = np.maximum(far, sigma * x1 + REACH / np.sqrt(np.maximum(1.0 - x1, 0.05)))
    # near ρ = 1/e the two saddles are close and the way to X₂ is flatter than a Gaussian: go farther, or all of it
    least = np.where(centred, 2.0 * np.log(r * spread), np.where(near_one, np.minimum(log_r, 0.0), shift))
    end = sigma * x2
    for more in (6.0, 3.0, 1.5, 0.0):
        growth = np.exp(np.minimum(log_r + s * (far + more) - 0.5 * s * s, 700.0)) - np.where(centred, r, 0.0)
        steep = (growth - 0.5 * (far + more) ** 2 < least - _DECAY) | (~plain & (growth < 1.0))
        end = np.where(steep, np.minimum(sigma * x2, far + more), end)
    axis = _along_axis(r, s, end, shift, np.where(centred, 2, np.where(near_one, 1, 0)), refine)

    # behind `end` the −1 and +q of the centred forms are Gaussian tails; the descent joins if the axis reached X₂
    reached = end >= sigma * x2
    behind, ahead = ndtr(-end), ndtr(s - end)
    closed = np.where(centred, -behind - r * (ahead - behind), np.where(near_one, -behind, 0.0))
    lift = np.where(centred, -r, -shift)
    with np.errstate(under="ignore", divide="ignore"):
        factor = np.exp(scale + lift)
        total = axis + np.where(reached, closed + factor * real, 0.0)
        log_imaginary = scale + np.log(minus_imaginary) + lift
        log_real_part = np.where(plain, np.log(np.where(plain, total, 1.0)), np.log1p(total))
        ratio = np.exp(log_imaginary - log_real_part)
    # log|L| = log Re L + ½ log(1 + tan²θ)
    modulus = log_real_part + 0.5 * np.log1p(ratio * ratio) + shift
    with np.errstate(divide="ignore", invalid="ignore"):
        log_phase = np.where(ratio < 1e-9, log_imaginary - log_real_part, np.log(np.arctan(ratio)))
    distance = np.abs(
        coarse / minus_imaginary - 1.0
    )  # 48 against 32 nodes: geometric, so a power of 1.5; 1.25 is used
    error = np.minimum((8.0 * distance) ** 1.25, distance)
    return CutValues(modulus, log_phase, centred, np.where(log_rho < LARGEST_LOG_RHO + 1e-6, error, np.inf))
