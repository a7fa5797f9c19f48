"""The exact privacy curve of one epoch of balls-and-bins, by Laplace inversion (docs/accounting.md).

Under Q the privacy loss is log S, S = (Z₁+…+Z_T)/T, so (theorem "bnb-dominating-pair" of the paper)

    δ_remove(ε) = E[(S − e^ε)₊]  (a call),        δ_add(ε) = e^ε E[(e^{−ε} − S)₊]  (a put).

`Options` computes both values with their errors. This module translates ε into strikes, handles unfinished epochs,
interpolates if many ε are asked for, and gives bounds where δ is so small that its digits do not matter.
"""

from __future__ import annotations

from decimal import Decimal, localcontext
from functools import cached_property, partial

import numpy as np

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
from ballsbins.accounting.gaussian import log_hockey_stick
from ballsbins.accounting.one_epoch.basket import Basket
from ballsbins.accounting.one_epoch.interpolate import Interpolant
from ballsbins.accounting.one_epoch.options import DEEP, GOAL, Options
from ballsbins.accounting.one_epoch.quadrature import Estimate, Flags, Strikes
from ballsbins.accounting.one_epoch.sketch import cubic, log_call, log_small_put

# B13, B14, … are the numbered bounds of docs/derivation.md.
# Never claim a smaller relative error of δ than this; it grows with |log δ|/25 (B14).
_FLOOR, _FLOOR_LOG = 1e-13, 25.0
_NO_DIGIT = 0.1  # an estimate with a larger relative error is discarded
_STRIKE = 2.0**-50  # relative error of the strike of an unfinished epoch: about eight roundings (B16)
_DECIMALS = 50  # digits of log T/(T − t): enough for its double and for the remainder (B16)
_MISS = 0.1 * GOAL  # largest error of an interpolant (B13)
_POOR = 1e-6  # an error beyond which δ_B ≤ δ_D may be the better bound (B15)
_FEW = 8  # up to this many points are all computed, however deep they are: a choice
_DENSE = 450  # more points than this are interpolated: from here on that is cheaper
_SHALLOW = -750.0  # the least log δ that is always resolved: δ = 10⁻³²⁵
_BETWEEN = 0.5 * (DEEP + _SHALLOW)
_NOT_DEEP = -600.0  # a log δ sketched above this is not below _SHALLOW
# In multiples of δ(0), so four standard deviations: beyond, a curve of few steps is nearly a parabola or a line.
_MOST_BENT = 10.0
_LEAST_ROUGH, _LARGEST_ROUGH = 1e-12, 700.0  # range of ε in which a rough root is searched for
_DEEPER = 700.0  # in logs: ε ≤ 700, so log put is at most this much below log δ
_ROUGH_POINTS, _MORE_POINTS, _MOST_ROUGH = 24, 8, 40  # points of the two passes of a rough search: a choice
_LEAST_EXCESS = 1e-290  # replaces K − 1 = 0, so that logarithms exist
_LEAST_FALL = 1e-300  # least fall of log δ between two points, to avoid 0/0
_MOST_LOG_VARIANCE = 600.0  # largest 1/σ² for which the variance of Z is computed
# A search starts at 5 deviations, or at 8 if σ is below 0.7, and at no smaller ε than 10⁻⁹: a choice.
_START, _HEAVY_START, _HEAVY_TAIL, _LEAST_START = 5.0, 8.0, 0.7, 1e-9
# The search for the largest ε that can be computed: rounds of so many points, then steps down in ε. A choice.
_END_ROUNDS, _END_POINTS, _CALL_ROUNDS, _CLOSER, _BACK = 5, 18, 12, 0.97, 0.8
_BEFORE = (0.9, 0.7, 0.5, 0.3)  # fractions of an ε out of reach, where δ may be known and bound it (B15)


