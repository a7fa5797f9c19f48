"""The product of privacy curves: several epochs, several steps, an unfinished epoch after whole ones.

Each factor is any `Curve` with a stated error; the result is a `Curve` again. The work is done by
`discretize` (a pair above and a pair below every factor, on one lattice of losses) and `tilted` (their
products). Here the lattice is chosen: its range from the δ asked for, its spacing h from the accuracy wanted
in ε.

A cell of width h adds about h²/6 to the variance of one factor (upper) and takes about h²/8 (lower), so after
n factors, at tilt θ ≈ −dlog δ/dε, log δ is known to ½θ(θ+1)·0.3·n·h² and ε to 0.15·(θ+1)·n·h². That is where
h starts; the gap between the two bounds, which is known, then says by how much h must shrink (second order:
by its square root).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ballsbins.accounting.curve import ADD, DIRECTIONS, REMOVE, Array, Curve, Direction, Interval
from ballsbins.accounting.deterministic import below_zero
from ballsbins.accounting.discretize import Pair, bracket, hull
from ballsbins.accounting.tilted import Atoms, Cumulants, Sheet, compose
from ballsbins.errors import AccuracyError

MAX_NODES = 1_000_000  # lattice points of one factor
LEAST_LOG = -1300.0  # tails below e^−1300 are not told from 0
_RATIO = 1.15  # of the geometric grid that the first look uses
_SMALLEST = 1e-9
_SHARE = 1e-4  # of the accuracy that may be lost to cutting off tails


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The accuracy wanted in ε: upper − lower ≤ max(relative·ε, absolute)."""

    relative: float = 1e-3
    absolute: float = 1e-4

    def at(self, epsilon: Array) -> Array:
        return np.maximum(self.relative * np.abs(epsilon), self.absolute)


class _Look:
    """A first look at one factor: log δ of both directions on a geometric grid, as far out as is needed."""

    def __init__(self, curve: Curve) -> None:
        self.curve = curve
        self.epsilon = np.array([0.0])
        self.log_delta: dict[Direction, Array] = {
            direction: curve.log_delta(self.epsilon, direction).upper for direction in DIRECTIONS
        }
        self._extend(1.0)

    def _extend(self, far: float) -> None:
        start = max(self.epsilon[-1] * _RATIO, _SMALLEST)
        new = start * _RATIO ** np.arange(1 + math.ceil(math.log(far / start) / math.log(_RATIO)))
        self.epsilon = np.concatenate([self.epsilon, new])
        for direction in DIRECTIONS:
            more = self.curve.log_delta(new, direction).upper
            self.log_delta[direction] = np.concatenate([self.log_delta[direction], more])

    def reach(self, direction: Direction, floor: float) -> float:
        """An ε beyond which log δ is below `floor`."""
        while self.log_delta[direction][-1] > floor and self.epsilon[-1] < 1e5:
            self._extend(2.0 * self.epsilon[-1])
        below = np.flatnonzero(self.log_delta[direction] <= floor)
        return float(self.epsilon[below[0] if below.size else -1])

    def atoms(self, count: int, direction: Direction) -> Atoms:
        """A coarse pair above the curve."""
        epsilon = np.concatenate([-self.epsilon[:0:-1], self.epsilon])
        left = self.log_delta[ADD][:0:-1] - self.epsilon[:0:-1]
        keep, log_p = hull(epsilon, np.concatenate([left, self.log_delta[REMOVE]]))
        epsilon = epsilon[keep]
        if direction == ADD:
            epsilon, log_p = -epsilon[::-1], (log_p - epsilon)[::-1]
        return Atoms(epsilon, log_p, count)


@dataclass(frozen=True)
class _Lattice:
    """Pairs below and above every factor, and the sheets of their products computed so far."""

    h: float
    floor: float
    below: list[tuple[Pair, int]]
    above: list[tuple[Pair, int]]
    sheets: dict[tuple[Direction, bool], list[Sheet]]

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
            sheets.insert(0, compose(pairs, float(epsilon[left[0]]), float(epsilon[left[-1]]), upper=upper))


