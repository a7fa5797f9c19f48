"""The exact privacy curve of one epoch of balls-and-bins, by Laplace inversion (DESIGN.md §3).

Under Q the privacy loss is log S, S = (Z₁+…+Z_T)/T, so (theorem "bnb-dominating-pair" of the paper)

    δ_remove(ε) = E[(S − e^ε)₊]  (a call),        δ_add(ε) = e^ε E[(e^{−ε} − S)₊]  (a put).

For every ε the cheapest contour whose own error estimate is small enough is used: nodes shared along the cut, then
parity with a put, then a lift off the cut. Contours are kept, so later questions to the same curve are cheap.
"""

from __future__ import annotations

import numpy as np

from ballsbins.accounting.balls_and_bins.basket import Basket
from ballsbins.accounting.balls_and_bins.contour import (
    CutLattice,
    Estimate,
    LiftContour,
    PutContour,
    Strikes,
)
from ballsbins.accounting.balls_and_bins.laplace import Flags
from ballsbins.accounting.curve import ADD, REMOVE, Array, Direction, Interval
from ballsbins.accounting.deterministic import below_zero, log_hockey_stick
from ballsbins.accounting.interpolate import dense

GOAL = 1e-10  # relative error of δ at which no better contour is looked for
_FLOOR = 1e-13  # never claim less than this
_MOST_CONTOURS = 200
_DENSE = 200  # more points than this are interpolated
_DEEP = -1500.0  # below e^−1500 nobody asks for digits: monotonicity bounds the rest


