"""The two passes of the embedded engine, each run by several workers at a time.

Pass one reads the table in order, once for several epochs, and scatters its rows into files of consecutive places,
one set of files per epoch. Pass two sorts the files of some whole parts at a time and writes the parts.

Workers are threads: pyarrow and NumPy release Python's lock while they work. Each worker of pass one reads a later
part of the table than the worker before it, so rows with the same place keep their order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ballsbins._extras import Later
from ballsbins.batch_files.build_plan import BuildPlan
from ballsbins.batch_files.format import Manifest, StoredFile
from ballsbins.batch_files.gather import ReusedMemory
from ballsbins.batch_files.inputs import Digests, Inputs, Piece
from ballsbins.batch_files.row_order import RowOrder
from ballsbins.batch_files.sort import BucketSort
from ballsbins.batch_files.store import Location
from ballsbins.batch_files.writer import PartsWriter
from ballsbins.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

arrow = Later("pyarrow", feature="Batching tables", extra="data")

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")


class _StoppedError(Exception):
    """Another worker has failed, or the user has interrupted the build."""


@dataclass
class Workers:
    """A group of threads that stop together when one of them fails."""

    count: int
    stopped: threading.Event = field(default_factory=threading.Event)

    def each(self, work: Callable[[_Task], _Result], tasks: Sequence[_Task]) -> list[_Result]:
        """Run all tasks, some in parallel, and return the results in task order. The first error stops all."""
        if self.count == 1 or len(tasks) == 1:
            return [work(task) for task in tasks]
        with ThreadPoolExecutor(self.count, thread_name_prefix="ballsbins-build") as pool:
            waiting = [pool.submit(work, task) for task in tasks]
            try:
                done, _ = wait(waiting, return_when=FIRST_EXCEPTION)
                for future in done:
                    future.result()
                return [future.result() for future in waiting]
            finally:
                if not all(future.done() for future in waiting):
                    self.stopped.set()
                    for future in waiting:
                        future.cancel()

    def check(self) -> None:
        """Stop this worker if the others have stopped."""
        if self.stopped.is_set():
            raise _StoppedError


class Scattered:
    """The result of pass one: the rows of each epoch in files by place, and the hash of every input file."""

    def __init__(self, plan: BuildPlan, row_orders: Sequence[RowOrder], scratches: Sequence[Path]) -> None:
        """Give each epoch its own sort in its own directory."""
        plan.require_memory()
        self._plan, self._row_orders = plan, row_orders
        self.workers = Workers(plan.workers)
        self._reused = ReusedMemory()
        self.sorts = [
            BucketSort(
                scratch,
                plan.row_schema,
                plan.share,
                plan.ranges(row_order.num_places),
                plan.workers,
                self._reused,
            )
            for row_order, scratch in zip(row_orders, scratches, strict=True)
        ]
        self.digests: Digests = {}
        self._with_nulls: set[str] = set()  # the columns that lack a value in some row

    def read(self, report: Callable[[int, int], None]) -> None:
        """Run pass one; `report` receives the numbers of rows and bytes read so far.

        Raises:
            DataError: a file cannot be read, or changed during the read.
        """
        progress = _Sum(report)
        pieces = self._plan.inputs.pieces()
        shares = _shares(pieces, self._plan.workers)
        try:
            counts = self.workers.each(
                lambda worker: self._scatter(worker, shares[worker], progress), range(len(shares))
            )
        finally:
            for sort in self.sorts:
                sort.close()
        if sum(counts) != self._plan.num_examples:
            raise DataError(
                f"The inputs had {self._plan.num_examples:,} rows when they were counted, but {sum(counts):,} when "
                "they were read. Build from files that do not change."
            )
        arrow.default_memory_pool().release_unused()

    def _scatter(self, worker: int, pieces: Sequence[Piece], progress: _Sum) -> int:
        start = begin = pieces[0].first if pieces else 0
        plan, read_before = self._plan, 0
        block = plan.dictionaries.block_bytes(
            max(sort.piece_bytes for sort in self.sorts), plan.share.chunk_bytes
        )
        for read_bytes, batch in joined(plan.inputs, plan.rows_per_read(block), block, pieces, self.digests):
            self.workers.check()
            positions = np.arange(start, start + batch.num_rows)
            rows = plan.dictionaries.encode(batch, start)
            self._with_nulls.update(
                name
                for name, column in zip(rows.schema.names, rows.columns, strict=True)
                if column.null_count
            )
            for sort, row_order in zip(self.sorts, self._row_orders, strict=True):
                sort.add(worker, rows, positions, row_order.places(start, batch))
            start += batch.num_rows
            progress.add(batch.num_rows, read_bytes - read_before)
            read_before = read_bytes
            del batch, rows  # or they would be held while the next ones are read
            if (
                not plan.same_width
            ):  # Arrow's memory pool would keep gaps that the next, other sizes do not fit
                arrow.default_memory_pool().release_unused()
        self._reused.clear()
        return start - begin

    def write_parts(
        self, epoch: int, directory: Location, manifest: Manifest, report: Callable[[int], None]
    ) -> tuple[list[StoredFile], NDArray[np.int64]]:
        """Run pass two for the `epoch`-th of the epochs; `report` receives the number of batches written so far.

        Returns:
            The parts in order, and the number of rows of every batch.
        """
        sort, row_order, plan = self.sorts[epoch], self._row_orders[epoch], self._plan
        progress = _Sum(lambda steps, _: report(steps))
        without_nulls = set(plan.row_schema.names) - self._with_nulls

        def write(span: tuple[int, int]) -> tuple[list[StoredFile], NDArray[np.int64]]:
            writer = PartsWriter(
                directory,
                plan.row_schema,
                manifest,
                rows_per_group=plan.rows_per_group,
                compression=plan.compression,
                first_part=manifest.part_of(span[0]) if row_order.num_places == manifest.steps else 0,
                dictionary_encoded=plan.dictionary_encoded,
                without_nulls=without_nulls,
                reused=self._reused,
            )
            try:
                for batches in row_order.arrange(sort.buckets(*span)):
                    self.workers.check()
                    writer.write(batches)
                    progress.add(len(batches.sizes), 0)
            finally:
                writer.abandon()
            return writer.parts, writer.sizes

        found = self.workers.each(write, sort.ranges.groups())
        return [part for parts, _ in found for part in parts], np.concatenate([sizes for _, sizes in found])


class _Sum:
    """Adds up the progress of several workers and reports the sum."""

    def __init__(self, report: Callable[[int, int], None]) -> None:
        self._report, self._lock = report, threading.Lock()
        self._first = self._second = 0

    def add(self, first: int, second: int) -> None:
        with self._lock:
            self._first += first
            self._second += second
            self._report(self._first, self._second)


def _shares(pieces: Sequence[Piece], workers: int) -> list[list[Piece]]:
    """Cut pieces into runs of about equal bytes: at most one run per worker, and at least one run."""
    ends = np.cumsum([piece.bytes for piece in pieces])
    if not len(ends) or workers == 1:
        return [list(pieces)]
    middles = ends - np.array([piece.bytes for piece in pieces]) / 2
    numbers = np.minimum((middles * workers / max(ends[-1], 1)).astype(int), workers - 1).tolist()
    found = [
        [piece for piece, number in zip(pieces, numbers, strict=True) if number == worker]
        for worker in range(workers)
    ]
    return [share for share in found if share]


def joined(
    inputs: Inputs,
    rows: int,
    chunk_bytes: int,
    pieces: Sequence[Piece] | None = None,
    digests: Digests | None = None,
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Read `rows` rows at a time and join them to chunks of at most a given size, however wide the rows are.

    Gives (approximate bytes of the files read so far, a chunk). Small chunks would lead to small pieces of buckets.
    """
    waiting: list[Any] = []
    held, read_bytes = 0, 0
    for read_bytes, batch in inputs.read(rows, pieces, digests):
        parts = -(-batch.nbytes // chunk_bytes)  # rows may turn out far wider than the first ones
        length = -(-batch.num_rows // max(parts, 1))
        for begin in range(0, batch.num_rows, max(length, 1)):
            part = batch.slice(begin, length)
            if waiting and held + part.nbytes > chunk_bytes:
                yield read_bytes, _one_batch(waiting)
                held = 0
            waiting.append(part)
            held += part.nbytes
    if waiting:
        yield read_bytes, _one_batch(waiting)


def _one_batch(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Join batches, and empty the list, so that they are not held beside the joined one."""
    whole = batches[0] if len(batches) == 1 else arrow.concat_batches(batches)
    batches.clear()
    return whole
