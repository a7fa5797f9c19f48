"""L(−r + i0), the Laplace transform of the log-normal on the upper side of its cut, in real arithmetic.

Along the cut the exponent of transform.py is F(X) = ρ e^X − X²/2 with ρ = r s² e^{−s²/2}. While ρ < 1/e it has two
real saddles X₁ < 1 < X₂, the roots of ρ e^X = X. The contour follows the real axis to X₂ and leaves it on the
path of steepest descent Im F = 0. With X = a − ib that condition reads ρ e^a sin b = a b, so the path is explicit,

    a(b) = −W₋₁(−ρ sin b / b),   b from 0 to π,        Re F = R(b) = a b cot b − (a² − b²)/2,

and, since everything before X₂ is real and dX = da − i db on the descent,

    −Im L(−r+i0) = σ/√(2π) ∫₀^π exp(σ² R(b)) db,

an integral of positive terms. So the imaginary part has no cancellation, even if it is only 10⁻³⁰⁰ of the real part.
(The log-normal is a generalised gamma convolution; arg L(−r+i0)/(−π) is the distribution function of its Thorin
measure, so the phase always grows with r.) With b = 2 arctan sinh t, the integrand decays doubly exponentially even
if σ is small.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy.special import ndtr

from ballsbins.accounting.one_epoch.quadrature import Flags, Indices, Real, second_remainder
from ballsbins.accounting.one_epoch.transform import CENTRED, LARGEST_EXPONENT, LIGHT_TAIL, REACH, spread_of

# B2, B4, … are the numbered bounds of docs/derivation.md. A poor choice of the other numbers costs time, or digits
# whose loss B6 detects.
LARGEST_LOG_RHO = -1.02  # just before the two saddles meet at ρ = 1/e: beyond, nothing is claimed
_END_SLACK = 1e-6  # rounding may raise log ρ above that by at most this
_LOG_ROOT_TAU = 0.5 * np.log(2.0 * np.pi)
_DECAY = 41.0  # terms below e⁻⁴¹ of the largest are left out: they are below double precision (B2)
# How much farther than usual the real axis may be followed: a choice.
_FARTHER = np.array([[0.0], [1.5], [3.0], [6.0]])
_LADDER = np.geomspace(1e-3, 45.0, 36)  # values of t at which a descent may end: steps of a third, a choice
_DESCENT = 40  # nodes of a descent (B5): enough for all digits from σ = 0.15 on
_LITTLE_NOISE, _MORE_NODES = 0.15, 1.5  # below that σ, use half as many nodes again
_SAMPLED_ENDS = 12  # number of ρ at which the end of a descent is searched for; any number above 5 works
_STEP = 0.45  # along the real axis: the trapezoidal rule errs by e^{−2π²/0.45²} = e⁻⁹⁷ (B4)
# Gauss nodes of a panel on the real axis; its width, and its width in units of σ (B5): found by trial.
_AXIS_NODES, _AXIS_PANEL, _AXIS_TURN = 16, 3.5, 6.0
_NARROWEST = 0.05  # least curvature 1 − X₁ used for a width: it is 0 where the saddles meet
_NEAR_ONE = 0.7  # up to this σ²|F(X₁)|, and if s is large, integrate L − 1 instead of L
_LEAST_SLOPE = 1e-3  # least slope in Newton's step for X₁: it is 0 where the saddles meet
# Constants of the approximation to W₋₁ by Barry et al., Mathematics and Computers in Simulation 53 (2000).
_BARRY = (0.16805, 0.0042, 0.0201, 5.950610532)
LINEAR_PHASE = 1e-9  # up to this phase, sin θ = tan θ = θ: the next term is 10⁻¹⁸ of it
_BRANCH_SERIES = 0.05  # up to this c − 1, a series starts the search for the root a of a − log a = c
_AT_BRANCH = 1e-10  # up to this c − 1, the series is exact to rounding, and Halley's step would divide by 0


@cache
def _half_gauss(nodes: int) -> tuple[Real, Real]:
    """Gauss–Legendre nodes and weights on [0, 1]."""
    x, w = np.polynomial.legendre.leggauss(nodes)
    return 0.5 * (x + 1.0), 0.5 * w


def _smaller_root(log_rho: Real) -> Real:
    """Return the root X₁ < 1 of ρe^X = X to a few digits: it only shows where the mass is."""
    rho = np.exp(log_rho)
    p = np.sqrt(np.maximum(2.0 * (1.0 - np.e * rho), 0.0))
    x = 1.0 - p * (1.0 - p * (1 / 3 - p * (11 / 72)))  # the series of W at its branch point
    for _ in range(2):
        power = rho * np.exp(x)
        x = np.minimum(x + (power - x) / np.maximum(1.0 - power, _LEAST_SLOPE), 1.0)
    return x


@dataclass(frozen=True)
class _Rungs:
    """The quantities of a descent that depend on t but not on ρ: one row for each rung of the ladder."""

    b: Real
    b_cot: Real  # b·cot b
    stretch: Real  # log(b / sin b)
    fall: Real  # log db/dt
    turn: Real  # 1/b − cot b
    weight: Real

    @classmethod
    def at(cls, t: Real, weight: Real) -> _Rungs:
        sinh, cosh = np.sinh(t), np.cosh(t)
        b = 2.0 * np.arctan(sinh)
        cot = (1.0 - sinh * sinh) / (2.0 * sinh)
        return cls(
            b, b * cot, np.log(b * cosh * cosh / (2.0 * sinh)), np.log(2.0 / cosh), 1.0 / b - cot, weight
        )

    def __getitem__(self, rows: Indices) -> _Rungs:
        parts = (self.b, self.b_cot, self.stretch, self.fall, self.turn, self.weight)
        return _Rungs(*(part[rows] for part in parts))


@cache
def _rungs(nodes: int) -> _Rungs:
    """Gauss–Legendre nodes in √t from 0 to every rung; `nodes` = 0: the rungs themselves, as one row."""
    if nodes == 0:
        return _Rungs.at(_LADDER[None, :], np.ones((1, len(_LADDER))))
    v, w = _half_gauss(nodes)
    return _Rungs.at(_LADDER[:, None] * (v * v), _LADDER[:, None] * (2.0 * v * w))


@dataclass(frozen=True, slots=True)
class CutValues:
    """At each r: Re log L (+ ω where centred) and log of the phase θ = −arg L, which is NaN beyond the end."""

    real: Real
    log_phase: Real
    centred: Flags


def largest_log_r(sigma: float) -> float:
    """Return the end of the range of log r in which `on_cut` works."""
    return float(LARGEST_LOG_RHO + 2.0 * np.log(sigma) + 0.5 / sigma**2)


def larger_root(c: Real) -> Real:
    """Return the root a ≥ 1 of a − log a = c, for c ≥ 1: that is −W₋₁(−e^{−c})."""
    d = np.maximum(c - 1.0, 0.0)
    root = np.sqrt(d)
    # start with a series in u = √(2d) near 1, elsewhere with a formula accurate to 0.025 %; then use Halley's method
    u = np.sqrt(2.0) * root
    near = 1.0 + u * (1.0 + u * (1 / 3 + u * (1 / 36 - u / 270)))
    m1, m2, m3, factor = _BARRY
    ratio = m1 * u / (1.0 - m2 * d * np.exp(-m3 * root))
    a = np.where(d < _BRANCH_SERIES, near, 1.0 + d + factor * ratio / (1.0 + ratio))
    for _ in range(2):
        slope = 1.0 - 1.0 / a
        f = a - np.log(a) - c
        step = 2.0 * f * slope / (2.0 * slope * slope - f / (a * a))
        a = np.where(d > _AT_BRANCH, np.maximum(a - step, 1.0), a)
    return np.asarray(a, dtype=np.float64)


def _falls(log_rho: Real, top: Real, sigma: float, rungs: _Rungs) -> tuple[Real, Real]:
    """Return log of the integrand in t relative to its value at X₂, and a(b), at every ρ and node."""
    a = larger_root(rungs.stretch - log_rho[:, None])
    return sigma**2 * (a * rungs.b_cot - 0.5 * (a * a - rungs.b**2) - top[:, None]) + rungs.fall, a


def _ends(log_rho: Real, sigma: float) -> Indices:
    """Return the rung at which each descent has become negligible.

    The smaller ρ is, the sooner this happens. So the rung is found at a few ρ, and each descent uses the rung of the
    next larger one.
    """
    some = np.linspace(float(log_rho.min()), float(log_rho.max()), min(len(log_rho), _SAMPLED_ENDS))
    x2 = larger_root(-some)
    gone = _falls(some, x2 - 0.5 * x2 * x2, sigma, _rungs(0))[0] < -_DECAY
    rung = np.maximum.accumulate(gone.argmax(axis=1))
    return rung[np.minimum(np.searchsorted(some, log_rho), len(some) - 1)]


def _form(kind: int, rate: Real, x: Real, s: float, shift: Real) -> Real:
    """Return φ(x) times the chosen form of e^{rZ}: scaled (0), minus 1 (1), or centred and minus 1 + r(Z − 1) (2)."""
    log_z, log_phi = s * x - 0.5 * s * s, -0.5 * x * x - _LOG_ROOT_TAU
    if kind == 2:
        return np.asarray(second_remainder(-rate * np.expm1(log_z)) * np.exp(log_phi))
    if kind == 1:
        return np.asarray(np.expm1(rate * np.exp(log_z)) * np.exp(log_phi))
    return np.asarray(np.exp(rate * np.exp(log_z) + log_phi - shift))


def _to_nothing(kind: int, r: Real, s: float, end: Real, shift: Real, refine: float) -> Real:
    """Integrate the chosen form of e^{rZ(x)} φ(x) from −∞ to `end`, where it is negligible.

    On Im x = ±a the integrand is at most e^{a²/2} times its value with |Z| in place of Z on the axis, however large a
    is. So the trapezoidal rule has an error of min_a e^{a²/2 − 2πa/h} = e^{−2π²/h²}, whatever s is.
    """
    step = _STEP / refine
    x = step * np.arange(np.floor(-REACH / step), np.ceil(float(end.max()) / step) + 1.0)
    f = _form(kind, r[:, None], x, s, shift[:, None])
    # values beyond the end may be infinite
    return np.asarray(step * np.where(x <= end[:, None], f, 0.0).sum(axis=1))


def _to_saddle(kind: int, r: Real, s: float, end: Real, shift: Real, refine: float) -> Real:
    """Do the same for an `end` at which the integrand does not vanish: Gauss–Legendre, with panels for each r."""
    nodes, weights = _half_gauss(_AXIS_NODES)
    count = max(int(np.ceil((float(end.max()) + REACH) / min(_AXIS_PANEL, _AXIS_TURN / s) * refine)), 1)
    span = np.maximum(end + REACH, 0.0)
    x = -REACH + span[:, None] * ((np.arange(count)[:, None] + nodes) / count).ravel()
    mean = np.vecdot(_form(kind, r[:, None], x, s, shift[:, None]), np.tile(weights / count, count))
    return np.asarray(span * mean)


def on_cut(log_r: Real, sigma: float, refine: float = 1.0) -> CutValues:
    """Return L(−r + i0) for log r up to `largest_log_r(sigma)`; `refine` > 1 multiplies the number of nodes."""
    return Way(log_r, sigma).values(slice(None), refine)


class Way:
    """The path of x from −∞ to X₂ and down, for every r: where it ends, and what is integrated on it."""

    def __init__(self, log_r: Real, sigma: float) -> None:
        """Choose everything that does not depend on the number of nodes."""
        s = 1.0 / sigma
        self._sigma, self._s = sigma, s
        self._log_rho = log_rho = log_r - 2.0 * np.log(sigma) - 0.5 * s * s
        self._r = r = np.exp(log_r)
        x1, x2 = _smaller_root(log_rho), larger_root(-log_rho)
        self._top = x2 - 0.5 * x2 * x2  # F at X₂
        self._rung = _ends(log_rho, sigma)

        spread = spread_of(s)
        none = np.zeros(r.shape, dtype=bool)
        height_1 = sigma**2 * (x1 - 0.5 * x1 * x1)
        if s < LIGHT_TAIL:
            centred, near_one = r * spread < CENTRED, none
        else:
            centred, near_one = none, (r < CENTRED) | (np.abs(height_1) < _NEAR_ONE)
        plain = ~(centred | near_one)
        shift = np.where(plain, height_1, 0.0)
        self._centred, self._plain, self._shift = centred, plain, shift
        self._form = np.where(centred, 2, np.where(near_one, 1, 0))

        # follow the real axis up to X₂, or as far as there is Gaussian mass
        far = REACH + np.where(centred, 2.0 * s, np.where(near_one, s, 0.0))
        far = np.maximum(far, sigma * x1 + REACH / np.sqrt(np.maximum(1.0 - x1, _NARROWEST)))
        # Near ρ = 1/e the two saddles are close, and the integrand on the way to X₂ is flatter than a Gaussian: go
        # farther, or all the way. e^{rZ} − 1 has its mass where Zφ has, at x = s, or before, where rZ = 1.
        if s < LIGHT_TAIL:
            least = np.where(centred, 2.0 * np.log(r * spread), shift)
        else:
            early = np.clip(log_r + 0.5 * s * s, 0.0, s * s)
            small = np.minimum(log_r, 0.5 * s * s) - 0.5 * (early / s) ** 2
            least = np.where(near_one, small, shift)
        taken = np.where(centred, r, 0.0)

        def height(x: Real) -> tuple[Real, Flags]:
            growth = np.exp(np.minimum(log_r + s * x - 0.5 * s * s, LARGEST_EXPONENT)) - taken
            return growth, growth - 0.5 * x * x < least - _DECAY

        farther = far + _FARTHER
        growth, steep = height(farther)
        steep |= ~plain & (growth < 1.0)
        first = farther[steep.argmax(axis=0), np.arange(len(r))]
        self._end = end = np.where(steep.any(axis=0), np.minimum(sigma * x2, first), sigma * x2)
        self._reached = end >= sigma * x2
        self._gone = height(end)[1] | ~self._reached
        # beyond `end`, the −1 and +q of the centred forms are Gaussian tails
        behind, ahead = ndtr(-end), ndtr(s - end)
        self._closed = np.where(centred, -behind - r * (ahead - behind), np.where(near_one, -behind, 0.0))

    def values(self, rows: slice, refine: float = 1.0) -> CutValues:
        """Return L at some of the r, with `refine` times the usual number of nodes."""
        s, sigma, r, end, shift = self._s, self._sigma, self._r[rows], self._end[rows], self._shift[rows]
        form, gone, plain = self._form[rows], self._gone[rows], self._plain[rows]
        log_rho, centred = self._log_rho[rows], self._centred[rows]
        axis = np.empty_like(r)
        for kind in (0, 1, 2):
            of_kind = form == kind
            if of_kind.any():
                for integral, some in ((_to_nothing, of_kind & gone), (_to_saddle, of_kind & ~gone)):
                    if some.any():
                        axis[some] = integral(kind, r[some], s, end[some], shift[some], refine)

        more = 1.0 if sigma > _LITTLE_NOISE else _MORE_NODES
        rungs = _rungs(round(_DESCENT * refine * more))[self._rung[rows]]
        scale, minus_imaginary, real = _descent(log_rho, self._top[rows], sigma, rungs)
        lift = np.where(centred, -r, -shift)
        with np.errstate(under="ignore", divide="ignore", invalid="ignore"):
            # add the descent if the path on the axis reached X₂
            joined = self._closed[rows] + np.exp(scale + lift) * real
            total = axis + np.where(self._reached[rows], joined, 0.0)
            log_imaginary = scale + np.log(minus_imaginary) + lift
            log_real_part = np.where(plain, np.log(np.where(plain, total, 1.0)), np.log1p(total))
            log_ratio = log_imaginary - log_real_part
            ratio = np.exp(log_ratio)
            # log|L| = log Re L + ½ log(1 + tan²θ)
            modulus = log_real_part + 0.5 * np.log1p(ratio * ratio) + shift
            log_phase = np.where(ratio < LINEAR_PHASE, log_ratio, np.log(np.arctan(ratio)))
        return CutValues(
            modulus, np.where(log_rho < LARGEST_LOG_RHO + _END_SLACK, log_phase, np.nan), centred
        )


def _descent(log_rho: Real, top: Real, sigma: float, rungs: _Rungs) -> tuple[Real, Real, Real]:
    """Return (log of the scale, scaled −Im L, scaled real part) of the descent from X₂, by Gauss–Legendre in √t."""
    fall, a = _falls(log_rho, top, sigma, rungs)
    terms = np.exp(fall) * rungs.weight
    # da/db = (1/b − cot b)·a/(a − 1)
    slope = rungs.turn * np.where(a > 1.0, a / (a - 1.0), 0.0)
    return sigma**2 * top + np.log(sigma) - _LOG_ROOT_TAU, terms.sum(axis=1), np.vecdot(terms, slope)
