"""One lattice of losses: a pair above and a pair below every factor, and the curves of their products.

A transform gives a whole sheet of the curve. Every ε is read from the sheet of a fixed place below it. If that one
does not serve it, and for whole curves, sheets are computed for the question alone. So no answer depends on what was
asked before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ballsbins.accounting.curve import ADD, REMOVE, Array, Curve, Direction
from ballsbins.accounting.epochs.fft import WindowError, compose, tilted_deviation, without_transform
from ballsbins.accounting.epochs.gathered import gathers, pair_below, support
from ballsbins.accounting.epochs.polygons import Pair, TooCoarse, bracket, choose_points, pair_above
from ballsbins.accounting.epochs.stretch import Stretch
from ballsbins.accounting.epochs.survey import Survey
from ballsbins.errors import AccuracyError

Pairs = list[tuple[Pair, int]]

# Every lattice gives valid bounds (B27 of docs/derivation.md); these numbers only choose lattices (B34).
MAX_NODES = 300_000  # most lattice points of one factor, to limit time and memory
_TRIES = 8  # attempts with finer lattices after one was too coarse
# a lattice is shifted if h exceeds edge/3; h is then at least 1.3 edges
SHIFTED, PAST_EDGE = 3, 1.3
_COARSER, _FINER_CELLS = 4, 2  # divide h and the width of cells by these if a lattice was too coarse
# places of sheets are at most this fraction of ε apart: a heavy tail may hide how narrow the rest is
_OF_EPSILON = 0.25
_LEVELS = 3  # how often to try shared sheets, each time those of places that are closer together
_MOST_PLACES = 4  # a question over more places is a curve: it gets sheets of its own, as wide as they can be


@dataclass(frozen=True, eq=False)
class Lattice:
    """Pairs below and above every factor, and the sheets of their products computed so far."""

    h: float
    floor: float
    finer: float
    below: Pairs
    above: Pairs
    accuracy: Callable[[Array], Array]  # wanted in ε
    _sheets: dict[tuple[Direction, bool, float, float], Stretch | None] = field(default_factory=dict)
    _widths: dict[tuple[Direction, bool, float], float] = field(default_factory=dict)

    def pairs(self, direction: Direction, *, upper: bool) -> Pairs:
        """The pairs of one side, with P and Q exchanged for "add"."""
        pairs = self.above if upper else self.below
        return pairs if direction == REMOVE else [(pair.swapped, count) for pair, count in pairs]

    def log_delta(
        self, epsilon: Array, direction: Direction, *, upper: bool
    ) -> tuple[Array, Array, NDArray[np.bool_]]:
        """Bound on log δ and −dlog δ/dε at increasing ε ≥ 0, and where no transform was good enough."""
        pairs = self.pairs(direction, upper=upper)
        value, slope = np.full(epsilon.size, np.nan), np.zeros(epsilon.size)
        failed = np.zeros(epsilon.size, dtype=bool)

        def read(sheet: Stretch, rows: NDArray[np.intp]) -> None:
            here = rows[(sheet.start <= epsilon[rows]) & (epsilon[rows] <= sheet.stop)]
            value[here], slope[here] = sheet.log_delta(epsilon[here])

        widths = np.array([self._width(float(e), direction, upper=upper) for e in epsilon])
        hopeless = np.zeros(epsilon.size, dtype=bool)
        for _ in range(_LEVELS):
            places, open_ = widths * np.floor(epsilon / widths), np.isnan(value) & ~hopeless
            needed = np.unique([widths[open_], places[open_]], axis=1).T.tolist()
            if len(needed) > _MOST_PLACES:
                break
            for width, place in needed:
                key = (direction, upper, place, width)
                if key not in self._sheets:
                    self._sheets[key] = self._compose(pairs, place, place + width, upper=upper)
                shared = self._sheets[key]
                here = np.flatnonzero(open_ & (widths == width) & (places == place))
                if shared is None or not shared.met or shared.stop <= place:
                    hopeless[here] = True
                else:  # where it does not serve, try places that are as close together as this one reaches
                    read(shared, here)
                    widths[here] = _power_of_2(shared.stop - place)
        while (left := np.flatnonzero(np.isnan(value))).size:
            start, stop = float(epsilon[left[0]]), float(epsilon[left[-1]])
            sheet = self._compose(pairs, start, stop, upper=upper)
            if sheet is None:
                value[left[0]], slope[left[0]] = without_transform(pairs, start, upper=upper)
            else:
                read(sheet, left)
            failed[left[0]] = sheet is None or not sheet.met
        return value, slope, failed

    def _compose(self, pairs: Pairs, start: float, stop: float, *, upper: bool) -> Stretch | None:
        try:
            return compose(
                pairs, start, stop, accuracy=float(self.accuracy(np.array([start]))[0]), upper=upper
            )
        except WindowError:
            return None

    def _width(self, epsilon: float, direction: Direction, *, upper: bool) -> float:
        """How far apart the places of sheets are near ε: a standard deviation of the tilted sum, at most ε/4."""
        near = _power_of_2(epsilon)
        key = (direction, upper, near)
        if key not in self._widths:
            deviation = tilted_deviation(self.pairs(direction, upper=upper), near)
            width = max(min(deviation, _OF_EPSILON * near) if near > 0.0 else deviation, self.h)
            self._widths[key] = _power_of_2(width)
        return self._widths[key]


def _power_of_2(x: float) -> float:
    """The next power of 2 below x, 0 for 0."""
    return math.ldexp(0.5, math.frexp(x)[1]) if x > 0.0 else 0.0


def build(
    parts: Sequence[tuple[Survey, Curve, int]],
    edge: float | None,
    spacing: tuple[float, float, float],
    accuracy: Callable[[Array], Array],
) -> Lattice:
    """Build a lattice of factors: the survey and the curve of each, and how often it occurs.

    `spacing` is h, the log δ below which tails are cut off, and how much finer than usual the cells are. If that is
    too coarse for a lower bound, h becomes smaller.
    """
    h, floor, finer = spacing
    for _ in range(_TRIES):
        shifted = edge is not None and h > edge / SHIFTED
        if shifted and edge is not None:
            h = max(h, PAST_EDGE * edge)
        try:
            below, above = [], []
            for survey, curve, count in parts:
                far = survey.reach(ADD, floor), survey.reach(REMOVE, floor)
                points = choose_points(h, far, survey.spacing(finer))
                if points.size > MAX_NODES:
                    raise AccuracyError(
                        f"A grid of {h:.1e} in ε would need {points.size:,} points for one run, more than "
                        f"{MAX_NODES:,}. Ask for less accuracy in ε or for a larger δ."
                    )
                if edge is None or not (shifted or gathers(curve, h, edge)):
                    low, high = bracket(curve, h, points)
                elif shifted:
                    high = pair_above(curve, h, points)
                    low = pair_below(curve, h, far[1], survey.spacing(finer), edge)
                else:
                    tau, slope = support(curve, h, edge)
                    k = math.ceil(tau / h)
                    h = tau / k
                    points = np.union1d(points, np.arange(-k - 1, -k + 3))
                    low, high = bracket(curve, h, points, support=(k, slope))
                below.append((low, count))
                above.append((high, count))
            return Lattice(h, floor, finer, below, above, accuracy)
        except TooCoarse:
            h, finer = min(h, edge or h) / _COARSER, finer / _FINER_CELLS
    raise AccuracyError(f"No lower bound can be had from this privacy curve on a grid of {h:.1e} in ε.")
