"""Several epochs with redrawn bins, and Poisson steps: pairs above and below, composed (docs/proof.md, 13 to 17).

f(K) = E(S − K)₊ of one part of the run is enclosed at some nodes K = e^{ih}. A convex polygon through the upper ends
lies above f, one through the lower ends less the largest gap of a chord lies below. Both are curves of pairs whose
losses are multiples of h: polynomials, whose powers are computed in balls.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from flint import arb, arb_poly, ctx, fmpq

from ballsbins.errors import AccuracyError
from ballsbins.proof.one_epoch import Bins, enclose

_BITS = 320  # of all that follows the enclosures
_RELATIVE = 1e-7  # width of the enclosures at the nodes: a choice
_PER_DEVIATION = 14  # lattice points per standard deviation of one part, or so: a choice
_SPARSE = 20  # nodes are |i|/20 lattice points apart: a choice
_DEVIATIONS = 12  # of the sum of all losses that a lattice has to span at least: a choice
_TAIL = 1e-5  # of δ, that may be lost at each end of a part and of a power: a choice
MOST_COEFFICIENTS = 400_000  # of a polynomial; some seconds per product. Beyond, the question is refused


@dataclass(frozen=True)
class Masses:
    """Q's masses on the losses ih, from i = `first` on; what is missing to 1 is outside, or at ±∞."""

    first: int
    poly: arb_poly

    def __mul__(self, other: Masses) -> Masses:
        """Independent runs: losses add up."""
        return Masses(self.first + other.first, self.poly * other.poly)


@dataclass(frozen=True)
class Node:
    """A point of the curve: i, K = e^{ih}, and the out-of-the-money value E(S − K)₊ − (1 − K)₊."""

    index: int
    strike: arb
    value: arb


