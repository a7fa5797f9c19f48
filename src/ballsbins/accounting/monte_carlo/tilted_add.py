"""Past the paper, `add`: draw x from G with dG/dQ = S^{−β}/E_Q[S^{−β}], for any real β > 0 and number of epochs.

The loss of (Q, P) is L = −log S, so dQ/dG = E_Q[S^{−β}]·e^{−βL}: τ = β, κ = log E_Q[S^{−β}] in the words of `pairs`.
With S^{−β} = 1/Γ(β) ∫ θ^{β−1} e^{−θS} dθ and L(ω) = E e^{−ωZ},

    G is a mixture: θ has density ∝ θ^{β−1} L(θ/T)^T, and given θ the coordinates are independent, with density
    ∝ e^{−ωZ(g)} φ(g), ω = θ/T.

θ: the density of u = log θ is tabulated and sampled as a polygon, whose relative distance η from the true one
changes the weights by no more than that: the error of κ. (Outside of the table are e^{−45} of the mass.)
g: −ωZ(g) is concave, so its tangent at −a, a = s·ω·Z(−a) (a = W₀(ωs²e^{−s²/2})/s), makes N(−a, 1) an envelope;
a draw is accepted with probability exp(−ω(Z(g) − Z(−a)) + a·(g + a)), redrawn otherwise.

L is integrated here by the trapezoidal rule, apart from the exact accountant, which this is to check.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import lambertw

from ballsbins.accounting.curve import Array
from ballsbins.accounting.monte_carlo.pairs import Losses, log_range

_CELLS = 2**15
_DEPTH = 45.0
_SLAB = 2**18


def log_laplace(omega: Array, s: float) -> Array:
    """Log E e^{−ωZ} for ω ≥ 0, in a form that stays exact when it is as small as 1/T."""
    g = np.linspace(-12.0, 12.0 + 2.0 * s, 4000 + 4 * math.ceil(400 * s))
    weight = np.exp(-0.5 * g * g) * (g[1] - g[0]) / math.sqrt(2.0 * math.pi)
    z = np.exp(s * g - 0.5 * s * s)
    found = np.empty_like(omega)
    for i, w in enumerate(omega):
        small = float(np.expm1(-w * z) @ weight)
        found[i] = math.log1p(small) if small > -0.9 else math.log(float(np.exp(-w * z) @ weight) + 1e-320)
    return found


class _Scale:
    """The law of u = log θ, for all β from one table of log L."""

    def __init__(self, s: float, steps: int) -> None:
        self.s, self.steps = s, steps
        self.u = np.linspace(-30.0, 60.0, 1801)
        self.log_power = steps * log_laplace(np.exp(self.u) / steps, s)

    def log_density(self, u: Array, beta: float) -> Array:
        """Log of θ^β L(θ/T)^T, not normalised; log L is interpolated by cubics, checked against itself."""
        from scipy.interpolate import CubicSpline

        return np.asarray(beta * u + CubicSpline(self.u, self.log_power)(u))

    def window(self, beta: float) -> tuple[float, float]:
        rough = beta * self.u + self.log_power
        inside = np.flatnonzero(rough > rough.max() - _DEPTH)
        return float(self.u[max(inside[0] - 1, 0)]), float(self.u[min(inside[-1] + 1, self.u.size - 1)])

    def log_moment(self, beta: float) -> float:
        """Log E_Q[S^{−β}] = log(∫ θ^β L^T du / Γ(β))."""
        u = np.linspace(*self.window(beta), 2001)
        f = self.log_density(u, beta)
        return float(f.max() + math.log(np.exp(f - f.max()).sum() * (u[1] - u[0])) - math.lgamma(beta))


@lru_cache(maxsize=8)
def _scale(s: float, steps: int) -> _Scale:
    return _Scale(s, steps)


@lru_cache(maxsize=16)
def _law(s: float, steps: int, beta: float) -> tuple[Array, Array, Array, float, float]:
    """Nodes u, density and its integral at them, κ, and η."""
    scale = _scale(s, steps)
    u = np.linspace(*scale.window(beta), _CELLS + 1)
    f = scale.log_density(u, beta)
    density = np.exp(f - f.max())
    h = u[1] - u[0]
    bend = np.abs(np.diff(density, 2)) / np.minimum(np.minimum(density[:-2], density[2:]), density[1:-1])
    eta = float(bend.max()) / 4.0  # a chord is off by at most h²/8·max|f″| of a cell; twice that
    integral = np.append(0.0, np.cumsum(0.5 * h * (density[1:] + density[:-1])))
    return u, density, integral, scale.log_moment(beta), eta


@dataclass(frozen=True)
class TiltedAdd:
    """x ∼ S^{−β}·Q of one epoch."""

    sigma: float
    steps: int
    power: float
    least_epsilon: float = -math.inf

    @property
    def row(self) -> int:
        return 2 * self.steps

    @property
    def tilt(self) -> float:
        """τ = β."""
        return self.power

    @property
    def log_weight(self) -> float:
        """κ = log E_Q[S^{−β}]."""
        return _law(1.0 / self.sigma, self.steps, self.power)[3]

    @property
    def log_weight_error(self) -> float:
        """η."""
        return _law(1.0 / self.sigma, self.steps, self.power)[4]

    def losses(self, rng: np.random.Generator, count: int) -> Losses:
        """Exact losses."""
        s, T = 1.0 / self.sigma, self.steps
        u, density, integral, _, _ = _law(s, T, self.power)
        h = u[1] - u[0]
        target = rng.random(count) * integral[-1]
        cell = np.clip(np.searchsorted(integral, target, side="right") - 1, 0, _CELLS - 1)
        area, left, rise = target - integral[cell], density[cell], (density[cell + 1] - density[cell]) / h
        # left·x + rise·x²/2 = area, by the root that does not cancel
        x = 2.0 * area / (left + np.sqrt(np.maximum(left * left + 2.0 * rise * area, 0.0)))
        omega = np.exp(u[cell] + np.clip(x, 0.0, h)) / T
        total = np.zeros(count)
        width = max(_SLAB // count, 1)
        for start in range(0, T, width):
            total += _tilted_z(rng, omega, min(width, T - start), s).sum(axis=1)
        with np.errstate(divide="ignore"):
            loss = math.log(T) - np.log(total)
        return loss, loss


def _tilted_z(rng: np.random.Generator, omega: Array, width: int, s: float) -> Array:
    """Z(g) for g with density ∝ e^{−ωZ(g)} φ(g), shape (len(omega), width)."""
    a = np.real(lambertw(omega * s * s * math.exp(-0.5 * s * s))) / s
    base = np.exp(-s * a - 0.5 * s * s)
    z = np.empty(omega.size * width)
    row = np.repeat(np.arange(omega.size), width)
    open_ = np.arange(z.size)
    while open_.size:
        r = row[open_]
        step = rng.standard_normal(open_.size)  # g + a
        z_new = base[r] * np.exp(s * step)
        accept = rng.standard_exponential(open_.size) >= omega[r] * (z_new - base[r]) - a[r] * step
        z[open_[accept]] = z_new[accept]
        open_ = open_[~accept]
    return z.reshape(omega.size, width)


@lru_cache(maxsize=1024)
def best_power(sigma: float, steps: int, epochs: int, epsilon: float) -> float:
    """The β with the least range b(ε), rounded so that near questions share their samples; 0 where none helps."""
    scale = _scale(1.0 / sigma, steps)

    def size(log_beta: float) -> float:
        beta = math.exp(log_beta)
        return log_range(epochs * scale.log_moment(beta), beta, epsilon)

    found = minimize_scalar(size, bounds=(-4.0, 9.0), method="bounded", options={"xatol": 0.02})
    beta = float(f"{math.exp(found.x):.2g}")
    return beta if size(math.log(beta)) < 0.0 else 0.0
