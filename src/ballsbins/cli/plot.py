"""`ballsbins plot …`: the pictures of `ballsbins.plots`, each with a command that computes what it shows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from ballsbins import _check
from ballsbins._progress import stages
from ballsbins.bound import Bound
from ballsbins.cli.options import Batches, DeltaOption, Run, Without, with_groups
from ballsbins.cli.output import check_picture
from ballsbins.comparison import at_equal_noise
from ballsbins.errors import AccuracyError, InvalidInputError, UnreachableTargetError
from ballsbins.mechanism import Mechanism
from ballsbins.plots.style import number
from ballsbins.report.numbers import count, stated
from ballsbins.samplers import BallsAndBins, Deterministic, Poisson

plot = typer.Typer(
    help="Draw δ(ε), ε against σ or epochs, σ against batch size, AUC against σ.", no_args_is_help=True
)

OutOption = Annotated[Path, typer.Option("--out", "-o", help="File to write: .png, .svg or .pdf.")]
PointsOption = Annotated[int, typer.Option("--points", help="Number of points.", min=2, max=1000)]

# fields of `Batches` and `Run` without an option: pictures compare all samplers, without truncation
_DRAWN = ("sampler", "fixed_bins")


def register(app: typer.Typer) -> None:
    """Add the group of commands."""
    app.add_typer(plot, name="plot")


@plot.command("curves")
@with_groups
def curves(
    run: Annotated[Run, Without(*_DRAWN, "max_batch_size")],
    out: OutOption,
    largest: Annotated[float, typer.Option("--to", help="Largest ε.", min=0.001, max=700)] = 10.0,
    samples: Annotated[
        int, typer.Option("--samples", "-m", help="Add bars from this many Monte Carlo samples.", min=0)
    ] = 0,
    delta: Annotated[float | None, typer.Option("--delta", "-d", help="A δ to mark in the picture.")] = None,
) -> None:
    """δ(ε) of the four samplers.

    For example: ballsbins plot curves -s 0.5 -T 1000 --to 12 -d 1e-6 -m 10000 -o curves.png
    """
    from ballsbins import plots
    from ballsbins.accounting.monte_carlo import MonteCarlo

    check_picture(out)
    mechanism, _ = run.mechanism()
    marked = None if delta is None else _check.delta(delta)
    mechanisms = at_equal_noise(mechanism)
    grid = np.linspace(0.0, largest, 161)
    bounds, bars = {}, {}
    with stages("curves", len(mechanisms) + bool(samples)) as begin:
        for name, each in mechanisms.items():
            begin(name)
            bounds[name] = each.delta(grid)
        if samples:
            begin(f"{samples:,} samples")
            name = mechanism.sampler.name
            high = np.flatnonzero(np.asarray(bounds[name].upper) > 1e-12)
            at = np.linspace(0.0, grid[high[-1]] if high.size else largest, 9)[1:]
            method = MonteCarlo(samples=samples, epsilons=tuple(at.tolist()))
            bars[name] = (at, mechanism.delta(at, method))
    steps = count(mechanism.sampler.steps, "step")
    title = f"σ = {run.noise_multiplier:.10g}, {steps}, {count(run.epochs, 'epoch')}"
    _write(plots.privacy_curves(grid, bounds, samples=bars, delta=marked, title=title), out)


@plot.command("epsilon-vs-noise")
@with_groups
def epsilon_vs_noise(
    batches: Annotated[Batches, Without(*_DRAWN)],
    delta: DeltaOption,
    out: OutOption,
    smallest: Annotated[float, typer.Option("--from", help="Smallest σ.", min=0.05, max=100)] = 0.3,
    largest: Annotated[float, typer.Option("--to", help="Largest σ.", min=0.05, max=100)] = 3.0,
    points: PointsOption = 25,
) -> None:
    """ε against σ.

    For example: ballsbins plot epsilon-vs-noise -T 1000 -d 1e-6 -o noise.png
    """
    from ballsbins import plots

    check_picture(out)
    if not smallest < largest:
        raise InvalidInputError("--from", smallest, f"below --to, which is {largest:g}", "Exchange the two.")
    total, _ = batches.count()
    noise = np.geomspace(smallest, largest, points)
    found = _by_sampler(
        [Mechanism(BallsAndBins(total), float(sigma), batches.epochs) for sigma in noise], delta
    )
    title = f"δ = {number(delta)}, {count(total, 'step')}, {count(batches.epochs, 'epoch')}"
    _write(plots.epsilon_against_noise(noise, found, title=title), out)


@plot.command("epsilon-vs-epochs")
@with_groups
def epsilon_vs_epochs(
    run: Annotated[Run, Without(*_DRAWN, "epochs", "max_batch_size")],
    delta: DeltaOption,
    out: OutOption,
    largest: Annotated[int, typer.Option("--to", help="Most epochs.", min=2, max=100_000)] = 32,
) -> None:
    """ε against epochs.

    For example: ballsbins plot epsilon-vs-epochs -s 1 -T 100 -d 1e-6 --to 16 -o epochs.png
    """
    from ballsbins import plots

    check_picture(out)
    total, _ = run.count()
    epochs = np.unique(np.geomspace(1, largest, 8).round().astype(int))
    bins, fixed = BallsAndBins(total), BallsAndBins(total, redraw=False)
    runs = [Mechanism(bins, run.noise_multiplier, int(number)) for number in epochs]
    others = _by_sampler(runs, delta)
    first = {bins.name: others[bins.name], fixed.name: [_epsilon(one.under(fixed), delta) for one in runs]}
    title = f"σ = {run.noise_multiplier:.10g}, {count(total, 'step')} per epoch, δ = {number(delta)}"
    _write(plots.epsilon_against_epochs(epochs, first | others, title=title), out)


@plot.command("noise-vs-batch-size")
@with_groups
def noise_vs_batch_size(
    batches: Annotated[Batches, Without(*_DRAWN, "steps", "examples", "batch_size")],
    examples: Annotated[int, typer.Option("--examples", "-n", help="Number of examples.", min=2)],
    epsilon: Annotated[float, typer.Option("--epsilon", "-e", help="ε to stay within.")],
    delta: DeltaOption,
    out: OutOption,
    batch_size: Annotated[
        list[int] | None,
        typer.Option(
            "--batch-size", "-b", help="Batch size; may be given several times. Powers of 2 by default."
        ),
    ] = None,
) -> None:
    """σ against batch size, for a target: ballsbins plot noise-vs-batch-size -n 60000 -e 3 -d 1e-6 -o b.png"""
    from ballsbins import calibration, plots

    check_picture(out)
    sizes = sorted(set(batch_size)) if batch_size else None
    found: dict[str, list[calibration.CalibratedBatchSize]] = {}
    proved = "deterministic, shuffle (as proved)"  # nothing better is proved for shuffled batches
    kinds = {"balls-and-bins": BallsAndBins, "Poisson": Poisson, proved: Deterministic}
    with stages("σ", len(kinds)) as begin:
        for name, make in kinds.items():
            begin(name)
            found[name] = calibration.plan(
                examples, epsilon=epsilon, delta=delta, epochs=batches.epochs, batch_sizes=sizes, sampler=make
            )
            sizes = [row.batch_size for row in found[name]]
    assert sizes is not None
    if len(sizes) < 2:
        raise InvalidInputError(
            "--batch-size", sizes, "at least two different sizes", "Leave it out for powers of 2."
        )
    noise = {name: [row.mechanism.noise_multiplier for row in rows] for name, rows in found.items()}
    title = f"{examples:,} examples, {count(batches.epochs, 'epoch')}, ε ≤ {stated(epsilon)} at δ = {number(delta)}"
    _write(plots.noise_against_batch_size(sizes, noise, title=title), out)


@plot.command("auc-vs-noise")
def auc_vs_noise(
    results: Annotated[
        Path,
        typer.Argument(
            help='JSON: {"balls-and-bins": {"noise": […], "auc": […], "error": […]}, …}', show_default=False
        ),
    ],
    out: OutOption,
    title: Annotated[str | None, typer.Option("--title", help="What stands above it.")] = None,
) -> None:
    """AUC against σ, from results of training.

    For example: ballsbins plot auc-vs-noise results.json -o auc.png
    """
    from ballsbins import plots

    check_picture(out)
    _write(plots.auc_against_noise(_read_results(results), title=title), out)


def _read_results(path: Path) -> dict[str, tuple[list[float], list[float], list[float]]]:
    shape = 'an object of samplers, each {"noise": […], "auc": […], "error": […]} of one length'
    advice = "See ballsbins plot auc-vs-noise --help."
    try:
        data: Any = json.loads(path.read_text(encoding="utf-8"))
        series = {
            name: tuple(part[column] for column in ("noise", "auc", "error")) for name, part in data.items()
        }
        for columns in series.values():
            numbers = np.array(columns, dtype=np.float64)
            if (
                numbers.ndim != 2
                or not numbers.size
                or not np.isfinite(numbers).all()
                or (numbers[0] < 0).any()
            ):
                raise ValueError
    except OSError as error:
        bound = f"a file that can be read ({error.strerror})"
        raise InvalidInputError("the file of results", str(path), bound, "Check the path.") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InvalidInputError("the file of results", str(path), shape, advice) from None
    if not series:
        raise InvalidInputError("the file of results", str(path), shape, advice)
    return series


def _by_sampler(runs: Sequence[Mechanism], delta: float) -> dict[str, list[Bound]]:
    """ε at δ of every run under every sampler, by the sampler's name."""
    found: dict[str, list[Bound]] = {}
    with stages("ε", len(runs)) as begin:
        for run in runs:
            begin(f"σ = {run.noise_multiplier:.4g}, {count(run.epochs, 'epoch')}")
            for name, other in at_equal_noise(run).items():
                found.setdefault(name, []).append(_epsilon(other, delta))
    return found


def _epsilon(mechanism: Mechanism, delta: float) -> Bound:
    """ε at δ; a gap in the line, and a word on standard error, where the accountant has no answer."""
    try:
        return mechanism.epsilon(delta)
    except (AccuracyError, UnreachableTargetError) as error:
        typer.echo(f"ballsbins: left out {mechanism!r}: {error}", err=True)
        return Bound("epsilon", np.nan, np.nan, np.nan, "bounds", "none")


def _write(axes: Any, out: Path) -> None:
    from ballsbins import plots

    plots.save(axes, out)
    typer.echo(f"Wrote {out}")
