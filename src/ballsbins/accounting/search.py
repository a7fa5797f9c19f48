"""Invert a privacy curve: find ε from δ, and the value of a free parameter that meets a target.

Everything is monotone and searched in logarithms. Each result lies on the safe side and was evaluated there: at an
upper ε, the upper δ is within the target; at a calibrated value, the target holds.

All targets are searched together. Each round evaluates the curve once, at three points around each root, and all
evaluations are kept in one table. So a few rounds are enough for any number of targets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from ballsbins.accounting.curve import ADD, DIRECTIONS, REMOVE, Array, Curve, Direction
from ballsbins.errors import UnreachableTargetError

LARGEST_EPSILON = 700.0  # e^700 is about the largest double
_SMALLEST_EPSILON = 1e-12
_FAR = 1e4  # values of log δ farther than this from the target are clipped
_LOWER, _VALUE, _UPPER = 0, 1, 2  # rows of the table and of the answer
_FINEST, _COARSEST = 1e-14, 1e-9  # relative distance from a root at which its two sides are evaluated
_GUESSED = 0.004  # the same, for a root that was guessed
# For a single root, use Chebyshev points within 1 % of the guess: if the root is there, it is found to all digits.
_AROUND_ONE, _CHEBYSHEV = 0.01, np.cos(np.pi * (np.arange(8) + 0.5) / 8)
_MOST_ROUNDS = 100  # most rounds of a search: a few are usual
_JUMP = 1e-3  # if log δ falls by more within a relative _COARSEST, it jumps: an exact answer ends there, say
_USUAL_SLOPE = 40.0  # typical −d log δ/d log σ
_BEYOND = 1.3  # go this many times as far as the root seems to be, so that it lies between
_PAST = 1.06  # the same, if the slope is known
_AROUND = np.array([-1.0, 0.0, 1.0])
_NEIGHBOURS = 8  # most points used to interpolate a root
_TENTHS = np.array([0.01, 0.1, 0.5])  # fractions of the right end, if the left end is 0
# Multiple of the curve's own error, as a distance in ε, at which the two sides of a root can be told apart.
_PAST_WIDTH = 1.5
_QUARTERS = np.array([0.25, 0.5, 0.75])  # fractions of a bracket
# Points beyond the bracket, if one side is unknown: at most these fractions of ε lower, or these factors higher.
_LEFT, _RIGHT = np.array([1.0, 0.5, 0.1]), np.array([0.75, 1.0, 2.0])
_TIMES_SPAN = np.array([np.inf, 30.0, 3.0])  # the same on the left, in units of the span of all points so far
# The last three points around a root are no farther apart than this, in units of their distance.
_AROUND_ROOT = 2.2
_HIT = 0.2  # a guess whose error is below this share of the final distance is the last one
# If one side is unknown, go beyond the guess by this fraction of the distance to the known side.
_OUTWARDS = 0.3
_LEAST_WIDTH = 1e-15  # least width of the bounds on log δ, so that steps are not 0
_SMALL_STRIDE, _GROWTH = 1.1, (1.5, 4.0)  # a stride below this means a close start; growth of steps, if close
_ASIDE = 0.45  # how far beside a root to evaluate, as a fraction of the accuracy wanted
_INSIDE, _SHRUNK = 0.1, 0.3  # fractions of a bracket: stay this far inside; halve it if it shrinks too little


class _Table:
    """All evaluated points of one curve, in increasing order of ε."""

    def __init__(self, curve: Curve, direction: Direction) -> None:
        self._curve, self._direction = curve, direction
        self.scale = curve.scale
        self.epsilon: Array = np.empty(0)
        self.rows: Array = np.empty((3, 0))

    def ask(self, points: Array) -> None:
        """Evaluate the new points in one call."""
        new = np.setdiff1d(points, self.epsilon)
        if new.size == 0:
            return
        found = self._curve.log_delta(new, self._direction)
        epsilon = np.append(self.epsilon, new)
        order = np.argsort(epsilon, kind="stable")
        self.epsilon = epsilon[order]
        self.rows = np.hstack([self.rows, [found.lower, found.value, found.upper]])[:, order]

    def first_within(self, side: int, targets: Array) -> NDArray[np.intp]:
        """Return, for each target, the index of the first point at which that side of log δ is within it.

        If there is none, the index is the number of points.
        """
        least = np.minimum.accumulate(self.rows[side])
        return np.searchsorted(-least, -targets, side="left")

    def bracket(self, side: int, targets: Array) -> tuple[Array, Array]:
        """Return the closest evaluated ε to the left (−∞: none) and to the right (∞: none) of each root."""
        right = self.first_within(side, targets)
        padded = np.concatenate([[-np.inf], self.epsilon, [np.inf]])
        return padded[right], padded[right + 1]

    def fall(self, side: int, targets: Array) -> Array:
        """Return by how much that side of log δ falls between the two points around each root (∞: no such points)."""
        right = self.first_within(side, targets)
        padded = np.concatenate([[np.inf], np.minimum.accumulate(self.rows[side]), [-np.inf]])
        return np.asarray(padded[right] - padded[right + 1])


def epsilon_at(curve: Curve, direction: Direction, log_deltas: Array) -> Array:
    """Find the least ε ≥ 0 with δ(ε) ≤ e^{log_deltas} in one direction, for a vector of targets.

    Returns:
        Rows lower, value and upper, with one column per target. At the upper ε, the curve's upper δ was evaluated and
        is within the target. At a lower ε > 0, its lower δ is not. An upper ε is ∞ if 700 is not enough.
    """
    targets = np.asarray(log_deltas, dtype=np.float64).ravel()
    if curve.above is not curve:
        upper = epsilon_at(curve.above, direction, targets)[_UPPER]
        below = [epsilon_at(part, direction, targets)[_LOWER] for part in curve.below]
        return np.stack([np.minimum(np.max(below, axis=0), upper), upper, upper])
    if targets.size == 0:
        return np.empty((3, 0))
    table = _Table(curve, direction)
    _start(table, curve, direction, targets)
    value = _roots(table, _VALUE, targets)
    left, right = _sides(table, targets, value)
    upper = np.where(right > 0.0, right, 0.0)
    # nothing was evaluated beyond the largest ε
    lower = np.minimum(np.where(upper == 0.0, 0.0, np.maximum(left, 0.0)), LARGEST_EPSILON)
    # An upper ε for one δ is valid for every larger δ, and a lower ε for every smaller δ.
    order = np.argsort(targets)
    upper[order] = np.minimum.accumulate(upper[order])
    order = order[::-1]
    lower[order] = np.maximum.accumulate(lower[order])
    value[order] = np.maximum.accumulate(value[order])
    return np.stack([lower, np.clip(value, lower, upper), upper])


def _start(table: _Table, curve: Curve, direction: Direction, targets: Array) -> None:
    """Evaluate the first points: around the curve's own guess if it has one, otherwise at the scale it states."""
    guess = curve.rough_epsilon(targets, direction)
    if guess is None:
        points = table.scale * (np.ones(1) if table.scale >= LARGEST_EPSILON else np.array([0.5, 1.0, 2.0]))
    else:
        centre = np.nan_to_num(guess, nan=table.scale)
        if targets.size == 1:
            low, high = curve.stretch(float(centre[0]), direction)
            low, high = max(low, (1.0 - _AROUND_ONE) * centre[0]), min(high, (1.0 + _AROUND_ONE) * centre[0])
            points = 0.5 * (low + high) + 0.5 * (high - low) * _CHEBYSHEV
        else:
            points = np.outer(1.0 + _GUESSED * _AROUND, centre).ravel()
    table.ask(np.clip(points, 0.0, LARGEST_EPSILON))


