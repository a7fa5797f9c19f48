"""The privacy statement in words: what section 5.3 of "How to DP-fy ML" asks to be reported, item by item.

Every sentence says what is known and no more. What a card does not state is written as a condition ("must be"), what
is only bounded as "at least … and at most …", what is only probable with its probability of failure.
"""

from __future__ import annotations

import math

from ballsbins.accounting.curve import Kind
from ballsbins.bound import Bound
from ballsbins.report.card import Card
from ballsbins.report.check import refuse_false
from ballsbins.report.numbers import confidence, count, down, length_of, near, stated, up
from ballsbins.report.statement import Item, Section, Statement
from ballsbins.report.statement_facts import (
    Replaced,
    epsilon_of,
    facts_of,
    never_covered,
    replace_one,
    under_others,
)
from ballsbins.samplers import BallsAndBins, Deterministic, Poisson, Shuffle


def statement_of(card: Card) -> Statement:
    """The statement of a card; a claim that the accountant does not confirm is not put into words."""
    claim = card.claim
    if card.stated is not None:
        refuse_false(card)
    others = under_others(card.mechanism, card.delta) if math.isfinite(float(claim.upper)) else {}
    replaced = replace_one(card.mechanism, claim, card.delta)
    sections = (
        _section("Guarantee", _guarantee(card, claim)),
        _section("What is protected", _protected(card, claim, replaced)),
        _section("The run", _run(card, claim)),
        _section("Accounting", _accounting(card, claim)),
        _section("What is not covered", _not_covered(card)),
        _section("Under other samplers", _under_others(card, claim, others)),
        _section("To verify", _verify(card)),
    )
    return Statement(_headline(card, claim), sections, facts_of(card, claim, others, replaced))


def _section(title: str, items: tuple[Item, ...]) -> Section:
    """Paragraphs begin with a capital, unless it is a symbol such as ε."""
    return Section(
        title,
        tuple(
            Item(label, text[:1].upper() + text[1:] if text[:1].isascii() else text) for label, text in items
        ),
    )


def _at_most(bound: Bound) -> str:
    """ε in words; where only bounds are known, or the two ends differ visibly, both are said."""
    low, high = float(bound.lower), float(bound.upper)
    if not math.isfinite(high):
        return f"ε is at least {down(low)} (no protection: no upper bound is known)"
    if high == low or (bound.kind != "bounds" and high - low <= 2e-3 * high):
        return f"ε is at most {up(high)}"
    return f"ε is at least {down(low)} and at most {up(high)}"


def _between(bound: Bound) -> str:
    low, high = down(float(bound.lower), 5), up(float(bound.upper), 5)
    return low if low == high else f"between {low} and {high}"


def _headline(card: Card, claim: Bound) -> str:
    sure = "" if claim.confidence == 1.0 else f", with {confidence(claim.confidence)}"
    seed = "" if card.key_secret else " This holds only if the key is secret, and this key is a plain seed."
    early = ""
    if card.planned is not None and _stopped_early(card):
        early = (
            f" This is for the {card.mechanism.total_steps:,} of {card.planned.total_steps:,} steps that were taken, "
            "and holds if the decision to stop did not depend on the model or the data."
        )
    return (
        f"(ε, δ)-differential privacy for each training example: {_at_most(claim)} at δ = {stated(card.delta)}{sure}."
        f"{early}{seed}"
    )


def _stopped_early(card: Card) -> bool:
    return card.planned is not None and card.mechanism.total_steps < card.planned.total_steps


