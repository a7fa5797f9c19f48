"""Inversion integrals over a fixed set of nodes, for many strikes K at once, with the error they make.

    put(K)  = E[(K−S)₊] = (1/π) Im ∫ exp(ωTK + Σ log L(ω)) / (T ω²) dω      over the upper half of a path right of 0,
    call(K) = E[(S−K)₊] = (1/π) ∫ exp(…at −r) sin(phase) / (T r²) dr + (1/π) Im ∫_lift …          (DESIGN.md §3).

Neither the nodes nor the transform depend on K, so a curve pays for its transform once. A contour is built for one
strike and serves its neighbours as far as its own error estimate says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ballsbins.accounting.balls_and_bins.basket import Basket
from ballsbins.accounting.balls_and_bins.laplace import Complex, Flags, Indices, Real

_EPS = 2.0**-53
# Angles past the vertical at which a path may end. The straight line is best for anything like a Gaussian (where the
# exponent's curvature in log ω is large); bends hasten slow decay.
_BENDS = (0.3, 0.0, 0.6, 0.9)
_STRAIGHT_FIRST = (0.0, 0.3, 0.6, 0.9)
_LARGEST_LOG_SADDLE = 702.0  # a path goes on to some e⁵ times that, which must be a double
_DROP = 42.0  # terms below e⁻⁴² of the largest are left out
_FINE_X, _FINE_W = np.polynomial.legendre.leggauss(20)
_COARSE_X, _COARSE_W = np.polynomial.legendre.leggauss(12)


@dataclass(frozen=True)
class Strikes:
    """K with K − 1 beside it, because neither can be had from the other in doubles."""

    k: Real
    k_minus_1: Real

    @classmethod
    def from_log(cls, log_k: Real) -> Strikes:
        """K = exp(log_k)."""
        return cls(np.exp(log_k), np.expm1(log_k))

    def scaled(self, by: float) -> Strikes:
        """The same strikes times 1 + `by`."""
        return Strikes(self.k * (1.0 + by), self.k_minus_1 + by * self.k)

    def __getitem__(self, rows: slice | Indices) -> Strikes:
        return Strikes(self.k[rows], self.k_minus_1[rows])


@dataclass(frozen=True)
class Estimate:
    """Logarithm of a positive number and its relative error (inf where the contour does not serve).

    `rough` is the part of the error that more or other nodes would take away; the rest is rounding.
    """

    log: Real
    error: Real
    rough: Real

    @classmethod
    def nothing(cls, strikes: Strikes) -> Estimate:
        """No contour serves any strike."""
        return cls(*(np.full(strikes.k.shape, value) for value in (-np.inf, np.inf, np.inf)))

    def where(self, served: Flags) -> Estimate:
        """The same, but for the strikes served only."""
        return Estimate(self.log, *(np.where(served, part, np.inf) for part in (self.error, self.rough)))


@dataclass(frozen=True)
class Nodes:
    """Quadrature nodes. `log_weight` includes 1/(πTω²) and dω; on the cut `log_sine` replaces the phase."""

    omega: Complex
    transform: Complex
    plain: Real
    log_weight: Complex
    inner: float  # relative error of `transform`

    def terms(self, bins: int, strikes: Strikes) -> tuple[Complex, Real]:
        """Complex exponent of every term (strikes × nodes) and the size of what was added up to get it."""
        drift = _drift(bins, strikes, self.plain, float(bins) * self.omega)
        return drift + (self.transform + self.log_weight)[None, :], np.abs(drift) + np.abs(self.transform)[
            None, :
        ]


def _drift(bins: int, strikes: Strikes, plain: Real, scaled: Any) -> Any:
    """ω·(T(K−1) + plain) for strikes × nodes, from T·ω, because T·K may be beyond the doubles."""
    t = float(bins)
    return np.where(plain == t, strikes.k[:, None], strikes.k_minus_1[:, None] + plain / t) * scaled


def _scaled(bins: int, log_r: Real) -> Real:
    """T·r, to all digits also where r is below the normal doubles."""
    root = np.exp(0.5 * log_r)
    return np.asarray((float(bins) * root) * root, dtype=np.float64)


def _slope_sum(exponent: Complex, load: Real, nodes: Nodes) -> tuple[Real, Real, Real]:
    """(scale, all Im e^exponent, error of their sum), the last two relative to e^scale."""
    scale = exponent.real.max(axis=1)
    size = np.exp(exponent.real - scale[:, None])
    rounding = _EPS * (16.0 + 4.0 * load) + 4.0 * nodes.inner * np.abs(nodes.transform)[None, :]
    slack = (size * rounding).sum(axis=1)
    slack += 16.0 * size[:, -1]  # what lies beyond the last node falls off at least geometrically
    return scale, size * np.sin(exponent.imag), slack


def _halved(parts: Real) -> tuple[Real, Real, Real]:
    """The trapezoidal sum with all nodes, with every second and with every fourth."""
    return parts.sum(axis=1), 2.0 * parts[:, ::2].sum(axis=1), 4.0 * parts[:, ::4].sum(axis=1)


def trapezoidal_error(fine: Real, coarse: Real, coarser: Real) -> Real:
    """Relative error of the trapezoidal rule, from its distances to those with twice and four times the step.

    It converges geometrically: halving the step squares the error, so the two distances obey d ≈ d₄²/4 (as they are
    seen to). An accidental agreement of two of the three sums is thus found out by the third. The error of the
    finest would be about d²; 1.4 is used as the power.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        d = np.maximum(np.abs(coarse / fine - 1.0), 0.25 * (coarser / fine - 1.0) ** 2)
    return np.asarray(
        np.where(d < 1e-2, np.minimum((8.0 * d) ** 1.4, d), np.maximum(d, 1.0)), dtype=np.float64
    )


