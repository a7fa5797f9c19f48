"""Enclose the inner integral L(ω) = E e^{−ωZ} of a log-normal Z of mean 1 (docs/proof.md, steps 4 to 6).

With λ = log ω − 1/(2σ²) and any |θ| < π/2

    L(ω) = σ/√(2π) ∫ exp(−e^{y+iθ} − σ²(y + iθ − λ)²/2) dy .

The trapezoidal rule on y = kh is e^{−σ²λ²/2} times a polynomial in e^{σ²λh} whose coefficients do not depend on ω:
one table serves a whole contour, and one call of Arb's polynomial evaluation gives one value.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from flint import acb, arb, arb_poly, fmpq

_QUARTER = 1.5707  # just below π/2: the widest strip in which |exp(−e^y)| ≤ 1
_SHIFTS = 12  # how many values of θ to try: a choice


def exact(x: float) -> arb:
    """The exact ball, of radius 0, of a double."""
    p, q = x.as_integer_ratio()
    return arb(fmpq(p, q))


@dataclass(frozen=True)
class Lattice:
    """A lattice y = kh on the line Im y = θ, its strip of half width a, and the nodes from `first` to `last`."""

    theta: float
    strip: float
    step: float
    first: int
    last: int
    lost: float  # nats that the sum may lose to cancellation

    @property
    def nodes(self) -> int:
        """How many nodes there are."""
        return self.last - self.first + 1


def choose_lattice(
    sigma2: float, nats: float, log_size: tuple[float, float], angle: float, shifts: int = _SHIFTS
) -> Lattice:
    """A lattice for an error of about e^−nats where log|ω| and |arg ω| ≤ angle are in these ranges: a choice."""
    best: tuple[float, Lattice] | None = None
    for i in range(shifts):
        theta = min(angle, 1.4) * i / shifts
        lost = sigma2 * max(theta, angle - theta) ** 2 / 2
        for part in (1.0, 0.75, 0.5, 0.3):
            a = (_QUARTER - theta) * part
            grown = sigma2 * max(theta + a, angle - theta + a) ** 2 / 2
            step = 2 * math.pi * a / (nats + grown + 1)
            reach = math.sqrt(2 * (nats + lost)) / math.sqrt(sigma2)
            right = math.log((nats + lost + 2) / math.cos(theta))
            low, high = (x - 0.5 / sigma2 for x in log_size)
            first, last = math.floor((low - reach) / step), math.ceil(min(high + reach, right) / step)
            found = Lattice(theta, a, step, first, max(last, first + 1), lost)
            cost = found.nodes * (1 if theta == 0 else 2) * (nats + lost + 50)
            if best is None or cost < best[0]:
                best = cost, found
    assert best is not None
    return best[1]


class Transform:
    """L on a lattice, at the precision that is set while it is built and called."""

    def __init__(self, sigma2: fmpq, lattice: Lattice) -> None:
        """Tabulate the coefficients σh/√(2π)·exp(−e^{y+iθ} − σ²(y + iθ)²/2)."""
        self.sigma2, self.lattice = arb(sigma2), lattice
        self.step, self.theta, self.strip = (exact(x) for x in (lattice.step, lattice.theta, lattice.strip))
        if not self.theta + self.strip < arb.pi() / 2 or not self.theta >= 0 or not self.strip > 0:
            raise ArithmeticError("the strip of the inner rule is wider than the proof allows")
        front = self.sigma2.sqrt() * self.step / (2 * arb.pi()).sqrt()
        real, imag = [], []
        turn = acb(0, self.theta)
        for k in range(lattice.first, lattice.last + 1):
            y = k * self.step
            if lattice.theta == 0:
                real.append(front * (-y.exp() - self.sigma2 * y * y / 2).exp())
            else:
                z = acb(y, self.theta)
                value = front * (-(y.exp() * turn.exp()) - self.sigma2 * z * z / 2).exp()
                real.append(value.real)
                imag.append(value.imag)
        self._real, self._imag = arb_poly(real), arb_poly(imag)

    def __call__(self, omega: acb) -> acb:
        """L(ω) for 0 ≤ arg ω < π: the sum, and a radius for all that it lacks."""
        log = omega.log()
        lam = log - 1 / (2 * self.sigma2)
        power = (self.sigma2 * self.step * lam).exp()
        total = self._real(power)
        if self.lattice.theta != 0:
            total += acb(0, 1) * self._imag(power)
        start = acb(self.lattice.first * self.step, self.theta)
        value = (self.sigma2 * lam * (start - lam / 2)).exp() * total
        radius = self.error(lam.real, log.imag).abs_upper()
        return value + acb(arb(0, radius), arb(0, radius))

    def error(self, rho: arb, psi: arb) -> arb:
        """Discretisation and both ends, for Re λ = ρ and arg ω = ψ (docs/proof.md, steps 5 and 6)."""
        s2, h, theta, a = self.sigma2, self.step, self.theta, self.strip
        edges = (s2 * (theta + a - psi) ** 2 / 2).exp() + (s2 * (theta - a - psi) ** 2 / 2).exp()
        aliases = edges / ((2 * arb.pi() * a / h).exp() - 1)
        size = (s2 * (theta - psi) ** 2 / 2).exp()
        low = self.lattice.first * h
        if not low < rho:
            raise ArithmeticError("the inner lattice starts too far right")
        left = ((rho - low) * (s2 / 2).sqrt()).erfc() / 2
        gauss = 1 + h * (s2 / (2 * arb.pi())).sqrt()
        right = gauss * (-((self.lattice.last + 1) * h).exp() * theta.cos()).exp()
        high = self.lattice.last * h
        if high > rho:
            right = right.min(((high - rho) * (s2 / 2).sqrt()).erfc() / 2)
        return aliases + size * (left + right)
