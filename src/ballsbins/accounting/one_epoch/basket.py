"""The privacy loss variable S = (Z₁ + … + Z_T)/T, whose bins may be of several kinds.

One epoch has T bins of one kind. If a run with fixed bins stops inside an epoch, some bins were visited once more
than the others. They carry less noise, so there are two kinds of bins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import lambertw

from ballsbins.accounting.one_epoch import cut
from ballsbins.accounting.one_epoch import transform as laplace
from ballsbins.accounting.one_epoch.quadrature import Complex, Flags, Real, second_remainder, worst
from ballsbins.accounting.one_epoch.transform import CENTRED, LIGHT_TAIL, REACH, ROOT_TAU, spread_of

FINER = 1.6  # a probe uses this many times the nodes (B6): for a geometric rule, the error to the power 1.6
_PROBES = 8  # points of the cut at which its values are computed again (B6)
# `real_axis`: a relative error of L of about e⁻²⁴ = 4·10⁻¹¹, more if c is large. This is good enough to choose a
# contour, but it is not a bound.
_AXIS_ERROR, _AXIS_STRIP = 24.0, 8.0
_AXIS_GONE = 60.0  # value of cZ from which e^{−cZ} is negligible
_LARGEST_ARGUMENT = 1e300  # largest argument of W₀: just below the largest double
_LARGEST_LOG_Y = 300.0  # the square of e³⁰⁰ is still a double


@dataclass(frozen=True)
class Basket:
    """The bins of a run; `kinds` lists (number of bins, noise multiplier)."""

    kinds: tuple[tuple[int, float], ...]

    @property
    def size(self) -> int:
        """T, the total number of bins."""
        return sum(count for count, _ in self.kinds)

    @property
    def largest_log_r(self) -> float:
        """The largest log r up to which the cut may be followed."""
        return min(cut.largest_log_r(sigma) for _, sigma in self.kinds)

    @property
    def smallest_sigma(self) -> float:
        """The noise multiplier of the heaviest tail."""
        return min(sigma for _, sigma in self.kinds)

    @property
    def largest_sigma(self) -> float:
        """The noise multiplier of the lightest tail."""
        return max(sigma for _, sigma in self.kinds)

    def exponent(self, omega: Complex, refine: float = 1.0) -> tuple[Complex, Real]:
        """Return Σ count·log L, centred where that is exact, and the number of bins that are not centred, at each ω.

        The exponent of the inversion integral is then ω·(T(K−1) + plain) + first result, where `plain` is the second.
        """
        total = np.zeros(omega.shape, dtype=complex)
        plain = np.zeros(omega.shape)
        for count, sigma in self.kinds:
            part = laplace.log_transform(omega, sigma, refine)
            total += count * part.value
            plain += np.where(part.centred, 0.0, float(count))
        return total, plain

    def on_cut(self, log_r: Real) -> tuple[Real, Real, Real]:
        """Return `exponent` at −r + i0: real part, log of the phase (turning downwards) and number of plain bins."""
        return self._on_cut([cut.Way(log_r, sigma) for _, sigma in self.kinds], slice(None), 1.0)

    def checked_on_cut(self, log_r: Real, many: int | None = None) -> tuple[Real, Real, Real, float, float]:
        """Return the same as `on_cut`, and the relative errors of the real part and of the phase.

        The errors come from computing some of the first `many` points again, with more nodes (B6).
        """
        ways = [cut.Way(log_r, sigma) for _, sigma in self.kinds]
        real, log_phase, plain = self._on_cut(ways, slice(None), 1.0)
        many = many or len(log_r)
        some = slice(0, many, max(1, many // _PROBES))
        finer_real, finer_phase, _ = self._on_cut(ways, some, FINER)
        with np.errstate(divide="ignore", invalid="ignore"):
            errors = np.abs(finer_real / real[some] - 1.0), np.abs(finer_phase - log_phase[some])
        return real, log_phase, plain, worst(errors[0]), worst(errors[1])

    def _on_cut(self, ways: Sequence[cut.Way], rows: slice, refine: float) -> tuple[Real, Real, Real]:
        parts = [way.values(rows, refine) for way in ways]
        if len(parts) == 1:
            part, count = parts[0], float(self.size)
            return count * part.real, np.log(count) + part.log_phase, np.where(part.centred, 0.0, count)
        counts = [float(count) for count, _ in self.kinds]
        real = np.sum([n * part.real for n, part in zip(counts, parts, strict=True)], axis=0)
        log_phase = np.logaddexp.reduce(
            [np.log(n) + part.log_phase for n, part in zip(counts, parts, strict=True)]
        )
        plain = np.sum(
            [np.where(part.centred, 0.0, n) for n, part in zip(counts, parts, strict=True)], axis=0
        )
        return real, log_phase, plain

    def on_axis(self, c: Real) -> tuple[Real, Real, Real, Real, Real]:
        """Return `exponent` at real c > 0, and mean, cT − mean and variance of cTS, tilted by e^{−cTS}."""
        total = np.zeros((5, len(c)))
        for count, sigma in self.kinds:
            transform, centred, *moments = real_axis(c, sigma)
            total += count * np.stack([transform, ~centred, *moments])
        transform, plain, mean, gap, variance = total
        return transform, plain, mean, gap, variance


def real_axis(c: Real, sigma: float) -> tuple[Real, Flags, Real, Real, Real]:
    """Return log L (+ c where centred), whether centred, mean of cZ, c − mean and variance of cZ at real c > 0.

    Mean and variance are taken under the density tilted by e^{−cZ}: they are the derivatives of log L in log c. The
    mean and its distance from c are both returned, because in doubles neither can be computed from the other. The
    relative error of L is about 10⁻¹⁰, and up to 10⁻³·|log L| if c is so large that the integrand is narrower than
    the step. That is good enough to place a contour.
    """
    s = 1.0 / sigma
    x1 = -sigma * lambertw(np.minimum(c * s * s * np.exp(-0.5 * s * s), _LARGEST_ARGUMENT)).real
    a = min(_AXIS_STRIP, 0.5 * np.pi / s)
    step = 2.0 * np.pi * a / (_AXIS_ERROR + 0.5 * a * a)
    centred = np.asarray(c * spread_of(s) < CENTRED if s < LIGHT_TAIL else np.zeros(c.shape, dtype=bool))
    found = np.empty((4, len(c)))
    # integrate from below the saddle to above it, or as far as Z²φ has mass that e^{−cZ} does not remove
    top = np.minimum(2.0 * s + REACH, (np.log(_AXIS_GONE) - np.log(c)) / s + 0.5 * s)
    low, high = np.minimum(x1, 0.0) - REACH, np.maximum(x1 + REACH, top)
    if centred.any():
        x = np.arange(float(low[centred].min()), max(REACH + 2.0 * s, float(high[centred].max())), step)
        density = np.exp(-0.5 * x * x) * step / ROOT_TAU
        away = c[centred, None] * np.expm1(s * x - 0.5 * s * s)
        fall = np.expm1(-away)
        excess = np.vecdot(second_remainder(away), density)
        gap = -np.vecdot(away * fall, density) / (1.0 + excess)
        square = np.vecdot(away * away * (1.0 + fall), density) / (1.0 + excess)
        found[:, centred] = np.log1p(excess), c[centred] - gap, gap, square - gap * gap
    rows = ~centred
    if rows.any():
        low = x1[rows] - REACH
        x = low[:, None] + step * np.arange(int(np.ceil(float((high[rows] - low).max()) / step)) + 1)
        y = np.exp(np.minimum(np.log(c[rows, None]) + (s * x - 0.5 * s * s), _LARGEST_LOG_Y))
        exponent = -y - 0.5 * x * x
        peak = exponent.max(axis=1)
        weight = np.exp(exponent - peak[:, None])
        total = weight.sum(axis=1)
        mean = (weight * y).sum(axis=1) / total
        square = (weight * (y - mean[:, None]) ** 2).sum(axis=1) / total
        found[:, rows] = peak + np.log(total * step / ROOT_TAU), mean, c[rows] - mean, square
    return found[0], centred, found[1], found[2], found[3]
