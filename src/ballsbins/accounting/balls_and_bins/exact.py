"""The exact privacy curve of one epoch of balls-and-bins, by Laplace inversion (DESIGN.md §3).

Under Q the privacy loss is log S, S = (Z₁+…+Z_T)/T, so (theorem "bnb-dominating-pair" of the paper)

    δ_remove(ε) = E[(S − e^ε)₊]  (a call),        δ_add(ε) = e^ε E[(e^{−ε} − S)₊]  (a put).

For every ε the cheapest contour whose own error estimate is small enough is used: nodes shared along the cut, then
parity with a put, then a lift off the cut. Contours are kept, so later questions to the same curve are cheap.
"""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from functools import partial

import numpy as np

from ballsbins.accounting.balls_and_bins.basket import Basket
from ballsbins.accounting.balls_and_bins.call import CutLattice, LiftContour
from ballsbins.accounting.balls_and_bins.laplace import Flags, Indices
from ballsbins.accounting.balls_and_bins.put import PutContour
from ballsbins.accounting.balls_and_bins.sums import Estimate, Strikes
from ballsbins.accounting.curve import ADD, DIRECTIONS, REMOVE, Array, Direction, Interval
from ballsbins.accounting.deterministic import below_zero, log_hockey_stick
from ballsbins.accounting.interpolate import Interpolant

GOAL = 1e-10  # relative error of δ at which no better contour is looked for
_FLOOR = 1e-13  # never claim less than this
_MOST_CONTOURS = 200
_FEW = 8  # so many points are all followed as deep as they are
_DENSE = 200  # more points than this are interpolated
_LARGEST_LOG_K = 700.0
_SHALLOW = -750.0  # the least log δ that is always resolved: δ = 10⁻³²⁵
_DEEP = -800.0  # far below e^−700 nobody asks for digits: monotonicity bounds the rest


