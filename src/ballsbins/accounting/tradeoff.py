"""From a privacy curve to what an attacker can do: true-positive rate at a given false-positive rate.

A test that tells P from Q with false-positive rate α = Q(E) has true-positive rate P(E) ≤ D_K(P‖Q) + K·α for every
K > 0, and the best test attains the minimum over K (the curve and the trade-off function are convex duals):

    TPR(α) = min_{ε ∈ ℝ} δ(ε) + e^ε·α .

Every ε gives an upper bound. For the lower bound convexity is used: between neighbouring points of a grid a convex
function lies above the lines through the pairs of points on either side.
"""

from __future__ import annotations

import numpy as np

from ballsbins.accounting.curve import Array, Curve, Direction

_ROUNDS = 5
_POINTS = 65


def true_positive_rate(
    curve: Curve, direction: Direction, false_positive_rate: float
) -> tuple[float, float, float]:
    """(lower, value, upper) of the largest true-positive rate of any test."""
    low, high = -40.0, 40.0
    best = (0.0, 1.0, 1.0)
    for _ in range(_ROUNDS):
        epsilon = np.linspace(low, high, _POINTS)
        found = curve.log_delta(epsilon, direction)
        below, value, above = (
            np.exp(side) + np.exp(epsilon) * false_positive_rate
            for side in (found.lower, found.value, found.upper)
        )
        at = int(np.argmin(above))
        lower = max(best[0], _convex_floor(np.exp(epsilon), below, above))
        best = lower, min(float(value.min()), best[1]), min(float(above.min()), best[2], 1.0)
        low, high = float(epsilon[max(at - 2, 0)]), float(epsilon[min(at + 2, _POINTS - 1)])
    lower, value_, upper = best
    lower = min(lower, upper)
    return lower, min(max(value_, lower), upper), upper


def _convex_floor(k: Array, below: Array, above: Array) -> float:
    """A lower bound on the minimum over the inner cells of a convex function between `below` and `above`."""
    # in cell i the function is above the line through points i−1 and i, and the one through i+1 and i+2, extended
    left = (below[1:-2] - above[:-3]) / (k[1:-2] - k[:-3])
    right = (above[3:] - below[2:-1]) / (k[3:] - k[2:-1])
    width = k[2:-1] - k[1:-2]
    from_left = below[1:-2] + np.minimum(left, 0.0) * width
    from_right = below[2:-1] - np.maximum(right, 0.0) * width
    with np.errstate(divide="ignore", invalid="ignore"):
        meet = (below[2:-1] - below[1:-2] - right * width) / (left - right)
    inside = (meet >= 0.0) & (meet <= width) & (left < right)
    crossing = np.where(inside, below[1:-2] + left * meet, -np.inf)
    cell = np.maximum(np.maximum(from_left, from_right), crossing)
    return float(max(cell.min(), 0.0))
