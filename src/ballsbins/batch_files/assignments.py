"""Write only the assignment, (row identity, epoch, batch), for users who join it with their data in a warehouse.

Rows are in batch order. For samplers that put every row into one batch, the embedded engine runs on the identities
alone, so truncation and the search for duplicates are the same. Poisson puts a row into Bin(T, 1/T) batches of an
epoch: one on average, and none with probability 1/e. So the file has about n rows per epoch, a join with it repeats
rows, and 37 % of the data are not in it. Poisson batches are drawn one by one, and only one is in memory at a time.

The file's key-value metadata holds the public id of its run (`RUN_METADATA`). With it, further epochs of the run can
be assigned later.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ballsbins._extras import Later
from ballsbins.batch_files.build import Report, Reporter
from ballsbins.batch_files.build_plan import BuildPlan, plan_build
from ballsbins.batch_files.epoch_directory import new_file
from ballsbins.batch_files.format import stored_epoch
from ballsbins.batch_files.inputs import Digests, Inputs, Piece
from ballsbins.batch_files.row_order import check_row_order, row_order_of
from ballsbins.batch_files.sort import Memory
from ballsbins.batch_files.store import DIRECTORY_MODE, located
from ballsbins.batch_files.two_passes import Scattered
from ballsbins.errors import InvalidInputError
from ballsbins.samplers import Key, Sampler
from ballsbins.samplers.base import check_epoch

if TYPE_CHECKING:
    import pyarrow as pa

arrow = Later("pyarrow", feature="Writing assignments", extra="data")
parquet = Later("pyarrow.parquet", feature="Writing assignments", extra="data")

POSITION, EPOCH, BATCH = "position", "epoch", "batch"
RUN_METADATA = b"ballsbins.run"
_ROW_GROUP = 1 << 18


class Positions(Inputs):
    """A table that consists only of the numbers 0 … n − 1, without files."""

    def __init__(self, num_examples: int) -> None:
        """Take the number of rows."""
        self.files, self._rows = (), num_examples
        self.dictionary_types = {}
        self.schema: pa.Schema = arrow.schema([arrow.field(POSITION, arrow.int64())])

    @property
    def bytes(self) -> int:
        """The size that the numbers would have if they were stored."""
        return 8 * self._rows

    def count(self) -> int:
        """The number of rows."""
        return self._rows

    @cached_property
    def stored_row_bytes(self) -> float:
        """The size per row if the numbers were stored."""
        return 8.0

    def sample(self) -> pa.Table:
        """The first rows."""
        return arrow.table([arrow.array(np.arange(min(self._rows, _ROW_GROUP)))], schema=self.schema)

    def pieces(self) -> list[Piece]:
        """Pieces with as many numbers as a row group of the output file."""
        return [
            Piece(0, begin // _ROW_GROUP, begin, rows, 8 * rows)
            for begin in range(0, self._rows, _ROW_GROUP)
            if (rows := min(_ROW_GROUP, self._rows - begin))
        ]

    def read(
        self, rows: int, pieces: Sequence[Piece] | None = None, digests: Digests | None = None
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Give some rows at a time; there is nothing to hash."""
        del digests
        done = 0
        for piece in self.pieces() if pieces is None else pieces:
            for begin in range(piece.first, piece.first + piece.rows, rows):
                numbers = np.arange(begin, min(begin + rows, piece.first + piece.rows))
                done += len(numbers)
                yield 8 * done, arrow.record_batch([arrow.array(numbers)], schema=self.schema)


def plan_assignment(
    source: Inputs | int,
    sampler: Sampler | Callable[[int], Sampler],
    *,
    identity_column: str | None = None,
    memory: Memory | None = None,
    compression: str = "snappy",
    workers: int | None = None,
) -> BuildPlan:
    """Decide how to assign rows to batches.

    Args:
        source: the table; or the number of rows, if rows are identified by their position.
        sampler: how batches are drawn; or a function that maps the number of rows to a sampler.
        identity_column: the unique column that identifies the rows.
        memory: the limit on resident memory; 1 GB by default.
        compression: codec of the Parquet file: snappy, zstd, lz4 or none.
        workers: the number of threads; by default one per core, if there is enough memory for them.

    Returns:
        The plan that `assign` takes.

    Raises:
        InvalidInputError: an argument does not fit the sampler or the table.

    Example:
        >>> from ballsbins import BallsAndBins
        >>> plan_assignment(100, BallsAndBins(steps=4)).num_examples
        100
    """
    if identity_column is None:
        rows: Any = Positions(source if isinstance(source, int) else source.count())
    elif isinstance(source, int):
        raise InvalidInputError(
            "the identity column", identity_column, "left out without inputs", "Name the files that have it."
        )
    elif identity_column in (EPOCH, BATCH):
        raise InvalidInputError(
            "the identity column", identity_column, f"of another name than {EPOCH} and {BATCH}",
            "The assignment has columns of these names: rename yours.",
        )  # fmt: skip
    else:
        rows = source.only([identity_column])
    made = plan_build(
        rows,
        sampler,
        identity_column=identity_column,
        memory=memory,
        compression=compression,
        workers=workers,
    )
    if made.sampler.partitions:
        check_row_order(made.sampler, made.num_examples, made.identity)
    else:
        require_numbered(made)
    return made


