"""The call (direction "remove"): along the branch cut, and off it where the integrand would rise again."""

from __future__ import annotations

import numpy as np

from ballsbins.accounting.balls_and_bins.basket import Basket
from ballsbins.accounting.balls_and_bins.laplace import Flags, Real
from ballsbins.accounting.balls_and_bins.path import Path, Trace, best_trace, near_only, weighted, worst
from ballsbins.accounting.balls_and_bins.sums import (
    DROP,
    EPS,
    Estimate,
    Nodes,
    Strikes,
    drift_of,
    estimate_of,
    gauss_error,
    halved,
    scaled_by,
    slope_sum,
    trapezoidal_error,
)

_FINE_X, _FINE_W = np.polynomial.legendre.leggauss(20)
_COARSE_X, _COARSE_W = np.polynomial.legendre.leggauss(12)


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
        self.inner = worst(gap_real)
        self.inner_phase = worst(gap_phase)

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
        gone = modulus[0] < np.maximum.accumulate(signed) - DROP
        last = int(gone.argmax()) if gone.any() else len(gone) - 1
        first = int((signed > signed[: last + 1].max() - DROP).argmax())
        low, high = self.log_r[max(first - 1, 0)], self.log_r[min(last + 1, len(gone) - 1)]
        return CutLattice(self.basket, np.linspace(low, high, count))

    def exponents(self, strikes: Strikes) -> tuple[Real, Real]:
        """Real exponent of the integrand's modulus (strikes × nodes) and its rounding load."""
        bins = self.basket.size
        drift = -drift_of(bins, strikes, self.plain, scaled_by(bins, self.log_r))
        return drift + self.log_base[None, :], np.abs(drift) + np.abs(self.real)[None, :]

    def __call__(self, strikes: Strikes) -> Estimate:
        """log call(K)."""
        return self.explore(strikes)[0]

    def explore(self, strikes: Strikes) -> tuple[Estimate, Flags, Real]:
        """log call(K), for each strike whether a finer lattice would help, and at which log r to leave the cut."""
        modulus, load = self.exponents(strikes)
        signed = modulus + self.log_sine[None, :]
        so_far = np.maximum.accumulate(signed, axis=1)
        gone = modulus < so_far - DROP
        ends = gone.any(axis=1)
        last = np.where(ends, gone.argmax(axis=1), len(self.log_r))
        keep = np.arange(len(self.log_r))[None, :] < last[:, None]
        load = np.where(keep, load, 0.0)  # beyond it may be infinite, and nothing times that is not a number
        scale = np.where(keep, signed, -np.inf).max(axis=1)
        size = np.where(keep, np.exp(np.minimum(signed - scale[:, None], 60.0)), 0.0)
        parts = size * self.sign[None, :]
        sums = halved(parts)
        total = sums[0]
        # an error in the phase φ moves sin φ by φ·cos φ relative to sin φ, at most by the modulus times φ
        swing = np.where(
            keep, np.exp(np.minimum(modulus - scale[:, None] + np.minimum(self.log_phase, 700.0), 60.0)), 0
        )
        slack = (size * (EPS * (16.0 + 4.0 * load) + 4.0 * self.inner * np.abs(self.real)[None, :])).sum(
            axis=1
        )
        slack += (swing * (EPS * 16.0 + 4.0 * self.inner_phase)).sum(axis=1)
        estimate = estimate_of(scale, total, slack, trapezoidal_error(*sums))
        with np.errstate(divide="ignore", invalid="ignore"):
            cut_off = (np.exp(-DROP + 3.0) + 16.0 * size[:, 0]) / np.abs(total)
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
        g = real - drift_of(basket.size, strikes[:1], plain, scaled_by(basket.size, near))[0]
        log_r = float(near[int(np.argmin(g))])
        step = near[1] - near[0]
        curvature = float(np.max(np.diff(g, 2)) / step**2)
        r = float(np.exp(log_r))
        self.k = float(strikes.k[0])
        self.width, trace = best_trace(basket, -r, max(curvature, 1.0), strikes, 0.25)
        # the part on the cut that matters
        modulus, _ = lattice.exponents(strikes[:1])
        signed = np.where(lattice.log_r < log_r, (modulus + lattice.log_sine[None, :])[0], -np.inf)
        significant = lattice.log_r[signed > np.nanmax(signed) - DROP]
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
        return weighted(self.basket, trace, log_du, probes=0 if x is _COARSE_X else 7)

    def _cut_rule(self, edges: Real, x: Real, w: Real) -> tuple[Real, ...]:
        half = 0.5 * np.diff(edges)
        log_r = (edges[:-1, None] + half[:, None] * (x[None, :] + 1.0)).ravel()
        log_w = np.log((half[:, None] * w[None, :]).ravel())
        real, log_phase, plain, error = self.basket.on_cut(log_r)
        return log_r, log_w - log_r - np.log(np.pi * self.basket.size), real, log_phase, plain, error

    def _cut_sum(self, rule: tuple[Real, ...], strikes: Strikes, scale: Real) -> tuple[Real, Real]:
        log_r, log_w, real, log_phase, plain, phase_error = rule
        drift = -drift_of(self.basket.size, strikes, plain, scaled_by(self.basket.size, log_r))
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
                * EPS
                * (16.0 + 4.0 * np.abs(drift) + 4.0 * np.abs(real)[None, :])
            )
        below = np.abs(parts[:, : len(_COARSE_X)]).sum(axis=1)  # as much as the lowest panel may lie below it
        return parts.sum(axis=1), slack.sum(axis=1) + below

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
        return near_only(found, strikes, self.k, self.basket.size * self.width)