def _guarantee(card: Card, claim: Bound) -> tuple[Item, ...]:
    items = [
        Item(
            "Setting",
            "Central differential privacy: a trusted party holds the data, trains, and publishes the result.",
        ),
        Item("Claim", f"{_at_most(claim)} at δ = {stated(card.delta)}."),
    ]
    if claim.directions:
        parts = [f"{name}: {_at_most(part)}" for name, part in claim.directions.items()]
        items.append(
            Item(
                "Both directions",
                f"{'; '.join(parts)}. Remove is D(P‖Q), with P the run on the data and Q the run with the example "
                "zeroed out; add is D(Q‖P). The claim is the larger of the two.",
            )
        )
    items.append(
        Item(
            "Released",
            "The guarantee holds for the whole sequence of models: every iterate may be published, not only the "
            "last.",
        )
    )
    return tuple(items)


def _protected(card: Card, claim: Bound, replaced: Replaced) -> tuple[Item, ...]:
    unit = (
        "One training example. Somebody who contributed k examples has the weaker protection of a group of k."
    )
    n = "n" if card.num_examples is None else f"n = {card.num_examples:,}"
    adjacency = (
        f"Zero-out: two data sets are neighbours if one example of the first is replaced by an empty one, whose "
        f"gradient is 0, in the second. The number of examples {n} and the number of steps are public."
    )
    if card.floating_point is not None:
        adding = (
            "Nothing is stated for adding or removing an example: with one row fewer, the floating-point rounding of "
            "other examples changes."
        )
    elif card.mechanism.sampler.random_sizes:
        adding = (
            "The same numbers hold for adding or removing an example if the number of steps, the normaliser and the "
            "maximal batch size are constants that were not computed from the exact number of examples."
        )
    else:
        adding = (
            "Nothing is stated for adding or removing an example: it would shift the others between batches."
        )
    known = []
    if replaced.delta_at_twice < 1.0:
        sure = "" if claim.confidence == 1.0 else f" with {confidence(claim.confidence)}"
        known.append(f"ε at most {up(replaced.twice_epsilon)} at δ = {up(replaced.delta_at_twice, 3)}{sure}")
    if replaced.epsilon_at_delta is not None:
        known.append(f"ε at most {up(replaced.epsilon_at_delta)} at δ = {stated(card.delta)}")
    replacing = "Replacing an example by another is two such changes: " + (
        ", or ".join(known) or "nothing useful can be stated at this δ"
    )
    return (
        Item("Unit of privacy", unit),
        Item("Adjacency", adjacency),
        Item("Add or remove", adding),
        Item("Replace one", f"{replacing}."),
        Item(
            "Data accesses covered", "The gradients of the training examples, in the steps stated below only."
        ),
    )


def _run(card: Card, claim: Bound) -> tuple[Item, ...]:
    clip = "not stated; ε does not depend on it" if card.clip_norm is None else stated(card.clip_norm)
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
            return (
                "shuffle: in every epoch a new random order of the examples is cut into batches whose sizes differ "
                "by at most one."
            )
        case Deterministic():
            return (
                "deterministic: the examples in their given order, cut into batches whose sizes differ by at most "
                "one."
            )
    return f"{sampler.name}."


def _steps(card: Card) -> str:
    run, plan = card.mechanism, card.planned
    taken = length_of(run)
    if run.epochs > 1:
        taken += f", {count(run.total_steps, 'step')} in all"
    if plan is None or plan == run:
        return f"{taken}{', as planned' if plan is not None else ''}."
    planned = epsilon_of(plan, card.delta)
    full = "" if planned is None else f" (for which {_at_most(planned)} at δ = {stated(card.delta)})"
    if not _stopped_early(card):
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
        return f"{expected}, rounded up or down."
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
        batches, secret = "the batches are not random", "The key of the noise"
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


