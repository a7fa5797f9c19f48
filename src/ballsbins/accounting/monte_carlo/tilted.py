"""Beyond the paper: contributions to δ at one ε, drawn from the laws of `levels`; `remove` for any number of epochs.

A sample is a cell for each coordinate. With M and v of each epoch (see `cells`), its contribution in units of b is

    Π_epochs [(eθ/a)^a e^{−θM−θ²v/2}/N]·E[(X − K)₊ | cells] / (N′·K^{1−a}(a−1)^{a−1}/a^a) ,

with θM + θ²v/2 the log of the tilts, N the number of coordinates in the level of the epoch (1 in the base), and N′
that of epochs in the highest level (1 if that is the base). The expectation given the cells is bounded on both sides.
Jensen's inequality at the mean gives the lower bound. The upper bound is the lesser of two, with r = ΠM/K, V = Σ v/M²
and W = Σ Var[S | cells]/M²,

    ½K(√((r−1)² + r²(e^W − 1)) + r − 1)      Scarf's bound, as Var[X | cells] ≤ (ΠM)²(e^W − 1)
    K·r^a e^{a²V/2}(a−1)^{a−1}/a^a            for any a > 1, as S^a ≤ M^a e^{a(S/M−1)}, by Hoeffding's lemma.

`add` works in the same way with E[(1 − S/K)₊ | cells].
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ballsbins.accounting.curve import ADD, Array, Direction
from ballsbins.accounting.monte_carlo import levels
from ballsbins.accounting.monte_carlo.estimate import Lattice
from ballsbins.accounting.monte_carlo.pairs import Losses

SHARES = Lattice(0.0, 2.0**-13, 2**13 + 1)  # contributions are counted in units of b
_ROUNDING = 1e-14  # rounding of the log of the tilted mass of one coordinate
_MARGIN, _TINY = 1e-9, 1e-300  # more than all other roundings; near the least double
_LEAST_SPREAD = 1e-12  # V is raised to this: the bound stays valid, and nothing overflows


@dataclass(frozen=True)
class Tilted:
    """Contributions to δ(ε); `add` is for one epoch."""

    sigma: float
    steps: int
    direction: Direction
    epsilon: float
    epochs: int = 1
    tilt = 0.0

    @property
    def plan(self) -> levels.Plan:
        """Cells and laws."""
        if self.direction == ADD:
            return levels.add(self.sigma, self.steps, self.epsilon)
        return levels.remove(self.sigma, self.steps, self.epochs, self.epsilon)

    @property
    def rest(self) -> float:
        """An upper bound on the part that is not sampled, in units of b."""
        return self.plan.rest

    @property
    def row(self) -> int:
        return min(self.steps, self.plan.cells.mean.size)

    @property
    def log_weight(self) -> float:
        """Log b."""
        return self.plan.log_range + (self.epsilon if self.direction != ADD and self.epochs == 1 else 0.0)

    @property
    def log_weight_error(self) -> float:
        """The rounding error of log b."""
        return _ROUNDING * self.steps * self.epochs + _MARGIN

    @property
    def least_epsilon(self) -> float:
        return self.epsilon

    def losses(self, rng: np.random.Generator, count: int) -> Losses:
        """Bounds on the contributions, in units of b."""
        plan, E = self.plan, self.epochs
        low, high = np.empty((2, count))
        which = np.searchsorted(plan.chance[:-1], rng.random(count), side="right")
        for stratum in np.unique(which):
            rows = np.flatnonzero(which == stratum)
            here = plan.strata[stratum]
            level = np.full((rows.size, E), len(here.levels) - 1)
            level[:, 1:] = np.searchsorted(here.chance[:-1], rng.random((rows.size, E - 1)), side="right")
            found = np.empty((rows.size, E, 5))
            for kind in np.unique(level):
                mine = level == kind
                found[mine] = plan.law(int(stratum), int(kind)).draw(rng, int(mine.sum()))
            M, v, variance, tilts, N = np.moveaxis(found, 2, 0)
            log_weight = -(tilts + here.log_factor[level] + np.log(np.maximum(N, 1.0))).sum(axis=1)
            if here.levels[-1].first > 0:
                log_weight -= np.log(np.count_nonzero(level == len(here.levels) - 1, axis=1))
            log_weight -= here.log_peak
            if self.direction == ADD:
                payoffs = _put(M[:, 0], v[:, 0], variance[:, 0])
            else:
                payoffs = _call(M, v, variance, plan.log_k)
            low[rows], high[rows] = (np.exp(np.minimum(log_weight + payoff, 0.0)) for payoff in payoffs)
        return low, high


def _call(M: Array, v: Array, variance: Array, log_k: float) -> tuple[Array, Array]:
    """Log of a lower and an upper bound on E[(X − K)₊ | cells]."""
    M = np.maximum(M, _TINY)
    d = np.log(M).sum(axis=1) - log_k
    V = np.maximum((v / np.square(M)).sum(axis=1), _LEAST_SPREAD)
    a = np.maximum((np.sqrt(d * d + 4 * V) - d) / (2.0 * V), 1.0 + _MARGIN)
    with np.errstate(over="ignore", divide="ignore"):
        excess = np.expm1(d)
        low = np.log(np.maximum(excess, 0.0))
        whole = np.expm1((variance / np.square(M)).sum(axis=1))
        scarf = _log_scarf(excess, np.exp(2.0 * d) * whole)
    chernoff = a * d + 0.5 * a * a * V + (a - 1.0) * np.log(a - 1.0) - a * np.log(a)
    return low + log_k, np.maximum(np.minimum(scarf, chernoff), low) + log_k


def _put(M: Array, v: Array, variance: Array) -> tuple[Array, Array]:
    """Log of a lower and an upper bound on E[(1 − S/K)₊ | cells], with S in units of K."""
    d, v = 1.0 - M, np.maximum(v, _LEAST_SPREAD)
    rate = (np.sqrt(d * d + 4 * v) - d) / (2.0 * v)
    with np.errstate(divide="ignore"):
        low = np.log(np.maximum(d, 0.0))
    chernoff = rate * d + 0.5 * rate * rate * v - 1.0 - np.log(rate)
    return low, np.maximum(np.minimum(_log_scarf(d, variance), np.minimum(chernoff, 0.0)), low)


def _log_scarf(d: Array, variance: Array) -> Array:
    """log ½(√(variance + d²) + d), without cancellation."""
    root = np.hypot(d, np.sqrt(variance))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(np.where(d > 0.0, 0.5 * (root + d), 0.5 * variance / (root - d)))
