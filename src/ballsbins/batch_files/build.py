"""Build one epoch of batch files, whatever the size of the table, within a stated memory limit.

The embedded engine: an epoch of batch files from a table of any size, within a stated memory limit.

Pass one reads the table in order and scatters its rows into buckets of consecutive batches; pass two sorts each
bucket and writes its batches. Every row goes to the batch that the in-memory sampler gives to its identity.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ballsbins._extras import Later
from ballsbins.batch_files.build_plan import BuildPlan
from ballsbins.batch_files.epoch_directory import complete_epochs, new_epoch, prepare_directory, read_manifest
from ballsbins.batch_files.format import Manifest, stored_epoch
from ballsbins.batch_files.inputs import Inputs
from ballsbins.batch_files.row_order import Arranged, RowOrder, check_row_order, row_order_of
from ballsbins.batch_files.sort import BucketSort, Placed
from ballsbins.batch_files.store import located
from ballsbins.batch_files.writer import PartsWriter, write_epoch_end
from ballsbins.errors import DataError
from ballsbins.samplers import Key
from ballsbins.samplers.base import check_epoch

if TYPE_CHECKING:
    import pyarrow as pa

arrow = Later("pyarrow", feature="Batching tables", extra="data")

_READING_SHARE = 0.45  # of the time of an epoch, measured; the rest is sorting and writing


@dataclass(frozen=True)
class BuildProgress:
    """One message: what is done of an epoch, in rows and in bytes of the input, and the time it has yet to take."""

    epoch: int
    stage: str
    rows: int
    total_rows: int
    bytes: int
    total_bytes: int
    seconds: float
    seconds_left: float | None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"event": "progress"} | asdict(self)


Report = Callable[[BuildProgress], None]


class Reporter:
    """Counts for one epoch, and tells `report` about it."""

    def __init__(self, report: Report | None, epoch: int, total_rows: int, total_bytes: int) -> None:
        """Begin to count the time."""
        self._report, self._epoch = report, epoch
        self._rows, self._bytes = total_rows, total_bytes
        self._begin = time.monotonic()

    def read(self, rows: int, read_bytes: int) -> None:
        """Say that so many rows were read in their given order."""
        done = rows / max(self._rows, 1)
        self._tell("reading", rows, read_bytes, _READING_SHARE * done)

    def written(self, steps: int, total_steps: int) -> None:
        """Say that so many batches were written. Their realised sizes are secret: expected ones are told."""
        done = steps / total_steps
        rows, expected = (total * steps // total_steps for total in (self._rows, self._bytes))
        self._tell("writing", rows, expected, _READING_SHARE + (1 - _READING_SHARE) * done)

    def _tell(self, stage: str, rows: int, done_bytes: int, share: float) -> None:
        if self._report is None:
            return
        seconds = time.monotonic() - self._begin
        left = seconds * (1 - share) / share if share > 0 else None
        self._report(
            BuildProgress(
                self._epoch,
                stage,
                rows,
                self._rows,
                done_bytes,
                self._bytes,
                round(seconds, 3),
                None if left is None else round(left, 3),
            )
        )


class BegunEpoch(NamedTuple):
    """The key of the run, the manifest of the epoch, and whether the directory has this epoch already."""

    key: Key
    manifest: Manifest
    is_there: bool


def begin_epoch(plan: BuildPlan, directory: Path, key: Key, epoch: int) -> BegunEpoch:
    """Prepare a directory for one epoch, and decide to which run the epoch belongs.

    Args:
        plan: what is built.
        directory: where it is built; made if it does not exist.
        key: a master key, or the key of one run.
        epoch: the number of the epoch that is stored.

    Returns:
        If the directory holds complete epochs: their run. Otherwise the run of `key` or, for a master key, a new run.
        `new_epoch` compares again before the epoch appears, since other processes may build into the directory.

    Raises:
        DataError: the directory holds epochs of another run, of another master key, or of other inputs.
    """
    check_row_order(plan.sampler, plan.num_examples, plan.identity)
    prepare_directory(directory)
    there = [read_manifest(directory, number) for number in complete_epochs(directory)]
    run_key = _key_of_run(directory, key, there)
    manifest = plan.manifest(run_key, epoch)
    for found in there:
        manifest.require_same_run(found)
    for found in there:
        if found.epoch == epoch:
            return BegunEpoch(run_key, found, is_there=True)
    return BegunEpoch(run_key, manifest, is_there=False)


def _key_of_run(directory: Path, key: Key, there: Sequence[Manifest]) -> Key:
    # The epochs of another master key cannot be continued: `require_same_run` refuses them and names the keys.
    if not there or there[0].key_commitment != key.commitment():
        return key.for_run()
    run = there[0].run
    if key.run not in (None, run):
        raise DataError(
            f"{str(directory)!r} holds epochs of the run {run}, but the key is of the run {key.run}. To continue the "
            f"run that is there, give --run {run}, or the master key without a run; to build the other run, name "
            "another directory."
        )
    return key.for_run(run)


def build(
    plan: BuildPlan, directory: str | Path, key: Key, epoch: int = 0, report: Report | None = None
) -> Manifest:
    """Write one epoch of batch files, unless it is there already.

    Samplers that draw the same batches for all epochs have only epoch 0 built. The epoch belongs to the run whose
    epochs are in the directory; in an empty one a new run begins, unless `key` belongs to a run already.

    Args:
        plan: what is built, from `plan_build`.
        directory: where; made with mode 0700 if it does not exist. It holds epochs of one run, and nothing else.
        key: a master key; or the key of one run, `key.for_run(run)`.
        epoch: the number of the epoch, from 0.
        report: called with how far the build is.

    Returns:
        The manifest of the epoch.

    Raises:
        DataError: the directory holds something else, another process builds the epoch, or the disk is too small.
        InvalidInputError: a batch does not fit in memory, or the sampler puts rows into several batches.

    Example:
        >>> import pyarrow as pa
        >>> import pyarrow.parquet as pq
        >>> pq.write_table(pa.table({"x": range(100)}), "table.parquet")
        >>> from ballsbins import BallsAndBins, new_key
        >>> from ballsbins.batch_files.build_plan import plan_build
        >>> from ballsbins.batch_files.inputs import open_inputs
        >>> manifest = build(plan_build(open_inputs(["table.parquet"]), BallsAndBins(steps=4)), "batches", new_key())
        >>> manifest.epoch, manifest.num_examples
        (0, 100)
    """
    path, number = Path(directory), stored_epoch(plan.sampler, check_epoch(epoch))
    run_key, manifest, is_there = begin_epoch(plan, path, key, number)
    if is_there:
        return manifest
    row_order = row_order_of(plan.sampler, run_key, number, plan.num_examples, plan.identity)
    plan.require_disk(path)
    reporter = Reporter(report, number, plan.num_examples, plan.inputs.bytes)
    with new_epoch(path, manifest) as (made, scratch):
        writer = PartsWriter(
            located(made),
            plan.row_schema,
            manifest,
            rows_per_group=plan.rows_per_group,
            compression=plan.compression,
        )
        try:
            for batches in sorted_batches(plan, row_order, scratch, reporter):
                writer.write(batches)
                reporter.written(batches.first_step + len(batches.sizes), manifest.steps)
            manifest = write_epoch_end(
                located(made), manifest, writer.sizes, writer.parts, plan.dictionaries.as_batch()
            )
        finally:
            writer.abandon()
    return manifest


def sorted_batches(
    plan: BuildPlan, row_order: RowOrder, scratch: Path, reporter: Reporter
) -> Iterator[Arranged]:
    """Give all batches of an epoch in order, some at a time."""
    plan.require_memory()
    sort = BucketSort(scratch, plan.row_schema, plan.memory)
    rows = _placed_rows(plan, row_order, reporter)
    files = sort.scatter(rows, 0, row_order.num_places, plan.scratch_bytes)
    arrow.default_memory_pool().release_unused()
    return row_order.arrange(sort.buckets(files))


def _placed_rows(plan: BuildPlan, row_order: RowOrder, reporter: Reporter) -> Iterator[Placed]:
    start = 0
    for read_bytes, batch in joined(plan.inputs, plan.rows_per_read, plan.memory.chunk_bytes):
        positions = np.arange(start, start + batch.num_rows)
        yield plan.dictionaries.encode(batch), positions, row_order.places(start, batch)
        start += batch.num_rows
        reporter.read(start, read_bytes)
    if start != plan.num_examples:
        raise DataError(
            f"The inputs had {plan.num_examples:,} rows when they were counted, but {start:,} when "
            "they were read. "
            "Build from files that do not change."
        )


def joined(inputs: Inputs, rows: int, chunk_bytes: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Read `rows` rows at a time and join them to chunks of some size in memory, however wide they turn out to be.

    Gives (bytes of the files read so far, about; a chunk). Small chunks would make small pieces of buckets.
    """
    waiting: list[Any] = []
    held, read_bytes = 0, 0
    for read_bytes, batch in inputs.read(rows):
        pieces = -(-batch.nbytes // chunk_bytes)  # rows may turn out far wider than the first ones
        length = -(-batch.num_rows // max(pieces, 1))
        for begin in range(0, batch.num_rows, max(length, 1)):
            waiting.append(batch.slice(begin, length))
            held += waiting[-1].nbytes
            if held >= chunk_bytes:
                yield read_bytes, arrow.concat_batches(waiting)
                waiting, held = [], 0
    if waiting:
        yield read_bytes, arrow.concat_batches(waiting)
