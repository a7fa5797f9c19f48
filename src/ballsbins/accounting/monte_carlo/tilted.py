"""Past the paper, `remove`: draw x from G with dG/dQ = S^n/E_Q[S^n], for any number of epochs.

S^n is a sum over n balls thrown into T bins, and each term tilts a Gaussian to another Gaussian, so G is exactly
this: throw n balls with the weights of `occupancy`, then x_t ∼ N(k_t, σ²) where bin t has k_t balls. (n = 1 is P.)
As dP/dQ = S, dP/dG = E_Q[S^n]·S^{1−n} is a function of the loss: τ = n − 1, κ = log E_Q[S^n] in the words of `pairs`.
The range of a contribution is b(ε) = E_Q[S^n]·K^{1−n}·(n−1)^{n−1}/n^n, and n is chosen to make it least: then b is a
Chernoff bound on δ, typically about ten times δ, so that some 10⁴ samples bound *any* δ within 10 %.
Epochs multiply: κ adds up, τ stays. The paper leaves an importance sampler for several epochs open.

It treats the spiked coordinate apart (all n balls fall together where single large losses dominate), so nothing of
the paper's factor T is wasted. Coordinates without balls are drawn plainly, or bounded by order statistics.

For one epoch and few balls `conditional` takes the expectation over the coordinate with the most balls exactly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ballsbins.accounting.monte_carlo.occupancy import Occupancy
from ballsbins.accounting.monte_carlo.order_statistics import bounded_sums
from ballsbins.accounting.monte_carlo.orders import checked
from ballsbins.accounting.monte_carlo.pairs import Losses, log_range
from ballsbins.accounting.monte_carlo.plain import sum_of_z, with_spikes

MOST_BALLS = 200


@lru_cache(maxsize=16)
def occupancy_of(s: float, bins: int, balls: int) -> Occupancy:
    """The law of n balls in T bins, kept."""
    return Occupancy(s, bins, balls)


@dataclass(frozen=True)
class Tilt:
    """x ∼ S^n·Q of one epoch; `orders` bound the coordinates without balls, or None to draw them all."""

    sigma: float
    steps: int
    balls: int
    orders: tuple[int, ...] | None = None
    least_epsilon: float = -math.inf
    log_weight_error: float = 0.0

    def __post_init__(self) -> None:
        """Check the orders."""
        if self.orders is not None:
            checked(self.orders, self.steps - self.balls)

    @property
    def row(self) -> int:
        return self.balls + (self.steps if self.orders is None else len(self.orders))

    @property
    def tilt(self) -> float:
        """τ = n − 1."""
        return self.balls - 1.0

    @property
    def log_weight(self) -> float:
        """κ = log E_Q[S^n]."""
        return occupancy_of(1.0 / self.sigma, self.steps, self.balls).log_moment(self.balls)


@dataclass(frozen=True)
class TiltedRemove(Tilt):
    """The tilt with all coordinates drawn, or bounded."""

    def losses(self, rng: np.random.Generator, count: int) -> Losses:
        """The loss, or bounds on it from order statistics."""
        s, T = 1.0 / self.sigma, self.steps
        k = occupancy_of(s, T, self.balls).draw(rng, count)
        log_z = s * rng.standard_normal(k.shape) + s * s * (k - 0.5)
        if self.orders is not None:
            log_z[k == 0] = -np.inf
            occupied = np.count_nonzero(k, axis=1)
            orders = np.array(self.orders, dtype=np.int64)
            low, high = bounded_sums(rng, count, T - occupied.astype(np.float64), orders, s)
            return with_spikes(log_z, low, T), with_spikes(log_z, high, T)
        # coordinates beyond the occupied ones are plain: k = 0 above, and the rest here
        rest = sum_of_z(rng, count, T - k.shape[1], s)
        loss = with_spikes(log_z, rest, T)
        return loss, loss


def best_balls(sigma: float, steps: int, epochs: int, epsilon: float) -> int:
    """The n with the least range b(ε)."""
    most = 8
    while True:
        occupancy = occupancy_of(1.0 / sigma, steps, most)
        ranges = [log_range(epochs * occupancy.log_moment(n), n - 1.0, epsilon) for n in range(1, most + 1)]
        best = 1 + int(np.argmin(ranges))
        if best < most - 1 or most >= MOST_BALLS:
            return best
        most = min(2 * most, MOST_BALLS)
