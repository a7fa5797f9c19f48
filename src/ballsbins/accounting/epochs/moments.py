"""Moments M(u) = E[S^u] of the likelihood ratio S of one run, along vertical lines u = c + iy.

**From a privacy curve.** With v(k), k = log K, the out-of-the-money value (δ_remove(k) for k ≥ 0, e^k δ_add(−k) for
k < 0), integrating by parts twice gives M(u) − 1 = u(u−1) ∫ e^{(u−1)k} v(k) dk, for every u. On a lattice k_j = jh
that contains 0, the trapezoidal error from the kink of v at 0 is known in closed form, and the rest is analytic:

    M(u) − 1 = u(u−1)·h·Σ_j e^{(u−1)k_j} v(k_j) + expm1(ℓ(uh/2) + ℓ((u−1)h/2) − ℓ(h/2)),     ℓ(x) = log(x/sinh x),

up to aliases of M at the distance 2π/h, which the same sum over every second point reveals. All terms of the sum
are positive at real u, so the relative accuracy of v is that of M − 1, however small M − 1 is. One fast Fourier
transform gives all y of a line.

Jumps can be split off (`survey`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy  # its parts, such as `scipy.fft`, load when they are first used
from numpy.typing import NDArray

from ballsbins.accounting.curve import ADD, REMOVE, Array, Curve, Direction
from ballsbins.accounting.epochs.survey import Split, Survey, lowest_before_bump

Complex = NDArray[np.complex128]

DEEP = 50.0  # leave out terms below e^−50 of the largest
_MOST_POINTS = 2**17  # most points of one lattice, to limit time and memory
_SLIGHT = 14.0  # a term below e^−14 of the largest has almost no weight
_RESOLVED = 1e-6  # below this, an error that no longer falls is taken to be rounding
_SETTLED = 1e-14  # aliases of this size are not worth a finer lattice
FIRST_FLOOR = -110.0  # log v down to which a run is surveyed first: enough for δ = 10⁻⁶ after many runs
SPREAD = 2.5  # deviation over ½E|X| of a Gaussian, whose ½E|X| is 0.4 deviations
LARGEST_MOMENT = 600.0  # logarithm of the largest term of a moment that must fit into a double
TINY = 1e-300  # near the least double: keeps logarithms and quotients finite
_FIRST_SPACING = 0.25  # as a fraction of the spread: fine enough for most runs; every second point checks it
_RATIOS = (0.125, 0.25, 0.5, 2.0, 4.0, 8.0)  # ratios of lattices that share points: spacings are powers of 2
# if a logarithm changes by less over a cell, the mean of both ends (_LEVEL) or one end (_STEADY) is enough
_LEVEL, _STEADY = 1e-3, 1e-6
# Points per width w of a split. The step is Φ, so an alias at spacing h is e^{−(πw/h)²}: e^−110 here, and e^−28 for
# the sum over every second point, which is what shows that no finer lattice is needed.
PER_WIDTH = 3.4
_FARTHER_LEFT = 1.3  # how much farther to the left a new lattice goes than its first question needs
_SERIES = 0.25  # largest |x| for which seven terms of the series of log(x/sinh x) have all digits
_NO_LONGER = 0.2  # an error that falls by less than this factor is down to rounding
_POWER = 1.4  # power of the distance of two trapezoidal sums that bounds the error of the finer one


@dataclass(frozen=True)
class Grid:
    """The points u = c + 2πil/P, l = 0 … `highest`, of a line. P is a few times a power of 2, so lattices fit."""

    period: float
    highest: int

    @classmethod
    def covering(cls, period: float, end: float) -> Grid:
        """A grid whose period is at least `period`, with y up to `end` or a little more."""
        unit = _unit(period)
        period = unit * math.ceil(period / unit)
        return cls(period, max(8, math.ceil(end * period / (2.0 * math.pi))))

    @property
    def y(self) -> Array:
        return np.asarray((2.0 * math.pi / self.period) * np.arange(self.highest + 1))

    def farther(self) -> Grid:
        """The same line, twice as far."""
        return Grid(self.period, 2 * self.highest)

    def lattice(self, h: float) -> tuple[int, float]:
        """Points per period and spacing, at most h, of a lattice that resolves all these y twice over."""
        h = min(_unit(self.period), 2.0 ** math.floor(math.log2(min(h, self.period / (4 * self.highest)))))
        return round(self.period / h), h


def _unit(period: float) -> float:
    """The widest spacing of a lattice: a power of 2 that fits 16 to 32 times into a period."""
    return float(2.0 ** math.floor(math.log2(period / 16)))


@dataclass(frozen=True)
class Transform:
    """Values along a line with their absolute error; `relative` is the relative error of the underlying curve."""

    value: Complex
    error: Array
    h: float
    relative: float
    ends: float  # size of the integrand at the ends of the lattice, relative to its largest value
    settled: bool  # whether no finer lattice is available


@dataclass(frozen=True)
class Part:
    """What one run contributes along a line: M_body − 1 and, if it is split, J."""

    body: Transform
    jump: Transform | None


def log_sinhc(x: Complex) -> Complex:
    """ℓ(x) = log(x / sinh x)."""
    result, near = np.empty_like(x), np.abs(x) < _SERIES
    square = x[near] ** 2
    terms = (-1 / 6, 1 / 180, -1 / 2835, 1 / 37800, -1 / 467775, 691 / 3831077250, -2 / 127702575)
    series = np.zeros_like(square)
    for term in reversed(terms):
        series += term
        series *= square
    result[near] = series
    if not near.all():
        far = x[~near]
        far = np.where(far.real < 0.0, -far, far)
        result[~near] = np.log(2.0 * far / (1.0 - np.exp(-2.0 * far))) - far
    return result


def log_integrals(position: Array, log_f: Array, tilts: Array) -> Array:
    """Log ∫ f(x) e^{tx} dx over all of `position` for every tilt t; f is taken to be exponential between points."""
    tilted = np.multiply.outer(tilts, position)
    tilted += log_f
    most = tilted.max(axis=1)
    tilted -= most[:, None]
    size = np.exp(tilted, out=tilted)
    cells = np.diff(position)
    with np.errstate(invalid="ignore", divide="ignore"):
        rate = np.add.outer(tilts, np.diff(log_f) / cells)  # of the exponential in each cell
        area = (size[:, 1:] - size[:, :-1]) / rate
        row, cell = np.nonzero(~(np.abs(rate) * cells > _LEVEL))
    area[row, cell] = 0.5 * (size[row, cell] + size[row, cell + 1]) * cells[cell]
    return np.asarray(most + np.log(area.sum(axis=1)))


def weighted_error(error: Array, log_share: Array) -> float:
    """The largest relative error of a value; values with almost no weight count in proportion to their weight."""
    return float((error * np.exp(np.minimum(log_share + _SLIGHT, 0.0))).max())


def _kink(u: Complex, h: float) -> Complex:
    """The contribution of the kink of v at 0 to the trapezoidal rule with spacing h."""
    return np.expm1(
        log_sinhc(0.5 * h * u) + log_sinhc(0.5 * h * (u - 1.0)) - log_sinhc(np.array([0.5 * h + 0j]))
    )


def refined(
    transform: Callable[[float], Transform], h: float, worst: Callable[[Transform], float]
) -> Transform:
    """Halve h until only rounding is left: the error is below `_SETTLED`, or small and no longer falling."""
    found = transform(h)
    error = worst(found)
    while error > _SETTLED and not found.settled:
        found = transform(0.5 * found.h)
        before, error = error, worst(found)
        if _NO_LONGER * before < error < _RESOLVED:
            break
    return found


class Moments:
    """The interface and shared code of all moments of a run; `loss` and `log_v` are a first look at its v(k)."""

    loss: Array
    log_v: Array
    bounded: bool  # whether there is a least loss within the surveyed range
    least: float  # no loss is below this; −∞ if no such bound is known
    spread: float  # about the standard deviation of the loss, without rare large losses
    spacing: float  # spacing of the first lattice

    def reach(self, floor: float) -> None:
        """Survey out to where log v is below `floor`, on both sides."""
        raise NotImplementedError

    def sharpen(self) -> bool:
        """Survey again, more precisely; return False if that is not possible."""
        return False

    def split_spacing(self, split: Split) -> float:
        """The first spacing for an integrand that a split cuts off."""
        raise NotImplementedError

    def transform(
        self, c: float, line: Grid, log_weight: Callable[[Array], Array] | None, h: float, *, kink: bool
    ) -> Transform:
        """u(u−1)·∫ e^{(u−1)k} v(k)·weight dk along a line; `kink` says whether the integral crosses 0."""
        raise NotImplementedError

    def rough(self, c: Array, split: Split | None) -> Array:
        """Log M_body at real c outside of [0, 1], roughly: enough to place lines."""
        log_v = self.log_v if split is None else self.log_v + split.log_body(self.loss)
        body = log_integrals(self.loss, log_v, c - 1.0)
        return np.logaddexp(0.0, np.log(c * (c - 1.0)) + body)

    def rough_jump(self, c: Array, split: Split) -> Array:
        """Log of J/(u(u−1)) at real c, roughly."""
        log_v = self.log_v + split.log_local_jump(self.loss)
        return log_integrals(self.loss, log_v, c - 1.0)

    def rough_along(self, c: float, y: Array, split: Split | None) -> Complex:
        """M_body at u = c + iy, roughly: between the surveyed points v is taken to be exponential."""
        tilted = self.log_v + (c - 1.0) * self.loss
        if split is not None:
            tilted = tilted + split.log_body(self.loss)
        top = float(tilted.max())
        u = c + 1j * y
        exponent = (tilted - top) + 1j * np.outer(y, self.loss)
        size, rise = np.exp(exponent), np.diff(exponent)
        mean = np.diff(size) / np.where(np.abs(rise) < _STEADY, 1.0, rise)
        mean = np.where(np.abs(rise) < _STEADY, size[:, :-1], mean)
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray(1.0 + u * (u - 1.0) * np.vecdot(np.diff(self.loss), mean) * np.exp(top))

    def log_value(self, k: Array) -> Array:
        """Log v at k > 0, roughly."""
        return np.interp(k, self.loss, self.log_v)

    def covers(self, c: float, split: Split | None) -> bool:
        """Whether the survey covers everything that matters of the body under the tilt c."""
        tilted = self.log_v + (c - 1.0) * self.loss
        if split is not None:
            tilted = tilted + split.log_body(self.loss)
        left = -np.inf if self.bounded else tilted[0]
        return bool(max(left, tilted[-1]) < tilted.max() - DEEP)

    def valley(self, c: float, split: Split | None) -> float | None:
        """Where to split: at the lowest point of e^{(c−1)k} v(k) before its bump, if it has one."""
        right = self.loss > 0.0
        loss, tilted = self.loss[right], (self.log_v + (c - 1.0) * self.loss)[right]
        if split is not None:
            tilted = tilted + split.log_body(loss)
        return lowest_before_bump(loss, tilted)

    def line(self, c: float, line: Grid, count: int, split: Split | None, *, jumps: bool) -> Part:
        """M along the line, accurate enough for its power `count`; also J if there are jumps."""
        weight = None if split is None else split.log_body

        def worst_body(found: Transform) -> float:
            size = np.abs(1.0 + found.value)
            with np.errstate(divide="ignore"):
                share = np.exp(np.minimum((count - 1.0) * np.log(size / size[0]), 0.0))
            return count * float((share * found.error).max()) / float(size[0])

        first = self.spacing if split is None else min(self.spacing, self.split_spacing(split))
        body = refined(lambda h: self.transform(c, line, weight, h, kink=True), first, worst_body)
        jump = None
        if split is not None and jumps:
            jump = refined(
                lambda h: self.transform(c, line, split.log_local_jump, h, kink=False),
                self.split_spacing(split),
                lambda found: float(found.error.max() / np.abs(found.value).max()),
            )
        return Part(body, jump)


class CurveMoments(Moments):
    """The moments of one run from its privacy curve."""

    def __init__(self, curve: Curve, rough: Callable[[Array, Direction], Array] | None = None) -> None:
        """Survey the curve, or its rough values if given; lattices are made when they are needed."""
        self._curve, self._survey = curve, Survey.above(curve) if rough is None else Survey(rough)
        self._sharp = rough is None
        self._lattices: dict[float, tuple[int, Array, Array]] = {}
        self.spread = SPREAD * math.exp(float(self._survey.log_delta[REMOVE][0]))
        self.spacing = _FIRST_SPACING * self.spread
        self.reach(FIRST_FLOOR)

    def sharpen(self) -> bool:
        """Survey again, at the curve itself; return False if that was done already."""
        if self._sharp:
            return False
        floor = float(self.log_v[[0, -1]].max())
        self._survey, self._sharp = Survey.above(self._curve), True
        self.reach(floor)
        return True

    def reach(self, floor: float) -> None:
        """Survey out to where log v is below `floor`, on both sides."""
        for direction in (REMOVE, ADD):
            self._survey.reach(direction, floor)
        epsilon = self._survey.epsilon
        left = (self._survey.log_delta[ADD] - epsilon)[:0:-1]
        log_v = np.concatenate([left, self._survey.log_delta[REMOVE]])
        loss, some = np.concatenate([-epsilon[:0:-1], epsilon]), np.isfinite(log_v)
        self.bounded = not some[0]
        self._end = float(loss[max(int(np.argmax(some)) - 1, 0)])
        # a rough survey may suggest that a loss is impossible; only the curve itself proves it
        proved = self.bounded and np.isneginf(self._curve.at(np.array([-self._end]), ADD).upper[0])
        self.least = self._end if proved else -math.inf
        self.loss, self.log_v = loss[some], log_v[some]

    def transform(
        self, c: float, line: Grid, log_weight: Callable[[Array], Array] | None, h: float, *, kink: bool
    ) -> Transform:
        """u(u−1)·∫ e^{(u−1)k} v(k)·weight dk by the trapezoidal rule, with the term of the kink at 0 if needed."""
        tilted = self.log_v + (c - 1.0) * self.loss
        if log_weight is not None:
            tilted = tilted + log_weight(self.loss)
        points, h = line.lattice(h)
        first, log_v, error = self._on_lattice(h, tilted)
        index = np.arange(first, first + log_v.size)
        k = np.asarray(h * index, dtype=np.float64)
        exponent = log_v + (c - 1.0) * k
        if log_weight is not None:
            exponent = exponent + log_weight(k)
        top = float(exponent.max())
        if top > LARGEST_MOMENT:  # the moments themselves would overflow a double
            raise TooFine
        wrapped = np.bincount(index % points, weights=np.exp(exponent - top), minlength=points)
        u = np.asarray(c + 1j * line.y, dtype=np.complex128)
        factor = u * (u - 1.0) * (h * math.exp(top))
        spectrum = scipy.fft.rfft(wrapped)
        sums, mirrored = np.conj(spectrum[: line.highest + 1]), spectrum[::-1][: line.highest + 1]
        # the sum over every second point adds the spectrum shifted by half its length
        fine, coarse = factor * sums, factor * (sums + mirrored)
        if kink:
            fine, coarse = fine + _kink(u, h), coarse + _kink(u, 2.0 * h)
        ends = float(np.exp(exponent[0] - top) + np.exp(exponent[-1] - top))
        relative = weighted_error(error, exponent - top)
        return Transform(
            fine, alias(fine, np.abs(fine - coarse)), h, relative, ends, 2 * points > _MOST_POINTS
        )

    def split_spacing(self, split: Split) -> float:
        """A fraction of the width of the split."""
        return split.width / PER_WIDTH

    def _on_lattice(self, h: float, tilted: Array) -> tuple[int, Array, Array]:
        """Log v and its error on the lattice of spacing h, over the range that matters according to `tilted`."""
        some = np.flatnonzero(tilted > tilted.max() - DEEP)
        low = self.loss[some[0] - 1] if some[0] > 0 else self._end
        if h not in self._lattices:  # one call for some more points now costs less than a second call later
            low = max(_FARTHER_LEFT * low, self._end)
        high = self.loss[min(some[-1] + 1, tilted.size - 1)]
        first, last = math.floor(low / h), math.ceil(high / h)
        if last - first > _MOST_POINTS:
            raise TooFine
        start, log_v, error = self._lattices.get(h) or (first, np.empty(0), np.empty(0))
        if first < start or last > start + log_v.size - 1:
            before = self._values(h, min(first, start), start)
            behind = self._values(h, start + log_v.size, max(last + 1, start + log_v.size))
            log_v = np.concatenate([before[0], log_v, behind[0]])
            error = np.concatenate([before[1], error, behind[1]])
            start = min(first, start)
            self._lattices[h] = (start, log_v, error)
        rows = slice(first - start, last - start + 1)
        return first, log_v[rows], error[rows]

    def _values(self, h: float, first: int, end: int) -> tuple[Array, Array]:
        """Log v and its error at the multiples first … end − 1 of h; values that other lattices hold are reused."""
        index = np.arange(first, end)
        value, error = np.full(index.size, np.nan), np.zeros(index.size)
        for ratio in _RATIOS:
            if ratio * h in self._lattices:
                start, *known = self._lattices[ratio * h]
                at = np.floor(index / ratio).astype(np.int64) - start
                rows = (index % ratio == 0.0) & (at >= 0) & (at < known[0].size) & np.isnan(value)
                value[rows], error[rows] = known[0][at[rows]], known[1][at[rows]]
        k = h * index
        for side, direction in ((k >= 0.0, REMOVE), (k < 0.0, ADD)):
            rows = np.isnan(value) & side
            if rows.any():
                found = self._curve.log_delta(np.abs(k[rows]), direction)
                with np.errstate(invalid="ignore"):
                    off = np.maximum(found.upper - found.value, found.value - found.lower)
                value[rows] = found.value + np.minimum(k[rows], 0.0)
                error[rows] = np.where(np.isnan(off), 0.0, np.minimum(off, 1.0))
        return value, error


class TooFine(Exception):  # noqa: N818
    """A lattice would need more points than is reasonable."""


def alias(fine: Complex, distance: Array) -> Array:
    """The error of a trapezoidal sum from its distance to the one over every second point.

    The error falls at least geometrically with the number of points, so halving the step squares it. To be
    careful, the power used is 1.4 instead of 2.
    """
    size = max(float(np.abs(fine).max()), TINY)
    d = distance / size
    return np.asarray(size * np.minimum((8 * d) ** _POWER, d))
