"""Read the row groups of a part, and check their bytes before decoding them.

A row group is read in runs of columns. The bytes of a run are checked and then decoded while they are still in the
processor's cache. Checking all bytes of a row group first would cost several times as much.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from ballsbins._extras import Later
from ballsbins.batch_files.format import BLOCK_BYTES, ROW_GROUPS_KEY, StoredFile
from ballsbins.batch_files.part_bytes import opened
from ballsbins.batch_files.store import Location
from ballsbins.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

arrow = Later("pyarrow", feature="Reading batch files", extra="data")
parquet = Later("pyarrow.parquet", feature="Reading batch files", extra="data")
xxhash = Later("xxhash", feature="Reading batch files", extra="data")

_TAIL = 1 << 16  # bytes at the end of a part, as many as pyarrow reads first; the footer usually fits in them
_DIGITS = 16  # hexadecimal digits of a checksum
# Least bytes of a run of columns, unless no column follows. Longer runs leave the cache, and each run has costs.
_RUN_BYTES = 1 << 20


class Run(NamedTuple):
    """The columns first … last, which are decoded together."""

    first: int
    last: int


class PartReader:
    """An open part whose footer has been checked.

    Attributes:
        rows: the number of rows of each row group.
        names: the names of all columns.
        schema: the Arrow schema of the columns that are read.
        runs: these columns, divided into runs.
    """

    def __init__(
        self,
        location: Location,
        stored: StoredFile,
        columns: Sequence[str] | None = None,
        runs: Sequence[Run] = (),
    ) -> None:
        """Open the part and read its footer.

        Args:
            location: where it is.
            stored: what the manifest says of it.
            columns: the columns to read; all by default.
            runs: those of another part of the epoch, if one was opened before: dividing columns takes time.
        """
        self._location = location
        with _naming(location):
            self._bytes = opened(location)
            self._check_footer(stored)
            # The bytes of a row group are in memory before it is decoded, so pyarrow need not fetch any ahead.
            self._file = parquet.ParquetFile(self._bytes.source, pre_buffer=False)
            metadata = self._file.metadata
            self._ends = [(0, ""), *json.loads((metadata.metadata or {}).get(ROW_GROUPS_KEY.encode(), b"[]"))]
            self._groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
        self.rows = [group.num_rows for group in self._groups]
        # Its metadata are the row groups, whose sizes are secret: no batch should carry them into a log.
        whole = self._file.schema_arrow.remove_metadata()
        self.names: list[str] = whole.names
        if len(self._ends) != len(self.rows) + 1 or len(self.names) != metadata.num_columns:
            raise damaged(location)
        self.schema: pa.Schema = whole
        if columns is not None:
            self.schema = arrow.schema([whole.field(name) for name in dict.fromkeys(columns)])
        self.runs = runs or (self._in_runs() if self._groups else [])

    def _check_footer(self, stored: StoredFile) -> None:
        """Read all bytes after the last row group, and compare them with the manifest's checksum."""
        size = self._bytes.size
        if size != stored.bytes:
            raise damaged(self._location)
        tail = self._bytes.get(max(0, size - _TAIL), size)
        length = min(int.from_bytes(tail[-8:-4].to_pybytes(), "little") + 8, size)
        if length > len(tail):
            tail = self._bytes.get(size - length, size)
        # a part without row groups consists of its footer only, from the first byte on
        footers = tail[len(tail) - length :], tail
        if all(xxhash.xxh3_64_hexdigest(footer) != stored.checksum for footer in footers):
            raise damaged(self._location)

    def _in_runs(self) -> list[Run]:
        """Divide the columns that are read into runs of neighbours, by their bytes in the first row group."""
        # batch files have no structs, so Parquet stores every column as one
        places = {name: place for place, name in enumerate(self.names)}
        runs: list[Run] = []
        held = 0
        for name in self.schema.names:
            place = places[name]
            if runs and place == runs[-1].last + 1 and held < _RUN_BYTES:
                runs[-1] = Run(runs[-1].first, place)
            else:
                runs.append(Run(place, place))
                held = 0
            held += self._groups[0].column(place).total_compressed_size
        return runs

    def _spans(self, group: int) -> Iterator[tuple[Run, int, int]]:
        """The runs, and where the bytes of each one begin and end in the row group."""
        start, following, end = self._ends[group][0], 0, 0
        for run in self.runs:
            # a run that follows the one before begins where that ends: columns have no gaps
            begin = end if run.first == following else self._chunk(group, run.first)[0] - start
            end = self._chunk(group, run.last)[1] - start
            following = run.last + 1
            yield run, begin, end

    def _chunk(self, group: int, place: int) -> tuple[int, int]:
        """Where the bytes of a column begin and end in the file; they begin with its dictionary, if it has one."""
        chunk = self._groups[group].column(place)
        dictionary, data = chunk.dictionary_page_offset, chunk.data_page_offset
        begin = data if dictionary is None else min(dictionary, data)
        return begin, begin + chunk.total_compressed_size

    def _span(self, group: int) -> tuple[int, int]:
        return self._ends[group][0], self._ends[group + 1][0]

    def expect(self, group: int) -> None:
        """Start to read the bytes of a row group, the next that will be asked for."""
        with _naming(self._location):
            self._bytes.expect(*self._span(group))

    def check(self, group: int) -> None:
        """Read all bytes of a row group, and raise if they differ from what was written."""
        begin, end = self._span(group)
        with _naming(self._location):
            content = self._bytes.get(begin, end)
        _Blocks(content, self._ends[group + 1][1], self._location).check(0, end - begin)

    def read(self, group: int, then: Callable[[], None] | None = None) -> list[pa.Array]:
        """Check and decode the chosen columns of a row group.

        Args:
            group: the number of the row group.
            then: called when the bytes are here, before they are checked: the time to expect others.

        Returns:
            The columns, in the order of `schema`.
        """
        found: list[pa.Array] = []
        with _naming(self._location):
            blocks = _Blocks(self._bytes.get(*self._span(group)), self._ends[group + 1][1], self._location)
            if then is not None:
                then()
            for run, begin, end in self._spans(group):
                blocks.check(begin, end)
                # by number: a name would also stand for others that begin with it and a dot
                places = list(range(run.first, run.last + 1))
                table = self._file.reader.read_row_group(group, column_indices=places, use_threads=False)
                found += one_batch(table).columns
        return found

    def close(self) -> None:
        """Close the file."""
        self._bytes.close()


