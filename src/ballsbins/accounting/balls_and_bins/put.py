"""The put (direction "add", and by parity calls that are not small): paths through the saddle, right of 0."""

from __future__ import annotations

import numpy as np

from ballsbins.accounting.balls_and_bins.basket import Basket
from ballsbins.accounting.balls_and_bins.laplace import Flags, Real
from ballsbins.accounting.balls_and_bins.path import FARTHEST, best_traces, weighted
from ballsbins.accounting.balls_and_bins.sums import (
    Estimate,
    Nodes,
    Strikes,
    estimate_of,
    halved,
    slope_sum,
    trapezoidal_error,
)

LARGEST_LOG_SADDLE = 702.0  # a path goes on to some e⁵ times that, which must be a double
_MOST_NEWTON = 80


class PutContour:
    """A path through the saddle of one strike, right of the pole at 0."""

    def __init__(self, bins: int, k: float, width: float, nodes: Nodes | None, reach: float) -> None:
        """For the strike k, and others up to `reach` widths from it; without nodes it serves nobody."""
        self.bins, self.k, self.nodes = bins, k, nodes
        self._unit = reach / (bins * width)

    @classmethod
    def through(
        cls,
        basket: Basket,
        strikes: Strikes,
        step: float = 0.1,
        guess: Real | None = None,
        reach: float = FARTHEST,
    ) -> list[PutContour]:
        """One for each strike, with that step along the path; `guess` is where the saddles may be."""
        saddle, curvature = put_saddles(basket, strikes, guess)
        width, traces = best_traces(basket, saddle, np.maximum(curvature, 0.5), strikes, step)
        usable = [trace for trace in traces if trace is not None]
        weights = [np.full(len(trace.u), step) for trace in usable]
        for weight in weights:
            weight[0] *= 0.5
        nodes = iter(weighted(basket, usable, [np.log(weight) for weight in weights]) if usable else [])
        return [
            cls(basket.size, float(k), float(w), None if trace is None else next(nodes), reach)
            for k, w, trace in zip(strikes.k, width, traces, strict=True)
        ]

    def __call__(self, strikes: Strikes) -> Estimate:
        """log put(K)."""
        if self.nodes is None:
            return Estimate.nothing(strikes)
        exponent, load = self.nodes.terms(self.bins, strikes)
        scale, parts, slack = slope_sum(exponent, load, self.nodes)
        sums = halved(parts)
        found = estimate_of(scale, sums[0], slack, trapezoidal_error(*sums))
        return found.where(self.near(strikes))

    def near(self, strikes: Strikes) -> Flags:
        """Which strikes it may serve."""
        return np.asarray((np.abs(strikes.k - self.k) < self._unit) & (self.nodes is not None))


def put_saddles(basket: Basket, strikes: Strikes, guess: Real | None = None) -> tuple[Real, Real]:
    """The c > 0 that minimises T·c·K + Σ log L(c) − 2 log c for every strike, and the curvature there, in log c."""
    t, k, k_minus_1 = float(basket.size), strikes.k, strikes.k_minus_1
    low, high = np.log(2.0 / t) - np.log(k), np.full(k.shape, LARGEST_LOG_SADDLE)  # the mean is not negative
    if guess is None:  # as if S were Gaussian: c·(T(K−1) + c·variance) = 2
        variance = sum(n * np.expm1(min(1.0 / sd**2, 300.0)) for n, sd in basket.kinds)
        b = t * k_minus_1
        root = np.sqrt(b * b + 8.0 * variance)
        guess = np.where(b < 0, (root - b) / (2.0 * variance), 4.0 / (root + b))
    x, curvature = np.clip(np.log(guess), low, high), np.ones(k.shape)
    rows = np.arange(len(k))
    for _ in range(_MOST_NEWTON):
        c = np.exp(x[rows])
        _, _, mean, gap, variance_ = basket.on_axis(c)
        gradient = np.where(k[rows] < 0.5, t * c * k[rows] - mean, t * c * k_minus_1[rows] + gap) - 2.0
        curvature[rows] = gradient + 2.0 + variance_
        above = gradient > 0.0
        high[rows] = np.where(above, x[rows], high[rows])
        low[rows] = np.where(above, low[rows], x[rows])
        done = np.abs(gradient) < 0.02 * np.sqrt(np.maximum(curvature[rows], 0.5))
        done |= high[rows] - low[rows] < 1e-3
        step = x[rows] - np.clip(gradient / np.maximum(curvature[rows], 1e-3), -4.0, 4.0)
        inside = (low[rows] < step) & (step < high[rows])
        x[rows] = np.where(done, x[rows], np.where(inside, step, 0.5 * (low + high)[rows]))
        rows = rows[~done]
        if rows.size == 0:
            break
    return np.exp(x), curvature
