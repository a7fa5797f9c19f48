"""The privacy loss variable S = (Z₁ + … + Z_T)/T, possibly of several kinds of bins.

One epoch has T bins of one kind. If a run with fixed bins stops inside an epoch, the bins already visited once more
carry less noise than the others: two kinds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ballsbins.accounting.balls_and_bins import cut, laplace
from ballsbins.accounting.balls_and_bins.laplace import Complex, Real


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

    def on_cut(self, log_r: Real, refine: float = 1.0) -> tuple[Real, Real, Real, Real]:
        """As `exponent` at −r + i0: real part, log of the phase (turning downwards), plain bins, relative error."""
        real, plain, error = np.zeros_like(log_r), np.zeros_like(log_r), np.zeros_like(log_r)
        log_phase = np.full_like(log_r, -np.inf)
        for count, sigma in self.kinds:
            part = cut.on_cut(log_r, sigma, refine)
            real += count * part.real
            log_phase = np.logaddexp(log_phase, np.log(count) + part.log_phase)
            plain += np.where(part.centred, 0.0, float(count))
            error = np.maximum(error, part.error)
        return real, log_phase, plain, error

    def tilted(self, c: float) -> tuple[float, float, float]:
        """Mean, c·T − mean and variance of c·T·S under the density tilted by e^{−cTS}, as sums over the bins."""
        total = np.zeros(3)
        for count, sigma in self.kinds:
            total += count * np.array(laplace.real_axis(c, sigma))
        return float(total[0]), float(total[1]), float(total[2])
