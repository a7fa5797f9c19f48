"""The product of privacy curves: several epochs, several steps, an unfinished epoch after whole ones.

Each factor can be any `Curve` with a stated error, and the result is a `Curve` again. Two modules do the work:
`polygons` builds a pair above and a pair below every factor, on one lattice of losses, and `fft` computes their
products. This module chooses the lattice: its range follows from the requested δ, its spacing h from the
requested accuracy in ε.

A cell of width h adds about h²/6 to the variance of one factor (upper) and takes about h²/8 (lower), so after
n factors, at tilt θ ≈ −dlog δ/dε, log δ is known to ½θ(θ+1)·0.3·n·h² and ε to 0.15·(θ+1)·n·h². The first h comes
from this formula. The gap between the two bounds is known and then shows by how much h must shrink: the error is
of second order, so by the square root of the ratio. Also, h must not exceed the step E|S−1| of one factor: the
error would then be of first order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ballsbins.accounting.curve import (
    ADD,
    ANSWER,
    DIRECTIONS,
    REMOVE,
    Array,
    Curve,
    Direction,
    Interval,
    other,
)
from ballsbins.accounting.epochs.fft import WindowError, compose, log_infinity, without_transform
from ballsbins.accounting.epochs.gathered import gathers, pair_below, support
from ballsbins.accounting.epochs.polygons import Pair, TooCoarse, bracket, choose_points, pair_above
from ballsbins.accounting.epochs.stretch import Chernoff, Stretch
from ballsbins.accounting.epochs.survey import FLAT, Cumulants, Survey, spread_allowed
from ballsbins.errors import AccuracyError

# Every lattice gives valid bounds (B27 of docs/derivation.md); these numbers only choose lattices (B34).
MAX_NODES = 300_000  # most lattice points of one factor, to limit time and memory
# tails below e^−1300 are treated as 0, and so is δ below e^{−1300/1.8} = 10⁻³¹⁴
LEAST_LOG, _UNDERFLOW = -1300.0, 1.8
# stop refining a direction whose log δ is this far below the other's: it cannot decide
_NEGLIGIBLE_GAP = 25.0
_TAIL_SHARE = 1e-4  # fraction of the allowed error spent on truncated tails
_KEPT = 8  # lattices kept in memory
_LARGEST_TILT = 1e6  # largest tilt θ tried for a guess
_BELOW_MEAN = 1e-3  # for an ε below the mean loss, guess δ this many deviations below the mean instead
_FIRST_FLOOR = -60.0  # log δ down to which factors are surveyed at first
_SOME, _SOME_SPACINGS = 7, 9  # how many of the given ε are sampled to choose a floor, and to choose a spacing
_LOOKS, _TRIES = 8, 8  # limits: deeper surveys, and finer lattices after one was too coarse
_DEEPER, _DEEPER_MORE = 1.05, 4  # the floor lies 5 % and e⁻⁴ below the least guessed log δ
_HALF_VARIANCE = 0.15  # effect of h on ε, as a fraction of (θ + 1)·n·h²: half of `survey.VARIANCE_SHARE`
_FIRST_SHARE = 0.5  # the first h aims at this fraction of the accuracy
# how wide a lattice may be, as a fraction of the step ½E|S−1| and of the edge; see `_widest`
_WIDEST, _SHIFTED_STEP = 0.6, 0.5
# a lattice is shifted if h exceeds edge/3; h is then at least 1.3 edges
_SHIFTED, _UNSHIFTED, _PAST_EDGE = 3, 4, 1.3
_COARSER, _FINER_CELLS = 4, 2  # divide h and the width of cells by these if a lattice was too coarse
_FLOOR_UNIT, _FLOOR_RATIO = 30.0, 4 / 3  # floors are −30·(4/3)^k, so that few lattices serve all questions
_DECIDED, _DECIDED_MORE = 1.1, 0.5  # the other direction decides if its guessed log δ is above by 10 % and ½
_GAINING = 0.7  # stop refining if more than this fraction of the gap is left
_NOTHING_KNOWN = -1e-3  # an upper log δ above this, without a lower bound, says nothing
# position of the value between two second-order bounds, to leading order: h²/8 from below, h²/6 from above
_BETWEEN = 0.43
_AIM, _MOST_FINER = 0.85, 0.125  # the next h aims at this fraction of the wanted gap; least factor on h
_SHOWS = 0.05  # a truncated tail is visible if it exceeds this fraction of the wanted gap


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The accuracy wanted in ε: upper − lower ≤ max(relative·ε, absolute)."""

    relative: float = 1e-3
    absolute: float = 1e-4

    def at(self, epsilon: Array) -> Array:
        return np.maximum(self.relative * np.abs(epsilon), self.absolute)


