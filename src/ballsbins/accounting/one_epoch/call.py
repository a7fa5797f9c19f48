"""Compute the call (direction "remove"): follow the branch cut, and leave it where the integrand would rise again.

The nodes on the cut are a `CutLattice`; a path that leaves the cut is a `LiftContour`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ballsbins.accounting.curve import U
from ballsbins.accounting.one_epoch.basket import Basket
from ballsbins.accounting.one_epoch.contours import FARTHEST, PROBES, Path, Trace, best_traces, weighted
from ballsbins.accounting.one_epoch.cut import LINEAR_PHASE
from ballsbins.accounting.one_epoch.quadrature import (
    BEYOND,
    DROP,
    INNER_SAFETY,
    PER_LOAD,
    ROUNDINGS,
    Estimate,
    Flags,
    Nodes,
    Real,
    Strikes,
    drift_of,
    estimate_of,
    gauss_error,
    halved,
    scaled_by,
    slope_sum,
    trapezoidal_error,
)
from ballsbins.accounting.one_epoch.transform import LARGEST_EXPONENT, SAFE_EXPONENT

# B6, B8, … are the numbered bounds of docs/derivation.md. A poor choice of the other numbers only costs time: the
# stated error is computed from the nodes themselves, and if it is too large, other nodes are tried.
_FINE_X, _FINE_W = np.polynomial.legendre.leggauss(20)  # the error comes from the distance of two rules (B10)
_COARSE_X, _COARSE_W = np.polynomial.legendre.leggauss(12)

# A lattice on the cut.
_STEEP, _STEEP_STEP, _USUAL_STEP = 2.2, 0.18, 0.125  # s from which a wider step suffices; if not, see `finer`
_PAST_MINIMUM = 3.0  # follow the cut to 3 times the r of the exponent's minimum, (K − 1)/Var Z: a choice
_MOST_LOG_VARIANCE = 300.0  # largest s² for which Var Z is computed
_TOP_MARGIN, _TOP_SHARE = 40.0, 0.6  # how far e^{−Tr(K−1)} falls beyond DROP; share of x² (exact: 0.5)
_BOTTOM_MARGIN, _BOTTOM_MORE = 8.0, 2.0  # the same at the lower end: e⁻⁴ farther down, and 2 more in log r
_KNEE = 4.0  # this far below the peak, e^{−TrK} is 1 to two digits, so steps may grow
_DEVIATION_STEP, _MOST_GROWTH = 0.5, 20.0  # a step of half a deviation integrates a Gaussian to all digits
_FEWEST = 9  # least number of nodes, so that every fourth gives a sum of three
_CUT_OFF = 3.0  # what lies above the last node is at most e³ times the first term dropped (B8)
_CALM = 2.0  # a finer lattice may help up to this log phase at the end: beyond, the sine oscillates too often
_RISEN = 0.5  # in logs: a smaller increase of the exponent does not count as a rise

# A lift off the cut.
_NEAR, _NEAR_POINTS = 0.3, 9  # search the least exponent within this distance of log r*, at so many points
_TRACE_STEP = 0.25  # step in u to find the end of a path; the nodes of the integral differ
_PANEL = 1.0  # width of a panel in u
_BELOW, _LEAST_CUT = 1.5, 0.5  # in log r: follow the cut this far below what matters, and below r*
_WIDEST, _IN_WIDTHS, _GROWTH = 0.8, 2.5, 1.3  # widest panel on the cut: in log r, in widths at r*; growth
# Far below r* the integrand is a Gaussian in log r with deviation 1/σ, so panels may be wider: their width in units
# of that deviation, and its limit.
_IN_DEVIATIONS, _WIDEST_OF_ALL = 1.5, 2.4
# A reserve on every term of the cut, in addition to its rounding and to the error of L that the probes see (B11). It
# is far below the goal of 10⁻¹⁰, so it decides nothing.
_RESERVE = 1e-13


@dataclass(frozen=True)
class Spacing:
    """log r = p + u − (g−1)·log(1 + e^{−u}): far below the knee p, steps are g = `growth` times as wide as above."""

    knee: float
    growth: float

    def log_r(self, u: Real) -> tuple[Real, Real]:
        """Return log r and its derivative in u."""
        bend = self.growth - 1.0
        return self.knee + u - bend * np.logaddexp(0.0, -u), 1.0 + bend / (
            1.0 + np.exp(np.minimum(u, SAFE_EXPONENT))
        )

    def u(self, log_r: float) -> float:
        """Return the u that belongs to a log r, or a little less."""
        away = log_r - self.knee
        return away if away > 0.0 else away / self.growth


class CutLattice:
    """Nodes on the cut itself, for calls that need no lift; shared by all strikes."""

    def __init__(
        self,
        basket: Basket,
        u: Real,
        spacing: Spacing,
        coarser: CutLattice | None = None,
        *,
        rising: bool = False,
    ) -> None:
        """Take evenly spaced `u` as nodes; every second one may be known from a coarser lattice.

        `rising` states that the lattice reaches the point where any integrand rises again.
        """
        self.basket, self.u, self.spacing, self.rising, t = basket, u, spacing, rising, float(basket.size)
        self.log_r, slope = spacing.log_r(u)
        self.log_r[-1] = min(self.log_r[-1], basket.largest_log_r)  # rounding may have moved it beyond
        if coarser is None:
            found = basket.checked_on_cut(self.log_r)
            self.real, self.log_phase, self.plain, self.inner, self.inner_phase = found
        else:
            values = np.empty((3, len(u)))
            values[:, ::2] = coarser.real, coarser.log_phase, coarser.plain
            values[:, 1::2] = basket.on_cut(self.log_r[1::2])
            self.real, self.log_phase, self.plain = values
            self.inner, self.inner_phase = coarser.inner, coarser.inner_phase
        self.log_base = self.real - self.log_r + np.log(slope * ((u[1] - u[0]) / (np.pi * t)))
        self.scaled = scaled_by(basket.size, self.log_r)
        phase = np.exp(self.log_phase)
        small = phase < LINEAR_PHASE
        sine = np.sin(np.where(small, 0.0, phase))
        self.log_sine = np.where(small, self.log_phase, np.log(np.abs(sine)))
        self.sign = np.where(small, 1.0, np.sign(sine))
        # φ/|sin φ|: a relative error of the phase changes sin φ, relative to sin φ, by at most this factor times it
        turn = np.minimum(self.log_phase, LARGEST_EXPONENT) - self.log_sine
        self.turn = np.exp(np.minimum(turn, LARGEST_EXPONENT))

    @classmethod
    def covering(
        cls, basket: Basket, strikes: Strikes, step: float | None = None, *, rising: bool = True
    ) -> CutLattice:
        """Build a lattice that covers the given strikes (K > 1).

        With `rising` it also covers the range far out where the integrand may rise again.
        """
        s, t = 1.0 / basket.smallest_sigma, float(basket.size)
        step = step or (_STEEP_STEP if s > _STEEP else _USUAL_STEP)
        least, most = (float(end) for end in (strikes.k_minus_1.min(), strikes.k_minus_1.max()))
        # At the top, the integrand e^{−Tr(K−1)} is negligible compared with δ (one large Z alone contributes
        # e^{−x²/2} to δ, with x as below), or the exponent has passed its minimum near r = (K−1)/Var Z.
        variance = math.expm1(min(s * s, _MOST_LOG_VARIANCE))
        past = min(math.log(_PAST_MINIMUM / variance) + math.log(most), basket.largest_log_r)
        top = past if rising else -math.inf
        for excess in (least, most):
            x = max(math.log1p(t * excess) / s - 0.5 * s, 0.0)
            top = max(top, math.log(DROP + _TOP_MARGIN + _TOP_SHARE * x * x) - math.log(t) - math.log(excess))
        top = min(top, basket.largest_log_r)
        # At the bottom, the phase times 1/r is Gaussian in log r with mean −s²/2 and deviation s. The factor e^{−TrK}
        # cuts it off at the peak, `away` deviations below the mean.
        peak = min(-math.log(t) - math.log(float(strikes.k.max())), top, -0.5 * s * s)
        away = -(peak + 0.5 * s * s) / s
        bottom = peak - s * (math.sqrt(away * away + 2.0 * DROP + _BOTTOM_MARGIN) - away) - _BOTTOM_MORE
        # Below the knee, e^{−TrK} is 1, and steps of half a deviation integrate a Gaussian to all digits.
        spacing = Spacing(peak - _KNEE, min(max(_DEVIATION_STEP * s / step, 1.0), _MOST_GROWTH))
        first, last = spacing.u(bottom), spacing.u(top)
        count = max(math.ceil((last - first) / step) + 1, _FEWEST)
        return cls(basket, np.linspace(first, last, count), spacing, rising=top >= past)

    def finer(self) -> CutLattice:
        """Return the same lattice with half the step."""
        u = np.empty(2 * len(self.u) - 1)
        u[::2], u[1::2] = self.u, 0.5 * (self.u[:-1] + self.u[1:])
        return CutLattice(self.basket, u, self.spacing, self, rising=self.rising)

    def exponents(self, strikes: Strikes) -> tuple[Real, Real]:
        """Return the real exponent of the integrand's modulus (strikes × nodes) and its rounding load."""
        drift = -drift_of(self.basket.size, strikes, self.plain, self.scaled)
        return drift + self.log_base[None, :], np.abs(drift) + np.abs(self.real)[None, :]

    def near(self, strikes: Strikes) -> Flags:
        """Which strikes the lattice may serve: all, because its error estimate decides."""
        return np.ones(strikes.k.shape, dtype=bool)

    def __call__(self, strikes: Strikes) -> Estimate:
        """log call(K)."""
        return self._sum(*self.exponents(strikes))[0]

    def _sum(self, modulus: Real, load: Real) -> tuple[Estimate, Flags]:
        """Return log call(K), and for each strike whether a finer lattice would help."""
        signed = modulus + self.log_sine
        gone = modulus < np.maximum.accumulate(signed, axis=1) - DROP
        ends = gone.any(axis=1)
        last = np.where(ends, gone.argmax(axis=1), len(self.log_r))
        keep = np.arange(len(self.log_r)) < last[:, None]
        # beyond the end a load may be infinite, and 0·∞ would be NaN
        signed, load = np.where(keep, signed, -np.inf), np.where(keep, load, 0.0)
        scale = signed.max(axis=1)
        size = np.exp(signed - scale[:, None])
        parts = size * self.sign
        sums = halved(parts)
        total = sums[0]
        load *= U * PER_LOAD
        load += U * ROUNDINGS + INNER_SAFETY * self.inner * np.abs(self.real)
        load += self.turn * (U * ROUNDINGS + INNER_SAFETY * self.inner_phase)
        slack = np.vecdot(size, load)
        rough = trapezoidal_error(*sums, shifted=4 * parts[:, 1::4].sum(axis=1))
        rough += (np.exp(-DROP + _CUT_OFF) + BEYOND * size[:, 0]) / np.abs(total)  # what was cut off
        calm = ends & (self.log_phase[np.minimum(last, len(self.log_r) - 1)] < _CALM)
        return estimate_of(scale, total, slack, rough).where(np.asarray(ends)), calm

    def explore(self, strikes: Strikes) -> tuple[Estimate, Flags, Real]:
        """Return log call(K), whether a finer lattice would help, and where (log r) to leave the cut, per strike."""
        modulus, load = self.exponents(strikes)
        estimate, calm = self._sum(modulus, load)
        # leave at the first minimum of the exponent before a rise, or where the sine starts to oscillate
        exponent = modulus + self.log_r
        risen = exponent > np.minimum.accumulate(exponent, axis=1) + _RISEN
        before = np.where(risen.any(axis=1), risen.argmax(axis=1), len(self.log_r))
        before = np.minimum(before, max(int((self.log_phase < 0.0).sum()), 1))
        ahead = np.arange(len(self.log_r)) < before[:, None]
        return estimate, calm, self.log_r[np.argmin(np.where(ahead, exponent, np.inf), axis=1)]


