"""`ballsbins audit-run`: I trained with shuffled batches and reported Poisson; what is true?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from ballsbins.bound import Bound
from ballsbins.cli import options, render
from ballsbins.cli.privacy import DeltaOption
from ballsbins.errors import InvalidInputError
from ballsbins.mechanism import Mechanism
from ballsbins.report.audit_run import Findings, audit_run
from ballsbins.report.words import stated
from ballsbins.samplers import Poisson


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("audit-run")(command)


def command(
    delta: DeltaOption,
    opacus_checkpoint: Annotated[
        Path | None,
        typer.Option(
            "--opacus-checkpoint",
            help="Read σ, sample rate and steps from a file of PrivacyEngine.save_checkpoint. No code in it is run.",
            rich_help_panel="What is run",
        ),
    ] = None,
    noise_multiplier: Annotated[
        float | None,
        typer.Option(
            "--noise-multiplier",
            "-s",
            help="σ: standard deviation of the noise divided by the clip norm.",
            rich_help_panel="What is run",
        ),
    ] = None,
    steps: options.StepsOption = None,
    epochs: Annotated[
        int | None,
        typer.Option(
            "--epochs", "-E", help="Passes over the data; 1 if left out.", rich_help_panel="What is run"
        ),
    ] = None,
    examples: options.ExamplesOption = None,
    batch_size: options.BatchSizeOption = None,
    json: options.JsonOption = False,
) -> None:
    """What is known of a run that was reported as Poisson? For example: ballsbins audit-run -s 0.5 -T 10000 -d 1e-6

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
        return _of_checkpoint(opacus_checkpoint, steps, delta, json=json)
    if noise_multiplier is None:
        advice = "Give --noise-multiplier, --steps and --epochs, or --opacus-checkpoint FILE."
        raise InvalidInputError("--noise-multiplier", None, "given", advice)
    count, derived = options.steps_from(steps, examples, batch_size)
    return _show(
        audit_run(noise_multiplier, count, 1 if epochs is None else epochs, delta), derived, json=json
    )


def _of_checkpoint(path: Path, steps: int | None, delta: float, *, json: bool) -> None:
    from ballsbins.training.opacus_history import read_history, steps_an_epoch

    history = read_history(path)
    if history.mechanism is not None:
        return _show_ours(history.mechanism, delta, json=json)
    count = steps_an_epoch(history.sample_rate) if steps is None else steps
    run = Mechanism(Poisson(count), history.noise_multiplier).after(history.steps)
    findings = audit_run(run.noise_multiplier, count, run.epochs, delta, run.last_epoch_steps)
    return _show(findings, f"from the history of an Opacus {history.accountant!r} accountant", json=json)


def _show_ours(mechanism: Mechanism, delta: float, *, json: bool) -> None:
    """A run whose accountant knew the sampler needs no guess."""
    bound = mechanism.epsilon(delta)
    if json:
        return render.print_json(
            {"mechanism": mechanism.to_dict(), "delta": delta, "epsilon": bound.to_dict()}
        )
    out = render.console()
    out.print(render.describe(mechanism), style="dim")
    return out.print(
        f"This run was batched and accounted for by ballsbins: [bold]ε ≤ {render.up(float(bound.upper))}[/bold] "
        f"at δ = {stated(delta)} holds."
    )


def _show(findings: Findings, source: str | None, *, json: bool) -> None:
    if json:
        return render.print_json(findings.to_dict())
    out = render.console()
    out.print(_describe(findings, source), style="dim")
    out.print()
    rows = [
        ("Poisson samples (what was reported)", _range(findings.poisson)),
        ("shuffled, a pass over all of them an epoch", _range(findings.shuffle)),
        ("in a fixed order", _range(findings.deterministic)),
        ("balls-and-bins, had they been", _range(findings.balls_and_bins)),
    ]
    out.print(render.plain_table(["if the batches were", f"ε at δ = {stated(findings.delta)}"], rows))
    out.print()
    for sentence in sentences(findings):
        out.print(sentence)
    return None


def _describe(findings: Findings, source: str | None) -> str:
    epochs = "1 epoch" if findings.epochs == 1 else f"{findings.epochs:,} epochs"
    last = findings.last_epoch_steps
    unfinished = "" if last is None else f", of the last one {last:,} steps"
    why = "" if source is None else f" ({escape(source)})"
    return (
        f"σ = {findings.noise_multiplier:.10g}, {findings.steps:,} steps an epoch, {epochs}{unfinished}{why}"
    )


def _range(bound: Bound) -> str:
    """At least … at most, or at most alone where both agree."""
    lower, upper = float(bound.lower), float(bound.upper)
    if upper - lower <= 2e-6 * upper:
        return f"at most {render.up(upper)}"
    return f"at least {render.down(lower)}, at most {render.up(upper)}"


def sentences(findings: Findings) -> list[str]:
    """What follows, in words."""
    claim, least = render.up(float(findings.poisson.upper), 4), render.down(float(findings.shuffle.lower), 4)
    most = render.up(float(findings.deterministic.upper), 4)
    said = [
        f"Poisson accounting claims ε ≤ {claim}. That is true only if every batch was drawn by Poisson sampling (in "
        "Opacus: poisson_sampling=True, which is its default, and its own loader)."
    ]
    if findings.report_is_false_if_shuffled:
        times = f", {render.down(findings.factor, 2)} times the claim" if findings.factor >= 1.05 else ""
        said.append(
            f"If the batches were shuffled, the claim is false: ε is at least {least}{times}. What can be claimed "
            f"without training again is ε ≤ {most}."
        )
    else:
        said.append(
            "If the batches were shuffled, nobody has proved the claim, nor disproved it here. What can be claimed "
            f"without training again is ε ≤ {most}."
        )
    bins = float(findings.balls_and_bins.upper)
    compared = "below the claim, and" if bins <= float(findings.poisson.lower) else "proved, and"
    said.append(
        f"Balls-and-bins batches with the same noise have ε ≤ {render.up(bins, 4)}: {compared} as easy as "
        "shuffling (ballsbins.training.torch.make_private). All of this for zero-out adjacency."
    )
    return said