@dataclass(frozen=True, eq=False)
class _Lattice:
    """Pairs below and above every factor, and the sheets of their products computed so far."""

    h: float
    floor: float
    finer: float
    below: list[tuple[Pair, int]]
    above: list[tuple[Pair, int]]
    sheets: dict[tuple[Direction, bool], list[Stretch | Chernoff]]

    accuracy: Accuracy
    failures: dict[Direction, WindowError]

    def log_delta(self, epsilon: Array, direction: Direction, *, upper: bool) -> tuple[Array, Array]:
        """Bound on log δ and −dlog δ/dε at increasing ε ≥ 0."""
        sheets = self.sheets.setdefault((direction, upper), [])
        pairs = self.above if upper else self.below
        if direction == ADD:
            pairs = [(pair.swapped, count) for pair, count in pairs]
        value, slope = np.full(epsilon.size, np.nan), np.zeros(epsilon.size)
        while True:
            for sheet in sheets:
                here = np.isnan(value) & (sheet.start <= epsilon) & (epsilon <= sheet.stop)
                if here.any():
                    value[here], slope[here] = sheet.log_delta(epsilon[here])
            left = np.flatnonzero(np.isnan(value))
            if not left.size:
                return value, slope
            start, stop = float(epsilon[left[0]]), float(epsilon[left[-1]])
            accuracy = float(self.accuracy.at(epsilon[left[:1]])[0])
            try:
                sheets.insert(0, compose(pairs, start, stop, accuracy=accuracy, upper=upper))
            except WindowError as error:
                self.failures[direction] = error
                sheets.insert(0, without_transform(pairs, start, upper=upper))


