"""Dense evaluation of an analytic function from few samples, with a checked error.

log δ(ε) is analytic in ε, so on a short enough piece its Chebyshev interpolant converges geometrically. On every
piece the number of nodes is doubled (the Lobatto points are nested, so no sample is lost) until the interpolant
agrees with fresh samples; a piece on which that takes too many is halved. All pieces of a round are sampled in one
call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ballsbins.accounting.curve import Array

Flags = NDArray[np.bool_]
Sampled = Callable[[Array], tuple[Array, Array]]  # points → values, absolute errors

_LEVELS = (16, 32, 64)  # intervals between Lobatto points
_CHECKS = 5
_MOST_ROUNDS = 24


def _lobatto(intervals: int) -> Array:
    return np.asarray(-np.cos(np.pi * np.arange(intervals + 1) / intervals), dtype=np.float64)


def _between(intervals: int) -> Array:
    """Points to check at: halfway between nodes in angle, where the error of an interpolant is largest."""
    at = np.linspace(0.5, intervals - 0.5, _CHECKS).astype(int) + 0.5
    return np.asarray(-np.cos(np.pi * (at + 0.07) / intervals), dtype=np.float64)


def _barycentric(values: Array, noise: Array, x: Array) -> tuple[Array, Array]:
    """The polynomial through `values` at Lobatto points of [−1, 1], at `x`, and what `noise` in them may do to it.

    The barycentric weights are ±1, halved at the ends.
    """
    n = len(values) - 1
    weight = np.where(np.arange(n + 1) % 2 == 0, 1.0, -1.0)
    weight[[0, -1]] *= 0.5
    gap = x[:, None] - _lobatto(n)[None, :]
    hit = gap == 0.0
    quotient = np.where(hit.any(axis=1)[:, None], hit.astype(float), weight / np.where(hit, 1.0, gap))
    quotient /= quotient.sum(axis=1)[:, None]
    return np.asarray(quotient @ values), np.asarray(np.abs(quotient) @ noise)


@dataclass(frozen=True)
class _Piece:
    """An interpolant that has been checked."""

    low: float
    high: float
    values: Array
    noise: Array
    miss: float

    def __call__(self, points: Array) -> tuple[Array, Array]:
        x = (2.0 * points - (self.low + self.high)) / (self.high - self.low)
        value, off = _barycentric(self.values, self.noise, x)
        return value, 2.0 * self.miss + off


@dataclass
class _Trial:
    """A span on which the nodes of some level have been, or are to be, sampled."""

    low: float
    high: float
    level: int
    values: Array  # at the Lobatto points of the level before; empty at the first
    noise: Array

    @property
    def wanted(self) -> Array:
        """The points still to be sampled: nodes new at this level, then checks."""
        nodes = _lobatto(_LEVELS[self.level])
        new = nodes if self.level == 0 else nodes[1::2]
        middle, half = 0.5 * (self.low + self.high), 0.5 * (self.high - self.low)
        return middle + half * np.concatenate([new, _between(_LEVELS[self.level])])


class Interpolant:
    """Values and errors of `function` at many points; pieces are kept for later questions.

    Where no interpolant is good the function itself is asked.
    """

    def __init__(self, function: Sampled, tolerance: float) -> None:
        """Accept a piece if it misses fresh samples by at most `tolerance`, or their own error if that is not much more."""
        self._function, self._tolerance = function, tolerance
        self._pieces: list[_Piece] = []

    def __call__(self, points: Array) -> tuple[Array, Array]:
        """Values and absolute errors at `points`, in any order."""
        value, error = np.empty(points.shape), np.full(points.shape, np.inf)
        missing = self._fill(self._pieces, points, value, error, np.ones(points.shape, dtype=bool))
        if missing.any():
            trials = [_first(float(points[missing].min()), float(points[missing].max()))]
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

    @staticmethod
    def _pays(trial: _Trial, points: Array, missing: Flags) -> bool:
        """Whether the samples to come are fewer than the points that are missing there."""
        inside = missing & (points >= trial.low) & (points <= trial.high)
        return int(inside.sum()) > _LEVELS[trial.level] + _CHECKS

    @staticmethod
    def _fill(pieces: list[_Piece], points: Array, value: Array, error: Array, missing: Flags) -> Flags:
        for piece in pieces:
            rows = missing & (points >= piece.low) & (points <= piece.high)
            if rows.any():
                value[rows], error[rows] = piece(points[rows])
                missing = missing & ~rows
        return missing

    def _round(self, trials: list[_Trial]) -> tuple[list[_Piece], list[_Trial]]:
        """Sample what the trials want: pieces that are good, and what to try next."""
        wanted = [trial.wanted for trial in trials]
        sampled, noise = self._function(np.concatenate(wanted))
        ends = np.cumsum([len(w) for w in wanted])[:-1]
        made: list[_Piece] = []
        again: list[_Trial] = []
        for trial, found, off in zip(trials, np.split(sampled, ends), np.split(noise, ends), strict=True):
            centre = 0.5 * (trial.low + trial.high)
            halves = [_first(trial.low, centre), _first(centre, trial.high)]
            if not (np.isfinite(found).all() and np.isfinite(off).all()):
                again += halves
                continue
            level = _LEVELS[trial.level]
            values, errors = (_merged(*pair) for pair in ((trial.values, found), (trial.noise, off)))
            there, spread = _barycentric(values, errors, _between(level))
            apart = np.abs(there - found[-_CHECKS:])
            miss = float(apart.max())
            if (apart <= np.maximum(self._tolerance, np.minimum(spread, 10.0 * self._tolerance))).all():
                made.append(_Piece(trial.low, trial.high, values, errors, miss))
            elif trial.level + 1 < len(_LEVELS) and miss < 1e-2:
                again.append(_Trial(trial.low, trial.high, trial.level + 1, values, errors))
            else:
                again += halves
        return made, again


def _first(low: float, high: float) -> _Trial:
    return _Trial(low, high, 0, np.empty(0), np.empty(0))


def _merged(known: Array, found: Array) -> Array:
    """What is known at the nodes of the level before, together with what was found at the new ones."""
    new = found[:-_CHECKS]
    if len(known) == 0:
        return new
    merged = np.empty(len(known) + len(new))
    merged[::2], merged[1::2] = known, new
    return merged
