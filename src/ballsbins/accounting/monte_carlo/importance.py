"""Importance sampling by an event on the largest coordinate (algorithm "importance-mce" of the paper).

remove: E = {max(x₁ − 1, max_{t>1} x_t) ≥ C},  C = ½ + σ²(ε − log(1 + (e^{1/σ²} − 1)/T)): outside of E, L < ε.
        x − e₁ is then N(0, σ²)^T given that its maximum is at least C (algorithm "max-of-samples-from-P").
add:    E = {max x_t ≤ C},  C = ½ + σ²(log T − ε): one x_t > C already makes Σe^{x_t/σ²} > T·e^{1/2σ²−ε}, so L < ε.
        The paper prints C = ½ − εσ², as if max x_t ≥ C made *every* term that large; its event misses most of δ
        (at T = 10, σ = 1, ε = 0.3 it catches 0.0021 of 0.0516), so its bound is too low.

For `remove` the maximal coordinate is the spiked one in only one of T samples, and only those count when δ is small.
So about a factor T is wasted. `tilted` avoids this waste; this file is the paper's method.


Importance and order-statistics sampling together (appendix B of the paper, second-to-last method).

Given E_ε the largest of x − e₁ has the upper tail drawn by `importance.largest_tail`; with probability 1/T it is the
spiked coordinate. Otherwise x₁ − 1 lies below it: x₁ ∼ N(1, σ²) given x₁ ≤ y* + 1 (the paper prints y*; and if
the largest *is* x₁, it omits that the T − 1 others lie below y* too). The rest is bounded by order statistics of
draws conditioned on lying below y*.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr, ndtri, ndtri_exp

from ballsbins.accounting.curve import ADD, Array, Direction
from ballsbins.accounting.monte_carlo.order_statistics import bounded_sums, upper_tails, weights
from ballsbins.accounting.monte_carlo.orders import checked
from ballsbins.accounting.monte_carlo.pairs import Losses
from ballsbins.accounting.monte_carlo.plain import with_spikes

_LOST = 1e-13  # absolute rounding error of a uniform number
_SLAB = 2**18  # numbers drawn at a time, to limit memory


def threshold(sigma: float, steps: int, epsilon: float, direction: Direction) -> float:
    """C_ε."""
    if direction == ADD:
        return 0.5 + sigma**2 * (math.log(steps) - epsilon)
    spike = np.logaddexp(math.log1p(-1.0 / steps) if steps > 1 else -math.inf, sigma**-2 - math.log(steps))
    return float(0.5 + sigma**2 * (epsilon - spike))


def log_event_probability(sigma: float, steps: int, epsilon: float, direction: Direction) -> float:
    """Log P(E_ε)."""
    log_below = steps * float(log_ndtr(threshold(sigma, steps, epsilon, direction) / sigma))
    if direction == ADD:
        return log_below
    return math.log(-math.expm1(log_below)) if log_below < 0.0 else -math.inf


@dataclass(frozen=True)
class Importance:
    """x ∼ P₁ (or Q for `add`) given E_ε; serves all ε from `least_epsilon` on."""

    sigma: float
    steps: int
    direction: Direction
    least_epsilon: float
    tilt: float = 0.0
    log_weight_error: float = 0.0

    @property
    def row(self) -> int:
        return self.steps

    @property
    def log_weight(self) -> float:
        """Log P(E)."""
        return log_event_probability(self.sigma, self.steps, self.least_epsilon, self.direction)

    def losses(self, rng: np.random.Generator, count: int) -> Losses:
        """Exact losses."""
        s, T = 1.0 / self.sigma, self.steps
        if self.direction == ADD:
            C = threshold(self.sigma, T, self.least_epsilon, ADD)
            total = _sum(rng, count, T, s, lambda v: below(C * s, v))
            loss = math.log(T) + 0.5 * s * s - np.log(total)
            return loss, loss
        tail = largest_tail(rng, count, T, math.exp(self.log_weight))
        top = -s * ndtri(tail) - 0.5 * s * s  # log Z of the largest of x − e₁
        spiked = rng.random(count) * T < 1.0
        # the spiked coordinate is the largest itself, or another one below it; e₁ adds s² to its log Z
        other = -s * ndtri(tail + (1.0 - tail) * rng.random(count)) - 0.5 * s * s
        first = np.where(spiked, top, other) + s * s
        second = np.where(spiked, -np.inf, top)
        above = tail[:, None]
        rest = _sum(rng, count, max(T - 2, 0), s, lambda v: -ndtri(above + (1.0 - above) * v))
        rest *= math.exp(-0.5 * s * s)
        if T > 1:  # if the largest is the spiked one, one more of the others is below it
            more = np.exp(-s * ndtri(tail + (1.0 - tail) * rng.random(count)) - 0.5 * s * s)
            rest = rest + np.where(spiked, more, 0.0)
        else:
            first, second = top + s * s, np.full(count, -np.inf)
        loss = with_spikes(np.stack([first, second], axis=1), rest, T)
        return loss, loss


def largest_tail(rng: np.random.Generator, count: int, draws: int, event: float) -> Array:
    """1 − Φ of the largest of `draws`, given that it exceeds C; `event` is the probability of this.

    y* ∼ Beta(T, 1) on [Φ(C), 1]: y*^T is uniform on [1 − P(E), 1], and its complement keeps its relative accuracy.
    """
    return np.asarray(-np.expm1(np.log1p(-event * (1.0 - rng.random(count))) / draws))


def below(limit: float, v: Array) -> Array:
    """Quantiles 1 − v of N(0, 1) given that it is below a limit. The limit may be far below 0: all is in logs."""
    return np.asarray(ndtri_exp(log_ndtr(limit) + np.log1p(-v)))


def _sum(
    rng: np.random.Generator, count: int, terms: int, s: float, quantile: Callable[[Array], Array]
) -> Array:
    """Sums of e^{sg} over draws g that are quantiles of uniform numbers."""
    total = np.zeros(count)
    width = max(_SLAB // count, 1)
    for start in range(0, terms, width):
        v = rng.random((count, min(width, terms - start)))
        total += np.exp(s * quantile(v)).sum(axis=1)
    return total


@dataclass(frozen=True)
class Combined:
    """Bounds on losses given E_ε, from order statistics; serves all ε from `least_epsilon` on."""

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
        """R: all coordinates, or those besides the spiked one and the largest."""
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
            rounding = _LOST * T * s  # relative rounding of the least of all uniform numbers, about 1/T
            return high - rounding, low + rounding  # bounds on the loss, which decreases in the sum
        tail = largest_tail(rng, count, T, math.exp(self.log_weight))
        top = -s * ndtri(tail) - 0.5 * s * s
        spiked = rng.random(count) * T < 1.0
        other = -s * ndtri(tail + (1.0 - tail) * rng.random(count)) - 0.5 * s * s
        first = np.where(spiked, top, other) + s * s
        # R = T − 1 if the largest is the spiked coordinate, else T − 2 besides it and the largest
        second = np.where(spiked, -np.inf, top)
        low, high = bounded_sums(rng, count, np.where(spiked, T - 1.0, T - 2.0), orders, s, tail)
        spikes = np.stack([first, second], axis=1)
        return with_spikes(spikes, low, T), with_spikes(spikes, high, T)
