"""Dense evaluation of an analytic function from few samples, with a checked error.

log δ(ε) is analytic in ε, so on a short enough piece its Chebyshev interpolant converges geometrically. Pieces are
halved until the interpolant agrees with fresh samples; all pieces of a round are sampled in one call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import BarycentricInterpolator

from ballsbins.accounting.curve import Array

Flags = NDArray[np.bool_]
Sampled = Callable[[Array], tuple[Array, Array]]  # points → values, absolute errors

_NODES = 25
_CHECKS = 6
_LEBESGUE = 4.0  # of 25 Chebyshev points: errors of samples grow by no more
_MOST_ROUNDS = 14
_CHEBYSHEV = np.cos(np.pi * (np.arange(_NODES) + 0.5) / _NODES)[::-1]
_BETWEEN = 0.5 * (_CHEBYSHEV[1:] + _CHEBYSHEV[:-1])[:: (_NODES - 1) // _CHECKS]


@dataclass(frozen=True)
class _Piece:
    low: float
    high: float
    polynomial: BarycentricInterpolator
    error: float

    def __call__(self, points: Array) -> Array:
        middle, half = 0.5 * (self.low + self.high), 0.5 * (self.high - self.low)
        return np.asarray(self.polynomial((points - middle) / half))


class Interpolant:
    """Values and errors of `function` at many points; pieces are kept for later questions.

    Where no interpolant is good the function itself is asked.
    """

    def __init__(self, function: Sampled, tolerance: float) -> None:
        """Accept a piece if it misses fresh samples by at most `tolerance`."""
        self._function, self._tolerance = function, tolerance
        self._pieces: list[_Piece] = []

    def __call__(self, points: Array) -> tuple[Array, Array]:
        """Values and absolute errors at `points`, in any order."""
        value, error = np.empty(points.shape), np.full(points.shape, np.inf)
        missing = self._fill(self._pieces, points, value, error, np.ones(points.shape, dtype=bool))
        if missing.sum() > _NODES:
            spans = [(float(points[missing].min()), float(points[missing].max()))]
            for _ in range(_MOST_ROUNDS):
                spans = [s for s in spans if (missing & (points >= s[0]) & (points <= s[1])).sum() > _NODES]
                if not spans:
                    break
                made, spans = self._try(spans)
                self._pieces += made
                missing = self._fill(made, points, value, error, missing)
        if missing.any():
            value[missing], error[missing] = self._function(points[missing])
        return value, error

    @staticmethod
    def _fill(pieces: list[_Piece], points: Array, value: Array, error: Array, missing: Flags) -> Flags:
        for piece in pieces:
            rows = missing & (points >= piece.low) & (points <= piece.high)
            if rows.any():
                value[rows], error[rows] = piece(points[rows]), piece.error
                missing = missing & ~rows
        return missing

    def _try(self, spans: list[tuple[float, float]]) -> tuple[list[_Piece], list[tuple[float, float]]]:
        """Interpolate on every span; those that fail come back in halves."""
        low, high = np.array(spans).T
        at = 0.5 * (low + high)[:, None] + 0.5 * (high - low)[:, None] * np.concatenate([_CHEBYSHEV, _BETWEEN])
        sampled, noise = (part.reshape(at.shape) for part in self._function(at.ravel()))
        made: list[_Piece] = []
        again: list[tuple[float, float]] = []
        for k, (left, right) in enumerate(spans):
            if np.isfinite(sampled[k]).all() and np.isfinite(noise[k]).all():
                polynomial = BarycentricInterpolator(_CHEBYSHEV, sampled[k, :_NODES])
                miss = float(np.abs(polynomial(_BETWEEN) - sampled[k, _NODES:]).max())
                if miss <= self._tolerance:
                    made.append(_Piece(left, right, polynomial, 2.0 * miss + _LEBESGUE * float(noise[k].max())))
                    continue
            centre = 0.5 * (left + right)
            again += [(left, centre), (centre, right)]
        return made, again
