"""Batches truncated to at most B examples: what it costs, and the least B for a share of δ.

A batch of balls-and-bins or Poisson has Bin(n, 1/T) examples. Unless some batch has more than B, nothing
changes, so by Chua et al. (2024b, prop. 3.2, thm 3.3; the paper's appendix C)

    δ_truncated(ε) ≤ δ(ε) + (1 + e^ε)·p,     p = batches·Pr[Bin(n, 1/T) > B] ,

with as many batches as are drawn (fixed bins are drawn once). The sum falls and then rises in ε, whereas δ
itself only falls: so its least value up to ε is the bound at ε. It is not the curve of a pair: composition
goes first, truncation last.

**Tail.** With k = B + 1 > nq,

    Pr[Bin ≥ k] = b(k)·(1 + r₁ + r₁r₂ + …),   r_j = (n−k−j+1)/(k+j)·q/(1−q) < 1 decreasing,

cut off with its geometric bound, and b(k) by Loader's saddlepoint form

    log b(k) = s(n) − s(k) − s(n−k) − D(k, nq) − D(n−k, n(1−q)) + ½ log(n/(2πk(n−k))),
    D(x, m) = x log(x/m) + m − x,   s(n) = log n! − (n+½) log n + n − ½ log 2π ,

which loses nothing for n = 10⁹ and beyond, where log-gammas cancel. The result is raised by 10⁻⁹, more than
its error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln

from ballsbins.accounting.curve import Array, Curve, Direction, Interval

_SAFETY = 1e-9


def log_binomial_tail(n: int, q: float, B: int) -> float:
    """An upper bound on log Pr[Bin(n, q) > B], tight to 10⁻⁹ where B is at least the mean; 0 below."""
    if n <= B or q <= 0:
        return -math.inf
    k = B + 1
    if q >= 1 or k <= n * q or k <= 0:
        return 0.0
    if k == n:
        return n * math.log(q) * (1 - 1e-15) + _SAFETY
    log_b = (
        _stirling_error(n) - _stirling_error(k) - _stirling_error(n - k)
        - _deviance(k, n * q) - _deviance(n - k, n * (1 - q))
        + 0.5 * math.log(n / (2 * math.pi * k) / (n - k))
    )  # fmt: skip
    odds = q / (1 - q)
    total, product, j = 1.0, 1.0, 1
    while True:
        block = np.arange(j, min(j + 4096, n - k + 1), dtype=np.float64)
        if not block.size:
            break
        products = product * np.cumprod((n - k - block + 1) / (k + block) * odds)
        total += float(products.sum())
        product, j = float(products[-1]), j + block.size
        ratio = (n - k - j + 1) / (k + j) * odds
        if product * ratio <= 1e-12 * total * (1 - ratio):
            total += product * ratio / (1 - ratio)
            break
    return min(0.0, log_b + math.log(total) + _SAFETY)


def _stirling_error(n: int) -> float:
    if n < 16:
        return float(gammaln(n + 1)) - (n + 0.5) * math.log(n) + n - 0.5 * math.log(2 * math.pi)
    n2 = float(n) * n
    return (1 / 12 - (1 / 360 - (1 / 1260 - (1 / 1680 - 1 / (1188 * n2)) / n2) / n2) / n2) / n


def _deviance(x: float, m: float) -> float:
    """X log(x/m) + m − x, by a series in (x−m)/(x+m) where they are close."""
    if abs(x - m) > 0.1 * (x + m):
        return x * math.log(x / m) + m - x
    v = (x - m) / (x + m)
    total, power, j = (x - m) * v, 2 * x * v, 1
    while True:
        power *= v * v
        step = power / (2 * j + 1)
        if total + step == total:
            return total
        total, j = total + step, j + 1


def log_overflow_probability(num_examples: int, steps: int, max_batch_size: int, batches: int) -> float:
    """Log p, at most 0: an upper bound on the probability that any of `batches` batches has more than B."""
    return min(0.0, math.log(batches) + log_binomial_tail(num_examples, 1 / steps, max_batch_size))


def least_max_batch_size(num_examples: int, steps: int, batches: int, log_p: float) -> int:
    """The least B with p ≤ e^{log_p}."""
    low, high = 0, num_examples  # p(high) = 0
    while low < high:
        middle = (low + high) // 2
        if log_overflow_probability(num_examples, steps, middle, batches) <= log_p:
            high = middle
        else:
            low = middle + 1
    return high


@dataclass(frozen=True, slots=True)
class Truncated:
    """A curve with the penalty of truncation on its upper side; the lower side is that without truncation."""

    curve: Curve
    log_p: float

    @property
    def method(self) -> str:
        return self.curve.method

    @property
    def confidence(self) -> float:
        return self.curve.confidence

    @property
    def scale(self) -> float:
        return float(getattr(self.curve, "scale", 1.0))

    def log_delta(self, epsilon: Array, direction: Direction) -> Interval:
        """The least of δ(ε′) + (1 + e^{ε′})p over ε′ ≤ ε."""
        epsilon = np.asarray(epsilon, dtype=np.float64)
        plain = self.curve.log_delta(epsilon, direction)
        value, upper = self._penalised(epsilon, plain)
        excess = upper - plain.upper
        late = excess > 1e-9  # elsewhere a smaller ε′ cannot do better by more than that
        # δ + (1+e^ε)p falls until Q(loss > ε) = p and rises then: where it still falls, ε itself is best.
        if late.any():
            before = epsilon[late] - 3e-3 * np.maximum(np.abs(epsilon[late]), 1.0)
            late[late] = self._penalised(before, self.curve.log_delta(before, direction))[1] <= upper[late]
        if late.any():  # look for the place, in three rounds
            start, stop = min(0.0, float(epsilon.min())), float(epsilon[late].max())
            best_value, best_upper = [value], [upper]
            for _ in range(3):
                points = np.linspace(start, stop, 33)
                found = self._penalised(points, self.curve.log_delta(points, direction))
                at = np.searchsorted(points, epsilon, side="right") - 1
                for best, row in ((best_value, found[0]), (best_upper, found[1])):
                    least = np.minimum.accumulate(row)
                    best.append(np.where(at >= 0, least[np.maximum(at, 0)], 0.0))
                k = int(np.argmin(found[1]))
                start, stop = float(points[max(k - 1, 0)]), float(points[min(k + 1, 32)])
            value, upper = np.min(best_value, axis=0), np.min(best_upper, axis=0)
        return Interval(plain.lower, np.maximum(value, plain.lower), upper)

    def _penalised(self, epsilon: Array, plain: Interval) -> tuple[Array, Array]:
        penalty = self.log_p + np.logaddexp(0.0, epsilon)
        value, upper = (np.minimum(np.logaddexp(row, penalty), 0.0) for row in (plain.value, plain.upper))
        return value, upper
