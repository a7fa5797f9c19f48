"""Cumulants of sums of discrete losses, and the tilt that moves their mean to a given place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ballsbins.accounting.curve import Array

_LUMPS = 2048


@dataclass(frozen=True)
class Atoms:
    """Losses and log masses of one factor, and how often it occurs."""

    epsilon: Array
    log_p: Array
    count: int

    def lumped(self) -> Atoms:
        """At most _LUMPS atoms with nearly the same moments, to look for θ."""
        n = self.log_p.size
        if n <= _LUMPS:
            return self
        size = -(-n // _LUMPS)
        pad = -n % size
        log_p = np.concatenate([self.log_p, np.full(pad, -np.inf)]).reshape(-1, size)
        epsilon = np.concatenate([self.epsilon, np.zeros(pad)]).reshape(-1, size)
        w = np.maximum(log_p.max(axis=1, keepdims=True), -1e300)
        p = np.exp(log_p - w)
        total = p.sum(axis=1)
        full = total > 0
        return Atoms(
            (p * epsilon).sum(axis=1)[full] / total[full], np.log(total[full]) + w[full, 0], self.count
        )

    def log_moment(self, theta: float) -> float:
        """Log Σ p e^{θε}, once."""
        x = self.log_p + theta * self.epsilon
        w = float(x.max())
        return w + math.log(float(np.exp(x - w).sum()))

    def moments(self, theta: float) -> tuple[float, float, float]:
        """Log Σ p e^{θε}, tilted mean and tilted variance, once."""
        x = self.log_p + theta * self.epsilon
        w = float(x.max())
        p = np.exp(x - w)
        total = float(p.sum())
        mean = float(p @ self.epsilon) / total
        variance = float(p @ (self.epsilon - mean) ** 2) / total
        return w + math.log(total), mean, variance


@dataclass(frozen=True)
class Cumulants:
    """κ(θ), its derivatives, and the θ that puts the mean at ε."""

    atoms: Sequence[Atoms]

    def at(self, theta: float) -> tuple[float, float, float]:
        """κ, κ′, κ″ of the sum of all losses."""
        each = [(a.count, a.moments(theta)) for a in self.atoms]
        kappa, mean, variance = (sum(n * m[k] for n, m in each) for k in range(3))
        return kappa, mean, variance

    def solve(self, epsilon: float, largest: float) -> float:
        """The θ in [0, largest] with κ′(θ) = ε to 10⁻⁶ standard deviations, else the nearer end."""
        low, high = 0.0, math.inf
        _, mean, variance = self.at(0.0)
        if mean >= epsilon:
            return 0.0
        theta = min((epsilon - mean) / max(variance, 1e-300), largest)
        for _ in range(200):
            _, mean, variance = self.at(theta)
            if abs(mean - epsilon) <= 1e-6 * math.sqrt(variance) + 1e-15 * abs(epsilon):
                break
            if mean < epsilon:
                if theta >= largest:
                    break
                low = theta
            else:
                high = theta
            newton = theta + (epsilon - mean) / max(variance, 1e-300)
            if not low < newton < high:
                newton = 2 * theta if math.isinf(high) else 0.5 * (low + high)
            theta = min(newton, largest, 4 * theta if math.isinf(high) else math.inf)
            if high - low <= 1e-12 * low:
                return low
        return theta
