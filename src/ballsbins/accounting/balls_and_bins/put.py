"""The put (direction "add", and by parity calls that are not small): one path through the saddle, right of 0."""

from __future__ import annotations

import numpy as np

from ballsbins.accounting.balls_and_bins.basket import Basket
from ballsbins.accounting.balls_and_bins.laplace import Flags
from ballsbins.accounting.balls_and_bins.path import best_trace, near, weighted
from ballsbins.accounting.balls_and_bins.sums import (
    Estimate,
    Strikes,
    estimate_of,
    halved,
    slope_sum,
    trapezoidal_error,
)

LARGEST_LOG_SADDLE = 702.0  # a path goes on to some e⁵ times that, which must be a double


class PutContour:
    """A path through the saddle of one strike, right of the pole at 0."""

    def __init__(
        self, basket: Basket, strikes: Strikes, step: float = 0.1, guess: float | None = None
    ) -> None:
        """Build for the first of `strikes`, with that step along the path; `guess` is where the saddle may be."""
        self.basket, self.k = basket, float(strikes.k[0])
        self.saddle, curvature = put_saddle(basket, self.k, float(strikes.k_minus_1[0]), guess)
        self.width, trace = best_trace(basket, self.saddle, max(curvature, 0.5), strikes, step)
        self.usable = trace is not None
        if trace is None:
            return
        weight = np.full(len(trace.u), step)
        weight[0] *= 0.5
        self.nodes = weighted(basket, trace, np.log(weight))

    def __call__(self, strikes: Strikes) -> Estimate:
        """log put(K)."""
        if not self.usable:
            return Estimate.nothing(strikes)
        exponent, load = self.nodes.terms(self.basket.size, strikes)
        scale, parts, slack = slope_sum(exponent, load, self.nodes)
        sums = halved(parts)
        found = estimate_of(scale, sums[0], slack, trapezoidal_error(*sums))
        return found.where(self.near(strikes))

    def near(self, strikes: Strikes) -> Flags:
        """Which strikes it may serve."""
        return near(strikes, self.k, self.basket.size * self.width if self.usable else np.inf)


def put_saddle(basket: Basket, k: float, k_minus_1: float, guess: float | None = None) -> tuple[float, float]:
    """The c > 0 that minimises T·c·K + Σ log L(c) − 2 log c, and the curvature there, in log c."""
    t = float(basket.size)

    def slope(log_c: float) -> tuple[float, float]:
        c = float(np.exp(log_c))
        _, _, mean, gap, variance = (float(part[0]) for part in basket.on_axis(np.array([c])))
        gradient = (t * c * k - mean if k < 0.5 else t * c * k_minus_1 + gap) - 2.0
        return gradient, gradient + 2.0 + variance

    low, high = float(np.log(2.0 / t) - np.log(k)), LARGEST_LOG_SADDLE  # the mean is not negative
    if guess is None:  # as if S were Gaussian: c·(T(K−1) + c·variance) = 2
        variance = sum(n * np.expm1(min(1.0 / sd**2, 300.0)) for n, sd in basket.kinds)
        b = t * k_minus_1
        root = np.sqrt(b * b + 8.0 * variance)
        guess = (root - b) / (2.0 * variance) if b < 0 else 4.0 / (root + b)
    x = float(np.clip(np.log(guess), low, high))
    curvature = 1.0
    for _ in range(80):
        gradient, curvature = slope(x)
        if gradient > 0:
            high = x
        else:
            low = x
        if abs(gradient) < 0.02 * np.sqrt(max(curvature, 0.5)) or high - low < 1e-3:
            break
        step = x - np.clip(gradient / max(curvature, 1e-3), -4.0, 4.0)
        x = step if low < step < high else 0.5 * (low + high)
    return float(np.exp(x)), curvature
