"""Sort any number of rows within a stated memory limit.

An external bucket sort: rows are scattered into files of consecutive places, and a file that fits is a bucket.

A file that does not fit is scattered again, so that any number of rows is sorted within the same memory. Rows of
one place keep the order in which they came.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ballsbins import _check
from ballsbins._extras import Later
from ballsbins.batch_files.row_order import Bucket
from ballsbins.errors import InvalidInputError

if TYPE_CHECKING:
    import pyarrow as pa

arrow = Later("pyarrow", feature="Batching tables", extra="data")

DEFAULT_MEMORY = 10**9
_LEAST = 300 * 10**6
_INTERPRETER = 180 * 10**6  # Python, NumPy, Arrow and their code, before any data
# More is not used: a third of it, the largest bucket, is the most text that one array can hold.
_MOST = 6 * 10**9
_UNITS = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


@dataclass(frozen=True)
class Memory:
    """A limit on the resident memory of the process, in bytes."""

    limit: int = DEFAULT_MEMORY

    def __post_init__(self) -> None:
        """Validate, once."""
        advice = "The interpreter and Arrow alone need some 180 million bytes; 1 GB is the default."
        _check.integer("the memory limit", self.limit, _LEAST, advice=advice)

    @property
    def _for_data(self) -> int:
        return min(self.limit, _MOST) - _INTERPRETER

    @property
    def chunk_bytes(self) -> int:
        """Rows that are read at a time; as much again is held while they are sorted into buckets."""
        return self._for_data // 12

    @property
    def most_rows(self) -> int:
        """Rows that are read at a time at most: a chunk of rows of 16 kB, as footers see repeated words only once."""
        return max(1, min(2**16, self.chunk_bytes // 2**14))

    @property
    def bucket_bytes(self) -> int:
        """Rows of one bucket as planned. Held twice while joined and once in part while written."""
        return self._for_data // 8

    @property
    def largest_bucket(self) -> int:
        """Rows of one bucket at most: one whose rows are twice as wide as the first ones promised still fits."""
        return self._for_data // 3

    @staticmethod
    def limit_for(batch_bytes: int) -> int | None:
        """A limit under which a batch of so many bytes is a bucket that fits, with some to spare; None if none is."""
        limit = 4 * batch_bytes + _INTERPRETER
        return limit if limit <= _MOST else None

    @property
    def row_group_bytes(self) -> int:
        """Rows that the Parquet writer takes at a time."""
        return min(self._for_data // 24, 16 * 2**20)

    @property
    def max_files(self) -> int:
        """Buckets that are written at once: open files, each getting pieces large enough to be worth writing."""
        return max(2, min(400, self.chunk_bytes // 2**17))

    @staticmethod
    def parse(text: str) -> Memory:
        """Read a limit such as 1GB, 512MiB or 2000000000."""
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmg]i?b|)\s*", text.lower())
        if found is None:
            raise InvalidInputError(
                "--memory", text, "a number of bytes, such as 1GB", "Units are kB, MB, GB, KiB, MiB and GiB."
            )
        return Memory(int(float(found[1]) * _UNITS[found[2]]))


Placed = tuple["pa.RecordBatch", NDArray[np.int64], NDArray[np.uint32]]  # rows, their positions, their places


@dataclass
class _SpillFile:
    """The rows of the places begin … end − 1, on disk."""

    begin: int
    end: int
    path: Path
    writer: Any = None
    bytes: int = 0


class BucketSort:
    """Sorts rows by place under a memory limit, with files in a directory of its own."""

    def __init__(self, directory: Path, schema: pa.Schema, memory: Memory) -> None:
        """`schema` is that of the rows; two more columns are kept for their positions and places."""
        extra = [arrow.field("position", arrow.int64()), arrow.field("place", arrow.uint32())]
        self._directory, self._memory = directory, memory
        self._schema, self._spilled = schema, arrow.schema([*schema, *extra])
        self._files = 0

    def scatter(self, rows: Iterable[Placed], begin: int, end: int, expected_bytes: int) -> list[_SpillFile]:
        """Write rows with places begin … end − 1 into one file for each of some equal ranges of places."""
        wanted = -(-expected_bytes // self._memory.bucket_bytes)
        width = -(-(end - begin) // max(1, min(wanted, self._memory.max_files, end - begin)))
        files = [self._new_file(first, min(first + width, end)) for first in range(begin, end, width)]
        try:
            for batch, positions, places in rows:
                self._write(files, batch, positions, places, begin, width)
        finally:
            for file in files:
                if file.writer is not None:
                    file.writer.close()
                    file.writer = None
        return files

    def buckets(self, files: list[_SpillFile]) -> Iterator[Bucket]:
        """Give all rows in buckets of ascending places, each small enough; files are removed as they are read."""
        for file in files:
            if file.bytes <= self._memory.bucket_bytes * 2 or file.end - file.begin == 1:
                yield self._load(file)
            else:
                yield from self.buckets(self.scatter(self._read(file), file.begin, file.end, file.bytes))
            file.path.unlink(missing_ok=True)

    def _new_file(self, begin: int, end: int) -> _SpillFile:
        self._files += 1
        return _SpillFile(begin, end, self._directory / f"rows-{self._files:06d}.arrow")

    def _write(
        self,
        files: list[_SpillFile],
        batch: pa.RecordBatch,
        positions: NDArray[np.int64],
        places: NDArray[np.uint32],
        begin: int,
        width: int,
    ) -> None:
        columns = [*batch.columns, arrow.array(positions), arrow.array(places)]
        whole = arrow.RecordBatch.from_arrays(columns, schema=self._spilled)
        numbers = np.zeros(len(places), dtype=np.uint16)  # of the file that a row goes to
        if len(files) > 1:
            numbers = ((places - np.uint32(begin)) // np.uint32(width)).astype(np.uint16)
            whole = whole.take(arrow.array(np.argsort(numbers, kind="stable")))
        ends = np.cumsum(np.bincount(numbers, minlength=len(files)))
        for file, stop, start in zip(files, ends, [0, *ends[:-1]], strict=True):
            if stop == start:
                continue
            if file.writer is None:
                file.writer = _StreamFile(file.path, self._spilled)
            file.writer.write(whole.slice(start, stop - start))
            file.bytes = file.writer.tell()

    def _read(self, file: _SpillFile) -> Iterator[Placed]:
        if not file.bytes:
            return
        with arrow.OSFile(str(file.path)) as source, arrow.ipc.open_stream(source) as reader:
            waiting: list[Any] = []
            held = 0
            for (
                batch
            ) in reader:  # small pieces are joined, or the next scattering would make them smaller still
                waiting.append(batch)
                held += batch.nbytes
                if held >= self._memory.chunk_bytes:
                    yield _placed(arrow.concat_batches(waiting))
                    waiting, held = [], 0
            if waiting:
                yield _placed(arrow.concat_batches(waiting))

    def _load(self, file: _SpillFile) -> Bucket:
        if file.bytes > self._memory.largest_bucket:
            raise InvalidInputError(
                "the memory limit",
                self._memory.limit,
                "large enough for some times the rows of one batch",
                "Take more steps, or a larger limit: --memory.",
            )
        table = self._spilled.empty_table()
        if file.bytes:
            with arrow.OSFile(str(file.path)) as source, arrow.ipc.open_stream(source) as reader:
                table = reader.read_all().combine_chunks()
        positions, places = (table.column(place) for place in (-2, -1))
        rows = table.select(list(range(len(self._schema))))
        return Bucket(file.begin, file.end, rows, _numpy(positions), _numpy(places))


class _StreamFile:
    """A file of record batches."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._sink = arrow.OSFile(str(path), "wb")
        self._writer = arrow.ipc.new_stream(self._sink, schema)

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    def tell(self) -> int:
        return int(self._sink.tell())

    def close(self) -> None:
        self._writer.close()
        self._sink.close()


def _placed(batch: pa.RecordBatch) -> Placed:
    positions, places = (batch.column(place) for place in (-2, -1))
    rows = batch.select(list(range(batch.num_columns - 2)))
    return rows, _numpy(positions), _numpy(places)


def _numpy(column: Any) -> NDArray[Any]:
    values: NDArray[Any] = column.to_numpy()
    return values