class ComposedCurve:
    """The privacy curve of `count` independent runs of each of several mechanisms, one after the other."""

    def __init__(
        self,
        parts: Sequence[tuple[Curve, int]],
        accuracy: Accuracy | None = None,
        method: str = "composition",
    ) -> None:
        """`parts` are curves of single runs with how often each is run."""
        self._parts = [(curve, count) for curve, count in parts if count > 0]
        self.accuracy = accuracy or Accuracy()
        self._method = method
        self._looks: list[_Look] | None = None
        self._lattice: _Lattice | None = None

    @property
    def method(self) -> str:
        return self._method

    @property
    def confidence(self) -> float:
        return min((curve.confidence for curve, _ in self._parts), default=1.0)

    def log_delta(self, epsilon: Array, direction: Direction) -> Interval:
        """Bounds on log δ whose distance, as a distance in ε, is within the accuracy wanted."""
        epsilon = np.asarray(epsilon, dtype=np.float64)
        if epsilon.size == 0:
            return Interval(epsilon, epsilon, epsilon)
        results = np.empty((3, epsilon.size))
        for here, towards in (
            (epsilon >= 0, direction),
            (epsilon < 0, ADD if direction == REMOVE else REMOVE),
        ):
            if here.any():
                size, back = np.unique(np.abs(epsilon[here]), return_inverse=True)
                results[:, here] = np.stack(self._positive(size, towards))[:, back]
        nothing = np.zeros(epsilon.size)
        lower, value, upper = (below_zero(epsilon, row, nothing) for row in results)
        return Interval(lower.lower, value.value, upper.upper)

    def estimate(self, epsilon: float, direction: Direction) -> float:
        """A guess of log δ by the saddlepoint formula on a coarse grid: no bound, but next to free."""
        return self._saddle(epsilon, direction)[0]

    def _saddle(self, epsilon: float, direction: Direction) -> tuple[float, float]:
        """The guess of log δ, and the tilt θ there."""
        cumulants = Cumulants(
            [look.atoms(n, direction) for look, n in zip(self._look(), self._counts, strict=True)]
        )
        theta = cumulants.solve(epsilon, 1e6)
        kappa, mean, variance = cumulants.at(theta)
        if theta == 0:
            return min(0.0, math.log(-math.expm1(min(epsilon - mean, -1e-3 * math.sqrt(variance))))), 0.0
        decline = math.log1p(theta * (1 + theta) * math.sqrt(2 * math.pi * variance))
        return min(0.0, kappa - theta * epsilon - decline), theta

    @property
    def _counts(self) -> list[int]:
        return [count for _, count in self._parts]

    def _look(self) -> list[_Look]:
        if self._looks is None:
            self._looks = [_Look(curve) for curve, _ in self._parts]
            self._settle(-60.0)
        return self._looks

    def _settle(self, floor: float) -> None:
        for look in self._looks or []:
            for direction in DIRECTIONS:
                look.reach(direction, floor)

    def _plan(self, epsilon: Array, direction: Direction) -> tuple[float, float]:
        """The spacing h to start with, and the log δ below which tails are cut off."""
        steps = sum(self._counts)
        some = epsilon[np.unique(np.linspace(0, epsilon.size - 1, 7).astype(int))]
        for _ in range(8):  # a deeper look may show a larger δ, and so on until it reaches far enough
            guesses = [self._saddle(float(e), direction) for e in some]
            least = min(log_delta for log_delta, _ in guesses)
            floor = max(LEAST_LOG, 1.05 * least - 4 + math.log(_SHARE * self.accuracy.absolute / steps))
            before = [look.epsilon[-1] for look in self._look()]
            self._settle(floor)
            if before == [look.epsilon[-1] for look in self._look()]:
                break
        wanted = self.accuracy.at(some) / (0.15 * steps * np.array([1 + theta for _, theta in guesses]))
        return math.sqrt(0.5 * float(wanted.min())), floor

    def _build(self, h: float, floor: float) -> _Lattice:
        below, above = [], []
        for look, (curve, count) in zip(self._look(), self._parts, strict=True):
            left, right = look.reach(ADD, floor), look.reach(REMOVE, floor)
            first, last = -math.ceil(left / h) - 2, math.ceil(right / h) + 2
            if last - first > MAX_NODES:
                raise AccuracyError(
                    f"A grid of {h:.1e} in ε would need {last - first:,} points for one run, more than "
                    f"{MAX_NODES:,}. Ask for less accuracy in ε or for a larger δ."
                )
            low, high = bracket(curve, h, first, last)
            below.append((low, count))
            above.append((high, count))
        return _Lattice(h, floor, below, above, {})

    def _positive(self, epsilon: Array, direction: Direction) -> tuple[Array, Array, Array]:
        """Lower, value, upper at increasing ε ≥ 0; refines until they are as close as wanted."""
        h, floor = self._plan(epsilon, direction)
        lattice = self._lattice
        if lattice is None or lattice.floor > floor or lattice.h > 2 * h:
            if lattice is not None:
                h, floor = min(h, lattice.h), min(floor, lattice.floor)
            lattice = self._build(h, floor)
        worst = math.inf
        while True:
            upper, slope = lattice.log_delta(epsilon, direction, upper=True)
            lower, _ = lattice.log_delta(epsilon, direction, upper=False)
            lower = np.minimum(lower, upper)
            self._lattice = lattice
            with np.errstate(invalid="ignore"):
                gap = np.where(upper < LEAST_LOG / 1.8, 0.0, upper - lower)
            ratio = float(np.max(gap / np.maximum(slope * self.accuracy.at(epsilon), 1e-9)))
            if ratio <= 1:
                value = np.where(np.isfinite(lower), lower + 0.43 * (upper - lower), upper)
                return lower, value, upper
            if ratio > 0.7 * worst:
                raise AccuracyError(
                    f"The bounds on ε are {ratio:.2g} times farther apart than the accuracy wanted of "
                    f"{self.accuracy.relative:g}·ε or {self.accuracy.absolute:g}, and a finer grid than "
                    f"{lattice.h:.1e} does not help. Ask for {1.1 * ratio:.2g} times less accuracy."
                )
            worst = ratio
            h = lattice.h * max(0.85 / math.sqrt(ratio), 0.125)
            try:
                lattice = self._build(h, lattice.floor)
            except AccuracyError as error:
                raise AccuracyError(
                    f"{error} The present bounds are {ratio:.2g} times too far apart."
                ) from None