def gauss_error(fine: Real, coarse: Real) -> Real:
    """Relative error of Gauss–Legendre panels with 20 nodes, from their distance to those with 12.

    Geometric again, so a power of 20/12 = 1.67; 1.25 is used, and no claim is made on rough agreement.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        d = np.abs(coarse / fine - 1.0)
    return np.where(d < 1e-4, np.minimum((8.0 * d) ** 1.25, d), np.maximum(d, 1.0))


def _estimate(scale: Real, total: Real, slack: Real, rough: Real) -> Estimate:
    with np.errstate(divide="ignore", invalid="ignore"):
        error = slack / np.abs(total) + rough
        log = scale + np.log(total)
    good = (total > 0.0) & np.isfinite(log)
    return Estimate(np.where(good, log, -np.inf), error, rough).where(good)


class Path:
    """ω(u) = ω₀ + w(−tan β (cosh u − 1) + i sinh u), u ≥ 0, leaving the real axis vertically."""

    def __init__(self, start: float, width: float, bend: float) -> None:
        """Leave the real axis at `start`; `width` is the scale of the integrand, `bend` the final angle."""
        self.start, self.width, self.bend = start, width, np.tan(bend)

    def __call__(self, u: Real) -> tuple[Complex, Complex]:
        """Points and derivatives."""
        sinh, cosh = np.sinh(u), np.cosh(u)
        omega = self.start - self.width * self.bend * 2.0 * np.sinh(0.5 * u) ** 2 + 1j * self.width * sinh
        return omega, self.width * (-self.bend * sinh + 1j * cosh)


@dataclass(frozen=True)
class Trace:
    """What was met on a path at equal steps of u: enough to judge the path, and to integrate along it."""

    path: Path
    u: Real
    omega: Complex
    transform: Complex
    plain: Real
    rise: float  # of the integrand above its start, in logs

    @property
    def score(self) -> float:
        """Smaller is better: a path should not climb and should end soon."""
        return 2.0 * self.rise + float(self.u[-1])


def _trace(basket: Basket, path: Path, strikes: Strikes, step: float) -> Trace | None:
    """Follow the path until the integrand has dropped for good; None if it climbs instead."""
    u, omega, transform, plain = np.empty(0), np.empty(0, complex), np.empty(0, complex), np.empty(0)
    sizes = np.empty(0)
    while len(u) * step < 40.0:
        chunk = int(np.ceil((3.2 if len(u) == 0 else 1.6) / step))  # a Gaussian has dropped by 3.1
        more = step * np.arange(len(u), len(u) + chunk, dtype=np.float64)
        at, derivative = path(more)
        found, uncentred = basket.exponent(at)
        size = (_drift(basket.size, strikes[:1], uncentred, float(basket.size) * at)[0] + found).real
        size += np.log(np.abs(derivative / at)) - np.log(np.abs(at))  # ω² may be beyond the doubles
        size = np.where(np.isfinite(size), size, np.inf)
        sizes = np.concatenate([sizes, size])
        u, omega = np.concatenate([u, more]), np.concatenate([omega, at])
        transform, plain = np.concatenate([transform, found]), np.concatenate([plain, uncentred])
        peak = float(sizes.max())
        if peak > sizes[0] + 30.0:
            return None
        dropped = np.maximum.accumulate(sizes) - sizes > _DROP
        if dropped.any():
            end = int(dropped.argmax()) + 1
            return Trace(path, u[:end], omega[:end], transform[:end], plain[:end], peak - float(sizes[0]))
    return None


def _best_trace(
    basket: Basket, start: float, curvature: float, strikes: Strikes, step: float
) -> tuple[float, Trace | None]:
    """The scale of the integrand at `start`, and the best of a few paths from there."""
    width = abs(start) / np.sqrt(curvature)
    best: Trace | None = None
    for bend in _STRAIGHT_FIRST if curvature > 20.0 else _BENDS:
        trace = _trace(basket, Path(start, width, bend), strikes, step)
        if trace is not None and (best is None or trace.score < best.score):
            best = trace
        if best is not None and best.score < 7.0:
            break
    return width, best


def _weighted(basket: Basket, trace: Trace, log_du: Real, probes: int = 7) -> Nodes:
    """Turn points on a path into quadrature nodes, with a sample of the transform's error."""
    inner = 0.0
    if probes > 0:
        probe = slice(0, None, max(1, len(trace.u) // probes))
        finer, _ = basket.exponent(trace.omega[probe], 1.6)
        inner = _worst(np.abs(_unwound(finer - trace.transform[probe])) / np.abs(finer))
    _, derivative = trace.path(trace.u)
    factor = derivative / (np.pi * float(basket.size) * trace.omega)
    log_weight = np.asarray(np.log(factor) - np.log(trace.omega) + log_du, dtype=np.complex128)
    return Nodes(trace.omega, trace.transform, trace.plain, log_weight, inner)


def _worst(gap: Real) -> float:
    """The largest of some errors; 0/0 counts as none, no number at all as infinite."""
    known = gap[~np.isnan(gap)]
    return float(known.max()) if known.size else np.inf


def _unwound(difference: Complex) -> Complex:
    turns = np.round(difference.imag / (2.0 * np.pi))
    return difference - 2j * np.pi * turns


class PutContour:
    """A path through the saddle of one strike, right of the pole at 0."""

    def __init__(
        self, basket: Basket, strikes: Strikes, step: float = 0.1, guess: float | None = None
    ) -> None:
        """Build for the first of `strikes`, with that step along the path; `guess` is where the saddle may be."""
        self.basket, self.k = basket, float(strikes.k[0])
        self.saddle, curvature = put_saddle(basket, self.k, float(strikes.k_minus_1[0]), guess)
        self.width, trace = _best_trace(basket, self.saddle, max(curvature, 0.5), strikes, step)
        self.usable = trace is not None
        if trace is None:
            return
        weight = np.full(len(trace.u), step)
        weight[0] *= 0.5
        self.nodes = _weighted(basket, trace, np.log(weight))

    def __call__(self, strikes: Strikes) -> Estimate:
        """log put(K)."""
        if not self.usable:
            return Estimate.nothing(strikes)
        exponent, load = self.nodes.terms(self.basket.size, strikes)
        scale, parts, slack = _slope_sum(exponent, load, self.nodes)
        sums = _halved(parts)
        found = _estimate(scale, sums[0], slack, trapezoidal_error(*sums))
        return _near(found, strikes, self.k, self.basket.size * self.width)


def _near(estimate: Estimate, strikes: Strikes, k: float, scale: float) -> Estimate:
    """Keep only strikes within a few standard deviations: farther off the nodes do not resolve the phase."""
    return estimate.where(scale * np.abs(strikes.k - k) < 7.0)


def put_saddle(basket: Basket, k: float, k_minus_1: float, guess: float | None = None) -> tuple[float, float]:
    """The c > 0 that minimises T·c·K + Σ log L(c) − 2 log c, and the curvature there, in log c."""
    t = float(basket.size)

    def slope(log_c: float) -> tuple[float, float]:
        c = float(np.exp(log_c))
        mean, gap, variance = basket.tilted(c)
        gradient = (t * c * k - mean if k < 0.5 else t * c * k_minus_1 + gap) - 2.0
        return gradient, gradient + 2.0 + variance

    low, high = float(np.log(2.0 / t) - np.log(k)), _LARGEST_LOG_SADDLE  # the mean is not negative
    if guess is None:  # as if S were Gaussian: c·(T(K−1) + c·variance) = 2
        variance = sum(n * np.expm1(min(1.0 / sd**2, 300.0)) for n, sd in basket.kinds)
        b = t * k_minus_1
        root = np.sqrt(b * b + 8.0 * variance)
        guess = (root - b) / (2.0 * variance) if b < 0 else 4.0 / (root + b)
    x = float(np.clip(np.log(guess), low, high))
    curvature = 1.0
    for _ in range(80):
        gradient, curvature = slope(x)
        if gradient > 0:
            high = x
        else:
            low = x
        if abs(gradient) < 0.02 * np.sqrt(max(curvature, 0.5)) or high - low < 1e-3:
            break
        step = x - np.clip(gradient / max(curvature, 1e-3), -4.0, 4.0)
        x = step if low < step < high else 0.5 * (low + high)
    return float(np.exp(x)), curvature


class CutLattice:
    """Nodes log r = j·h on the cut itself, for the call while it needs no lift; shared by all strikes."""

    def __init__(self, basket: Basket, log_r: Real) -> None:
        """Take evenly spaced `log_r` as nodes."""
        self.basket, self.log_r, t = basket, log_r, float(basket.size)
        step = (log_r[-1] - log_r[0]) / (len(log_r) - 1)
        self.real, self.log_phase, self.plain, _ = basket.on_cut(self.log_r)
        self.log_base = self.real - self.log_r + np.log(step / (np.pi * t))
        with np.errstate(divide="ignore", under="ignore"):
            phase = np.exp(self.log_phase)
            small = phase < 1e-9
            sine = np.sin(np.where(small, 0.0, phase))
            self.log_sine = np.where(small, self.log_phase, np.log(np.abs(sine)))
            self.sign = np.where(small, 1.0, np.sign(sine))
        probe = slice(0, None, max(1, len(self.log_r) // 8))
        finer = basket.on_cut(self.log_r[probe], 1.6)
        with np.errstate(divide="ignore", invalid="ignore"):
            gap_real = np.abs(finer[0] / self.real[probe] - 1.0)
            gap_phase = np.abs(finer[1] - self.log_phase[probe])
        self.inner = _worst(gap_real)
        self.inner_phase = _worst(gap_phase)

    @classmethod
    def covering(cls, basket: Basket, strikes: Strikes, step: float = 0.15625) -> CutLattice:
        """All that the given strikes (K > 1) need."""
        s, t = 1.0 / basket.smallest_sigma, float(basket.size)
        least = float(strikes.k_minus_1.min())
        # The integrand e^{−Tr(K−1)} has gone, or the exponent passed its minimum near r = (K−1)/Var Z, at the top …
        variance = float(np.expm1(min(s * s, 300.0)))
        most = float(strikes.k_minus_1.max())
        top = max(np.log(4000.0 / t) - np.log(least), np.log(3.0 / variance) + np.log(most))
        top = min(float(top), basket.largest_log_r)
        # … and the log-normal tail of the phase, Gaussian in log r with mean −s²/2 and deviation s, at the bottom.
        lowest_peak = min(-float(np.log(t) + np.log(strikes.k.max())), top, -0.5 * s * s)
        bottom = lowest_peak - 9.1 * s - 4.0
        return cls(
            basket, step * np.arange(np.floor(bottom / step), np.floor(top / step) + 1.0, dtype=np.float64)
        )

    def zoomed(self, strikes: Strikes, count: int = 200) -> CutLattice:
        """A finer lattice over the stretch that matters for the first of `strikes`."""
        modulus, _ = self.exponents(strikes[:1])
        signed = (modulus + self.log_sine[None, :])[0]
        gone = modulus[0] < np.maximum.accumulate(signed) - _DROP
        last = int(gone.argmax()) if gone.any() else len(gone) - 1
        first = int((signed > signed[: last + 1].max() - _DROP).argmax())
        low, high = self.log_r[max(first - 1, 0)], self.log_r[min(last + 1, len(gone) - 1)]
        return CutLattice(self.basket, np.linspace(low, high, count))

    def exponents(self, strikes: Strikes) -> tuple[Real, Real]:
        """Real exponent of the integrand's modulus (strikes × nodes) and its rounding load."""
        bins = self.basket.size
        drift = -_drift(bins, strikes, self.plain, _scaled(bins, self.log_r))
        return drift + self.log_base[None, :], np.abs(drift) + np.abs(self.real)[None, :]

    def __call__(self, strikes: Strikes) -> Estimate:
        """log call(K)."""
        return self.explore(strikes)[0]

    def explore(self, strikes: Strikes) -> tuple[Estimate, Flags, Real]:
        """log call(K), for each strike whether a finer lattice would help, and at which log r to leave the cut."""
        modulus, load = self.exponents(strikes)
        signed = modulus + self.log_sine[None, :]
        so_far = np.maximum.accumulate(signed, axis=1)
        gone = modulus < so_far - _DROP
        ends = gone.any(axis=1)
        last = np.where(ends, gone.argmax(axis=1), len(self.log_r))
        keep = np.arange(len(self.log_r))[None, :] < last[:, None]
        load = np.where(keep, load, 0.0)  # beyond it may be infinite, and nothing times that is not a number
        scale = np.where(keep, signed, -np.inf).max(axis=1)
        size = np.where(keep, np.exp(np.minimum(signed - scale[:, None], 60.0)), 0.0)
        parts = size * self.sign[None, :]
        sums = _halved(parts)
        total = sums[0]
        # an error in the phase φ moves sin φ by φ·cos φ relative to sin φ, at most by the modulus times φ
        swing = np.where(
            keep, np.exp(np.minimum(modulus - scale[:, None] + np.minimum(self.log_phase, 700.0), 60.0)), 0
        )
        slack = (size * (_EPS * (16.0 + 4.0 * load) + 4.0 * self.inner * np.abs(self.real)[None, :])).sum(
            axis=1
        )
        slack += (swing * (_EPS * 16.0 + 4.0 * self.inner_phase)).sum(axis=1)
        estimate = _estimate(scale, total, slack, trapezoidal_error(*sums))
        with np.errstate(divide="ignore", invalid="ignore"):
            cut_off = (np.exp(-_DROP + 3.0) + 16.0 * size[:, 0]) / np.abs(total)
        estimate = Estimate(estimate.log, estimate.error + cut_off, estimate.rough + cut_off).where(
            np.asarray(ends)
        )
        # leave at the first minimum of the exponent that is followed by a rise, or where the sine starts to oscillate
        exponent = modulus + self.log_r[None, :]
        lowest = np.minimum.accumulate(exponent, axis=1)
        risen = exponent > lowest + 0.5
        before = np.where(risen.any(axis=1), risen.argmax(axis=1), len(self.log_r))
        before = np.minimum(before, max(int((self.log_phase < 0.0).sum()), 1))
        ahead = np.arange(len(self.log_r))[None, :] < before[:, None]
        calm = ends & (self.log_phase[np.minimum(last, len(self.log_r) - 1)] < 2.0)
        return estimate, calm, self.log_r[np.argmin(np.where(ahead, exponent, np.inf), axis=1)]


class LiftContour:
    """The cut up to r*, then up into the plane: for strikes whose integrand on the cut falls and rises again."""

    def __init__(
        self, basket: Basket, strikes: Strikes, log_r: float, lattice: CutLattice, fineness: float = 1.0
    ) -> None:
        """Build for the first of `strikes`, leaving the cut near exp(log_r), with `fineness` times as many panels."""
        self.basket = basket
        log_r = min(log_r, basket.largest_log_r)  # beyond, there is no cut to follow
        near = np.linspace(log_r - 0.3, min(log_r + 0.3, basket.largest_log_r), 9)
        real, _, plain, _ = basket.on_cut(near)
        g = real - _drift(basket.size, strikes[:1], plain, _scaled(basket.size, near))[0]
        log_r = float(near[int(np.argmin(g))])
        step = near[1] - near[0]
        curvature = float(np.max(np.diff(g, 2)) / step**2)
        r = float(np.exp(log_r))
        self.k = float(strikes.k[0])
        self.width, trace = _best_trace(basket, -r, max(curvature, 1.0), strikes, 0.25)
        # the part on the cut that matters
        modulus, _ = lattice.exponents(strikes[:1])
        signed = np.where(lattice.log_r < log_r, (modulus + lattice.log_sine[None, :])[0], -np.inf)
        significant = lattice.log_r[signed > np.nanmax(signed) - _DROP]
        self.usable = trace is not None and len(significant) > 0
        if trace is None or not self.usable:
            return
        reach = float(trace.u[-1])
        panels = int(np.ceil(reach / 0.5 * fineness))
        self.fine = self._rule(trace.path, reach, panels, _FINE_X, _FINE_W)
        self.rough = self._rule(trace.path, reach, panels, _COARSE_X, _COARSE_W)
        # on the cut, panels no wider than the integrand's scale at r*
        bottom = min(float(significant[0]) - 1.5, log_r - 0.5)
        width = min(0.8, 2.5 / np.sqrt(max(curvature, 1.0)))
        edges = [log_r]
        while edges[-1] > bottom:
            edges.append(edges[-1] - min(width * 1.3 ** ((len(edges) - 1) / fineness), 0.8) / fineness)
        cuts = np.array(edges[::-1])
        self.cut_fine = self._cut_rule(cuts, _FINE_X, _FINE_W)
        self.cut_rough = self._cut_rule(cuts, _COARSE_X, _COARSE_W)

    def _rule(self, path: Path, reach: float, panels: int, x: Real, w: Real) -> Nodes:
        u = (reach / panels * (np.arange(panels)[:, None] + 0.5 * (x[None, :] + 1.0))).ravel()
        omega, _ = path(u)
        trace = Trace(path, u, omega, *self.basket.exponent(omega), rise=0.0)
        log_du = np.log(np.tile(0.5 * w * reach / panels, panels))
        return _weighted(self.basket, trace, log_du, probes=0 if x is _COARSE_X else 7)

    def _cut_rule(self, edges: Real, x: Real, w: Real) -> tuple[Real, ...]:
        half = 0.5 * np.diff(edges)
        log_r = (edges[:-1, None] + half[:, None] * (x[None, :] + 1.0)).ravel()
        log_w = np.log((half[:, None] * w[None, :]).ravel())
        real, log_phase, plain, error = self.basket.on_cut(log_r)
        return log_r, log_w - log_r - np.log(np.pi * self.basket.size), real, log_phase, plain, error

    def _cut_sum(self, rule: tuple[Real, ...], strikes: Strikes, scale: Real) -> tuple[Real, Real]:
        log_r, log_w, real, log_phase, plain, phase_error = rule
        drift = -_drift(self.basket.size, strikes, plain, _scaled(self.basket.size, log_r))
        phase = np.exp(np.minimum(log_phase, 700.0))
        small = phase < 1e-9
        log_size = drift + (log_w + real)[None, :] - scale[:, None]
        with np.errstate(under="ignore"):
            parts = np.where(
                small[None, :],
                np.exp(np.minimum(log_size + log_phase[None, :], 600.0)),
                np.exp(np.minimum(log_size, 600.0)) * np.sin(np.where(small, 0.0, phase))[None, :],
            )
            turned = np.minimum(log_size + np.minimum(log_phase, 700.0)[None, :], 600.0)
            slack = np.abs(parts) * 1e-13 + np.exp(turned) * phase_error[None, :]
            slack += (
                np.exp(np.minimum(log_size + np.minimum(log_phase, 0.0)[None, :], 600.0))
                * _EPS
                * (16.0 + 4.0 * np.abs(drift) + 4.0 * np.abs(real)[None, :])
            )
        below = np.abs(parts[:, : len(_COARSE_X)]).sum(axis=1)  # as much as the lowest panel may lie below it
        return parts.sum(axis=1), slack.sum(axis=1) + below

    def __call__(self, strikes: Strikes) -> Estimate:
        """log call(K)."""
        if not self.usable:
            return Estimate.nothing(strikes)
        exponent, load = self.fine.terms(self.basket.size, strikes)
        scale, parts, slack = _slope_sum(exponent, load, self.fine)
        exponent, load = self.rough.terms(self.basket.size, strikes)
        rough_scale, rough_parts, _ = _slope_sum(exponent, load, self.rough)
        rough = rough_parts.sum(axis=1) * np.exp(rough_scale - scale)
        on_cut, cut_slack = self._cut_sum(self.cut_fine, strikes, scale)
        on_cut_rough, _ = self._cut_sum(self.cut_rough, strikes, scale)
        total = parts.sum(axis=1) + on_cut
        found = _estimate(scale, total, slack + cut_slack, gauss_error(total, rough + on_cut_rough))
        return _near(found, strikes, self.k, self.basket.size * self.width)
