"""Beyond the paper, `add`: draw x from G with dG/dQ = S^{−β}/E_Q[S^{−β}], for any real β > 0 and number of epochs.

The loss of (Q, P) is L = −log S, so dQ/dG = E_Q[S^{−β}]·e^{−βL}: τ = β, κ = log E_Q[S^{−β}] in the terms of `pairs`.
With S^{−β} = 1/Γ(β) ∫ θ^{β−1} e^{−θS} dθ and L(ω) = E e^{−ωZ},

    G is a mixture: θ has density ∝ θ^{β−1} L(θ/T)^T, and given θ the coordinates are independent, with density
    ∝ e^{−ωZ(g)} φ(g), ω = θ/T.

θ: the log-density of u = log θ is sampled as a polygon over a table of u, and below it as the straight line βu,
where L^T is 1 up to rounding (for small β much of the mass is there). If the polygon is off by at most η, so are the
logarithms of all weights, with the κ of the polygon: η is the error of κ. Above the table are e^{−45} of the mass.
g: −ωZ(g) is concave, so its tangent at −a, a = s·ω·Z(−a) (a = W₀(ωs²e^{−s²/2})/s), makes N(−a, 1) an envelope;
x = g + a ∼ N(0, 1) is accepted with probability exp(−(a/s)(e^{sx} − 1 − sx)), and redrawn otherwise.

L is integrated here by the trapezoidal rule, independently of the exact accountant, which this module checks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import CubicSpline
from scipy.optimize import minimize_scalar
from scipy.special import lambertw

from ballsbins.accounting.curve import Array
from ballsbins.accounting.monte_carlo.pairs import Losses, log_range

Integers = NDArray[np.intp]

_CELLS = 2**15  # cells in the table of a law
_PARTS, _LAWS_KEPT, _POWERS_KEPT = 64, 32, 1024  # parts of a table, to limit memory; laws and powers kept
_DEPTH = 45.0  # a density is cut off this many logs below its largest value
_SLAB = 2**15  # numbers drawn at a time: they stay in the cache
# of u: e^−30 is negligible beside 1, and e^690 almost overflows a double
_FIRST, _LAST, _STEP = -30.0, 690.0, 0.125
_WIDE = 12.0  # standard deviations: what lies beyond changes no digit
_FLAT, _PER_TOP = 1e-12, 1e-6  # a slope below this counts as 0; rounding per unit of the largest exponent
# range of the log of the power to tilt by, and how close to the best it must be
_LEAST_POWER, _LARGEST_POWER, _NEAR_ENOUGH = -7.0, 14.0, 0.02
_LARGEST = 3e5  # the table ends where −log L^T exceeds this
_ROUNDING = 1e-9  # more than the rounding of a law's log density


def _tangent(omega: Array, s: float) -> Array:
    """a = s·ω·Z(−a)."""
    return np.asarray(np.real(lambertw(omega * s * s * math.exp(-0.5 * s * s))) / s)


def log_laplace(omega: Array, s: float) -> Array:
    """Log E e^{−ωZ} for ω ≥ 0.

    Near 1 it is computed from its distance to 1, which is accurate even if that is as small as 1/T. Otherwise,
    however small it is, it is −a/s − a²/2 + log E exp(−(a/s)(e^{sx} − 1 − sx)) with x ∼ N(0, 1).
    """
    found = np.empty_like(omega)
    tangents = _tangent(omega, s)
    for i, (w, a) in enumerate(zip(omega, tangents, strict=True)):
        # the integrands are analytic for |Im x| < π/2s and about 1/√(1 + sa) wide, so errors are about e^−39
        step = 1 / 4 / math.sqrt(1.0 + s * s + s * a)
        x = np.arange(-_WIDE, _WIDE + s, step)
        weight = np.exp(-0.5 * x * x) * (step / math.sqrt(2.0 * math.pi))
        with np.errstate(over="ignore"):
            small = float(np.expm1(-w * np.exp(s * x - 0.5 * s * s)) @ weight)
        if small > -0.5:
            found[i] = math.log1p(small)
        else:
            mean = float(np.exp(-(a / s) * (np.expm1(s * x) - s * x)) @ weight)
            found[i] = -a / s - 0.5 * a * a + math.log(mean)
    return found


class _Scale:
    """−log L(θ/T)^T on a table of u = log θ, for all β. Its logarithm is nearly straight: cubics between nodes."""

    def __init__(self, s: float, steps: int) -> None:
        u = np.arange(_FIRST, _LAST, 0.5 * _STEP)
        parts: list[Array] = []
        for some in np.array_split(u, _PARTS):
            parts.append(-steps * log_laplace(np.exp(some) / steps, s))
            if parts[-1][-1] > _LARGEST:
                break
        exponent = np.concatenate(parts)
        self.u, self.exponent = u[: exponent.size : 2], exponent[::2]  # the other nodes serve as a check
        self.log_exponent = CubicSpline(self.u, np.log(self.exponent))
        missed = np.exp(self.log_exponent(u[1 : exponent.size : 2])) - exponent[1::2]
        self.error = 2.0 * np.abs(missed)

    def window(self, beta: float) -> slice | None:
        """Where θ^β L^T is above e^{−45} of its maximum; None if that goes beyond the table."""
        f = beta * self.u - self.exponent
        inside = np.flatnonzero(f > f.max() - _DEPTH)
        return slice(max(inside[0] - 1, 0), inside[-1] + 2) if inside[-1] + 1 < self.u.size else None


@lru_cache(maxsize=8)
def _scale(s: float, steps: int) -> _Scale:
    return _Scale(s, steps)


@dataclass(frozen=True)
class _Law:
    """The law of u: slopes of the line and of the polygon, density at its nodes and mass below them; κ, η."""

    u: Array
    slope: Array
    density: Array
    below: Array
    log_weight: float
    error: float

    def draw(self, rng: np.random.Generator, count: int) -> Array:
        """The inverse of the distribution function; from u[i] on, the mass is density·(e^{slope·x} − 1)/slope."""
        target = rng.random(count) * self.below[-1]
        # 0 is the line, i the cell that ends at u[i]
        place = np.searchsorted(self.below, target, side="right")
        start = np.maximum(place - 1, 0)  # on the line x < 0: from u[0] downwards
        rest = (target - self.below[start]) / self.density[start]
        slope = self.slope[place]
        with np.errstate(divide="ignore", invalid="ignore"):
            x = np.where(np.abs(slope * rest) < _FLAT, rest, np.log1p(slope * rest) / slope)
        return np.asarray(self.u[start] + x)


@lru_cache(maxsize=_LAWS_KEPT)
def _law(s: float, steps: int, beta: float) -> _Law:
    scale = _scale(s, steps)
    window = scale.window(beta)
    assert window is not None  # see `best_power`
    u = np.linspace(scale.u[window][0], scale.u[window][-1], _CELLS + 1)
    f = beta * u - np.exp(scale.log_exponent(u))
    top = f.max()
    density, h = np.exp(f - top), u[1] - u[0]
    slope = np.diff(f) / h
    with np.errstate(divide="ignore", invalid="ignore"):
        masses = density[:-1] * np.where(np.abs(slope * h) < _FLAT, h, np.expm1(slope * h) / slope)
    below = np.cumsum(np.append(density[0] / beta, masses))
    kappa = float(top + math.log(below[-1])) - math.lgamma(beta)
    # the error of a chord is at most h²/8·max|f″| of a cell; take twice that, plus the error of the cubics
    eta = float(np.abs(np.diff(f, 2)).max()) / 4 + float(scale.error[window].max())
    return _Law(
        u, np.append(beta, slope), density, below, kappa, eta + _ROUNDING * (1.0 + _PER_TOP * abs(top))
    )


@dataclass(frozen=True)
class TiltedAdd:
    """Contributions to δ(ε) of x ∼ S^{−β}·Q in each of several epochs, in units of b."""

    sigma: float
    steps: int
    power: float
    epsilon: float
    epochs: int = 1
    tilt = 0.0
    rest = 0.0

    @property
    def row(self) -> int:
        return 2 * self.steps

    @property
    def log_moment(self) -> float:
        """κ = log E_Q[S^{−β}]."""
        return _law(1.0 / self.sigma, self.steps, self.power).log_weight

    @property
    def log_weight(self) -> float:
        """Log b = log e^{Eκ−βε}·β^β/(1+β)^{1+β}."""
        return log_range(self.epochs * self.log_moment, self.power, self.epsilon)

    @property
    def log_weight_error(self) -> float:
        """The sum of η over all epochs."""
        return self.epochs * _law(1.0 / self.sigma, self.steps, self.power).error

    @property
    def least_epsilon(self) -> float:
        return self.epsilon

    def losses(self, rng: np.random.Generator, count: int) -> Losses:
        """Contributions (1 − e^{ε−L})₊ e^{−β(L−ε)} divided by their maximum; L is the sum over epochs."""
        beyond = sum(self._losses(rng, count) for _ in range(self.epochs)) - self.epsilon
        beta = self.power
        entropy = beta * math.log(beta) - (1.0 + beta) * math.log1p(beta)
        x = np.maximum(beyond, 0.0)
        share = np.minimum(-np.expm1(-x) * np.exp(-beta * x - entropy), 1.0)
        return share, share

    def _losses(self, rng: np.random.Generator, count: int) -> Array:
        """Exact losses of one epoch."""
        s, T = 1.0 / self.sigma, self.steps
        a = _tangent(np.exp(_law(s, T, self.power).draw(rng, count)) / T, s)
        total = np.zeros(count)
        width = max(_SLAB // count, 1)
        for start in range(0, T, width):
            total += _accepted(rng, a, min(width, T - start), s).sum(axis=1)
        return np.asarray(math.log(T) + s * a + 0.5 * s * s - np.log(total))


def _accepted(rng: np.random.Generator, a: Array, width: int, s: float) -> Array:
    """e^{sx} for x = g + a and g with density ∝ e^{−ωZ(g)} φ(g), shape (len(a), width)."""
    found = rng.standard_normal((a.size, width))
    weight = np.repeat(a / s, width)
    open_ = _reject(rng, found.reshape(-1), weight, s)
    while open_.size:
        again = rng.standard_normal(open_.size)
        left = _reject(rng, again, weight[open_], s)
        found.reshape(-1)[open_] = again
        open_ = open_[left]
    return found


def _reject(rng: np.random.Generator, x: Array, weight: Array, s: float) -> Integers:
    """Replace x by e^{sx} in place; return where to draw again. As e^{−y} ≥ 1 − y, few exponentials are needed."""
    x *= s
    y = -1.0 - x
    np.exp(x, out=x)
    y += x
    y *= weight
    u = rng.random(x.size)
    doubtful = np.flatnonzero(u + y >= 1.0)
    return doubtful[u[doubtful] >= np.exp(-y[doubtful])]


@lru_cache(maxsize=_POWERS_KEPT)
def best_power(sigma: float, steps: int, epochs: int, epsilon: float) -> float:
    """The β with the least range b(ε), rounded so that similar questions share samples; 0 if no β helps."""
    scale, largest = _scale(1.0 / sigma, steps), _LARGEST_POWER
    while scale.window(math.exp(largest)) is None:
        largest -= 0.5

    def size(log_beta: float) -> float:
        beta = math.exp(log_beta)
        return log_range(epochs * _law(1.0 / sigma, steps, beta).log_weight, beta, epsilon)

    found = minimize_scalar(
        size, bounds=(_LEAST_POWER, largest), method="bounded", options={"xatol": _NEAR_ENOUGH}
    )
    beta = float(f"{math.exp(found.x):.2g}")
    return beta if size(math.log(beta)) < 0.0 else 0.0
