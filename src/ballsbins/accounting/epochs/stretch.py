"""A stretch of a composed privacy curve, as `tilted` computes it, and what its numerical errors cost."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ballsbins.accounting.curve import Array


@dataclass(frozen=True)
class Stretch:
    """The composed curve around one θ: valid for `start` ≤ ε ≤ `stop`."""

    h: float
    origin: float  # lattice points are origin + h·(first + k)
    first: int
    start: float
    stop: float
    theta: float
    kappa: float
    log_value: (
        Array  # log Σ_{j≥k} r̃_j e^{−θ(ε_j−ε_k)}(1 − e^{−(ε_j−ε_k)}) at the lattice points of the window
    )
    log_tail: Array  # log Σ_{j≥k} r̃_j e^{−(1+θ)(ε_j−ε_k)}
    log_slack: float  # log of what is added to (upper) or taken from (lower) the sum besides D
    noise: float  # what D amounts to in the sum, at most
    relative: float  # log of the factor on the whole, added or taken
    log_infinity: float
    log_trimmed: float  # log of the mass that was trimmed off
    upper: bool

    def log_delta(self, epsilon: Array) -> tuple[Array, Array]:
        """Bound on log δ at ε, and −dlog δ/dε. Between lattice points the curve is linear in K, exactly."""
        k = self._cell(epsilon, self.log_value.size)
        node = self.origin + self.h * (self.first + k)
        x = np.minimum(epsilon - node, 0.0)
        with np.errstate(divide="ignore"):
            value = np.logaddexp(
                self.log_value[k - (k == self.log_value.size)], np.log(-np.expm1(x)) + self._tail(k)
            )
        value = np.where(k < self.log_value.size, value, -np.inf)
        scale = self.kappa - self.theta * node
        slack = self.log_slack + self.kappa - self.theta * epsilon
        with np.errstate(divide="ignore", invalid="ignore"):
            slope = np.exp(np.minimum(x + self._tail(k) - value, 700.0))
            if self.upper:
                total = np.logaddexp(np.logaddexp(value + scale, slack) + self.relative, self.log_infinity)
                return np.minimum(total, 0.0), slope
            below = value + scale
            total = below + np.log(-np.expm1(np.minimum(slack - below, 0.0))) - self.relative
        return np.where(np.isnan(total), -np.inf, np.minimum(total, 0.0)), slope

    def costs(self, epsilon: Array, accuracy: float) -> tuple[Array, Array, Array, Array]:
        """How much of log δ(ε) rounding, the window and trimming cost, roughly, and how much each may."""
        k = self._cell(epsilon, self.log_value.size - 1)
        bulk = np.maximum(np.logaddexp(self.log_value[k], self.log_tail[k] - 40), -1e300)
        noise = np.exp(np.minimum(math.log(max(self.noise, 1e-300)) - bulk, 300.0))
        missed = np.exp(np.minimum(self.log_slack - bulk, 300.0))
        log_delta, slope = self.log_delta(epsilon)
        with np.errstate(over="ignore"):
            trimmed = np.exp(np.minimum(self.log_trimmed - np.maximum(log_delta, -1e300), 300.0))
        return noise, missed, trimmed, 0.1 * np.maximum(slope, 0.1) * accuracy

    def good_range(self, epsilon: float, accuracy: float) -> tuple[float, float]:
        """The ε around the one given, within start … stop, where the sheet costs no more than it may."""
        candidates = np.unique(np.append(np.linspace(self.start, self.stop, 33), epsilon))
        at = int(np.searchsorted(candidates, epsilon))
        *costs, allowed = self.costs(candidates, accuracy)
        bad = np.flatnonzero(np.max(costs, axis=0) > allowed)
        left, right = bad[bad < at], bad[bad > at]
        return (
            float(candidates[left[-1] + 1 if left.size else 0]),
            float(candidates[right[0] - 1 if right.size else -1]),
        )

    def _cell(self, epsilon: Array, most: int) -> NDArray[np.int64]:
        """Index of the first lattice point above ε."""
        index = np.floor((epsilon - self.origin) / self.h).astype(np.int64)
        return np.clip(index + 1 - self.first, 0, most)

    def _tail(self, k: NDArray[np.int64]) -> Array:
        return np.where(k < self.log_tail.size, self.log_tail[np.minimum(k, self.log_tail.size - 1)], -np.inf)


@dataclass(frozen=True)
class Chernoff:
    """What can be said without a transform: δ(ε) ≤ e^{κ(θ)−θε} max_x e^{−θx}(1−e^{−x}), at one ε."""

    start: float
    bound: float
    theta: float
    upper: bool

    @property
    def stop(self) -> float:
        return self.start

    def log_delta(self, epsilon: Array) -> tuple[Array, Array]:
        """The bound, or nothing from below."""
        value = self.bound if self.upper else -math.inf
        return np.full(epsilon.size, value), np.full(epsilon.size, self.theta)
