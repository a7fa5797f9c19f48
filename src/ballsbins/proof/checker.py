"""Check a certificate of one epoch: python checker.py FILE. Needs only python-flint; shares no code with the prover.

A certificate states lower ≤ δ ≤ upper, in both directions, for a mechanism and an ε. This program computes δ again,
in ball arithmetic, along a different contour from the prover's (the *witness* in the file), and accepts only if its
ball is inside. The witness is not trusted: the radius of the ball bounds all that is left out, whatever its numbers.
The proofs are in docs/proof.md under the numbers in brackets.
"""

from __future__ import annotations

import hashlib
import json
import sys
from fractions import Fraction
from math import log, prod
from pathlib import Path
from typing import Any

from flint import acb, arb, arb_poly, ctx, fmpq

Groups = list[tuple[int, fmpq]]  # count, σ²
LIMIT = arb(1) / 10**6  # largest relative width that a certificate may have


def number(x: float | str) -> fmpq:
    """The exact value of a double or of a decimal string."""
    return fmpq(*Fraction(x).as_integer_ratio())


def bins_of(mechanism: dict[str, Any]) -> tuple[Groups, int]:
    """[1] Bins visited, as (count, σ²), and T: a bin that was visited k times has the variance σ²/k."""
    sampler, epochs, sigma2 = (
        mechanism["sampler"],
        mechanism["epochs"],
        number(mechanism["noise_multiplier"]) ** 2,
    )
    if sampler["type"] == "deterministic":
        return [(1, sigma2 / epochs)], 1
    steps, last = sampler["steps"], mechanism["last_epoch_steps"] or sampler["steps"]
    once = sampler["type"] == "balls_and_bins" and (epochs == 1 or not sampler["redraw"])
    if not once or sampler["max_batch_size"] is not None or not 1 <= last <= steps or epochs < 1:
        raise ValueError("this checker is for one epoch, or fixed bins, without truncation")
    others = [(steps - last, sigma2 / (epochs - 1))] if epochs > 1 and last < steps else []
    return [(last, sigma2 / epochs), *others], steps


class Laplace:
    """[4] L(ω) = E e^{−ωZ}: a polynomial in e^{σ²λh}, λ = log ω − 1/(2σ²), with a radius for the truncation error."""

    def __init__(self, sigma2: fmpq, step: fmpq, first: int, last: int, strip: fmpq) -> None:
        self.s2, self.h, self.a = arb(sigma2), arb(step), arb(strip)
        self.low, self.high = first * self.h, last * self.h
        if not (0 < self.a < arb.pi() / 2 and self.h > 0):
            raise ValueError("the strip of a lattice must be below π/2")
        ys = [k * self.h for k in range(first, last + 1)]
        self.front = self.h * (self.s2 / (2 * arb.pi())).sqrt()
        self.poly = arb_poly([self.front * (-y.exp() - self.s2 * y * y / 2).exp() for y in ys])

    def __call__(self, omega: acb) -> acb:
        lam, psi = omega.log() - 1 / (2 * self.s2), omega.arg()
        value = self.poly((self.s2 * self.h * lam).exp()) * (self.s2 * lam * (self.low - lam / 2)).exp()
        aliases = (self.s2 * (self.a - psi) ** 2 / 2).exp() + (self.s2 * (self.a + psi) ** 2 / 2).exp()
        aliases /= (2 * arb.pi() * self.a / self.h).exp() - 1  # [5]
        if not self.low < lam.real:
            raise ValueError("the lattice starts too far right")
        left = ((lam.real - self.low) * (self.s2 / 2).sqrt()).erfc() / 2  # [6]
        right = (1 + self.front) * (-(self.high + self.h).exp()).exp()  # [6]
        if self.high > lam.real:
            right = right.min(((self.high - lam.real) * (self.s2 / 2).sqrt()).erfc() / 2)
        error = (aliases + (self.s2 * psi**2 / 2).exp() * (left + right)).abs_upper()
        return value + acb(arb(0, error), arb(0, error))


def axis(r: arb, sigma2: fmpq) -> arb:
    """L(r) for real r > 0, on a lattice as fine as the precision."""
    nats, v = 0.7 * ctx.prec, float(arb(sigma2))
    step = fmpq(int(2**20 * 9.4 / (nats + 1.125 * v + 2)), 2**20)
    low, high = float(r.log().lower()) - 0.5 / v - (2 * nats / v) ** 0.5, log(nats) + 1
    table = Laplace(
        sigma2, step, int(low / float(arb(step))) - 1, int(high / float(arb(step))) + 1, fmpq(3, 2)
    )
    return table(acb(r)).real.min(arb(1))


def on_axis(groups: Groups, r: arb) -> arb:
    """Λ(r) = E e^{−rX} = Π L(r)^n."""
    return prod((axis(r, v) ** n for n, v in groups), start=arb(1))


def term(groups: Groups, kappa: arb, rules: list[Laplace], omega: acb) -> acb:
    """e^{κω} Λ(ω) / ω²."""
    powers = (rule(omega) ** n for (n, _), rule in zip(groups, rules, strict=True))
    return prod(powers, start=(kappa * omega).exp() / omega**2)


