"""Temporary files of rows, which are written in pieces and loaded as one table.

Nothing is encoded: a piece has the bare values of each fixed-width column, one byte per row for each such column that
has missing values, and one Arrow message with all other columns. A piece is written by one system call and read by
another, directly to where the values belong in the loaded columns.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ballsbins._extras import Later
from ballsbins._files import PRIVATE
from ballsbins.batch_files.gather import Bytes, ReusedMemory, fixed_width, values_of
from ballsbins.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

arrow = Later("pyarrow", feature="Batching tables", extra="data")

_MOST_BUFFERS = 1024  # the most that a system call takes on Linux and macOS
_VECTORED = hasattr(os, "writev") and hasattr(os, "preadv")  # not on Windows


class RowLayout:
    """How rows of a schema lie in a file."""

    def __init__(self, schema: pa.Schema) -> None:
        """Divide the columns into those of fixed width and the others."""
        self.schema = schema
        self.widths = {
            number: width for number, kind in enumerate(schema.types) if (width := fixed_width(kind))
        }
        self.others = [number for number in range(len(schema)) if number not in self.widths]
        self.message_schema: pa.Schema = arrow.schema([schema.field(number) for number in self.others])

    def bytes_of(self, rows: pa.RecordBatch) -> int:
        """How many bytes a piece of these rows takes."""
        return sum(len(buffer) for buffer in RawRows(self, rows).buffers(0, rows.num_rows))


class RawRows:
    """The bytes of some rows, as they are written."""

    def __init__(self, layout: RowLayout, rows: pa.RecordBatch) -> None:
        """Find the bytes, most of them without a copy."""
        columns = {number: rows.column(number) for number in layout.widths}
        self._values = [(values_of(columns[number], width), width) for number, width in layout.widths.items()]
        self.masked = tuple(number for number, column in columns.items() if column.null_count)
        for number in self.masked:
            mask = columns[number].is_valid().to_numpy(zero_copy_only=False)
            self._values.append((mask.view(np.uint8), 1))
        self._others = rows.select(layout.others) if layout.others else None

    def buffers(self, start: int, stop: int) -> list[Any]:
        """The content of a piece of the rows start … stop − 1."""
        found: list[Any] = [values[start * width : stop * width] for values, width in self._values]
        if self._others is not None:
            message = self._others.slice(start, stop - start).serialize()
            found.append(np.frombuffer(message, np.uint8))
        return found


class _Piece(NamedTuple):
    """Where a piece begins, its rows and bytes, which columns have masks, and the bytes of its message."""

    begin: int
    rows: int
    bytes: int
    masked: tuple[int, ...]
    message: int


class RowFile:
    """A file of rows.

    Attributes:
        path: where it is.
        bytes: how many bytes have been written.
    """

    def __init__(self, path: Path, layout: RowLayout) -> None:
        """Create the file."""
        self.path, self.bytes, self.pieces = path, 0, list[_Piece]()
        self._layout = layout
        self._file = os.fdopen(
            os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE), "wb", buffering=0
        )

    def write(self, rows: RawRows, start: int, stop: int) -> None:
        """Append the rows start … stop − 1."""
        buffers = rows.buffers(start, stop)
        size = sum(map(len, buffers))
        message = len(buffers[-1]) if self._layout.others else 0
        self.pieces.append(_Piece(self.bytes, stop - start, size, rows.masked, message))
        _write(self._file, buffers)
        self.bytes += size

    def close(self) -> None:
        """End writing."""
        self._file.close()


def load_rows(layout: RowLayout, files: Sequence[RowFile], memory: ReusedMemory) -> pa.Table:
    """Load all rows of some files, one file after the other, as a table of one array per column.

    The table is valid until `memory` is used to load again.
    """
    return _loaded(layout, [(file, piece) for file in files for piece in file.pieces], memory)


def load_some_rows(
    layout: RowLayout, files: Sequence[RowFile], most_bytes: int, memory: ReusedMemory
) -> Iterator[pa.Table]:
    """Load the rows in tables of about `most_bytes` bytes, but of at least one piece; otherwise as `load_rows`."""
    waiting: list[tuple[RowFile, _Piece]] = []
    held = 0
    for file in files:
        for piece in file.pieces:
            if waiting and held + piece.bytes > most_bytes:
                yield _loaded(layout, waiting, memory)
                waiting, held = [], 0
            waiting.append((file, piece))
            held += piece.bytes
    if waiting:
        yield _loaded(layout, waiting, memory)


def _loaded(layout: RowLayout, pieces: Sequence[tuple[RowFile, _Piece]], memory: ReusedMemory) -> pa.Table:
    rows = sum(piece.rows for _, piece in pieces)
    masked = sorted({number for _, piece in pieces for number in piece.masked})
    widths = list(layout.widths.values())
    arrays = memory.arrays("load", [*(rows * width for width in widths), *(rows for _ in masked)])
    values, masks = arrays[: len(widths)], arrays[len(widths) :]
    # Messages are copied when they are joined, so their memory is free again before the rows are used.
    messages = ReusedMemory().arrays("messages", [piece.message for _, piece in pieces])
    mask_of = dict(zip(masked, masks, strict=True))
    for mask in masks:
        mask.fill(True)
    sources: dict[Path, Any] = {}
    try:
        begin = 0
        for (file, piece), message in zip(pieces, messages, strict=True):
            if file.path not in sources:
                sources[file.path] = file.path.open("rb", buffering=0)
            end = begin + piece.rows
            buffers = [
                array[begin * width : end * width] for array, width in zip(values, widths, strict=True)
            ]
            buffers += [mask_of[number][begin:end] for number in piece.masked]
            _read(sources[file.path], [*buffers, message] if layout.others else buffers, piece.begin)
            begin = end
    finally:
        for source in sources.values():
            source.close()
    fixed = {}
    for number, array in zip(layout.widths, values, strict=True):
        valid = np.packbits(mask_of[number], bitorder="little") if number in mask_of else None
        both = [None if valid is None else arrow.py_buffer(valid), arrow.py_buffer(array)]
        fixed[number] = arrow.Array.from_buffers(layout.schema.field(number).type, rows, both)
    rest = _joined(layout.message_schema, messages) if layout.others else {}
    columns = [
        fixed[number] if number in fixed else rest[layout.schema.field(number).name]
        for number in range(len(layout.schema))
    ]
    return arrow.Table.from_arrays(columns, schema=layout.schema)


def _joined(schema: pa.Schema, messages: Sequence[Bytes]) -> Any:
    batches = [arrow.ipc.read_record_batch(arrow.py_buffer(message), schema) for message in messages]
    return arrow.Table.from_batches(batches, schema=schema).combine_chunks()


def _write(file: Any, buffers: Iterable[Any]) -> None:
    left = iter(buffers)
    while some := list(islice(left, _MOST_BUFFERS)):
        done = os.writev(file.fileno(), some) if _VECTORED else 0
        if done == sum(map(len, some)):
            continue
        for buffer in some:  # the rest, after a call that the system ended early
            skip = min(done, len(buffer))
            done -= skip
            while skip < len(buffer):
                skip += file.write(buffer[skip:])


def _read(file: Any, buffers: Iterable[Any], begin: int) -> None:
    left = iter(buffers)
    while some := list(islice(left, _MOST_BUFFERS)):
        size = sum(map(len, some))
        done = os.preadv(file.fileno(), some, begin) if _VECTORED else 0
        begin += size
        if done == size:
            continue
        file.seek(begin - size + done)
        for buffer in some:
            skip = min(done, len(buffer))
            done -= skip
            while skip < len(buffer):
                taken = file.readinto(buffer[skip:])
                if not taken:
                    raise DataError(
                        f"The temporary file {file.name!r} has become shorter. Does another process remove files "
                        "there? Name another directory for them: --scratch."
                    )
                skip += taken
