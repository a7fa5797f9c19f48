"""The options that `build` and `assign` share: the table, what is run on it, and by which engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from ballsbins import _check
from ballsbins.cli import options
from ballsbins.cli.options import SamplerName
from ballsbins.errors import InvalidInputError
from ballsbins.samplers import Sampler

if TYPE_CHECKING:
    from ballsbins.batch_files.inputs import Inputs
    from ballsbins.batch_files.sort import Memory

RUN, DATA, HOW = "What is run", "The data", "How it is built"


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
    typer.Option("--epoch", help="Only this epoch, counted from 0; all by default.", rich_help_panel=RUN),
]
RunOption = Annotated[
    str | None,
    typer.Option("--run", help="Id of the run to continue; a new one by default.", rich_help_panel=RUN),
]
MaxBatchSizeOption = Annotated[
    str | None,
    typer.Option(
        "--max-batch-size",
        "-B",
        help="Truncate larger batches, as training needs it: auto, a number, paper-pctr or paper-search.",
        rich_help_panel=RUN,
    ),
]
IdentityOption = Annotated[
    str | None,
    typer.Option(
        "--identity", help="Unique column that names a row; its position by default.", rich_help_panel=DATA
    ),
]
NoHeaderOption = Annotated[
    bool,
    typer.Option(
        "--no-header", help="Text files begin with data; columns are f0, f1, …", rich_help_panel=DATA
    ),
]
TypeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--type", metavar="NAME=TYPE", help="Arrow type of a column of text files.", rich_help_panel=DATA
    ),
]
MemoryOption = Annotated[
    str, typer.Option("--memory", help="Memory limit of the embedded engine.", rich_help_panel=HOW)
]
CompressionOption = Annotated[
    str, typer.Option("--compression", help="snappy, zstd, lz4 or none.", rich_help_panel=HOW)
]
EngineOption = Annotated[EngineName, typer.Option("--engine", help="Where it runs.", rich_help_panel=HOW)]
MasterOption = Annotated[
    str | None,
    typer.Option("--master", help="Spark's master; local[*] by default.", rich_help_panel=HOW),
]
DryRunOption = Annotated[
    bool,
    typer.Option("--dry-run", help="Say what would be done, and what it needs.", rich_help_panel=HOW),
]
JsonLogOption = Annotated[
    bool,
    typer.Option("--json-log", help="Progress and result as lines of JSON.", rich_help_panel=HOW),
]


def opened(inputs: list[str] | None, no_header: bool, types: list[str] | None) -> Inputs:
    """The table that the options describe."""
    from ballsbins.batch_files.inputs import CsvOptions, open_inputs

    named: dict[str, str] = {}
    for entry in types or ():
        name, equals, kind = entry.partition("=")
        if not equals or not name or not kind:
            raise InvalidInputError("--type", entry, "NAME=TYPE", "For example --type price=float64")
        if name in named:
            raise InvalidInputError("--type", entry, f"stated once for {name}", "Leave one of them out.")
        named[name] = kind
    return open_inputs(inputs or [], csv=CsvOptions(header=not no_header, types=named))


def sampler_for(
    name: SamplerName,
    steps: int | None,
    batch_size: int | None,
    *,
    fixed_bins: bool,
    max_batch_size: str | None,
    epochs: int,
) -> Callable[[int], Sampler]:
    """The sampler as a function of the number of rows, which is known when they are counted."""
    if steps is None and batch_size is None:
        raise InvalidInputError("--steps", None, "given", "Give --steps or --batch-size.")
    limit = None if max_batch_size is None else options.limit_from(max_batch_size)

    def chosen(num_examples: int) -> Sampler:
        count, _ = options.steps_from(steps, num_examples, batch_size)
        drawn = options.sampler_from(
            name, count, fixed_bins=fixed_bins, max_batch_size=None, examples=num_examples
        )
        if limit is None:
            return drawn
        from ballsbins.calibration import limited

        return limited(drawn, num_examples, limit, epochs=epochs, batch_size=batch_size)

    return chosen


def epochs_from(epochs: int, epoch: int | None) -> list[int]:
    """The epochs that are asked for: all, or one of them."""
    count = _check.integer("--epochs", epochs, 1, advice="State how often the data is passed.")
    return list(range(count)) if epoch is None else [epoch]


def memory_from(text: str) -> Memory:
    """The memory limit."""
    from ballsbins.batch_files.sort import Memory

    return Memory.parse(text)


def check_master(engine: EngineName, master: str | None) -> None:
    """Only Spark has a master."""
    if engine is EngineName.EMBEDDED and master is not None:
        raise InvalidInputError("--master", master, "left out without --engine spark", "Add --engine spark.")


class Engine(NamedTuple):
    """What an engine can do."""

    build: Callable[..., Any]
    assign: Callable[..., Any]


@contextmanager
def engine_of(name: EngineName, master: str | None) -> Iterator[Engine]:
    """The engine, ready to work."""
    if name is EngineName.EMBEDDED:
        from ballsbins.batch_files import assignments as assignment
        from ballsbins.batch_files import build as local

        yield Engine(local.build, assignment.assign)
        return
    from ballsbins.batch_files import spark

    with spark.session() if master is None else spark.session(master) as session:
        yield Engine(partial(spark.build, session=session), partial(spark.assign, session=session))
