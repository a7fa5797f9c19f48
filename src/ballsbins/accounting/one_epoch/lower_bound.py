"""The paper's lower bound from the events S_C = {x : max_t x_t ≥ C}, and the pair that x ↦ max_t x_t induces.

Let coordinate t* ~ uniform have mean a under P and b < a under Q; all others have mean 0, and all have noise σ. For
balls-and-bins (a, b) = (1, 0) (eq. bnb-lb of the paper), for shuffling (2, 1) (proposition S-dominated). Then

    P(max < C) = Φ((C−a)/σ)·Φ(C/σ)^{T−1},      Q(max < C) = Φ((C−b)/σ)·Φ(C/σ)^{T−1},

    remove: P(max ≥ C) − e^ε Q(max ≥ C),        add: Q(max < C) − e^ε P(max < C),

at the best C. As a function of K = e^ε, the supremum over C is convex and lies between (1−K)₊ and 1, so it is the
curve of a pair. Every pair of which max is a post-processing dominates that pair. The two directions are that pair
and its reverse. So the bound may be composed over epochs like any exact curve.

The best C solves f_P(C) = e^{±ε} f_Q(C), with densities of the maximum

    f_P/f_Q = [A·Φ₀ + (T−1)·Φ_a] / [B·Φ₀ + (T−1)·Φ_b],   A = φ_a/φ₀ = e^{aC/σ² − a²/2σ²},  B likewise,

increasing in C. All probabilities are in logs, with Φ from the right tail, so T = 10¹² and tiny δ are fine.
The value at any C is a valid lower bound. Near the best C it is flat: an error of 10⁻⁹ in the log-ratio causes an
error of 10⁻¹⁸ in δ, relative to its two terms. These terms cancel partly; the stated error includes that factor.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr

from ballsbins.accounting.curve import REMOVE, Array, Curve, Direction, Interval, U

# B1, B18: docs/derivation.md.
_ROUNDING, _TERMS = 32 * U, 4  # error of a log probability, relative to the size of its terms (B18)
_NO_DIGIT = 0.5  # relative error beyond which only the larger of the two terms is claimed
_LARGEST_EXPONENT = 700.0  # e⁷⁰⁰ is a double
_HALF = -0.7  # about log ½: above it log(−expm1) keeps the digits of 1 − e^x, below it log1p does
# Below a probability of e⁻⁴⁰, two coordinates above C at once do not show in doubles; below e⁻⁷⁰⁰, `below` is 0.
_RARE = -40.0
# The search for C. Any C gives a valid bound, so a good one is enough: range in deviations, points of a table, steps
# of false position, and the error of the log-ratio, whose square is the error of δ.
_REACH, _TABLE, _STEPS, _CLOSE = 60, 4001, 40, 1e-9


@dataclass(frozen=True)
class MaximumCurve(Curve):
    """The privacy curve of the maximum coordinate: a lower bound for the mechanism that outputs all coordinates."""

    noise_multiplier: float
    steps: int
    mean_p: float = 1.0
    mean_q: float = 0.0

    kind = "bounds"
    method = "lower bound S_C"

    def at(self, epsilon: Array, direction: Direction) -> Interval:
        """Return bounds on the log of the supremum over C."""
        upward = direction == REMOVE
        C = self._threshold(epsilon if upward else -epsilon)
        above_p, below_p = self._maximum(C, self.mean_p)
        above_q, below_q = self._maximum(C, self.mean_q)
        larger = above_p if upward else below_q
        smaller = (above_q if upward else below_p) + epsilon
        with np.errstate(divide="ignore", invalid="ignore"):
            value = larger + np.log(-np.expm1(np.minimum(smaller - larger, 0.0)))
            cancellation = np.exp(np.minimum(larger - value, _LARGEST_EXPONENT))
        size = _TERMS + np.abs(larger) + epsilon + np.abs(C / self.noise_multiplier)
        error = _ROUNDING * size * cancellation
        certain = error < _NO_DIGIT
        lower = np.where(certain, value + np.log1p(-np.minimum(error, _NO_DIGIT)), -np.inf)
        upper = np.minimum(np.where(certain, value + error, larger), 0.0)
        return Interval(lower, lower, upper)

    def _maximum(self, C: Array, mean: float) -> tuple[Array, Array]:
        """Return log Pr[max ≥ C] and log Pr[max < C] with one coordinate at `mean` and T−1 at 0."""
        sigma = self.noise_multiplier
        below = log_ndtr((C - mean) / sigma) + (self.steps - 1) * log_ndtr(C / sigma)
        with np.errstate(divide="ignore"):
            above = np.where(below > _HALF, np.log(-np.expm1(below)), np.log1p(-np.exp(below)))
            others = np.log(self.steps - 1.0) + log_ndtr(-C / sigma)
        rare = np.logaddexp(log_ndtr((mean - C) / sigma), others)
        return np.where(rare < _RARE, rare, above), below

    def _threshold(self, log_ratio: Array) -> Array:
        """Find C with log f_P/f_Q = log_ratio: a bracket from a table, then false position (Illinois)."""
        sigma, gap = self.noise_multiplier, self.mean_p - self.mean_q
        most = float(np.max(np.abs(log_ratio), initial=0.0))
        reach = _REACH * sigma + self.mean_p + (most + _REACH) * sigma**2 / gap
        table = np.linspace(-reach, reach, _TABLE)
        known = np.maximum.accumulate(self._log_density_ratio(table))
        k = np.clip(np.searchsorted(known, log_ratio), 1, table.size - 1)
        low, high = table[k - 1], table[k]
        below, above = known[k - 1] - log_ratio, known[k] - log_ratio
        middle = 0.5 * (low + high)
        side = np.zeros(log_ratio.size)
        for _ in range(_STEPS):
            with np.errstate(invalid="ignore", divide="ignore"):
                secant = high - above * (high - low) / (above - below)
            middle = np.where((secant > low) & (secant < high), secant, 0.5 * (low + high))
            excess = self._log_density_ratio(middle) - log_ratio
            up = excess < 0
            above = np.where(up & (side > 0), 0.5 * above, above)
            below = np.where(~up & (side < 0), 0.5 * below, below)
            low, below = np.where(up, middle, low), np.where(up, excess, below)
            high, above = np.where(up, high, middle), np.where(up, above, excess)
            side = np.where(up, 1.0, -1.0)
            if np.all(np.abs(excess) <= _CLOSE):
                break
        return np.asarray(middle, dtype=np.float64)

    def _log_density_ratio(self, C: Array) -> Array:
        sigma = self.noise_multiplier
        parts = []
        for mean in (self.mean_p, self.mean_q):
            own = mean * (C - 0.5 * mean) / sigma**2 + log_ndtr(C / sigma)
            with np.errstate(divide="ignore"):
                others = np.log(self.steps - 1.0) + log_ndtr((C - mean) / sigma)
            parts.append(np.logaddexp(own, others))
        return np.asarray(parts[0] - parts[1], dtype=np.float64)


class BallsAndBinsLowerBound(MaximumCurve):
    """The paper's lower bound on δ_B of one epoch (eq. bnb-lb), C optimised."""
