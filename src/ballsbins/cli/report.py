"""`ballsbins statement | check | citation | audit-run`: what to publish of a run, and whether to believe it."""

from __future__ import annotations

import json as json_module
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from ballsbins._files import write_text
from ballsbins.bound import Bound
from ballsbins.cli import output
from ballsbins.cli.options import (
    RUN,
    Batches,
    DeltaOption,
    JsonOption,
    OptionalNoiseOption,
    RunUnlessCard,
    Sampling,
    Without,
    refuse_others,
    with_groups,
)
from ballsbins.comparison import PoissonClaim, poisson_claim
from ballsbins.errors import InvalidInputError
from ballsbins.mechanism import Mechanism
from ballsbins.report import Card, citation
from ballsbins.report.numbers import describe, down, how, stated, up
from ballsbins.samplers import Poisson, Shuffle

_CARD = "A run that has a card"
CARD_STATES = "The card states what was run."


class Format(StrEnum):
    """What `--format` may be."""

    MARKDOWN = "markdown"
    TEXT = "text"
    JSON = "json"


CardOption = Annotated[
    Path | None,
    typer.Option("--from", help="The card of a run, in place of all options above.", rich_help_panel=_CARD),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("statement")(statement)
    app.command("check")(check)
    app.command("citation")(cite)
    app.command("audit-run")(claim_of_poisson)


@with_groups
def statement(
    context: typer.Context,
    run: RunUnlessCard,
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
    form: Annotated[
        Format | None, typer.Option("--format", help="By default from the ending of --out, otherwise text.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File to write; printed if left out.")
    ] = None,
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
    made = stated_run.statement()
    endings = {".md": Format.MARKDOWN, ".json": Format.JSON}
    match form or endings.get("" if out is None else out.suffix.lower(), Format.TEXT):
        case Format.MARKDOWN:
            text = made.markdown()
        case Format.TEXT:
            text = made.text()
        case Format.JSON:
            text = json_module.dumps(made.to_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    if out is None:
        return typer.echo(text, nl=False)
    write_text(out, text)
    return typer.echo(f"Wrote {out}: {made.headline}")


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
        typer.Argument(metavar="CARD...", help="The card of a run, or several.", show_default=False),
    ],
    sampling: Annotated[Sampling, Without("grid", "draw", "confidence_bound", "orders", "state")],
    json: JsonOption = False,
) -> None:
    """Recompute the claim of a card by two methods. Exit code 0: they agree; 1: they do not; 2: not a valid card.

    Several cards are checked one by one, and a warning says which of them are of the same run.
    """
    from ballsbins.report.check import check as recompute
    from ballsbins.report.check import shared_runs, usual_samples

    runs = [(str(path), Card.read(path)) for path in cards]
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
        out.print(f"{who}: {method}", style="dim", markup=False)  # what a card says is text, not markup
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
    refuse_others(context, "card", "form", "out", beside="--from", advice=CARD_STATES)
    return Card.read(card)


@with_groups
def claim_of_poisson(
    batches: Annotated[Batches, Without("epochs", "sampler", "fixed_bins")],
    delta: DeltaOption,
    opacus_checkpoint: Annotated[
        Path | None,
        typer.Option(
            "--opacus-checkpoint",
            help="Read σ, sample rate and steps from a file of PrivacyEngine.save_checkpoint. No code in it is run.",
            rich_help_panel=RUN,
        ),
    ] = None,
    noise_multiplier: OptionalNoiseOption = None,
    epochs: Annotated[
        int | None,
        typer.Option("--epochs", "-E", help="Passes over the data; 1 if left out.", rich_help_panel=RUN),
    ] = None,
    json: JsonOption = False,
) -> None:
    """What is true of a run reported as Poisson?

    For example: ballsbins audit-run -s 0.5 -T 10000 -d 1e-6

    Opacus accounts for every run as if its batches were Poisson samples, also with poisson_sampling=False.
    This says what that claims, and what is true if the batches were shuffled.
    """
    if opacus_checkpoint is not None:
        if noise_multiplier is not None or epochs is not None:
            name, value = (
                ("--noise-multiplier", noise_multiplier)
                if noise_multiplier is not None
                else ("--epochs", epochs)
            )
            advice = "The checkpoint says it; only --steps may be stated beside it."
            raise InvalidInputError(name, value, "left out with --opacus-checkpoint", advice)
        return _of_checkpoint(opacus_checkpoint, batches.steps, delta, json=json)
    if noise_multiplier is None:
        advice = "Give --noise-multiplier, --steps and --epochs, or --opacus-checkpoint FILE."
        raise InvalidInputError("--noise-multiplier", None, "given", advice)
    total, derived = batches.count()
    run = Mechanism(Poisson(total), noise_multiplier, 1 if epochs is None else epochs)
    return _show_claim(poisson_claim(run, delta), derived, json=json)


def _of_checkpoint(path: Path, steps: int | None, delta: float, *, json: bool) -> None:
    from ballsbins.training.opacus_history import read_history, steps_an_epoch

    history = read_history(path)
    if history.mechanism is not None:
        return _show_ours(history.mechanism, delta, json=json)
    total = steps_an_epoch(history.sample_rate) if steps is None else steps
    run = Mechanism(Poisson(total), history.noise_multiplier).after(history.steps)
    source = f"from the history of an Opacus {history.accountant!r} accountant"
    return _show_claim(poisson_claim(run, delta), source, json=json)


def _show_ours(mechanism: Mechanism, delta: float, *, json: bool) -> None:
    """A run whose accountant knew the sampler needs no guess."""
    bound = mechanism.epsilon(delta)
    if json:
        return output.print_json(
            {"mechanism": mechanism.to_dict(), "delta": delta, "epsilon": bound.to_dict()}
        )
    out = output.console()
    out.print(describe(mechanism), style="dim")
    return out.print(
        f"This run was batched and accounted for by ballsbins: [bold]ε ≤ {up(float(bound.upper))}[/bold] "
        f"at δ = {stated(delta)} holds."
    )


def _show_claim(claim: PoissonClaim, source: str | None, *, json: bool) -> None:
    if json:
        return output.print_json(claim.to_dict())
    out = output.console()
    source = None if source is None else escape(source)
    out.print(describe(claim.run, source).removeprefix("Poisson, "), style="dim")
    out.print()
    rows = [
        ("Poisson samples (what was reported)", _range(claim.poisson)),
        ("shuffled, one full pass per epoch", _range(claim.shuffle)),
        ("in a fixed order", _range(claim.deterministic)),
        ("balls-and-bins, for comparison", _range(claim.balls_and_bins)),
    ]
    out.print(output.plain_table(["if the batches were", f"ε at δ = {stated(claim.delta)}"], rows))
    out.print()
    for sentence in poisson_sentences(claim):
        out.print(sentence)
    return None


def _range(bound: Bound) -> str:
    """At least … at most, or at most alone where both agree."""
    lower, upper = float(bound.lower), float(bound.upper)
    if upper - lower <= 2e-6 * upper:
        return f"at most {up(upper)}"
    return f"at least {down(lower)}, at most {up(upper)}"


def poisson_sentences(claim: PoissonClaim) -> list[str]:
    """What follows, in words."""
    most_claimed, least = up(float(claim.poisson.upper), 4), down(float(claim.shuffle.lower), 4)
    most = up(float(claim.deterministic.upper), 4)
    said = [
        f"Poisson accounting claims ε ≤ {most_claimed}. That is true only if every batch was drawn by Poisson "
        "sampling (in Opacus: poisson_sampling=True, which is its default, and its own loader)."
    ]
    if claim.false_if_shuffled:
        times = f", {down(claim.factor, 2)} times the claim" if claim.factor >= 1.05 else ""
        said.append(
            f"If the batches were shuffled, the claim is false: ε is at least {least}{times}. What can be claimed "
            f"without training again is ε ≤ {most}."
        )
    else:
        said.append(
            "If the batches were shuffled, nobody has proved the claim, nor disproved it here. What can be claimed "
            f"without training again is ε ≤ {most}."
        )
    bins = float(claim.balls_and_bins.upper)
    compared = "below the claim, and" if bins <= float(claim.poisson.lower) else "proved, and"
    said.append(
        f"Balls-and-bins batches with the same noise have ε ≤ {up(bins, 4)}: {compared} as easy as "
        "shuffling (ballsbins.training.torch.make_private). All of this for zero-out adjacency."
    )
    return said
