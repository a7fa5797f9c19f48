"""Evaluate an analytic function at many points from few samples, with a checked error.

log δ(ε) is analytic in ε, so on a short enough piece its Chebyshev interpolant converges geometrically. Every piece
is sampled at its nodes and, in the same call, at some points between them: these show its error. If it is too large,
the number of nodes is doubled (the Lobatto points are nested, so no node is lost), and a piece that needs too many
nodes is halved. All pieces of a round are sampled in one call.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ballsbins.accounting.curve import Array, U

Flags = NDArray[np.bool_]
Sampled = Callable[[Array], tuple[Array, Array]]  # points → values, absolute errors

# B13 is in docs/derivation.md.
# Intervals between Lobatto points, at first and at most: a call for few points costs nearly as much as one for many.
_FEWEST, _MOST = 32, 64
# The first pieces end at 4, 16, … times a length over which the function changes. No piece is much narrower than
# another.
_WIDER, _MOST_PIECES, _LEAST_PIECE = 4.0, 12, 1.5
_CHECKS = 9  # fresh points at which an interpolant is checked (B13)
_OFF_CENTRE = 0.47  # fraction of the gap between two nodes: near its middle, where the error is largest
_SAFETY = 3.0  # factor on the error seen by the checks: it may be larger between them (B13)
_NOISE = 10.0  # inaccurate samples may miss by this many tolerances, if their own error explains it
_ROUNDING = 8 * U  # rounding of the barycentric formula, relative to the values (B1)
_MOST_ROUNDS = 40  # most halvings of a piece: it is then as narrow as a rounding error


def _lobatto(intervals: int) -> Array:
    return np.asarray(-np.cos(np.pi * np.arange(intervals + 1) / intervals), dtype=np.float64)


def _between(intervals: int) -> Array:
    """Return points for a check: between nodes, mostly near the ends, where an outside singularity shows first."""
    n = intervals
    gaps = np.array([0, 1, 3, n // 4, n // 2, 3 * n // 4, n - 4, n - 2, n - 1])
    return np.asarray(-np.cos(np.pi * (gaps + _OFF_CENTRE) / n), dtype=np.float64)


def _barycentric(values: Array, noise: Array, x: Array) -> tuple[Array, Array]:
    """Evaluate at `x` the polynomial through `values` at Lobatto points of [−1, 1], and the effect of their `noise`.

    The barycentric weights are ±1, halved at the ends.
    """
    n = len(values) - 1
    weight = np.where(np.arange(n + 1) % 2 == 0, 1.0, -1.0)
    weight[[0, -1]] *= 0.5
    gap = x[:, None] - _lobatto(n)[None, :]
    hit = gap == 0.0
    quotient = np.where(hit.any(axis=1)[:, None], hit.astype(float), weight / np.where(hit, 1.0, gap))
    quotient /= quotient.sum(axis=1)[:, None]
    # not `@`: it would start threads for a sum that one thread finishes sooner
    return np.vecdot(quotient, values), np.vecdot(np.abs(quotient), noise)


@dataclass(frozen=True)
class _Piece:
    """An interpolant that has been checked."""

    low: float
    high: float
    values: Array
    noise: Array
    miss: float  # of the interpolant between its nodes

    def __call__(self, points: Array) -> tuple[Array, Array]:
        x = (2.0 * points - (self.low + self.high)) / (self.high - self.low)
        value, off = _barycentric(self.values, self.noise, x)
        return value, self.miss + off + _ROUNDING * float(np.abs(self.values).max())


@dataclass(frozen=True)
class _Trial:
    """A span and the values at its nodes so far: none at first."""

    low: float
    high: float
    values: Array
    noise: Array

    @property
    def intervals(self) -> int:
        """The number of intervals between the nodes of the next round."""
        return 2 * (len(self.values) - 1) if len(self.values) else _FEWEST

    @property
    def wanted(self) -> Array:
        """The points to sample next, on [−1, 1]: new nodes, then points between nodes."""
        nodes = _lobatto(self.intervals)
        return np.concatenate([nodes[1::2] if len(self.values) else nodes, _between(self.intervals)])

    def place(self, x: Array) -> Array:
        """Map points from [−1, 1] to the span."""
        return 0.5 * (self.low + self.high) + 0.5 * (self.high - self.low) * x


class Interpolant:
    """Evaluate `function` at many points, with errors; pieces are kept for later calls.

    Where no interpolant is good enough, the function itself is called.
    """

    def __init__(self, function: Sampled, tolerance: float, scale: Callable[[], float] | None = None) -> None:
        """Accept a piece if it misses fresh samples by at most `tolerance`, or by their own error if not much larger.

        `scale` returns a length over which the function changes near 0; farther out it changes more and more slowly.
        """
        self._function, self._tolerance, self._scale = function, tolerance, scale
        self._pieces: list[_Piece] = []

    def __call__(self, points: Array) -> tuple[Array, Array]:
        """Return values and absolute errors at `points`, which may be in any order."""
        value, error = np.empty(points.shape), np.full(points.shape, np.inf)
        missing = self._fill(self._pieces, points, value, error, np.ones(points.shape, dtype=bool))
        if missing.any():
            trials = self._first(float(points[missing].min()), float(points[missing].max()))
            for _ in range(_MOST_ROUNDS):
                trials = [t for t in trials if self._pays(t, points, missing)]
                if not trials:
                    break
                made, trials = self._round(trials)
                self._pieces += made
                missing = self._fill(made, points, value, error, missing)
        if missing.any():
            value[missing], error[missing] = self._function(points[missing])
        return value, error

    def _first(self, low: float, high: float) -> list[_Trial]:
        """Return the first pieces, whose ends, counted from 0, grow by a constant factor."""
        edges = [low]
        if self._scale is not None:
            widths = self._scale() * _WIDER ** np.arange(_MOST_PIECES)
            edges += [float(x) for x in widths if _LEAST_PIECE * low < x < high / _LEAST_PIECE]
        return [_first(a, b) for a, b in itertools.pairwise([*edges, high])]

    @staticmethod
    def _pays(trial: _Trial, points: Array, missing: Flags) -> bool:
        """Whether the trial needs fewer new samples than there are missing points in its span."""
        inside = missing & (points >= trial.low) & (points <= trial.high)
        return int(inside.sum()) > len(trial.wanted)

    @staticmethod
    def _fill(pieces: list[_Piece], points: Array, value: Array, error: Array, missing: Flags) -> Flags:
        for piece in pieces:
            rows = missing & (points >= piece.low) & (points <= piece.high)
            if rows.any():
                value[rows], error[rows] = piece(points[rows])
                missing = missing & ~rows
        return missing

    def _round(self, trials: list[_Trial]) -> tuple[list[_Piece], list[_Trial]]:
        """Sample the points that the trials want; return the good pieces, and the trials of the next round."""
        wanted = [trial.place(trial.wanted) for trial in trials]
        sampled, noise = self._function(np.concatenate(wanted))
        ends = np.cumsum([len(w) for w in wanted])[:-1]
        made: list[_Piece] = []
        again: list[_Trial] = []
        for trial, found, off in zip(trials, np.split(sampled, ends), np.split(noise, ends), strict=True):
            piece, next_ = self._judge(trial, found, off)
            made += piece
            again += next_
        return made, again

    def _judge(self, trial: _Trial, found: Array, off: Array) -> tuple[list[_Piece], list[_Trial]]:
        low, high = trial.low, trial.high
        centre = 0.5 * (low + high)
        halves = [_first(low, centre), _first(centre, high)]
        if not (np.isfinite(found).all() and np.isfinite(off).all()):
            return [], halves
        values, errors = _merged(trial.values, found[:-_CHECKS]), _merged(trial.noise, off[:-_CHECKS])
        there, spread = _barycentric(values, errors, _between(trial.intervals))
        apart = np.abs(there - found[-_CHECKS:])
        if (apart <= np.maximum(self._tolerance, np.minimum(spread, _NOISE * self._tolerance))).all():
            return [_Piece(low, high, values, errors, _SAFETY * float(apart.max()))], []
        return [], [_Trial(low, high, values, errors)] if trial.intervals < _MOST else halves


def _first(low: float, high: float) -> _Trial:
    return _Trial(low, high, np.empty(0), np.empty(0))


def _merged(known: Array, new: Array) -> Array:
    """Interleave the values known at the nodes, if any, with the new ones halfway between them."""
    if not len(known):
        return new
    merged = np.empty(len(known) + len(new))
    merged[::2], merged[1::2] = known, new
    return merged
