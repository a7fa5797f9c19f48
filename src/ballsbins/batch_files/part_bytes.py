"""The bytes of a part: mapped into memory if the part is on this machine, fetched a row group ahead from a store.

A mapping saves a copy, and the kernel reads ahead once it is told what comes next. A store answers late, so a thread
fetches what comes next while the present rows are used.
"""

from __future__ import annotations

import mmap
import os
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ballsbins._extras import Later
from ballsbins.batch_files.store import Location

if TYPE_CHECKING:
    import pyarrow as pa

arrow = Later("pyarrow", feature="Reading batch files", extra="data")

_CAN_ASK = hasattr(os, "RWF_NOWAIT") and hasattr(mmap, "MADV_WILLNEED")  # on Linux


class PartBytes(Protocol):
    """Random access to a part.

    Attributes:
        size: the number of bytes.
        source: what `pyarrow.parquet` decodes from; it has the bytes that `get` gave last, and maybe others.
    """

    size: int
    source: Any

    def expect(self, begin: int, end: int) -> None:
        """Start to read bytes that `get` will be asked for next."""

    def get(self, begin: int, end: int) -> pa.Buffer:
        """Return the bytes from `begin` to `end`; fewer if the file has become shorter."""

    def close(self) -> None:
        """Close the file."""


def opened(location: Location) -> PartBytes:
    """Open a part."""
    return _Fetched(location) if location.local is None else _Mapped(location.local)


class _Mapped:
    """A file of this machine, mapped into memory."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDONLY)
        self._end = weakref.finalize(self, os.close, self._file)
        self._memory = mmap.mmap(self._file, 0, access=mmap.ACCESS_READ)
        self._whole = arrow.py_buffer(self._memory)
        self.size: int = self._whole.size
        self.source: Any = arrow.BufferReader(self._whole)

    def expect(self, begin: int, end: int) -> None:
        if _CAN_ASK and not self._cached(end - 1):
            first = begin - begin % mmap.PAGESIZE
            self._memory.madvise(mmap.MADV_WILLNEED, first, end - first)

    def _cached(self, place: int) -> bool:
        """Whether a byte is in memory. Announcing a row group that is there already would cost 1 % of reading it."""
        try:
            return os.preadv(self._file, [bytearray(1)], place, os.RWF_NOWAIT) == 1
        except OSError:
            return False

    def get(self, begin: int, end: int) -> pa.Buffer:
        return self._whole[begin:end]

    def close(self) -> None:
        """Close the file; its mapping ends with its last use, which may be a row group being decoded."""
        self._end()


class _Fetched:
    """An object of a store; a thread fetches the next row group."""

    def __init__(self, location: Location) -> None:
        self._file = location.open()
        self.size: int = self._file.size()
        self._window = _Window(self.size)
        self.source: Any = arrow.PythonFile(self._window, mode="r")
        self._pool: ThreadPoolExecutor | None = None
        self._expected: tuple[int, int] = (0, 0)
        self._coming: Future[pa.Buffer] | None = None

    def expect(self, begin: int, end: int) -> None:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="ballsbins-fetch")
        self._expected, self._coming = (begin, end), self._pool.submit(self._fetch, begin, end)

    def get(self, begin: int, end: int) -> pa.Buffer:
        coming, self._coming = self._coming, None
        if coming is not None and self._expected == (begin, end):
            content = coming.result()
        else:
            content = self._fetch(begin, end)
        self._window.show(begin, content)
        return content

    def _fetch(self, begin: int, end: int) -> pa.Buffer:
        return arrow.py_buffer(self._file.read_at(end - begin, begin))

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._file.close()


class _Window:
    """A file-like view of a part, with only the bytes of one row group in memory."""

    closed = False

    def __init__(self, size: int) -> None:
        self._size, self._begin, self._at = size, 0, 0
        self._content: Any = b""

    def show(self, begin: int, content: pa.Buffer) -> None:
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
        return self._content[begin : begin + count]

    read_buffer = read

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        """Do nothing: there is nothing to close."""
