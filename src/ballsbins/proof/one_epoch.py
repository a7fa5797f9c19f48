"""Enclose δ of one epoch in one direction: choice of contour and step, and parity (docs/proof.md, steps 1 to 3)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from flint import arb, ctx, fmpq

from ballsbins.errors import AccuracyError
from ballsbins.proof import hyperbola, line
from ballsbins.proof.basket import Basket, Sketch, fmpq_float
from ballsbins.proof.hyperbola import Hyperbola, choose_hyperbola, put_on_hyperbola
from ballsbins.proof.line import Line, choose_line, put_on_line

MOST_NODES = 100_000  # most nodes of a contour, which take minutes; longer contours are refused
_DEEPEST = -300.0  # for a smaller log δ, only Chernoff's bound is given (`add`), or nothing (`remove`)
_NEXT_TO_NOTHING = arb(9) / arb(10) ** 201  # smaller Chernoff bounds are raised to this
_START = 23.0  # accuracy of the first try, in nats below the peak: a choice
_OTHER = 1.17  # a second contour of the same kind lies this many times as far right: a choice
_FEW_NODES = 1500  # prefer a second contour of the other kind if it has at most this many nodes: a choice
_MORE_BITS = 320  # extra bits of the checker for closed forms: a choice
_LINE_COST = 3.0  # a node of a line needs more bits and costs as much as 3 of a hyperbola: a choice


@dataclass(frozen=True)
class Bins:
    """One epoch of `steps` bins, some of them visited: groups of (count, σ²), with σ² an exact fraction."""

    groups: tuple[tuple[int, fmpq], ...]
    steps: int

    @property
    def visited(self) -> int:
        """How many bins were visited."""
        return sum(n for n, _ in self.groups)


@dataclass(frozen=True)
class Enclosure:
    """A ball that contains δ, and how it was obtained."""

    ball: arb
    contour: dict[str, Any] = field(default_factory=dict)

    @property
    def lower(self) -> arb:
        """The lower bound on δ, never below 0."""
        return self.ball.lower().max(arb(0))

    @property
    def upper(self) -> arb:
        """The upper bound on δ, never above 1."""
        return self.ball.upper().min(arb(1))


def enclose(
    bins: Bins, epsilon: fmpq, direction: str, tolerance: float, *, floor: float = 0.0, guess: float = 0.0
) -> Enclosure:
    """Enclose δ at ε ≥ 0 in one direction, to a relative width of about `tolerance` or an upper end below `floor`.

    A good `guess` of δ saves rounds; a wrong one costs some.

    Raises:
        AccuracyError: no contour of reasonable length encloses δ so tightly.
    """
    sign = 1 if direction == "remove" else -1
    if bins.visited == 1:
        return _closed_form(bins, epsilon, sign, tolerance)
    put = Put(bins, epsilon, sign)
    if put.worthless:
        return Enclosure(arb(0), {"kind": "the likelihood ratio never falls so low"})
    if sign < 0 and put.log_chernoff() < _DEEPEST:
        return Enclosure(
            _from_zero(put.chernoff().max(_NEXT_TO_NOTHING)), {"kind": "Chernoff", "r": put.saddle}
        )
    nats = _START if guess == 0 else max(put.peak + put.scale() - math.log(guess * tolerance) + 2.0, _START)
    for _ in range(12):
        ball, contour = put.divergence(nats)
        lower, upper = ball.lower(), ball.upper()
        if upper < floor:
            return Enclosure(ball, contour)
        if lower > 0 and (upper - lower) <= arb(tolerance) * lower:
            return Enclosure(ball, contour)
        if lower > 0:
            nats += max(float(((upper - lower) / lower).log().mid()) - math.log(tolerance), 0.0) + 2.5
        else:
            nats = nats + max(12.0, 0.6 * nats)
        if nats > -_DEEPEST:
            break
    raise AccuracyError(
        f"δ ({direction}) at ε = {fmpq_float(epsilon):g} could not be proved to a relative width of {tolerance:g}: "
        f"it is below {float(put.divergence_bound):.1e}, too small for this method. Ask at a smaller ε."
    )


def _from_zero(upper: arb) -> arb:
    half = upper.upper() / 2
    return arb(half.mid(), half.mid() + half.rad())


class Put:
    """The put behind one direction: E(κ − X)₊ with κ = T e^{±ε} − (T − N)."""

    def __init__(self, bins: Bins, epsilon: fmpq, sign: int) -> None:
        self.bins, self.epsilon, self.sign = bins, epsilon, sign
        groups = [(n, fmpq_float(v)) for n, v in bins.groups]
        eps = fmpq_float(epsilon)
        excess = bins.steps * math.expm1(sign * eps)
        self.basket = Basket(bins.groups, self.strike)
        self.worthless = excess + bins.visited <= 0 and self._proved_worthless()
        self.sketch = Sketch(groups, max(excess + bins.visited, 1e-300), excess)
        self.divergence_bound = arb(1)
        if not self.worthless:
            self.saddle = self.sketch.saddle
            self.peak = self.sketch.log_transform(self.saddle) - math.log(self.saddle)

    def ratio(self) -> arb:
        """e^{±ε} at the current precision."""
        return (arb(self.epsilon) * self.sign).exp()

    def strike(self) -> arb:
        """κ at the current precision."""
        return self.bins.steps * self.ratio() - (self.bins.steps - self.bins.visited)

    def _proved_worthless(self) -> bool:
        with ctx.workprec(256):
            return bool(self.strike() <= 0)

    def scale(self) -> float:
        """log of the factor that turns a put into a divergence."""
        return -math.log(self.bins.steps) + (fmpq_float(self.epsilon) if self.sign < 0 else 0.0)

    def log_chernoff(self) -> float:
        """Chernoff's bound on δ_add, in doubles."""
        return self.scale() + self.sketch.log_transform(self.saddle) - math.log(self.saddle) - 1

    def chernoff(self) -> arb:
        """Chernoff's bound, proved: (κ − x)₊ ≤ e^{r(κ−x)−1}/r."""
        with ctx.workprec(192):
            r = arb(self.saddle)
            return (self.strike() * r - 1).exp() * self.basket.at(r) / r / self.ratio() / self.bins.steps

    def divergence(self, nats: float) -> tuple[arb, dict[str, Any]]:
        """δ with an absolute error of about e^−nats times the peak of the integrand."""
        value, contour = self._invert(self.peak - nats)
        with ctx.workprec(int(3 * nats) + 128):
            ratio = self.ratio()
            if self.sign > 0:
                value = value / self.bins.steps + 1 - ratio
            else:
                value = value / (self.bins.steps * ratio)
            self.divergence_bound = value.upper()
            return value, contour

    def _invert(self, log_tolerance: float) -> tuple[arb, dict[str, Any]]:
        with ctx.workprec(128):
            path = choose_hyperbola(self.sketch, log_tolerance)
            line = None
            if path is None or path.nodes > 150:
                line = choose_line(self.sketch, log_tolerance)
            if line is not None and (path is None or _LINE_COST * line.nodes < path.nodes):
                path = None
            nodes = path.nodes if path is not None else line.nodes if line is not None else MOST_NODES + 1
            if nodes > MOST_NODES:
                raise AccuracyError(
                    f"A proof at {self.bins.steps:,} steps and ε = {fmpq_float(self.epsilon):g} would need a contour "
                    f"of more than {MOST_NODES:,} nodes. Ask at another ε, or use the exact accountant."
                )
            if path is not None:
                return self._on(path, log_tolerance)
            assert line is not None
            return self._on_line(line, log_tolerance)

    def _on(self, path: Hyperbola, log_tolerance: float) -> tuple[arb, dict[str, Any]]:
        value, bits = put_on_hyperbola(self.basket, path, self.nats(path, log_tolerance))
        return value, {"kind": "hyperbola", **vars(path), "bits": bits}

    def _on_line(self, line: Line, log_tolerance: float) -> tuple[arb, dict[str, Any]]:
        value, bits = put_on_line(self.basket, line, self.nats(line, log_tolerance))
        return value, {"kind": "line", **vars(line), "bits": bits}

    def nats(self, path: Hyperbola | Line, log_tolerance: float) -> float:
        """How far the tolerance is below the largest term on a contour."""
        first = path.mu * (1 - math.sin(path.alpha)) if isinstance(path, Hyperbola) else path.c
        return max(self.sketch.log_transform(first) - math.log(first), 0.0) - log_tolerance


