"""`ballsbins epsilon | delta | calibrate | plan`: the three questions, and a table of answers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import typer

from ballsbins import ask
from ballsbins._progress import telling
from ballsbins.bound import ZERO_OUT, Adjacency, Bound
from ballsbins.cli import output
from ballsbins.cli.options import (
    MONTE_CARLO,
    AdjacencyOption,
    Batches,
    DeltaOption,
    DeltasOption,
    JsonOption,
    Method,
    Run,
    Without,
    with_groups,
)
from ballsbins.errors import InvalidInputError
from ballsbins.mechanism import MOST_EPOCHS, Mechanism
from ballsbins.report.numbers import batches_of, count, down, how, stated, too_large_delta, up

if TYPE_CHECKING:
    from ballsbins.accounting.monte_carlo import MonteCarlo


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (epsilon, delta, calibrate, plan):
        app.command(command.__name__)(command)


@with_groups
def epsilon(
    run: Run,
    delta: DeltasOption,
    method: Method,
    adjacency: AdjacencyOption = ZERO_OUT,
    json: JsonOption = False,
) -> None:
    """What ε do I have?

    For example: ballsbins epsilon --sampler shuffle -s 1.1 -n 60000 -b 256 -E 10 -d 1e-6
    """
    mechanism, derived = run.mechanism()
    chosen = method.chosen()
    if method.method_name == MONTE_CARLO and method.grid is None:
        advice = "State the ε among which to search, such as 0:12:25, before looking."
        raise InvalidInputError("--grid", None, f"given with --method {MONTE_CARLO}", advice)
    bounds = [mechanism.epsilon(point, chosen, adjacency=adjacency) for point in delta]
    answers = [(f"ε at δ = {stated(point)}", bound) for point, bound in zip(delta, bounds, strict=True)]
    if json:
        return _print_json(bounds)
    warnings = [too_large_delta(max(delta), run.examples), ask.if_unbounded(bounds)]
    if run.sampler is None:
        warnings.append(ask.if_shuffled(mechanism, delta=delta))
    return _show(mechanism, derived, answers, warnings)


@with_groups
def delta(
    run: Run,
    epsilon: Annotated[list[float], typer.Option("--epsilon", "-e", help="ε; may be given several times.")],
    method: Method,
    adjacency: AdjacencyOption = ZERO_OUT,
    json: JsonOption = False,
) -> None:
    """What δ do I have?

    For example: ballsbins delta --sampler balls-and-bins -s 0.35 -T 1000 -e 6 -e 10
    """
    mechanism, derived = run.mechanism()
    bounds = deltas(mechanism, epsilon, method.chosen(), adjacency)
    if json:
        return _print_json(bounds)
    answers = [(f"δ at ε = {stated(point)}", bound) for point, bound in zip(epsilon, bounds, strict=True)]
    warnings = [too_large_delta(max(float(bound.upper) for bound in bounds), run.examples)]
    if run.sampler is None:
        warnings.append(ask.if_shuffled(mechanism, epsilon=epsilon))
    return _show(mechanism, derived, answers, warnings)


def _print_json(bounds: list[Bound]) -> None:
    data = [bound.to_dict() for bound in bounds]
    output.print_json(data[0] if len(data) == 1 else data)


def _show(
    mechanism: Mechanism, derived: str | None, answers: list[tuple[str, Bound]], warnings: list[str | None]
) -> None:
    """The answers, and for which batches they are, before all else; then what was run, and all the numbers."""
    out = output.console()
    for question, bound in answers:
        symbol, at = question.split(" ", 1)
        adjacency = "" if bound.adjacency == ZERO_OUT else f", {bound.adjacency} adjacency"
        ends = f"{symbol} ≤ {up(float(bound.upper))}"
        if bound.kind == "bounds":
            ends = f"{down(float(bound.lower))} ≤ {ends}"
        out.print(f"[bold]{ends}[/bold] {at} for {batches_of(mechanism)}{adjacency}")
    output.print_run(out, mechanism, derived, warnings)
    for question, bound in answers:
        out.print()
        out.print(output.bound_table(bound, question))
    out.print()
    out.print(f"method: {how(answers[0][1])}", style="dim")


def deltas(
    mechanism: Mechanism, epsilon: list[float], method: str | MonteCarlo, adjacency: Adjacency = ZERO_OUT
) -> list[Bound]:
    """δ at every ε, asked for together: Monte Carlo draws for all of them side by side."""
    found = mechanism.delta(np.array(epsilon), method, adjacency=adjacency)

    def at(bound: Bound, k: int) -> Bound:
        lower, value, upper, penalty = (
            float(np.asarray(part)[k]) for part in (bound.lower, bound.value, bound.upper, bound.penalty)
        )
        directions = {name: at(part, k) for name, part in bound.directions.items()}
        return replace(bound, lower=lower, value=value, upper=upper, penalty=penalty, directions=directions)

    return [at(found, k) for k in range(len(epsilon))]


@with_groups
def calibrate(
    batches: Batches,
    epsilon: Annotated[float, typer.Option("--epsilon", "-e", help="ε to stay within.")],
    delta: DeltaOption,
    noise_multiplier: Annotated[
        float | None,
        typer.Option("--noise-multiplier", "-s", help="Fix σ, and ask for the epochs or the steps instead."),
    ] = None,
    find: Annotated[
        str, typer.Option("--find", help="What to find: noise-multiplier, epochs or steps.")
    ] = "noise-multiplier",
    max_batch_size: Annotated[
        str | None, typer.Option("--max-batch-size", "-B", help="Truncate larger batches: a number, or auto.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """How much noise, how many epochs, how few steps?

    For example: ballsbins calibrate --sampler balls-and-bins -e 8 -d 1e-6 -T 1000
    """
    from ballsbins import calibration

    choices = ("noise-multiplier", "epochs", "steps")
    if find not in choices:
        raise InvalidInputError(
            "--find", find, f"one of {', '.join(choices)}", "Leave it out to find the noise."
        )
    if noise_multiplier is None and find != "noise-multiplier":
        advice = f"The number of {find} depends on σ; leave out --find to find σ instead."
        raise InvalidInputError("--noise-multiplier", None, f"given with --find {find}", advice)
    if noise_multiplier is not None and find == "noise-multiplier":
        must = "left out, because σ is what is found"
        advice = "To fix σ, add --find epochs or --find steps."
        raise InvalidInputError("--noise-multiplier", noise_multiplier, must, advice)
    limit = _limit(max_batch_size)
    total, derived = (1, None) if find == "steps" else batches.count()
    chosen = batches.drawn(total, limit)
    with telling(lambda: f"looking for {find}"):
        if noise_multiplier is None:
            auto: Literal["auto"] | None = "auto" if max_batch_size == "auto" else None
            mechanism = calibration.calibrate(
                chosen,
                epsilon=epsilon,
                delta=delta,
                epochs=batches.epochs,
                max_batch_size=auto,
                num_examples=batches.examples,
            )
        elif find == "epochs":
            mechanism = calibration.most_epochs(chosen, noise_multiplier, epsilon=epsilon, delta=delta)
        else:
            mechanism = calibration.least_steps(
                chosen, noise_multiplier, epsilon=epsilon, delta=delta, epochs=batches.epochs
            )
        bound = mechanism.epsilon(delta)
    if json:
        return output.print_json({"mechanism": mechanism.to_dict(), "epsilon": bound.to_dict()})
    answer = {
        "noise-multiplier": f"σ = {up(mechanism.noise_multiplier, 8)}",
        "epochs": count(mechanism.epochs, "epoch")
        + (" (the most that can be asked for; more may do)" if mechanism.epochs == MOST_EPOCHS else ""),
        "steps": f"{count(mechanism.sampler.steps, 'step')} per epoch",
    }[find]
    out = output.console()
    out.print(
        f"[bold]{answer}[/bold] for ε ≤ {stated(epsilon)} at δ = {stated(delta)} with {batches_of(mechanism)}"
    )
    shuffled = ask.if_shuffled(mechanism, delta=[delta]) if batches.sampler is None else None
    output.print_run(out, mechanism, derived, [too_large_delta(delta, batches.examples), shuffled])
    out.print(f"checked: ε is at most {up(float(bound.upper), 8)}")
    return out.print(f"method: {how(bound)}", style="dim")


def _limit(max_batch_size: str | None) -> int | None:
    if max_batch_size is None or max_batch_size == "auto":
        return None
    try:
        return int(max_batch_size)
    except ValueError:
        advice = "Give the largest batch that fits, or auto for the least that costs next to nothing."
        raise InvalidInputError("--max-batch-size", max_batch_size, "an integer or auto", advice) from None


@with_groups
def plan(
    batches: Annotated[Batches, Without("steps", "examples", "batch_size")],
    examples: Annotated[int, typer.Option("--examples", "-n", help="Number of examples.")],
    epsilon: Annotated[float, typer.Option("--epsilon", "-e", help="ε to stay within.")],
    delta: DeltaOption,
    batch_size: Annotated[
        list[int] | None,
        typer.Option(
            "--batch-size", "-b", help="Batch size; may be given several times. Powers of 2 by default."
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Which batch size? σ for each, and σ / batch size, the noise on the average gradient.

    For example: ballsbins plan --sampler balls-and-bins -n 60000 -e 8 -d 1e-6
    """
    from ballsbins import calibration

    with telling(lambda: "looking for σ"):
        rows = calibration.plan(
            examples, epsilon=epsilon, delta=delta, epochs=batches.epochs, batch_sizes=batch_size or None,
            sampler=batches.drawn,
        )  # fmt: skip
    if json:
        data = [
            {
                "batch_size": row.batch_size,
                "noise_per_example": row.noise_per_example,
                "mechanism": row.mechanism.to_dict(),
            }
            for row in rows
        ]
        return output.print_json(data)
    out = output.console()
    first = rows[0].mechanism
    out.print(
        f"[bold]σ for ε ≤ {stated(epsilon)} at δ = {stated(delta)}[/bold] with {batches_of(first)}, "
        f"{count(examples, 'example')}, {count(batches.epochs, 'epoch')}"
    )
    out.print(f"batches: {first.sampler.batching}", style="dim")
    if (warning := too_large_delta(delta, examples)) is not None:
        out.print(warning, style="yellow")
    if batches.sampler is None:
        shuffled = ask.if_shuffled(first, delta=[delta])
        out.print(f"{shuffled} (For the first row, σ = {up(first.noise_multiplier)}.)", style="yellow")
    out.print()
    table = [
        (
            f"{row.batch_size:,}",
            f"{row.mechanism.sampler.steps:,}",
            up(row.mechanism.noise_multiplier, 6),
            up(row.noise_per_example, 4),
        )
        for row in rows
    ]
    out.print(output.plain_table(["batch size", "steps", "σ", "σ / batch size"], table))
    out.print()
    return out.print(
        "Smaller σ / batch size is less noise on the average gradient; larger batches cost more per step.",
        style="dim",
    )
