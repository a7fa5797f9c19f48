"""`ballsbins statement | total | check | citation`: what to publish of a run, and whether to believe it."""

from __future__ import annotations

import json as json_module
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from ballsbins._files import write_text
from ballsbins._progress import telling
from ballsbins.cli import output
from ballsbins.cli.certify import proved_of
from ballsbins.cli.options import (
    RUN,
    JsonOption,
    RunUnlessCard,
    Sampling,
    Without,
    refuse_others,
    with_groups,
)
from ballsbins.errors import InvalidInputError
from ballsbins.report import Card, Statement, citation, total_statement
from ballsbins.report.card_parts import ABOUT
from ballsbins.report.numbers import describe, down, how, stated, too_large_delta, up
from ballsbins.samplers import Shuffle

_CARD = "A run that has a card"
CARD_STATES = "The card states what was run."


class Format(StrEnum):
    """What `--format` may be."""

    MARKDOWN = "markdown"
    TEXT = "text"
    SENTENCE = "sentence"
    PLAIN = "plain"
    JSON = "json"


FormatOption = Annotated[
    Format | None,
    typer.Option(
        "--format",
        metavar="NAME",
        help="text or markdown (the whole, for an appendix), sentence (for the body of a paper), plain (for "
        "everybody) or json. By default from the ending of --out, otherwise text.",
    ),
]
OutOption = Annotated[Path | None, typer.Option("--out", "-o", help="File to write; printed if left out.")]


CardOption = Annotated[
    Path | None,
    typer.Option("--from", help="The card of a run, in place of all options above.", rich_help_panel=_CARD),
]


_ABOUT = "What else to publish (optional)"


@dataclass(frozen=True, kw_only=True)
class About:
    """What a statement may say beyond the claim."""

    dataset: Annotated[
        str | None, typer.Option("--dataset", help="Name of the data set.", rich_help_panel=_ABOUT)
    ] = None
    date: Annotated[str | None, typer.Option("--date", help="Date of the run.", rich_help_panel=_ABOUT)] = (
        None
    )
    contact: Annotated[
        str | None, typer.Option("--contact", help="Person or address to contact.", rich_help_panel=_ABOUT)
    ] = None
    commit: Annotated[
        str | None, typer.Option("--commit", help="Commit of the code that ran.", rich_help_panel=_ABOUT)
    ] = None
    link: Annotated[
        str | None, typer.Option("--link", help="Where to read more.", rich_help_panel=_ABOUT)
    ] = None
    key_custody: Annotated[
        str | None,
        typer.Option(
            "--key-custody", help="Who holds the key, and when it is deleted.", rich_help_panel=_ABOUT
        ),
    ] = None
    certificate: Annotated[
        Path | None,
        typer.Option("--certificate", help="What `certify` proved of this run.", rich_help_panel=_ABOUT),
    ] = None
    metric: Annotated[
        list[str] | None,
        typer.Option(
            "--metric", help="NAME=NUMBER, how good the model is; may be repeated.", rich_help_panel=_ABOUT
        ),
    ] = None

    def added(self, card: Card) -> Card:
        """The card with what was given."""
        said = {name: text for name in ABOUT if (text := getattr(self, name)) is not None}
        if self.certificate is not None:
            said["certificate"] = proved_of(self.certificate, card.mechanism, card.delta)
        metrics = dict(_metric(text) for text in self.metric or [])
        if not said and not metrics:
            return card
        return replace(card, about={**card.about, **said}, metrics={**card.metrics, **metrics})


def _metric(text: str) -> tuple[str, float]:
    name, _, number = text.partition("=")
    try:
        return name.strip(), float(number)
    except ValueError:
        advice = "Write for example --metric 'test AUC=0.78'."
        raise InvalidInputError("--metric", text, "a name, = and a number", advice) from None


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("statement")(statement)
    app.command("total")(total)
    app.command("check")(check)
    app.command("citation")(cite)


