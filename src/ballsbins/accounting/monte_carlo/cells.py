"""Sums of log-normals from how many coordinates fall into which cell of the real line.

Cut the line of g ∼ N(0, 1) into cells, and draw only the cell of each coordinate: one by one or, if there are more
coordinates than cells, as counts. So a sum of 10⁶ log-normals costs a few hundred binomial numbers. Given the cells,
S = ΣZ_t/T has a known mean M = Σ y and varies little: with w the range of Z/T over a cell, Hoeffding's lemma says

    E[e^{±θS} | cells] ≤ e^{±θM + θ²v/2},      v = Σ w²/4.

Everything is in closed form: the mass of a cell is a difference of normal distribution functions, and the means of Z
and of Z² over it are the same difference shifted by s and by 2s. Nothing here uses quadrature, and nothing comes from
the exact accountant.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr

from ballsbins.accounting.curve import Array

_ROUNDING = 1e-10  # relative rounding of the mean of Z² over a cell
_SLAB = 2**15  # numbers drawn at a time: they stay in the cache
_BREAK_EVEN = 0.7  # coordinates per cell: with more, drawing counts is faster than drawing cells


def log_mass(left: Array, right: Array) -> Array:
    """log(Φ(right) − Φ(left)), computed in the tail where the interval lies, to keep digits."""
    mirrored = left > 0.0
    near = log_ndtr(np.where(mirrored, -left, right))
    far = log_ndtr(np.where(mirrored, -right, left))
    with np.errstate(divide="ignore"):
        return np.asarray(near + np.log(-np.expm1(far - near)))


@dataclass(frozen=True)
class Cells:
    """The cells between `edges`, the first extending to −∞; Z/T is measured in units of e^`log_unit`."""

    s: float
    steps: int
    log_unit: float
    edges: Array  # the upper ends, increasing
    log_mass: Array
    mean: Array  # y, of Z/T over a cell
    spread: Array  # w²/4
    variance: Array  # of Z/T over a cell, about a third of that
    ends: Array  # the least and the largest Z/T, shape (2, cells)

    @staticmethod
    def below(s: float, steps: int, log_unit: float, edges: Array) -> Cells:
        """Cells with these upper ends."""
        left, right = np.append(-np.inf, edges[:-1]), edges
        mass = log_mass(left, right)
        shift = math.log(steps) + log_unit
        high = np.exp(s * right - 0.5 * s * s - shift)
        low = np.append(0.0, high[:-1])
        mean = np.exp(log_mass(left - s, right - s) - mass - shift)
        mean, spread = np.clip(mean, low, high), np.square(0.5 * (high - low))
        square = np.exp(s * s + log_mass(left - 2.0 * s, right - 2.0 * s) - mass - 2.0 * shift)
        variance = np.clip(square * (1.0 + _ROUNDING) - np.square(mean), 0.0, spread)
        return Cells(s, steps, log_unit, edges, mass, mean, spread, variance, np.stack([low, high]))

    def log_tilts(self, theta: Array) -> Array:
        """The log of a bound on E[e^{θZ/T}] over each cell, shape (len(theta), cells); θ may be negative."""
        t = theta[:, None]
        with np.errstate(over="ignore"):
            hoeffding = t * self.mean + 0.5 * np.square(t) * self.spread
            return np.asarray(np.minimum(hoeffding, np.maximum(t * self.ends[0], t * self.ends[1])))


def _normalised(log_chance: Array) -> Array:
    """Cumulative probabilities."""
    total = np.cumsum(np.exp(log_chance - log_chance.max()))
    return np.asarray(total / total[-1])


class Law:
    """Independent tilted coordinates below a cell; if `first` > 0, one of them is in the cells from `first` on."""

    def __init__(self, cells: Cells, theta: float, first: int, top: int) -> None:
        """Use the cells up to `top`, exclusive."""
        tilts = cells.log_tilts(np.array([theta]))[0, :top]
        log_chance = cells.log_mass[:top] + tilts
        self._below = _normalised(log_chance)
        self._own = _normalised(log_chance[first:]) if first > 0 else np.empty(0)
        self._others, self._first = cells.steps - (first > 0), first
        inside = np.arange(top) >= (first or top)
        self._table = np.stack(
            [cells.mean[:top], cells.spread[:top], cells.variance[:top], tilts, inside], axis=1
        )

    def draw(self, rng: np.random.Generator, count: int) -> Array:
        """Columns: M, v, Var[S | cells], the sum of the tilts, and how many are in cells from `first` on, or 0."""
        found = np.zeros((count, 5))
        if self._own.size:
            found += self._table[self._first + np.searchsorted(self._own, rng.random(count), side="right")]
        size = self._below.size
        counted = self._others > _BREAK_EVEN * size
        height = max(_SLAB // (size if counted else max(self._others, 1)), 1)
        for start in range(0, count, height):
            part = found[start : start + height]
            if counted:
                chance = np.diff(self._below, prepend=0.0)
                part += rng.multinomial(self._others, chance, size=len(part)) @ self._table
            else:
                cell = np.searchsorted(self._below, rng.random((len(part), self._others)), side="right")
                part += self._table.take(cell, axis=0).sum(axis=1)
        return found
