"""The privacy statement in words: what section 5.3 of "How to DP-fy ML" asks authors to report, item by item.

Every sentence says only what is known. Facts that a card does not state are written as a condition ("must be"),
values that are only bounded as "at least … and at most …", and probable values with their probability of failure.
"""

from __future__ import annotations

import math

from ballsbins.accounting.curve import Kind
from ballsbins.bound import Bound
from ballsbins.report.card import Card
from ballsbins.report.card_parts import ABOUT, is_line
from ballsbins.report.check import refuse_false
from ballsbins.report.numbers import (
    batches_of,
    confidence,
    count,
    down,
    length_of,
    near,
    stated,
    too_large_delta,
    up,
)
from ballsbins.report.plain_words import in_plain_words
from ballsbins.report.statement import Item, Section, Statement
from ballsbins.report.statement_facts import (
    Replaced,
    at_most,
    composition,
    epsilon_of,
    facts_of,
    never_covered,
    replace_one,
    run_items,
    stopped_early,
    under_others,
)
from ballsbins.samplers import BallsAndBins


def statement_of(card: Card) -> Statement:
    """The statement of a card. A claim that the accountant does not confirm is refused."""
    claim = card.claim
    if card.stated is not None:
        refuse_false(card)
    others = under_others(card.mechanism, card.delta) if math.isfinite(float(claim.upper)) else {}
    replaced = replace_one(card.mechanism, claim, card.delta)
    sections = (
        _section("Guarantee", _guarantee(card, claim)),
        _section("What is protected", _protected(card, claim, replaced)),
        _section("The run", run_items(card, claim)),
        _section("Accounting", _accounting(card, claim)),
        _section("What is not covered", _not_covered(card)),
        *_about(card),
        _section("Under other samplers", _under_others(card, claim, others)),
        _section("To verify", _verify(card)),
    )
    plain = in_plain_words(card.mechanism, card.delta, card.num_examples)
    facts = facts_of(card, claim, others, replaced)
    return Statement(_headline(card, claim), _sentence(card, claim), plain, sections, facts)


def _section(title: str, items: tuple[Item, ...]) -> Section:
    """Paragraphs begin with a capital letter, unless they begin with a symbol such as ε."""
    return Section(
        title,
        tuple(
            Item(label, text[:1].upper() + text[1:] if text[:1].isascii() else text) for label, text in items
        ),
    )


def _between(bound: Bound) -> str:
    low, high = down(float(bound.lower), 5), up(float(bound.upper), 5)
    return low if low == high else f"between {low} and {high}"


def _headline(card: Card, claim: Bound) -> str:
    sure = "" if claim.confidence == 1.0 else f", with {confidence(claim.confidence)}"
    seed = "" if card.key_secret else " This holds only if the key is secret, and this key is a plain seed."
    early = ""
    if card.planned is not None and stopped_early(card):
        planned = epsilon_of(card.planned, card.delta)
        full = "" if planned is None else f"; otherwise report the plan, {at_most(planned)}"
        early = (
            f" This is for the {card.mechanism.total_steps:,} of {card.planned.total_steps:,} steps that were taken, "
            f"and may be claimed if the decision to stop did not depend on the model or the data{full}."
        )
    warning = too_large_delta(card.delta, card.num_examples)
    return (
        f"(ε, δ)-differential privacy for each training example: {at_most(claim)} at δ = {stated(card.delta)}{sure}."
        f"{early}{seed}{'' if warning is None else f' {warning}'}"
    )


def _sentence(card: Card, claim: Bound) -> str:
    """One sentence for the body of a paper."""
    run = card.mechanism
    n = "" if card.num_examples is None else f"{count(card.num_examples, 'example')}, "
    clip = "" if card.clip_norm is None else f", clip norm {stated(card.clip_norm)}"
    sure = "" if claim.confidence == 1.0 else f", with {confidence(claim.confidence)}"
    return (
        f"The model was trained by DP-SGD with {batches_of(run)} ({n}{length_of(run)}, noise multiplier "
        f"{run.noise_multiplier:.6g}{clip}) and is (ε, δ)-differentially private for each example under zero-out "
        f"adjacency: {at_most(claim)} at δ = {stated(card.delta)}{sure}, all iterates released."
    )


def _guarantee(card: Card, claim: Bound) -> tuple[Item, ...]:
    items = [
        Item(
            "Setting",
            "Central differential privacy: a trusted party holds the data, trains, and publishes the result.",
        ),
        Item("Claim", f"{at_most(claim)} at δ = {stated(card.delta)}."),
    ]
    if claim.directions:
        parts = [f"{name}: {at_most(part)}" for name, part in claim.directions.items()]
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
    row = card.details.get("privacy_unit")  # what a row of the data is, if the trainer knows it
    named = f": a {row}" if is_line(row) else ""
    unit = (
        f"One training example{named}. Somebody who contributed k examples has the weaker protection of a group "
        "of k."
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
        Item("Composition", composition(card)),
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
    "proved": "ball arithmetic with a proved bound for everything that is left out",
}


def _about(card: Card) -> tuple[Section, ...]:
    """Data set, date, contact and similar facts, and the model's quality; empty if the card has none of them."""
    items = [Item(ABOUT[name], f"{text.rstrip('.')}.") for name, text in card.about.items()]
    plain = (str, int, float, bool)
    numbers = [
        f"{name} = {value:.6g}" if isinstance(value, float) else f"{name} = {value}"
        for name, value in card.metrics.items()
        if isinstance(value, plain)
    ]
    if numbers:
        items.append(
            Item("Metrics", f"{'; '.join(numbers)}. They are as reported, and no part of the guarantee.")
        )
    return (Section("About this run", tuple(items)),) if items else ()


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
