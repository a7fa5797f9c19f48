"""The facts of a privacy statement: what was run, ε under other samplers, and what is not covered.

Facts that a card does not state are written as a condition ("must be"). Properties that only our own samplers have
are stated only if the card names the key or the run that determined the batches.
"""

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
from ballsbins.report.numbers import count, down, length_of, near, stated, up
from ballsbins.report.statement import Item
from ballsbins.samplers import BallsAndBins, Deterministic, Poisson, Shuffle


def run_items(card: Card, claim: Bound) -> tuple[Item, ...]:
    clip = card.details.get("clip_norms", "not stated; ε does not depend on it")
    if card.clip_norm is not None:
        clip = stated(card.clip_norm)
    items = [
        Item("Algorithm", "DP-SGD: clip each example's gradient, sum, add Gaussian noise, divide, step."),
        Item("Batches", _sampling(card)),
        Item(
            "Noise multiplier",
            f"σ = {card.mechanism.noise_multiplier:.10g} (standard deviation / clip norm).",
        ),
        Item("Clip norm", f"{clip}."),
        Item("Steps", _steps(card)),
        Item("Batch size", _sizes(card, claim)),
        Item("Normaliser", _normaliser(card)),
        Item("Randomness", _randomness(card)),
    ]
    return tuple(items)


def _sampling(card: Card) -> str:
    sampler = card.mechanism.sampler
    match sampler:
        case BallsAndBins() if sampler.redraw:
            return (
                "balls-and-bins: in every epoch each example goes to one uniformly random batch, drawn anew."
            )
        case BallsAndBins():
            return (
                "balls-and-bins with fixed bins: each example goes to one uniformly random batch, the same in every "
                "epoch. The epochs together cost what one would with the noise σ / √epochs."
            )
        case Poisson():
            rate = f"1/{sampler.steps:,}"
            return f"Poisson: each example is in each batch with probability {rate}, independently."
        case Shuffle():
            return f"shuffle: in every epoch a new random order of the examples is cut into batches{_even(card)}."
        case Deterministic():
            return f"deterministic: the examples in their given order, cut into batches{_even(card)}."
    return f"{sampler.name}."


def _ours(card: Card) -> bool:
    """Whether a sampler of this library drew the batches from a key: the card says so, or no other library has it."""
    recorded = card.key_commitment is not None or card.run is not None
    return recorded or isinstance(card.mechanism.sampler, BallsAndBins)


def _even(card: Card) -> str:
    """The batch sizes that our own sampler gives; another loader may cut differently."""
    return " whose sizes differ by at most one" if _ours(card) else ""


def _steps(card: Card) -> str:
    run, plan = card.mechanism, card.planned
    taken = length_of(run)
    if run.epochs > 1:
        taken += f", {count(run.total_steps, 'step')} in all"
    if plan is None or plan == run:
        return f"{taken}{', as planned' if plan is not None else ''}."
    planned = epsilon_of(plan, card.delta)
    full = "" if planned is None else f" (for which {at_most(planned)} at δ = {stated(card.delta)})"
    if not stopped_early(card):
        return f"{taken}; planned were {length_of(plan)}{full}. The claim is for the steps taken."
    return (
        f"{taken}; the run stopped early. The claim is for the steps really taken. Planned were "
        f"{length_of(plan)}{full}; if the decision to stop depended on the model or the data, the plan's ε is the "
        "one to report."
    )


def _sizes(card: Card, claim: Bound) -> str:
    sampler = card.mechanism.sampler
    if card.num_examples is None:
        expected = f"the number of examples divided by {sampler.steps:,}"
    else:
        expected = near(card.num_examples / sampler.steps, 6)
    if not sampler.random_sizes:
        return f"{expected}, rounded up or down." if _ours(card) else f"about {expected}."
    if sampler.max_batch_size is None:
        return f"{expected} expected; no maximal size, no batch is truncated."
    return (
        f"{expected} expected, {sampler.max_batch_size:,} at most: larger batches lose examples chosen at random, "
        f"which adds {up(float(claim.penalty), 3)} to δ; it is included in the claim."
    )


def _normaliser(card: Card) -> str:
    if card.normaliser is not None:
        return f"sums of clipped gradients were divided by the public constant {card.normaliser:.10g}."
    public = near(card.num_examples / card.mechanism.sampler.steps, 6) if card.num_examples else "n / steps"
    return (
        f"not recorded; sums of clipped gradients must be divided by a public constant, such as {public}, never by "
        "the size of the batch at hand."
    )


def _randomness(card: Card) -> str:
    secret = "Key and batches"
    if card.mechanism.sampler.random_sizes:
        secret = "Key, batches and their sizes"
    if not card.mechanism.sampler.is_random:
        batches = "the batches are not random"
        secret = "The key of the noise" if _ours(card) else "The seed of the noise"
    elif not _ours(card):
        batches = "how the batches were drawn is not recorded; it must be at random, from a secret seed"
        secret = secret.replace("Key and batches", "The seed and the batches").replace(
            "Key,", "The seed, the"
        )
    elif card.key_commitment is None:
        batches = "the batches must follow from a secret key; none is recorded"
    else:
        batches = (
            f"the batches follow from a key (AES in counter mode) with the commitment {card.key_commitment}"
        )
    if card.run is not None and card.mechanism.sampler.is_random:
        batches += f" and the run id {card.run}"
    if not card.key_secret:
        batches += (
            "; the key is made from a plain seed and NOT secret: whoever guesses the seed voids the guarantee"
        )
    noise = "how the noise was drawn is not recorded; it must be independent of all else"
    if card.noise:
        noise = f"noise: {card.noise.rstrip('.')}"
    return f"{batches}; {noise}. {secret} must stay secret."


def composition(card: Card) -> str:
    alone = "The statement is for this run alone; other uses of the data add to it."
    if not card.mechanism.sampler.is_random:
        return alone
    # Two runs with the same bins cost as much as two epochs with fixed bins: at σ = 1, T = 1000 and δ = 1e-6, ε is
    # 0.90, not 0.24.
    which = "the same key" if _ours(card) else "the same seed"
    if card.run is not None:
        which = f"the run id {card.run}"
    return (
        f"{alone} Another training with {which} has the same batches, and the two together cost far more than two "
        "runs with batches of their own."
    )


def at_most(bound: Bound) -> str:
    """ε in words; both ends are stated if only bounds are known, or if the two ends differ visibly."""
    low, high = float(bound.lower), float(bound.upper)
    if not math.isfinite(high):
        return f"ε is at least {down(low)} (no protection: no upper bound is known)"
    if high == low or (bound.kind != "bounds" and high - low <= 2e-3 * high):
        return f"ε is at most {up(high)}"
    return f"ε is at least {down(low)} and at most {up(high)}"


def stopped_early(card: Card) -> bool:
    return card.planned is not None and card.mechanism.total_steps < card.planned.total_steps


@lru_cache(maxsize=64)
def epsilon_of(mechanism: Mechanism, delta: float) -> Bound | None:
    """ε at δ; None if the accountant has no answer. Cached, since pages ask for the same values repeatedly."""
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
    """The guarantee if one example is replaced by another: δ at twice ε, and ε at the same δ if it is known."""

    twice_epsilon: float
    delta_at_twice: float
    epsilon_at_delta: float | None


def replace_one(mechanism: Mechanism, claim: Bound, delta: float) -> Replaced:
    """What is known if one example is replaced: ε at the same δ, and the simple cost of two changes.

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
    """What no accounting of training steps covers; includes floating point unless the run's arithmetic is known."""
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
    """Everything that a statement says, in unrounded numbers, as plain data for JSON."""
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