class LiftContour:
    """A path along the cut up to r*, then into the plane: for strikes whose integrand on the cut rises again."""

    def __init__(
        self, basket: Basket, strikes: Strikes, log_r: float, lattice: CutLattice, fineness: float = 1.0
    ) -> None:
        """Build for the first of `strikes`, leaving the cut near exp(log_r), with `fineness` times as many panels."""
        self.basket = basket
        log_r = min(log_r, basket.largest_log_r)  # the cut cannot be followed farther
        around = np.linspace(log_r - _NEAR, min(log_r + _NEAR, basket.largest_log_r), _NEAR_POINTS)
        real, _, plain = basket.on_cut(around)
        g = real - drift_of(basket.size, strikes[:1], plain, scaled_by(basket.size, around))[0]
        log_r = float(around[int(np.argmin(g))])
        step = around[1] - around[0]
        curvature = float(np.max(np.diff(g, 2)) / step**2)
        r = float(np.exp(log_r))
        self.k = float(strikes.k[0])
        widths, traces = best_traces(
            basket, np.array([-r]), np.array([max(curvature, 1.0)]), strikes[:1], _TRACE_STEP
        )
        self.width, trace = float(widths[0]), traces[0]
        # the part of the cut that matters
        modulus, _ = lattice.exponents(strikes[:1])
        signed = np.where(lattice.log_r < log_r, (modulus + lattice.log_sine[None, :])[0], -np.inf)
        significant = lattice.log_r[signed > np.nanmax(signed) - DROP]
        self.usable = trace is not None and len(significant) > 0
        if trace is None or not self.usable:
            return
        reach = float(trace.u[-1])
        panels = int(np.ceil(reach / _PANEL * fineness))
        self.fine, self.rough = self._rules(trace.path, reach, panels)
        # on the cut, panels are no wider than the integrand's scale at r*
        bottom = min(float(significant[0]) - _BELOW, log_r - _LEAST_CUT)
        width = min(_WIDEST, _IN_WIDTHS / np.sqrt(max(curvature, 1.0)))
        widest = min(max(_WIDEST, _IN_DEVIATIONS / basket.largest_sigma), _WIDEST_OF_ALL)
        edges = [log_r]
        while edges[-1] > bottom:
            grown = width * _GROWTH ** ((len(edges) - 1) / fineness)
            edges.append(edges[-1] - min(grown, widest) / fineness)
        self.cut_fine, self.cut_rough = self._cut_rules(np.array(edges[::-1]))

    def _rules(self, path: Path, reach: float, panels: int) -> tuple[Nodes, Nodes]:
        """Return the finer and the coarser rule along the path; the transform is computed for both together."""
        nodes = [
            (reach / panels * (np.arange(panels)[:, None] + 0.5 * (x + 1.0))).ravel()
            for x in (_FINE_X, _COARSE_X)
        ]
        u = np.concatenate(nodes)
        omega, slope = path(u)
        log_slope = np.log(slope / omega) - np.log(omega)
        transform, plain = self.basket.exponent(omega)
        found = []
        for rows, w in ((slice(len(nodes[0])), _FINE_W), (slice(len(nodes[0]), None), _COARSE_W)):
            trace = Trace(path, u[rows], omega[rows], transform[rows], plain[rows], log_slope[rows])
            log_du = np.log(np.tile(0.5 * w * reach / panels, panels))
            probes = PROBES if w is _FINE_W else 0
            found += weighted(self.basket, [trace], [log_du], probes=probes)
        return found[0], found[1]

    def _cut_rules(self, edges: Real) -> tuple[tuple[Real, ...], tuple[Real, ...]]:
        """Return the same along the cut; the points computed twice to find the error belong to the finer rule."""
        half = 0.5 * np.diff(edges)
        nodes = [(edges[:-1, None] + half[:, None] * (x + 1.0)).ravel() for x in (_FINE_X, _COARSE_X)]
        log_w = [np.log((half[:, None] * w).ravel()) for w in (_FINE_W, _COARSE_W)]
        many = len(nodes[0])
        *found, self.inner, self.inner_phase = self.basket.checked_on_cut(np.concatenate(nodes), many)
        shift = np.log(np.pi * self.basket.size)
        fine, coarse = (
            (log_r, log_weight - log_r - shift, *(part[rows] for part in found))
            for log_r, log_weight, rows in zip(nodes, log_w, (slice(many), slice(many, None)), strict=True)
        )
        return fine, coarse

    def _cut_sum(self, rule: tuple[Real, ...], strikes: Strikes, scale: Real) -> tuple[Real, Real]:
        log_r, log_w, real, log_phase, plain = rule
        drift = -drift_of(self.basket.size, strikes, plain, scaled_by(self.basket.size, log_r))
        phase = np.exp(np.minimum(log_phase, LARGEST_EXPONENT))
        sine = np.ones_like(phase)
        turns = phase >= LINEAR_PHASE
        sine[turns] = np.sin(phase[turns]) / phase[turns]
        size = np.abs(real)
        # a term is e^{turned}·sin φ/φ, and its rounding is relative to e^{turned}·min(φ, 1)/φ
        turned = drift + (log_w + real + np.minimum(log_phase, LARGEST_EXPONENT)) - scale[:, None]
        with np.errstate(under="ignore"):
            swing = np.exp(np.minimum(turned, SAFE_EXPONENT))
        parts = swing * sine
        rounding = np.abs(drift)
        rounding *= U * PER_LOAD / np.maximum(phase, 1.0)
        rounding += U * (ROUNDINGS + PER_LOAD * size) / np.maximum(phase, 1.0) + (
            np.abs(sine) * (_RESERVE + INNER_SAFETY * self.inner * size) + INNER_SAFETY * self.inner_phase
        )
        rounding *= swing
        # at most as much lies below the lowest panel as in it
        below = np.abs(parts[:, : len(_COARSE_X)]).sum(axis=1)
        return parts.sum(axis=1), rounding.sum(axis=1) + below

    def __call__(self, strikes: Strikes) -> Estimate:
        """log call(K)."""
        if not self.usable:
            return Estimate.nothing(strikes)
        exponent, load = self.fine.terms(self.basket.size, strikes)
        scale, parts, slack = slope_sum(exponent, load, self.fine)
        exponent, load = self.rough.terms(self.basket.size, strikes)
        rough_scale, rough_parts, _ = slope_sum(exponent, load, self.rough)
        rough = rough_parts.sum(axis=1) * np.exp(rough_scale - scale)
        on_cut, cut_slack = self._cut_sum(self.cut_fine, strikes, scale)
        on_cut_rough, _ = self._cut_sum(self.cut_rough, strikes, scale)
        total = parts.sum(axis=1) + on_cut
        found = estimate_of(scale, total, slack + cut_slack, gauss_error(total, rough + on_cut_rough))
        return found.where(self.near(strikes))

    def near(self, strikes: Strikes) -> Flags:
        """Which strikes this path may serve."""
        return np.asarray(
            self.usable & (self.basket.size * self.width * np.abs(strikes.k - self.k) < FARTHEST)
        )