class ExactCurve:
    """δ(ε) of balls-and-bins with independent noise in every bin, in both directions."""

    method = "exact"
    confidence = 1.0

    def __init__(self, kinds: tuple[tuple[int, float], ...], steps: int | None = None) -> None:
        """`kinds`: (number of bins, noise multiplier) of the bins visited; `steps`: T if more bins were to come."""
        self.basket = Basket(kinds)
        self.steps = self.basket.size if steps is None else steps
        self._interpolants = {
            way: Interpolant(partial(self._directly, direction=way), 0.1 * GOAL) for way in DIRECTIONS
        }
        self._deep: dict[
            Direction, tuple[float, float]
        ] = {}  # an ε beyond which log δ < _SHALLOW, and log δ there
        self._lattices: list[CutLattice] = []
        self._broad: list[
            tuple[float, float, CutLattice]
        ] = []  # those that cover all strikes of a range of log K
        self._puts: list[PutContour] = []
        self._lifts: list[LiftContour] = []

    @property
    def deviation(self) -> float:
        """The standard deviation of S, for many steps also that of the privacy loss."""
        variance = sum(count * np.expm1(min(1.0 / sigma**2, 600.0)) for count, sigma in self.basket.kinds)
        return float(np.sqrt(variance)) / self.steps

    @property
    def scale(self) -> float:
        """An ε to start searching at: some standard deviations of the loss, more if its tail is heavy."""
        return float(np.clip((8.0 if self.basket.smallest_sigma < 0.7 else 5.0) * self.deviation, 1e-9, 1.0))

    def log_delta(self, epsilon: Array, direction: Direction) -> Interval:
        """Bounds on log δ(ε)."""
        epsilon = np.asarray(epsilon, dtype=np.float64)
        value, error = np.empty(epsilon.shape), np.empty(epsilon.shape)
        negative = epsilon < 0.0
        # Exponents far outside of the doubles are met on purpose (a path is tried and found useless): no warnings,
        # and an estimate that is not a number counts as no estimate.
        with np.errstate(all="ignore"):
            for rows, way in ((~negative, direction), (negative, REMOVE if direction == ADD else ADD)):
                if rows.any():
                    value[rows], error[rows] = self._positive(np.abs(epsilon[rows]), way)
            known = np.isfinite(error)
            bounds = below_zero(epsilon, value, np.where(known, error, 0.0))
            floor = np.where(negative, np.log(-np.expm1(epsilon)), -np.inf)  # δ(ε) ≥ 1 − e^ε
            # δ_B ≤ δ_D (proposition "B-vs-S-and-D" of the paper) cuts off what a poor contour may claim
            ceiling = below_zero(
                epsilon, *log_hockey_stick(np.abs(epsilon), 1.0 / self.basket.smallest_sigma)
            ).upper
        upper = np.minimum(bounds.upper, ceiling)
        lower = np.minimum(np.where(known, bounds.lower, floor), upper)
        return Interval(lower, np.clip(bounds.value, lower, upper), upper)

    def _cap(self, epsilon: Array, direction: Direction, value: Array, error: Array) -> None:
        """Where no contour served (δ below about e^−800), put an upper bound in place of the value.

        δ(ε) ≤ δ(ε′) for ε′ < ε.
        """
        unknown = ~np.isfinite(error)
        if not unknown.any():
            return
        reach, ceiling = self._deep.get(direction, (np.inf, 0.0))
        least, searches = 0.0, 3
        for row in np.argsort(epsilon, kind="stable"):
            if not unknown[row]:
                least = min(least, float(value[row] + error[row]))
                continue
            if epsilon[row] > reach:
                least = min(least, ceiling)
            if least >= _DEEP and searches > 0:
                searches -= 1
                nearer = min(
                    0.8 * float(epsilon[row]), 40.0 * self.deviation
                )  # 40 standard deviations of the loss
                for power in range(8):
                    log, width = self._directly(np.array([nearer * 0.6**power]), direction)
                    if np.isfinite(width[0]):
                        least = min(least, float(log[0] + width[0]))
                        break
            value[row] = least

    def _positive(self, epsilon: Array, direction: Direction) -> tuple[Array, Array]:
        """log δ and its absolute error (∞: only an upper bound is known) for ε ≥ 0, interpolated if they are many."""
        if epsilon.size <= _FEW:
            value, error = self._directly(epsilon, direction)
        else:
            value, error = np.zeros(epsilon.shape), np.full(epsilon.shape, np.inf)
            nil = self._vanishes(epsilon, direction)
            value[nil], error[nil] = -np.inf, 0.0
            rows = ~nil
            if rows.any():
                rows &= epsilon <= self._shallow(
                    float(epsilon[rows].min()), float(epsilon[rows].max()), direction
                )
                directly = partial(self._directly, direction=direction)
                method = self._interpolants[direction] if rows.sum() > _DENSE else directly
                value[rows], error[rows] = method(epsilon[rows])
        self._cap(epsilon, direction, value, error)
        return value, error

    def _shallow(self, low: float, high: float, direction: Direction) -> float:
        """An ε up to which to interpolate: `high`, or one at which log δ lies between _DEEP and _SHALLOW."""
        if direction in self._deep:
            return self._deep[direction][0]

        def probe(epsilon: float) -> tuple[float, float]:
            log, width = (float(part[0]) for part in self._directly(np.array([epsilon]), direction))
            return (log, log + width) if np.isfinite(width) else (-np.inf, 0.0)

        at_far, _ = probe(high)
        if at_far >= _DEEP:
            return high
        near, at_near, ceiling, far = max(min(low, self.deviation), 1e-12), 0.0, 0.0, high
        # −log δ is about a power of ε: interpolate in logarithms, but halve in between in case it is not
        for attempt in range(60):
            if at_near <= _SHALLOW or far <= (1.0 + 1e-14) * near:
                break
            share = 0.5
            if attempt % 2 == 0 and at_near < -1.0 and np.isfinite(at_far):
                share = float(np.clip(np.log(-775.0 / at_near) / np.log(at_far / at_near), 0.05, 0.95))
            middle = near * (far / near) ** share
            found, upper = probe(middle)
            if found >= _DEEP:
                near, at_near, ceiling = middle, found, upper
            else:
                far, at_far = middle, found
        self._deep[direction] = near, ceiling
        return near

    def _directly(self, epsilon: Array, direction: Direction) -> tuple[Array, Array]:
        """log δ and its absolute error for ε ≥ 0.

        After t of T steps S = 1 − t/T + (t/T)·S_t, so K − 1 is stretched by T/t and the value shrinks by t/T.
        """
        sign = 1.0 if direction == REMOVE else -1.0
        k_minus_1 = np.expm1(sign * epsilon)
        k = np.exp(sign * epsilon)
        part = self.basket.size / self.steps
        if self.basket.size < self.steps:
            k_minus_1 = k_minus_1 / part
            k = 1.0 + k_minus_1 if direction == REMOVE else self._put_strike(epsilon)
        value, width = np.full(epsilon.shape, -np.inf), np.zeros(epsilon.shape)
        possible = ~self._vanishes(epsilon, direction)
        if possible.any():
            strikes = Strikes(k[possible], k_minus_1[possible])
            found = self._options(strikes, call=direction == REMOVE)
            value[possible], width[possible] = found.log, found.error
            if part < 1.0 and direction == ADD:  # K has a few roundings: see what they do
                ends = [self._options(strikes.scaled(by), call=False).log for by in (-(2.0**-50), 2.0**-50)]
                width[possible] += np.nan_to_num(np.abs(ends[1] - ends[0]), nan=np.inf)
        log = value + np.log(part) + (0.0 if direction == REMOVE else epsilon)
        floor = _FLOOR * (1.0 + np.abs(np.where(np.isfinite(log), log, 0.0)) / 25.0)
        # an estimate that is not even near is none
        return np.minimum(log, 0.0), np.where(width < 0.1, np.log1p(width) + floor, np.inf)

    def _vanishes(self, epsilon: Array, direction: Direction) -> Flags:
        """Where δ = 0 exactly: S never falls below 1 − t/T."""
        if direction == REMOVE or self.basket.size == self.steps:
            return np.zeros(epsilon.shape, dtype=bool)
        return np.asarray(self._put_strike(epsilon) <= 0.0)

    def _put_strike(self, epsilon: Array) -> Array:
        """K′ = (e^{−ε} − 1 + t/T)·T/t = (e^{ε₀−ε} − 1)·(T−t)/t, relatively exact also near ε₀ = log T/(T−t)."""
        t, rest = self.basket.size, self.steps - self.basket.size
        with localcontext() as context:
            context.prec = 50
            exact = (Decimal(self.steps) / Decimal(rest)).ln()
            high = float(exact)
            low = float(exact - Decimal(high))
        return np.asarray(np.expm1((high - epsilon) + low) * (rest / t), dtype=np.float64)

    def _options(self, strikes: Strikes, *, call: bool) -> Estimate:
        if self.basket.size == 1:
            log_k = np.log1p(strikes.k_minus_1) if call else -np.log(strikes.k)
            log, error = log_hockey_stick(np.abs(log_k), 1.0 / self.basket.smallest_sigma)
            return Estimate(log if call else log + np.log(strikes.k), error, np.zeros_like(error))
        return self._call(strikes) if call else self._put(strikes)

    def _put(self, strikes: Strikes, goal: float = GOAL) -> Estimate:
        best = Estimate.nothing(strikes)
        for contour in reversed(self._puts):
            rows = np.flatnonzero(best.error > goal)
            if len(rows) == 0:
                return best
            _improve(best, contour(strikes[rows]), rows)
        open_ = np.ones(strikes.k.shape, dtype=bool)
        for _ in range(_MOST_CONTOURS):
            worst = _next(best.error, open_, goal)
            if worst is None:
                break
            k = float(strikes.k[worst])
            for step in (0.07, 0.035, 0.0175):
                nearest = min(self._puts, key=lambda put: abs(math.log(put.k / k)), default=None)
                guess = None if nearest is None else nearest.saddle
                contour = PutContour(self.basket, strikes[worst : worst + 1], step, guess)
                self._puts.append(contour)
                found = contour(strikes)
                _improve(best, found)
                if best.error[worst] <= goal or _rounded(found, worst):
                    break
                if best.log[worst] < _DEEP and best.error[worst] < 0.5:
                    break
            open_[worst] = False
            deep = (best.log < _DEEP) & (best.error < 0.5)
            if deep.any():
                open_ &= strikes.k > strikes.k[deep].max()
        return best

    def _call(self, strikes: Strikes) -> Estimate:
        if strikes.k_minus_1.min() < 1e-290:  # ε = 0, where call = put
            strikes = Strikes(strikes.k, np.maximum(strikes.k_minus_1, 1e-290))
        best = Estimate.nothing(strikes)
        known: list[CutLattice | LiftContour | PutContour] = [*self._puts, *self._lifts, *self._lattices]
        for contour in reversed(known):
            rows = np.flatnonzero(best.error > GOAL)
            if len(rows) == 0:
                return best
            found = contour(strikes[rows])
            _improve(
                best, _by_parity(strikes[rows], found) if isinstance(contour, PutContour) else found, rows
            )
        rows = np.flatnonzero(best.error > GOAL)
        if len(rows) > 0:
            _improve(best, self._build_for(strikes[rows]), rows)
        return best

    def _build_for(self, strikes: Strikes) -> Estimate:
        """New contours for calls that no earlier one serves: along the cut, by parity, then off the cut."""
        best = Estimate.nothing(strikes)
        leave, lattice = self._on_lattice(strikes, best)
        for goal in (1e-6, 1e-13):  # first roughly, to see where parity leaves any digits
            rows = np.flatnonzero(best.error > GOAL)
            if len(rows) == 0:
                return best
            found = _by_parity(strikes[rows], self._put(strikes[rows], goal))
            _improve(best, found, rows)
            if not (found.error < 0.5).any():
                break
        open_ = np.ones(strikes.k.shape, dtype=bool)
        for _ in range(_MOST_CONTOURS):
            worst = _next(best.error, open_)
            if worst is None:
                break
            for shift in (0.0, -0.7, 0.7, 0.2):
                self._lift(strikes, worst, best, leave[worst] + shift, lattice)
                if best.error[worst] <= 10.0 * GOAL or (best.log[worst] < _DEEP and best.error[worst] < 0.5):
                    break
            open_[worst] = False
            deep = (best.log < _DEEP) & (best.error < 0.5)
            if deep.any():
                open_ &= strikes.k < strikes.k[deep].min()
        return best

    def _lift(self, strikes: Strikes, worst: int, best: Estimate, log_r: float, lattice: CutLattice) -> None:
        """Leave the cut near exp(log_r) for one strike, with more nodes as long as they promise to help."""
        for fineness in (1.0, 2.0, 4.0):
            contour = LiftContour(self.basket, strikes[worst : worst + 1], log_r, lattice, fineness)
            self._lifts.append(contour)
            found = contour(strikes)
            _improve(best, found)
            if best.error[worst] <= GOAL or _rounded(found, worst) or not found.error[worst] < 1e-2:
                break

    def _on_lattice(self, strikes: Strikes, best: Estimate) -> tuple[Array, CutLattice]:
        """Try the cut alone; returns where each strike would leave it, and a lattice over all of it."""
        log_k = np.log1p(strikes.k_minus_1)
        least, most = float(log_k.min()), float(log_k.max())
        lattice = next((known for low, high, known in self._broad if low <= least and most <= high), None)
        if lattice is None:
            low, high = 0.4 * least, min(2.5 * most, _LARGEST_LOG_K)
            lattice = CutLattice.covering(self.basket, Strikes.from_log(np.array([low, high])))
            self._broad.append((low, high, lattice))
            self._lattices.append(lattice)
        found, open_, leave = lattice.explore(strikes)
        _improve(best, found)
        for _ in range(_MOST_CONTOURS):
            worst = _next(best.error, open_ & (best.rough > 0.3 * best.error))
            if worst is None:
                break
            self._lattices.append(lattice.zoomed(strikes[worst : worst + 1]))
            _improve(best, self._lattices[-1](strikes))
            open_[worst] = False
        return leave, lattice


