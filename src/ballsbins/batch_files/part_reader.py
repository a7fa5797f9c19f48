"""Read the row groups of a part, one range of bytes at a time, and check each one before decoding it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ballsbins._extras import Later
from ballsbins.batch_files.format import ROW_GROUPS_KEY, StoredFile
from ballsbins.batch_files.store import Location
from ballsbins.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

arrow = Later("pyarrow", feature="Reading batch files", extra="data")
parquet = Later("pyarrow.parquet", feature="Reading batch files", extra="data")
xxhash = Later("xxhash", feature="Reading batch files", extra="data")

_MARK = b"PAR1"
_TAIL = 1 << 16  # bytes at the end of a part; its footer usually fits in them


class ReadBuffer:
    """A reusable read buffer: allocating new memory costs as much as reading into it."""

    def __init__(self) -> None:
        """Start empty."""
        self._memory = bytearray()

    def of(self, size: int) -> memoryview:
        """Return `size` bytes of the buffer; this reuses the bytes returned before."""
        if len(self._memory) < size:
            self._memory = bytearray(size)
        return memoryview(self._memory)[:size]


class PartReader:
    """An open part whose footer has been checked.

    Attributes:
        rows: the number of rows of each row group.
        schema: the Arrow schema.
    """

    def __init__(self, location: Location, stored: StoredFile, buffer: ReadBuffer) -> None:
        """Read the footer; row groups are read into `buffer`, which parts that are read in turn may share."""
        self._location, self._buffer = location, buffer
        self._source = self._location.open()
        with _naming(self._location):
            footer = self._footer(stored)
            metadata = parquet.read_metadata(arrow.BufferReader(_MARK + footer))
            self._ends = [(0, ""), *json.loads((metadata.metadata or {}).get(ROW_GROUPS_KEY.encode(), b"[]"))]
            self._window = _Window(stored.bytes)
            source = arrow.PythonFile(self._window, mode="r")
            self._file = parquet.ParquetFile(source, metadata=metadata, pre_buffer=True)
        self.rows = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        self.schema: pa.Schema = self._file.schema_arrow
        if len(self._ends) != len(self.rows) + 1:
            raise damaged(self._location)

    def _footer(self, stored: StoredFile) -> bytes:
        """All bytes after the last row group, after checking them against the manifest's checksum."""
        size = self._source.size()
        if size != stored.bytes:
            raise damaged(self._location)
        tail = self._read(max(0, size - _TAIL), size, ReadBuffer())
        length = min(int.from_bytes(tail[-8:-4], "little") + 8, size)
        if length > len(tail):
            tail = self._read(size - length, size, ReadBuffer())
        # a part without row groups consists of its footer only, from the first byte on
        for footer in (
            tail[-length:],
            tail,
        ):
            if xxhash.xxh3_64_hexdigest(footer) == stored.checksum:
                return bytes(footer)
        raise damaged(self._location)

    def check(self, group: int) -> None:
        """Read the bytes of a row group, and raise if they differ from what was written."""
        begin, (end, checksum) = self._ends[group][0], self._ends[group + 1]
        with _naming(self._location):
            content = self._read(begin, end, self._buffer)
        require_checksum(content, checksum, self._location)
        self._window.show(begin, content)

    def read(self, group: int, columns: list[str] | None) -> pa.Table:
        """Check and decode a row group."""
        self.check(group)
        with _naming(self._location):
            return self._file.read_row_group(group, columns=columns, use_threads=False)

    def _read(self, begin: int, end: int, buffer: ReadBuffer) -> memoryview:
        """Read some bytes. Decoding copies the data out of the buffer, so the buffer can then be reused."""
        view = buffer.of(end - begin)
        self._source.seek(begin)
        done = 0
        while done < len(view):
            taken = self._source.readinto(view[done:])
            if not taken:
                raise damaged(self._location)
            done += taken
        return view

    def close(self) -> None:
        """Close the file."""
        self._source.close()


class _Window:
    """A file-like view of a part, with only the bytes of one row group in memory."""

    closed = False

    def __init__(self, size: int) -> None:
        self._size, self._begin, self._content, self._at = size, 0, memoryview(b""), 0

    def show(self, begin: int, content: memoryview) -> None:
        self._begin, self._content = begin, content

    def size(self) -> int:
        return self._size

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (self._size if whence == 2 else self._at if whence == 1 else 0)
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, count: int) -> Any:
        begin = self._at - self._begin
        if begin < 0 or begin + count > len(self._content):
            raise OSError("a column lies outside its row group")
        self._at += count
        return arrow.py_buffer(self._content[begin : begin + count])

    read_buffer = read

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


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