class ExactCurve:
    """δ(ε) of balls-and-bins with independent noise in every bin, in both directions."""

    method = "exact"
    confidence = 1.0

    def __init__(self, kinds: tuple[tuple[int, float], ...], steps: int | None = None) -> None:
        """`kinds`: (number of bins, noise multiplier) of the bins visited; `steps`: T if more bins were to come."""
        self.basket = Basket(kinds)
        self.steps = self.basket.size if steps is None else steps
        self._lattices: list[CutLattice] = []
        self._puts: list[PutContour] = []
        self._lifts: list[LiftContour] = []

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
        floor = np.log(np.where(negative, -np.expm1(np.minimum(epsilon, -1e-300)), 0.0), where=negative, out=np.full(epsilon.shape, -np.inf))
        return Interval(np.where(known, bounds.lower, floor), bounds.value, bounds.upper)

    def _cap(self, epsilon: Array, direction: Direction, value: Array, error: Array) -> None:
        """Where no contour served (δ below about e^−1500), put an upper bound in place of the value.

        δ(ε) ≤ δ(ε′) for ε′ < ε, and δ_B ≤ δ_D (proposition "B-vs-S-and-D" of the paper).
        """
        known = np.isfinite(error)
        for row in np.flatnonzero(~known):
            cap, slack = log_hockey_stick(epsilon[row : row + 1], 1.0 / self.basket.smallest_sigma)
            value[row] = cap[0] + slack[0]
            smaller = known & (epsilon < epsilon[row])
            if smaller.any():
                value[row] = min(value[row], float((value + error)[smaller].min()))
            if value[row] < _DEEP:
                continue
            for power in range(1, 24):
                log, width = self._directly(epsilon[row : row + 1] * 0.8**power, direction)
                if np.isfinite(width[0]):
                    value[row] = min(value[row], log[0] + width[0])
                    break

    def _positive(self, epsilon: Array, direction: Direction) -> tuple[Array, Array]:
        """log δ and its absolute error for ε ≥ 0, interpolated if they are many."""
        if epsilon.size <= _DENSE:
            value, error = self._directly(epsilon, direction)
            self._cap(epsilon, direction, value, error)
            return value, error
        # leave out what is too deep to matter, then interpolate
        low, high, ceiling = float(epsilon.min()), float(epsilon.max()), np.inf
        for _ in range(3):
            probes = np.linspace(low, high, 17)
            log, width = self._directly(probes, direction)
            deep = (log < _DEEP) & np.isfinite(width)
            if not deep.any():
                break
            first = int(deep.argmax())
            low, high, ceiling = float(probes[max(first - 1, 0)]), float(probes[first]), float(log[first] + width[first])
        value, error = np.full(epsilon.shape, ceiling), np.full(epsilon.shape, np.inf)
        rows = epsilon <= high
        value[rows], error[rows] = dense(lambda x: self._directly(x, direction), epsilon[rows], 0.1 * GOAL)
        if not np.isfinite(ceiling):
            self._cap(epsilon, direction, value, error)
        return value, error

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
            k = 1.0 + k_minus_1
        estimate = Estimate(np.full(epsilon.shape, -np.inf), np.zeros(epsilon.shape))
        possible = k > 0.0
        if possible.any():
            found = self._options(Strikes(k[possible], k_minus_1[possible]), call=direction == REMOVE)
            estimate.log[possible], estimate.error[possible] = found.log, found.error
        log = estimate.log + np.log(part) + (0.0 if direction == REMOVE else epsilon)
        return np.minimum(log, 0.0), np.log1p(estimate.error + _FLOOR)

    def _options(self, strikes: Strikes, *, call: bool) -> Estimate:
        if self.basket.size == 1:
            log_k = np.log1p(strikes.k_minus_1) if call else -np.log(strikes.k)
            log, error = log_hockey_stick(np.abs(log_k), 1.0 / self.basket.smallest_sigma)
            return Estimate(log if call else log + np.log(strikes.k), error)
        return self._call(strikes) if call else self._put(strikes)

    def _put(self, strikes: Strikes, goal: float = GOAL) -> Estimate:
        best = _nothing(strikes)
        for contour in self._puts:
            _improve(best, contour(strikes))
        open_ = np.ones(strikes.k.shape, dtype=bool)
        for _ in range(_MOST_CONTOURS):
            worst = _next(best.error, open_, goal)
            if worst is None:
                break
            for step in (0.1, 0.05, 0.025):
                contour = PutContour(self.basket, strikes[worst : worst + 1], step)
                self._puts.append(contour)
                _improve(best, contour(strikes))
                if best.error[worst] <= goal or (best.log[worst] < _DEEP and best.error[worst] < 0.5):
                    break
            open_[worst] = False
            deep = (best.log < _DEEP) & (best.error < 0.5)
            if deep.any():
                open_ &= strikes.k > strikes.k[deep].max()
        return best

    def _call(self, strikes: Strikes) -> Estimate:
        best = _nothing(strikes)
        if strikes.k_minus_1.min() < 1e-290:  # ε = 0, where call = put
            strikes = Strikes(strikes.k, np.maximum(strikes.k_minus_1, 1e-290))
        leave = self._on_lattice(strikes, best)
        if (best.error > GOAL).any():
            self._by_parity(strikes, best)
        for contour in self._lifts:
            if (best.error > GOAL).any():
                _improve(best, contour(strikes))
        open_ = np.ones(strikes.k.shape, dtype=bool)
        for _ in range(_MOST_CONTOURS):
            worst = _next(best.error, open_)
            if worst is None:
                break
            for shift in (0.0, -0.7, 0.7, 0.2):
                contour = LiftContour(self.basket, strikes[worst : worst + 1], leave[worst] + shift, self._lattices[-1])
                self._lifts.append(contour)
                _improve(best, contour(strikes))
                if best.error[worst] <= GOAL or (best.log[worst] < _DEEP and best.error[worst] < 0.5):
                    break
            open_[worst] = False
            deep = (best.log < _DEEP) & (best.error < 0.5)
            if deep.any():
                open_ &= strikes.k < strikes.k[deep].min()
        return best

    def _on_lattice(self, strikes: Strikes, best: Estimate) -> Array:
        """Try the cut alone; returns where each strike would leave it."""
        lattice = CutLattice.covering(self.basket, strikes)
        self._lattices.append(lattice)
        found, open_, leave = lattice(strikes)
        _improve(best, found)
        for _ in range(_MOST_CONTOURS):
            worst = _next(best.error, open_)
            if worst is None:
                break
            _improve(best, lattice.zoomed(strikes[worst : worst + 1])(strikes)[0])
            open_[worst] = False
        return leave

    def _by_parity(self, strikes: Strikes, best: Estimate) -> None:
        """call = put − (K − 1), as good as the digits that are left: first roughly, to see where any are."""
        for goal in (1e-6, 1e-13):
            rows = np.flatnonzero(best.error > GOAL)
            put = self._put(strikes[rows], goal)
            value = np.exp(put.log) - strikes.k_minus_1[rows]
            error = (put.error + 4e-16) * np.exp(put.log) / value
            found = _nothing(strikes)
            good = value > 1e-6 * np.exp(put.log)
            found.log[rows[good]], found.error[rows[good]] = np.log(value[good]), error[good]
            _improve(best, found)
            if not good.any():
                return


def _nothing(strikes: Strikes) -> Estimate:
    return Estimate(np.full(strikes.k.shape, -np.inf), np.full(strikes.k.shape, np.inf))


def _improve(best: Estimate, new: Estimate) -> None:
    wins = new.error < best.error
    best.log[wins], best.error[wins] = new.log[wins], new.error[wins]


def _next(error: Array, open_: Flags, goal: float = GOAL) -> int | None:
    """The strike to build the next contour for: the middle one of those above the goal and not yet tried."""
    rows = np.flatnonzero(open_ & (error > goal))
    return None if len(rows) == 0 else int(rows[len(rows) // 2])
