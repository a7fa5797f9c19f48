"""The Laplace transform L(ω) = E[exp(−ωZ)] of the log-normal Z = exp(s·g − s²/2), s = 1/σ, off its cut.

With the Gaussian integral moved to the line Im x = −σψ (docs/accounting.md),

    L(ω) = ∫ exp(−ω Z(x − iσψ)) φ(x − iσψ) dx,      Z(x) = exp(s x − s²/2),

for any ψ with |arg ω − ψ| < π/2: the integrand is analytic, so the trapezoidal rule converges geometrically.
Written with X = x/σ and z = ω s² e^{−s²/2} the exponent is σ²F(X), F(X) = −z e^X − X²/2, whose saddles are
X = −W₀(z) and −W₋₁(z) (Lambert). A large ψ improves convergence but causes cancellation by a factor e^{σ²ψ²/2}. This
is harmless for small σ and ruinous for large σ. For large σ, the line follows the saddle −W₀ and, close to the cut,
bends down behind it (`_legs`).

The accountant uses T·log L with T up to 10¹², so small |ω| needs the centred transform: with A(ω) = e^ω L(ω),
A − 1 = E[e₂(ω(Z−1))], e₂(q) = e^{−q} − 1 + q, and log A = log1p(A − 1) keeps every digit. `LogTransform` records
whether a number is log L or log A = log L + ω.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfc, lambertw

from ballsbins.accounting.one_epoch.quadrature import Complex, Flags, Real, complex_log1p, second_remainder

# B2, B3, … are the numbered bounds of docs/derivation.md. A number called a choice decides how much work is done: a
# poor choice increases the sampled error (B6), but does not give a wrong answer.
REACH = 9.5  # standard deviations to integrate over: the Gaussian mass beyond is 2·10⁻²¹ (B2)
GONE = 42.0  # contributions below e⁻⁴² = 6·10⁻¹⁹ of the result are left out (B2)
LARGEST_EXPONENT = 700.0  # e⁷⁰⁰ is a double: larger exponents are clipped where "very large" is enough
SAFE_EXPONENT = 600.0  # the same, where another factor of up to e¹⁰⁰ follows
ROOT_TAU = np.sqrt(2.0 * np.pi)

_TINY_LOG_Z = -600.0  # log|z| below which W₀(z) = z in doubles, and scipy's W₋₁ may overflow
_NEWTON = 8  # Newton steps for W₋₁ from its asymptotic form: each doubles the digits, four would suffice

LIGHT_TAIL = 2.5  # s below which the variance of Z is small enough for the centred transform (form 2)
CENTRED = 1.5  # up to this |ω|·deviation of Z, A − 1 is small, and log1p keeps digits that log would lose
_NEAR_ONE = 0.2  # up to this σ²|F| at the saddle, and if s is large, integrate L − 1 (form 1)
_MOST_VARIANCE = 50.0  # largest s² for which e^{s²} is computed; the deviation of Z is capped at 1 anyway
_FREE_CANCELLATION = 2.0  # σψ of the cheapest line: it may lose e^{2²/2} to cancellation
_REAL_CANCELLATION = 1.0  # the same for a line on which ωZ is real: it may lose e^½
_MOST_CANCELLATION = 3.5  # in logs, what a straight line may lose; beyond, the path bends (`_legs`)
_WIDEST_TURN = 1.3  # largest arg ω − ψ on a line, in radians; less than π/2
_TURN_MARGIN = 0.3  # distance from π/2, in radians, that the natural line needs to converge by itself
_NARROWEST = 0.05  # least curvature 1 + W₀ used for a width: it is 0 where the saddles meet
_MORE_REACH = (6.0, 3.0, 1.5)  # how much farther to go where the integrand is flatter than a Gaussian
_MOST_SWING = 30.0  # radians per unit of x at the end of a natural line: more would need finer nodes

# The trapezoidal rule of `_line` (B3): an error of e⁻³⁸ = 2⁻⁵⁵, in a strip no wider than is optimal for that.
_LINE_ERROR, _WIDEST_STRIP = 38.0, 76.0
_NARROWEST_STRIP = 0.25  # distance from π/2, in radians, that arg ωZ must keep in the strip
_STEP_BITS = 6.0  # a step has seven significant bits, so its multiples are exact
_TURN_BLOCK = 24  # fine turns per coarse turn: anything around √(number of nodes) works

# The path of `_legs` (B5).
_GAUSS_X, _GAUSS_W = np.polynomial.legendre.leggauss(16)
_PANEL, _PANEL_TURN, _PANEL_BEND = 2.0, 1.1, 3.5  # widest panel in x, in σ, in widths of the saddle: by trial
_PANEL_RADIANS = 10.0  # radians of phase that a panel of sixteen nodes resolves to all digits
_LAST_PANEL = 0.8  # widest panel in units of σ, where e^X grows: found by trial
_NOTHING = -100.0  # log of a term below which "∞·0" counts as 0
_SLANT_POINTS = 17  # points at which the height of a slant is evaluated
_SLANT_WIDTHS = (0.0, 0.15, 0.3, 0.6, 1.0, 1.5, 2.2, 3.0)  # in σ: how far right a slant may lead; a choice
_SLANT_FEET = (0.0, 0.6, 1.1)  # a slant may end this many radians before arg ω; a choice
_FAR_SIZE = 2000.0  # |ωZ| at which the path ends: e^{−|ωZ| cos 1.1} is 0 in doubles
_LEAST_FAR, _SOME_FAR, _MOST_FAR = 0.1, 2.0, 40.0  # limits on how far right to go; φ(40) is 0 in doubles


@dataclass(frozen=True, slots=True)
class LogTransform:
    """log L(ω) + ω where `centred`, log L(ω) elsewhere."""

    value: Complex
    centred: Flags


def spread_of(s: float) -> float:
    """Return the standard deviation of Z, but at most 1."""
    return min(1.0, float(np.sqrt(np.expm1(min(s * s, _MOST_VARIANCE)))))


def saddle(omega: Complex, sigma: float, branch: int = 0) -> Complex:
    """Return the saddle −W₀(z), or −W₋₁(z) if `branch` is −1, in X for z = ω s² e^{−s²/2}, with arg ω in [0, π]."""
    log_z = np.log(omega) - (2.0 * np.log(sigma) + 0.5 / sigma**2)
    z = np.exp(np.clip(log_z.real, -LARGEST_EXPONENT, LARGEST_EXPONENT) + 1j * log_z.imag)
    root = lambertw(z, branch)
    tiny = log_z.real < _TINY_LOG_Z
    if branch == 0:
        root = np.where(tiny, z, root)
        wrong = ~np.isfinite(root)
    else:
        wrong = tiny | ~np.isfinite(root)
        guess = log_z - 2j * np.pi
        root = np.where(wrong, guess - np.log(-guess), root)
    if wrong.any():
        w = np.where(np.isfinite(root), root, log_z)
        for _ in range(_NEWTON):  # Newton on w + log w = log z + 2πik
            residual = w + np.log(w) - log_z - 2j * np.pi * branch
            w = np.where(wrong, w - residual * w / (1.0 + w), root)
        root = w
    return np.asarray(-root)


def _normal_tail(x: Complex) -> Complex:
    return np.asarray(0.5 * erfc(x / np.sqrt(2.0)), dtype=np.complex128)


def log_transform(omega: Complex, sigma: float, refine: float = 1.0) -> LogTransform:
    """Return log L at an array of ω with arg ω in [0, π]; NaN if out of reach.

    `refine` > 1 multiplies the number of nodes.
    """
    first = saddle(omega, sigma)
    good = np.isfinite(first) & np.isfinite(omega)
    if good.all():
        return _log_transform(omega, sigma, first, refine)
    value, centred = np.full(omega.shape, complex(np.nan, np.nan)), np.zeros(omega.shape, dtype=bool)
    if good.any():
        part = _log_transform(omega[good], sigma, first[good], refine)
        value[good], centred[good] = part.value, part.centred
    return LogTransform(value, centred)


def _log_transform(omega: Complex, sigma: float, first: Complex, refine: float) -> LogTransform:
    s = 1.0 / sigma
    size, phi = np.abs(omega), np.angle(omega)
    spread = spread_of(s)
    if s < LIGHT_TAIL:
        centred = size * spread < CENTRED
        near_one = np.zeros_like(centred)
    else:
        centred = np.zeros(omega.shape, dtype=bool)
        exponent = sigma**2 * np.abs(first * first / 2.0 - first)
        near_one = (size < CENTRED) | (exponent < _NEAR_ONE)
    form = np.where(centred, 2, np.where(near_one, 1, 0))

    natural = np.clip(-first.imag, 0.0, phi)
    # the cheapest line may lose e² to cancellation; if convergence needs more, it may lose up to e^3.5 more
    psi = np.clip(np.maximum(natural, _FREE_CANCELLATION / sigma), 0.0, phi)
    psi = np.where(phi - psi > _WIDEST_TURN, np.maximum(psi, phi - _WIDEST_TURN), psi)
    width = 1.0 / np.sqrt(np.maximum(np.abs(1.0 - first), _NARROWEST))
    reach = REACH + np.where(form == 2, 2.0 * s, np.where(form == 1, s, 0.0))
    high = np.maximum(sigma * first.real + REACH * np.maximum(width, 1.0), np.where(form > 0, reach, -np.inf))
    excess = 0.5 * sigma**2 * (psi**2 - natural**2)
    # The natural line is used where it converges. Elsewhere it is used up to x₂ if everything beyond is negligible;
    # in the centred forms, this includes the Gaussian tails of "−1" and "+q".
    converges = phi - natural < np.pi / 2 - _TURN_MARGIN
    least = np.where(
        form == 2,
        2.0 * np.log(size * spread),
        np.where(form == 1, np.minimum(np.log(size), 0.0), (sigma**2 * (first - first * first / 2.0)).real),
    )

    def swing(x: Real) -> Real:
        return size * np.exp(np.minimum(s * x - 0.5 * s * s, SAFE_EXPONENT))

    def growth(x: Real) -> Real:
        return np.where(form == 2, omega.real, 0.0) - swing(x) * np.cos(phi - natural)

    def height(x: Real) -> Real:
        return growth(x) - 0.5 * x * x + 0.5 * (sigma * natural) ** 2

    # where the saddles nearly meet, the integrand is flatter than a Gaussian: go farther, if necessary to x₂
    turn, unknown = np.full(omega.shape, np.inf), np.zeros(omega.shape, dtype=bool)
    if not converges.all():
        turn[~converges] = sigma * saddle(omega[~converges], sigma, -1).real
        unknown = ~np.isfinite(turn) & ~converges
        turn[unknown] = np.inf
    flat = ((form == 0) | (growth(high) > 1.0)) & (height(high) > least - GONE)
    if flat.any():
        farther = np.where(converges, high + REACH, np.maximum(turn, high))
        for more in _MORE_REACH:
            farther = np.where(height(high + more) < least - GONE, np.minimum(farther, high + more), farther)
        high = np.where(flat, farther, high)
    end = np.where(converges, high, np.minimum(turn, high))
    behind = height(end)
    negligible = (behind < least - GONE) & ((form == 0) | (end >= high))
    natural_line = (converges | negligible) & (swing(end) * s * np.abs(np.sin(phi - natural)) < _MOST_SWING)
    # If it has almost no cancellation, the line on which ωZ is real is best: it needs only real exponentials.
    real_line = (form < 2) & (sigma * phi <= _REAL_CANCELLATION)
    natural_line &= ~real_line
    psi = np.where(real_line, phi, np.where(natural_line, natural, psi))
    end = np.where(natural_line, end, high)
    straight = real_line | natural_line | (excess < _MOST_CANCELLATION)

    value = np.full(omega.shape, complex(np.nan, np.nan))
    straight |= unknown
    if straight.any():
        value[straight] = _line(
            omega[straight], sigma, psi[straight], form[straight], first[straight], end[straight], refine
        )
    if not straight.all():
        bent = ~straight
        second = saddle(omega[bent], sigma, -1)
        bent[bent] = known = np.isfinite(second)
        value[bent] = _legs(
            omega[bent], sigma, form[bent], first[bent], second[known], natural[bent], high[bent], refine
        )
    if unknown.any():
        value[unknown] = np.nan
    return LogTransform(value, centred)


def _finish(total: Complex, form: NDArray[np.int_], shift: Real) -> Complex:
    with np.errstate(divide="ignore"):
        return np.where(form > 0, complex_log1p(total), np.log(total) + shift)


def _line(
    omega: Complex, sigma: float, psi: Real, form: NDArray[np.int_], first: Complex, end: Real, refine: float
) -> Complex:
    """Apply the trapezoidal rule on Im x = −σψ up to `end`, with one lattice of x for all ω."""
    s = 1.0 / sigma
    phi = np.angle(omega)
    centre = sigma * first.real
    low = min(-REACH, float(centre.min()) - REACH)
    # In a strip of half width a, the arguments stay below π/2 and the Gaussian grows by e^{κa²/2}, where κ is its
    # curvature at the saddle. The error e^{−2πa/h + κa²/2 + σψa} is set to 2⁻⁵⁵ (B3).
    high = float(end.max())
    gap = np.clip(np.pi / 2 - np.abs(phi - psi), _NARROWEST_STRIP, np.pi / 2).min()
    curvature = float(np.where(form == 0, np.abs(1.0 - first), 1.0).max())
    a = min(gap / s, np.sqrt(_WIDEST_STRIP / curvature))
    growth = 0.5 * curvature * a * a
    step = 2.0 * np.pi * a / (_LINE_ERROR + growth + float(sigma * psi.max()) * a) / refine
    # use a step with few bits, so that all nodes are exact: rounding of the step would affect all terms alike
    unit = 2.0 ** (np.floor(np.log2(step)) - _STEP_BITS)
    h = unit * np.floor(step / unit)
    first_node = np.floor(low / h)
    count = int(np.ceil(high / h) + 1.0 - first_node)
    x = h * (first_node + np.arange(count + -count % _TURN_BLOCK))  # a whole number of blocks of turns
    z_real = np.exp(s * x - 0.5 * s * s)
    shift = np.where(form > 0, 0.0, (sigma**2 * (first - first * first / 2.0)).real)
    out = np.empty(omega.shape, dtype=complex)
    density = np.exp(-0.5 * x * x) * (h / ROOT_TAU)
    real = psi == phi  # ωZ is real
    for kind, on_axis in ((0, True), (0, False), (1, True), (1, False), (2, False)):
        rows = np.flatnonzero((form == kind) if kind == 2 else (form == kind) & (real == on_axis))
        if not rows.size:
            continue
        bend = psi[rows, None]
        grown = 0.5 * sigma**2 * bend**2
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            if kind < 2:
                turned = np.abs(omega[rows, None]) if on_axis else (omega * np.exp(-1j * psi))[rows, None]
            if kind == 0:
                # put everything in one exponent, because the parts may overflow or underflow
                exponent = -0.5 * x * x - turned * z_real + (grown - shift[rows, None])
                terms = np.exp(exponent) * (h / ROOT_TAU)
            elif kind == 1:
                terms = np.expm1(-turned * z_real) * (density * np.exp(grown))
            else:
                # Z − 1 = expm1(a − iψ), a = s x − s²/2, from real functions of a and of ψ
                away = np.expm1(s * x - 0.5 * s * s) * np.cos(bend) - 2.0 * np.sin(0.5 * bend) ** 2
                terms = second_remainder(omega[rows, None] * (away - 1j * (z_real * np.sin(bend))))
                terms *= density * np.exp(grown)
        if float(end[rows].min()) + h < x[-1]:
            terms = np.where(x <= end[rows, None] + h, terms, 0.0)
        out[rows] = _turned_sum(terms, sigma * psi[rows] * h, int(first_node))
    return _finish(out, form, shift)


def _turned_sum(terms: Any, angle: Real, first: int) -> Complex:
    """Return Σ_j terms[:, j]·exp(i·angle·(first + j)); each turn is a product of a coarse and a fine one."""
    blocks = terms.shape[1] // _TURN_BLOCK
    fine = np.exp(1j * angle[:, None] * np.arange(_TURN_BLOCK))
    coarse = np.exp(-1j * angle[:, None] * (first + _TURN_BLOCK * np.arange(blocks)))
    cells = terms.reshape(len(angle), blocks, _TURN_BLOCK)
    if np.isrealobj(terms):
        parts = cells @ fine.view(np.float64).reshape(len(angle), _TURN_BLOCK, 2)
        sums = parts.view(np.complex128)[:, :, 0]
    else:
        sums = (cells @ fine[:, :, None])[:, :, 0]
    return np.asarray(np.vecdot(coarse, sums))


def _on_legs(kind: int, omega: Complex, x: Complex, s: float, shift: Real) -> Complex:
    """Return the integrand of a form at complex x; kind 3 is kind 0 times e^ω."""
    log_phi = -0.5 * x * x - (np.log(ROOT_TAU) + shift)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        turned = omega * np.exp(s * x - 0.5 * s * s)
        exponent = log_phi - turned if kind < 2 else log_phi - turned + omega
        if kind in (0, 3):
            f = np.exp(exponent)
        elif kind == 1:
            f = np.expm1(-turned) * np.exp(log_phi)
        else:
            f = second_remainder(omega * np.expm1(s * x - 0.5 * s * s)) * np.exp(log_phi)
    # a product of an overflow and an underflow counts as 0 if its logarithm is small enough
    return np.where(np.isfinite(f) | ~(exponent.real < _NOTHING), f, 0.0)


def _legs(
    omega: Complex,
    sigma: float,
    form: NDArray[np.int_],
    first: Complex,
    second: Complex,
    psi: Real,
    high: Real,
    refine: float,
) -> Complex:
    """Integrate along a path with three legs.

    The path runs along Im x = −σψ over the first saddle to x₂ = Re(−σW₋₁), then slants down, and then goes right to
    where |ωZ| is large. The slant is the gentlest of a small family (smallest maximum of Re F). All legs use
    Gauss–Legendre panels. Behind the turn, the "−1" and "+q" of the centred forms are Gaussian tails in closed form.
    """
    s = 1.0 / sigma
    phi, size = np.angle(omega), np.abs(omega)
    width = 1.0 / np.sqrt(np.maximum(np.abs(1.0 - first), _NARROWEST))
    turn = np.maximum(sigma * second.real, sigma * first.real + 0.5 * width)
    bend = turn <= high
    end = np.minimum(turn, high)
    shift = np.where(form > 0, 0.0, (sigma**2 * (first - first * first / 2.0)).real)
    low = np.minimum(-REACH, sigma * first.real - REACH)
    panel = np.minimum(min(_PANEL, _PANEL_TURN / s), _PANEL_BEND / np.sqrt(1.0 + np.abs(first))) / refine

    def integrate(
        start: Complex, stop: Complex, panels: int, kinds: NDArray[np.int_], rows: Flags
    ) -> Complex:
        t = ((np.arange(panels)[:, None] + 0.5 * (_GAUSS_X + 1.0)) / panels).ravel()
        w = np.tile(0.5 / panels * _GAUSS_W, panels)
        found = np.empty(start.shape, dtype=complex)
        for kind in range(4):
            some = np.flatnonzero(kinds == kind)
            if some.size:
                span = (stop - start)[some]
                x = start[some, None] + span[:, None] * t
                f = _on_legs(kind, omega[rows][some, None], x, s, shift[rows][some, None])
                found[some] = span * (f * w).sum(axis=1)
        return found

    every = np.ones(omega.shape, dtype=bool)
    down = -1j * sigma * psi
    panels = int(np.ceil(((end - low) / panel).max()))
    total = integrate(low + down, end + down, panels, form, every)
    if not bend.any():
        return _finish(total, form, shift)

    # choose the slant: from (x₂, −σψ) to (x₂ + bσ, −σψ_t)
    om, x0 = omega[bend], (turn + down)[bend]
    best = np.full(om.shape, np.inf)
    corner = np.zeros_like(om)
    t = np.linspace(0.0, 1.0, _SLANT_POINTS)
    log_size = np.log(size[bend])[:, None] - 0.5 * s * s
    feet = []
    for less in _SLANT_FEET:
        foot = np.maximum(phi[bend] - less, psi[bend])
        low_ = psi[bend, None] + (foot - psi[bend])[:, None] * t
        feet.append((foot, 0.5 * (sigma * low_) ** 2, np.cos(phi[bend, None] - low_)))
    for b in _SLANT_WIDTHS:
        across = turn[bend, None] + (b * sigma) * t
        swing, square = np.exp(np.minimum(s * across + log_size, LARGEST_EXPONENT)), 0.5 * across * across
        for foot, rise, cosine in feet:
            # the real part of the exponent −ωZ − x²/2 on the slant
            peak = (rise - square - swing * cosine).max(axis=1)
            better = peak < best
            best = np.where(better, peak, best)
            corner = np.where(better, turn[bend] + b * sigma - 1j * sigma * foot, corner)
    kinds = np.where(form[bend] == 2, 3, 0)
    # sixteen nodes resolve about ten radians of the phase, which turns at the rate |x + sωZ|
    turning = np.maximum(np.abs(corner), np.abs(corner + s * om * np.exp(s * corner - 0.5 * s * s)))
    narrow = np.minimum(panel[bend], _PANEL_RADIANS / (1.0 + turning) / refine)
    slant = int(np.ceil((np.abs(corner - x0) / narrow).max())) + 1
    total[bend] += integrate(x0, corner, slant, kinds, bend)
    far = np.maximum((np.log(_FAR_SIZE / size[bend]) + 0.5 * s * s) / s, corner.real + _LEAST_FAR)
    far = np.minimum(far, np.maximum(corner.real + _SOME_FAR, _MOST_FAR))
    last = int(np.ceil(((far - corner.real) / np.minimum(narrow, _LAST_PANEL / s / refine)).max())) + 1
    total[bend] += integrate(corner, far + 1j * corner.imag, last, kinds, bend)
    tail = _normal_tail(x0)
    ahead = _normal_tail(x0 - s)
    closed = np.where(form[bend] == 2, -tail + om * (ahead - tail), np.where(form[bend] == 1, -tail, 0.0))
    total[bend] += closed
    return _finish(total, form, shift)