def _closed_form(bins: Bins, epsilon: fmpq, sign: int, tolerance: float) -> Enclosure:
    """One visited bin, so Z alone: the Black–Scholes formula, with more bits until cancellation does no harm."""
    (_, sigma2), steps = bins.groups[0], bins.steps
    for bits in (128, 256, 512, 1024, 2048):
        with ctx.workprec(bits):
            ratio = (arb(epsilon) * sign).exp()
            strike = steps * ratio - (steps - 1)
            if sign < 0 and strike <= 0:
                return Enclosure(arb(0), {"kind": "the likelihood ratio never falls so low"})
            sigma = arb(sigma2).sqrt()
            high, low = (sigma * strike.log() + w / (2 * sigma) for w in (1, -1))
            if sign > 0:
                value = (_upper_tail(low) - strike * _upper_tail(high)) / steps
            else:
                value = (strike * _upper_tail(-high) - _upper_tail(-low)) / (steps * ratio)
            if value > 0 and value.upper() - value.lower() <= arb(tolerance) * value.lower() / 1000:
                return Enclosure(value, {"kind": "closed form", "bits": bits})
    raise AccuracyError("The closed form of one step cancels beyond 2,048 bits. Ask at a smaller ε.")


def _upper_tail(x: arb) -> arb:
    """P(g > x) for a standard normal g."""
    return (x / arb(2).sqrt()).erfc() / 2


