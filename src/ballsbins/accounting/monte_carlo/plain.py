"""Losses of balls-and-bins, sampled directly (algorithm "mce" of the paper).

With g ∼ N(0, 1), s = 1/σ and Z_t = exp(s·g_t − s²/2), under Q the loss of (P, Q) is log S, S = ΣZ_t/T. Under P one
coordinate is spiked; by symmetry we may take the first (the paper's reduction to P₁): Z₁ = exp(s·g₁ + s²/2).
The loss of (Q, P) is −log S with x ∼ Q.


Several epochs (algorithm "mce-multiple-epochs" of the paper).

Redrawn bins: losses of independent epochs add, L(P^⊗k‖Q^⊗k) = ΣL. A tilt carries over to the sum (κ adds up, τ
stays). An event does not, because a large sum does not need a large loss in any one epoch.
Fixed bins: the sum of the E numbers of a bin is a sufficient statistic, so E epochs at σ are one epoch at σ/√E.


Bins of several kinds: losses of an epoch that stopped early, or of fixed bins not all visited equally often.

Of T bins some have the noise multiplier σ₁, some σ₂, …, and the rest were not visited at all: their Z is 1. So
S = (ΣZ + T − visited)/T. After t of T steps there are t bins with σ. If fixed bins are kept for E epochs, t of them
were visited E times, with σ/√E, and the others E − 1 times. Under P one bin, any of the T, is spiked.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ballsbins import _check
from ballsbins.accounting.curve import ADD, REMOVE, Array, Direction
from ballsbins.accounting.monte_carlo.pairs import Losses, LossSampler, Untilted
from ballsbins.errors import InvalidInputError

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
    """log((Σ e^{log_spikes} + rest)/T), computed in logs because the first part may overflow a double."""
    with np.errstate(divide="ignore"):
        terms = np.concatenate([log_spikes, np.log(rest)[:, None]], axis=1)
    top = terms.max(axis=1)
    return np.asarray(top + np.log(np.exp(terms - top[:, None]).sum(axis=1)) - math.log(steps))


@dataclass(frozen=True)
class Epochs:
    """Independent epochs, each with losses from `one`, and perhaps a last one that stopped early."""

    one: LossSampler
    epochs: int
    last: Unfinished | None = None

    def __post_init__(self) -> None:
        """Reject samplers with an event (several epochs) or a tilt (an unfinished last epoch)."""
        _check.integer("epochs", self.epochs, 1, advice="State how often the data is passed.")
        if self.epochs > 1 and math.isfinite(self.one.least_epsilon):
            raise InvalidInputError(
                "sampler",
                type(self.one).__name__,
                "one without an event for several epochs",
                'Use "plain", "order-statistics" or "tilted".',
            )

        if self.last is not None and self.one.tilt > 0.0:
            raise InvalidInputError(
                "sampler",
                type(self.one).__name__,
                "one without a tilt for an unfinished last epoch",
                'Use "plain" or "order-statistics".',
            )

    @property
    def row(self) -> int:
        return max(self.one.row, 0 if self.last is None else self.last.row)

    @property
    def tilt(self) -> float:
        return self.one.tilt

    @property
    def log_weight(self) -> float:
        """κ of the product."""
        return self.epochs * self.one.log_weight

    @property
    def log_weight_error(self) -> float:
        return self.epochs * self.one.log_weight_error

    @property
    def least_epsilon(self) -> float:
        return self.one.least_epsilon

    def losses(self, rng: np.random.Generator, count: int) -> Losses:
        """Sums of losses, one epoch at a time, so that memory does not grow with the number of epochs."""
        low, high = np.zeros(count), np.zeros(count)
        for _ in range(self.epochs):
            below, above = self.one.losses(rng, count)
            low, high = low + below, high + above
        if self.last is not None:
            loss, _ = self.last.losses(rng, count)
            low, high = low + loss, high + loss
        return low, high


@dataclass(frozen=True)
class Unfinished(Untilted):
    """Draw all coordinates; `kinds` are numbers of bins with their noise multipliers."""

    kinds: tuple[tuple[int, float], ...]
    steps: int
    direction: Direction

    @property
    def row(self) -> int:
        return sum(bins for bins, _ in self.kinds)

    def losses(self, rng: np.random.Generator, count: int) -> Losses:
        """Exact losses."""
        # the number of the spiked bin; bins are counted from the first kind on
        spiked = rng.random(count) * self.steps
        rest = np.full(count, float(self.steps - self.row))
        ones, first = [], 0
        for bins, sigma in self.kinds:
            s = 1.0 / sigma
            rest += sum_of_z(rng, count, bins - 1, s)
            here = (spiked >= first) & (spiked < first + bins) & (self.direction != ADD)
            ones.append(s * rng.standard_normal(count) + s * s * np.where(here, 0.5, -0.5))
            first += bins
        with np.errstate(divide="ignore"):
            loss = with_spikes(np.stack(ones, axis=1), rest, self.steps)
        loss = -loss if self.direction == ADD else loss
        return loss, loss
