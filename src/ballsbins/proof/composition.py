"""Several epochs with redrawn bins, and Poisson steps: pairs above and below, composed (docs/proof.md, 13 to 18).

For one part of the run, f(K) = E(S − K)₊ is enclosed at some nodes K = e^{ih}. A convex polygon through the upper
ends lies above f, and one through the lower ends minus the largest gap of a chord lies below. Both are curves of
pairs whose losses are multiples of h, so they are polynomials, whose powers are computed in balls. With thousands of
steps, a few are multiplied at a time, and polygons of their curve on a coarser lattice replace them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from flint import arb, arb_poly, ctx, fmpq

from ballsbins.errors import AccuracyError
from ballsbins.proof.budget import spend
from ballsbins.proof.one_epoch import Bins, enclose

_BITS = 192  # precision of everything after the enclosures: masses of 1e-25 keep thirty digits
_RELATIVE = 1e-6  # relative width of the enclosures at the nodes: a choice
_TAIL = 1e-4  # fraction of δ that may be lost at each end of a part and of a power: a choice
_DROP = 0.15  # largest fall of log f between nodes that are several lattice points apart: a choice
POINTS = 20  # lattice points per standard deviation of one part, at the first try: a choice
# after multiplying 64 factors, make the lattice coarser by the square root of their number: a choice
_AT_ONCE, _COARSER = 64, 8
_DIRECT = 128  # up to this many factors are multiplied on one lattice
MOST_COEFFICIENTS = 1_000_000  # of a polynomial: a few seconds per product; longer ones are refused


@dataclass(frozen=True)
class Node:
    """A point of the curve: i, K = e^{ih}, and the out-of-the-money value E(S − K)₊ − (1 − K)₊."""

    index: int
    strike: arb
    value: arb


def intrinsic(node: Node) -> arb:
    """(1 − K)₊."""
    return arb(0) if node.index >= 0 else 1 - node.strike


def above(nodes: Sequence[Node]) -> list[tuple[Node, arb]]:
    """A convex polygon above f: the lower convex hull of the upper ends and of (0, 1)."""
    zero = Node(nodes[0].index - 1, arb(0), arb(0))
    points = [(zero, arb(1)), *((node, node.value.upper() + intrinsic(node)) for node in nodes)]
    hull: list[tuple[Node, arb]] = []
    for point in points:
        while len(hull) > 1 and not _over_chord(hull[-2], hull[-1], point) < 0:
            hull.pop()  # leaving out a vertex only raises the polygon
        hull.append(point)
    return hull


def below(nodes: Sequence[Node]) -> list[tuple[Node, arb]]:
    """A convex polygon below f: the lower convex hull of the lower ends minus the gaps of the chords beside them."""
    value = [node.value + intrinsic(node) for node in nodes]
    width = [b.strike - a.strike for a, b in pairwise(nodes)]
    slope = [arb(-1), *((b - a) / w for a, b, w in zip(value, value[1:], width, strict=False)), arb(0)]
    gaps = []
    for i, w in enumerate(width):
        left, right = ((slope[i + 1 + j] - slope[i + j]).upper().max(arb(0)) for j in (0, 1))
        gaps.append(arb(0) if left == 0 or right == 0 else (left * right / (left + right) * w).upper())
    beside = [a.max(b) for a, b in zip([arb(0), *gaps], [*gaps, arb(0)], strict=True)]
    reduced = [(node.value.lower() - gap).lower() for node, gap in zip(nodes, beside, strict=True)]
    centre = next(i for i, node in enumerate(nodes) if node.index == 0)
    if not reduced[centre] > 0:
        raise AccuracyError("The lattice is too coarse for a lower bound. Use the exact accountant.")
    low = high = centre
    while low > 0 and reduced[low - 1] > 0:
        low -= 1
    while high < len(nodes) - 1 and reduced[high + 1] > 0:
        high += 1
    if centre in (low, high):
        raise AccuracyError("The lattice is too coarse for a lower bound. Use the exact accountant.")
    for end in (low, high):
        reduced[end] = arb(0)
    points = [(nodes[i], reduced[i] + intrinsic(nodes[i])) for i in range(low, high + 1)]
    hull: list[tuple[Node, arb]] = []
    for point in points:
        while len(hull) > 1:
            over = _over_chord(hull[-2], hull[-1], point)
            if over < 0:
                break
            if not over >= 0:
                raise ArithmeticError("three vertices are on one line to all digits")
            hull.pop()  # a vertex above the chord: leaving it out lowers the polygon
        hull.append(point)
    return hull


def _over_chord(a: tuple[Node, arb], b: tuple[Node, arb], c: tuple[Node, arb]) -> arb:
    """How far b is above the chord from a to c, times a positive number."""
    return (b[1] - a[1]) * (c[0].strike - a[0].strike) - (c[1] - a[1]) * (b[0].strike - a[0].strike)


def jumps(polygon: Sequence[tuple[Node, arb]]) -> tuple[int, arb_poly]:
    """The jumps of the slope, which is −1 left of the first vertex and 0 right of the last: Q's masses."""
    vertices = [vertex for vertex in polygon if vertex[0].strike > 0]
    slopes = [(d - b) / (c.strike - a.strike) for (a, b), (c, d) in pairwise(polygon)]
    if len(vertices) == len(polygon):
        slopes = [arb(-1), *slopes]
    slopes.append(arb(0))
    first, last = vertices[0][0].index, vertices[-1][0].index
    coefficients = [arb(0)] * (last - first + 1)
    for (node, _), left, right in zip(vertices, slopes, slopes[1:], strict=False):
        coefficients[node.index - first] = (right - left).lower().max(arb(0))
    return first, arb_poly(coefficients)


