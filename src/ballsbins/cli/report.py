"""`ballsbins statement | check | citation`: what may be published about a run, and whether to believe it."""

from __future__ import annotations

import json as json_module
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from ballsbins._files import write_text
from ballsbins.cli import monte_carlo, options, render
from ballsbins.cli.options import SamplerName
from ballsbins.errors import InvalidInputError
from ballsbins.mechanism import Mechanism
from ballsbins.report import Card, citation
from ballsbins.report.words import how, stated
from ballsbins.samplers import Shuffle

_RUN, _CARD = "What is run", "A run that has a card"


class Format(StrEnum):
    """What `--format` may be."""

    MARKDOWN = "markdown"
    TEXT = "text"
    JSON = "json"


CardOption = Annotated[
    Path | None,
    typer.Option("--from", help="The card of a run, in place of all options above.", rich_help_panel=_CARD),
]
NoiseOption = Annotated[
    float | None,
    typer.Option(
        "--noise-multiplier",
        "-s",
        help="σ: standard deviation of the noise divided by the clip norm.",
        rich_help_panel=_RUN,
    ),
]
LastOption = Annotated[
    int | None,
    typer.Option(
        "--last-epoch-steps", help="Steps taken in the last epoch, if it stopped early.", rich_help_panel=_RUN
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("statement")(statement)
    app.command("check")(check)
    app.command("citation")(cite)


def statement(
    context: typer.Context,
    noise_multiplier: NoiseOption = None,
    delta: Annotated[
        float | None, typer.Option("--delta", "-d", help="δ, a probability in (0, 1).", rich_help_panel=_RUN)
    ] = None,
    steps: options.StepsOption = None,
    epochs: options.EpochsOption = 1,
    last_epoch_steps: LastOption = None,
    sampler: options.SamplerOption = SamplerName.BALLS_AND_BINS,
    fixed_bins: options.FixedBinsOption = False,
    clip_norm: Annotated[
        float | None,
        typer.Option(
            "--clip-norm", "-C", help="Largest norm of one example's gradient.", rich_help_panel=_RUN
        ),
    ] = None,
    examples: options.ExamplesOption = None,
    batch_size: options.BatchSizeOption = None,
    max_batch_size: options.MaxBatchSizeOption = None,
    card: CardOption = None,
    form: Annotated[
        Format | None, typer.Option("--format", help="Else by the ending of --out, else text.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File to write; else it is printed.")
    ] = None,
) -> None:
    """The privacy statement to publish. For example: ballsbins statement -s 0.5 -T 1000 -E 3 -d 1e-6"""
    if card is not None:
        run = _only_card(context, card)
    else:
        if delta is None:
            advice = "An ε means nothing without its δ; usually below 1 / number of examples."
            raise InvalidInputError("--delta", None, "given, or --from card.json", advice)
        mechanism = _mechanism(
            noise_multiplier, steps, epochs, last_epoch_steps, sampler, fixed_bins=fixed_bins, examples=examples,
            batch_size=batch_size, max_batch_size=max_batch_size,
        )  # fmt: skip
        run = Card(mechanism, delta, clip_norm=clip_norm, num_examples=examples)
    made = run.statement()
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


def cite(
    context: typer.Context,
    noise_multiplier: NoiseOption = None,
    steps: options.StepsOption = None,
    epochs: options.EpochsOption = 1,
    last_epoch_steps: LastOption = None,
    sampler: options.SamplerOption = SamplerName.BALLS_AND_BINS,
    fixed_bins: options.FixedBinsOption = False,
    examples: options.ExamplesOption = None,
    batch_size: options.BatchSizeOption = None,
    max_batch_size: options.MaxBatchSizeOption = None,
    card: CardOption = None,
) -> None:
    """BibTeX of the methods that a run used. For example: ballsbins citation -s 0.5 -T 1000 -E 3"""
    if card is not None:
        run = _only_card(context, card)
        return typer.echo(citation(run.mechanism, run.claim.kind), nl=False)
    mechanism = _mechanism(
        noise_multiplier, steps, epochs, last_epoch_steps, sampler, fixed_bins=fixed_bins, examples=examples,
        batch_size=batch_size, max_batch_size=max_batch_size,
    )  # fmt: skip
    return typer.echo(citation(mechanism, mechanism.curve.kind), nl=False)


def check(
    cards: Annotated[
        list[Path],
        typer.Argument(metavar="CARD...", help="The card of a run, or several.", show_default=False),
    ],
    samples: monte_carlo.SamplesOption = None,
    error_prob: monte_carlo.ErrorProbOption = None,
    seed: monte_carlo.SeedOption = None,
    workers: monte_carlo.WorkersOption = None,
    json: options.JsonOption = False,
) -> None:
    """Recompute the claim of a card by two methods. Exit code 0: they agree; 1: they do not; 2: it is no card.

    Several cards are checked one by one, and a warning says which of them are of the same run.
    """
    from ballsbins.report.check import check as recompute
    from ballsbins.report.check import shared_runs
    from ballsbins.report.second import usual_samples

    runs = [(str(path), Card.read(path)) for path in cards]
    findings = []
    for number, (name, run) in enumerate(runs):
        method = monte_carlo.method_from(
            monte_carlo.NAME,
            usual_samples(run.mechanism) if samples is None else samples,
            1e-6 if error_prob is None else error_prob,
            seed,
            workers,
            None,
        )
        assert not isinstance(method, str)
        found = recompute(run, method)
        findings.append(found)
        if not json:
            if len(runs) > 1:
                typer.echo(f"{'' if number == 0 else chr(10)}{name}")
            _show(found)
    shared = shared_runs(runs)
    if json:
        several = {"cards": [found.to_dict() for found in findings], "same_run": shared}
        render.print_json(findings[0].to_dict() if len(runs) == 1 else several)
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
    run, claim, out = found.card, found.card.claim, render.console()
    out.print(render.describe(run.mechanism), style="dim")
    out.print()
    at = render.up(float(claim.upper))
    rows = [(f"claimed: ε at δ = {stated(run.delta)}", "", render.up(float(claim.upper)), "")]
    if found.epsilon is not None:
        rows.append(("recomputed: ε", *_ends(found.epsilon), found.verdict))
    if found.delta is not None:
        rows.append((f"recomputed: δ at ε = {at}", *_ends(found.delta), ""))
    if found.second is not None:
        rows.append((f"second method: δ at ε = {at}", *_ends(found.second), found.second_verdict))
    out.print(render.plain_table(("", "at least", "at most", ""), rows))
    out.print()
    parts = {
        "claimed by": claim,
        "recomputed by": found.epsilon or found.delta,
        "second method": found.second,
    }
    for who, bound in parts.items():
        why = " is known for shuffled batches" if isinstance(run.mechanism.sampler, Shuffle) else ""
        method = f"none{why}" if bound is None else how(bound)
        out.print(f"{who}: {method}", style="dim", markup=False)  # the card's words are no instructions
    if not found.agrees:
        return
    out.print()
    out.print(f"[bold]AGREE: ε is at most {render.up(float(claim.upper))} at δ = {stated(run.delta)}[/bold]")
    if found.delta is None and found.second is None:
        out.print("An ε so large protects nobody; there is no δ to compare.")
    if found.epsilon is not None and float(found.epsilon.upper) < 0.99 * float(claim.upper):
        out.print(f"The claim is larger than need be: ε ≤ {render.up(float(found.epsilon.upper))} is proved.")
    if not run.key_secret:
        out.print("But the key of this run is a plain seed: who guesses it voids the guarantee.")
    out.print("Checked are the numbers of the card; whether the run was as it says, no computation can tell.")


def _ends(bound: Any) -> tuple[str, str]:
    return render.down(float(bound.lower)), render.up(float(bound.upper))


def _only_card(context: typer.Context, card: Path) -> Card:
    """Read the card; an option that would contradict it is an error."""
    options.refuse_beside_cards(context, "card", "form", "out")
    return Card.read(card)


def _mechanism(
    noise_multiplier: float | None,
    steps: int | None,
    epochs: int,
    last_epoch_steps: int | None,
    sampler: SamplerName,
    *,
    fixed_bins: bool,
    examples: int | None,
    batch_size: int | None,
    max_batch_size: int | None,
) -> Mechanism:
    if noise_multiplier is None:
        advice = "State what is run: -s σ -T steps -E epochs, or name the card of a run."
        raise InvalidInputError("--noise-multiplier", None, "given, or --from card.json", advice)
    whole, _ = options.mechanism_from(
        sampler, noise_multiplier, steps, epochs, fixed_bins=fixed_bins, examples=examples, batch_size=batch_size,
        max_batch_size=max_batch_size,
    )  # fmt: skip
    return Mechanism(whole.sampler, whole.noise_multiplier, whole.epochs, last_epoch_steps)
