"""What the same run would have to report under another sampler or another adjacency."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ballsbins.bound import Bound
from ballsbins.errors import BallsBinsError
from ballsbins.mechanism import Mechanism
from ballsbins.report.words import name_of
from ballsbins.samplers import BallsAndBins, Poisson, Sampler, Shuffle

_SHARES = (0.5, 0.9, 0.99)  # of δ for the first of two changes; which is best depends on the curve


@lru_cache(maxsize=64)
def epsilon_of(mechanism: Mechanism, delta: float) -> Bound | None:
    """ε at δ; None where the accountant has no answer. Kept, since pages ask for the same again and again."""
    try:
        return mechanism.epsilon(delta)
    except (BallsBinsError, ArithmeticError):
        return None


def under_others(mechanism: Mechanism, delta: float) -> dict[str, Bound | None]:
    """ε of the same noise, steps and epochs under the other samplers, without truncation."""
    steps = mechanism.sampler.steps
    others: list[Sampler] = [Shuffle(steps), Poisson(steps), BallsAndBins(steps)]
    own = name_of(mechanism.sampler)
    return {
        name_of(other): epsilon_of(
            Mechanism(other, mechanism.noise_multiplier, mechanism.epochs, mechanism.last_epoch_steps), delta
        )
        for other in others
        if name_of(other) != own
    }


@dataclass(frozen=True)
class Replaced:
    """What holds where one example is replaced by another: δ at twice ε, and ε at the same δ where it is known."""

    twice_epsilon: float
    delta_at_twice: float
    epsilon_at_delta: float | None


def replace_one(mechanism: Mechanism, claim: Bound, delta: float) -> Replaced:
    """The cost of two changes in a row, x → ⊥ → x′.

    P(E) ≤ e^{ε₁}·Q(E) + δ₁ and Q(E) ≤ e^{ε₂}·R(E) + δ₂ give P(E) ≤ e^{ε₁+ε₂}·R(E) + δ₁ + e^{ε₁}·δ₂. With
    ε₁ = ε₂ = ε that is (2ε, (1 + e^ε)·δ). For the same δ, δ₁ is a share of it and δ₂ = (δ − δ₁)·e^{−ε₁}.
    """
    upper = float(claim.upper)
    if not math.isfinite(upper):
        return Replaced(math.inf, 1.0, None)
    twice = Replaced(2.0 * upper, min(delta * (1.0 + math.exp(min(upper, 700.0))), 1.0), None)
    best = math.inf
    try:
        first = mechanism.epsilon(delta * np.array(_SHARES)).directions["remove"].upper
        rest = delta * (1.0 - np.array(_SHARES)) * np.exp(-np.asarray(first))
        if np.all(rest > 1e-300):
            second = mechanism.epsilon(rest).directions["add"].upper
            best = float(np.min(np.asarray(first) + np.asarray(second)))
    except BallsBinsError:  # truncation may leave no ε at so small a δ
        return twice
    if not math.isfinite(best):
        return twice
    # the sums above were rounded to nearest
    return Replaced(twice.twice_epsilon, twice.delta_at_twice, best * (1.0 + 1e-12))
