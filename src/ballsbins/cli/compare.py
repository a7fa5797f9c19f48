"""`ballsbins compare | curve`: the four samplers side by side, and one of them as numbers or a picture."""

from __future__ import annotations

import csv
import io
import math
import sys
from pathlib import Path
from typing import Annotated, TextIO

import numpy as np
import typer

from ballsbins._files import write_text
from ballsbins.bound import Bound
from ballsbins.cli import options, render
from ballsbins.cli.options import SamplerName
from ballsbins.errors import InvalidInputError
from ballsbins.mechanism import Mechanism
from ballsbins.report.words import count, stated

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
    if out is not None:
        check_picture(out)
    total, derived = options.steps_from(steps, examples, batch_size)
    mechanisms = four(noise_multiplier, total, epochs)
    if delta is not None:
        columns = [f"ε at δ = {stated(delta)}"]
        answers = {name: [mechanism.epsilon(delta)] for name, mechanism in mechanisms.items()}
    else:
        assert epsilon is not None
        columns = [f"δ at ε = {stated(point)}" for point in epsilon]
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
    lower, upper = float(bound.lower), float(bound.upper)
    close = math.isfinite(upper) and upper - lower <= 2e-6 * abs(upper)
    return f"≤ {render.up(upper)}" if close else f"{render.down(lower)} … {render.up(upper)}"


def meaning(answers: dict[str, list[Bound]], delta: float | None) -> str:
    """What the table means for somebody who trained with shuffled batches."""
    shuffle, poisson = answers["shuffle"][0], answers["Poisson"][0]
    bins = answers["balls-and-bins"][0]
    if not math.isfinite(float(bins.upper)):
        return "With so little noise no way to draw batches protects anybody."
    what, at = ("ε", f"δ = {stated(delta)}") if delta is not None else ("δ", "the first ε")
    claim, truth = float(poisson.upper), float(shuffle.lower)
    if truth > claim:
        often = f", {render.down(truth / claim, 2)} times as much" if truth >= 1.1 * claim > 0 else ""
        lie = (
            f"Training on shuffled batches and reporting Poisson claims {what} ≤ {render.up(claim, 4)} at {at}, "
            f"but the truth is at least {render.down(truth, 4)}{often}; "
        )
    else:
        lie = "For shuffled batches only the upper bound of deterministic batches is proved; "
    if float(bins.upper) < float(poisson.lower):
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
        return f"Balls-and-bins is proved worse than Poisson up to ε = {render.down(left, 4)}."
    return (
        f"Crossover: δ of balls-and-bins is above Poisson's up to ε = {render.down(left, 4)}, below it from "
        f"{render.up(right, 4)}."
    )


def check_picture(out: Path) -> None:
    """Refuse a bad file name before anything is computed."""
    if out.suffix.lower() not in PICTURES:
        endings = f"a file ending in {', '.join(PICTURES)}"
        raise InvalidInputError("--out", str(out), endings, "Choose a picture format.")
    check_place(out)


def check_place(out: Path) -> None:
    """Refuse a place where nothing can be written before anything is computed."""
    if not out.parent.is_dir():
        raise InvalidInputError("--out", str(out), "in a directory that exists", "Make the directory first.")
    if out.is_dir():
        raise InvalidInputError("--out", str(out), "the name of a file", "It is a directory: add a name.")


def _picture(path: Path, mechanisms: dict[str, Mechanism], answers: dict[str, list[Bound]]) -> None:
    from ballsbins import plots

    largest = max(
        float(bound.upper) if bound.quantity == "epsilon" else 10.0
        for bounds in answers.values()
        for bound in bounds
    )
    grid = np.linspace(0.0, 1.15 * min(largest, 50.0), 160)
    curves = {name: mechanism.delta(grid) for name, mechanism in mechanisms.items()}
    first = next(iter(mechanisms.values()))
    steps, epochs = count(first.sampler.steps, "step"), count(first.epochs, "epoch")
    title = f"σ = {first.noise_multiplier:.10g}, {steps}, {epochs}"
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
    if out is not None:
        check_place(out)
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
        data = {"epsilon": grid.tolist(), **bound.to_dict()}
        write_text(out, json.dumps(data, indent=1, ensure_ascii=False) + "\n")
    elif out is None:
        _write_rows(sys.stdout, grid, bound)
    else:
        text = io.StringIO()
        _write_rows(text, grid, bound)
        write_text(out, text.getvalue())
    if out is not None:
        typer.echo(f"Wrote {out}: {render.describe(mechanism, derived)}")


def _write_rows(stream: TextIO, grid: np.ndarray, bound: Bound) -> None:
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["epsilon", "delta_lower", "delta", "delta_upper", "delta_remove", "delta_add"])
    directions = [part.value for part in bound.directions.values()]
    columns = (grid, bound.lower, bound.value, bound.upper, *directions)
    writer.writerows(zip(*(np.asarray(column).tolist() for column in columns), strict=True))
