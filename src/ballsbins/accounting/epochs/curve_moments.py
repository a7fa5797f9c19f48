"""Moments of one run from its privacy curve.

With v(k), k = log K, the out-of-the-money value (δ_remove(k) for k ≥ 0, e^k δ_add(−k) for
k < 0), integrating by parts twice gives M(u) − 1 = u(u−1) ∫ e^{(u−1)k} v(k) dk, for every u. On a lattice k_j = jh
that contains 0, the trapezoidal error from the kink of v at 0 is known in closed form, and the rest is analytic:

    M(u) − 1 = u(u−1)·h·Σ_j e^{(u−1)k_j} v(k_j) + expm1(ℓ(uh/2) + ℓ((u−1)h/2) − ℓ(h/2)),     ℓ(x) = log(x/sinh x),

up to aliases of M at the distance 2π/h, which the same sum over every second point reveals. All terms of the sum
are positive at real u, so the relative accuracy of v is that of M − 1, however small M − 1 is. One fast Fourier
transform gives all y of a line.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import scipy  # its parts, such as `scipy.fft`, load when they are first used

from ballsbins.accounting.curve import ADD, REMOVE, Array, Curve, Direction
from ballsbins.accounting.epochs.fourier import Complex, Grid, TooFine, alias, fourier
from ballsbins.accounting.epochs.moments import (
    DEEP,
    FIRST_FLOOR,
    LARGEST_MOMENT,
    PER_WIDTH,
    SPREAD,
    Moments,
    Transform,
    refined,
    weighted_error,
)
from ballsbins.accounting.epochs.survey import Split, Survey

_MOST_POINTS = 2**17  # most points of one lattice, to limit time and memory
_FIRST_SPACING = 0.25  # as a fraction of the spread: fine enough for most runs; every second point checks it
_RATIOS = (0.125, 0.25, 0.5, 2.0, 4.0, 8.0)  # ratios of lattices that share points: spacings are powers of 2
_FARTHER_LEFT, _FARTHER_RIGHT = 1.3, 1.5  # how much farther a new lattice goes than its first question needs
_KEPT_KINKS = 4  # of one line: two spacings, common to all kinds of runs, and finer ones
_SERIES = 0.25  # largest |x| for which seven terms of the series of log(x/sinh x) have all digits
# where the slope of a split is evaluated, in its widths w: χ′ is e^{−(k/w)²}, 10⁻⁴⁰ at the ends
_EDGE_REACH = np.linspace(-9.5, 9.5, 191)


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
            fine, coarse = fine + _kink(c, line, h), coarse + _kink(c, line, 2.0 * h)
        ends = float(np.exp(exponent[0] - top) + np.exp(exponent[-1] - top))
        relative = weighted_error(error, exponent - top)
        return Transform(
            fine, alias(fine, np.abs(fine - coarse)), h, relative, ends, 2 * points > _MOST_POINTS
        )

    def split_spacing(self, split: Split) -> float:
        """A fraction of the width of the split."""
        return split.width / PER_WIDTH

    def edge(self, c: float, line: Grid, split: Split) -> tuple[Transform, float, float]:
        """∫ e^{(u−1)k} v·[(2u−1)χ′ + χ″] dk along a line, and its values at u = 0 and u = 1."""
        fine = min(self.split_spacing(split), 0.5 * math.pi / float(line.y[-1]))
        found = refined(
            lambda h: self._edge(np.asarray(c + 1j * line.y, dtype=np.complex128), line, split, h),
            float(2.0 ** math.floor(math.log2(fine))),
            lambda found: float(found.error.max() / np.abs(found.value).max()),
        )
        mass, mean = (self._edge(np.array([u + 0j]), None, split, found.h).value[0].real for u in (0.0, 1.0))
        return found, float(mass), float(mean)

    def _edge(self, u: Complex, line: Grid | None, split: Split, h: float) -> Transform:
        """The same by the trapezoidal rule at spacing h, at the points u of a line, or at a single real u."""
        c = float(u[0].real)
        k = split.at + split.width * _EDGE_REACH
        tilted = self.log_value(k) + (c - 1.0) * k - (_EDGE_REACH**2)
        some = k[(tilted > tilted.max() - DEEP) & (k > 0.0)]
        first, last = max(math.floor(some[0] / h), 1), math.ceil(some[-1] / h)
        log_v, off = self._between(h, first, last)
        k = h * np.arange(first, last + 1)
        exponent = log_v + (c - 1.0) * k
        top = float(exponent.max())
        if top > LARGEST_MOMENT:
            raise TooFine
        size = np.exp(exponent - top) * (h * math.exp(top))
        slope, bend = (size * part for part in split.edges(k))
        turned = np.abs(2.0 * u - 1.0)
        noise = turned * float((off * np.abs(slope)).sum()) + float((off * np.abs(bend)).sum())
        if line is None:
            value = (2.0 * u - 1.0) * slope.sum() + bend.sum()
            return Transform(value, noise, h, 0.0, 0.0, settled=True)
        coarse = np.where(np.arange(first, last + 1) % 2 == 0, 2.0, 0.0)
        (one, far), (two, away) = (fourier(k, weight, coarse, line) for weight in (slope, bend))
        value = (2.0 * u - 1.0) * one + two
        return Transform(value, alias(value, turned * far + away) + noise, h, 0.0, 0.0, settled=False)

    def _on_lattice(self, h: float, tilted: Array) -> tuple[int, Array, Array]:
        """Log v and its error on the lattice of spacing h, over the range that matters according to `tilted`."""
        some = np.flatnonzero(tilted > tilted.max() - DEEP)
        low = self.loss[some[0] - 1] if some[0] > 0 else self._end
        high = self.loss[min(some[-1] + 1, tilted.size - 1)]
        if h not in self._lattices:  # one call for some more points now costs less than a second call later
            low = max(_FARTHER_LEFT * low, self._end)
            high = min(_FARTHER_RIGHT * high, self.loss[-1])
        first, last = math.floor(low / h), math.ceil(high / h)
        return first, *self._between(h, first, last)

    def _between(self, h: float, first: int, last: int) -> tuple[Array, Array]:
        """Log v and its error at the multiples first … last of h."""
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
        return log_v[rows], error[rows]

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


@lru_cache(maxsize=_KEPT_KINKS)
def _kink(c: float, line: Grid, h: float) -> Complex:
    """The contribution of the kink of v at 0 to the trapezoidal rule with spacing h, along a line."""
    u = np.asarray(c + 1j * line.y, dtype=np.complex128)
    return np.expm1(
        log_sinhc(0.5 * h * u) + log_sinhc(0.5 * h * (u - 1.0)) - log_sinhc(np.array([0.5 * h + 0j]))
    )
