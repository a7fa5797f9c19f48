"""The privacy loss variable S = (Z₁ + … + Z_T)/T, possibly of several kinds of bins.

One epoch has T bins of one kind. If a run with fixed bins stops inside an epoch, the bins already visited once more
carry less noise than the others: two kinds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ballsbins.accounting.one_epoch import cut
from ballsbins.accounting.one_epoch import transform as laplace
from ballsbins.accounting.one_epoch.quadrature import worst
from ballsbins.accounting.one_epoch.transform import Complex, Real


@dataclass(frozen=True)
class Basket:
    """`kinds` lists (number of bins, noise multiplier)."""

    kinds: tuple[tuple[int, float], ...]

    @property
    def size(self) -> int:
        """T, the number of all bins."""
        return sum(count for count, _ in self.kinds)

    @property
    def largest_log_r(self) -> float:
        """How far the cut may be followed."""
        return min(cut.largest_log_r(sigma) for _, sigma in self.kinds)

    @property
    def smallest_sigma(self) -> float:
        """The noise multiplier of the heaviest tail."""
        return min(sigma for _, sigma in self.kinds)

    def exponent(self, omega: Complex, refine: float = 1.0) -> tuple[Complex, Real]:
        """Σ count·(log L, centred where that is exact) and the number of bins that are not centred, at each ω.

        The exponent of the inversion integral is then ω·(T(K−1) + plain) + first result.
        """
        total = np.zeros(omega.shape, dtype=complex)
        plain = np.zeros(omega.shape)
        for count, sigma in self.kinds:
            part = laplace.log_transform(omega, sigma, refine)
            total += count * part.value
            plain += np.where(part.centred, 0.0, float(count))
        return total, plain

    def on_cut(self, log_r: Real, refine: float = 1.0) -> tuple[Real, Real, Real]:
        """As `exponent` at −r + i0: real part, log of the phase (turning downwards) and plain bins."""
        real, plain = np.zeros_like(log_r), np.zeros_like(log_r)
        log_phase = np.full_like(log_r, -np.inf)
        for count, sigma in self.kinds:
            part = cut.on_cut(log_r, sigma, refine)
            real += count * part.real
            log_phase = np.logaddexp(log_phase, np.log(count) + part.log_phase)
            plain += np.where(part.centred, 0.0, float(count))
        return real, log_phase, plain

    def cut_errors(self, log_r: Real, real: Real, log_phase: Real, probes: int = 8) -> tuple[float, float]:
        """Relative errors of the real part and of the phase, from computing some points with more nodes."""
        some = slice(0, None, max(1, len(log_r) // probes))
        finer_real, finer_phase, _ = self.on_cut(log_r[some], 1.6)
        with np.errstate(divide="ignore", invalid="ignore"):
            return worst(np.abs(finer_real / real[some] - 1.0)), worst(np.abs(finer_phase - log_phase[some]))

    def on_axis(self, c: Real) -> tuple[Real, Real, Real, Real, Real]:
        """As `exponent` at real c > 0; and mean, cT − mean and variance of cTS, tilted by e^{−cTS}."""
        total = np.zeros((5, len(c)))
        for count, sigma in self.kinds:
            transform, centred, *moments = laplace.real_axis(c, sigma)
            total += count * np.stack([transform, ~centred, *moments])
        transform, plain, mean, gap, variance = total
        return transform, plain, mean, gap, variance