@with_groups
def statement(
    context: typer.Context,
    run: RunUnlessCard,
    about: About,
    delta: Annotated[
        float | None, typer.Option("--delta", "-d", help="δ, a probability in (0, 1).", rich_help_panel=RUN)
    ] = None,
    clip_norm: Annotated[
        float | None,
        typer.Option(
            "--clip-norm", "-C", help="Largest norm of one example's gradient.", rich_help_panel=RUN
        ),
    ] = None,
    card: CardOption = None,
    form: FormatOption = None,
    out: OutOption = None,
) -> None:
    """The privacy statement to publish.

    For example: ballsbins statement --sampler balls-and-bins -s 0.5 -T 1000 -E 3 -d 1e-6
    """
    if card is not None:
        stated_run = _only_card(context, card)
    else:
        if delta is None:
            advice = "An ε means nothing without its δ; usually below 1 / number of examples."
            raise InvalidInputError("--delta", None, "given, or --from card.json", advice)
        stated_run = Card(run.mechanism(), delta, clip_norm=clip_norm, num_examples=run.examples)
        output.tell_if_shuffled(run.sampler, stated_run.mechanism, delta=[delta])
    with telling(lambda: "accounting"):
        made = about.added(stated_run).statement()
    return _publish(made, form, out)


def _publish(made: Statement, form: Format | None, out: Path | None) -> None:
    """Print a statement, or write it to a file."""
    endings = {".md": Format.MARKDOWN, ".json": Format.JSON}
    match form or endings.get("" if out is None else out.suffix.lower(), Format.TEXT):
        case Format.MARKDOWN:
            text = made.markdown()
        case Format.TEXT:
            text = made.text()
        case Format.SENTENCE:
            text = f"{made.sentence}\n"
        case Format.PLAIN:
            text = f"{made.plain}\n"
        case Format.JSON:
            text = json_module.dumps(made.to_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    if out is None:
        return typer.echo(text, nl=False)
    write_text(out, text)
    return typer.echo(f"Wrote {out}: {made.headline}")


def total(
    cards: Annotated[
        list[Path], typer.Argument(metavar="CARD", help="The cards of all runs.", show_default=False)
    ],
    delta: Annotated[
        float | None, typer.Option("--delta", "-d", help="δ of the total, if the cards' δ differ.")
    ] = None,
    form: FormatOption = None,
    out: OutOption = None,
) -> None:
    """What do several runs on one data set cost together, tuning runs included?

    For example: ballsbins total tuning/card.json final/card.json
    """
    _publish(total_statement([(str(path), Card.read(path)) for path in cards], delta), form, out)


@with_groups
def cite(context: typer.Context, run: RunUnlessCard, card: CardOption = None) -> None:
    """BibTeX of the methods that a run used.

    For example: ballsbins citation --sampler poisson -s 0.5 -T 1000 -E 3
    """
    if card is not None:
        read = _only_card(context, card)
        return typer.echo(citation(read.mechanism, read.claim.kind), nl=False)
    mechanism = run.mechanism()
    return typer.echo(citation(mechanism, mechanism.curve.kind), nl=False)


@with_groups
def check(
    cards: Annotated[
        list[Path],
        typer.Argument(metavar="CARD", help="The card of a run, or several.", show_default=False),
    ],
    sampling: Annotated[Sampling, Without("grid", "draw", "confidence_bound", "orders", "state")],
    certificate: Annotated[
        Path | None, typer.Option("--certificate", help="What `certify` proved of the run of a single card.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Recompute the claim of a card by two methods. Exit code 0: they agree; 1: they do not; 2: not a valid card.

    Several cards are checked one by one, and a warning says which of them are of the same run.
    """
    from ballsbins.report.check import check as recompute
    from ballsbins.report.check import shared_runs, usual_samples

    runs = [(str(path), Card.read(path)) for path in cards]
    if certificate is not None and len(runs) > 1:
        advice = "A certificate is for one run: check its card alone."
        raise InvalidInputError("--certificate", str(certificate), "left out with several cards", advice)
    proof = None if certificate is None else proved_of(certificate, runs[0][1].mechanism, runs[0][1].delta)
    findings = []
    for number, (name, run) in enumerate(runs):
        samples = usual_samples(run.mechanism) if sampling.samples is None else sampling.samples
        rare = 1e-6 if sampling.error_prob is None else sampling.error_prob
        found = recompute(run, replace(sampling, samples=samples, error_prob=rare).monte_carlo())
        findings.append(found)
        if not json:
            if len(runs) > 1:
                typer.echo(f"{'' if number == 0 else chr(10)}{name}")
            _show(found)
    if proof is not None and not json:
        typer.echo(f"Certificate: {proof}")
    shared = shared_runs(runs)
    if json:
        several = {"cards": [found.to_dict() for found in findings], "same_run": shared}
        output.print_json(findings[0].to_dict() if len(runs) == 1 else several)
    for sentence in shared:
        typer.echo(f"ballsbins: WARNING: {sentence}.", err=True)
    for (name, _), found in zip(runs, findings, strict=True):
        for finding in found.findings:
            where = "" if len(runs) == 1 else f" {name}:"
            typer.echo(f"ballsbins: DISAGREE:{where} {finding}.", err=True)
    if not all(found.agrees for found in findings):
        raise typer.Exit(1)


def _show(found: Any) -> None:
    """The claim, what the accountant finds, what the second method finds, and what follows."""
    run, claim, out = found.card, found.card.claim, output.console()
    out.print(describe(run.mechanism), style="dim")
    if (warning := too_large_delta(run.delta, run.num_examples)) is not None:
        out.print(warning, style="yellow")
    out.print()
    at = up(float(claim.upper))
    rows = [(f"claimed: ε at δ = {stated(run.delta)}", "", up(float(claim.upper)), "")]
    if found.epsilon is not None:
        rows.append(("recomputed: ε", *_ends(found.epsilon), found.verdict))
    if found.delta is not None:
        rows.append((f"recomputed: δ at ε = {at}", *_ends(found.delta), ""))
    if found.second is not None:
        rows.append((f"second method: δ at ε = {at}", *_ends(found.second), found.second_verdict))
    out.print(output.plain_table(("", "at least", "at most", ""), rows))
    out.print()
    parts = {
        "claimed by": claim,
        "recomputed by": found.epsilon or found.delta,
        "second method": found.second,
    }
    for who, bound in parts.items():
        why = " is known for shuffled batches" if isinstance(run.mechanism.sampler, Shuffle) else ""
        method = f"none{why}" if bound is None else how(bound)
        out.print(f"{who}: {method}", style="dim", markup=False)  # the card's content is text, not markup
    if not found.agrees:
        return
    out.print()
    out.print(f"[bold]AGREE: ε is at most {up(float(claim.upper))} at δ = {stated(run.delta)}[/bold]")
    if found.delta is None and found.second is None:
        out.print("An ε so large protects nobody; there is no δ to compare.")
    if found.epsilon is not None and float(found.epsilon.upper) < 0.99 * float(claim.upper):
        out.print(f"The claim is larger than need be: ε ≤ {up(float(found.epsilon.upper))} is proved.")
    if not run.key_secret:
        out.print("But the key of this run is a plain seed: whoever guesses it voids the guarantee.")
    out.print("This checks the numbers of the card, not whether the run happened as it says.")


def _ends(bound: Any) -> tuple[str, str]:
    return down(float(bound.lower)), up(float(bound.upper))


def _only_card(context: typer.Context, card: Path) -> Card:
    """Read the card; an option that would contradict it is an error."""
    refuse_others(context, "card", "form", "out", *ABOUT, "metric", beside="--from", advice=CARD_STATES)
    return Card.read(card)