def _accounting(card: Card, claim: Bound) -> tuple[Item, ...]:
    low, high = float(claim.lower), float(claim.upper)
    error = f"The truth lies between {down(low, 10)} and {up(high, 10)}, numerical error included"
    if claim.confidence < 1.0:
        beta = near(1.0 - claim.confidence, 4)
        error += f"; the bounds fail with probability at most β = {beta} over the samples drawn"
    holds = (
        "The batches must be drawn as stated: the accounting is that of the sampler that draws them, not of a "
        "stand-in."
    )
    taken = " The noise is taken to be exactly Gaussian."
    floating_point: tuple[Item, ...] = ()
    if card.floating_point is not None:
        taken, floating_point = "", (Item("Floating point", card.floating_point.sentences()),)
    return (
        Item("Method", f"{_METHODS[claim.kind]} (method “{claim.method}”)."),
        Item("Error", f"{error}."),
        Item("Assumptions", f"{holds}{taken}"),
        *floating_point,
        Item("Composition", _composition(card)),
    )


def _composition(card: Card) -> str:
    alone = "The statement is for this run alone; other uses of the data add to it."
    if not card.mechanism.sampler.is_random:
        return alone
    # Two runs with the same bins are two epochs with fixed bins: σ = 1, T = 1000, δ = 1e-6 have ε 0.90 and not 0.24.
    which = "the same key" if card.run is None else f"the run id {card.run}"
    return (
        f"{alone} Another training with {which} has the same batches, and the two together cost far more than two "
        "runs with batches of their own."
    )


_METHODS: dict[Kind, str] = {
    "closed form": "the closed form of the Gaussian mechanism",
    "exact": "the privacy curve of the tightly dominating pair, evaluated as a contour integral",
    "bracket": (
        "privacy loss distributions: one curve from above (connect-the-dots) and one from below, each composed over "
        "the run by FFT"
    ),
    "sampled": "privacy loss sampled from the dominating pair, with confidence bounds",
    "bounds": "a proved lower and a proved upper bound; the truth between them is not known",
    "upper bound": "Rényi divergences, converted",
}


def _not_covered(card: Card) -> tuple[Item, ...]:
    general = "; ".join(never_covered(card))
    items = [Item("In general", f"{general}.")]
    if card.not_covered:
        items.append(Item("Of this run", f"{'; '.join(line.rstrip('.') for line in card.not_covered)}."))
    return tuple(items)


def _under_others(card: Card, claim: Bound, others: dict[str, Bound | None]) -> tuple[Item, ...]:
    if not others:
        return (
            Item("Comparison", "not made: with so little noise no way to draw batches protects anybody."),
        )
    at = f"at δ = {stated(card.delta)}"
    parts = []
    for name, bound in others.items():
        if bound is None:
            parts.append(f"for {name} batches the accountant has no answer")
        elif name == "shuffle":
            low, high = down(float(bound.lower), 5), up(float(bound.upper), 5)
            parts.append(
                f"if the batches had been shuffled, the ε to report would be at least {low} ({high} is proved to be "
                "enough)"
            )
        elif name == "Poisson":
            parts.append(f"with Poisson batches ε would be {_between(bound)}")
        else:
            high = up(float(bound.upper), 5)
            parts.append(f"with balls-and-bins batches drawn anew in every epoch ε would be at most {high}")
    shuffle, poisson = others.get("shuffle"), others.get("Poisson")
    meaning = ""
    if shuffle is not None and poisson is not None and float(shuffle.lower) > float(poisson.upper):
        meaning = (
            " Shuffled batches with the ε of Poisson, a common practice, would claim too little. Each number applies "
            "only to the sampler named."
        )
    own = isinstance(card.mechanism.sampler, BallsAndBins)
    if own and poisson is not None and float(claim.lower) > float(poisson.upper):
        meaning += " Here Poisson would be the more private."
    whole = " but no truncation" if card.mechanism.sampler.max_batch_size else ""
    text = f"With the same noise, steps and epochs{whole}, {at}: {'; '.join(parts)}.{meaning}"
    return (Item("Comparison", text),)


def _verify(card: Card) -> tuple[Item, ...]:
    versions = ", ".join(f"{name} {number}" for name, number in card.versions.items()) or "not recorded"
    return (
        Item("Software", f"{versions}."),
        Item(
            "How", "`ballsbins check card.json` recomputes the claim from the card of the run by two methods."
        ),
    )