def assign(
    plan: BuildPlan,
    path: str | os.PathLike[str],
    key: Key,
    epochs: Sequence[int] = (0,),
    report: Report | None = None,
    *,
    scratch: Path | None = None,
) -> str:
    """Write the assignment of some epochs as one Parquet file of mode 0600. The file is as secret as the key.

    Args:
        plan: what to assign, from `plan_assignment`.
        path: the file to write, or its address in an object store; it must not exist yet.
        key: a master key, to start a new run; or the key of a run, `master.for_run(run)`, to continue that run.
        epochs: the epochs to assign, counted from 0.
        report: called with the progress.
        scratch: where temporary files go; by default beside the file, or in the system's temporary directory.

    Returns:
        The public id of the run. The file also has it: `pyarrow.parquet.read_schema(path).metadata[RUN_METADATA]`.

    Raises:
        InvalidInputError: `epochs` is empty.
        DataError: the file exists, or cannot be written.

    Example:
        >>> import pyarrow.parquet as pq
        >>> from ballsbins import BallsAndBins, new_key
        >>> from ballsbins.batch_files.assignments import plan_assignment
        >>> run = assign(plan_assignment(100, BallsAndBins(steps=4)), "assignment.parquet", new_key())
        >>> pq.read_table("assignment.parquet").column_names
        ['position', 'epoch', 'batch']
    """
    numbers = checked_epochs(epochs)
    run_key = key.for_run()
    schema = assignment_schema(plan, run_key)
    target = located(path)
    together = plan.require_disk(target.parent, scratch, len(numbers))
    with (
        new_file(target, scratch) as (made, work),
        made.create() as sink,
        parquet.ParquetWriter(sink, schema, compression=plan.compression, write_statistics=False) as file,
    ):
        for first in range(0, len(numbers), together):
            some = numbers[first : first + together]
            reporter = Reporter(report, some, plan.num_examples, plan.inputs.bytes)
            for table in _epochs_of(plan, run_key, some, work, reporter, schema):
                file.write_table(table)
    return str(run_key.run)


def checked_epochs(epochs: Sequence[int]) -> list[int]:
    """Check the epochs to assign: there must be at least one."""
    if not epochs:
        raise InvalidInputError("epochs", list(epochs), "at least one", "Name the epochs to assign, from 0.")
    return [check_epoch(epoch) for epoch in epochs]


def assignment_schema(plan: BuildPlan, run_key: Key) -> pa.Schema:
    """The columns of an assignment: row identity, epoch and batch. The metadata holds the id of the run."""
    return arrow.schema(
        [*plan.inputs.schema, arrow.field(EPOCH, arrow.int64()), arrow.field(BATCH, arrow.int32())],
        metadata={RUN_METADATA: str(run_key.run)},
    )


def _epochs_of(
    plan: BuildPlan, key: Key, epochs: Sequence[int], scratch: Path, reporter: Reporter, schema: pa.Schema
) -> Iterator[pa.Table]:
    """Give the assignment of some epochs, from one pass over the identities."""

    def finished(epoch: int, table: pa.Table, steps: Any) -> pa.Table:
        columns = [
            *table.columns,
            arrow.array(np.full(len(steps), epoch)),
            arrow.array(steps.astype(np.int32)),
        ]
        return arrow.table(columns, schema=schema)

    if not plan.sampler.partitions:
        for epoch in epochs:
            for table, steps in _poisson(plan, key, epoch, reporter):
                yield finished(epoch, table, steps)
        return
    directories = [scratch / f"epoch-{number}" for number in range(len(epochs))]
    for directory in directories:
        directory.mkdir(mode=DIRECTORY_MODE)
    row_orders = [
        row_order_of(plan.sampler, key, stored_epoch(plan.sampler, epoch), plan.num_examples, plan.identity)
        for epoch in epochs
    ]
    scattered = Scattered(plan, row_orders, directories)
    scattered.read(reporter.read)
    for epoch, row_order, sort in zip(epochs, row_orders, scattered.sorts, strict=True):
        for batches in row_order.arrange(sort.buckets(0, row_order.num_places)):
            stop = batches.first_step + len(batches.sizes)
            steps = np.repeat(np.arange(batches.first_step, stop), batches.sizes)
            for begin in range(0, len(steps), _ROW_GROUP):
                rows = arrow.array(batches.order[begin : begin + _ROW_GROUP])
                yield finished(epoch, batches.table.take(rows), steps[begin : begin + _ROW_GROUP])
            reporter.written(epoch, stop, plan.sampler.steps)
    for directory in directories:
        directory.rmdir()


def require_numbered(plan: BuildPlan) -> None:
    """Refuse an identity column for Poisson, which identifies rows by their number."""
    if plan.identity is not None:
        raise InvalidInputError(
            "the identity column",
            plan.identity.name,
            "left out for Poisson",
            "Only balls-and-bins places a row by itself; the other samplers number the rows.",
        )


def _poisson(plan: BuildPlan, key: Key, epoch: int, reporter: Reporter) -> Iterator[tuple[pa.Table, Any]]:
    waiting: list[Any] = []
    steps: list[int] = []
    held = 0
    for step, batch in enumerate(plan.sampler.batches(plan.num_examples, key, epoch)):
        waiting.append(batch.astype(np.int64))
        steps.append(step)
        held += len(batch)
        if held >= _ROW_GROUP or step == plan.sampler.steps - 1:
            positions = arrow.table([arrow.array(np.concatenate(waiting))], schema=plan.inputs.schema)
            yield positions, np.repeat(steps, [len(part) for part in waiting])
            waiting, steps, held = [], [], 0
            reporter.written(epoch, step + 1, plan.sampler.steps)
