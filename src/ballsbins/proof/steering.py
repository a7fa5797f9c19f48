"""Where contours go and how fine they are: choices, in doubles. A poor choice costs time; it never proves too much.

`log_laplace` and all below are used to choose; every number that enters a bound is computed again in balls.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import lambertw

_OFFSETS = np.linspace(-16.0, 10.0, 261)


def log_laplace(r: float, sigma2: float) -> float:
    """log L(r) for real r > 0."""
    sigma = math.sqrt(sigma2)
    rho = math.log(r) - 0.5 / sigma2
    w = float(lambertw(math.exp(rho) / sigma2).real) if rho < 600 else rho - math.log(max(rho, 1.0))
    width = 1 / (sigma * math.sqrt(1 + w))
    y = rho - w + width * _OFFSETS
    exponent = -np.exp(np.minimum(y, 700.0)) - sigma2 * (y - rho) ** 2 / 2
    top = float(exponent.max())
    total = float(np.exp(exponent - top).sum()) * 0.1 * width
    return top + math.log(total * sigma / math.sqrt(2 * math.pi))


class Sketch:
    """A sum of independent log-normals, `count` of each σ², in doubles."""

    def __init__(self, groups: Sequence[tuple[int, float]], strike: float, excess: float) -> None:
        """Give the groups, the strike κ, and κ minus the mean of the sum (which κ alone may have lost)."""
        self.groups, self.strike, self.excess = groups, strike, excess
        self.spread = sum(n * v for n, v in groups)  # Σ n σ²

    def log_transform(self, r: float) -> float:
        """log of e^{κr} Π L(r)^n for r > 0; the drift is taken out, so that nothing is lost at many steps."""
        return self.excess * r + sum(n * (log_laplace(r, v) + r) for n, v in self.groups)

    def slope(self, r: float) -> float:
        """κ − E X under the tilted law at r."""
        less = 0.0
        for n, v in self.groups:
            mean = math.exp(log_laplace(r * math.exp(1 / v), v) - log_laplace(r, v))
            less += n * (1 - mean)
        return self.excess + less

    def saddle(self) -> float:
        """Least point of e^{κr} Π L(r)^n / r² on r > 0."""
        low, high = -80.0, 250.0
        for _ in range(60):
            mid = (low + high) / 2
            r = math.exp(mid)
            low, high = (mid, high) if r * self.slope(r) < 2 else (low, mid)
        return math.exp((low + high) / 2)
