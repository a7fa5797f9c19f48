"""Importance and order-statistics sampling together (appendix B of the paper, last method but one).

Given E_ε the largest of x − e₁ has the upper tail drawn by `importance.largest_tail`; with probability 1/T it is the
spiked coordinate. Otherwise x₁ − 1 lies below it: x₁ ∼ N(1, σ²) given x₁ ≤ y* + 1 (the paper prints y*; and where
the largest *is* x₁ it leaves out that the T − 1 others lie below y* too). What is left is bounded by order
statistics of draws conditioned on lying below y*.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from ballsbins.accounting.curve import ADD, Direction
from ballsbins.accounting.monte_carlo.importance import below, largest_tail, log_event_probability, threshold
from ballsbins.accounting.monte_carlo.order_statistics import bounded_sums, upper_tails, weights
from ballsbins.accounting.monte_carlo.orders import checked
from ballsbins.accounting.monte_carlo.pairs import Losses
from ballsbins.accounting.monte_carlo.plain import with_spikes


@dataclass(frozen=True)
class Combined:
    """Bounds on losses given E_ε, from order statistics; serves all ε from the one stated."""

    sigma: float
    steps: int
    direction: Direction
    least_epsilon: float
    orders: tuple[int, ...]
    tilt: float = 0.0
    log_weight_error: float = 0.0

    def __post_init__(self) -> None:
        """Check the orders."""
        checked(self.orders, self.draws)

    @property
    def draws(self) -> int:
        """R: all coordinates, or those left beside the spiked one and the largest."""
        return self.steps if self.direction == ADD else self.steps - 2

    @property
    def row(self) -> int:
        return len(self.orders)

    @property
    def log_weight(self) -> float:
        """Log P(E)."""
        return log_event_probability(self.sigma, self.steps, self.least_epsilon, self.direction)

    def losses(self, rng: np.random.Generator, count: int) -> Losses:
        """Lower and upper bounds on the loss."""
        s, T = 1.0 / self.sigma, self.steps
        orders = np.array(self.orders, dtype=np.int64)
        if self.direction == ADD:
            C = threshold(self.sigma, T, self.least_epsilon, ADD)
            z = np.exp(s * below(C * s, upper_tails(rng, count, T, orders)))
            low, high = math.log(T) + 0.5 * s * s - np.log(np.einsum("wi,ij->wj", weights(orders, T), z))
            rounding = 1e-13 * T * s  # of the least of all uniform numbers, about 1/T, relative
            return high - rounding, low + rounding  # of the loss, which falls in the sum
        tail = largest_tail(rng, count, T, math.exp(self.log_weight))
        top = -s * ndtri(tail) - 0.5 * s * s
        spiked = rng.random(count) * T < 1.0
        other = -s * ndtri(tail + (1.0 - tail) * rng.random(count)) - 0.5 * s * s
        first = np.where(spiked, top, other) + s * s
        # R = T − 1 where the largest is the spiked coordinate, else T − 2 beside it and the largest
        second = np.where(spiked, -np.inf, top)
        low, high = bounded_sums(rng, count, np.where(spiked, T - 1.0, T - 2.0), orders, s, tail)
        spikes = np.stack([first, second], axis=1)
        return with_spikes(spikes, low, T), with_spikes(spikes, high, T)
