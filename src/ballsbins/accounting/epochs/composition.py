"""The product of privacy curves: several epochs, several steps, an unfinished epoch after whole ones.

Each factor can be any `Curve` with a stated error, and the result is a `Curve` again. Two modules do the work:
`lattice` builds a pair above and a pair below every factor, on one lattice of losses, and `fft` computes their
products. This module chooses the lattice: its range follows from the requested δ, its spacing h from the
requested accuracy in ε. Both follow from the question alone, so that no answer depends on what was asked before.

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
    ANSWER,
    REMOVE,
    Array,
    Curve,
    Direction,
    Interval,
    other,
)
from ballsbins.accounting.epochs.fft import log_infinity
from ballsbins.accounting.epochs.lattice import PAST_EDGE, SHIFTED, Lattice, build
from ballsbins.accounting.epochs.survey import FLAT, Cumulants, Survey, spread_allowed
from ballsbins.errors import AccuracyError

# Every lattice gives valid bounds (B27 of docs/derivation.md); these numbers only choose lattices (B34).
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
_LOOKS = 8  # most surveys, each deeper than the one before
_DEEPER, _DEEPER_MORE = 1.05, 4  # the floor lies 5 % and e⁻⁴ below the least guessed log δ
_HALF_VARIANCE = 0.15  # effect of h on ε, as a fraction of (θ + 1)·n·h²: half of `survey.VARIANCE_SHARE`
_FIRST_SHARE = 0.5  # the first h aims at this fraction of the accuracy
# how wide a lattice may be, as a fraction of the step ½E|S−1| and of the edge; see `_widest`
_WIDEST, _SHIFTED_STEP = 0.6, 0.5
_UNSHIFTED = 4  # h is edge/4 if it should lie between the lattices that are shifted and those that are not
_FLOOR_UNIT, _FLOOR_RATIO = 30.0, 4 / 3  # floors are −30·(4/3)^k
_DECIDED, _DECIDED_MORE = 1.1, 0.5  # the other direction decides if its guessed log δ is above by 10 % and ½
_GAINING = 0.7  # stop refining if more than this fraction of the gap is left
_NOTHING_KNOWN = -1e-3  # an upper log δ above this, without a lower bound, says nothing
# position of the value between two second-order bounds, to leading order: h²/8 from below, h²/6 from above
_BETWEEN = 0.43
_AIM, _MOST_FINER = 0.95, 0.125  # the next h aims at this fraction of the wanted gap; least factor on h
_SHOWS = 0.05  # a truncated tail is visible if it exceeds this fraction of the wanted gap


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The accuracy wanted in ε: upper − lower ≤ max(relative·ε, absolute)."""

    relative: float = 1e-3
    absolute: float = 1e-4

    def at(self, epsilon: Array) -> Array:
        return np.maximum(self.relative * np.abs(epsilon), self.absolute)


