"""n balls in T bins, weighted by the moments of log-normals: the discrete half of `tilted`.

The numbers of balls k₁ + … + k_T = n have probability proportional to Π_t c(k_t), c(k) = e^{s²k(k−1)/2}/k!. With
C_R(j) = [x^j] (Σ_k c(k) x^k)^R, halving the bins splits j balls as a + (j − a) with probability
C_{R′}(a)·C_{R−R′}(j − a)/C_R(j): about log₂T splits, each from a table. All terms are positive, in logs.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp

from ballsbins.accounting.curve import Array

Integers = NDArray[np.int64]


class Occupancy:
    """The law of the occupied bins for up to n balls in T bins."""

    def __init__(self, s: float, bins: int, balls: int) -> None:
        """`s` is 1/σ."""
        self.bins, self.balls = bins, balls
        k = np.arange(balls + 1.0)
        self._log_c: dict[int, Array] = {1: 0.5 * s * s * k * (k - 1.0) - gammaln(k + 1.0)}
        self._cdf: dict[int, Array] = {}
        self._series(bins)

    def _series(self, R: int) -> Array:
        """Log C_R(0), …, log C_R(n)."""
        if R not in self._log_c:
            one, two = self._series(R // 2), self._series(R - R // 2)
            self._log_c[R] = np.array([logsumexp(one[: j + 1] + two[j::-1]) for j in range(self.balls + 1)])
        return self._log_c[R]

    def log_moment(self, n: int) -> float:
        """Log E_Q[S^n] = log(n!·T^{−n}·C_T(n))."""
        return float(math.lgamma(n + 1.0) - n * math.log(self.bins) + self._series(self.bins)[n])

    def _splits(self, R: int) -> Array:
        """Cumulative probabilities of a given j, row j shifted by j, flat."""
        if R not in self._cdf:
            n = self.balls
            one, two = self._series(R // 2), self._series(R - R // 2)
            rows = np.ones((n + 1, n + 1))
            for j in range(n + 1):
                p = np.exp(one[: j + 1] + two[j::-1] - self._series(R)[j])
                c = np.cumsum(p)
                rows[j, : j + 1] = c / c[-1]
                rows[j, j] = 1.0
            self._cdf[R] = (rows + np.arange(n + 1)[:, None]).ravel()
        return self._cdf[R]

    def draw(self, rng: np.random.Generator, count: int) -> Integers:
        """Balls in the occupied bins of `count` throws, shape (count, at most min(n, T)), zeros behind."""
        n = self.balls
        who = np.arange(count)
        size = np.full(count, self.bins)
        balls = np.full(count, n)
        leaves: list[tuple[Integers, Integers]] = []
        while who.size:
            done = (size == 1) | (balls == 1)
            leaves.append((who[done], balls[done]))
            who, size, balls = who[~done], size[~done], balls[~done]
            if who.size == 0:
                break
            left = np.empty_like(balls)
            for R in np.unique(size):
                here = size == R
                u = balls[here] + rng.random(int(here.sum()))
                left[here] = np.searchsorted(self._splits(int(R)), u, side="right") - balls[here] * (n + 1)
            left = np.clip(left, 0, balls)
            half = size // 2
            who = np.concatenate([who, who])
            size = np.concatenate([half, size - half])
            balls = np.concatenate([left, balls - left])
            some = balls > 0
            who, size, balls = who[some], size[some], balls[some]
        owner = np.concatenate([a for a, _ in leaves])
        many = np.concatenate([b for _, b in leaves])
        order = np.argsort(owner, kind="stable")
        owner, many = owner[order], many[order]
        occupied = np.bincount(owner, minlength=count)
        rank = np.arange(owner.size) - np.repeat(np.cumsum(occupied) - occupied, occupied)
        table = np.zeros((count, int(occupied.max())), dtype=np.int64)
        table[owner, rank] = many
        return table
