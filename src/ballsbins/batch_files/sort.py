"""Sort any number of rows within a stated memory limit.

This is an external bucket sort: rows are scattered into files of consecutive places, and a file that fits in memory
is a bucket.

A file that does not fit is scattered again, so any number of rows is sorted within the same memory. Rows with the
same place keep their input order. Several workers may add rows at the same time, each from a later part of the table
than the worker before it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ballsbins import _check
from ballsbins._extras import Later
from ballsbins.batch_files.gather import ReusedMemory, ordered_rows
from ballsbins.batch_files.row_files import RawRows, RowFile, RowLayout, load_rows, load_some_rows
from ballsbins.batch_files.row_order import Bucket
from ballsbins.errors import InvalidInputError

if TYPE_CHECKING:
    import pyarrow as pa

arrow = Later("pyarrow", feature="Batching tables", extra="data")

DEFAULT_MEMORY = 10**9
_LEAST = 300 * 10**6
_INTERPRETER = 180 * 10**6  # Python, NumPy, Arrow and their code, before any data
# Upper limit on the memory used: the largest bucket is a third of it, the most text that one array can hold.
_MOST = 6 * 10**9
_LEAST_OF_WORKER = 120 * 10**6  # data memory that a worker needs to work on pieces of a reasonable size
_ALMOST = 0.98  # of the size at which a bucket is scattered again: random sizes vary a little around the plan
_PIECE_BYTES = 2**17  # the smallest piece of a file that is worth writing separately
_CHUNK_BYTES = 2**24  # bytes of rows that are worth reading at a time: decoding has costs per read and column
# Each row group has costs per column, for readers above all; longer ones would save little, and hold more memory.
_ROW_GROUP_BYTES = 48 * 2**20
_UNITS = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


@dataclass(frozen=True)
class Memory:
    """A limit on the resident memory of the process, in bytes, and the number of workers that share it.

    The sizes below are for one worker.
    """

    limit: int = DEFAULT_MEMORY
    workers: int = 1

    def __post_init__(self) -> None:
        """Validate the fields."""
        advice = "The interpreter and Arrow alone need some 180 million bytes; 1 GB is the default."
        _check.integer("the memory limit", self.limit, _LEAST, advice=advice)

    @property
    def _for_data(self) -> int:
        return (min(self.limit, _MOST) - _INTERPRETER) // self.workers

    def most_workers(self, batch_bytes: int) -> int:
        """The largest number of workers that leaves each enough memory for batches of this size, with a margin."""
        data = min(self.limit, _MOST) - _INTERPRETER
        return max(1, min(data // _LEAST_OF_WORKER, data // max(4 * batch_bytes, 1)))

    @property
    def chunk_bytes(self) -> int:
        """Bytes of rows to read at a time; sorting them into buckets holds as much again."""
        return self._for_data // 12

    @property
    def most_rows(self) -> int:
        """Limit on rows read at a time: a chunk of 16 kB rows, since footers count repeated words only once."""
        return max(1, min(2**16, self.chunk_bytes // 2**14))

    @property
    def bucket_bytes(self) -> int:
        """Planned bytes of one bucket. It is held twice while joined, and a part of it again while written."""
        return self._for_data // 8

    def fewest_buckets(self, part_bytes: float, ranks: int) -> int:
        """The least number of buckets for the rows of a part.

        A bucket becomes at least one row group per rank. Short row groups cost every rank, since each column of each
        one has a dictionary and an entry in the footer. So a bucket may be almost too large, but no larger than the
        ranks can use.

        Args:
            part_bytes: the bytes of the rows.
            ranks: the number of ranks; 0 if rows may turn out wider than planned, so that buckets must stay short.
        """
        longest = min(ranks * self.row_group_bytes, _ALMOST * 2 * self.bucket_bytes)
        return max(1, math.ceil(part_bytes / max(self.bucket_bytes, longest)))

    @property
    def largest_bucket(self) -> int:
        """Largest allowed bytes of one bucket: rows twice as wide as the first ones suggested still fit."""
        return self._for_data // 3

    def limit_for(self, batch_bytes: int) -> int | None:
        """A limit under which a batch of this many bytes fits in a bucket, with a margin; None if none does."""
        limit = 4 * batch_bytes * self.workers + _INTERPRETER
        return limit if limit <= _MOST else None

    @property
    def row_group_bytes(self) -> int:
        """Most bytes of the rows of a row group: readers hold one, and it does not extend beyond its bucket."""
        return min(self.bucket_bytes, _ROW_GROUP_BYTES)

    @property
    def max_files(self) -> int:
        """How many buckets to write at once: one open file each, with pieces large enough to be worth writing."""
        return max(2, min(400, self.chunk_bytes // _PIECE_BYTES))

    @staticmethod
    def parse(text: str) -> Memory:
        """Parse a limit such as 1GB, 512MiB or 2000000000."""
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmg]i?b|)\s*", text.lower())
        if found is None:
            raise InvalidInputError(
                "--memory", text, "a number of bytes, such as 1GB", "Units are kB, MB, GB, KiB, MiB and GiB."
            )
        return Memory(int(float(found[1]) * _UNITS[found[2]]))


@dataclass(frozen=True)
class Ranges:
    """The places first … stop − 1, cut into groups of equal length, and each group into ranges of one file each."""

    first: int
    stop: int
    group: int
    width: int

    @staticmethod
    def even(first: int, stop: int, count: int) -> Ranges:
        """About `count` ranges of equal length, in a single group."""
        length = stop - first
        return Ranges(first, stop, length, -(-length // max(1, min(count, length))))

    @property
    def _per_group(self) -> int:
        return -(-self.group // self.width)

    def __len__(self) -> int:
        """The number of ranges."""
        whole, rest = divmod(self.stop - self.first, self.group)
        return whole * self._per_group + -(-rest // self.width)

    def number_of(self, places: NDArray[np.uint32]) -> NDArray[np.uint16]:
        """The number of the range that holds each place."""
        within = places - np.uint32(self.first)
        if self.group >= self.stop - self.first:
            return (within // np.uint32(self.width)).astype(np.uint16)
        groups, rest = np.divmod(within, np.uint32(self.group))
        return (groups * np.uint32(self._per_group) + rest // np.uint32(self.width)).astype(np.uint16)

    def span(self, number: int) -> tuple[int, int]:
        """The places begin … end − 1 of a range."""
        group, rest = divmod(number, self._per_group)
        begin = self.first + group * self.group + rest * self.width
        return begin, min(begin + self.width, self.first + (group + 1) * self.group, self.stop)

    def groups(self) -> list[tuple[int, int]]:
        """The places begin … end − 1 of each group."""
        return [
            (begin, min(begin + self.group, self.stop)) for begin in range(self.first, self.stop, self.group)
        ]


class BucketSort:
    """Sorts rows by place within a memory limit, using files in a directory of its own."""

    def __init__(
        self,
        directory: Path,
        schema: pa.Schema,
        memory: Memory,
        ranges: Ranges,
        writers: int = 1,
        reused: ReusedMemory | None = None,
    ) -> None:
        """Sort rows of `schema` into the files of `ranges`; each writer has files of its own.

        Sorts that one thread uses in turn may share the memory `reused`.
        """
        extra = [arrow.field("position", arrow.int64()), arrow.field("place", arrow.uint32())]
        self._directory, self._memory, self.ranges = directory, memory, ranges
        self._schema, self._layout = schema, RowLayout(arrow.schema([*schema, *extra]))
        self._reused = reused or ReusedMemory()
        self._files: list[list[RowFile | None]] = [[None] * len(ranges) for _ in range(writers)]

    @property
    def piece_bytes(self) -> int:
        """How many bytes of rows to add at a time, so that pieces of files are large enough to be worth writing."""
        return min(self._memory.chunk_bytes, max(_CHUNK_BYTES, 2 * len(self.ranges) * _PIECE_BYTES))

    def add(
        self,
        writer: int,
        rows: pa.RecordBatch,
        positions: NDArray[np.int64],
        places: NDArray[np.uint32],
    ) -> None:
        """Write rows to the files of their places. Only one thread at a time may call this for a given writer."""
        columns = [*rows.columns, arrow.array(positions), arrow.array(places)]
        whole = arrow.RecordBatch.from_arrays(columns, schema=self._layout.schema)
        files = self._files[writer]
        numbers = np.zeros(len(places), dtype=np.uint16)  # the file that each row goes to
        if len(files) > 1:
            numbers = self.ranges.number_of(places)
            whole = ordered_rows(whole, np.argsort(numbers, kind="stable"), self._reused, "scatter")
        raw = RawRows(self._layout, whole)
        ends = np.cumsum(np.bincount(numbers, minlength=len(files))).tolist()
        for number, (stop, start) in enumerate(zip(ends, [0, *ends[:-1]], strict=True)):
            if stop == start:
                continue
            file = files[number]
            if file is None:
                begin, end = self.ranges.span(number)
                file = files[number] = RowFile(
                    self._directory / f"rows-{begin}-{end}-{writer}.bin", self._layout
                )
            file.write(raw, start, stop)

    def close(self) -> None:
        """Close all files, after the last rows or an error."""
        for files in self._files:
            for file in files:
                if file is not None:
                    file.close()

    def buckets(self, begin: int, end: int) -> Iterator[Bucket]:
        """Give the rows of the places begin … end − 1 (whole ranges), in buckets of ascending places.

        Each bucket fits in memory, and is valid until the next one is requested. Files are removed as they are read.
        """
        for number in range(len(self.ranges)):
            first, stop = self.ranges.span(number)
            if not begin <= first < end:
                continue
            files = [found for files in self._files if (found := files[number]) is not None]
            size = sum(file.bytes for file in files)
            if size <= self._memory.bucket_bytes * 2 or stop - first == 1:
                yield self._load(first, stop, files, size)
            else:
                yield from self._scattered_again(first, stop, files, size)
            for file in files:
                file.path.unlink(missing_ok=True)

    def _scattered_again(self, begin: int, end: int, files: list[RowFile], size: int) -> Iterator[Bucket]:
        wanted = min(-(-size // self._memory.bucket_bytes), self._memory.max_files)
        ranges = Ranges.even(begin, end, wanted)
        finer = BucketSort(self._directory, self._schema, self._memory, ranges, reused=self._reused)
        try:
            for table in load_some_rows(self._layout, files, self._memory.chunk_bytes, self._reused):
                rows, positions, places = self._parts(table)
                for batch in rows.to_batches():  # one batch, since every column is one array
                    finer.add(0, batch, positions, places)
        finally:
            finer.close()
        yield from finer.buckets(begin, end)

    def _load(self, begin: int, end: int, files: list[RowFile], size: int) -> Bucket:
        if size > self._memory.largest_bucket:
            raise InvalidInputError(
                "the memory limit",
                self._memory.limit,
                "large enough for some times the rows of one batch",
                "Take more steps, or a larger limit: --memory.",
            )
        return Bucket(begin, end, *self._parts(load_rows(self._layout, files, self._reused)))

    def _parts(self, table: pa.Table) -> tuple[pa.Table, NDArray[np.int64], NDArray[np.uint32]]:
        """The columns of the input, the positions and the places."""
        positions, places = (table.column(number).chunk(0).to_numpy() for number in (-2, -1))
        return table.select(list(range(len(self._schema)))), positions, places
