"""`ballsbins compare | curve`: the four samplers side by side, and one of them as numbers or a picture."""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import numpy as np
import typer

from ballsbins import ask
from ballsbins._files import write_text
from ballsbins._progress import telling
from ballsbins.bound import Bound
from ballsbins.cli import output
from ballsbins.cli.options import JsonOption, Run, Without, with_groups
from ballsbins.errors import InvalidInputError
from ballsbins.mechanism import Mechanism
from ballsbins.report.numbers import count, describe, down, length_and_noise, stated, too_large_delta, up

if TYPE_CHECKING:
    from ballsbins.comparison import Crossover


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("compare")(compare)
    app.command("curve")(curve)


@with_groups
def compare(
    run: Annotated[Run, Without("sampler", "fixed_bins", "max_batch_size")],
    delta: Annotated[float | None, typer.Option("--delta", "-d", help="Compare ε at this δ.")] = None,
    epsilon: Annotated[
        list[float] | None,
        typer.Option("--epsilon", "-e", help="Compare δ at this ε; may be given several times."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File to write: .png, .svg or .pdf.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """The four samplers at the same noise.

    For example: ballsbins compare -s 0.35 -T 1000 -d 1e-6
    """
    from ballsbins.comparison import at_equal_noise, crossover

    if (delta is None) == (not epsilon):
        raise InvalidInputError(
            "--delta", delta, "given, or --epsilon, but not both", "Say at which δ or ε to compare."
        )
    if out is not None:
        output.check_picture(out)
    mechanism, derived = run.mechanism()
    mechanisms = at_equal_noise(mechanism)
    asked = [("ε", "δ", delta)] if delta is not None else [("δ", "ε", point) for point in epsilon or ()]
    columns = [f"{what} at {at} = {stated(point)}" for what, at, point in asked]
    with telling(lambda: "comparing"):
        answers = {
            name: [each.epsilon(point) if what == "ε" else each.delta(point) for what, _, point in asked]
            for name, each in mechanisms.items()
        }
        crossing = crossover(mechanisms["balls-and-bins"], mechanisms["Poisson"])
        if out is not None:
            _picture(out, mechanisms, answers)
    if json:
        return output.print_json(
            {
                "samplers": {name: [bound.to_dict() for bound in bounds] for name, bounds in answers.items()},
                "crossover": {
                    "balls_and_bins_worse_at": crossing.left,
                    "balls_and_bins_better_at": crossing.right,
                },
            }
        )
    console = output.console()
    console.print(length_and_noise(mechanism, derived), style="dim")
    warning = None if delta is None else too_large_delta(delta, run.examples)
    if warning is not None:
        console.print(warning, style="yellow")
    console.print()
    rows = [(name, *map(ask.interval, bounds)) for name, bounds in answers.items()]
    console.print(output.plain_table(["sampler", *columns], rows))
    console.print()
    console.print(ask.meaning({name: bounds[0] for name, bounds in answers.items()}, delta))
    console.print(_crossing_sentence(crossing))
    if out is not None:
        console.print(f"Wrote {out}")
    return None


def _crossing_sentence(found: Crossover) -> str:
    if found.left is None or found.start is None:
        return "Balls-and-bins is nowhere proved worse than Poisson for ε ≥ 0."
    since = "" if found.start == 0.0 else f"from ε = {up(found.start, 4)} "
    if found.right is None:
        return f"Balls-and-bins is proved worse than Poisson {since}up to ε = {down(found.left, 4)}."
    return (
        f"Crossover: δ of balls-and-bins is above Poisson's {since}up to ε = {down(found.left, 4)}, below it from "
        f"{up(found.right, 4)}."
    )


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


@with_groups
def curve(
    run: Run,
    smallest: Annotated[float, typer.Option("--from", help="Smallest ε.")] = 0.0,
    largest: Annotated[float, typer.Option("--to", help="Largest ε.")] = 10.0,
    points: Annotated[int, typer.Option("--points", help="Number of points.", min=2, max=1_000_000)] = 101,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="File to write: .csv, .json, .png, .svg or .pdf; without it, CSV is printed."
        ),
    ] = None,
) -> None:
    """The curve δ(ε) as CSV, JSON or a picture.

    For example: ballsbins curve --sampler poisson -s 0.35 -T 1000 --to 12 -o curve.png
    """
    if not smallest < largest:
        raise InvalidInputError("--from", smallest, f"below --to, which is {largest:g}", "Exchange the two.")
    mechanism, derived = run.mechanism()
    suffix = ".csv" if out is None else out.suffix.lower()
    if suffix not in (".csv", ".json", *output.PICTURES):
        raise InvalidInputError(
            "--out", str(out), "a .csv, .json, .png, .svg or .pdf file", "Choose one of these endings."
        )
    if out is not None:
        output.check_place(out)
    grid = np.linspace(smallest, largest, points)
    bound = mechanism.delta(grid)
    if suffix in output.PICTURES:
        from ballsbins import plots

        assert out is not None
        axes = plots.privacy_curves(grid, {mechanism.sampler.name: bound}, title=describe(mechanism))
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
        typer.echo(f"Wrote {out}: {describe(mechanism, derived)}")
    output.tell_if_shuffled(run.sampler, mechanism, epsilon=[0.5 * (smallest + largest)])


def _write_rows(stream: TextIO, grid: np.ndarray, bound: Bound) -> None:
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["epsilon", "delta_lower", "delta", "delta_upper", "delta_remove", "delta_add"])
    directions = [part.value for part in bound.directions.values()]
    columns = (grid, bound.lower, bound.value, bound.upper, *directions)
    writer.writerows(zip(*(np.asarray(column).tolist() for column in columns), strict=True))
