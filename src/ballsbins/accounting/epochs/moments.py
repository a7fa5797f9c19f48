"""Moments M(u) = E[S^u] of the likelihood ratio S of one run, along vertical lines u = c + iy: what all kinds share.

With v(k), k = log K, the out-of-the-money value (δ_remove(k) for k ≥ 0, e^k δ_add(−k) for k < 0), integrating by
parts twice gives M(u) − 1 = u(u−1) ∫ e^{(u−1)k} v(k) dk, for every u. Jumps can be split off (`survey`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ballsbins.accounting.curve import Array
from ballsbins.accounting.epochs.fourier import TINY, Complex, Grid
from ballsbins.accounting.epochs.survey import Split, lowest_before_bump

DEEP = 50.0  # leave out terms below e^−50 of the largest
_SLIGHT = 14.0  # a term below e^−14 of the largest has almost no weight
_RESOLVED = 1e-6  # below this, an error that no longer falls is taken to be rounding
_SETTLED = 1e-14  # aliases of this size are not worth a finer lattice
FIRST_FLOOR = -110.0  # log v down to which a run is surveyed first: enough for δ = 10⁻⁶ after many runs
SPREAD = 2.5  # deviation over ½E|X| of a Gaussian, whose ½E|X| is 0.4 deviations
LARGEST_MOMENT = 600.0  # logarithm of the largest term of a moment that must fit into a double
# if a logarithm changes by less over a cell, the mean of both ends (_LEVEL) or one end (_STEADY) is enough
_LEVEL, _STEADY = 1e-3, 1e-6
_UNSEEN = 100.0  # terms this far below the largest, in logs, do not change a rough integral
# Points per width w of a split. The step is Φ, so an alias at spacing h is e^{−(πw/h)²}: e^−110 here, and e^−28 for
# the sum over every second point, which is what shows that no finer lattice is needed.
PER_WIDTH = 3.4
_NO_LONGER = 0.2  # an error that falls by less than this factor is down to rounding


@dataclass(frozen=True)
class Transform:
    """Values along a line with their absolute error; `relative` is the relative error of the underlying curve."""

    value: Complex
    error: Array
    h: float
    relative: float
    ends: float  # size of the integrand at the ends of the lattice, relative to its largest value
    settled: bool  # whether no finer lattice is available

    def plus(self, sign: float, more: Transform) -> Transform:
        """Return the sum or the difference of two transforms."""
        relative, ends = max(self.relative, more.relative), self.ends + more.ends
        value, error = self.value + sign * more.value, self.error + more.error
        return replace(self, value=value, error=error, relative=relative, ends=ends)


@dataclass(frozen=True)
class Part:
    """What one run contributes along a line: M_body − 1 and, if it is split, J; and M_body − 1 at u = 0 and u = 1."""

    body: Transform
    jump: Transform | None
    mass: float = 0.0
    mean: float = 0.0


def log_integrals(position: Array, log_f: Array, tilts: Array) -> Array:
    """Log ∫ f(x) e^{tx} dx over all of `position` for every tilt t; f is taken to be exponential between points."""
    # Left of the largest term at the least tilt, terms lose against it as the tilt grows; likewise on the right.
    ends = log_f + np.array([[tilts.min()], [tilts.max()]]) * position
    (first, _), (_, last) = (np.flatnonzero(end > end.max() - _UNSEEN)[[0, -1]] for end in ends)
    position, log_f = (part[max(first - 1, 0) : last + 2] for part in (position, log_f))
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
    # whether rough moments are good enough to follow a line to its end, and to split the law of the loss
    faithful = False

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

    def edge(self, c: float, line: Grid, split: Split) -> tuple[Transform, float, float]:
        """∫ e^{(u−1)k} v·[(2u−1)χ′ + χ″] dk along a line, and its values at u = 0 and u = 1.

        Integrating by parts, E[χ(S)·S^u] = 1 + ∫ (χ(K)·K^u)″ v dK. This is what the slope of χ contributes to it.
        """
        raise NotImplementedError

    def rough(self, c: Array, split: Split | None) -> Array:
        """Log M_body at real c outside of [0, 1], roughly: enough to place lines."""
        log_v = self.log_v if split is None else self.log_v + split.log_body(self.loss)
        return np.logaddexp(0.0, np.log(c * (c - 1.0)) + log_integrals(self.loss, log_v, c - 1.0))

    def rough_jump(self, c: Array, split: Split) -> Array:
        """Log J at real c outside of [0, 1], roughly; divided by u(u−1) if v is split."""
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
                lambda found: float(found.error.max() / max(np.abs(found.value).max(), TINY)),
            )
        if split is None or not split.law:
            return Part(body, jump)
        edge, mass, mean = self.edge(c, line, split)
        return Part(body.plus(1.0, edge), None if jump is None else jump.plus(-1.0, edge), mass, mean)