Depth = tuple[int, ...]  # numbers of points surveyed, of every part


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
        self._coarse: dict[tuple[Direction, Depth], Cumulants] = {}
        self._lattices: dict[tuple[float, float, float], Lattice] = {}

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
        return self._saddles(np.array([epsilon]), direction, self._depth(_FIRST_FLOOR))[0][0]

    def _saddles(self, epsilon: Array, direction: Direction, depth: Depth) -> list[tuple[float, float]]:
        """The guess of log δ, and the tilt θ there, at each ε."""
        cumulants = self._cumulants(direction, depth)
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

    def _cumulants(self, direction: Direction, depth: Depth) -> Cumulants:
        key = direction, depth
        if key not in self._coarse:
            counted = zip(self._survey(), self._counts, depth, strict=True)
            self._coarse[key] = Cumulants(
                [look.atoms(count, direction, size) for look, count, size in counted]
            )
        return self._coarse[key]

    @property
    def scale(self) -> float:
        """A typical ε: four standard deviations above the mean loss."""
        _, mean, variance = self._cumulants(REMOVE, self._depth(_FIRST_FLOOR)).at(0.0)
        return max(mean, 0.0) + 4 * math.sqrt(variance)

    @property
    def _counts(self) -> list[int]:
        return [count for _, count in self.parts]

    def _survey(self) -> list[Survey]:
        if not self._surveys:
            self._surveys = [Survey.above(curve) for curve, _ in self.parts]
        return self._surveys

    def _depth(self, floor: float) -> Depth:
        """How many points of each survey show log δ down to `floor`."""
        return tuple(survey.depth(floor) for survey in self._survey())

    def _groups(self, epsilon: Array, direction: Direction) -> list[NDArray[np.intp]]:
        """Group the increasing ε so that one lattice serves each group: the spacings they need are similar."""
        if epsilon.size == 1:
            return [np.array([0])]
        some = np.unique(np.linspace(0, epsilon.size - 1, _SOME_SPACINGS).astype(int))
        spacing = [math.log2(self._plan(epsilon[k : k + 1], direction)[0]) for k in some]
        octave = np.floor(np.interp(np.arange(epsilon.size), some, spacing) / 2)
        return [np.flatnonzero(octave == value) for value in np.unique(octave)]

    def _plan(self, epsilon: Array, direction: Direction) -> tuple[float, float, Depth]:
        """The spacing h to start with, the log δ below which tails are cut off, and the points surveyed for it.

        A direction whose δ is smaller than the other's by e^{_NEGLIGIBLE_GAP} is not refined below that level.
        """
        steps = sum(self._counts)
        some = epsilon[np.unique(np.linspace(0, epsilon.size - 1, _SOME).astype(int))]
        depth = self._depth(_FIRST_FLOOR)
        for _ in range(_LOOKS):  # a deeper look may show a larger δ, and so on until it reaches far enough
            guesses = [
                own if own[0] > theirs[0] - _NEGLIGIBLE_GAP else (theirs[0] - _NEGLIGIBLE_GAP, theirs[1])
                for own, theirs in zip(
                    self._saddles(some, direction, depth),
                    self._saddles(some, other(direction), depth),
                    strict=True,
                )
            ]
            least = min(log_delta for log_delta, _ in guesses)
            tails = math.log(_TAIL_SHARE * self.accuracy.absolute / steps)
            floor = max(LEAST_LOG, _DEEPER * least - _DEEPER_MORE + tails)
            deeper = tuple(map(max, depth, self._depth(floor)))
            if deeper == depth:
                break
            depth = deeper
        _, mean, variance = self._cumulants(direction, depth).at(0.0)
        h = math.inf
        for e, (_, theta) in zip(some, guesses, strict=True):
            accuracy = float(self.accuracy.at(e))
            if theta > 0:
                allowed = accuracy / (_HALF_VARIANCE * (1 + theta))
            else:
                allowed = spread_allowed(e, accuracy, mean, variance)
            h = min(h, math.sqrt(_FIRST_SHARE * allowed / steps))
        return min(h, self._widest()), floor, depth

    def _widest(self) -> float:
        """The largest useful h. More than the step ½E|S−1| only helps if the lattice can be shifted to an edge."""
        step = math.exp(min(float(survey.log_delta[REMOVE][0]) for survey in self._survey()))
        shiftable = self._edge is not None and step > _SHIFTED_STEP * self._edge
        return math.inf if shiftable else _WIDEST * step

    def _lattice(self, h: float, floor: float, finer: float) -> Lattice:
        """A lattice, from memory if it is among the last ones used."""
        key = (h, floor, finer)
        lattice = self._lattices.pop(key, None)
        if lattice is None:
            parts = [(look, *part) for look, part in zip(self._survey(), self.parts, strict=True)]
            lattice = build(parts, self._edge, key, self.accuracy.at)
        self._lattices[key] = lattice
        if len(self._lattices) > _KEPT:
            self._lattices.pop(next(iter(self._lattices)))
        return lattice

    def _positive(self, epsilon: Array, direction: Direction) -> tuple[Array, Array, Array]:
        """Lower, value, upper at increasing ε ≥ 0, refined until they are as close as requested."""
        h, floor, depth = self._plan(epsilon, direction)
        lattice = self._lattice(_half_octave(h), _floor_step(floor), 1.0)
        lower, upper = np.full(epsilon.shape, -np.inf), np.zeros(epsilon.shape)
        worst = np.full(epsilon.shape, np.inf)  # by how much every gap was too wide before
        refined, given_up = False, np.zeros(epsilon.shape, dtype=bool)
        rows = np.arange(epsilon.size)  # the ones not answered yet
        while True:
            above, slope, _ = lattice.log_delta(epsilon[rows], direction, upper=True)
            below, _, failed = lattice.log_delta(epsilon[rows], direction, upper=False)
            # every lattice gives valid bounds, and a finer one need not be better everywhere: keep the best
            upper[rows] = np.minimum(upper[rows], above)
            lower[rows] = np.minimum(np.maximum(lower[rows], below), upper[rows])
            wanted = np.maximum(slope, FLAT) * self.accuracy.at(epsilon[rows])
            with np.errstate(invalid="ignore"):
                gap = upper[rows] - lower[rows]
            matters = (gap > wanted) & (upper[rows] > LEAST_LOG / _UNDERFLOW)
            if matters.any():
                own, theirs = (
                    np.array([guess for guess, _ in self._saddles(epsilon[rows], towards, depth)])
                    for towards in (direction, other(direction))
                )
                matters &= own > theirs - _NEGLIGIBLE_GAP
            if not matters.any():
                break
            deeper = self._deeper(lattice, direction, lower[rows[matters]], wanted[matters])
            if deeper < lattice.floor:
                rows, lattice = rows[matters], self._lattice(lattice.h, deeper, lattice.finer)
                continue
            # stop: the other direction decides, or refining no longer helps; the bounds are valid, if wide
            ratio = gap / wanted
            nothing_below = np.isinf(ratio)
            decided = np.where(nothing_below, own, upper[rows]) < _DECIDED * theirs - _DECIDED_MORE
            stop = (failed & nothing_below) | (ratio > _GAINING * worst[rows])
            stop |= decided & (nothing_below | refined)
            given_up[rows[matters & stop]] = True
            matters &= ~stop
            if not matters.any():
                break
            rows, ratio, refined = rows[matters], ratio[matters], True
            worst[rows] = ratio
            try:
                lattice = self._lattice(*self._finer(lattice, float(ratio.max())))
            except AccuracyError:
                given_up[rows] = True
                break
        if given_up.any():
            return self._what_is_left(lower, upper, given_up, epsilon, direction, lattice.h)
        return self._best(lower, upper)

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

    def _finer(self, lattice: Lattice, ratio: float) -> tuple[float, float, float]:
        """The next h, the floor, and how much finer the cells become, if bounds are too far apart by `ratio`."""
        edge = self._edge or 0.0
        first_order = lattice.h > edge / SHIFTED > 0
        factor = _half_octave(max(_AIM / (ratio if first_order else math.sqrt(ratio)), _MOST_FINER))
        h = lattice.h * factor
        between = edge / SHIFTED < h < PAST_EDGE * edge
        return edge / _UNSHIFTED if between else h, lattice.floor, lattice.finer * factor

    @staticmethod
    def _deeper(lattice: Lattice, direction: Direction, lower: Array, wanted: Array) -> float:
        """The floor, lowered if δ is below the guess and the truncated tail shows in the upper bound."""
        finite = np.isfinite(lower)
        if lattice.floor <= LEAST_LOG or not finite.any():
            return lattice.floor
        allowed = float(np.min(lower[finite] + np.log(_SHOWS * np.minimum(wanted[finite], 1.0))))
        excess = log_infinity(lattice.pairs(direction, upper=True)) - allowed
        return _floor_step(lattice.floor - _DEEPER_MORE - excess) if excess > 0 else lattice.floor


def _half_octave(x: float) -> float:
    """The next power of √2 below x: if spacings are such powers, few lattices serve all questions."""
    return math.exp2(math.floor(2 * math.log2(x)) / 2)


def _floor_step(floor: float) -> float:
    """The next of few floors, for the same reason."""
    steps = math.ceil(math.log(max(-floor, _FLOOR_UNIT) / _FLOOR_UNIT) / math.log(_FLOOR_RATIO))
    return max(LEAST_LOG, -_FLOOR_UNIT * _FLOOR_RATIO**steps)
