"""The privacy curve of several runs: exact by Mellin inversion wherever its error can be stated, else a bracket.

Every ε is answered by the sheet of a fixed place near it (`_places`), so answers do not depend on what was asked
before. Sheets are kept for later questions. If a sheet has no answer, or too few digits, the polygons and tilted
transforms of `composition` give a bracket instead; that method shares no step with this one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

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
from ballsbins.accounting.epochs.composition import ComposedCurve
from ballsbins.accounting.epochs.fourier import TINY
from ballsbins.accounting.epochs.lines import Lines, NoLine
from ballsbins.accounting.epochs.moments import Moments
from ballsbins.accounting.epochs.saddles import Product

_ENOUGH = 1e-6  # largest relative error of δ for an answer to be called exact
_GOOD = 3e-8  # an answer with a larger relative error gets a sheet of its own
_MOST_OWN = 8  # most sheets laid for single points of one question, to limit the time
_FLOOR = 1e-13  # never claim a smaller relative error than this
_REACH = 0.2  # how far around a place its lines serve, relative; at least half a stride
# The search for a rough ε works in log ε, in deviations, between these ends: it starts at the Gaussian's value and
# takes at most this many Newton steps, none longer than this, until one is short.
_ENDS, _MOST_LOOKS, _LONGEST_STEP, _CLOSE_GUESS = (-7.0, 14.0), 24, 1.5, 0.1
_TO_MOST = 25.0  # how much farther it may go if losses are bounded: up to e^−25 of the largest loss from it
_SEEN, _BLIND_STEP = 1.5, 0.5  # from farther than this in log(−log δ), steps are not shorter than that
_FLATTEST = 0.05  # least slope of log(−log δ) in log ε that a Newton step assumes, so that no step explodes
_LEAST_LOG = 1e-3  # smaller values of −log δ are treated as this, to keep its logarithm finite
# the error floor grows by its own size for every 25 of |log δ|: that is the rounding of the logarithm
_PER_DIGITS = 25.0
_CRUDE = 0.1  # a value with a larger relative error has no correct digit
# stop refining a direction whose log δ is this far below the other's: it cannot decide the maximum
_ASIDE = 25.0
_NEAR_MOST = 0.5  # the largest loss is near if it is larger than ε by less than this fraction of ε
_FAR_BELOW = -80.0  # a bound this low on log δ decides every question
_BELOW_DOUBLES = -745.2  # log of less than the least double
_ROUNDED = 1e-9  # the ends of a stretch are moved inwards by this much, relative, to allow for rounding
_STRIDE, _LINEAR, _RATIO = 4.0, 8.0, 1.4  # places: every 4 deviations up to 8, then by a factor of 1.4


class ProductCurve(Curve):
    """The privacy curve of `count` independent runs of each of several mechanisms, one after the other."""

    kind = "exact"
    method = "exact"
    fallback = "bracket", "composition"

    def __init__(self, moments: Callable[[], Sequence[tuple[Moments, int]]], bracket: ComposedCurve) -> None:
        """Take the moments of every kind of run and how often it is run, and the bracket to fall back on.

        `moments` is called when the moments are first needed. `bracket` is the same product by the other method.
        """
        self._make, self.bracket = moments, bracket
        self._products: dict[Direction, Product] = {}
        self._sheets: dict[tuple[Direction, float], Lines | None] = {}

    @property
    def parts(self) -> list[tuple[Curve, int]]:
        """Curves of the single runs."""
        return self.bracket.parts

    @property
    def scale(self) -> float:
        """A typical ε: four standard deviations of the loss."""
        return 4 * self._product(REMOVE).deviation

    def _product(self, direction: Direction) -> Product:
        if direction not in self._products:
            factors = self._make()
            self._products = {way: Product(factors, way) for way in DIRECTIONS}
        return self._products[direction]

    def sketch(self, epsilon: Array, direction: Direction) -> Array:
        """Log δ at some ε ≥ 0, roughly, from sketches of the single runs: not a bound, but almost free."""
        return np.array([self._look(float(e), direction)[0] for e in epsilon])

    def _look(self, epsilon: float, direction: Direction) -> tuple[float, float]:
        """Log δ by the saddlepoint formula, and its slope."""
        product = self._product(direction)
        place = float(self._places(np.array([epsilon]), direction)[0])
        return product.look(epsilon, place + self._reach(place, direction))

    def _places(self, epsilon: Array, direction: Direction) -> Array:
        """The place of every ε. If the largest loss is near, the distance to it is what counts."""
        deviation, left = self._product(REMOVE).deviation, self._most(direction) - epsilon
        usual = _places(epsilon / deviation) * deviation
        with np.errstate(divide="ignore", invalid="ignore"):
            near = self._most(direction) - _RATIO ** np.round(np.log(left) / math.log(_RATIO))
        return np.where(self._near_most(epsilon, direction), np.maximum(near, 0.0), usual)

    def _near_most(self, epsilon: Array, direction: Direction) -> NDArray[np.bool_]:
        """Whether the largest loss is so near that the usual place might lie beyond it."""
        most, half = self._most(direction), 0.5 * _STRIDE * self._product(REMOVE).deviation
        return (epsilon < most) & (most - epsilon < np.maximum(_NEAR_MOST * epsilon, half))

    def _most(self, direction: Direction) -> float:
        """The largest loss, ∞ if there is none."""
        return -self._product(direction).least if direction == ADD else math.inf

    def _reach(self, place: float, direction: Direction) -> float:
        """How far around a place its sheet serves."""
        usual = max(0.5 * _STRIDE * self._product(REMOVE).deviation, _REACH * place)
        return min(usual, _REACH * (self._most(direction) - place))

    def rough_epsilon(self, log_deltas: Array, direction: Direction) -> Array:
        """A first guess of ε from log δ, by the saddlepoint formula."""
        product = self._product(direction)
        known: dict[float, float] = {}  # x = log ε, in deviations → y = log(−log δ), of slope 2 if Gaussian
        per_most = product.deviation / self._most(
            direction
        )  # x is the log of ε/(1 − ε/most) if losses are bounded
        for target in {_log_minus(float(log_deltas.min())), _log_minus(float(log_deltas.max()))}:
            low, high = _ENDS[0], _ENDS[1] + (_TO_MOST if per_most > 0.0 else 0.0)
            x = 0.5 * (target + math.log(2.0))
            for _ in range(_MOST_LOOKS):
                left = 1.0 / (1.0 + per_most * math.exp(x))
                epsilon = product.deviation * math.exp(x) * left
                log, slope = self._look(epsilon, direction)
                known[x] = y = _log_minus(log)
                low, high = (x, high) if y < target else (low, x)
                step = (target - y) / max(slope * epsilon * left / min(log, -_LEAST_LOG), _FLATTEST)
                if abs(target - y) > _SEEN:  # y bends, and where δ is nearly 1 there is nothing to see
                    least = _BLIND_STEP if log < -_LEAST_LOG else _LONGEST_STEP
                    step = math.copysign(max(abs(step), least), step)
                if abs(step) < _CLOSE_GUESS:
                    known[x + step] = target
                    break
                if high - low < 2.0 * _CLOSE_GUESS:
                    break
                # With rare jumps y has a plateau, where a Newton step can lead anywhere: limit it.
                x = min(max(x + step, x - _LONGEST_STEP), x + _LONGEST_STEP)
                x = x if low < x < high else 0.5 * (low + high)
        at = np.array(sorted(known))
        minus = np.maximum.accumulate([known[x] for x in at])
        wanted = [_log_minus(float(log)) for log in log_deltas]
        unbounded = np.exp(np.interp(wanted, minus, at))
        return np.asarray(product.deviation * unbounded / (1.0 + per_most * unbounded))

    def stretch(self, epsilon: float, direction: Direction) -> tuple[float, float]:
        """The range of ε that share a place with this one."""
        deviation, most = self._product(REMOVE).deviation, self._most(direction)
        if self._near_most(np.array([epsilon]), direction)[0]:
            power = math.floor(math.log(most - epsilon) / math.log(_RATIO) + 0.5)
            high, low = (_RATIO ** (power + side) for side in (-0.5, 0.5))
            return max(most - (1.0 - _ROUNDED) * low, 0.0), most - (1.0 + _ROUNDED) * high
        x = epsilon / deviation
        if x < _LINEAR - 0.5 * _STRIDE:
            low, high = (_STRIDE * (math.floor(x / _STRIDE + 0.5) + side) for side in (-0.5, 0.5))
        else:
            power = math.floor(math.log(x / _LINEAR) / math.log(_RATIO) + 0.5)
            low, high = (_LINEAR * _RATIO ** (power + side) for side in (-0.5, 0.5))
            low = max(low, _LINEAR - 0.5 * _STRIDE)
        return (1.0 + _ROUNDED) * low * deviation, (1.0 - _ROUNDED) * high * deviation

    def log_upper(self, epsilon: Array, direction: Direction, enough: Array | None = None) -> Array:
        """A cheap upper bound on log δ(ε), ε ≥ 0, good enough to show that δ is negligible."""
        product, sign = self._product(direction), 1.0 if direction == REMOVE else -1.0
        taken = 0.0 if direction == REMOVE else epsilon  # δ of add is e^ε times a put
        wanted = (_FAR_BELOW if enough is None else enough) - taken + np.zeros(epsilon.shape)
        bounds = np.array(
            [
                -np.inf if self._impossible(float(e), direction) else product.log_bound(sign * float(e), w)
                for e, w in zip(epsilon, wanted, strict=True)
            ]
        )
        return np.asarray(bounds + taken)

    def at(self, epsilon: Array, direction: Direction) -> Interval:
        """Bounds on log δ(ε): with a relative error of δ of at most 10⁻⁶, or else those of the bracket."""
        size, back = np.unique(epsilon, return_inverse=True)
        rows = self._increasing(size, direction)[:, back]
        error = ANSWER
        return Interval(rows[0] - error, rows[1], np.minimum(rows[2] + error, 0.0))

    def _increasing(self, epsilon: Array, direction: Direction) -> Array:
        """Lower, value, upper at increasing ε ≥ 0."""
        rows = np.full((3, epsilon.size), -np.inf)
        possible = np.array([not self._impossible(float(e), direction) for e in epsilon])
        rows[:, possible] = self._possible(epsilon[possible], direction)
        return rows

    def _impossible(self, epsilon: float, direction: Direction) -> bool:
        """Whether δ(ε) = 0 because no loss is that large."""
        return epsilon > self._most(direction)

    def _possible(self, epsilon: Array, direction: Direction) -> Array:
        rows = self.exactly(epsilon, direction)
        with np.errstate(invalid="ignore"):
            poor = np.flatnonzero(~(rows[2] - rows[1] <= _ENOUGH))
        if poor.size:
            # where the other direction decides, an upper bound that shows this is enough
            upper = self.log_upper(epsilon[poor], direction)
            aside = upper < self.sketch(epsilon[poor], other(direction)) - _ASIDE
            rows[1:, poor[aside]] = upper[aside]
            poor = poor[~aside]
        deep = poor[self.sketch(epsilon[poor], direction) < _BELOW_DOUBLES]
        if deep.size:
            # δ may be too small for a double: a bound that shows this says all
            upper = self.log_upper(epsilon[deep], direction, np.full(deep.shape, _BELOW_DOUBLES))
            shown = upper < _BELOW_DOUBLES
            rows[1:, deep[shown]] = upper[shown]
            poor = np.setdiff1d(poor, deep[shown])
        if poor.size:
            found = self.bracket.log_delta(epsilon[poor], direction)
            rows[:, poor] = found.lower, found.value, found.upper
        # δ decreases: an upper bound at one ε holds for all larger ε, a lower bound for all smaller ones
        rows[2] = np.minimum.accumulate(rows[2])
        rows[0] = np.minimum(np.maximum.accumulate(rows[0][::-1])[::-1], rows[2])
        rows[1] = np.clip(rows[1], rows[0], rows[2])
        return rows

    def exactly(self, epsilon: Array, direction: Direction) -> Array:
        """Lower, value, upper of log δ at increasing ε ≥ 0 by Mellin inversion alone; −∞, −∞, 0 where it fails."""
        log, error = np.full(epsilon.size, -np.inf), np.full(epsilon.size, np.inf)
        laid = np.zeros(epsilon.size, dtype=bool)
        places = self._places(epsilon, direction)
        for place in np.unique(places):
            here = np.flatnonzero(places == place)
            sheet = self._sheet(direction, float(place))
            if sheet is not None:
                laid[here] = True
                log[here], error[here] = self._read(sheet, epsilon[here], direction)
        for row in np.flatnonzero(laid & (error > _GOOD))[:_MOST_OWN]:
            if error[row] <= _ENOUGH and self._beside(float(epsilon[row]), float(log[row]), direction):
                continue
            sheet = self._lay(direction, float(epsilon[row]), 0.0)
            if sheet is not None:
                own, off = self._read(sheet, epsilon[row : row + 1], direction)
                if off[0] < error[row]:
                    log[row], error[row] = own[0], off[0]
        known = np.isfinite(error)
        off = np.where(known, error, 0.0)
        return np.stack([log - off, log, np.where(known, np.minimum(log + off, 0.0), 0.0)])

    def _beside(self, epsilon: float, log_delta: float, direction: Direction) -> bool:
        """Whether the other direction decides by far, so that more digits of this one would not matter."""
        return log_delta < self._look(epsilon, other(direction))[0] - _ASIDE

    @staticmethod
    def _read(sheet: Lines, epsilon: Array, direction: Direction) -> tuple[Array, Array]:
        """Log δ and its absolute error from a sheet, which holds log E(X − K)₊ or log E(K − X)₊."""
        sign = 1.0 if direction == REMOVE else -1.0
        log, relative = sheet.log_value(sign * epsilon)
        log = np.minimum(log if direction == REMOVE else log + epsilon, 0.0)
        with np.errstate(invalid="ignore"):
            floor = _FLOOR * (1.0 + np.where(np.isfinite(log), np.abs(log), 0.0) / _PER_DIGITS)
            return log, np.where(relative < _CRUDE, -np.log1p(-np.minimum(relative, 0.5)) + floor, np.inf)

    def _sheet(self, direction: Direction, place: float) -> Lines | None:
        key = (direction, place)
        if key not in self._sheets:
            self._sheets[key] = self._lay(direction, place, self._reach(place, direction))
        return self._sheets[key]

    def _lay(self, direction: Direction, epsilon: float, reach: float) -> Lines | None:
        try:
            return self._product(direction).sheet(epsilon if direction == REMOVE else -epsilon, reach)
        except NoLine:
            return None


def _log_minus(log_delta: float) -> float:
    return math.log(max(-log_delta, _LEAST_LOG))


def _places(x: Array | float) -> Array:
    """The nearest place to every ε, in deviations."""
    near = _STRIDE * np.round(x / _STRIDE)
    with np.errstate(divide="ignore"):
        far = _LINEAR * _RATIO ** np.round(np.log(np.maximum(x, TINY) / _LINEAR) / np.log(_RATIO))
    return np.where(x < _LINEAR, near, far)