class ExactCurve(Curve):
    """δ(ε) of balls-and-bins with independent noise in every bin, in both directions."""

    method = "exact"
    kind = "exact"

    def __init__(self, kinds: tuple[tuple[int, float], ...], steps: int | None = None) -> None:
        """`kinds`: (number of bins, noise multiplier) of the bins visited; `steps`: T if more bins were to come."""
        self.basket = Basket(kinds)
        self.steps = self.basket.size if steps is None else steps
        self._options = Options(self.basket)
        self._interpolants = {
            way: Interpolant(partial(self._directly, direction=way), _MISS, self._bend) for way in DIRECTIONS
        }
        self._known: dict[Direction, dict[float, tuple[float, float]]] = {way: {} for way in DIRECTIONS}
        # an ε beyond which a call is below about e^DEEP, and a bound on log δ there
        self._end: tuple[float, float] | None = None

    @property
    def deviation(self) -> float:
        """The standard deviation of S; for many steps, also that of the privacy loss."""
        variance = sum(
            count * np.expm1(min(1.0 / sigma**2, _MOST_LOG_VARIANCE)) for count, sigma in self.basket.kinds
        )
        return float(np.sqrt(variance)) / self.steps

    @property
    def scale(self) -> float:
        """An ε at which to start a search: a few standard deviations of the loss, more if its tail is heavy."""
        far = _HEAVY_START if self.basket.smallest_sigma < _HEAVY_TAIL else _START
        return float(np.clip(far * self.deviation, _LEAST_START, 1.0))

    def at(self, epsilon: Array, direction: Direction) -> Interval:
        """Return bounds on log δ(ε).

        Where no contour resolves δ, only an upper bound is known: `lower` is −∞ and `value` is `upper`. `capped`
        finds these points. They are deep: log δ is below −700, or σ is at the end of its range.
        """
        # Some paths are tried and found useless, and their exponents overflow or underflow. That is expected: give no
        # warnings, and treat an estimate that is NaN as no estimate.
        with np.errstate(all="ignore"):
            value, error = self._positive(epsilon, direction)
            known = np.isfinite(error)
            bounds = Interval.around(value, np.where(known, error, 0.0) + ANSWER)
            upper, poor = bounds.upper, error > _POOR
            if poor.any():
                # δ_B ≤ δ_D (proposition "B-vs-S-and-D" of the paper) limits the upper bound of a poor contour
                gauss, off = log_hockey_stick(epsilon[poor], 1.0 / self.basket.smallest_sigma)
                upper[poor] = np.minimum(upper[poor], gauss + off + ANSWER)
        lower = np.minimum(np.where(known, bounds.lower, -np.inf), upper)
        return Interval(lower, np.clip(bounds.value, lower, upper), upper)

    def capped(self, epsilon: Array, direction: Direction) -> Flags:
        """Where `log_delta` knows only an upper bound."""
        epsilon = np.asarray(epsilon, dtype=np.float64)
        found = np.zeros(epsilon.shape, dtype=bool)
        with np.errstate(all="ignore"):
            for rows, way in ((epsilon >= 0.0, direction), (epsilon < 0.0, other(direction))):
                if rows.any():
                    found[rows] = np.isposinf(self._positive(np.abs(epsilon[rows]), way)[1])
        return found

    def rough_epsilon(self, log_deltas: Array, direction: Direction) -> Array:
        """Estimate where δ(ε) = e^{log_deltas}, often to three digits: a good start for a search."""
        part = self.basket.size / self.steps
        targets = np.asarray(log_deltas, dtype=np.float64) - np.log(part)
        with np.errstate(all="ignore"):
            if direction == ADD:
                strikes, log = self._options.sketch.strikes(0.0, float(targets.min()) - _DEEPER)
                epsilon = -np.log1p(part * strikes.k_minus_1)
                if part == 1.0:
                    epsilon = np.where(strikes.k < 0.5, -np.log(strikes.k), epsilon)
                rows = (epsilon > 0.0) & np.isfinite(epsilon)
                return _inverse(epsilon[rows], (log + epsilon)[rows], targets)
            low, high = _LEAST_ROUGH, _LARGEST_ROUGH
            more = _MORE_POINTS + min(len(targets), _MOST_ROUGH)
            for count, smooth in ((_ROUGH_POINTS, False), (more, True)):
                epsilon = np.exp(np.linspace(np.log(low), np.log(high), count))
                found = log_call(self.basket.kinds, np.expm1(epsilon) / part, smooth=smooth)
                log = np.minimum.accumulate(found)
                first, last = np.searchsorted(-log, [-targets.max(), -targets.min()])
                low, high = float(epsilon[max(first - 1, 0)]), float(epsilon[min(last, count - 1)])
            return _inverse(epsilon, log, targets)

    def _bend(self) -> float:
        """Return the ε up to which log δ bends most: a multiple of δ(0) = ½E|S − 1|, where call = put."""
        return _MOST_BENT * float(np.exp(self._log_middle))

    @cached_property
    def _log_middle(self) -> float:
        """About log δ(0)."""
        log_part = np.log(self.basket.size / self.steps)
        return float(self._options.sketch.log_put(np.ones(1))[0] + log_part)

    def sketch(self, epsilon: Array, direction: Direction) -> Array:
        """Estimate log δ(ε), ε ≥ 0: not a bound, but nearly free. Often good to 10⁻², rarely off by 0.5."""
        epsilon = np.asarray(epsilon, dtype=np.float64)
        log = np.full(epsilon.shape, -np.inf)
        rows = ~self._vanishes(epsilon, direction)
        if rows.any():
            with np.errstate(all="ignore"):
                strikes, log_part = self._strikes(epsilon[rows], direction)
                if direction == REMOVE:
                    found = log_call(self.basket.kinds, np.maximum(strikes.k_minus_1, _LEAST_EXCESS))
                else:
                    found = self._options.sketch.log_put(strikes.k) + epsilon[rows]
                log[rows] = found + log_part
        return np.asarray(np.minimum(log, 0.0))

    def log_upper(self, epsilon: Array, direction: Direction, enough: Array | None = None) -> Array:
        """Return a cheap upper bound on log δ(ε), ε ≥ 0, that is not sharp (B15).

        For add, it uses that no Z is large, or Chernoff's bound. δ_B ≤ δ_D holds in both directions. If a bound is at
        most `enough`, no better one is searched for.
        """
        epsilon = np.asarray(epsilon, dtype=np.float64)
        with np.errstate(all="ignore"):
            bound = np.full(epsilon.shape, -np.inf)
            rows = ~self._vanishes(epsilon, direction)
            if direction == ADD and rows.any():
                strikes, log_part = self._strikes(epsilon[rows], ADD)
                put = log_small_put(self.basket, strikes)
                if enough is None or (put + epsilon[rows] + log_part > enough[rows]).any():
                    put = np.minimum(put, self._options.sketch.log_bound(strikes))
                bound[rows] = put + epsilon[rows] + log_part
                if enough is not None and (bound <= enough).all():
                    return bound
            gauss, error = log_hockey_stick(epsilon, 1.0 / self.basket.smallest_sigma)
            return np.asarray(gauss + error if direction == REMOVE else np.minimum(bound, gauss + error))

    def _positive(self, epsilon: Array, direction: Direction) -> tuple[Array, Array]:
        """Return log δ and its absolute error for ε ≥ 0; interpolate if there are many ε.

        If the error is ∞, the value is only an upper bound.
        """
        if epsilon.size <= _FEW:
            value, error = self._directly(epsilon, direction)
        else:
            value, error = np.zeros(epsilon.shape), np.full(epsilon.shape, np.inf)
            nil = self._vanishes(epsilon, direction)
            value[nil], error[nil] = -np.inf, 0.0
            rows = ~nil
            if rows.any():
                rows &= epsilon <= self._reach(float(epsilon[rows].max()), direction)
            if rows.any():
                directly = partial(self._directly, direction=direction)
                method = self._interpolants[direction] if rows.sum() > _DENSE else directly
                value[rows], error[rows] = method(epsilon[rows])
        unknown = np.isposinf(error)
        if unknown.any():
            value[unknown] = self._cap(
                epsilon[unknown], direction, epsilon[~unknown], (value + error)[~unknown]
            )
        return value, error

    def _reach(self, high: float, direction: Direction) -> float:
        """Return the ε up to which to compute: `high`, or one at which log δ lies between DEEP and _SHALLOW."""
        if direction == REMOVE:
            near = self.sketch(np.array([high]), REMOVE)[0] > _NOT_DEEP
            return high if near else min(high, self._last_call()[0])
        if self.log_upper(np.array([high]), ADD)[0] >= _BETWEEN:
            return high
        # the bound is a few units above log δ, and falls as log δ does
        low = 0.0
        for _ in range(_END_ROUNDS):
            points = np.linspace(low, high, _END_POINTS)[1:]
            first = int((self.log_upper(points, ADD) < _BETWEEN).argmax())
            low, high = float(points[first - 1]) if first > 0 else low, float(points[first])
        return high

    def _last_call(self) -> tuple[float, float]:
        """Return an ε at which log δ is about between DEEP and _SHALLOW, and a bound on log δ from there on."""
        if self._end is None:
            epsilon = float(self.rough_epsilon(np.array([_BETWEEN]), REMOVE)[0])
            self._end = epsilon, 0.0
            for _ in range(_CALL_ROUNDS):
                log, width = (float(part[0]) for part in self._directly(np.array([epsilon]), REMOVE))
                if np.isfinite(width):
                    self._end = epsilon, log + width
                    if log >= DEEP:
                        break
                epsilon *= _CLOSER if np.isfinite(width) else _BACK
        return self._end

    def _cap(self, epsilon: Array, direction: Direction, known: Array, above: Array) -> Array:
        """Bound log δ from above where no contour works: by `log_upper`, and by δ(ε) ≤ δ(ε′) for ε′ < ε."""
        bound = self.log_upper(epsilon, direction)
        if known.size:
            order = np.argsort(known)
            least = np.minimum.accumulate(above[order])
            before = np.searchsorted(known[order], epsilon)
            bound = np.minimum(bound, np.where(before > 0, least[np.maximum(before - 1, 0)], 0.0))
        high = bound >= DEEP
        if high.any() and direction == REMOVE:
            end, there = self._last_call()
            bound = np.where(epsilon >= end, np.minimum(bound, there), bound)
            high = bound >= DEEP
        if high.any():
            # not deep, yet out of reach: a smaller ε′ may be within reach
            first = float(epsilon[high].min())
            for share in _BEFORE:
                log, width = self._directly(np.array([share * first]), direction)
                if np.isfinite(width[0]):
                    bound = np.where(epsilon >= first, np.minimum(bound, log[0] + width[0]), bound)
                    break
        return np.minimum(bound, 0.0)

    def _directly(self, epsilon: Array, direction: Direction) -> tuple[Array, Array]:
        """Return log δ and its absolute error (∞: unknown) for ε ≥ 0. A repeated question gets the same answer.

        Answers are stored for that reason: contours are kept, and one built for a later question might answer an
        earlier question with different last bits.
        """
        known = self._known[direction]
        new = np.unique([e for e in epsilon.tolist() if e not in known])
        if new.size:
            known |= zip(new.tolist(), zip(*self._computed(new, direction), strict=True), strict=True)
        value, error = np.array([known[e] for e in epsilon.tolist()]).reshape(-1, 2).T
        return value, error

    def _computed(self, epsilon: Array, direction: Direction) -> tuple[Array, Array]:
        """Compute log δ and its absolute error (∞: unknown) for ε ≥ 0."""
        value, width = np.full(epsilon.shape, -np.inf), np.zeros(epsilon.shape)
        possible = ~self._vanishes(epsilon, direction)
        if possible.any():
            strikes, log_part = self._strikes(epsilon[possible], direction)
            if log_part < 0.0 and direction == ADD:  # K has a few rounding errors: measure their effect
                found = self._value(strikes.moved(0.0, -_STRIKE, _STRIKE), direction)
                log, below, above = found.log.reshape(3, -1)
                off = np.nan_to_num(np.abs(above - below), nan=np.inf)
                value[possible], width[possible] = log + log_part, found.error[: log.size] + off
            else:
                found = self._value(strikes, direction)
                value[possible], width[possible] = found.log + log_part, found.error
        log = value if direction == REMOVE else value + epsilon
        floor = _FLOOR * (1.0 + np.abs(np.where(np.isfinite(log), log, 0.0)) / _FLOOR_LOG)
        # discard an estimate that is not even close
        return np.minimum(log, 0.0), np.where(width < _NO_DIGIT, np.log1p(width) + floor, np.inf)

    def _strikes(self, epsilon: Array, direction: Direction) -> tuple[Strikes, float]:
        """Return the strikes of a call or put on the bins visited, and the logarithm of the factor on its value.

        After t of T steps S = 1 − t/T + (t/T)·S_t, so K − 1 is stretched by T/t and the value shrinks by t/T.
        """
        signed = epsilon if direction == REMOVE else -epsilon
        if self.basket.size == self.steps:
            return Strikes.from_log(signed), 0.0
        part = self.basket.size / self.steps
        k_minus_1 = np.expm1(signed) / part
        k = 1.0 + k_minus_1 if direction == REMOVE else self._put_strike(epsilon)
        return Strikes(k, k_minus_1), float(np.log(part))

    def _value(self, strikes: Strikes, direction: Direction) -> Estimate:
        if self.basket.size == 1:
            log_k = np.log1p(strikes.k_minus_1) if direction == REMOVE else -np.log(strikes.k)
            log, error = log_hockey_stick(np.abs(log_k), 1.0 / self.basket.smallest_sigma)
            return Estimate(log if direction == REMOVE else log - log_k, error, np.zeros_like(error))
        return self._options.call(strikes) if direction == REMOVE else self._options.put(strikes)

    def _vanishes(self, epsilon: Array, direction: Direction) -> Flags:
        """Where δ = 0 exactly: S never falls below 1 − t/T."""
        if direction == REMOVE or self.basket.size == self.steps:
            return np.zeros(epsilon.shape, dtype=bool)
        return np.asarray(self._put_strike(epsilon) <= 0.0)

    def _put_strike(self, epsilon: Array) -> Array:
        """K′ = (e^{−ε} − 1 + t/T)·T/t = (e^{ε₀−ε} − 1)·(T−t)/t, relatively exact even near ε₀ = log T/(T−t)."""
        t, rest = self.basket.size, self.steps - self.basket.size
        with localcontext() as context:
            context.prec = _DECIMALS
            exact = (Decimal(self.steps) / Decimal(rest)).ln()
            high = float(exact)
            low = float(exact - Decimal(high))
        return np.asarray(np.expm1((high - epsilon) + low) * (rest / t), dtype=np.float64)


def _inverse(epsilon: Array, log: Array, targets: Array) -> Array:
    """Return ε at target values of a decreasing log δ, given at increasing ε; before the first, follow a line."""
    if epsilon.size < 4:
        return np.zeros(targets.shape)
    found = cubic(-targets, -log, epsilon)
    rate = (epsilon[1] - epsilon[0]) / max(log[0] - log[1], _LEAST_FALL)
    before = np.maximum(epsilon[0] - (targets - log[0]) * rate, 0.0)
    inside = np.where(np.isfinite(found), found, epsilon[-1])
    return np.asarray(np.where(targets >= log[0], before, inside), dtype=np.float64)
