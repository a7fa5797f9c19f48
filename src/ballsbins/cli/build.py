"""`ballsbins build | assign`: batch files, or only who goes where, for data that does not fit in memory."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from ballsbins.cli import options, render
from ballsbins.cli.keys import KeyFileOption, key_from
from ballsbins.cli.options import SamplerName
from ballsbins.errors import InvalidInputError
from ballsbins.mechanism import Mechanism
from ballsbins.samplers import Sampler

if TYPE_CHECKING:
    from ballsbins.engines.inputs import Inputs
    from ballsbins.engines.plan import Plan
    from ballsbins.engines.progress import Progress, Report

_TABLE, _RUN, _HOW = "The table", "What is run", "How it is built"


class EngineName(StrEnum):
    """What `--engine` may be."""

    EMBEDDED = "embedded"
    SPARK = "spark"


InputsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="INPUT...", help="Parquet, CSV or TSV files, directories of them, or addresses as s3://…"
    ),
]
EpochOption = Annotated[
    int | None,
    typer.Option("--epoch", help="Only this epoch, counted from 0; all by default.", rich_help_panel=_RUN),
]
IdentityOption = Annotated[
    str | None,
    typer.Option(
        "--identity", help="Unique column that names a row; its position by default.", rich_help_panel=_TABLE
    ),
]
NoHeaderOption = Annotated[
    bool,
    typer.Option(
        "--no-header", help="Text files begin with data; columns are f0, f1, …", rich_help_panel=_TABLE
    ),
]
TypeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--type", metavar="NAME=TYPE", help="Arrow type of a column of text files.", rich_help_panel=_TABLE
    ),
]
MemoryOption = Annotated[
    str, typer.Option("--memory", help="Memory limit of the embedded engine.", rich_help_panel=_HOW)
]
CompressionOption = Annotated[
    str, typer.Option("--compression", help="snappy, zstd, lz4 or none.", rich_help_panel=_HOW)
]
DryRunOption = Annotated[
    bool,
    typer.Option("--dry-run", help="Say what would be done, and what it needs.", rich_help_panel=_HOW),
]
JsonLogOption = Annotated[
    bool,
    typer.Option("--json-log", help="Progress and result as lines of JSON.", rich_help_panel=_HOW),
]


EngineOption = Annotated[EngineName, typer.Option("--engine", help="Where it runs.", rich_help_panel=_HOW)]
MasterOption = Annotated[
    str | None,
    typer.Option("--master", help="Spark's master; local[*] by default.", rich_help_panel=_HOW),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("build")(build)
    app.command("assign")(assign)


def build(
    inputs: InputsArgument = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Directory of the batch files.")] = None,
    steps: options.StepsOption = None,
    batch_size: options.BatchSizeOption = None,
    epochs: options.EpochsOption = 1,
    epoch: EpochOption = None,
    sampler: options.SamplerOption = SamplerName.BALLS_AND_BINS,
    fixed_bins: options.FixedBinsOption = False,
    max_batch_size: Annotated[
        int | None,
        typer.Option("--max-batch-size", "-B", help="Truncate larger batches.", rich_help_panel="The data"),
    ] = None,
    pad: Annotated[
        bool,
        typer.Option(
            "--pad", help="Fill all batches with rows of weight 0 to one size.", rich_help_panel=_RUN
        ),
    ] = False,
    noise_multiplier: Annotated[
        float | None,
        typer.Option(
            "--noise-multiplier", "-s", help="σ, to be recorded, if already decided.", rich_help_panel=_RUN
        ),
    ] = None,
    examples: Annotated[
        int | None,
        typer.Option("--examples", "-n", help="Rows that there must be.", rich_help_panel="The data"),
    ] = None,
    identity: IdentityOption = None,
    no_header: NoHeaderOption = False,
    column_type: TypeOption = None,
    key_file: KeyFileOption = None,
    memory: MemoryOption = "1GB",
    compression: CompressionOption = "snappy",
    engine: EngineOption = EngineName.EMBEDDED,
    master: MasterOption = None,
    remove: Annotated[
        list[int] | None,
        typer.Option(
            "--remove", metavar="EPOCH", help="Remove an epoch after training, and do nothing else."
        ),
    ] = None,
    dry_run: DryRunOption = False,
    json_log: JsonLogOption = False,
) -> None:
    """Write a table of any size as files in batch order, which a trainer reads front to back.

    The files are the assignment: as secret as the key. They are made readable by you alone; remove them after
    training. For example: ballsbins build clicks/ --out batches/ --batch-size 1024 --key-file key
    """
    from ballsbins.engines.plan import plan

    if out is None:
        raise InvalidInputError("--out", None, "given", "Name the directory of the batch files.")
    if remove:
        return _remove(out, remove)
    _check_master(engine, master)
    table = _open(inputs, no_header, column_type)
    chosen = _sampler_of(sampler, steps, batch_size, fixed_bins=fixed_bins, max_batch_size=max_batch_size)
    prepared = plan(
        table, chosen, identity_column=identity, pad=pad, memory=_memory(memory), compression=compression,
        num_examples=examples,
        mechanism=None if noise_multiplier is None else lambda drawn: Mechanism(drawn, noise_multiplier, epochs),
    )  # fmt: skip
    numbers = _epochs_of(prepared.sampler, epochs, epoch)
    if dry_run:
        return _show_plan(prepared, len(numbers), engine, json_log=json_log)
    key = key_from(key_file)
    with _progress(json_log=json_log) as report, _engine(engine, master) as run:
        for number in numbers:
            manifest = run.build(prepared, out, key, number, report)
            if json_log:
                _log(
                    {"event": "built", "epoch": number, "directory": str(out), "manifest": manifest.to_dict()}
                )
    if not json_log:
        which = f"epoch {numbers[0]}" if len(numbers) == 1 else f"epochs {numbers[0]} to {numbers[-1]}"
        console = render.console()
        console.print(
            f"[bold]{out}[/bold] has {which}: {prepared.num_examples:,} rows in "
            f"{prepared.sampler.steps:,} batches, {render.name_of(prepared.sampler)}.",
            soft_wrap=True,
        )
        console.print(
            f"It is as secret as the key. After training: ballsbins build --out {out} --remove {numbers[-1]}",
            style="dim",
            soft_wrap=True,
        )
    return None


def assign(
    inputs: InputsArgument = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Parquet file to write.")] = None,
    steps: options.StepsOption = None,
    batch_size: options.BatchSizeOption = None,
    epochs: options.EpochsOption = 1,
    epoch: EpochOption = None,
    sampler: options.SamplerOption = SamplerName.BALLS_AND_BINS,
    fixed_bins: options.FixedBinsOption = False,
    max_batch_size: Annotated[
        int | None,
        typer.Option("--max-batch-size", "-B", help="Truncate larger batches.", rich_help_panel="The data"),
    ] = None,
    examples: Annotated[
        int | None,
        typer.Option(
            "--examples",
            "-n",
            help="Number of rows, in place of inputs, to name rows by position.",
            rich_help_panel="The data",
        ),
    ] = None,
    identity: IdentityOption = None,
    no_header: NoHeaderOption = False,
    column_type: TypeOption = None,
    key_file: KeyFileOption = None,
    memory: MemoryOption = "1GB",
    compression: CompressionOption = "snappy",
    engine: EngineOption = EngineName.EMBEDDED,
    master: MasterOption = None,
    dry_run: DryRunOption = False,
    json_log: JsonLogOption = False,
) -> None:
    """Write only (row identity, epoch, batch), to be joined with the data elsewhere.

    The file is the assignment: as secret as the key. Poisson batches repeat rows: about one line a row and epoch, but
    37 % of the rows in no batch and the others in one or more; a join with it copies them as often. For example:
    ballsbins assign clicks/ --identity user --out bins.parquet --steps 1000 --epochs 5 --key-file key
    """
    from ballsbins.engines.assign import plan_assignment

    if out is None:
        raise InvalidInputError("--out", None, "given", "Name the Parquet file to write.")
    if inputs and examples is not None:
        raise InvalidInputError("--examples", examples, "left out with inputs", "Their rows are counted.")
    if not inputs and examples is None:
        raise InvalidInputError("the inputs", None, "given", "Name files, or their rows with --examples.")
    _check_master(engine, master)
    chosen = _sampler_of(sampler, steps, batch_size, fixed_bins=fixed_bins, max_batch_size=max_batch_size)
    source: Any = examples if examples is not None else _open(inputs, no_header, column_type)
    prepared = plan_assignment(
        source, chosen, identity_column=identity, memory=_memory(memory), compression=compression
    )
    numbers = list(range(epochs)) if epoch is None else [epoch]
    if dry_run:
        return _show_plan(prepared, len(numbers), engine, json_log=json_log)
    key = key_from(key_file)
    with _progress(json_log=json_log) as report, _engine(engine, master) as run:
        run.assign(prepared, out, key, numbers, report)
    if json_log:
        return _log({"event": "assigned", "epochs": numbers, "file": str(out)})
    console = render.console()
    console.print(
        f"[bold]{out}[/bold] says for {prepared.num_examples:,} rows in which of {prepared.sampler.steps:,} batches "
        f"they are, {render.name_of(prepared.sampler)}.",
        soft_wrap=True,
    )
    return console.print("It is as secret as the key: remove it after training.", style="dim")


def _sampler_of(
    name: SamplerName,
    steps: int | None,
    batch_size: int | None,
    *,
    fixed_bins: bool,
    max_batch_size: int | None,
) -> Callable[[int], Sampler]:
    """The sampler as a function of the number of rows, which is known when they are counted."""
    if steps is None and batch_size is None:
        raise InvalidInputError("--steps", None, "given", "Give --steps or --batch-size.")

    def chosen(num_examples: int) -> Sampler:
        count, _ = options.steps_from(steps, num_examples, batch_size)
        return options.sampler_from(
            name, count, fixed_bins=fixed_bins, max_batch_size=max_batch_size, examples=num_examples
        )

    return chosen


def _open(inputs: list[str] | None, no_header: bool, types: list[str] | None) -> Inputs:
    from ballsbins.engines.inputs import CsvOptions, open_inputs

    named = {}
    for entry in types or ():
        name, equals, kind = entry.partition("=")
        if not equals or not name or not kind:
            raise InvalidInputError("--type", entry, "NAME=TYPE", "For example --type price=float64")
        named[name] = kind
    return open_inputs(inputs or [], csv=CsvOptions(header=not no_header, types=named))


def _memory(text: str) -> Any:
    from ballsbins.engines.memory import Memory

    return Memory.parse(text)


def _epochs_of(sampler: Sampler, epochs: int, epoch: int | None) -> list[int]:
    """The epochs to build: one where all have the same batches."""
    from ballsbins.engines.manifest import stored_epoch

    wanted = range(epochs) if epoch is None else [epoch]
    return sorted({stored_epoch(sampler, number) for number in wanted})


def _remove(out: Path, epochs: list[int]) -> None:
    from ballsbins.engines.workspace import remove_epoch

    for number in epochs:
        remove_epoch(out, number)
        typer.echo(f"Removed epoch {number} of {out}.")


class _Engine(NamedTuple):
    """What an engine can do."""

    build: Callable[..., Any]
    assign: Callable[..., Any]


@contextmanager
def _engine(name: EngineName, master: str | None) -> Iterator[_Engine]:
    if name is EngineName.EMBEDDED:
        from ballsbins.engines import assign as assignment
        from ballsbins.engines import local

        yield _Engine(local.build, assignment.assign)
        return
    from ballsbins.engines import spark

    with spark.session() if master is None else spark.session(master) as session:
        yield _Engine(partial(spark.build, session=session), partial(spark.assign, session=session))


def _check_master(engine: EngineName, master: str | None) -> None:
    if engine is EngineName.EMBEDDED and master is not None:
        raise InvalidInputError("--master", master, "left out without --engine spark", "Add --engine spark.")


def _show_plan(prepared: Plan, epochs: int, engine: EngineName, *, json_log: bool) -> None:
    facts = prepared.to_dict() | {"epochs": epochs, "engine": str(engine)}
    if json_log:
        return _log(facts)
    every, scratch = f"{epochs} epochs" if epochs > 1 else "1 epoch", _bytes(facts["scratch_bytes"])
    rows = [
        ("input", f"{facts['rows']:,} rows of {facts['columns']} columns, {_bytes(facts['input_bytes'])}"),
        ("batches", f"{prepared.sampler.steps:,} an epoch, {render.name_of(prepared.sampler)}, {every}"),
    ]
    if engine is EngineName.SPARK:
        rows += [
            ("shuffle", f"every row once an epoch, {scratch} before compression"),
            ("parts", f"one file for each core, and at least {facts['part_files']:,}"),
            ("free disk needed", f"{_bytes(epochs * facts['output_bytes_per_epoch'])} for the output"),
        ]
    else:
        rows += [
            ("memory limit", _bytes(facts["memory_limit"])),
            ("pass one", f"scatters rows into {facts['buckets']:,} buckets, {scratch} on disk"),
            ("pass two", f"sorts each and writes, {_bytes(facts['output_bytes_per_epoch'])} an epoch"),
            ("free disk needed", _bytes(facts["scratch_bytes"] + epochs * facts["output_bytes_per_epoch"])),
            ("time", f"about {_seconds(epochs * facts['seconds_per_epoch'])} in all, from a trial on the first rows"),
        ]  # fmt: skip
    console = render.console()
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        console.print(f"[bold]{name:{width}}[/bold]  {value}", soft_wrap=True)
    return console.print("Nothing was written.", style="dim")


@contextmanager
def _progress(*, json_log: bool) -> Iterator[Report | None]:
    """What is told while an engine works: lines of JSON, a bar on a terminal, or nothing."""
    if json_log:
        yield lambda at: _log(at.to_dict())
        return
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    bar = Bar(
        TextColumn("epoch {task.fields[epoch]} {task.description}"),
        BarColumn(),
        TextColumn("{task.fields[rows]} rows, {task.fields[bytes]}, {task.fields[left]} left"),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task("reading", total=1.0, epoch=0, rows="0", bytes="0 B", left="some time")

        def report(at: Progress) -> None:
            bar.update(
                task,
                description=at.stage,
                completed=at.rows / max(at.total_rows, 1),
                epoch=at.epoch,
                rows=f"{at.rows:,} of {at.total_rows:,}",
                bytes=_bytes(at.bytes),
                left="some time" if at.seconds_left is None else _seconds(at.seconds_left),
            )

        yield report


def _log(line: Any) -> None:
    typer.echo(json.dumps(line, ensure_ascii=False, allow_nan=False))


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def _seconds(count: float) -> str:
    if count < 100:
        return f"{max(1, round(count))} s"
    minutes = round(count / 60)
    return f"{minutes} min" if minutes < 100 else f"{count / 3600:.1f} h"