def _roots(table: _Table, side: int, targets: Array) -> Array:
    """Return where one side of the curve crosses each target (0: never above it, ∞: never within it).

    Afterwards the bracket of every root in the table is as narrow as rounding or the curve's own error allows.
    """
    root = np.full(targets.shape, np.nan)
    before = np.full(targets.shape, np.inf)
    for _ in range(_MOST_ROUNDS):
        left, right = table.bracket(side, targets)
        root = np.where(left >= LARGEST_EPSILON, np.inf, np.where(right == 0.0, 0.0, root))
        open_ = np.flatnonzero(np.isnan(root))
        if open_.size == 0:
            return root
        left, right = left[open_], right[open_]
        points, close = _next_points(
            table, side, targets[open_], left, right, right - left > before[open_] / 4
        )
        before[open_] = right - left
        table.ask(np.clip(points, 0.0, LARGEST_EPSILON).ravel())
        left, right = table.bracket(side, targets[open_])
        done = (left > -np.inf) & (right < np.inf)
        enough = np.where(table.fall(side, targets[open_]) > _JUMP, _COARSEST, 2.0 * _FINEST) * right
        done &= (right - left <= np.maximum(_AROUND_ROOT * close, enough)) | (right < _SMALLEST_EPSILON)
        middle = points[:, 1]
        inside = (middle >= left) & (middle <= right)
        root[open_] = np.where(done, np.where(inside, middle, right), np.nan)
    return np.where(np.isnan(root), table.bracket(side, targets)[1], root)


