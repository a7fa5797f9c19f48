"""The options that `build` and `assign` share (the table, what is run on it, and where), and what a dry run says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from ballsbins import _check, ask
from ballsbins.cli import output
from ballsbins.cli.options import DATA, RUN, Batches, LimitOption
from ballsbins.cli.progress import bytes_shown, log, seconds_shown
from ballsbins.errors import InvalidInputError
from ballsbins.report.numbers import count
from ballsbins.samplers import Sampler

if TYPE_CHECKING:
    from ballsbins.batch_files.build_plan import BuildPlan
    from ballsbins.batch_files.inputs import Inputs
    from ballsbins.batch_files.sort import Memory

HOW = "How it is built"


class EngineName(StrEnum):
    """What `--engine` may be."""

    EMBEDDED = "embedded"
    SPARK = "spark"


InputsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="INPUT", help="Parquet, CSV or TSV files, directories of them, or addresses as s3://…"
    ),
]


@dataclass(frozen=True, kw_only=True)
class Epochs(Batches):
    """Which batches are drawn, and for which epochs of which run."""

    epoch: Annotated[
        int | None,
        typer.Option("--epoch", help="Only this epoch, counted from 0; all by default.", rich_help_panel=RUN),
    ] = None
    run: Annotated[
        str | None,
        typer.Option("--run", help="Id of the run to continue; a new one by default.", rich_help_panel=RUN),
    ] = None
    max_batch_size: LimitOption = None

    def numbers(self) -> list[int]:
        """The epochs that are asked for: all, or one of them."""
        advice = "State how often the data is passed."
        count = _check.integer("--epochs", self.epochs, 1, advice=advice)
        return list(range(count)) if self.epoch is None else [self.epoch]

    def sampler_for(self) -> Callable[[int], Sampler]:
        """The sampler as a function of the number of rows, which is known when they are counted."""
        if self.steps is None and self.batch_size is None:
            raise InvalidInputError("--steps", None, "given", "Give --steps or --batch-size.")
        limit = None if self.max_batch_size is None else ask.limit_from(self.max_batch_size)

        def chosen(num_examples: int) -> Sampler:
            drawn = self.drawn(self.count(num_examples)[0])
            if limit is None:
                return drawn
            expected = -(-num_examples // drawn.steps)
            if drawn.random_sizes and isinstance(limit, int) and limit < expected:
                # most batches would lose rows, so that the penalty alone is above any δ
                bound = f"at least {expected:,}, the expected size of a batch"
                advice = "No ε covers so much truncation; auto finds a size that costs next to nothing."
                raise InvalidInputError("--max-batch-size", limit, bound, advice)
            from ballsbins.largest_batch import limited

            return limited(drawn, num_examples, limit, epochs=self.epochs, batch_size=self.batch_size)

        return chosen


@dataclass(frozen=True, kw_only=True)
class Table:
    """How the rows of the input are read."""

    identity: Annotated[
        str | None,
        typer.Option(
            "--identity",
            help="Unique column that names a row; its position by default.",
            rich_help_panel=DATA,
        ),
    ] = None
    no_header: Annotated[
        bool,
        typer.Option(
            "--no-header", help="Text files begin with data; columns are f0, f1, …", rich_help_panel=DATA
        ),
    ] = False
    column_type: Annotated[
        list[str] | None,
        typer.Option(
            "--type", metavar="NAME=TYPE", help="Arrow type of a column of text files.", rich_help_panel=DATA
        ),
    ] = None

    without: Annotated[
        list[str] | None,
        typer.Option(
            "--without", metavar="NAME", help="Column to leave out; may be repeated.", rich_help_panel=DATA
        ),
    ] = None

    def opened(self, inputs: list[str] | None) -> Inputs:
        """The table that the options describe."""
        from ballsbins.batch_files.inputs import CsvOptions, open_inputs

        named: dict[str, str] = {}
        for entry in self.column_type or ():
            name, equals, kind = entry.partition("=")
            if not equals or not name or not kind:
                raise InvalidInputError("--type", entry, "NAME=TYPE", "For example --type price=float64")
            if name in named:
                raise InvalidInputError("--type", entry, f"stated once for {name}", "Leave one of them out.")
            named[name] = kind
        found = open_inputs(inputs or [], csv=CsvOptions(header=not self.no_header, types=named))
        names = found.schema.names
        for name in self.without or ():
            if name not in names:
                raise InvalidInputError("--without", name, f"among {', '.join(names)}", "Name a column.")
        return found.only([name for name in names if name not in self.without]) if self.without else found


@dataclass(frozen=True, kw_only=True)
class Work:
    """Where the work is done, with how much memory, and what is told about it."""

    memory: Annotated[
        str,
        typer.Option(
            "--memory",
            help="Memory limit of the embedded engine, or of a Python worker of Spark.",
            rich_help_panel=HOW,
        ),
    ] = "1GB"
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            help="Threads that share this memory; one for each core by default.",
            rich_help_panel=HOW,
        ),
    ] = None
    scratch: Annotated[
        Path | None,
        typer.Option(
            "--scratch",
            help="Where temporary files go, as secret as the rest; beside the output by default.",
            rich_help_panel=HOW,
        ),
    ] = None
    group_readable: Annotated[
        bool,
        typer.Option(
            "--group-readable",
            help="Accept a directory of mode 0770: its group is trusted with the batches.",
            rich_help_panel=HOW,
        ),
    ] = False
    compression: Annotated[
        str, typer.Option("--compression", help="snappy, zstd, lz4 or none.", rich_help_panel=HOW)
    ] = "snappy"
    engine: Annotated[
        EngineName,
        typer.Option("--engine", help="Where to run: on this machine, or on Spark.", rich_help_panel=HOW),
    ] = EngineName.EMBEDDED
    master: Annotated[
        str | None,
        typer.Option("--master", help="Spark's master; local[*] by default.", rich_help_panel=HOW),
    ] = None
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Say what would be done, and what it needs.", rich_help_panel=HOW),
    ] = False
    json_log: Annotated[
        bool,
        typer.Option("--json-log", help="Progress and result as lines of JSON.", rich_help_panel=HOW),
    ] = False

    def check_master(self) -> None:
        """Only Spark has a master, and only the embedded engine has workers and temporary files of its own."""
        if self.engine is EngineName.SPARK:
            for name, value in (("--workers", self.workers), ("--scratch", self.scratch)):
                if value is not None:
                    advice = (
                        "Spark's own settings say how many tasks run, and where it keeps what it shuffles."
                    )
                    raise InvalidInputError(name, str(value), "left out with --engine spark", advice)
        if self.engine is EngineName.EMBEDDED and self.master is not None:
            bound = "left out without --engine spark"
            raise InvalidInputError("--master", self.master, bound, "Add --engine spark.")

    def limit(self) -> Memory:
        """The memory limit."""
        from ballsbins.batch_files.sort import Memory

        return Memory.parse(self.memory)

    @contextmanager
    def started(self) -> Iterator[Engine]:
        """The engine, ready to work."""
        if self.engine is EngineName.EMBEDDED:
            from ballsbins.batch_files import assignments
            from ballsbins.batch_files import build as embedded

            yield Engine(
                partial(embedded.build_epochs, scratch=self.scratch, group_readable=self.group_readable),
                partial(assignments.assign, scratch=self.scratch),
            )
            return
        from ballsbins.batch_files import spark

        with spark.session() if self.master is None else spark.session(self.master) as session:
            yield Engine(
                partial(spark.build_epochs, session=session, group_readable=self.group_readable),
                partial(spark.assign, session=session),
            )


class Engine(NamedTuple):
    """What an engine can do."""

    build: Callable[..., Any]
    assign: Callable[..., Any]


def show_plan(prepared: BuildPlan, epochs: int, work: Work) -> None:
    """Say what would be done, and what it needs; refuse what the engine would refuse."""
    prepared.require_memory()
    together = prepared.together(epochs)
    facts = prepared.to_dict() | {
        "epochs": epochs,
        "engine": str(work.engine),
        "passes": -(-epochs // together),
        "disk_bytes": prepared.disk_bytes(epochs, together),
    }
    if work.json_log:
        return log(facts)
    rows, scratch, written = (facts[name] for name in ("rows", "scratch_bytes", "output_bytes_per_epoch"))
    shape = f"{count(rows, 'row')} of {count(facts['columns'], 'column')}"
    drawn = f"{prepared.sampler.steps:,} per epoch, {prepared.sampler.name}"
    lines = [
        ("input", f"{shape}, {bytes_shown(facts['input_bytes'])}"),
        ("batches", f"{drawn}, {count(epochs, 'epoch')}"),
    ]
    if work.engine is EngineName.SPARK:
        moved = (
            f"every row once per epoch, {bytes_shown(scratch)} before compression" if scratch else "no rows"
        )
        lines += [
            ("shuffle", moved),
            ("parts", f"one file for each core, and at least {facts['part_files']:,}"),
            ("free disk needed", f"{bytes_shown(epochs * written)} for the output"),
        ]
    else:
        lines.append(
            ("memory limit", f"{bytes_shown(facts['memory_limit'])}, {count(facts['workers'], 'worker')}")
        )
        if scratch:
            buckets = count(facts["buckets"], "bucket")
            passes = (
                "once" if together >= epochs else f"{facts['passes']} times, for {together} epochs at a time"
            )
            lines += [
                ("reading", f"the input is read {passes}"),
                (
                    "pass one",
                    f"scatters rows into {buckets} per epoch, {bytes_shown(scratch)} on disk for each",
                ),
                ("pass two", f"sorts each and writes, {bytes_shown(written)} per epoch"),
            ]
        else:
            lines.append(("one pass", f"draws and writes batch by batch, {bytes_shown(written)} per epoch"))
        seconds = seconds_shown(epochs * facts["seconds_per_epoch"])
        lines += [
            ("free disk needed", bytes_shown(facts["disk_bytes"])),
            ("time", f"about {seconds} in all, from a trial on some rows"),
        ]
    console = output.console()
    width = max(len(name) for name, _ in lines)
    for name, value in lines:
        console.print(f"[bold]{name:{width}}[/bold]  {value}", soft_wrap=True)
    return console.print("Nothing was written.", style="dim")