def _by_parity(strikes: Strikes, put: Estimate) -> Estimate:
    """call = put − (K − 1), as good as the digits that are left."""
    size = np.exp(put.log)
    value = size - strikes.k_minus_1
    good = value > 1e-6 * size
    loss = size / value
    return Estimate(np.log(np.where(good, value, 1.0)), (put.error + 4e-16) * loss, put.rough * loss).where(
        good
    )


def _improve(best: Estimate, new: Estimate, rows: Indices | None = None) -> None:
    """Take over what is better; `new` is for the given rows only."""
    where = np.arange(len(best.error)) if rows is None else rows
    wins = new.error < best.error[where]
    taken = where[wins]
    best.log[taken], best.error[taken], best.rough[taken] = new.log[wins], new.error[wins], new.rough[wins]


def _next(error: Array, open_: Flags, goal: float = GOAL) -> int | None:
    """The strike to build the next contour for: the middle one of those above the goal and not yet tried."""
    rows = np.flatnonzero(open_ & (error > goal))
    return None if len(rows) == 0 else int(rows[len(rows) // 2])


def _rounded(found: Estimate, row: int) -> bool:
    """Whether rounding is most of the error, so that more nodes would not help."""
    return bool(np.isfinite(found.error[row]) and found.rough[row] < 0.3 * found.error[row])