def _next_points(
    table: _Table, side: int, targets: Array, left: Array, right: Array, slow: NDArray[np.bool_]
) -> tuple[Array, Array]:
    """Return three points to evaluate for each root, and their distance from it if they are the last (else 0)."""
    with np.errstate(all="ignore"):
        # if one side is unknown, go at most to twice or half the known end
        a = np.where(np.isneginf(left), 0.5 * right, left)
        b = np.where(np.isposinf(right), 2.0 * np.maximum(left, table.scale), right)
        x, miss, slope, width = _interpolated(table, side, targets)
        near = np.clip(_PAST_WIDTH * width / slope, _FINEST * x, _COARSEST * x)
        last = miss <= _HIT * near
        beyond = np.where(
            np.isneginf(left),
            _OUTWARDS * (right - x),
            np.where(np.isposinf(right), _OUTWARDS * (x - left), 0.0),
        )
        spread = np.where(last, near, np.clip(2.0 * miss, beyond, 0.5 * (b - a)))
        good = (x > a) & (x < b) & (~slow | last)
        points = x[:, None] + spread[:, None] * _AROUND
        if not good.all():
            span = float(np.ptp(table.epsilon)) or np.inf
            points = np.where(good[:, None], points, _halves(a, b, left, right, span))
    return points, np.where(good & last, spread, 0.0)


def _halves(a: Array, b: Array, left: Array, right: Array, span: float) -> Array:
    """Return three points between a and b, in logs if these are far apart; beyond them if one side is unknown.

    On the left, go a few times as far as all points so far (`span`): around a guess they are as close as it is good.
    """
    even = a[:, None] + (b - a)[:, None] * _QUARTERS
    quarters = a[:, None] * (b / a)[:, None] ** _QUARTERS
    steep = np.where(a[:, None] > 0.0, quarters, b[:, None] * _TENTHS)
    points = np.where((b > 4 * a)[:, None], steep, even)
    lower = right[:, None] - np.minimum(span * _TIMES_SPAN, right[:, None] * _LEFT)
    points = np.where(np.isneginf(left)[:, None], lower, points)
    points = np.where(np.isposinf(right)[:, None], b[:, None] * _RIGHT, points)
    return np.asarray(points, dtype=np.float64)