class Part:
    """One epoch, an unfinished one, or one Poisson step, run `count` times."""

    def __init__(self, bins: Bins, count: int) -> None:
        """Name what is run, and how often."""
        self.bins, self.count = bins, count

    @cached_property
    def deviation(self) -> float:
        """About the standard deviation of S: 2.5 E(S − 1)₊."""
        return 2.5 * float(enclose(self.bins, fmpq(0), "remove", 1e-2).ball.mid())

    def value(self, k: fmpq, floor: float, guess: float) -> arb:
        """The out-of-the-money value at K = e^k; what is below `floor` need not be known to a relative width."""
        if k >= 0:
            return enclose(self.bins, k, "remove", _RELATIVE, floor=floor, guess=guess).ball
        ball = enclose(self.bins, -k, "add", _RELATIVE, floor=floor, guess=guess).ball
        return ball * arb(k).exp()

    def nodes(self, h: fmpq, floor: float) -> list[Node]:
        """Nodes on both sides until the values are below `floor`, farther apart farther out."""
        found = [self._node(0, h, floor, 0.0)]
        for sign in (1, -1):
            i, node = 0, found[0]
            while True:
                i += sign * max(1, abs(i) // _SPARSE)
                if abs(i) > MOST_COEFFICIENTS:
                    raise AccuracyError(
                        "The losses of one part spread too far for a lattice. Use the exact accountant."
                    )
                node = self._node(i, h, floor, max(float(node.value.mid()) / 2, floor))
                found.append(node)
                if node.value.upper() < floor:
                    break
        return sorted(found, key=lambda node: node.index)

    def _node(self, i: int, h: fmpq, floor: float, guess: float) -> Node:
        with ctx.workprec(_BITS):
            value = self.value(i * h, floor, guess)
            strike = (arb(h) * i).exp()
            most = arb(1) if i >= 0 else strike
            lower, upper = value.lower().max(arb(0)), value.upper().min(most)
            return Node(i, strike, lower.union(upper))


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
    """A convex polygon below f: lower ends less the gap of the chords beside them, and what is convex of that."""
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
    """By how much b is above the chord from a to c, times a positive number."""
    return (b[1] - a[1]) * (c[0].strike - a[0].strike) - (c[1] - a[1]) * (b[0].strike - a[0].strike)


def masses(polygon: Sequence[tuple[Node, arb]], before: arb) -> Masses:
    """The jumps of the slope, which is `before` left of the polygon and 0 right of it."""
    vertices = [vertex for vertex in polygon if vertex[0].strike > 0]
    slopes = [(d - b) / (c.strike - a.strike) for (a, b), (c, d) in pairwise(polygon)]
    if len(vertices) == len(polygon):
        slopes = [before, *slopes]
    slopes.append(arb(0))
    first, last = vertices[0][0].index, vertices[-1][0].index
    coefficients = [arb(0)] * (last - first + 1)
    for (node, _), left, right in zip(vertices, slopes, slopes[1:], strict=False):
        coefficients[node.index - first] = (right - left).lower().max(arb(0))
    return Masses(first, arb_poly(coefficients))


class Composition:
    """All parts together: δ at any ε, between a pair below and a pair above."""

    def __init__(self, parts: Sequence[Part], smallest: float) -> None:
        """Compose for δ down to about `smallest`."""
        self.parts, self.smallest = parts, smallest
        total = math.sqrt(sum(part.count * part.deviation**2 for part in parts))
        least = min(part.deviation for part in parts)
        step = max(least / _PER_DEVIATION, total / 2000) if len(parts) > 1 else least / _PER_DEVIATION
        self.step = fmpq(*float(np.ldexp(np.round(np.ldexp(step, 60)), -60)).as_integer_ratio())
        self.count = sum(part.count for part in parts)
        self.nodes = 0

    @property
    def facts(self) -> dict[str, Any]:
        """How the enclosure is computed, for a certificate."""
        length = max(pair.poly.length() for pair in self.pairs)
        return {
            "kind": "composition",
            "smallest": self.smallest,
            "step": str(self.step),
            "nodes": self.nodes,
            "coefficients": length,
            "bits": _BITS,
        }

    @cached_property
    def pairs(self) -> tuple[Masses, Masses]:
        """(below, above)."""
        spread = math.sqrt(sum(part.count * part.deviation**2 for part in self.parts)) / float(arb(self.step))
        _refuse_long(int(_DEVIATIONS * spread))
        ends: list[Masses | None] = [None, None]
        with ctx.workprec(_BITS):
            for part in self.parts:
                nodes = part.nodes(self.step, self.smallest * _TAIL / self.count)
                self.nodes += len(nodes)
                for side, polygon in enumerate((below(nodes), above(nodes))):
                    power = self._power(masses(polygon, arb(-1)), part.count)
                    old = ends[side]
                    ends[side] = power if old is None else old * power
        assert ends[0] is not None
        assert ends[1] is not None
        return ends[0], ends[1]

    def _power(self, base: Masses, count: int) -> Masses:
        """The count-fold product; ends of little mass are dropped, which `delta` accounts for."""
        result: Masses | None = None
        done = 0
        for bit in bin(count)[2:]:
            if result is not None:
                result, done = self._trimmed(result * result, 2 * done), 2 * done
            if bit == "1":
                result, done = base if result is None else self._trimmed(result * base, done + 1), done + 1
        assert result is not None
        return result

    def _trimmed(self, masses: Masses, done: int) -> Masses:
        spare = self.smallest * _TAIL * done / self.count
        coefficients = [float(c.mid()) for c in masses.poly.coeffs()]
        if not coefficients:
            return masses
        q = np.array(coefficients)
        with np.errstate(over="ignore"):
            p = q * np.exp(np.minimum((masses.first + np.arange(len(q))) * float(arb(self.step)), 700.0))
        low = int(np.searchsorted(np.cumsum(q), spare))
        high = len(q) - int(np.searchsorted(np.cumsum(p[::-1]), spare))
        _refuse_long(high - low)
        return Masses(masses.first + low, arb_poly(masses.poly.coeffs()[low:high]))

    def delta(self, epsilon: fmpq, direction: str) -> arb:
        """A ball that holds δ: from the pair below without, to the pair above with all that was dropped."""
        with ctx.workprec(_BITS):
            lower, upper = self.pairs
            least = self._divergence(lower, epsilon, direction)[0].lower().max(arb(0))
            value, kept = self._divergence(upper, epsilon, direction)
            most = (value + 1 - kept).upper().min(arb(1))
            return least.union(most)

    def _divergence(self, masses: Masses, epsilon: fmpq, direction: str) -> tuple[arb, arb]:
        """Σ (p − e^ε q)₊ and Σ p; or the same with p and q exchanged."""
        ratio, factor = arb(epsilon).exp(), arb(self.step).exp()
        growth = (arb(self.step) * masses.first).exp()
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


def _refuse_long(length: int) -> None:
    if length > MOST_COEFFICIENTS:
        raise AccuracyError(
            f"The composition needs a lattice of {length:,} points; at most {MOST_COEFFICIENTS:,} are tried. "
            "Ask for fewer epochs or steps, or use the exact accountant."
        )