@dataclass(frozen=True)
class Masses:
    """Q's masses on the losses ih, from i = `first` on; the rest of the mass of 1 is outside, or at ±∞."""

    first: int
    poly: arb_poly

    def __mul__(self, other: Masses) -> Masses:
        """Independent runs: losses add up."""
        return Masses(self.first + other.first, self.poly * other.poly)

    def nodes(self, step: fmpq, every: int, missing: Callable[[arb, arb, arb], arb]) -> list[Node]:
        """The curve at each `every`-th lattice point; `missing(K, rp, rq)` is what the dropped masses add to it."""
        q = self.poly.coeffs()
        growth, factor = (arb(step) * self.first).exp(), arb(step).exp()
        p = []
        for mass in q:
            p.append(mass * growth)
            growth *= factor
        rest_p, rest_q = ((1 - sum(row, arb(0))).max(arb(0)) for row in (p, q))
        found = []
        # i runs over the coarse lattice; for K < 1 sum the masses below, for K ≥ 1 those above
        low, high = -(-self.first // every) - 1, (self.first + len(q) - 1) // every + 1
        for sign in (-1, 1):
            sum_p, sum_q = arb(0), arb(0)
            at = 0 if sign < 0 else len(q) - 1
            points = range(low, min(high, -1) + 1) if sign < 0 else range(high, max(low, 0) - 1, -1)
            for i in points:
                while 0 <= at < len(q) and sign * (self.first + at - i * every) > 0:
                    sum_p, sum_q, at = sum_p + p[at], sum_q + q[at], at - sign
                strike = (arb(step) * (i * every)).exp()
                value = sign * (sum_p - strike * sum_q) + missing(strike, rest_p, rest_q)
                found.append(Node(i, strike, value.max(arb(0))))
        return sorted(found, key=lambda node: node.index)


def revealed(strike: arb, rest_p: arb, rest_q: arb) -> arb:
    """Missing mass reveals everything: it has losses of ±∞, for the pair above."""
    return rest_p if strike >= 1 else strike * rest_q


def merged(strike: arb, rest_p: arb, rest_q: arb) -> arb:
    """Missing mass is merged into one outcome, which is post-processing, for the pair below."""
    gain = rest_p - strike * rest_q
    return (gain if strike >= 1 else -gain).max(arb(0))


def _coarse_above(masses: Masses, step: fmpq) -> Masses:
    return Masses(*jumps(above(masses.nodes(step, _COARSER, revealed))))


def _coarse_below(masses: Masses, step: fmpq) -> Masses:
    return Masses(*jumps(below(masses.nodes(step, _COARSER, merged))))


class Part:
    """One epoch, an unfinished one, or one Poisson step, run `count` times."""

    def __init__(self, bins: Bins, count: int) -> None:
        """Take what is run, and how often."""
        self.bins, self.count = bins, count

    @cached_property
    def deviation(self) -> float:
        """About the standard deviation of S: 2.5 E(S − 1)₊."""
        return 2.5 * float(enclose(self.bins, fmpq(0), "remove", 1e-2).ball.mid())

    def value(self, k: fmpq, floor: float, guess: float) -> arb:
        """The out-of-the-money value at K = e^k; a value below `floor` need not have a small relative width."""
        if k >= 0:
            return enclose(self.bins, k, "remove", _RELATIVE, floor=floor, guess=guess).ball
        ball = enclose(self.bins, -k, "add", _RELATIVE, floor=floor, guess=guess).ball
        return ball * arb(k).exp()

    def nodes(self, h: fmpq, floor: float, sparse: int) -> list[Node]:
        """Nodes on both sides until the values are below `floor`, up to |i|/`sparse` lattice points apart."""
        found = [self._node(0, h, floor, 0.0)]
        for sign in (1, -1):
            i, node, drop = 0, found[0], math.inf
            while node.value.upper() >= floor:
                jump = max(1, min(abs(i) // sparse, int(_DROP / drop)))
                i += sign * jump
                _refuse_long(abs(i))
                last, node = node, self._node(i, h, floor, max(float(node.value.mid()) / 2, floor))
                if node.value > 0:
                    drop = max(float((last.value / node.value).log().mid()) / jump, 1e-9)
                found.append(node)
        return sorted(found, key=lambda node: node.index)

    def _node(self, i: int, h: fmpq, floor: float, guess: float) -> Node:
        spend()
        with ctx.workprec(_BITS):
            value = self.value(i * h, floor, guess)
            strike = (arb(h) * i).exp()
            most = arb(1) if i >= 0 else strike
            lower, upper = value.lower().max(arb(0)), value.upper().min(most)
            return Node(i, strike, lower.union(upper))


Factors = list[tuple[Masses, int]]


class Composition:
    """All parts together: δ at any ε, between a pair below and a pair above."""

    def __init__(self, parts: Sequence[Part], smallest: float, points: int = POINTS) -> None:
        """Compose for δ down to about `smallest`, with `points` lattice points per standard deviation of a part."""
        self.parts, self.smallest, self.points = parts, smallest, points
        self.count = sum(part.count for part in parts)
        self.first_step = _binary(min(part.deviation for part in parts) / self.points)
        self.nodes = 0

    def finer(self, times: int) -> Composition:
        """The same composition on a lattice that is `times` times finer."""
        return Composition(self.parts, self.smallest, self.points * times)

    @property
    def facts(self) -> dict[str, Any]:
        """How the enclosure is computed, for a certificate."""
        (lower, upper), step = self.pairs
        return {
            "kind": "composition",
            "smallest": self.smallest,
            "points": self.points,
            "step": str(step),
            "nodes": self.nodes,
            "coefficients": max(lower.poly.length(), upper.poly.length()),
            "bits": _BITS,
        }

    @cached_property
    def pairs(self) -> tuple[tuple[Masses, Masses], fmpq]:
        """(below, above), and the step of their lattice."""
        with ctx.workprec(_BITS):
            lower: Factors = []
            upper: Factors = []
            for part in self.parts:
                nodes = part.nodes(self.first_step, self.smallest * _TAIL / self.count, self.points)
                self.nodes += len(nodes)
                lower.append((Masses(*jumps(below(nodes))), part.count))
                upper.append((Masses(*jumps(above(nodes))), part.count))
            step = self.first_step
            while max(count for _, count in upper) > _DIRECT:
                lower = [(_coarse_below(m, step), n) for m, n in self._fewer(lower, step)]
                upper = [(_coarse_above(m, step), n) for m, n in self._fewer(upper, step)]
                step *= _COARSER
            return (self._product(lower, step), self._product(upper, step)), step

    def _fewer(self, factors: Factors, step: fmpq) -> Factors:
        """The same product with fewer factors: each combines `_AT_ONCE` old ones, and one takes the rest."""
        made = [(self._power(m, _AT_ONCE, step), n // _AT_ONCE) for m, n in factors if n >= _AT_ONCE]
        rest = [(m, n % _AT_ONCE) for m, n in factors if n % _AT_ONCE]
        return [*made, (self._product(rest, step), 1)] if rest else made

    def _product(self, factors: Factors, step: fmpq) -> Masses:
        result: Masses | None = None
        for base, count in factors:
            power = self._power(base, count, step)
            result = power if result is None else self._trimmed(result * power, step)
        assert result is not None
        return result

    def _power(self, base: Masses, count: int, step: fmpq) -> Masses:
        """The count-fold product; ends of little mass are dropped, which `delta` accounts for."""
        result = base
        for bit in bin(count)[3:]:
            result = self._trimmed(result * result, step)
            if bit == "1":
                result = self._trimmed(result * base, step)
        return result

    def _trimmed(self, masses: Masses, step: fmpq) -> Masses:
        spend()
        spare = self.smallest * _TAIL / self.count
        coefficients = masses.poly.coeffs()
        q = np.array([float(c.mid()) for c in coefficients])
        if not len(q):
            return masses
        with np.errstate(over="ignore"):
            p = q * np.exp(np.minimum((masses.first + np.arange(len(q))) * float(arb(step)), 700.0))
        low = int(np.searchsorted(np.cumsum(q), spare))
        high = len(q) - int(np.searchsorted(np.cumsum(p[::-1]), spare))
        _refuse_long(high - low)
        return Masses(masses.first + low, arb_poly(coefficients[low:high]))

    def delta(self, epsilon: fmpq, direction: str) -> arb:
        """A ball that contains δ: from the pair below without the dropped mass to the pair above with all of it."""
        with ctx.workprec(_BITS):
            (lower, upper), _ = self.pairs
            least = self._divergence(lower, epsilon, direction)[0].lower().max(arb(0))
            value, kept = self._divergence(upper, epsilon, direction)
            most = (value + 1 - kept).upper().min(arb(1))
            return least.union(most)

    def _divergence(self, masses: Masses, epsilon: fmpq, direction: str) -> tuple[arb, arb]:
        """Σ (p − e^ε q)₊ and Σ p; or the same with p and q exchanged."""
        step = self.pairs[1]
        ratio, factor = arb(epsilon).exp(), arb(step).exp()
        growth = (arb(step) * masses.first).exp()
        value, kept = arb(0), arb(0)
        for q in masses.poly.coeffs():
            p = q * growth
            one, other = (p, q) if direction == "remove" else (q, p)
            kept += one
            gain = one - ratio * other
            if gain > 0:
                value += gain
            elif not gain <= 0:
                value += gain.nonnegative_part()
            growth *= factor
        return value, kept


def _binary(x: float) -> fmpq:
    """About x, as a fraction of sixty bits."""
    return fmpq(*float(np.ldexp(np.round(np.ldexp(x, 60)), -60)).as_integer_ratio())


def _refuse_long(length: int) -> None:
    if length > MOST_COEFFICIENTS:
        raise AccuracyError(
            f"The composition needs a lattice of {length:,} points; at most {MOST_COEFFICIENTS:,} are tried. "
            "Ask for fewer epochs or steps, or use the exact accountant."
        )
