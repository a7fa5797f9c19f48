"""Losses of balls-and-bins sampled as they are (algorithm "mce" of the paper).

With g ∼ N(0, 1), s = 1/σ and Z_t = exp(s·g_t − s²/2), under Q the loss of (P, Q) is log S, S = ΣZ_t/T. Under P one
coordinate is spiked, and by symmetry it may be the first (the paper's reduction to P₁): Z₁ = exp(s·g₁ + s²/2).
The loss of (Q, P) is −log S with x ∼ Q.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ballsbins.accounting.curve import ADD, REMOVE, Array, Direction
from ballsbins.accounting.monte_carlo.pairs import Losses, Untilted

_SLAB = 2**18  # numbers drawn at a time


def sum_of_z(rng: np.random.Generator, count: int, terms: int, s: float) -> Array:
    """`count` independent sums of `terms` log-normals Z, in bounded memory for any number of terms."""
    total = np.zeros(count)
    width = max(_SLAB // count, 1)
    for start in range(0, terms, width):
        g = rng.standard_normal((count, min(width, terms - start)))
        g *= s
        np.exp(g, out=g)
        total += g.sum(axis=1)
    return total * math.exp(-0.5 * s * s)


@dataclass(frozen=True)
class Plain(Untilted):
    """x ∼ P₁ for `remove`, x ∼ Q for `add`."""

    sigma: float
    steps: int
    direction: Direction

    @property
    def row(self) -> int:
        return self.steps

    def losses(self, rng: np.random.Generator, count: int) -> Losses:
        """Exact losses."""
        s = 1.0 / self.sigma
        if self.direction == ADD:
            with np.errstate(divide="ignore"):
                loss = math.log(self.steps) - np.log(sum_of_z(rng, count, self.steps, s))
            return loss, loss
        assert self.direction == REMOVE
        spiked = s * rng.standard_normal(count) + 0.5 * s * s
        loss = with_spikes(spiked[:, None], sum_of_z(rng, count, self.steps - 1, s), self.steps)
        return loss, loss


def with_spikes(log_spikes: Array, rest: Array, steps: int) -> Array:
    """log((Σ e^{log_spikes} + rest)/T), whose first part may exceed the doubles."""
    with np.errstate(divide="ignore"):
        terms = np.concatenate([log_spikes, np.log(rest)[:, None]], axis=1)
    top = terms.max(axis=1)
    return np.asarray(top + np.log(np.exp(terms - top[:, None]).sum(axis=1)) - math.log(steps))
