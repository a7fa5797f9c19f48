"""A sum X of independent log-normals and a put on it: what is integrated, in balls (docs/proof.md, steps 1 to 3)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from flint import acb, arb, fmpq

from ballsbins.proof.steering import log_laplace
from ballsbins.proof.transform import Transform, choose_lattice

_GUARD = 12.0  # nats beyond what is needed: a choice
_MORE_BITS = 40  # beyond what is needed: a choice
_BITS = 1 / math.log(2)


@dataclass(frozen=True)
class Basket:
    """X = Σ Z over `count` log-normals of each σ²; `strike` gives κ at the precision that is set."""

    groups: tuple[tuple[int, fmpq], ...]
    strike: Callable[[], arb]

    @property
    def count(self) -> int:
        """How many there are: the mean of X."""
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
    """L(r) for real r > 0, with a relative error that its power `count` survives."""
    v = float(fmpq_float(sigma2))
    size = float(r.log().mid())
    nats = 30.0 + math.log(count) - log_laplace(math.exp(size), v) + _GUARD
    lattice = choose_lattice(v, nats, (size - 0.01, size + 0.01), 0.0)
    value = Transform(sigma2, lattice)(acb(r)).real
    return value.min(arb(1))  # Z > 0, so L < 1


def fmpq_float(x: fmpq) -> float:
    """The nearest double, or one beside it."""
    return int(x.p) / int(x.q)


class Product:
    """Λ(ω) = Π L(ω)^n on a contour: lattices first, tables once the precision is set."""

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
        """Choose lattices for sums to e^−nats of their peak, which is at |ω| = `peak`; with θ = 0 if upright."""
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
        """Build the tables at the precision that is set."""
        self._rules = [
            Transform(sigma2, lattice)
            for (_, sigma2), lattice in zip(self.groups, self.lattices, strict=True)
        ]

    def __call__(self, omega: acb) -> acb:
        """Λ(ω)."""
        value = acb(1)
        for (n, _), rule in zip(self.groups, self._rules, strict=True):
            value *= rule(omega) ** n
        return value