def on_line(groups: Groups, kappa: arb, rules: list[Laplace], w: dict[str, Any]) -> arb:
    """[7] The put, by the trapezoidal rule on Re ω = c."""
    names = "c", "step", "far", "turn", "left", "right"
    (c, eta, far, x, left, right), nodes = (arb(number(w[name])) for name in names), int(w["nodes"])
    total, images = arb(0), arb(0)
    for j in range(nodes + 1):
        total += term(groups, kappa, rules, acb(c, j * eta)).real / (2 if j == 0 else 1)
    for r, gap in ((c - left, left), (c + right, right)):
        if not (r > 0 and gap > 0 and c > 0 and eta > 0 and nodes > 0):
            raise ValueError("the line and Chernoff's points beside it must be positive")
        images += chernoff(groups, kappa, r) / ((2 * arb.pi() * gap / eta).exp() - 1)
    last = nodes * eta
    far = far if far > last else last
    if not 0 < x < arb.pi() / 2:
        raise ValueError("the turned contour must lie in the right half plane")
    ends = (kappa * c).exp() / arb.pi() * (1 / far + eta / far**2)  # [9]
    variance, fourth = arb(0), arb(0)
    for n, v in groups:
        ends *= ((arb(v) * x * x / 2).exp() * axis(far * x.sin(), v)) ** n
        m = [(arb(j * (j - 1)) / (2 * arb(v))).exp() * axis(c * (arb(j) / arb(v)).exp(), v) for j in range(5)]
        mean, var = m[1] / m[0], m[2] / m[0] - (m[1] / m[0]) ** 2
        variance += n * var
        mu4 = (m[4] - 4 * mean * m[3] + 6 * mean**2 * m[2]) / m[0] - 3 * mean**4
        fourth += n * (2 * mu4 + 6 * var**2)
    if far > last:  # [8]
        if not far**2 * fourth <= 12 * variance:
            raise ValueError("the moment bound is used beyond the point where it falls")
        decay = (-(last**2 * variance - last**4 * fourth / 24) / 2).exp()
        ends += (kappa * c).exp() / arb.pi() * on_axis(groups, c) * decay * (1 / last - 1 / far)
    half = images.abs_upper() / 2
    return total * eta / arb.pi() + arb(-half, half) + arb(0, ends.abs_upper())


def chernoff(groups: Groups, kappa: arb, r: arb) -> arb:
    """(κ − x)₊ ≤ e^{r(κ−x)−1}/r, averaged."""
    return (kappa * r - 1).exp() * on_axis(groups, r) / r


def on_hyperbola(groups: Groups, kappa: arb, rules: list[Laplace], w: dict[str, Any]) -> arb:
    """[10] The put, by the trapezoidal rule on ω = μ(1 + sin(iu − α))."""
    mu, alpha, edge, h, far = (arb(number(w[name])) for name in ("mu", "alpha", "edge", "step", "far"))
    if not (0 < alpha < edge < arb.pi() / 2 and mu > 0 and h > 0 and int(w["nodes"]) > 0):
        raise ValueError("the strip of the hyperbola must lie between a line and the cut")
    total = arb(0)
    for j in range(int(w["nodes"]) + 1):
        sine, cosine = acb(-alpha, j * h).sin_cos()
        omega = mu * (1 + sine)
        total += (term(groups, kappa, rules, omega) * mu * cosine).real / (2 if j == 0 else 1)
    right = (kappa * mu).exp() * on_axis(groups, mu) * arb.pi() / mu
    left = 2 * arm(groups, kappa, mu, edge, arb(0), far, arb(0))
    turn = 2 * arb.pi() / h
    error = (right / ((turn * alpha).exp() - 1) + left / ((turn * (edge - alpha)).exp() - 1)) / (2 * arb.pi())
    error += arm(groups, kappa, mu, alpha, int(w["nodes"]) * h, far, h) / arb.pi()
    return total * h / arb.pi() + arb(0, error.abs_upper())


def arm(groups: Groups, kappa: arb, mu: arb, alpha: arb, start: arb, far: arb, slack: arb) -> arb:
    """[11], [12] ∫ |e^{κω} Λ dω / ω²| along one arm from u = start; with slack, the sum of its nodes."""
    sine, cosine = alpha.sin_cos()
    value_on_axis = ((kappa * mu * (1 - sine)).exp() * on_axis(groups, mu * (1 - sine))).max(arb(1))
    rising, cross = (arb.pi() / 4 + alpha / 2).tan(), (1 / sine).acosh()
    total, u = arb(0), start
    while True:
        near, weight = mu * (1 - sine * u.cosh()), ((u.cosh() + sine) / (u.cosh() - sine) ** 3).sqrt() / mu
        if near < 0 and u > 1 and u > far:
            break
        piece = ((u - cross) / 20).abs_upper().min(arb(1) / 32).max(arb(1) / 10**5)  # finer at Re ω = 0
        u += piece
        away = (1 - mu * (1 - sine * u.cosh())) ** 2 + (mu * cosine * u.sinh()) ** 2
        x = (2 * (rising * (u / 2).tanh()).atan() - arb.pi() / 2).max(arb(0))
        powers = (largest(mu * (u.cosh() - sine), away.sqrt(), x, v) ** n for n, v in groups)
        value = prod(powers, start=(kappa * near.min(arb(0))).exp())
        if not near < 0:
            value = value.max(value_on_axis)
        total += value.upper() * weight.upper() * (piece + slack)
    spread = sum((n * arb(v) for n, v in groups), arb(0))
    rest = (spread * alpha**2 / 2 + kappa * near).exp() / (2 * mu * (u / 2).sinh() ** 2)
    return total + rest * (1 + slack * (u / 2).coth())


