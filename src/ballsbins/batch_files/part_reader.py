"""Read the row groups of a part, and check the bytes of each one before decoding it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ballsbins._extras import Later
from ballsbins.batch_files.format import ROW_GROUPS_KEY, StoredFile
from ballsbins.batch_files.part_bytes import opened
from ballsbins.batch_files.store import Location
from ballsbins.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

arrow = Later("pyarrow", feature="Reading batch files", extra="data")
parquet = Later("pyarrow.parquet", feature="Reading batch files", extra="data")
xxhash = Later("xxhash", feature="Reading batch files", extra="data")

_TAIL = 1 << 16  # bytes at the end of a part, as many as pyarrow reads first; the footer usually fits in them


class PartReader:
    """An open part whose footer has been checked.

    Attributes:
        rows: the number of rows of each row group.
        schema: the Arrow schema.
    """

    def __init__(self, location: Location, stored: StoredFile) -> None:
        """Open the part and read its footer."""
        self._location = location
        with _naming(location):
            self._bytes = opened(location)
            self._check_footer(stored)
            # The bytes of a row group are in memory before it is decoded, so pyarrow need not fetch any ahead.
            self._file = parquet.ParquetFile(self._bytes.source, pre_buffer=False)
            metadata = self._file.metadata
            self._ends = [(0, ""), *json.loads((metadata.metadata or {}).get(ROW_GROUPS_KEY.encode(), b"[]"))]
        self.rows = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        # Its metadata are the row groups, whose sizes are secret: no batch should carry them into a log.
        self.schema: pa.Schema = self._file.schema_arrow.remove_metadata()
        if len(self._ends) != len(self.rows) + 1:
            raise damaged(location)

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

    def _span(self, group: int) -> tuple[int, int]:
        return self._ends[group][0], self._ends[group + 1][0]

    def expect(self, group: int) -> None:
        """Start to read the bytes of a row group, the next that will be asked for."""
        with _naming(self._location):
            self._bytes.expect(*self._span(group))

    def check(self, group: int, then: Callable[[], None] | None = None) -> None:
        """Read the bytes of a row group, and raise if they differ from what was written.

        Args:
            group: the number of the row group.
            then: called when the bytes are here, before they are checked: the time to expect others.
        """
        with _naming(self._location):
            content = self._bytes.get(*self._span(group))
        if then is not None:
            then()
        require_checksum(content, self._ends[group + 1][1], self._location)

    def read(self, group: int, columns: list[str] | None, then: Callable[[], None] | None = None) -> pa.Table:
        """Check and decode a row group; `then` is that of `check`."""
        self.check(group, then)
        with _naming(self._location):
            return self._file.read_row_group(group, columns=columns, use_threads=False)

    def close(self) -> None:
        """Close the file."""
        self._bytes.close()


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
