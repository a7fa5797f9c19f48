"""The put along a vertical line: for many steps or much noise (docs/proof.md, steps 7 to 9).

On ω = c + ijη the sum is the put plus its images, which are positive and bounded by Chernoff. The ends are bounded
near the axis by the tilted moments of Z, and farther up by a turned contour of L.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from flint import acb, arb, ctx, fmpq

from ballsbins.proof.basket import Basket, Product, Sketch, laplace_at, log_laplace
from ballsbins.proof.transform import exact

_TURNS = [math.pi / 2 * (i + 0.5) / 16 for i in range(16)]  # angles x to try: a choice


@dataclass(frozen=True)
class Line:
    """The contour Re ω = c in steps η up to Jη, and the free numbers of its error bounds."""

    c: float
    step: float
    nodes: int
    left: float  # 0 < left < c: Chernoff's point for the images above is c − left
    right: float  # Chernoff's point for the images below is c + right
    far: float  # from here on the ends are bounded by a turned contour
    turn: float  # angle of that turn, less than π/2

    @property
    def end(self) -> float:
        """The height of the last node."""
        return self.step * self.nodes


def choose_line(sketch: Sketch, log_tolerance: float, other: float = 1.0) -> Line | None:
    """A line whose error is about e^log_tolerance, absolute, `other` times as far right: a choice."""
    saddle = sketch.saddle
    best: Line | None = None
    for factor in (1.0, 1.5, 2.2, 3.3, 5.0, 8.0, 13.0, 20.0):
        c = saddle * factor * other
        steps = []
        for sign, parts in ((-1, (0.3, 0.5, 0.7, 0.85, 0.95)), (1, (0.2, 0.4, 0.7, 1.0, 1.5, 2.5, 4.0, 7.0))):
            steps.append(
                max((2 * math.pi * c * p / (_chernoff(sketch, c * (1 + sign * p)) - log_tolerance), c * p)
                    for p in parts)
            )  # fmt: skip
        step = min(steps[0][0], steps[1][0])
        if step <= 0:
            continue
        ends = _ends(sketch, c, log_tolerance)
        if ends is None:
            continue
        end, far, turn = ends
        found = Line(c, step, math.ceil(end / step), steps[0][1], steps[1][1], far, turn)
        if best is None or found.nodes < best.nodes:
            best = found
    return best


def _chernoff(sketch: Sketch, r: float) -> float:
    return sketch.log_transform(r) - math.log(r) - 1


def _ends(sketch: Sketch, c: float, log_tolerance: float) -> tuple[float, float, float] | None:
    """(Y, Y₁, x): where the sum may end, from where the turned contour bounds the rest, and its angle."""
    base = sketch.log_transform(c) - math.log(math.pi)
    drift = sketch.strike * c - math.log(math.pi)
    variances, fourth = [], []
    for n, v in sketch.groups:
        m = [
            math.exp(j * (j - 1) / v / 2 + log_laplace(c * math.exp(j / v), v) - log_laplace(c, v))
            for j in range(5)
        ]
        variance, mu4 = _central(m)
        variances.append(n * variance)
        fourth.append(n * (2 * mu4 + 6 * variance**2))
    big_v, big_f = sum(variances), sum(fourth)
    limit = math.sqrt(12 * big_v / big_f) if big_v > 0 and big_f > 0 else 0.0

    def turned(y: float) -> tuple[float, float]:
        return min(
            (sum(n * (v * x * x / 2 + log_laplace(y * math.sin(x), v)) for n, v in sketch.groups), x)
            for x in _TURNS
        )

    low, high = math.log(c) - 3, math.log(c) + 60
    for _ in range(40):  # the turned bound alone
        mid = (low + high) / 2
        low, high = (low, mid) if drift + turned(math.exp(mid))[0] - mid < log_tolerance else (mid, high)
    far = math.exp(high)
    x = turned(far)[1]
    if limit < far:
        return far, far, x
    lo, hi = math.log(far) - 40, math.log(limit)
    if base - (limit**2 * big_v - limit**4 * big_f / 24) / 2 - math.log(limit) > log_tolerance:
        return far, far, x
    for _ in range(40):
        mid = (lo + hi) / 2
        y = math.exp(mid)
        near = base - (y * y * big_v - y**4 * big_f / 24) / 2 - mid
        lo, hi = (lo, mid) if near < log_tolerance else (mid, hi)
    end = math.exp(hi)
    return (end, max(far, end), x) if end < far else (far, far, x)


def _central(m: list[float]) -> tuple[float, float]:
    mean = m[1] / m[0]
    variance = max(m[2] / m[0] - mean**2, 0.0)
    return variance, max(m[4] / m[0] - 4 * mean * m[3] / m[0] + 6 * mean**2 * m[2] / m[0] - 3 * mean**4, 0.0)


def product_on(basket: Basket, line: Line, nats: float, *, upright: bool = False) -> Product:
    """Λ on the line, for a sum to e^−nats of its peak."""
    sizes = math.log(line.c) - 0.01, math.log(math.hypot(line.c, line.end)) + 0.01
    return Product(basket, nats, sizes, math.pi / 2, line.c, upright=upright)


def put_on_line(basket: Basket, line: Line, nats: float) -> tuple[arb, int]:
    """E(κ − X)₊, proved: the sum over the nodes, less its images, more or less its ends."""
    product = product_on(basket, line, nats)
    with ctx.workprec(int(product.bits)):
        product.tabulate()
        kappa, c, step = basket.strike(), exact(line.c), exact(line.step)
        total = arb(0)
        for j in range(line.nodes + 1):
            omega = acb(c, j * step)
            term = ((kappa * omega).exp() * product(omega) / omega**2).real
            total += term / 2 if j == 0 else term
        images = image_bound(basket, line).abs_upper()
        ends = end_bound(basket, line).abs_upper()
        return total * step / arb.pi() + arb(-images / 2, images / 2) + arb(0, ends), ctx.prec


def image_bound(basket: Basket, line: Line) -> arb:
    """Σ_{n≠0} e^{−2πnc/η} put(κ + 2πn/η) ≤ two geometric series (docs/proof.md, step 7)."""
    kappa, c = basket.strike(), exact(line.c)
    total = arb(0)
    for r, gap in ((c - exact(line.left), line.left), (c + exact(line.right), line.right)):
        if not r > 0 or not gap > 0:
            raise ArithmeticError("Chernoff's points must be positive and beside the line")
        chernoff = (kappa * r - 1).exp() * basket.at(r) / r
        total += chernoff / ((2 * arb.pi() * exact(gap) / exact(line.step)).exp() - 1)
    return total


def end_bound(basket: Basket, line: Line) -> arb:
    """(1/π) ∫ beyond the last node of e^{κc} |Λ(c + iy)| / y² (docs/proof.md, steps 8 and 9)."""
    c, far, x = exact(line.c), exact(line.far), exact(line.turn)
    last = line.nodes * exact(line.step)
    if not 0 < line.turn < math.pi / 2 or not far > 0:
        raise ArithmeticError("the turned contour must lie in the right half plane")
    front = (basket.strike() * c).exp() / arb.pi()
    if not far > last:
        far = last
    turned = arb(1)
    for n, sigma2 in basket.groups:
        turned *= ((arb(sigma2) * x * x / 2).exp() * laplace_at(far * x.sin(), sigma2, n)) ** n
    total = front * turned * (1 / far + exact(line.step) / far**2)
    if far > last:
        variance, fourth = arb(0), arb(0)
        for n, sigma2 in basket.groups:
            v, mu4 = tilted_moments(c, sigma2)
            variance += n * v
            fourth += n * (2 * mu4 + 6 * v * v)
        if not far * far * fourth <= 12 * variance:
            raise ArithmeticError("the moment bound is used beyond the point where it falls")
        decay = (-(last**2 * variance - last**4 * fourth / 24) / 2).exp()
        total += front * basket.at(c) * decay * (1 / last - 1 / far)
    return total


def tilted_moments(c: arb, sigma2: fmpq) -> tuple[arb, arb]:
    """Variance and fourth central moment of Z under e^{−cZ}/L(c): E Z^j e^{−cZ} = e^{j(j−1)/(2σ²)} L(c e^{j/σ²})."""
    s2 = 1 / arb(sigma2)
    m = [(j * (j - 1) * s2 / 2).exp() * laplace_at(c * (j * s2).exp(), sigma2) for j in range(5)]
    mean = m[1] / m[0]
    variance = m[2] / m[0] - mean**2
    mu4 = m[4] / m[0] - 4 * mean * m[3] / m[0] + 6 * mean**2 * m[2] / m[0] - 3 * mean**4
    return variance, mu4
