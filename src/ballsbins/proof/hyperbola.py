"""The put along a left-bending hyperbola: for few steps or a large strike (docs/proof.md, steps 10 to 12).

ω(u) = μ(1 + sin(iu − α)); moving u off the real line only changes α. The right edge of the strip is the vertical line
α = 0, where |Λ| is at most its value on the axis; the left edge is the hyperbola α₂, where |L| is bounded three ways.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from flint import acb, arb, ctx, fmpq
from numpy.typing import NDArray
from scipy.special import ndtr

from ballsbins.proof.basket import Basket, Product, Sketch
from ballsbins.proof.transform import exact

_PIECE, _LEAST_PIECE, _GROWTH = 0.04, 1e-5, 1.05  # lengths of pieces of an arm: a choice
_BOUND_BITS = 96  # precision of error bounds: a few digits of them are enough
Array = NDArray[np.float64]
_ANGLES = (0.08, 0.15, 0.25, 0.4, 0.55, 0.7, 0.85, 1.0, 1.15, 1.3, 1.45)  # angles to try: a choice


@dataclass(frozen=True)
class Hyperbola:
    """The contour, its step and nodes, and the angle of the left edge of its strip."""

    mu: float
    alpha: float
    edge: float
    step: float
    nodes: int
    far: float  # where the pieces end and one closed form bounds the rest

    @property
    def end(self) -> float:
        """The parameter of the last node."""
        return self.step * self.nodes


def choose_hyperbola(sketch: Sketch, log_tolerance: float, other: float = 1.0) -> Hyperbola | None:
    """A hyperbola whose error is about e^log_tolerance, absolute, `other` times as far right: a choice."""
    saddle = sketch.saddle
    best: Hyperbola | None = None
    worse = 0
    for factor in (0.7, 1.0, 1.5, 2.2, 3.5, 6.0, 10.0, 18.0, 32.0, 60.0):
        if worse > 1:
            break
        mu, before = saddle * factor * other, best
        right = sketch.log_transform(mu) - math.log(2 * mu) - log_tolerance + 1.5
        arms = {}
        for angle in _ANGLES:
            far = _far(sketch, mu, angle, log_tolerance)
            u, pieces = _rough_arm(sketch, mu, angle, far)
            alive = np.nonzero(np.logaddexp.accumulate(pieces[::-1])[::-1] > log_tolerance)[0]
            end = u[alive[-1] + 1] + 0.05 if len(alive) else 0.0  # 0: unknown
            arms[angle] = (
                far,
                float(np.logaddexp.reduce(pieces)) - math.log(math.pi) - log_tolerance + 1.5,
                end,
            )
        for i, edge in enumerate(_ANGLES):
            left = arms[edge][1]
            for alpha in _ANGLES[:i]:
                end = arms[alpha][2]
                if end == 0:
                    continue
                step = min(
                    2 * math.pi * alpha / max(right, 1.0), 2 * math.pi * (edge - alpha) / max(left, 1.0)
                )
                far = max(arms[alpha][0], arms[edge][0])
                found = Hyperbola(mu, alpha, edge, step, math.ceil(end / step), far)
                if best is None or found.nodes < best.nodes:
                    best = found
        worse = worse + 1 if best is before and best is not None else 0
    return best


def _far(sketch: Sketch, mu: float, angle: float, log_tolerance: float) -> float:
    need = sketch.spread * angle**2 / 2 + sketch.strike * mu + 60 + abs(log_tolerance) + abs(math.log(mu))
    return math.acosh(max(need / (sketch.strike * mu * math.sin(angle)), math.cosh(1.0)))


def _rough_arm(sketch: Sketch, mu: float, angle: float, far: float) -> tuple[Array, Array]:
    """log of the bound on each piece of an arm, in doubles."""
    u = pieces_of(angle, 0.0, far)
    sine = math.sin(angle)
    re, size = mu * (1 - sine * np.cosh(u)), mu * (np.cosh(u) - sine)
    x = 2 * np.arctan(np.tan(math.pi / 4 + angle / 2) * np.tanh(u / 2)) - math.pi / 2
    x, away = x[1:], np.hypot(1 - re, mu * math.cos(angle) * np.sinh(u))[1:]
    start = mu * (1 - sine)
    axis = max(0.0, sketch.log_transform(start))
    value = sketch.strike * np.minimum(re[:-1], 0.0)
    for n, v in sketch.groups:
        turned, far_size = np.exp(np.minimum(v * x * x / 2, 600.0)), size[1:]
        s = 1 / math.sqrt(v)
        one, two = ((np.log(z / far_size) / s + s / 2) for z in (2.0, 1 + math.sqrt(5)))
        first = far_size * ndtr(one - s) + 2 * ndtr(-one)
        second = far_size**2 / 2 * math.exp(min(s * s, 600.0)) * ndtr(two - 2 * s)
        second += far_size * ndtr(s - two) + 2 * ndtr(-two)
        with np.errstate(over="ignore"):
            least = np.minimum(np.minimum(turned, 1 + turned * first), away + turned * second)
            value = value + n * np.log(least)
    value = np.where(re[:-1] >= 0, np.maximum(axis, np.where(x > 0, value, 0.0)), value)
    weight = np.sqrt((np.cosh(u) + sine) / (np.cosh(u) - sine)) / (mu * (np.cosh(u) - sine))
    return u, value + np.log(weight[:-1] * np.diff(u))


def product_on(basket: Basket, path: Hyperbola, nats: float, *, upright: bool = False) -> Product:
    """Λ on the hyperbola, for a sum to e^−nats of its peak."""
    first, last = (path.mu * (math.cosh(u) - math.sin(path.alpha)) for u in (0.0, path.end))
    angle = 2 * math.atan(math.tan(math.pi / 4 + path.alpha / 2) * math.tanh(path.end / 2))
    return Product(
        basket, nats, (math.log(first) - 0.01, math.log(last) + 0.01), angle, first, upright=upright
    )


def pieces_of(angle: float, start: float, far: float) -> Array:
    """Where an arm is cut into pieces, which are short near the point where it crosses the imaginary axis."""
    cross = math.acosh(1 / math.sin(angle))
    fine = _LEAST_PIECE * _GROWTH ** np.arange(
        math.log(_PIECE / _LEAST_PIECE / (_GROWTH - 1)) / math.log(_GROWTH)
    )
    coarse = fine[-1] + _PIECE * np.arange(1, max((max(far, start + 1) + 1) / _PIECE, 2))
    away = np.concatenate([fine, coarse])
    u = np.unique(np.concatenate([cross - away, [cross], cross + away]))
    return np.concatenate([[start], u[(u > start) & (u <= max(far, start, 1) + 2 * _PIECE)]])


def put_on_hyperbola(basket: Basket, path: Hyperbola, nats: float) -> tuple[arb, int]:
    """E(κ − X)₊, proved: the sum over the nodes, and a radius for its strip and its ends."""
    product = product_on(basket, path, nats)
    with ctx.workprec(int(product.bits)):
        product.tabulate()
        kappa, mu, alpha, step = basket.strike(), exact(path.mu), exact(path.alpha), exact(path.step)
        total = arb(0)
        for j in range(path.nodes + 1):
            sine, cosine = acb(-alpha, j * step).sin_cos()
            omega = mu * (1 + sine)
            term = ((kappa * omega).exp() * product(omega) * mu * cosine / omega**2).real
            total += term / 2 if j == 0 else term
        with ctx.workprec(_BOUND_BITS):
            radius = (strip_bound(basket, path) + end_bound(basket, path)).abs_upper()
        return total * step / arb.pi() + arb(0, radius), ctx.prec


def strip_bound(basket: Basket, path: Hyperbola) -> arb:
    """(1/2π)(M_R/(e^{2πα/h} − 1) + M_L/(e^{2π(α₂−α)/h} − 1)) (docs/proof.md, steps 10 and 11)."""
    mu, alpha, edge, step = (exact(x) for x in (path.mu, path.alpha, path.edge, path.step))
    if not 0 < path.alpha < path.edge < math.pi / 2:
        raise ArithmeticError("the strip of the hyperbola must lie between a line and the cut")
    right = (basket.strike() * mu).exp() * basket.at(mu) * arb.pi() / mu
    left = 2 * arm_bound(basket, path, path.edge, 0.0, 0.0)
    turn = 2 * arb.pi() / step
    return (right / ((turn * alpha).exp() - 1) + left / ((turn * (edge - alpha)).exp() - 1)) / (2 * arb.pi())


def end_bound(basket: Basket, path: Hyperbola) -> arb:
    """The terms beyond the last node, of both arms (docs/proof.md, step 12)."""
    return arm_bound(basket, path, path.alpha, path.end, path.step) / arb.pi()


def arm_bound(basket: Basket, path: Hyperbola, angle: float, start: float, slack: float) -> arb:
    """A bound on ∫ |e^{κω} Λ(ω) ω^{−2} dω| along one arm from u = `start`, or on a sum with step `slack` there."""
    mu, kappa, alpha = exact(path.mu), basket.strike(), exact(angle)
    sine, cosine = alpha.sin_cos()
    axis = mu * (1 - sine)
    axis = ((kappa * axis).exp() * basket.at(axis)).max(arb(1))
    rising = (arb.pi() / 4 + alpha / 2).tan()
    total, u = arb(0), exact(start)
    cosh, near = u.cosh(), mu * (1 - sine * u.cosh())
    for point in pieces_of(angle, start, path.far)[1:]:
        weight = ((cosh + sine) / (cosh - sine)).sqrt() / (mu * (cosh - sine))
        length = exact(float(point)) - u
        u = exact(float(point))
        cosh, sinh = u.cosh(), u.sinh()
        far = mu * (1 - sine * cosh)
        value = axis
        if not far >= 0:
            x = (2 * (rising * (u / 2).tanh()).atan() - arb.pi() / 2).max(arb(0))
            away = ((1 - far) ** 2 + (mu * cosine * sinh) ** 2).sqrt()
            turned = on_arm(basket, mu * (cosh - sine), away, x) * (kappa * near.min(arb(0))).exp()
            value = turned if near < 0 else turned.max(axis)
        total += value.upper() * weight.upper() * (length + exact(slack))
        near = far
    rest = (basket.spread * alpha**2 / 2 + kappa * near).exp() / (2 * mu * (u / 2).sinh() ** 2)
    if not near < 0 or not u >= 1:
        raise ArithmeticError("the pieces of an arm end too early")
    return total + rest * (1 + exact(slack) * (u / 2).coth())


def on_arm(basket: Basket, size: arb, away: arb, x: arb) -> arb:
    """An upper bound on Π |L(ω)|^n, the least of three each, for |ω| ≤ size, |1 − ω| ≤ away, arg ω ≤ π/2 + x."""
    value = arb(1)
    for n, sigma2 in basket.groups:
        turned = (arb(sigma2) * x * x / 2).exp()
        first = size * below(2 / size, sigma2, 1) + 2 * (1 - below(2 / size, sigma2, 0))
        bend = (1 + arb(5).sqrt()) / size
        second = size * size / 2 * below(bend, sigma2, 2)
        second += size * (1 - below(bend, sigma2, 1)) + 2 * (1 - below(bend, sigma2, 0))
        value *= turned.min(1 + turned * first).min(away + turned * second).upper() ** n
    return value


def below(z: arb, sigma2: fmpq, power: int) -> arb:
    """E[Z^j; Z < z] for j = 0, 1, 2: e^{j(j−1)/(2σ²)} Φ(σ log z + 1/(2σ) − j/σ)."""
    s2 = arb(sigma2)
    sigma = s2.sqrt()
    point = sigma * z.log() + (arb(1) / 2 - power) / sigma
    return (arb(power * (power - 1)) / (2 * s2)).exp() * (-point / arb(2).sqrt()).erfc() / 2
