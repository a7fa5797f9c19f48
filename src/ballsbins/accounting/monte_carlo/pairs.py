"""The interface of a sampler: the privacy loss of a pair (P, Q), drawn under P or another law.

    D(P‖Q)(ε) = E_{x∼P} (1 − e^{ε−L(x)})₊,      L = log dP/dQ        (equation "hsd-as-expectation" of the paper).

A loss sampler draws x from some law G and returns a lower and an upper bound on L(x) (the same number where L is
computed exactly). G may differ from P in two ways, both functions of the loss alone:

    tilt τ ≥ 0:  dP/dG = e^{κ − τL}, κ = `log_weight`. The contribution of one sample,
                 e^{κ−τL}(1 − e^{ε−L})₊, is at most b(ε) = e^{κ−τε}·τ^τ/(1+τ)^{1+τ}. This range is as small as a
                 Chernoff bound on δ, so few samples give a confidence bound on a tiny δ.
    event E:     G = P conditioned on an event that contains every x with L(x) ≥ `least_epsilon`; then τ = 0 and
                 κ = log P(E) (the paper's algorithm "importance-mce").

To plug in another pair, write a class with these six members; subclass `Untilted` if G = P. Nothing else in
this directory needs to change: `run.run([Job(sampler, …)])` draws it and `Outcome.log_delta` bounds δ.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np

from ballsbins.accounting.curve import Array

Losses = tuple[Array, ...]


class LossSampler(Protocol):
    """Draws privacy losses under G; see the docstring of the module."""

    @property
    def row(self) -> int:
        """About how many numbers are drawn for one sample: this sets the size of blocks and so limits memory."""
        ...

    @property
    def log_weight(self) -> float:
        """κ."""
        ...

    @property
    def log_weight_error(self) -> float:
        """How far κ may be from the truth."""
        ...

    @property
    def tilt(self) -> float:
        """τ."""
        ...

    @property
    def least_epsilon(self) -> float:
        """The least ε for which the samples may be used."""
        ...

    def losses(self, rng: np.random.Generator, count: int) -> Losses:
        """Lower and upper bounds on L(x) for `count` independent x ∼ G; in `tilted`, on contributions to δ."""
        ...


class Untilted:
    """The members of a sampler whose G is P itself."""

    log_weight = 0.0
    log_weight_error = 0.0
    tilt = 0.0
    least_epsilon = -math.inf


def log_range(log_weight: float, tilt: float, epsilon: float) -> float:
    """Log b(ε), the most that one sample can contribute."""
    entropy = tilt * math.log(tilt) - (1.0 + tilt) * math.log1p(tilt) if tilt > 0.0 else 0.0
    return log_weight - tilt * epsilon + entropy
