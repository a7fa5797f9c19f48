"""Dense evaluation of an analytic function from few samples, with a checked error.

log δ(ε) is analytic in ε, so on a short enough piece its Chebyshev interpolant converges geometrically. Pieces are
halved until the interpolant agrees with fresh samples; all pieces of a round are sampled in one call.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.interpolate import BarycentricInterpolator

from ballsbins.accounting.curve import Array

Sampled = Callable[[Array], tuple[Array, Array]]  # points → values, absolute errors

_NODES = 25
_CHECKS = 6
_LEBESGUE = 4.0  # of 25 Chebyshev points: errors of samples grow by no more
_MOST_ROUNDS = 14
_CHEBYSHEV = np.cos(np.pi * (np.arange(_NODES) + 0.5) / _NODES)[::-1]
_BETWEEN = 0.5 * (_CHEBYSHEV[1:] + _CHEBYSHEV[:-1])[:: (_NODES - 1) // _CHECKS]


def dense(function: Sampled, points: Array, tolerance: float) -> tuple[Array, Array]:
    """Values and errors at many sorted or unsorted `points`; where no interpolant is good, `function` itself."""
    value, error = np.empty(points.shape), np.full(points.shape, np.inf)
    pieces = [(float(points.min()), float(points.max()))]
    left_over = np.ones(points.shape, dtype=bool)
    for _ in range(_MOST_ROUNDS):
        pieces = [p for p in pieces if _inside(points, p, left_over).sum() > _NODES]
        if not pieces:
            break
        low, high = np.array(pieces).T
        at = 0.5 * (low + high)[:, None] + 0.5 * (high - low)[:, None] * np.concatenate([_CHEBYSHEV, _BETWEEN])
        sampled, noise = (part.reshape(at.shape) for part in function(at.ravel()))
        again: list[tuple[float, float]] = []
        for k, piece in enumerate(pieces):
            if np.isfinite(sampled[k]).all() and np.isfinite(noise[k]).all():
                polynomial = BarycentricInterpolator(_CHEBYSHEV, sampled[k, :_NODES])
                miss = float(np.abs(polynomial(_BETWEEN) - sampled[k, _NODES:]).max())
                if miss <= tolerance:
                    rows = _inside(points, piece, left_over)
                    middle, half = 0.5 * (piece[0] + piece[1]), 0.5 * (piece[1] - piece[0])
                    value[rows] = polynomial((points[rows] - middle) / half)
                    error[rows] = 2.0 * miss + _LEBESGUE * float(noise[k].max())
                    left_over &= ~rows
                    continue
            centre = 0.5 * (piece[0] + piece[1])
            again += [(piece[0], centre), (centre, piece[1])]
        pieces = again
    if left_over.any():
        value[left_over], error[left_over] = function(points[left_over])
    return value, error


def _inside(points: Array, piece: tuple[float, float], left_over: np.ndarray) -> np.ndarray:
    return left_over & (points >= piece[0]) & (points <= piece[1])