def largest(size: arb, away: arb, x: arb, v: fmpq) -> arb:
    """[11] A bound on |L(ω)|: |ω| ≤ size, |1 − ω| ≤ away, arg ω ≤ π/2 + x."""
    s, turned = 1 / arb(v).sqrt(), (arb(v) * x * x / 2).exp()
    one, two = (z.log() / s + s / 2 for z in (2 / size, (1 + arb(5).sqrt()) / size))
    first = size * below(one - s) + 2 * below(-one)
    second = size**2 / 2 * (s * s).exp() * below(two - 2 * s) + size * below(s - two) + 2 * below(-two)
    return turned.min(1 + turned * first).min(away + turned * second).upper()


def below(x: arb) -> arb:
    """P(g < x) for a standard normal g; E[Z^j; Z < z] = e^{j(j−1)s²/2} P(g < log(z)/s + s/2 − js)."""
    return (-x / arb(2).sqrt()).erfc() / 2


def delta(groups: Groups, steps: int, epsilon: fmpq, sign: int, w: dict[str, Any]) -> arb:
    """[2], [3] δ as a ball: the put on X at κ = T e^{±ε} − (T − N), and parity."""
    ratio, visited = (sign * arb(epsilon)).exp(), sum(n for n, _ in groups)
    kappa = steps * ratio - (steps - visited)
    if sign < 0 and kappa <= 0:
        return arb(0)
    if visited == 1:
        sigma = arb(groups[0][1]).sqrt()
        d = kappa.log() * sigma
        put = kappa * below(d + 1 / (2 * sigma)) - below(d - 1 / (2 * sigma))
    elif w["kind"] == "Chernoff":
        half = chernoff(groups, kappa, arb(number(w["r"]))).upper() / 2
        put = arb(half.mid(), half.abs_upper())
    else:
        pairs = zip(groups, w["inner"], strict=True)
        rules = [
            Laplace(v, number(i["step"]), i["first"], i["last"], number(i["strip"])) for (_, v), i in pairs
        ]
        put = {"line": on_line, "hyperbola": on_hyperbola}[w["kind"]](groups, kappa, rules, w)
    return put / steps + 1 - ratio if sign > 0 else put / (steps * ratio)


def check(certificate: dict[str, Any]) -> None:
    """Raise ValueError unless the certificate is proved to be right."""
    body = {key: value for key, value in certificate.items() if key != "digest"}
    text = json.dumps(body, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    if hashlib.sha256(text.encode()).hexdigest() != certificate.get("digest"):
        raise ValueError("it was changed after it was written: its digest does not match")
    (groups, steps), epsilon = bins_of(certificate["mechanism"]), number(certificate["epsilon"])
    for name, sign in (("remove", 1), ("add", -1)):
        part, witness = certificate["directions"][name], certificate["directions"][name]["witness"]
        if witness == part["contour"]:
            raise ValueError(f"the witness of {name} is the prover's own contour")
        with ctx.workprec(int(witness["bits"])):
            lower, upper = arb(number(part["lower"])), arb(number(part["upper"]))
            ball = delta(groups, steps, epsilon, sign, witness)
            if not (ball >= lower and ball <= upper) and not (lower <= 0 and ball.upper() <= upper):
                raise ValueError(f"{name}: δ is in {ball.str(12)}, not proved to be in the stated interval")
            if lower > 0 and not upper - lower <= LIMIT * lower:
                raise ValueError(f"{name}: the interval is wider than a certificate may be")
    both, target = certificate["directions"].values(), certificate["target_delta"]
    for key in ("lower", "upper"):
        if number(certificate["delta"][key]) != max(number(part[key]) for part in both):
            raise ValueError(f"delta: its {key} bound is not the larger of the two directions")
    if target is not None and number(certificate["delta"]["upper"]) > number(target):
        raise ValueError("δ is not below the target that the certificate is for")


def main() -> None:
    """Check the file named on the command line."""
    certificate = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    try:
        check(certificate)
    except (ArithmeticError, KeyError, TypeError, ValueError) as reason:
        sys.exit(f"REFUSED: {reason!r}")
    print(f"PROVED: {certificate['delta']} at epsilon = {certificate['epsilon']!r}")


if __name__ == "__main__":
    main()
