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
from ballsbins.accounting.curve import ADD, REMOVE, Array, Direction, Interval
from ballsbins.accounting.deterministic import below_zero, log_hockey_stick

GOAL = 1e-10  # relative error of δ at which no better contour is looked for
_FLOOR = 2e-14  # never claim less than this
_MOST_CONTOURS = 24


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
        for rows, way in ((~negative, direction), (negative, REMOVE if direction == ADD else ADD)):
            if rows.any():
                value[rows], error[rows] = self._positive(np.abs(epsilon[rows]), way)
        bounds = below_zero(epsilon, value, np.where(np.isfinite(error), error, 0.0))
        known = np.isfinite(error)
        ceiling = self._gaussian_ceiling(epsilon, direction)
        return Interval(
            np.where(known, bounds.lower, -np.inf),
            np.where(known, bounds.value, ceiling),
            np.where(known, np.minimum(bounds.upper, 0.0), ceiling),
        )

    def _gaussian_ceiling(self, epsilon: Array, direction: Direction) -> Array:
        """δ_B ≤ δ_D (proposition "B-vs-S-and-D"): what can be said where no contour serves."""
        value, error = log_hockey_stick(np.abs(epsilon), 1.0 / self.basket.smallest_sigma)
        return below_zero(epsilon, value, error).upper

    def _positive(self, epsilon: Array, direction: Direction) -> tuple[Array, Array]:
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

    def _put(self, strikes: Strikes) -> Estimate:
        best = _nothing(strikes)
        for contour in self._puts:
            best = _better(best, contour(strikes))
        for _ in range(_MOST_CONTOURS):
            worst = _next(best.error)
            if worst is None:
                break
            contour = PutContour(self.basket, strikes[worst : worst + 1])
            self._puts.append(contour)
            fresh = contour(strikes)
            best = _better(best, fresh)
            if best.error[worst] > GOAL:
                finer = PutContour(self.basket, strikes[worst : worst + 1], step=0.06)
                self._puts.append(finer)
                best = _better(best, finer(strikes))
                best.error[worst] = _settled(best.error[worst])
        return Estimate(best.log, np.abs(best.error))

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
        for _ in range(_MOST_CONTOURS):
            worst = _next(best.error)
            if worst is None:
                break
            lattice = self._lattices[-1]
            for shift in (0.0, -0.7, 0.7):
                contour = LiftContour(self.basket, strikes[worst : worst + 1], leave[worst] + shift, lattice)
                self._lifts.append(contour)
                _improve(best, contour(strikes))
                if best.error[worst] <= GOAL:
                    break
            else:
                best.error[worst] = _settled(best.error[worst])
        return Estimate(best.log, np.abs(best.error))

    def _on_lattice(self, strikes: Strikes, best: Estimate) -> Array:
        """Try the cut alone; returns where each strike would leave it."""
        lattice = CutLattice.covering(self.basket, strikes)
        self._lattices.append(lattice)
        found, leave = lattice(strikes)
        _improve(best, found)
        served = found.error < np.inf
        for _ in range(_MOST_CONTOURS):
            worst = _next(np.where(served, best.error, 0.0))
            if worst is None:
                break
            finer = lattice.zoomed(strikes[worst : worst + 1])
            _improve(best, finer(strikes)[0])
            served[worst] = False
        return leave

    def _by_parity(self, strikes: Strikes, best: Estimate) -> None:
        """call = put − (K − 1), as good as the digits that are left."""
        put = self._put(strikes)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            value = np.exp(put.log) - strikes.k_minus_1
            error = (put.error + 4e-16) * np.exp(put.log) / value
        good = value > 0.0
        _improve(best, Estimate(np.log(np.where(good, value, 1.0)), np.where(good, error, np.inf)))


def _nothing(strikes: Strikes) -> Estimate:
    return Estimate(np.full(strikes.k.shape, -np.inf), np.full(strikes.k.shape, np.inf))


def _better(old: Estimate, new: Estimate) -> Estimate:
    wins = new.error < np.abs(old.error)
    return Estimate(np.where(wins, new.log, old.log), np.where(wins, new.error, old.error))


def _improve(best: Estimate, new: Estimate) -> None:
    wins = new.error < best.error
    best.log[wins], best.error[wins] = new.log[wins], new.error[wins]


def _next(error: Array) -> int | None:
    """The strike to build the next contour for: the middle one of those still above the goal."""
    open_ = np.flatnonzero(error > GOAL)
    return None if len(open_) == 0 else int(open_[len(open_) // 2])


def _settled(error: float) -> float:
    """Mark a strike that no contour serves better, so that it is not tried again: a negative error."""
    return -abs(error)
