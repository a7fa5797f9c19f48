"""The statement of several runs on one data set: what all of them cost together."""

from __future__ import annotations

from collections.abc import Sequence

from ballsbins.errors import InvalidInputError
from ballsbins.report.card import Card
from ballsbins.report.numbers import count, describe, stated, too_large_delta, up
from ballsbins.report.statement import Item, Section, Statement


def total_statement(cards: Sequence[tuple[str, Card]], delta: float | None = None) -> Statement:
    """Express in words what several runs on the same data, including tuning runs, cost together.

    Args:
        cards: the cards of all runs, each with a name for it, such as its path.
        delta: δ of the total, strictly between 0 and 1; None if all cards have the same δ.

    Returns:
        The statement of all runs together.

    Raises:
        InvalidInputError: there is no card, two cards are of the same run, the number of examples differs, or the
            cards do not share one δ and none is given.

    Example:
        >>> from ballsbins import BallsAndBins, Mechanism
        >>> from ballsbins.report import Card, total_statement
        >>> tuning = Card(Mechanism(BallsAndBins(steps=100), noise_multiplier=2.0), delta=1e-6)
        >>> final = Card(Mechanism(BallsAndBins(steps=1000), noise_multiplier=1.0, epochs=3), delta=1e-6)
        >>> print(total_statement([("tuning", tuning), ("final", final)]).headline)
        2 runs together are (ε, δ)-differentially private for each training example: ε is at most ... at δ = 1e-6.
    """
    # imported here because they need the accountant, which takes a while to import
    from ballsbins.report.plain_words import in_plain_words
    from ballsbins.report.statement_facts import at_most
    from ballsbins.total import Total

    chosen, examples = _checked(cards, delta)
    total = Total(card.mechanism for _, card in cards)
    bound = total.epsilon(chosen)
    at = f"{at_most(bound)} at δ = {stated(chosen)}"
    warning = too_large_delta(chosen, examples)
    runs = count(len(cards), "run")
    headline = f"{runs} together are (ε, δ)-differentially private for each training example: {at}."
    listed = tuple(Item(name, _one(card)) for name, card in cards)
    nameless = [name for name, card in cards if card.run is None]
    unknown = "" if not nameless else f" No run id is recorded for {', '.join(nameless)}."
    sections = (
        Section("The runs", listed),
        Section(
            "What is assumed",
            (
                Item(
                    "Independence",
                    "Every run drew batches and noise of its own. That run ids differ is all that can be checked of "
                    f"this, and it was checked.{unknown}",
                ),
                Item(
                    "Completeness",
                    "These are all runs on the data that depended on it, those that chose hyperparameters included. "
                    "A run that is left out is not covered.",
                ),
                Item(
                    "Choice",
                    "The noise, the batches and the length of every run did not depend on what earlier runs showed; "
                    "other settings may have.",
                ),
                Item("Adjacency", "Zero-out, for one example of the data that all runs share."),
            ),
        ),
        Section(
            "Accounting",
            (Item("Method", f"Composition of the runs' privacy curves (method “{bound.method}”)."),),
        ),
    )
    claim = bound.to_dict()
    facts = {"delta": chosen, "claim": claim, "cards": {name: card.to_dict() for name, card in cards}}
    sentence = (
        f"All {runs} on these data together, tuning included, are (ε, δ)-differentially private for each example "
        f"under zero-out adjacency: {at}."
    )
    plain = in_plain_words(total, chosen, examples)
    return Statement(
        headline if warning is None else f"{headline} {warning}", sentence, plain, sections, facts
    )


def _one(card: Card) -> str:
    run = "" if card.run is None else f" Run {card.run}."
    return f"{describe(card.mechanism)}; alone ε ≤ {up(float(card.claim.upper))} at δ = {stated(card.delta)}.{run}"


def _checked(cards: Sequence[tuple[str, Card]], delta: float | None) -> tuple[float, int | None]:
    """δ of the total, and the number of examples if it is known; cards that cannot be of one data set are refused."""
    from ballsbins.report.check import shared_runs

    if not cards:
        raise InvalidInputError("cards", 0, "the cards of one run or more", "Name the cards of all runs.")
    same = shared_runs(cards)
    if same:
        names = [name for name, _ in cards]
        advice = f"{'. '.join(same)}. List each run once."
        raise InvalidInputError("the list of cards", names, "of different runs", advice)
    sizes = {card.num_examples for _, card in cards} - {None}
    if len(sizes) > 1:
        advice = "A total is of runs on one data set; ask for the total of each data set."
        shown = sorted(size for size in sizes if size is not None)
        raise InvalidInputError("the numbers of examples of the cards", shown, "one and the same", advice)
    stated_deltas = {card.delta for _, card in cards}
    if delta is None and len(stated_deltas) > 1:
        advice = "State the δ at which the total is meant."
        raise InvalidInputError("delta", None, "given where the cards' δ differ", advice)
    return delta if delta is not None else stated_deltas.pop(), next(iter(sizes), None)
