"""`ballsbins compare | curve`: the four samplers side by side, and one of them as numbers or a picture."""

from __future__ import annotations

import csv
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from ballsbins.bound import Bound
from ballsbins.cli import options, render
from ballsbins.cli.options import SamplerName
from ballsbins.errors import InvalidInputError
from ballsbins.mechanism import Mechanism

PICTURES = (".png", ".svg", ".pdf")
OutOption = Annotated[Path | None, typer.Option("--out", "-o", help="File to write: .png, .svg or .pdf.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("compare")(compare)
    app.command("curve")(curve)


def compare(
    noise_multiplier: options.NoiseOption,
    steps: options.StepsOption = None,
    epochs: options.EpochsOption = 1,
    delta: Annotated[float | None, typer.Option("--delta", "-d", help="Compare ε at this δ.")] = None,
    epsilon: Annotated[
        list[float] | None,
        typer.Option("--epsilon", "-e", help="Compare δ at this ε; may be given several times."),
    ] = None,
    examples: options.ExamplesOption = None,
    batch_size: options.BatchSizeOption = None,
    out: OutOption = None,
    json: options.JsonOption = False,
) -> None:
    """The four samplers at the same noise. For example: ballsbins compare -s 0.35 -T 1000 -d 1e-6"""
    from ballsbins.comparison import crossover, four

    if (delta is None) == (not epsilon):
        raise InvalidInputError(
            "--delta", delta, "given, or --epsilon, but not both", "Say at which δ or ε to compare."
        )
    count, derived = options.steps_from(steps, examples, batch_size)
    mechanisms = four(noise_multiplier, count, epochs)
    if delta is not None:
        columns = [f"ε at δ = {delta:g}"]
        answers = {name: [mechanism.epsilon(delta)] for name, mechanism in mechanisms.items()}
    else:
        assert epsilon is not None
        columns = [f"δ at ε = {point:g}" for point in epsilon]
        answers = {
            name: [mechanism.delta(point) for point in epsilon] for name, mechanism in mechanisms.items()
        }
    crossing = crossover(mechanisms["balls-and-bins"], mechanisms["Poisson"])
    if out is not None:
        _picture(out, mechanisms, answers)
    if json:
        return render.print_json(
            {
                "samplers": {name: [bound.to_dict() for bound in bounds] for name, bounds in answers.items()},
                "crossover": {
                    "balls_and_bins_worse_at": crossing.left,
                    "balls_and_bins_better_at": crossing.right,
                },
            }
        )
    console = render.console()
    console.print(
        render.describe(mechanisms["balls-and-bins"], derived).replace("balls-and-bins, ", ""), style="dim"
    )
    console.print()
    rows = [(name, *map(interval, bounds)) for name, bounds in answers.items()]
    console.print(render.plain_table(["sampler", *columns], rows))
    console.print()
    console.print(meaning(answers, delta))
    console.print(_crossing_sentence(crossing.left, crossing.right))
    if out is not None:
        console.print(f"Wrote {out}")
    return None


def interval(bound: Bound) -> str:
    """An interval, or one number where both ends agree to six digits."""
    low, high = render.down(float(bound.lower)), render.up(float(bound.upper))
    close = float(bound.upper) - float(bound.lower) <= 2e-6 * abs(float(bound.upper))
    return f"≤ {high}" if close else f"{low} … {high}"


def meaning(answers: dict[str, list[Bound]], delta: float | None) -> str:
    """What the table means for somebody who trained with shuffled batches."""
    shuffle, poisson = answers["shuffle"][0], answers["Poisson"][0]
    bins = answers["balls-and-bins"][0]
    what, at = ("ε", f"δ = {delta:g}") if delta is not None else ("δ", "the first ε")
    claim, truth = float(poisson.upper), float(shuffle.lower)
    if truth > claim:
        factor = truth / claim if claim > 0 else float("inf")
        often = f", {factor:.2g} times as much" if factor >= 1.05 else ""
        lie = (
            f"Training on shuffled batches and reporting Poisson claims {what} ≤ {render.up(claim, 4)} at {at}, "
            f"but the truth is at least {render.down(truth, 4)}{often}; "
        )
    else:
        lie = "For shuffled batches only the upper bound of deterministic batches is proved; "
    if float(bins.upper) <= float(poisson.lower):
        how = "better than Poisson, at the price of shuffling"
    elif float(bins.lower) > float(poisson.upper):
        how = "here worse than Poisson"
    else:
        how = "like Poisson, at the price of shuffling"
    return f"{lie}balls-and-bins has {what} ≤ {render.up(float(bins.upper), 4)}, {how}."


def _crossing_sentence(left: float | None, right: float | None) -> str:
    if left is None:
        return "Balls-and-bins is nowhere proved worse than Poisson for ε ≥ 0."
    if right is None:
        return f"Balls-and-bins is proved worse than Poisson up to ε = {left:.4g}."
    return (
        f"Crossover: δ of balls-and-bins is above Poisson's up to ε = {left:.4g}, below it from {right:.4g}."
    )


def _picture(path: Path, mechanisms: dict[str, Mechanism], answers: dict[str, list[Bound]]) -> None:
    from ballsbins import plots

    if path.suffix.lower() not in PICTURES:
        raise InvalidInputError(
            "--out", str(path), f"a file ending in {', '.join(PICTURES)}", "Choose a picture format."
        )
    largest = max(
        float(bound.upper) if bound.quantity == "epsilon" else 10.0
        for bounds in answers.values()
        for bound in bounds
    )
    grid = np.linspace(0.0, 1.15 * min(largest, 50.0), 160)
    curves = {name: mechanism.delta(grid) for name, mechanism in mechanisms.items()}
    first = next(iter(mechanisms.values()))
    epochs = "1 epoch" if first.epochs == 1 else f"{first.epochs} epochs"
    title = f"σ = {first.noise_multiplier:g}, {first.sampler.steps:,} steps, {epochs}"
    plots.save(plots.privacy_curves(grid, curves, title=title), path)


def curve(
    noise_multiplier: options.NoiseOption,
    steps: options.StepsOption = None,
    epochs: options.EpochsOption = 1,
    sampler: options.SamplerOption = SamplerName.BALLS_AND_BINS,
    fixed_bins: options.FixedBinsOption = False,
    examples: options.ExamplesOption = None,
    batch_size: options.BatchSizeOption = None,
    max_batch_size: options.MaxBatchSizeOption = None,
    smallest: Annotated[float, typer.Option("--from", help="Smallest ε.")] = 0.0,
    largest: Annotated[float, typer.Option("--to", help="Largest ε.")] = 10.0,
    points: Annotated[int, typer.Option("--points", help="How many.", min=2, max=1_000_000)] = 101,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="File to write: .csv, .json, .png, .svg or .pdf; else CSV is printed."
        ),
    ] = None,
) -> None:
    """The curve δ(ε) as CSV, JSON or a picture. For example: ballsbins curve -s 0.35 -T 1000 --to 12 -o curve.png"""
    if not smallest < largest:
        raise InvalidInputError("--from", smallest, f"below --to, which is {largest:g}", "Exchange the two.")
    mechanism, derived = options.mechanism_from(
        sampler, noise_multiplier, steps, epochs, fixed_bins=fixed_bins, examples=examples, batch_size=batch_size,
        max_batch_size=max_batch_size,
    )  # fmt: skip
    suffix = ".csv" if out is None else out.suffix.lower()
    if suffix not in (".csv", ".json", *PICTURES):
        raise InvalidInputError(
            "--out", str(out), "a .csv, .json, .png, .svg or .pdf file", "Choose one of these endings."
        )
    grid = np.linspace(smallest, largest, points)
    bound = mechanism.delta(grid)
    if suffix in PICTURES:
        from ballsbins import plots

        assert out is not None
        axes = plots.privacy_curves(
            grid, {render.name_of(mechanism.sampler): bound}, title=render.describe(mechanism)
        )
        plots.save(axes, out)
    elif suffix == ".json":
        import json

        assert out is not None
        out.write_text(
            json.dumps({"epsilon": grid.tolist(), **bound.to_dict()}, indent=1, ensure_ascii=False) + "\n"
        )
    else:
        with nullcontext(sys.stdout) if out is None else out.open("w", newline="") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow(["epsilon", "delta_lower", "delta", "delta_upper", "delta_remove", "delta_add"])
            numbers = (
                grid,
                bound.lower,
                bound.value,
                bound.upper,
                *(part.value for part in bound.directions.values()),
            )
            writer.writerows(zip(*(np.asarray(column).tolist() for column in numbers), strict=True))
    if out is not None:
        typer.echo(f"Wrote {out}: {render.describe(mechanism, derived)}")