def _interpolated(table: _Table, side: int, targets: Array) -> tuple[Array, Array, Array, Array]:
    """Return ε at each target by inverse interpolation, its error, |d log δ / dε| and the curve's own error there.

    The logarithm of ε is interpolated by a polynomial in log δ through the points nearest to the root (Neville).
    """
    count = min(_NEIGHBOURS, len(table.epsilon))
    right = table.first_within(side, targets)
    first = np.clip(right - count // 2, 0, len(table.epsilon) - count)
    window = first[:, None] + np.arange(count)
    y = np.maximum(table.rows[side][window] - targets[:, None], -_FAR)
    with np.errstate(all="ignore"):
        t = np.log(table.epsilon[window])
        # nearest first, so that the columns of Neville's scheme add one point after another
        order = np.argsort(np.abs(y), axis=1, kind="stable")
        y, t = np.take_along_axis(y, order, axis=1), np.take_along_axis(t, order, axis=1)
        scheme, history = t.copy(), [t[:, 0]]
        for degree in range(1, count):
            ahead, behind = y[:, degree:], y[:, : count - degree]
            scheme = (behind * scheme[:, 1:] - ahead * scheme[:, :-1]) / (behind - ahead)
            history.append(scheme[:, 0])
        corrections = np.abs(np.diff(np.array(history), axis=0))
        corrections = np.where(np.isfinite(corrections), corrections, np.inf)
        # stop where the next point changes the result least
        best = corrections.argmin(axis=0) if count > 1 else np.zeros(targets.shape, dtype=int)
        columns = np.arange(targets.size)
        log_x = np.array(history)[best + 1 if count > 1 else best, columns]
        miss = corrections[best, columns] if count > 1 else np.full(targets.shape, np.inf)
        x = np.exp(log_x)
        slope = np.abs((y[:, 1] - y[:, 0]) / (np.exp(t[:, 1]) - np.exp(t[:, 0]))) if count > 1 else miss
        nearest = np.take_along_axis(window, order, axis=1)[:, 0]
        width = np.maximum(table.rows[_UPPER, nearest] - table.rows[_LOWER, nearest], _LEAST_WIDTH)
        return x, miss * x, slope, width


def _sides(table: _Table, targets: Array, value: Array) -> tuple[Array, Array]:
    """Return a lower and an upper ε for each target: from the table if the bounds are close, else by a search."""
    left, right = table.bracket(_LOWER, targets)[0], table.bracket(_UPPER, targets)[1]
    for side, found in ((_UPPER, right), (_LOWER, left)):
        with np.errstate(invalid="ignore"):
            loose = ~(np.abs(found - value) <= 4 * _COARSEST * value)
        loose &= ~((found == value) | (np.isneginf(found) & (value == 0.0)))
        loose |= np.isneginf(found) & np.isposinf(value)  # not even the side of 0 is known
        if loose.any():
            root = _roots(table, side, targets[loose])
            ends = table.bracket(side, targets[loose])
            found[loose] = np.where(np.isinf(root), np.inf, ends[1 if side == _UPPER else 0])
    return left, right


class BothDirections(Mapping[Direction, Array]):
    """ε from δ in both directions; a direction that is proved not to be larger is searched only on demand."""

    def __init__(self, curve: Curve, log_deltas: Array) -> None:
        """Search "remove", and "add" if it may be larger; `worst` holds the larger of the two."""
        self._curve, self._targets = curve, np.asarray(log_deltas, dtype=np.float64).ravel()
        first = epsilon_at(curve, REMOVE, self._targets)
        self._found: dict[Direction, Array] = {REMOVE: first}
        open_ = np.isfinite(first[_UPPER])  # nothing is larger than ∞
        decided = _within(curve, ADD, first[_LOWER][open_], self._targets[open_])
        self.worst = first if decided else np.maximum(first, self[ADD])

    def __getitem__(self, direction: Direction) -> Array:
        if direction not in self._found:
            self._found[direction] = epsilon_at(self._curve, direction, self._targets)
        return self._found[direction]

    def __iter__(self) -> Iterator[Direction]:
        return iter(DIRECTIONS)

    def __len__(self) -> int:
        return len(DIRECTIONS)


def _within(curve: Curve, direction: Direction, epsilon: Array, targets: Array) -> bool:
    """Whether δ(ε) ≤ e^target is proved for all points: by a cheap bound if there is one, or by the upper bound."""
    curve = curve.above
    quick = curve.log_upper(epsilon, direction, targets)
    left = np.ones(targets.shape, dtype=bool) if quick is None else quick > targets
    return not left.any() or bool((curve.log_delta(epsilon[left], direction).upper <= targets[left]).all())


def largest_log_delta(curve: Curve, epsilon: Array) -> Array:
    """Return the larger upper bound on log δ(ε) of both directions; skip "add" where a cheap bound is lower."""
    upper = curve.log_delta(epsilon, REMOVE).upper
    quick = curve.log_upper(epsilon, ADD, upper)
    left = np.ones(upper.shape, dtype=bool) if quick is None else quick > upper
    if left.any():
        upper[left] = np.maximum(upper[left], curve.log_delta(epsilon[left], ADD).upper)
    return upper


def least(
    excess: Callable[[float], float],
    low: float,
    high: float,
    *,
    start: float,
    relative: float,
    what: str,
    stride: float = 2.0,
    slope: float | None = None,
) -> float:
    """Find the least x in [low, high], to the given relative accuracy, at which the decreasing `excess` is ≤ 0.

    The bracket grows from `start` by factors of `stride`, or less if the start proves to be close. `slope` is
    −d excess/d log x there, to a few percent, if that is known. `what` names x in the error raised if
    excess(high) > 0.
    """
    known: dict[float, float] = {}

    def at(log_x: float) -> float:
        if log_x not in known:
            known[log_x] = max(min(excess(math.exp(log_x)), _FAR), -_FAR)
        return known[log_x]

    bottom, top, step = math.log(low), math.log(high), math.log(stride)
    close = stride < _SMALL_STRIDE  # the caller believes that `start` is close
    growth = _GROWTH[close]
    left = right = math.log(start)
    if close:
        away = _BEYOND * abs(at(right)) / _USUAL_SLOPE if slope is None else _PAST * abs(at(right)) / slope
        step = min(max(away, 2.0 * relative), step)
    while at(right) > 0.0:
        if right >= top:
            raise UnreachableTargetError(
                f"no {what} up to {high:g} meets the target: at {high:g} it is still missed by a factor of "
                f"{math.exp(min(at(right), LARGEST_EPSILON)):.3g}. Allow a larger epsilon or delta, or fewer epochs."
            )
        left, right = right, min(right + step, top)
        step *= growth
    while at(left) <= 0.0:
        if left <= bottom:
            return low
        right, left = left, max(left - step, bottom)
        step *= growth
    slow = 0
    while right - left > relative:
        # try the safe side of the estimated root, then just before it; halve the bracket if that does not help
        root, before = _crossing(known, left, right), right - left
        safe, short = root + _ASIDE * relative, root - _ASIDE * relative
        x = 0.5 * (left + right) if slow > 1 else safe if safe < right - _ASIDE * relative else short
        x = (
            min(max(x, left + _INSIDE * before), right - _INSIDE * before)
            if slow > 1 or not left < x < right
            else x
        )
        steepness = (at(left) - at(right)) / before
        left, right = (x, right) if at(x) > 0.0 else (left, x)
        if -at(right) < 2.0 * _ASIDE * relative * steepness:
            break  # the chord shows that the root is no farther away than that
        slow = 0 if right - left < _SHRUNK * before or slow > 1 else slow + 1
    return math.exp(right)


def _crossing(known: dict[float, float], left: float, right: float) -> float:
    """Estimate the root of a function known at some points, by inverse quadratic interpolation or by a chord."""
    third = min((x for x in known if x not in (left, right)), key=lambda x: abs(known[x]), default=None)
    a, b = known[left], known[right]
    chord = left + (right - left) * a / (a - b)
    if third is None or known[third] in (a, b):
        return chord
    c = known[third]
    root = (
        left * b * c / ((a - b) * (a - c))
        + right * a * c / ((b - a) * (b - c))
        + third * a * b / ((c - a) * (c - b))
    )
    return root if left < root < right else chord
