"""The executors' writer: each task writes one part of whole batches, directly to its final location.

Spark runs a task again when a machine is lost, and sometimes runs it twice at the same time. So every attempt writes
under a unique name. Spark reports exactly one attempt per part to the driver, and the manifest names that one. The
others are removed.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

from ballsbins.batch_files.build_plan import BuildPlan
from ballsbins.batch_files.dictionaries import Dictionaries, stored_schema
from ballsbins.batch_files.format import Manifest
from ballsbins.batch_files.row_order import Arranged
from ballsbins.batch_files.store import Location, located
from ballsbins.batch_files.writer import PartsWriter
from ballsbins.samplers.base import even_cuts

FORMAT = "ballsbins"
COMMITTED = "committed.json"
BATCH, WORD, NAME = "__ballsbins_batch", "__ballsbins_word", "__ballsbins_name"
# Rows to gather before whole batches are written. With the rows of one more chunk they are mostly still fewer than
# 2¹⁷: row groups just above a power of two are decoded with a copy (`batch_files.row_groups`).
_ROWS = 7 << 14


@dataclass(frozen=True)
class Job:
    """What a task needs to know. It is not secret: only a commitment and keyed digests in it depend on the key."""

    directory: str
    scratch: str
    manifest: str
    schema: str
    rows_per_group: int
    compression: str
    dictionary_encoded: list[str]
    dictionaries: str = ""  # a file name, not the content: values are data, and logs show options

    @staticmethod
    def of(
        directory: Location, scratch: Path, manifest: Manifest, plan: BuildPlan, dictionaries: str = ""
    ) -> Job:
        """A job that writes its parts to `directory`, and their list to `scratch` on the driver's machine."""
        return Job(
            directory.everywhere,
            str(scratch),
            manifest.to_json(),
            base64.b64encode(plan.inputs.schema.serialize().to_pybytes()).decode("ascii"),
            plan.rows_per_group,
            plan.compression,
            plan.dictionary_encoded,
            dictionaries,
        )

    def to_option(self) -> str:
        """The job as a Spark option."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_option(option: str) -> Job:
        """Restore the job that `to_option` wrote."""
        return Job(**json.loads(option))

    @property
    def epoch(self) -> Manifest:
        """The facts of the epoch."""
        return Manifest.from_json(self.manifest, self.directory)

    @property
    def columns(self) -> pa.Schema:
        """The columns of the rows."""
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(self.schema)))


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """One part: its file, the sizes of its batches and the number of incoming rows; or what is wrong with them."""

    part: int
    name: str
    sizes: Sequence[int]
    rows: int
    bytes: int = 0
    checksum: str = ""
    problem: str | None = None


class BatchSource(DataSource):
    """The Spark sink `ballsbins`, which takes partitions of sorted rows."""

    @classmethod
    def name(cls) -> str:
        """The name for `DataFrameWriter.format`."""
        return FORMAT

    def writer(self, schema: Any, overwrite: bool) -> DataSourceArrowWriter:
        """The writer of one job."""
        del schema, overwrite
        return BatchWriter(Job.from_option(self.options["job"]))


class BatchWriter(DataSourceArrowWriter):
    """Writes partition p as part p."""

    def __init__(self, job: Job) -> None:
        """Take a job."""
        self._job = job

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write one part; this runs on an executor."""
        context = TaskContext.get()
        assert context is not None
        return write_part(self._job, context.partitionId(), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Store the list of parts for the driver once every part is written; this runs in a process beside it."""
        written = [asdict(message) for message in messages if isinstance(message, Written)]
        Path(self._job.scratch, COMMITTED).write_text(json.dumps(written), encoding="utf-8")

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Store nothing: the driver removes the directory."""


def read_committed(directory: Path) -> list[Written]:
    """The parts that `commit` stored, in order."""
    plain = json.loads((directory / COMMITTED).read_text(encoding="utf-8"))
    return sorted((Written(**entry) for entry in plain), key=lambda written: written.part)


def write_part(job: Job, part: int, chunks: Iterable[pa.RecordBatch]) -> Written:
    """Write the batches of one part from its sorted rows."""
    manifest, columns = job.epoch, job.columns
    begin = part * manifest.batches_per_file
    count = min(manifest.batches_per_file, manifest.steps - begin)
    rows, here = _Counted(chunks), located(job.directory)
    content = (here / job.dictionaries).read_bytes() if job.dictionaries else b""
    dictionaries = Dictionaries.from_stream(content)
    parts = PartsWriter(
        here,
        stored_schema(columns, list(dictionaries.types)),
        manifest,
        rows_per_group=job.rows_per_group,
        compression=job.compression,
        first_part=part,
        dictionary_encoded=job.dictionary_encoded,
    )
    try:
        for arranged in _arranged(manifest, columns, begin, count, rows):
            table = dictionaries.encode(arranged.table)
            parts.write(replace(arranged, first_step=begin + arranged.first_step, table=table))
    except UnfitRowsError as unfit:
        return Written(part, "", [], rows.count, problem=str(unfit))
    finally:
        parts.abandon()
    (stored,) = parts.parts
    return Written(part, stored.name, parts.sizes.tolist(), rows.count, stored.bytes, stored.checksum)


class UnfitRowsError(Exception):
    """Rows that cannot be batched. Reported as a result, not as a failure: Spark would retry a failed task."""


class _Counted:
    """The rows of a partition as tables, and a count of those that have come."""

    def __init__(self, chunks: Iterable[pa.RecordBatch]) -> None:
        self._chunks, self.count = chunks, 0

    def __iter__(self) -> Iterator[pa.Table]:
        for chunk in self._chunks:
            self.count += chunk.num_rows
            yield pa.Table.from_batches([chunk])


def _arranged(
    manifest: Manifest, columns: pa.Schema, begin: int, count: int, rows: Iterable[pa.Table]
) -> Iterator[Arranged]:
    """The batches begin … begin + count − 1, numbered from 0."""
    sampler = manifest.sampler
    if sampler.random_sizes:
        for table, batches, step, stop in _whole_batches(rows, begin, count):
            if manifest.identity_column is not None and table.num_rows:
                _require_unique(manifest.identity_column, table.column(NAME).combine_chunks())
            yield _truncated(table, batches, step, stop, columns, sampler.max_batch_size)
        return
    cut = even_cuts(manifest.num_examples, manifest.steps)
    sizes = np.array([cut(begin + step).stop - cut(begin + step).start for step in range(count)], np.int64)
    yield from _ranked(sizes, columns, rows)


def _ranked(sizes: NDArray[np.int64], columns: pa.Schema, rows: Iterable[pa.Table]) -> Iterator[Arranged]:
    """Cut sorted rows into batches of known sizes."""
    ends, held = np.cumsum(sizes), [columns.empty_table()]
    step, done = 0, 0
    for table in rows:
        held.append(_typed(table, columns))
        there = sum(piece.num_rows for piece in held)
        stop = int(np.searchsorted(ends, done + there, side="right"))
        if there >= _ROWS and stop > step:
            whole = int(ends[stop - 1]) - done
            joined = pa.concat_tables(held)
            yield Arranged(step, sizes[step:stop], joined, np.arange(whole))
            held, step, done = [joined.slice(whole)], stop, done + whole
    rest = pa.concat_tables(held)
    if rest.num_rows != int(ends[-1]) - done:
        raise UnfitRowsError(
            "The inputs have not the rows that they had when they were counted. Build from files that do not change, "
            "and that all machines of the cluster see."
        )
    if step < len(sizes):
        yield Arranged(step, sizes[step:], rest, np.arange(rest.num_rows))


def _whole_batches(
    rows: Iterable[pa.Table], begin: int, count: int
) -> Iterator[tuple[pa.Table, NDArray[np.int64], int, int]]:
    """Give rows, the batch of each row, and the range step … stop − 1 of whole batches that they form."""
    step, held, wanted = 0, [], _ROWS
    for table in rows:
        held.append(table)
        if sum(piece.num_rows for piece in held) < wanted:
            continue
        joined = pa.concat_tables(held)
        batches = joined.column(BATCH).to_numpy() - begin
        last = int(batches[-1])
        whole = int(np.searchsorted(batches, last))
        if whole:
            yield joined.slice(0, whole), batches[:whole], step, last
            step = last
        held = [joined.slice(whole)]
        wanted = max(_ROWS, 2 * held[0].num_rows)  # in a large batch, look for its end at growing intervals
    if held:
        joined = pa.concat_tables(held)
        yield joined, joined.column(BATCH).to_numpy() - begin, step, count
    else:
        nothing = np.empty(0, dtype=np.int64)
        yield pa.table({}), nothing, step, count


def _truncated(
    table: pa.Table, batches: NDArray[np.int64], step: int, stop: int, columns: pa.Schema, limit: int | None
) -> Arranged:
    """Keep the `limit` rows of each batch with the smallest words, ties by order, as `samplers.physical.truncate`."""
    if not len(batches):
        return Arranged(step, np.zeros(stop - step, np.int64), columns.empty_table(), batches)
    sizes = np.bincount(batches - step, minlength=stop - step)
    order = np.arange(len(batches))
    if limit is not None and sizes.max(initial=0) > limit:
        words = table.column(WORD).to_numpy().view(np.uint64)
        by_word = np.lexsort((words, batches))
        rank = order - np.repeat(np.cumsum(sizes) - sizes, sizes)
        order = np.sort(by_word[rank < limit])
    kept = sizes if limit is None else np.minimum(sizes, limit)
    return Arranged(step, kept, _typed(table, columns), order)


def _require_unique(column: str, names: pa.Array) -> None:
    """Raise unless neighbours differ. Equal names fall into one batch, and batches are sorted by name."""
    if names.null_count:
        raise UnfitRowsError(f"The identity column {column!r} has no value in some row. Every row needs one.")
    found = pc.index(pc.equal(names[1:], names[:-1]), True).as_py()
    if found >= 0:
        shown = names[found].as_py().decode("utf-8", "backslashreplace")
        raise UnfitRowsError(
            f"The identity column {column!r} is not unique: {shown!r} names more than one row. Remove the "
            "duplicates, or name the rows by their position."
        )


def _typed(table: pa.Table, columns: pa.Schema) -> pa.Table:
    """The input's columns with their original types; Spark supports fewer types."""
    return table.select(columns.names).cast(columns)
