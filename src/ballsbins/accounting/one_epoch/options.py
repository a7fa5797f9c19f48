"""Calls and puts on a basket: each strike uses the cheapest contour whose own error estimate is small enough.

A contour serves a neighbourhood of the strike for which it was built. Contours are kept, so later questions are
cheap. A call has three kinds: shared nodes along the cut, parity with a put, and a lift off the cut. A put has one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from ballsbins.accounting.one_epoch.basket import Basket
from ballsbins.accounting.one_epoch.call import CutLattice, LiftContour
from ballsbins.accounting.one_epoch.contours import PutContour, puts_on
from ballsbins.accounting.one_epoch.quadrature import Estimate, Flags, Indices, Real, Strikes
from ballsbins.accounting.one_epoch.sketch import PutSketch, log_call

# The stated error of a contour decides whether it is used. Except for parity (B12 of docs/derivation.md), these
# numbers only decide which contours are tried, and in which order. They are choices, tried on the points of
# tests/data/sweep.json.
GOAL = 1e-10  # relative error at which no better contour is searched for
DEEP = -800.0  # log δ so far below e^−700 that digits do not matter: monotonicity bounds the rest (B15)
_DEEP_DIGIT = 0.5  # relative error up to which a value is known to be deep
_BEST_PUT = 1e-13  # no put is requested with a smaller error
_PUT_SHARE = 0.5  # fraction of the goal that the put may use up if a call comes from parity
_MOST_LOSS, _LAST_LOSS = 2e4, 1e6  # factor of accuracy that parity may lose to be tried first, or at all
_LEAST_SHARE = 1e-6  # fraction of the put that must be left after parity: less is mostly rounding (B12)
_PARITY_ROUNDING = 4e-16  # rounding of exp(log put), relative to the put: four units of 2⁻⁵³ (B12)
_HEAVY_TAIL = 0.5  # below this noise multiplier the cut alone serves most strikes, so it is tried first
_MOST_CONTOURS = 200  # most lifts for one question: never reached
_SMALL = 1e-8  # an error that is accepted if it is due to rounding
_ROUGH_SHARE = 0.3  # if other nodes would remove less than this fraction of an error, the rest is rounding
_AS_GOOD = 3.0  # neighbours with up to this many times the error of a contour's own strike need no other one
_MOST_HALVINGS = 3  # how often the step of a lattice may be halved
_LARGEST_LOG_K = 700.0  # e⁷⁰⁰ is a double
_LARGEST_LOG_LOSS = 300.0  # parity that loses a factor of e³⁰⁰ gives no answer
_LEAST_EXCESS = 1e-290  # replaces K − 1 = 0: the call at ε = 0 is the put, and logarithms exist
_WIDER_LOW, _WIDER_HIGH = 0.85, 1.2  # a lattice covers this much more than the requested range of log K
_LIFT_SHIFTS = (0.0, -0.7, 0.7, 0.2)  # in log r: other places to leave the cut if the best guess fails
_LIFT_FINENESS = (1.0, 2.0, 4.0)  # times the usual number of panels
_HOPELESS = 1e-2  # if a lift has a larger error, more panels would not help
_NEARLY = 10.0  # within this factor of the goal, no other place to leave the cut is tried
_LEAST_CURVATURE = 0.5  # least curvature used for a width: at a saddle it is 2 or more
# Steps along the path of a put, and how far from its own strike it has all digits, in units of its width.
_STEPS = ((0.1, 0.8), (0.07, 1.4), (0.05, 2.2), (0.025, 2.2), (0.0125, 2.2))
_FINE_GOAL = 4e-11  # for a smaller error, the first of these steps is hardly fine enough
_MOST_ALONE = 8  # more strikes than this skip the first step: a finer path reaches farther, so it serves more
_BEYOND = 1.5  # a path may still be good enough up to this many times as far


_Contour = CutLattice | LiftContour | PutContour


class Options:
    """E[(S−K)₊] and E[(K−S)₊] with their errors."""

    def __init__(self, basket: Basket) -> None:
        """Start without contours; each is built when it is first needed."""
        self.basket = basket
        self._lattices: list[CutLattice] = []
        # lattices that cover all strikes of a range of log K
        self._broad: list[tuple[float, float, CutLattice]] = []
        self._puts: list[PutContour] = []
        self._lifts: list[LiftContour] = []
        # the range of strikes in which a contour had all digits; the flag is True for calls
        self._served: dict[tuple[_Contour, bool], tuple[float, float]] = {}

    @cached_property
    def sketch(self) -> PutSketch:
        """Rough values of all puts."""
        return PutSketch(self.basket)

    def put(self, strikes: Strikes, goal: float | Real = GOAL) -> Estimate:
        """log E[(K−S)₊] at every strike."""
        best = Estimate.nothing(strikes)
        self._ask_known(self._puts, strikes, best, goal)
        lowest = float(strikes.k.min())
        open_ = strikes.k > min(float(self.sketch.strikes(lowest)[0].k[-1]), 1.0)
        for step, reach in _STEPS:
            rows = np.flatnonzero(open_ & (best.error > goal))
            if len(rows) == 0:
                break
            if step == _STEPS[0][0] and (len(rows) > _MOST_ALONE or np.min(goal) < _FINE_GOAL):
                continue
            groups = self._groups(strikes, rows, reach)
            centres = strikes[np.array([members[len(members) // 2] for members in groups])]
            guess = self.sketch.saddles(centres.k)[0]
            contours = PutContour.through(self.basket, centres, step, guess, _BEYOND * reach)
            self._puts += contours
            self._follow(contours, strikes, groups, best, open_)
        return best

    def _ask_known(
        self,
        contours: Sequence[_Contour],
        strikes: Strikes,
        best: Estimate,
        goal: float | Real,
        *,
        call: bool = False,
    ) -> None:
        """Use existing contours: first for strikes between those that they have served, then for all nearby."""
        wanted = np.broadcast_to(np.asarray(goal), strikes.k.shape)
        tried = np.full(strikes.k.shape, -1)
        asked: list[tuple[_Contour, Indices]] = []
        for number, contour in enumerate(reversed(contours)):
            low, high = self._served.get((contour, call), (np.inf, -np.inf))
            inside = (strikes.k >= low) & (strikes.k <= high) & (tried < 0)
            if inside.any():
                tried[inside] = number
                asked.append((contour, np.flatnonzero(inside)))
        self._ask(asked, strikes, best, wanted, call=call)
        for number, contour in enumerate(reversed(contours)):
            rows = np.flatnonzero((best.error > wanted) & (tried != number) & contour.near(strikes))
            if len(rows) == 0:
                continue
            low, high = self._served.get((contour, call), (np.inf, -np.inf))
            if len(rows) > _MOST_ALONE and low <= high:
                # if it does not serve the nearest strike, it will not serve those beyond
                away = np.maximum(low - strikes.k[rows], strikes.k[rows] - high)
                nearest = rows[[int(away.argmin())]]
                self._ask([(contour, nearest)], strikes, best, wanted, call=call)
                if best.error[nearest[0]] > wanted[rows].min():
                    continue
            self._ask([(contour, rows)], strikes, best, wanted, call=call)

    def _ask(
        self,
        asked: list[tuple[_Contour, Indices]],
        strikes: Strikes,
        best: Estimate,
        wanted: Real,
        *,
        call: bool,
    ) -> None:
        """Evaluate each contour at its strikes, keep what is better, and record the range where it had all digits.

        Paths of puts are summed together.
        """
        puts = [(contour, rows) for contour, rows in asked if isinstance(contour, PutContour)]
        if puts:
            some = np.concatenate([rows for _, rows in puts])
            found = puts_on([(contour, strikes[rows]) for contour, rows in puts])
            _improve(best, _by_parity(strikes[some], found) if call else found, some)
        for contour, rows in asked:
            if not isinstance(contour, PutContour):
                _improve(best, contour(strikes[rows]), rows)
            good = strikes.k[rows[best.error[rows] <= wanted[rows]]]
            if len(good) > 0:
                low, high = self._served.get((contour, call), (np.inf, -np.inf))
                self._served[contour, call] = min(low, good.min()), max(high, good.max())

    def _groups(self, strikes: Strikes, rows: Indices, reach: float) -> list[Indices]:
        """Group neighbours that one path may serve: all within `reach` of its strike, in units of its width."""
        rows = rows[np.argsort(strikes.k[rows])]
        k = strikes.k[rows]
        saddle, curvature = self.sketch.saddles(k)
        end = k + 2.0 * reach * np.sqrt(np.maximum(curvature, _LEAST_CURVATURE)) / (self.basket.size * saddle)
        groups, first = [], 0
        while first < len(rows):
            last = max(int(np.searchsorted(k, end[first], side="right")), first + 1)
            groups.append(rows[first:last])
            first = last
        return groups

    @staticmethod
    def _follow(
        contours: list[PutContour], strikes: Strikes, groups: list[Indices], best: Estimate, open_: Flags
    ) -> None:
        """Evaluate new paths at their strikes, and close the strikes that no finer path would serve better."""
        found = puts_on([(contour, strikes[rows]) for contour, rows in zip(contours, groups, strict=True)])
        members, sizes = np.concatenate(groups), np.array([len(rows) for rows in groups])
        _improve(best, found, members)
        centre = np.repeat(np.cumsum(sizes) - sizes + sizes // 2, sizes)
        open_[members] &= ~_rounded(found)[centre] | _worth_more(found, centre)
        # δ = put/K; strikes beyond one that is already deep need not be computed
        deep = (best.log[members] - np.log(strikes.k[members]) < DEEP) & (best.error[members] < _DEEP_DIGIT)
        if deep.any():
            open_ &= strikes.k > strikes.k[members[deep]].max()

    def call(self, strikes: Strikes) -> Estimate:
        """log E[(S−K)₊] at every strike."""
        if strikes.k_minus_1.min() < _LEAST_EXCESS:  # ε = 0, where call = put
            strikes = Strikes(strikes.k, np.maximum(strikes.k_minus_1, _LEAST_EXCESS))
        best = Estimate.nothing(strikes)
        self._ask_known([*self._puts, *self._lifts, *self._lattices], strikes, best, GOAL, call=True)
        rows = np.flatnonzero(best.error > GOAL)
        if len(rows) > 0:
            _improve(best, self._build_for(strikes[rows]), rows)
        return best

    def _build_for(self, strikes: Strikes) -> Estimate:
        """Build contours for calls that no earlier one serves: parity near K = 1, then along the cut, then off it."""
        best = Estimate.nothing(strikes)
        if self.basket.smallest_sigma < _HEAVY_TAIL:
            self._on_lattice(strikes, best, rising=False)
            if (best.error <= GOAL).all():
                return best
        log_loss = np.log(strikes.k_minus_1) - log_call(self.basket.kinds, strikes.k_minus_1)
        loss = 1.0 + np.exp(np.minimum(log_loss, _LARGEST_LOG_LOSS))
        self._parity(strikes, best, loss, loss < _MOST_LOSS)
        where: dict[int, float] = {}
        for rising in (False, True):
            rows = np.flatnonzero(best.error > GOAL)
            if len(rows) == 0:
                return best
            on_cut = Estimate.nothing(strikes[rows])
            leave, lattice = self._on_lattice(strikes[rows], on_cut, rising=rising)
            where |= zip(rows.tolist(), leave.tolist(), strict=True)
            _improve(best, on_cut, rows)
            if lattice.rising:
                break
        open_ = np.ones(strikes.k.shape, dtype=bool)
        for _ in range(_MOST_CONTOURS):
            worst = _next(best.error, open_)
            if worst is None:
                break
            for shift in _LIFT_SHIFTS:
                rounded = self._lift(strikes, worst, best, where[worst] + shift, lattice, open_)
                if rounded or best.error[worst] <= _NEARLY * GOAL:
                    break
                if best.log[worst] < DEEP and best.error[worst] < _DEEP_DIGIT:
                    break
            open_[worst] = False
            deep = (best.log < DEEP) & (best.error < _DEEP_DIGIT)
            if deep.any():
                open_ &= strikes.k < strikes.k[deep].min()
        self._parity(strikes, best, loss, (loss >= _MOST_LOSS) & (loss < _LAST_LOSS))
        return best

    def _parity(self, strikes: Strikes, best: Estimate, loss: Real, tried: Flags) -> None:
        """Use call = put − (K − 1), which is as accurate as the digits that are left."""
        rows = np.flatnonzero(tried & (best.error > GOAL))
        if len(rows) > 0:
            goal = np.maximum(_PUT_SHARE * GOAL / loss[rows], _BEST_PUT)
            _improve(best, _by_parity(strikes[rows], self.put(strikes[rows], goal)), rows)

    def _lift(
        self, strikes: Strikes, worst: int, best: Estimate, log_r: float, lattice: CutLattice, open_: Flags
    ) -> bool:
        """Leave the cut near exp(log_r) for one strike, with more nodes as long as they seem to help.

        Returns whether the error is small and only rounding is left. Then no other path would be better, and strikes
        for which this path is about as good need no other path either.
        """
        for fineness in _LIFT_FINENESS:
            contour = LiftContour(self.basket, strikes[worst : worst + 1], log_r, lattice, fineness)
            self._lifts.append(contour)
            found = contour(strikes)
            _improve(best, found)
            rounded = bool(_rounded(found)[worst])
            if rounded and found.error[worst] < _SMALL:
                open_ &= _worth_more(found, worst)
                return True
            if best.error[worst] <= GOAL or rounded or not found.error[worst] < _HOPELESS:
                break
        return False

    def _on_lattice(self, strikes: Strikes, best: Estimate, *, rising: bool) -> tuple[Real, CutLattice]:
        """Try the cut alone; return where each strike would leave it, and a lattice over all of it."""
        log_k = np.log1p(strikes.k_minus_1)
        least, most = float(log_k.min()), float(log_k.max())
        covering = (
            kept for low, high, kept in self._broad if kept.rising >= rising and low <= least and most <= high
        )
        lattice = next(covering, None)
        if lattice is None:
            low, high = _WIDER_LOW * least, min(_WIDER_HIGH * most, _LARGEST_LOG_K)
            ends = Strikes.from_log(np.array([low, high]))
            lattice = CutLattice.covering(self.basket, ends, rising=rising)
            self._broad.append((low, high, lattice))
            self._lattices.append(lattice)
        found, open_, leave = lattice.explore(strikes)
        _improve(best, found)
        finest = lattice
        for _ in range(_MOST_HALVINGS):
            rows = np.flatnonzero(open_ & (best.error > GOAL) & (best.rough > _ROUGH_SHARE * best.error))
            if len(rows) == 0:
                break
            finest = finest.finer()
            self._lattices.append(finest)
            _improve(best, finest(strikes[rows]), rows)
        return leave, lattice


def _by_parity(strikes: Strikes, put: Estimate) -> Estimate:
    """Return call = put − (K − 1), which is as accurate as the digits that are left (B12)."""
    size = np.exp(put.log)
    value = size - strikes.k_minus_1
    good = value > _LEAST_SHARE * size
    loss = size / value
    log = np.log(np.where(good, value, 1.0))
    return Estimate(log, (put.error + _PARITY_ROUNDING) * loss, put.rough * loss).where(good)


def _improve(best: Estimate, new: Estimate, rows: Indices | None = None) -> None:
    """Copy into `best` the estimates of `new` that are better; `new` is for the given rows only."""
    where = np.arange(len(best.error)) if rows is None else rows
    wins = new.error < best.error[where]
    taken = where[wins]
    best.log[taken], best.error[taken], best.rough[taken] = new.log[wins], new.error[wins], new.rough[wins]


def _next(error: Real, open_: Flags, goal: float | Real = GOAL) -> int | None:
    """Choose the strike for the next contour: the middle one of those above the goal and not yet tried."""
    rows = np.flatnonzero(open_ & (error > goal))
    return None if len(rows) == 0 else int(rows[len(rows) // 2])


def _rounded(found: Estimate) -> Flags:
    """Where most of the error is rounding, so more nodes would not help."""
    return np.asarray(np.isfinite(found.error) & (found.rough < _ROUGH_SHARE * found.error))


def _worth_more(found: Estimate, row: int | Indices) -> Flags:
    """Strikes for which another contour may be better, given that the error at `row` is only rounding."""
    return np.asarray(
        (found.rough >= _ROUGH_SHARE * found.error) | (found.error > _AS_GOOD * found.error[row])
    )
