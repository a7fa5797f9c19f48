"""`ballsbins train`: from prepared data and a target to a model, its card and its privacy statement."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from ballsbins import _check, ask
from ballsbins.cli import output
from ballsbins.cli.options import RUN, Batches, JsonOption, KeyFileOption, Without, key_from, with_groups
from ballsbins.cli.progress import INTERRUPTED, stopping, training_bar
from ballsbins.errors import InvalidInputError
from ballsbins.mechanism import Mechanism
from ballsbins.report.numbers import describe, how, stated, up
from ballsbins.samplers import Sampler

if TYPE_CHECKING:
    from ballsbins.batch_files import BatchFiles
    from ballsbins.data.dataset import Dataset
    from ballsbins.largest_batch import MaxBatchSize
    from ballsbins.training.jax.trainer import Result
    from ballsbins.training.training_plan import TrainingPlan

_TARGET, _MODEL, _FILES = "The privacy", "The model", "Files"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("train")(train)


@with_groups
def train(
    data: Annotated[
        Path,
        typer.Option(
            "--data", help="A prepared data set: see ballsbins data --help.", rich_help_panel=_FILES
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            help="Where the model, the card and checkpoints go; the same command continues a stopped run.",
            rich_help_panel=_FILES,
        ),
    ],
    delta: Annotated[
        float,
        typer.Option("--delta", "-d", help="δ, a probability in (0, 1).", rich_help_panel=_TARGET),
    ],
    epsilon: Annotated[
        float | None,
        typer.Option(
            "--epsilon", "-e", help="ε to stay within; finds the least noise.", rich_help_panel=_TARGET
        ),
    ] = None,
    noise_multiplier: Annotated[
        float | None,
        typer.Option(
            "--noise-multiplier",
            "-s",
            help="σ in place of --epsilon; 0 trains without privacy.",
            rich_help_panel=_TARGET,
        ),
    ] = None,
    clip_norm: Annotated[
        float | None,
        typer.Option(
            "--clip-norm",
            "-C",
            help="Largest norm of one example's gradient; needed with noise.",
            rich_help_panel=_TARGET,
        ),
    ] = None,
    *,
    batches: Annotated[Batches, Without("examples")],
    max_batch_size: Annotated[
        str,
        typer.Option(
            "--max-batch-size",
            "-B",
            help="Truncate larger batches: auto, a number, paper-pctr or paper-search.",
            rich_help_panel=RUN,
        ),
    ] = "auto",
    learning_rate: Annotated[
        float,
        typer.Option("--learning-rate", help="Of Adam, falling along a cosine.", rich_help_panel=_MODEL),
    ] = 1e-3,
    embedding_dim: Annotated[
        int,
        typer.Option("--embedding-dim", help="Width of every embedding.", rich_help_panel=_MODEL),
    ] = 48,
    hidden: Annotated[
        str,
        typer.Option("--hidden", help="Widths of the hidden layers.", rich_help_panel=_MODEL),
    ] = "598,598,598",
    key_file: KeyFileOption = None,
    batch_files: Annotated[
        str | None,
        typer.Option(
            "--batches",
            help="Batches that ballsbins build wrote, a directory or s3://…; they decide the sampler.",
            rich_help_panel=_FILES,
        ),
    ] = None,
    checkpoint_seconds: Annotated[
        float,
        typer.Option("--checkpoint-seconds", help="How often to save.", rich_help_panel=_FILES),
    ] = 60.0,
    stop_after: Annotated[
        int | None,
        typer.Option("--stop-after", help="Stop early after this many steps.", rich_help_panel=RUN),
    ] = None,
    accept_changes: Annotated[
        bool,
        typer.Option(
            "--accept-changes",
            help="Continue, with independent noise, although data or machine changed since the checkpoint.",
            rich_help_panel=_FILES,
        ),
    ] = False,
    allow_uncovered: Annotated[
        bool,
        typer.Option(
            "--allow-uncovered",
            help="Train even if floating point is not covered on this machine; the card says so.",
            rich_help_panel=RUN,
        ),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Train the paper's network on prepared data within a target (ε, δ), and state what was run.

    For example: ballsbins train --data ads -e 4 -d 1e-6 -b 1024 -E 2 -C 1 --key-file run.key --out run
    """
    from ballsbins.data.dataset import Dataset
    from ballsbins.training.jax.trainer import train as run
    from ballsbins.training.training_plan import TrainingPlan

    if stop_after is not None:
        _check.integer("--stop-after", stop_after, 1, advice="Leave it out to take all steps.")
    if batches.steps is None and batches.batch_size is None and batch_files is None:
        advice = "State the expected size of a batch; or --steps, the number of batches in an epoch."
        raise InvalidInputError("--batch-size", None, "given", advice)
    key = key_from(key_file)
    dataset = Dataset.open(data)
    examples = dataset.num_examples("train")
    files = None if batch_files is None else _open(batch_files)
    limit = ask.limit_from(max_batch_size)
    if files is None:
        count, derived = batches.count(examples)
        drawn = batches.drawn(count)
    else:
        drawn, derived = _of_files(files, batches, examples), None
    noise, chosen = _noise(
        drawn, epsilon, noise_multiplier, delta, batches, examples, limit, fixed=files is not None
    )
    plan = TrainingPlan(
        chosen,
        batches.epochs,
        noise,
        clip_norm,
        learning_rate,
        embedding_dim=embedding_dim,
        hidden=_widths(hidden),
    )
    out_console = Console(stderr=True, highlight=False) if json else output.console()
    introduce(out_console, dataset, plan, delta, derived)
    if files is not None:
        there = files.epochs
        missing = next(epoch for epoch in range(len(there) + 1) if epoch not in there)
        if missing < plan.epochs:
            out_console.print(
                f"Epoch {missing} is not built yet. If it is still missing when it is its turn, training stops; the "
                "same command continues it.",
                style="yellow",
            )
    with stopping() as stopped, training_bar(out_console) as show:
        result = run(
            dataset,
            plan,
            key=key,
            directory=out,
            delta=delta,
            batches=files,
            stop_after=stop_after,
            should_stop=stopped,
            checkpoint_seconds=checkpoint_seconds,
            progress=show,
            accept_changes=accept_changes,
            allow_uncovered=allow_uncovered,
        )
    if json:
        card = None if result.card is None else result.card.to_dict()
        output.print_json({"steps": result.steps, "metrics": dict(result.metrics), "card": card})
    else:
        conclude(out_console, result, out)
    if stopped() and result.steps < plan.total_steps:
        raise typer.Exit(INTERRUPTED)