def witness_for(
    bins: Bins, epsilon: fmpq, direction: str, tolerance: float, found: Enclosure
) -> dict[str, Any]:
    """A second contour for the checker, with the lattices of L (θ = 0) and the precision that it needs.

    The checker does not trust it: a poor contour only makes the check fail.
    """
    kind = found.contour["kind"]
    if kind not in ("hyperbola", "line"):
        return {**found.contour, "bits": found.contour.get("bits", 192) + _MORE_BITS}
    put = Put(bins, epsilon, 1 if direction == "remove" else -1)
    with ctx.workprec(128):
        log_tolerance = float((found.lower * arb(tolerance) / 4).log().mid()) - put.scale()
        path: Hyperbola | Line | None
        if kind == "hyperbola":
            path = choose_line(put.sketch, log_tolerance)
            if path is None or path.nodes > _FEW_NODES:
                path = choose_hyperbola(put.sketch, log_tolerance, _OTHER)
        else:
            path = choose_hyperbola(put.sketch, log_tolerance)
            if path is None or path.nodes > _FEW_NODES:
                path = choose_line(put.sketch, log_tolerance, _OTHER)
        if path is None or path.nodes > MOST_NODES:
            raise AccuracyError("No second contour of reasonable length was found. Ask at another ε.")
        nats = put.nats(path, log_tolerance)
        module, kind = (line, "line") if isinstance(path, Line) else (hyperbola, "hyperbola")
        product = module.product_on(put.basket, path, nats, upright=True)
    inner = [{"step": x.step, "first": x.first, "last": x.last, "strip": x.strip} for x in product.lattices]
    return {"kind": kind, **vars(path), "inner": inner, "bits": math.ceil(product.bits)}
