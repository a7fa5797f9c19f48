"""`ballsbins epsilon | delta | calibrate | plan`: the three questions, and a table of answers."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from ballsbins.cli import monte_carlo, options, render
from ballsbins.cli.options import SamplerName
from ballsbins.errors import InvalidInputError
from ballsbins.mechanism import MOST_EPOCHS
from ballsbins.report.words import count, how, stated
from ballsbins.samplers import Sampler

DeltaOption = Annotated[float, typer.Option("--delta", "-d", help="δ, a probability in (0, 1).")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("epsilon")(epsilon)
    app.command("delta")(delta)
    app.command("calibrate")(calibrate)
    app.command("plan")(plan)


def epsilon(
    noise_multiplier: options.NoiseOption,
    delta: DeltaOption,
    steps: options.StepsOption = None,
    epochs: options.EpochsOption = 1,
    sampler: options.SamplerOption = SamplerName.BALLS_AND_BINS,
    fixed_bins: options.FixedBinsOption = False,
    examples: options.ExamplesOption = None,
    batch_size: options.BatchSizeOption = None,
    max_batch_size: options.MaxBatchSizeOption = None,
    method: options.MethodOption = "auto",
    samples: monte_carlo.SamplesOption = None,
    error_prob: monte_carlo.ErrorProbOption = None,
    grid: monte_carlo.GridOption = None,
    draw: monte_carlo.DrawOption = None,
    confidence_bound: monte_carlo.ConfidenceBoundOption = None,
    orders: monte_carlo.OrdersOption = None,
    seed: monte_carlo.SeedOption = None,
    workers: monte_carlo.WorkersOption = None,
    state: monte_carlo.StateOption = None,
    json: options.JsonOption = False,
) -> None:
    """What ε do I have? For example: ballsbins epsilon -s 0.35 -T 1000 -d 1e-6"""
    mechanism, derived = options.mechanism_from(
        sampler, noise_multiplier, steps, epochs, fixed_bins=fixed_bins, examples=examples, batch_size=batch_size,
        max_batch_size=max_batch_size,
    )  # fmt: skip
    chosen = monte_carlo.method_from(
        method, samples, error_prob, seed, workers, state, draw=draw, confidence_bound=confidence_bound,
        orders=orders, grid=grid,
    )  # fmt: skip
    if method == monte_carlo.NAME and grid is None:
        advice = "State the ε among which to search, such as 0:12:25, before looking."
        raise InvalidInputError("--grid", None, f"given with --method {method}", advice)
    bound = mechanism.epsilon(delta, chosen)
    if json:
        return render.print_json(bound.to_dict())
    out = render.console()
    at = f"at δ = {stated(delta)}"
    out.print(f"[bold]ε ≤ {render.up(float(bound.upper))}[/bold] {at}")
    out.print(render.describe(mechanism, derived), style="dim")
    out.print()
    out.print(render.bound_table(bound, at))
    out.print()
    return out.print(f"method: {how(bound)}", style="dim")


def delta(
    noise_multiplier: options.NoiseOption,
    epsilon: Annotated[list[float], typer.Option("--epsilon", "-e", help="ε; may be given several times.")],
    steps: options.StepsOption = None,
    epochs: options.EpochsOption = 1,
    sampler: options.SamplerOption = SamplerName.BALLS_AND_BINS,
    fixed_bins: options.FixedBinsOption = False,
    examples: options.ExamplesOption = None,
    batch_size: options.BatchSizeOption = None,
    max_batch_size: options.MaxBatchSizeOption = None,
    method: options.MethodOption = "auto",
    samples: monte_carlo.SamplesOption = None,
    error_prob: monte_carlo.ErrorProbOption = None,
    grid: monte_carlo.GridOption = None,
    draw: monte_carlo.DrawOption = None,
    confidence_bound: monte_carlo.ConfidenceBoundOption = None,
    orders: monte_carlo.OrdersOption = None,
    seed: monte_carlo.SeedOption = None,
    workers: monte_carlo.WorkersOption = None,
    state: monte_carlo.StateOption = None,
    json: options.JsonOption = False,
) -> None:
    """What δ do I have? For example: ballsbins delta -s 0.35 -T 1000 -e 6 -e 10"""
    mechanism, derived = options.mechanism_from(
        sampler, noise_multiplier, steps, epochs, fixed_bins=fixed_bins, examples=examples, batch_size=batch_size,
        max_batch_size=max_batch_size,
    )  # fmt: skip
    chosen = monte_carlo.method_from(
        method, samples, error_prob, seed, workers, state, draw=draw, confidence_bound=confidence_bound,
        orders=orders, grid=grid,
    )  # fmt: skip
    bounds = monte_carlo.deltas(mechanism, epsilon, chosen)
    if json:
        data = [bound.to_dict() for bound in bounds]
        return render.print_json(data[0] if len(data) == 1 else data)
    out = render.console()
    out.print(render.describe(mechanism, derived), style="dim")
    for point, bound in zip(epsilon, bounds, strict=True):
        out.print()
        at = f"at ε = {stated(point)}"
        out.print(f"[bold]δ ≤ {render.up(float(bound.upper))}[/bold] {at}")
        out.print()
        out.print(render.bound_table(bound, at))
    out.print()
    return out.print(f"method: {how(bounds[0])}", style="dim")


def calibrate(
    epsilon: Annotated[float, typer.Option("--epsilon", "-e", help="ε to stay within.")],
    delta: DeltaOption,
    noise_multiplier: Annotated[
        float | None,
        typer.Option("--noise-multiplier", "-s", help="Fix σ, and ask for the epochs or the steps instead."),
    ] = None,
    find: Annotated[
        str, typer.Option("--find", help="What to find: noise-multiplier, epochs or steps.")
    ] = "noise-multiplier",
    steps: options.StepsOption = None,
    epochs: options.EpochsOption = 1,
    sampler: options.SamplerOption = SamplerName.BALLS_AND_BINS,
    fixed_bins: options.FixedBinsOption = False,
    examples: options.ExamplesOption = None,
    batch_size: options.BatchSizeOption = None,
    max_batch_size: Annotated[
        str | None, typer.Option("--max-batch-size", "-B", help="Truncate larger batches: a number, or auto.")
    ] = None,
    json: options.JsonOption = False,
) -> None:
    """How much noise, how many epochs, how few steps? For example: ballsbins calibrate -e 8 -d 1e-6 -T 1000"""
    from ballsbins import calibration

    choices = ("noise-multiplier", "epochs", "steps")
    if find not in choices:
        raise InvalidInputError(
            "--find", find, f"one of {', '.join(choices)}", "Leave it out to find the noise."
        )
    if (noise_multiplier is None) != (find == "noise-multiplier"):
        advice = "Give σ with --find epochs or --find steps, and leave it out to have it found."
        raise InvalidInputError(
            "--noise-multiplier", noise_multiplier, f"consistent with --find {find}", advice
        )
    limit = _limit(max_batch_size)
    total, derived = (1, None) if find == "steps" else options.steps_from(steps, examples, batch_size)
    chosen = options.sampler_from(
        sampler, total, fixed_bins=fixed_bins, max_batch_size=limit, examples=examples
    )
    if noise_multiplier is None:
        auto: Literal["auto"] | None = "auto" if max_batch_size == "auto" else None
        mechanism = calibration.calibrate(
            chosen,
            epsilon=epsilon,
            delta=delta,
            epochs=epochs,
            max_batch_size=auto,
            num_examples=examples,
        )
    elif find == "epochs":
        mechanism = calibration.most_epochs(chosen, noise_multiplier, epsilon=epsilon, delta=delta)
    else:
        mechanism = calibration.least_steps(
            chosen, noise_multiplier, epsilon=epsilon, delta=delta, epochs=epochs
        )
    bound = mechanism.epsilon(delta)
    if json:
        return render.print_json({"mechanism": mechanism.to_dict(), "epsilon": bound.to_dict()})
    answer = {
        "noise-multiplier": f"σ = {render.up(mechanism.noise_multiplier, 8)}",
        "epochs": count(mechanism.epochs, "epoch")
        + (" (the most that can be asked for; more may do)" if mechanism.epochs == MOST_EPOCHS else ""),
        "steps": f"{count(mechanism.sampler.steps, 'step')} an epoch",
    }[find]
    out = render.console()
    out.print(f"[bold]{answer}[/bold] for ε ≤ {stated(epsilon)} at δ = {stated(delta)}")
    out.print(render.describe(mechanism, derived), style="dim")
    out.print(f"checked: ε is at most {render.up(float(bound.upper), 8)}")
    return out.print(f"method: {how(bound)}", style="dim")


def _limit(max_batch_size: str | None) -> int | None:
    if max_batch_size is None or max_batch_size == "auto":
        return None
    try:
        return int(max_batch_size)
    except ValueError:
        advice = "Give the largest batch that fits, or auto for the least that costs next to nothing."
        raise InvalidInputError("--max-batch-size", max_batch_size, "an integer or auto", advice) from None


def plan(
    examples: Annotated[int, typer.Option("--examples", "-n", help="Number of examples.")],
    epsilon: Annotated[float, typer.Option("--epsilon", "-e", help="ε to stay within.")],
    delta: DeltaOption,
    epochs: options.EpochsOption = 1,
    batch_size: Annotated[
        list[int] | None,
        typer.Option("--batch-size", "-b", help="May be given several times; else powers of 2."),
    ] = None,
    sampler: options.SamplerOption = SamplerName.BALLS_AND_BINS,
    fixed_bins: options.FixedBinsOption = False,
    json: options.JsonOption = False,
) -> None:
    """Which batch size? σ for each, and σ / batch size, the noise on the average gradient."""
    from ballsbins import calibration

    def chosen(steps: int) -> Sampler:
        return options.sampler_from(sampler, steps, fixed_bins=fixed_bins, max_batch_size=None, examples=None)

    rows = calibration.plan(
        examples, epsilon=epsilon, delta=delta, epochs=epochs, batch_sizes=batch_size or None, sampler=chosen
    )
    if json:
        data = [
            {
                "batch_size": row.batch_size,
                "noise_per_example": row.noise_per_example,
                "mechanism": row.mechanism.to_dict(),
            }
            for row in rows
        ]
        return render.print_json(data)
    out = render.console()
    out.print(
        f"{count(examples, 'example')}, ε ≤ {stated(epsilon)} at δ = {stated(delta)}, {count(epochs, 'epoch')}, "
        f"{sampler}"
    )
    out.print()
    table = [
        (
            f"{row.batch_size:,}",
            f"{row.mechanism.sampler.steps:,}",
            render.up(row.mechanism.noise_multiplier, 6),
            render.up(row.noise_per_example, 4),
        )
        for row in rows
    ]
    out.print(render.plain_table(["batch size", "steps", "σ", "σ / batch size"], table))
    out.print()
    return out.print(
        "Smaller σ / batch size is less noise on the average gradient; larger batches cost more a step.",
        style="dim",
    )