def introduce(out: Console, dataset: Dataset, plan: TrainingPlan, delta: float, derived: str | None) -> None:
    """Say what is going to be run, before it costs anything."""
    from ballsbins.training.jax.model import Model

    model = Model.for_features(dataset.features, embedding_dim=plan.embedding_dim, hidden=plan.hidden)
    out.print(
        f"{dataset.num_examples('train'):,} examples, {len(dataset.features.integers)} integers and "
        f"{len(dataset.features.categories)} categories; {model.num_parameters:,} parameters"
    )
    if plan.mechanism is None:
        out.print("[bold]No noise, so no privacy.[/bold]")
        return
    bound = plan.mechanism.epsilon(delta)
    out.print(describe(plan.mechanism, derived))
    out.print(f"[bold]ε ≤ {up(float(bound.upper))}[/bold] at δ = {stated(delta)} when it is done")


def conclude(out: Console, result: Result, directory: Path) -> None:
    """Say how good the model is, what was run, and where everything is."""
    total = result.plan.total_steps
    if result.steps < total:
        out.print(
            f"Stopped after {result.steps:,} of {total:,} steps. The same command continues; what follows is for the "
            "steps taken so far."
        )
    for name, title in (("test", "test"), ("validation", "validation")):
        if f"{name}_auc" in result.metrics:
            out.print(f"AUC on the {title} split: [bold]{result.metrics[f'{name}_auc']:.4f}[/bold]")
    if result.card is not None:
        claim = result.card.claim
        out.print(f"ε ≤ [bold]{up(float(claim.upper))}[/bold] at δ = {stated(result.card.delta)}")
        planned = result.card.planned
        if planned is not None and planned.total_steps > result.card.mechanism.total_steps:
            full = up(float(planned.epsilon(result.card.delta).upper))
            out.print(
                f"As planned it would be ε ≤ {full}: report that one if the decision to stop looked at the model or "
                "the data."
            )
        out.print(f"method: {how(claim)}", style="dim")
        floating_point = result.card.floating_point
        if floating_point is not None:
            covered = "floating point is NOT covered on this machine: see statement.md"
            if floating_point.eta is not None:
                covered = f"floating point is covered, η = {up(floating_point.eta, 2)}"
            out.print(f"run {result.card.run}; {covered}", style="dim")
    files = "model.npz" + (", card.json and statement.md" if result.card is not None else "")
    out.print(f"Wrote {escape(str(directory))}: {files}", style="dim")


def _noise(
    drawn: Sampler,
    epsilon: float | None,
    sigma: float | None,
    delta: float,
    batches: Batches,
    examples: int,
    limit: MaxBatchSize,
    *,
    fixed: bool,
) -> tuple[float, Sampler]:
    """σ as stated or calibrated, and the sampler with its largest batch; `fixed` leaves the sampler as it is."""
    from ballsbins.calibration import calibrate
    from ballsbins.largest_batch import limited

    if (epsilon is None) == (sigma is None):
        advice = "Give --epsilon to have the noise found, or --noise-multiplier; 0 trains without privacy."
        both = "left out if --noise-multiplier is given" if sigma is not None else "given"
        raise InvalidInputError("--epsilon", epsilon, both, advice)
    target, epochs = epsilon, batches.epochs
    if target is None and sigma:
        target = float(Mechanism(drawn, sigma, epochs).epsilon(delta).upper)
    if not fixed:
        drawn = limited(
            drawn, examples, limit, epochs=epochs, epsilon=target, delta=delta, batch_size=batches.batch_size
        )
    if sigma is None:
        assert epsilon is not None
        return calibrate(drawn, epsilon=epsilon, delta=delta, epochs=epochs).noise_multiplier, drawn
    return sigma, drawn


def _open(directory: str) -> BatchFiles:
    from ballsbins.batch_files import BatchFiles

    return BatchFiles.open(directory)


def _of_files(files: BatchFiles, batches: Batches, examples: int) -> Sampler:
    """The sampler that wrote the batches; options that say otherwise are errors."""
    drawn = files.manifest.sampler
    stated_steps = batches.steps is not None or batches.batch_size is not None
    if stated_steps and (wanted := batches.count(examples)[0]) != drawn.steps:
        advice = "The batch files decide: leave out --steps and --batch-size, or build the batches again."
        raise InvalidInputError(
            "the number of steps", wanted, f"{drawn.steps}, as in the batch files", advice
        )
    return drawn


def _widths(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if part)
    except ValueError:
        advice = "Give widths with commas between them, such as 598,598,598."
        raise InvalidInputError("--hidden", text, "a list of integers", advice) from None
