"""The facts of a privacy statement: ε under other samplers and for replacing an example, and what is not covered."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ballsbins.bound import Bound
from ballsbins.comparison import at_equal_noise
from ballsbins.errors import BallsBinsError
from ballsbins.mechanism import Mechanism
from ballsbins.report.card import Card
from ballsbins.samplers import BallsAndBins, Poisson, Shuffle


@lru_cache(maxsize=64)
def epsilon_of(mechanism: Mechanism, delta: float) -> Bound | None:
    """ε at δ; None where the accountant has no answer. Kept, since pages ask for the same again and again."""
    try:
        return mechanism.epsilon(delta)
    except (BallsBinsError, ArithmeticError):
        return None


def under_others(mechanism: Mechanism, delta: float) -> dict[str, Bound | None]:
    """ε of the same noise, steps and epochs under the other samplers, without truncation."""
    runs = at_equal_noise(mechanism)
    del runs[mechanism.sampler.name]
    return {
        name: epsilon_of(runs[name], delta)
        for name in ("shuffle", "Poisson", "balls-and-bins")
        if name in runs
    }


@dataclass(frozen=True)
class Replaced:
    """What holds where one example is replaced by another: δ at twice ε, and ε at the same δ where it is known."""

    twice_epsilon: float
    delta_at_twice: float
    epsilon_at_delta: float | None


def replace_one(mechanism: Mechanism, claim: Bound, delta: float) -> Replaced:
    """What is known where one example is replaced: ε at the same δ, and the plain cost of two changes.

    P(E) ≤ e^ε·Q(E) + δ and Q(E) ≤ e^ε·R(E) + δ give (2ε, (1 + e^ε)·δ).
    """
    upper = float(claim.upper)
    if not math.isfinite(upper):
        return Replaced(math.inf, 1.0, None)
    at_delta = float(mechanism.epsilon(delta, adjacency="replace-one").upper)
    return Replaced(
        2.0 * upper,
        min(delta * (1.0 + math.exp(min(upper, 700.0))), 1.0),
        at_delta if math.isfinite(at_delta) else None,
    )


def never_covered(card: Card) -> list[str]:
    """What no accounting of training steps covers, and, unless the run's arithmetic is known, floating point."""
    sampler, floating_point = card.mechanism.sampler, card.floating_point
    batches = {
        BallsAndBins: "realised batch sizes and the batches themselves: given the sizes, balls-and-bins is shuffling",
        Poisson: "realised batch sizes and the batches themselves",
        Shuffle: "the batches themselves: given them, they are deterministic",
    }.get(type(sampler))
    return [
        "other trainings on the same data, such as those that chose the hyperparameters: each has its own cost",
        "vocabularies, feature statistics and the choice of the model where they were taken from the same data",
        "training losses, gradient norms and other values computed from the training data and logged",
        *([] if batches is None else [batches]),
        *([] if floating_point is not None else ["the finite precision of floating-point noise and sums"]),
        "side channels such as timing",
    ]


def facts_of(card: Card, claim: Bound, others: dict[str, Bound | None], replaced: Replaced) -> dict[str, Any]:
    """All that a statement says, in numbers and unrounded, as plain data for JSON."""
    saved = card.to_dict()
    for name in ("schema", "metrics", "details"):
        saved.pop(name)
    sampler = card.mechanism.sampler
    expected = None if card.num_examples is None else card.num_examples / sampler.steps
    return saved | {
        "epsilon_at_most": saved["claim"]["upper"],
        "error_probability": 1.0 - claim.confidence,
        "unit_of_privacy": "one training example",
        "adjacency": "zero-out",
        "released": "all iterates",
        "total_steps": card.mechanism.total_steps,
        "expected_batch_size": expected,
        "max_batch_size": sampler.max_batch_size,
        "truncation_penalty": float(claim.penalty),
        "replace_one": {
            "twice_epsilon": replaced.twice_epsilon if math.isfinite(replaced.twice_epsilon) else None,
            "delta_at_twice_epsilon": replaced.delta_at_twice,
            "epsilon_at_delta": replaced.epsilon_at_delta,
        },
        "never_covered": never_covered(card),
        "under_other_samplers": {
            name: None if bound is None else bound.to_dict() for name, bound in others.items()
        },
    }
