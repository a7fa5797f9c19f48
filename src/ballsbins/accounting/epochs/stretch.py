"""A stretch of a composed privacy curve, as fft.py computes it, and what its numerical errors cost."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ballsbins.accounting.curve import Array

_LARGEST_EXPONENT, _LARGEST_COST = 700.0, 300.0  # e⁷⁰⁰ fits into a double; a cost of e³⁰⁰ is never acceptable
_LEAST, _LOWEST = 1e-300, -1e300  # replace 0 and −∞
# in logs, how little the tail beyond an empty cell counts: almost nothing, but dividing by 0 is avoided
_NEXT_CELL = 40
_SHARE = 0.1  # rounding, window and trimming may each cost this fraction of the accuracy in ε
_LEAST_SLOPE = 0.1  # least slope of log δ in ε assumed for that
_CANDIDATES = 33  # places tried to find the range of a sheet


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
    # log Σ_{j≥k} r̃_j e^{−θ(ε_j−ε_k)}(1 − e^{−(ε_j−ε_k)}) at the lattice points of the window
    log_value: Array
    log_tail: Array  # log Σ_{j≥k} r̃_j e^{−(1+θ)(ε_j−ε_k)}
    log_slack: float  # log of what is added to (upper) or subtracted from (lower) the sum besides D
    noise: float  # largest effect of D on the sum
    relative: float  # log of a factor on the whole sum, added (upper) or subtracted (lower)
    log_infinity: float
    log_trimmed: float  # log of the trimmed mass
    upper: bool
    met: bool = True  # whether rounding, window and trimming cost no more than they may

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
            slope = np.exp(np.minimum(x + self._tail(k) - value, _LARGEST_EXPONENT))
            if self.upper:
                total = np.logaddexp(np.logaddexp(value + scale, slack) + self.relative, self.log_infinity)
                return np.minimum(total, 0.0), slope
            below = value + scale
            total = below + np.log(-np.expm1(np.minimum(slack - below, 0.0))) - self.relative
        return np.where(np.isnan(total), -np.inf, np.minimum(total, 0.0)), slope

    def costs(self, epsilon: Array, accuracy: float) -> tuple[Array, Array, Array, Array]:
        """Roughly what rounding, the window and trimming each cost of log δ(ε), and how much each may cost."""
        k = self._cell(epsilon, self.log_value.size - 1)
        bulk = np.maximum(np.logaddexp(self.log_value[k], self.log_tail[k] - _NEXT_CELL), _LOWEST)
        noise = np.exp(np.minimum(math.log(max(self.noise, _LEAST)) - bulk, _LARGEST_COST))
        missed = np.exp(np.minimum(self.log_slack - bulk, _LARGEST_COST))
        log_delta, slope = self.log_delta(epsilon)
        with np.errstate(over="ignore"):
            trimmed = np.exp(np.minimum(self.log_trimmed - np.maximum(log_delta, _LOWEST), _LARGEST_COST))
        return noise, missed, trimmed, _SHARE * np.maximum(slope, _LEAST_SLOPE) * accuracy

    def good_range(self, epsilon: float, accuracy: float) -> tuple[float, float]:
        """The range of ε around the given one, within start … stop, where no cost exceeds its limit."""
        candidates = np.unique(np.append(np.linspace(self.start, self.stop, _CANDIDATES), epsilon))
        at = int(np.searchsorted(candidates, epsilon))
        *costs, allowed = self.costs(candidates, accuracy)
        bad = np.flatnonzero(np.max(costs, axis=0) > allowed)
        left, right = bad[bad < at], bad[bad > at]
        return (
            float(candidates[left[-1] + 1 if left.size else 0]),
            float(candidates[right[0] - 1 if right.size else -1]),
        )

    def cut(self, start: float, stop: float) -> Stretch:
        """Only the part from `start` to `stop`, to save memory."""
        kept = int(self._cell(np.array([stop]), self.log_value.size - 1)[0]) + 1
        return replace(
            self,
            start=start,
            stop=stop,
            log_value=self.log_value[:kept].copy(),
            log_tail=self.log_tail[:kept].copy(),
        )

    def _cell(self, epsilon: Array, most: int) -> NDArray[np.int64]:
        """Index of the first lattice point above ε."""
        index = np.floor((epsilon - self.origin) / self.h).astype(np.int64)
        return np.clip(index + 1 - self.first, 0, most)

    def _tail(self, k: NDArray[np.int64]) -> Array:
        return np.where(k < self.log_tail.size, self.log_tail[np.minimum(k, self.log_tail.size - 1)], -np.inf)