class ComposedCurve(Curve):
    """The privacy curve of `count` independent runs of each of several mechanisms, one after the other."""

    def __init__(
        self,
        parts: Sequence[tuple[Curve, int]],
        accuracy: Accuracy | None = None,
        edge: float | None = None,
        around: Curve | None = None,
    ) -> None:
        """Take `parts`: the curve of each single run, and how often it is run.

        If the loss is bounded on the left and concentrates there, the bound is −`edge` (see `gathered.py`).
        `around` is another curve of the product: its bounds are used where no lattice gives any.
        """
        self._runs = [(curve, count) for curve, count in parts if count > 0]
        self.confidence = min((curve.confidence for curve, _ in self._runs), default=1.0)
        self.accuracy = accuracy or Accuracy()
        self._edge = edge
        self._around = around
        self._surveys: list[Survey] = []
        self._coarse: dict[Direction, Cumulants] = {}
        self._lattices: dict[tuple[int, int], _Lattice] = {}

    kind = "bracket"
    method = "composition"

    @property
    def parts(self) -> list[tuple[Curve, int]]:
        """Curves of the single runs."""
        return self._runs

    def at(self, epsilon: Array, direction: Direction) -> Interval:
        """Bounds on log δ whose distance, converted to a distance in ε, is within the requested accuracy."""
        size, back = np.unique(epsilon, return_inverse=True)
        found = np.empty((3, size.size))
        for group in self._groups(size, direction):
            found[:, group] = self._positive(size[group], direction)
        lower, value, upper = found[:, back]
        return Interval(lower - ANSWER, np.minimum(value, 0.0), np.minimum(upper + ANSWER, 0.0))

    def estimate(self, epsilon: float, direction: Direction) -> float:
        """Guess log δ by the saddlepoint formula on a coarse grid: not a bound, but almost free."""
        return self._saddles(np.array([epsilon]), direction)[0][0]

    def _saddles(self, epsilon: Array, direction: Direction) -> list[tuple[float, float]]:
        """The guess of log δ, and the tilt θ there, at each ε."""
        cumulants = self._cumulants(direction)
        guesses = []
        for e in epsilon:
            theta = cumulants.solve(float(e), _LARGEST_TILT)
            kappa, mean, variance = cumulants.at(theta)
            if theta == 0:
                guess = math.log(-math.expm1(min(float(e) - mean, -_BELOW_MEAN * math.sqrt(variance))))
            else:
                decline = math.log1p(theta * (1 + theta) * math.sqrt(2 * math.pi * variance))
                guess = kappa - theta * float(e) - decline
            guesses.append((min(0.0, guess), theta))
        return guesses

    def _cumulants(self, direction: Direction) -> Cumulants:
        known = self._coarse.get(direction)
        if known is None:
            counted = zip(self._survey(), self._counts, strict=True)
            known = Cumulants([survey.atoms(count, direction) for survey, count in counted])
            self._coarse[direction] = known
        return known

    @property
    def scale(self) -> float:
        """A typical ε: four standard deviations above the mean loss."""
        _, mean, variance = self._cumulants(REMOVE).at(0.0)
        return max(mean, 0.0) + 4 * math.sqrt(variance)

    @property
    def _counts(self) -> list[int]:
        return [count for _, count in self.parts]

    def _survey(self) -> list[Survey]:
        if not self._surveys:
            self._surveys = [Survey.above(curve) for curve, _ in self.parts]
            self._settle(_FIRST_FLOOR)
        return self._surveys

    def _settle(self, floor: float) -> bool:
        """Survey as far out as `floor`; return whether that was known already."""
        before = [survey.epsilon[-1] for survey in self._surveys]
        for survey in self._surveys:
            for direction in DIRECTIONS:
                survey.reach(direction, floor)
        if before == [survey.epsilon[-1] for survey in self._surveys]:
            return True
        self._coarse = {}
        return False

    def _groups(self, epsilon: Array, direction: Direction) -> list[NDArray[np.intp]]:
        """Group the increasing ε so that one lattice serves each group: the spacings they need are similar."""
        if epsilon.size == 1:
            return [np.array([0])]
        some = np.unique(np.linspace(0, epsilon.size - 1, _SOME_SPACINGS).astype(int))
        spacing = [math.log2(self._plan(epsilon[k : k + 1], direction)[0]) for k in some]
        octave = np.floor(np.interp(np.arange(epsilon.size), some, spacing) / 2)
        return [np.flatnonzero(octave == value) for value in np.unique(octave)]

    def _plan(self, epsilon: Array, direction: Direction) -> tuple[float, float]:
        """The spacing h to start with, and the log δ below which tails are cut off.

        A direction whose δ is smaller than the other's by e^{_NEGLIGIBLE_GAP} is not refined below that level.
        """
        steps = sum(self._counts)
        some = epsilon[np.unique(np.linspace(0, epsilon.size - 1, _SOME).astype(int))]
        for _ in range(_LOOKS):  # a deeper look may show a larger δ, and so on until it reaches far enough
            guesses = [
                own if own[0] > theirs[0] - _NEGLIGIBLE_GAP else (theirs[0] - _NEGLIGIBLE_GAP, theirs[1])
                for own, theirs in zip(
                    self._saddles(some, direction), self._saddles(some, other(direction)), strict=True
                )
            ]
            least = min(log_delta for log_delta, _ in guesses)
            tails = math.log(_TAIL_SHARE * self.accuracy.absolute / steps)
            floor = max(LEAST_LOG, _DEEPER * least - _DEEPER_MORE + tails)
            if self._settle(floor):
                break
        _, mean, variance = self._cumulants(direction).at(0.0)
        h = math.inf
        for e, (_, theta) in zip(some, guesses, strict=True):
            accuracy = float(self.accuracy.at(e))
            if theta > 0:
                allowed = accuracy / (_HALF_VARIANCE * (1 + theta))
            else:
                allowed = spread_allowed(e, accuracy, mean, variance)
            h = min(h, math.sqrt(_FIRST_SHARE * allowed / steps))
        return min(h, self._widest()), floor

    def _widest(self) -> float:
        """The largest useful h. More than the step ½E|S−1| only helps if the lattice can be shifted to an edge."""
        step = math.exp(min(float(survey.log_delta[REMOVE][0]) for survey in self._survey()))
        shiftable = self._edge is not None and step > _SHIFTED_STEP * self._edge
        return math.inf if shiftable else _WIDEST * step

    def _build(self, h: float, floor: float, finer: float) -> _Lattice:
        for _ in range(_TRIES):
            shifted = self._edge is not None and h > self._edge / _SHIFTED
            if shifted and self._edge is not None:
                h = max(h, _PAST_EDGE * self._edge)
            try:
                below, above = [], []
                for survey, (curve, count) in zip(self._survey(), self.parts, strict=True):
                    far = survey.reach(ADD, floor), survey.reach(REMOVE, floor)
                    points = choose_points(h, far, survey.spacing(finer))
                    if points.size > MAX_NODES:
                        raise AccuracyError(
                            f"A grid of {h:.1e} in ε would need {points.size:,} points for one run, more "
                            f"than {MAX_NODES:,}. Ask for less accuracy in ε or for a larger δ."
                        )
                    if self._edge is None or not (shifted or gathers(curve, h, self._edge)):
                        low, high = bracket(curve, h, points)
                    elif shifted:
                        high = pair_above(curve, h, points)
                        low = pair_below(curve, h, far[1], survey.spacing(finer), self._edge)
                    else:
                        tau, slope = support(curve, h, self._edge)
                        k = math.ceil(tau / h)
                        h = tau / k
                        points = np.union1d(points, np.arange(-k - 1, -k + 3))
                        low, high = bracket(curve, h, points, support=(k, slope))
                    below.append((low, count))
                    above.append((high, count))
                return _Lattice(h, floor, finer, below, above, {}, self.accuracy, {})
            except TooCoarse:
                h, finer = min(h, self._edge or h) / _COARSER, finer / _FINER_CELLS
        raise AccuracyError(f"No lower bound can be had from this privacy curve on a grid of {h:.1e} in ε.")

    def _key(self, epsilon: Array, direction: Direction) -> tuple[int, int]:
        """Which lattice to use: half octaves of h and steps of a third in the floor, so that few are needed.

        The key depends only on the question, so that answers hardly depend on what was asked before.
        """
        h, floor = self._plan(epsilon, direction)
        depth = math.log(max(-floor, _FLOOR_UNIT) / _FLOOR_UNIT) / math.log(_FLOOR_RATIO)
        return math.floor(2 * math.log2(h)), math.ceil(depth)

    def _positive(self, epsilon: Array, direction: Direction) -> tuple[Array, Array, Array]:
        """Lower, value, upper at increasing ε ≥ 0, refined until they are as close as requested."""
        key = self._key(epsilon, direction)
        lattice = self._lattices.get(key)
        if lattice is None:
            floor = max(LEAST_LOG, -_FLOOR_UNIT * _FLOOR_RATIO ** key[1])
            lattice = self._build(2.0 ** (key[0] / 2), floor, 1.0)
        worst, tries = math.inf, 0
        lower, upper = np.full(epsilon.shape, -np.inf), np.zeros(epsilon.shape)
        while True:
            above, slope = lattice.log_delta(epsilon, direction, upper=True)
            below, _ = lattice.log_delta(epsilon, direction, upper=False)
            # every lattice gives valid bounds, and a finer one need not be better everywhere: keep the best
            upper = np.minimum(upper, above)
            lower = np.minimum(np.maximum(lower, below), upper)
            self._lattices.pop(key, None)
            self._lattices[key] = lattice
            if len(self._lattices) > _KEPT:
                self._lattices.pop(next(iter(self._lattices)))
            wanted = np.maximum(slope, FLAT) * self.accuracy.at(epsilon)
            with np.errstate(invalid="ignore"):
                gap = upper - lower
            matters = (gap > wanted) & (upper > LEAST_LOG / _UNDERFLOW)
            if matters.any():
                own, theirs = (
                    np.array([guess for guess, _ in self._saddles(epsilon, towards)])
                    for towards in (direction, other(direction))
                )
                matters &= own > theirs - _NEGLIGIBLE_GAP
            if not matters.any():
                return self._best(lower, upper)
            floor = self._deeper(lattice, direction, lower[matters], wanted[matters])
            if floor < lattice.floor:
                lattice = self._build(lattice.h, floor, lattice.finer)
                continue
            ratio = float(np.max(gap[matters] / wanted[matters]))
            # stop: the other direction decides, or refining no longer helps; the bounds are valid, if wide
            limit, nothing_below = _DECIDED * theirs[matters] - _DECIDED_MORE, math.isinf(ratio)
            decided = bool(np.all((own if nothing_below else upper)[matters] < limit))
            failed = direction in lattice.failures and nothing_below
            if failed or ratio > _GAINING * worst or (decided and (tries > 0 or nothing_below)):
                return self._what_is_left(lower, upper, matters, epsilon, direction, lattice.h)
            worst, tries = ratio, tries + 1
            h, finer = self._finer(lattice, ratio)
            try:
                lattice = self._build(h, lattice.floor, finer)
            except AccuracyError:
                return self._what_is_left(lower, upper, matters, epsilon, direction, lattice.h)

    def _what_is_left(
        self,
        lower: Array,
        upper: Array,
        matters: NDArray[np.bool_],
        epsilon: Array,
        direction: Direction,
        h: float,
    ) -> tuple[Array, Array, Array]:
        """Return valid bounds, however wide, but raise an error if they only say that δ lies between 0 and 1."""
        if self._around is not None:
            found = self._around.log_delta(epsilon, direction)
            upper = np.minimum(upper, found.upper)
            lower = np.minimum(np.maximum(lower, found.lower), upper)
        if np.any(np.isneginf(lower[matters]) & (upper[matters] > _NOTHING_KNOWN)):
            raise AccuracyError(
                f"Nothing can be said to an accuracy of {self.accuracy.relative:g}·ε or {self.accuracy.absolute:g}, "
                f"and a finer grid than {h:.1e} in ε does not help. Ask for less accuracy."
            )
        return self._best(lower, upper)

    @staticmethod
    def _best(lower: Array, upper: Array) -> tuple[Array, Array, Array]:
        """Place the value between the two second-order bounds, correct to leading order."""
        with np.errstate(invalid="ignore"):
            return lower, np.where(np.isfinite(lower), lower + _BETWEEN * (upper - lower), upper), upper

    def _finer(self, lattice: _Lattice, ratio: float) -> tuple[float, float]:
        """The next h and how much finer the cells become, if the bounds are too far apart by `ratio`."""
        edge = self._edge or 0.0
        first_order = lattice.h > edge / _SHIFTED > 0
        factor = max(_AIM / (ratio if first_order else math.sqrt(ratio)), _MOST_FINER)
        h = lattice.h * factor
        between = edge / _SHIFTED < h < _PAST_EDGE * edge
        return edge / _UNSHIFTED if between else h, lattice.finer * factor

    @staticmethod
    def _deeper(lattice: _Lattice, direction: Direction, lower: Array, wanted: Array) -> float:
        """The floor, lowered if δ is below the guess and the truncated tail shows in the upper bound."""
        pairs = [(pair.swapped if direction == ADD else pair, count) for pair, count in lattice.above]
        finite = np.isfinite(lower)
        if lattice.floor <= LEAST_LOG or not finite.any():
            return lattice.floor
        allowed = float(np.min(lower[finite] + np.log(_SHOWS * np.minimum(wanted[finite], 1.0))))
        excess = log_infinity(pairs) - allowed
        return max(LEAST_LOG, lattice.floor - _DEEPER_MORE - excess) if excess > 0 else lattice.floor
