"""`ballsbins reproduce | demo`: the paper's figures and tables, and all of it on generated data in a minute.

`make run` runs the demo: data → noise for a target → training → AUC, ε and the statement.
"""

from __future__ import annotations

import functools
import inspect
import tempfile
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ballsbins.cli import output
from ballsbins.cli.progress import training_bar
from ballsbins.comparison import at_equal_noise
from ballsbins.errors import InvalidInputError
from ballsbins.report.numbers import down, stated, up
from ballsbins.reproduce import FalseClaimError, Scale, load, names
from ballsbins.samplers import BallsAndBins, new_key

if TYPE_CHECKING:
    from ballsbins.training.jax.trainer import InMemory, Result
    from ballsbins.training.training_plan import TrainingPlan

EPSILON, DELTA = 2.0, 1e-6
BATCH_SIZE, MAX_BUCKETS = 512, 500
OURS, FREE = "balls-and-bins", "without privacy"


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("reproduce")(reproduce)
    app.command("demo")(demo)


def reproduce(
    name: Annotated[str | None, typer.Argument(help="Which one; without it they are listed.")] = None,
    full: Annotated[bool, typer.Option("--full", help="The paper's sample sizes: minutes to hours.")] = False,
    small: Annotated[bool, typer.Option("--small", help="Seconds, to see that it works.")] = False,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Directory for the results: JSON, PNG, SVG.")
    ] = Path("reproduced"),
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            help="For utility: a directory that `ballsbins data prepare` wrote, in place of generated data.",
        ),
    ] = None,
) -> None:
    """Reproduce a figure or table of the paper.

    For example: ballsbins reproduce order-statistics
    """
    console = output.console()
    if full and small:
        raise InvalidInputError("--small", True, "left out with --full", "Choose one of the two.")
    if name is None:
        for known, shows in names().items():
            console.print(f"[bold]{known:18}[/bold] {shows}", soft_wrap=True)
        return
    run = load(name)
    if data is not None:
        if "data" not in inspect.signature(run).parameters:
            raise InvalidInputError("--data", str(data), f"left out for {name}", "Only utility takes data.")
        run = functools.partial(run, data=data)  # type: ignore[call-arg]  # looked up above
    try:
        out.mkdir(parents=True, exist_ok=True)  # before any work, whose results could not be saved otherwise
    except OSError as error:
        raise InvalidInputError(
            "--out", str(out), f"a directory that can be made ({error.strerror})", "Name another one."
        ) from None
    scale: Scale = "full" if full else "small" if small else "quick"
    begun = time.monotonic()
    try:
        run(scale, out, console)
    except FalseClaimError as error:
        typer.echo(f"ballsbins: CLAIM FAILED in {name}: {error}", err=True)
        raise typer.Exit(1) from None
    console.print(f"{name}, {scale}: {time.monotonic() - begun:.0f} s; results are in {out}", style="dim")


def demo(
    examples: Annotated[
        int, typer.Option("--examples", "-n", help="How many examples to generate.")
    ] = 400_000,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Keep data, models, cards and statements in a new directory."),
    ] = None,
) -> None:
    """Generate data, find the noise for a target, train with three samplers, and say what each may claim."""
    place = tempfile.TemporaryDirectory(prefix="ballsbins-") if out is None else nullcontext(str(out))
    with place as directory:
        _demo(output.console(), examples, Path(directory))


def _demo(out: Console, examples: int, directory: Path) -> None:
    begin = time.perf_counter()
    data = _data(out, examples, directory)
    plan = _plan(out, len(data.train))
    out.print()
    results = {}
    for name, each in _plans(plan).items():
        results[name] = _trained(out, name, data, each, directory / name.replace(" ", "-"))
    out.print()
    _compare(out, results)
    _state(out, results[OURS])
    out.print()
    out.print(f"All this took {time.perf_counter() - begin:.0f} s. Next: ballsbins --help", style="dim")


def _say(out: Console, title: str, text: str) -> None:
    """A line with its title beside it."""
    line = Table.grid(padding=(0, 2))
    line.add_column(width=8, style="bold")
    line.add_column()
    line.add_row(title, escape(text))
    out.print(line)


