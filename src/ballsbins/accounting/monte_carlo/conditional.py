"""Past the paper, `remove`, one epoch: `tilted` with the expectation over one coordinate exact (Rao–Blackwell).

Draw the balls and all coordinates as in `tilted`, but not the one with the most balls, k of them. Given the sum R of
the others, what it would have contributed on average is a function of one variable u = log(R/T) and of k,

    c(u) = E f(L),   L = log(Z/T + e^u),   Z = e^{s·g + s²(k−½)},  g ∼ N(0, 1),

with f the contribution in units of its range, as in `estimate`. As f = f↑ − f↓ with both parts increasing and L
increases in u, c = c↑ − c↓ with both parts increasing: for u between l and h, c↑(l) − c↓(h) ≤ c ≤ c↑(h) − c↓(l).
(The paper's pair is k = n = 1; there c is the h(A) of one variable, and its range is 1/δ times its mean. Under the
tilt no contribution is above b(ε), about ten times δ, so neither is its average.)

The variance falls by a factor of ten to ten thousand, the range does not: it takes a bound that sees the variance,
`confidence.log_bet_upper`. Samples are counted by k and by u rounded up; u is known to lie within `width` below.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from ballsbins.accounting.curve import Array
from ballsbins.accounting.monte_carlo.estimate import Lattice, Tally
from ballsbins.accounting.monte_carlo.order_statistics import bounded_sums
from ballsbins.accounting.monte_carlo.orders import looseness
from ballsbins.accounting.monte_carlo.plain import sum_of_z
from ballsbins.accounting.monte_carlo.tilted import Tilt, occupancy_of

MOST_BALLS = 16
_STEP = 4e-3  # of the lattice of u, in units of 1/(1+τ); u matters little while R is far below e^ε·T
_BELOW, _ABOVE = 12.0, 30.0  # how far from ε it goes
_LEAST = -5.0  # u is hardly ever less
_NOTHING = -1e3  # u of an empty sum
_ERROR = 1e-7  # of the quadrature, relative


@dataclass(frozen=True)
class Conditional(Tilt):
    """The tilt but for one coordinate, which is integrated over."""

    log_weight_error: float = _ERROR

    def lattice(self, least: float, most: float) -> Lattice:
        """Of u, one copy for each k."""
        step = _STEP / self.balls
        start = max(least - _BELOW, _LEAST)
        size = math.ceil((most - start + _ABOVE / max(self.tilt, 1.0)) / step) + 2
        width = step
        if self.orders is not None:  # rounding up, and five times what the two bounds on R usually differ by
            known = np.array(self.orders, dtype=np.int64)
            width += 5.0 * looseness(known, self.steps - self.balls, self.sigma)
        return Lattice(start, step, size, self.balls, width)

    def losses(self, rng: np.random.Generator, count: int) -> tuple[Array, ...]:
        """Lower and upper bounds on u, and k − 1."""
        s, T = 1.0 / self.sigma, self.steps
        k = -np.sort(-occupancy_of(s, T, self.balls).draw(rng, count), axis=1)
        occupied = np.count_nonzero(k, axis=1)
        z = np.exp(s * rng.standard_normal(k.shape) + s * s * (k - 0.5))
        others = np.where(k[:, 1:] > 0, z[:, 1:], 0.0).sum(axis=1)
        if self.orders is not None:
            orders = np.array(self.orders, dtype=np.int64)
            low, high = bounded_sums(rng, count, T - occupied.astype(np.float64), orders, s)
        else:
            # coordinates beyond the occupied ones are plain: those of the table of k, and the rest
            empty = np.where(k[:, 1:] == 0, z[:, 1:], 0.0).sum(axis=1)
            low = high = empty + sum_of_z(rng, count, T - k.shape[1], s)
        with np.errstate(divide="ignore"):
            low, high = np.log((low + others) / T), np.log((high + others) / T)
        return low, high, np.asarray(k[:, 0] - 1.0, dtype=np.float64)

    def values(self, tally: Tally, epsilon: float) -> tuple[Array, Array, Array]:
        """Lower and upper bounds on c in every cell that has samples, and how many."""
        lattice = tally.lattice
        cells = np.flatnonzero(tally.high)
        kind, place = np.divmod(cells, lattice.size + 1)
        high = lattice.start + lattice.step * place
        low = np.where(place == 0, _NOTHING, high - lattice.width)
        least, most = np.empty(cells.size), np.empty(cells.size)
        for k in np.unique(kind):
            here = kind == k
            rise_low, fall_low = self._parts(low[here], k + 1, epsilon)
            rise_high, fall_high = self._parts(high[here], k + 1, epsilon)
            least[here], most[here] = rise_low - fall_high, rise_high - fall_low
        unknown = place == lattice.size  # beyond the lattice, or not known well enough: anything
        least = np.where(unknown, 0.0, np.clip(least, 0.0, 1.0))
        most = np.where(unknown, 1.0, np.clip(most, 0.0, 1.0))
        return least, most, tally.high[cells].astype(np.float64)

    def _parts(self, u: Array, k: int, epsilon: float) -> tuple[Array, Array]:
        """c↑ and c↓ at u."""
        tau = self.tilt
        peak = epsilon + (math.log1p(1.0 / tau) if tau > 0.0 else math.inf)
        first, top = self._where(u, k, epsilon), self._where(u, k, peak)
        beyond = np.where(np.isfinite(top), ndtr(-top), np.where(top < 0.0, 1.0, 0.0))  # of g above `top`
        rising = self._integral(u, k, epsilon, first, np.minimum(top, np.maximum(first + 9.0, 9.0)))
        if tau == 0.0:
            return rising, np.zeros_like(u)
        falling = self._integral(u, k, epsilon, top, np.maximum(top + 9.0, 9.0))
        return rising + beyond, beyond - falling

    def _where(self, u: Array, k: int, loss: float) -> Array:
        """The g at which L is that; −∞ where it is always above."""
        if math.isinf(loss):
            return np.full(u.shape, math.inf)
        s = 1.0 / self.sigma
        with np.errstate(divide="ignore", invalid="ignore"):
            room = loss + np.log(-np.expm1(np.minimum(u - loss, 0.0))) + math.log(self.steps)
        return np.where(u < loss, (room - s * s * (k - 0.5)) / s, -math.inf)

    def _integral(self, u: Array, k: int, epsilon: float, left: Array, right: Array) -> Array:
        """∫ f(L(g)) φ(g) dg from left to right, by Gauss and Legendre."""
        s, tau = 1.0 / self.sigma, self.tilt
        entropy = tau * math.log(tau) - (1.0 + tau) * math.log1p(tau) if tau > 0.0 else 0.0
        nodes, weights = np.polynomial.legendre.leggauss(64 + 40 * math.ceil(s))
        a = np.maximum(left, -9.0)
        half = 0.5 * np.maximum(right - a, 0.0)
        found = np.empty(u.size)
        for start in range(0, u.size, 1024):
            part = slice(start, start + 1024)
            g = a[part, None] + half[part, None] * (nodes + 1.0)
            x = np.logaddexp(s * g + (s * s * (k - 0.5) - math.log(self.steps)), u[part, None]) - epsilon
            f = np.where(
                x > 0.0, -np.expm1(-np.maximum(x, 0.0)) * np.exp(-tau * x - entropy - 0.5 * g * g), 0.0
            )
            found[part] = (f @ weights) * half[part] / math.sqrt(2.0 * math.pi)
        return found
