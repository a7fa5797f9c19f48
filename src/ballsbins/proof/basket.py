"""A sum X of independent log-normals and a put on it (docs/proof.md, steps 1 to 3), in doubles and in balls.

`log_laplace` and `Sketch`, in doubles, only choose contours: a poor choice costs time. Every number that enters a
bound is computed in balls.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from flint import acb, arb, fmpq
from scipy.special import lambertw

from ballsbins.proof.budget import spend
from ballsbins.proof.transform import Transform, choose_lattice

_GUARD = 12.0  # extra nats of accuracy: a choice
_MORE_BITS = 40  # extra bits of precision: a choice
_BITS = 1 / math.log(2)
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
        """Take the groups, the strike κ, and κ minus the mean of the sum, which rounding of κ may have lost."""
        self.groups, self.strike, self.excess = groups, strike, excess
        self.spread = sum(n * v for n, v in groups)  # Σ n σ²

    def log_transform(self, r: float) -> float:
        """log of e^{κr} Π L(r)^n for r > 0; the drift is removed, so that no digits are lost with many steps."""
        return self.excess * r + sum(n * (log_laplace(r, v) + r) for n, v in self.groups)

    def slope(self, r: float) -> float:
        """κ − E X under the tilted law at r."""
        less = 0.0
        for n, v in self.groups:
            mean = math.exp(log_laplace(r * math.exp(1 / v), v) - log_laplace(r, v))
            less += n * (1 - mean)
        return self.excess + less

    @cached_property
    def saddle(self) -> float:
        """The r > 0 that minimises e^{κr} Π L(r)^n / r²."""
        low, high = -80.0, 250.0
        for _ in range(50):
            mid = (low + high) / 2
            r = math.exp(mid)
            low, high = (mid, high) if r * self.slope(r) < 2 else (low, mid)
        return math.exp((low + high) / 2)


@dataclass(frozen=True)
class Basket:
    """X = Σ Z over `count` log-normals of each σ²; `strike` gives κ at the current precision."""

    groups: tuple[tuple[int, fmpq], ...]
    strike: Callable[[], arb]

    @property
    def count(self) -> int:
        """The number of log-normals, which is the mean of X."""
        return sum(n for n, _ in self.groups)

    @property
    def spread(self) -> arb:
        """Σ n σ²."""
        return arb(sum((n * v for n, v in self.groups), fmpq(0)))

    def at(self, r: arb) -> arb:
        """Λ(r) = E e^{−rX} for real r > 0."""
        value = arb(1)
        for n, v in self.groups:
            value *= laplace_at(r, v, n) ** n
        return value


def laplace_at(r: arb, sigma2: fmpq, count: int = 1) -> arb:
    """L(r) for real r > 0, accurate enough for its power `count`."""
    v = float(fmpq_float(sigma2))
    size = float(r.log().mid())
    nats = 30.0 + math.log(count) - log_laplace(math.exp(size), v) + _GUARD
    lattice = choose_lattice(v, nats, (size - 0.01, size + 0.01), 0.0)
    value = Transform(sigma2, lattice)(acb(r)).real
    return value.min(arb(1))  # Z > 0, so L < 1


def fmpq_float(x: fmpq) -> float:
    """The nearest double, or a neighbour of it."""
    return int(x.p) / int(x.q)


class Product:
    """Λ(ω) = Π L(ω)^n on a contour: lattices are chosen first, tables are built once the precision is set."""

    def __init__(
        self,
        basket: Basket,
        nats: float,
        log_size: tuple[float, float],
        angle: float,
        peak: float,
        *,
        upright: bool = False,
    ) -> None:
        """Choose lattices for sums to e^−nats of their peak, at |ω| = `peak`; with θ = 0 if `upright`."""
        self.groups, self.lattices = basket.groups, []
        self.bits = 0.0
        for n, sigma2 in basket.groups:
            v = fmpq_float(sigma2)
            need = nats + math.log(n) - log_laplace(peak, v) + _GUARD
            lattice = choose_lattice(v, need, log_size, angle, **({"shifts": 1} if upright else {}))
            self.lattices.append(lattice)
            self.bits = max(self.bits, (need + lattice.lost) * _BITS)
        strike = float(abs(basket.strike().mid()))
        self.bits += math.log2(strike * math.exp(log_size[1]) + basket.count + 2) + _MORE_BITS
        self._rules: list[Transform] = []

    def tabulate(self) -> None:
        """Build the tables at the current precision."""
        self._rules = [
            Transform(sigma2, lattice)
            for (_, sigma2), lattice in zip(self.groups, self.lattices, strict=True)
        ]

    def __call__(self, omega: acb) -> acb:
        """Λ(ω)."""
        spend()
        value = acb(1)
        for (n, _), rule in zip(self.groups, self._rules, strict=True):
            value *= rule(omega) ** n
        return value