class _Blocks:
    """The blocks of a row group, each of which is checked once."""

    def __init__(self, content: pa.Buffer, checksums: str, location: Location) -> None:
        self._content, self._checksums, self._location = memoryview(content), checksums, location
        # a row group of format 4 and before is one block
        self._block_bytes = BLOCK_BYTES if len(checksums) > _DIGITS else max(1, len(content))
        number = -(-len(content) // self._block_bytes)
        if len(checksums) != number * _DIGITS:
            raise damaged(location)
        self._checked = bytearray(number)

    def check(self, begin: int, end: int) -> None:
        """Raise if any of the blocks that hold the bytes begin … end − 1 has changed."""
        if not 0 <= begin <= end <= len(self._content):
            raise damaged(self._location)
        size, digest = self._block_bytes, xxhash.xxh3_64_hexdigest
        for block in range(begin // size, -(-end // size)):
            if self._checked[block]:
                continue
            checksum = self._checksums[block * _DIGITS : (block + 1) * _DIGITS]
            if digest(self._content[block * size : (block + 1) * size]) != checksum:
                raise damaged(self._location)
            self._checked[block] = 1


def one_batch(table: pa.Table) -> pa.RecordBatch:
    """A table, which has rows, as one record batch, whose slices cost a third of a table's."""
    batches = table.to_batches()
    if len(batches) > 1:
        batches = table.combine_chunks().to_batches()
    return batches[0]


def require_checksum(content: Any, checksum: str, location: Location) -> None:
    """Raise if the bytes that were read differ from those that were written."""
    if xxhash.xxh3_64_hexdigest(content) != checksum:
        raise damaged(location)


def damaged(location: Location) -> DataError:
    """The error for a file, or a directory, whose bytes have changed."""
    return DataError(
        f"{str(location)!r} is damaged: its bytes are not those that were written. Build the epoch again, and check "
        "the disk or the copy."
    )


@contextmanager
def _naming(location: Location) -> Iterator[None]:
    """Turn any failure with a part into an error that names the part."""
    try:
        yield
    except (OSError, arrow.ArrowException, ValueError) as error:
        said = " ".join(str(error).split())  # some Arrow messages span several lines
        raise DataError(f"{str(location)!r} cannot be read ({said}). Build the epoch again.") from None
