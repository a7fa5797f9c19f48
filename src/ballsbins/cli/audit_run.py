"""`ballsbins audit-run`: what is true of a run whose ε was computed as if its batches were Poisson samples."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from ballsbins import _check, ask
from ballsbins._progress import telling
from ballsbins.accounting.search import LARGEST_EPSILON
from ballsbins.bound import Bound
from ballsbins.cli import output
from ballsbins.cli.options import (
    RUN,
    Batches,
    DeltaOption,
    JsonOption,
    OptionalNoiseOption,
    Without,
    with_groups,
)
from ballsbins.comparison import ClaimedBy, PoissonClaim, noise_of_claim, poisson_claim
from ballsbins.errors import InvalidInputError
from ballsbins.mechanism import Mechanism
from ballsbins.report.numbers import describe, down, length_and_noise, stated, too_large_delta, up
from ballsbins.samplers import Poisson


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("audit-run")(audit_run)


@with_groups
def audit_run(
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
    claimed: Annotated[
        float | None,
        typer.Option(
            "--claimed-epsilon", "-e", help="The ε that was reported, in place of σ.", rich_help_panel=RUN
        ),
    ] = None,
    accountant: Annotated[
        ClaimedBy | None,
        typer.Option(
            "--accountant",
            metavar="NAME",
            help="What computed the reported ε: exact (default; PRV or PLD), or rdp.",
            rich_help_panel=RUN,
        ),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option("--epochs", "-E", help="Passes over the data; 1 if left out.", rich_help_panel=RUN),
    ] = None,
    json: JsonOption = False,
) -> None:
    """What is true of a run with DataLoader(shuffle=True) whose ε was reported as for Poisson sampling?

    For example: ballsbins audit-run --claimed-epsilon 3 --accountant rdp -n 60000 -b 256 -E 10 -d 1e-5

    Opacus accounts for every run as if its batches were Poisson samples, also with poisson_sampling=False; so do most
    others. This says what was claimed, what is true of shuffled batches, and what balls-and-bins would have had. Give
    the reported ε, or the noise multiplier, or a checkpoint of Opacus.
    """
    if opacus_checkpoint is not None:
        beside = {
            "--noise-multiplier": noise_multiplier,
            "--claimed-epsilon": claimed,
            "--accountant": accountant,
            "--epochs": epochs,
        }
        for name, value in beside.items():
            if value is not None:
                advice = "The checkpoint says it; only --steps may be stated beside it."
                raise InvalidInputError(name, value, "left out with --opacus-checkpoint", advice)
        return _of_checkpoint(opacus_checkpoint, batches.steps, delta, json=json)
    if noise_multiplier is None and claimed is None:
        advice = "Give the reported ε or σ with the sizes of the run, or --opacus-checkpoint FILE."
        raise InvalidInputError("--claimed-epsilon", None, "given, or --noise-multiplier", advice)
    if claimed is not None:
        if noise_multiplier is not None:
            advice = "Give the reported ε, from which σ is found, or σ."
            raise InvalidInputError("--claimed-epsilon", claimed, "left out with --noise-multiplier", advice)
        advice = "It is the ε that was reported."
        _check.real("--claimed-epsilon", claimed, 0.0, LARGEST_EPSILON, open_left=True, advice=advice)
    if accountant is not None and claimed is None:
        advice = "From σ it does not matter who reported what."
        raise InvalidInputError("--accountant", accountant, "left out without --claimed-epsilon", advice)
    total, derived = batches.count()
    passes = 1 if epochs is None else epochs
    with telling(lambda: "accounting"):
        if claimed is None:
            assert noise_multiplier is not None
            run = Mechanism(Poisson(total), noise_multiplier, passes)
        else:
            run = noise_of_claim(
                total, passes, epsilon=claimed, delta=delta, accountant=accountant or "exact"
            )
        found = poisson_claim(run, delta, claimed)
    return _show_claim(found, derived, json=json, warning=too_large_delta(delta, batches.examples))


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


def _show_claim(claim: PoissonClaim, source: str | None, *, json: bool, warning: str | None = None) -> None:
    if json:
        return output.print_json(claim.to_dict())
    out = output.console()
    out.print(f"[bold]{_verdict(claim)}[/bold]")
    found = "" if claim.claimed is None else "; σ was found from the claim"
    source = None if source is None else escape(source)
    out.print(f"run: {length_and_noise(claim.run, source)}{found}", style="dim")
    if warning is not None:
        out.print(warning, style="yellow")
    out.print()
    reported = [] if claim.claimed is None else [("what was reported", f"at most {stated(claim.claimed)}")]
    rows = [
        *reported,
        ("Poisson samples" + ("" if reported else " (what was reported)"), _range(claim.poisson)),
        ("shuffled: DataLoader(shuffle=True)", _range(claim.shuffle)),
        ("in a fixed order: shuffle=False", _range(claim.deterministic)),
        ("balls-and-bins, at the same noise", _range(claim.balls_and_bins)),
    ]
    out.print(output.plain_table(["if the batches were", f"ε at δ = {stated(claim.delta)}"], rows))
    out.print()
    for sentence in poisson_sentences(claim):
        out.print(sentence)
    return None


def _verdict(claim: PoissonClaim) -> str:
    """What was claimed, what is true of shuffled batches, what balls-and-bins would have had: in one line."""
    at, shuffle = f"at δ = {stated(claim.delta)}", claim.shuffle
    truth = f"{down(float(shuffle.lower), 4)} ≤ ε ≤ {up(float(shuffle.upper), 4)}"
    bins = up(float(claim.balls_and_bins.upper), 4)
    return (
        f"claimed: ε ≤ {up(claim.claim, 4)} {at}; true of shuffled batches: {truth}; balls-and-bins would have had "
        f"ε ≤ {bins}"
    )


def _range(bound: Bound) -> str:
    """At least … at most, or at most alone where both agree."""
    lower, upper = float(bound.lower), float(bound.upper)
    if ask.ends_agree(bound):
        return f"at most {up(upper)}"
    return f"at least {down(lower)}, at most {up(upper)}"


def poisson_sentences(claim: PoissonClaim) -> list[str]:
    """What follows, in words."""
    most_claimed, least = up(claim.claim, 4), down(float(claim.shuffle.lower), 4)
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
    compared = "below the claim, and" if bins <= claim.claim else "proved, and"
    said.append(
        f"Balls-and-bins batches with the same noise have ε ≤ {up(bins, 4)}: {compared} as easy as "
        "shuffling (ballsbins.training.torch.make_private). All of this for zero-out adjacency."
    )
    return said
