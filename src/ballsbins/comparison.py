"""The four samplers at equal noise, and where balls-and-bins stops being the better of two."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ballsbins.accounting.curve import DIRECTIONS, Array, Curve
from ballsbins.accounting.search import LARGEST_EPSILON, epsilon_at
from ballsbins.mechanism import Mechanism
from ballsbins.samplers import BallsAndBins, Deterministic, Poisson, Shuffle


def four(noise_multiplier: float, steps: int, epochs: int = 1) -> dict[str, Mechanism]:
    """The mechanisms of the paper's comparison, by the name of their sampler."""
    samplers = {
        "balls-and-bins": BallsAndBins(steps),
        "Poisson": Poisson(steps),
        "shuffle": Shuffle(steps),
        "deterministic": Deterministic(steps),
    }
    return {name: Mechanism(sampler, noise_multiplier, epochs) for name, sampler in samplers.items()}


@dataclass(frozen=True)
class Crossover:
    """δ_first(ε) is proved larger than δ_second(ε) at `left` and smaller at `right`, left < right; both may be None.

    Between the two the bounds do not tell. Errata 6 of the paper: at small ε balls-and-bins is the *worse* of it and
    Poisson; above the crossover it is the better one.
    """

    left: float | None
    right: float | None


def crossover(first: Mechanism, second: Mechanism, least_delta: float = 1e-10) -> Crossover:
    """Where the curve of `first` falls below that of `second` for increasing ε ≥ 0, proved on both sides.

    It is looked for up to the ε at which δ of `first` has come down to `least_delta`.
    """
    known = max(float(epsilon_at(first.curve, way, np.log([least_delta]))[1, 0]) for way in DIRECTIONS)
    largest = min(max(known, 1e-9), LARGEST_EPSILON)  # it may be 0 or ∞
    grid = np.concatenate([[0.0], np.geomspace(1e-3 * largest, largest, 10)])
    signs = _signs(first.curve, second.curve, grid)
    above = np.flatnonzero(signs > 0)
    left = None if above.size == 0 else float(grid[above[-1]])
    below = np.flatnonzero((signs < 0) & (grid > (-1.0 if left is None else left)))
    right = None if below.size == 0 else float(grid[below[0]])
    if left is None or right is None:
        return Crossover(left, right)
    for _ in range(20):
        middle = 0.5 * (left + right)
        sign = _signs(first.curve, second.curve, np.array([middle]))[0]
        if sign > 0:
            left = middle
        elif sign < 0:
            right = middle
        else:
            break
        if right - left < 0.01 * right:
            break
    return Crossover(left, right)


def _signs(first: Curve, second: Curve, epsilon: Array) -> Array:
    """+1 where δ_first > δ_second is proved by their bounds, −1 where < is, 0 where neither."""
    one, two = _bounds(first, epsilon), _bounds(second, epsilon)
    return np.where(one[0] > two[1], 1.0, np.where(one[1] < two[0], -1.0, 0.0))


def _bounds(curve: Curve, epsilon: Array) -> tuple[Array, Array]:
    lower, upper = np.full(epsilon.shape, -math.inf), np.full(epsilon.shape, -math.inf)
    for direction in DIRECTIONS:
        found = curve.log_delta(epsilon, direction)
        lower, upper = np.maximum(lower, found.lower), np.maximum(upper, found.upper)
    return lower, upper