def _data(out: Console, examples: int, directory: Path) -> InMemory:
    from ballsbins.data.criteo import DISPLAY_ADS, generate, prepare
    from ballsbins.training.jax.trainer import InMemory

    directory.mkdir(parents=True, exist_ok=True)
    with out.status("Generating and preparing data"):
        made = generate(directory / "ads.tsv", DISPLAY_ADS, examples)
        dataset = prepare(
            directory / "ads.tsv", directory / "data", DISPLAY_ADS, max_buckets=MAX_BUCKETS
        ).dataset
        data = InMemory.of(dataset)
    features = dataset.features
    _say(
        out,
        "Data",
        f"{len(data.train):,} generated ad impressions to train on, {len(features.integers)} integers and "
        f"{len(features.categories)} categories each; the best possible AUC is "
        f"{made.best_auc:.3f}",
    )
    return data


def _plan(out: Console, n: int) -> TrainingPlan:
    from ballsbins.calibration import calibrate
    from ballsbins.training.training_plan import TrainingPlan

    begin = time.perf_counter()
    mechanism = calibrate(
        BallsAndBins(-(-n // BATCH_SIZE)), epsilon=EPSILON, delta=DELTA, max_batch_size="auto", num_examples=n
    )
    took = time.perf_counter() - begin
    _say(
        out,
        "Target",
        f"ε ≤ {stated(EPSILON)} at δ = {stated(DELTA)}, balls-and-bins batches of about {BATCH_SIZE}",
    )
    _say(
        out,
        "Noise",
        f"σ = {up(mechanism.noise_multiplier, 6)} for {mechanism.sampler.steps:,} steps, the least that meets "
        f"the target, found and checked in {took:.1f} s",
    )
    return TrainingPlan.of(mechanism, clip_norm=1.0, learning_rate=0.01, embedding_dim=8, hidden=(64, 32))


def _plans(plan: TrainingPlan) -> dict[str, TrainingPlan]:
    """The plan with each sampler, at the same noise; and without noise or clipping, to see what privacy costs."""
    assert plan.mechanism is not None
    runs = at_equal_noise(plan.mechanism, truncated=True)
    plans = {name: replace(plan, sampler=runs[name].sampler) for name in (OURS, "Poisson", "shuffle")}
    return plans | {FREE: replace(plans["shuffle"], noise_multiplier=0.0, clip_norm=None)}


def _trained(out: Console, name: str, data: InMemory, plan: TrainingPlan, directory: Path) -> Result:
    from ballsbins.training.jax.trainer import train

    begin = time.perf_counter()
    with training_bar(out, f"training, {name}") as show:
        result = train(data, plan, key=new_key(), directory=directory, delta=DELTA, progress=show)
    took = time.perf_counter() - begin
    _say(out, "Trained", f"{name}: {result.steps:,} steps in {took:.1f} s, compiling and accounting included")
    return result


def _compare(out: Console, results: dict[str, Result]) -> None:
    rows = []
    for name, result in results.items():
        claim = None if result.card is None else result.card.claim
        least = "" if claim is None else down(float(claim.lower), 4)
        most = "none" if claim is None else up(float(claim.upper), 4)
        rows.append((name, f"{result.metrics['test_auc']:.4f}", least, most))
    columns = ["sampler", "AUC on test data", f"ε at least (δ = {stated(DELTA)})", "ε at most"]
    out.print(output.plain_table(columns, rows))
    out.print()
    poisson, shuffled = (results[name].card for name in ("Poisson", "shuffle"))
    assert poisson is not None
    assert shuffled is not None
    out.print(
        "The three private models are about equally good. Whoever shuffles and reports Poisson claims "
        f"ε ≤ {up(float(poisson.claim.upper), 3)}, but the truth is at least "
        f"{down(float(shuffled.claim.lower), 3)}. Balls-and-bins is as easy as shuffling, "
        "and its claim is true."
    )


def _state(out: Console, result: Result) -> None:
    assert result.card is not None
    statement = result.card.statement()
    out.print()
    out.print("[bold]Privacy statement[/bold] (its beginning; ballsbins train writes all of it)")
    out.print(escape(statement.headline))
    for section in statement.sections[1:3]:
        out.print()
        out.print(f"[bold]{escape(section.title)}[/bold]")
        for item in section.items:
            out.print(f"{escape(item.label)}. [dim]{escape(item.text)}[/dim]")
