"""Write whole batches, one after the other, as the part files of an epoch."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ballsbins._extras import Later
from ballsbins._files import PRIVATE, sync, write_new
from ballsbins.batch_files.format import MANIFEST_NAME, OFFSETS_NAME, WEIGHT_COLUMN, Manifest, part_name
from ballsbins.batch_files.row_order import Arranged

if TYPE_CHECKING:
    import pyarrow as pa

arrow = Later("pyarrow", feature="Writing batch files", extra="data")
parquet = Later("pyarrow.parquet", feature="Writing batch files", extra="data")

# Taken at a time; of a row group, if rows are wider than the first.
_MOST_ROWS, _MOST_BYTES = 1 << 15, 1 << 25
_MOST_PADDED = 1 << 20  # rows, blank ones too, that are put in order at a time


class PartsWriter:
    """The part files and offsets of one epoch; the manifest comes last."""

    def __init__(
        self, directory: Path, schema: pa.Schema, manifest: Manifest, *, rows_per_group: int, compression: str
    ) -> None:
        """`schema` is that of the rows as they come in, without weights."""
        self._directory, self._manifest = directory, manifest
        self._schema = written_schema(schema, padded=manifest.padded_to is not None)
        self._rows_per_group, self._compression = rows_per_group, compression
        self._offsets = np.zeros(manifest.steps + 1, dtype=np.int64)
        self._step = 0  # the next one to be written
        self._file: Any = None
        self._waiting: list[Any] = []

    def write(self, batches: Arranged) -> None:
        """Write the next batches; they begin where the last ones ended."""
        size = self._manifest.padded_to
        for some in [batches] if size is None else padded(batches, size):
            self._write(some)

    def _write(self, batches: Arranged) -> None:
        ends = np.concatenate(([0], np.cumsum(batches.sizes)))
        stop = batches.first_step + len(batches.sizes)
        self._offsets[self._step + 1 : stop + 1] = self._offsets[self._step] + ends[1:]
        while self._step < stop:
            part = self._manifest.part_of(self._step)
            part_end = min((part + 1) * self._manifest.batches_per_file, self._manifest.steps)
            until = min(stop, part_end)
            begin, end = (int(ends[step - batches.first_step]) for step in (self._step, until))
            self._open(part)
            self._add(batches.table, batches.order[begin:end])
            self._step = until
            if until == part_end:
                self._close(part)

    def finish(self) -> None:
        """Write the offsets and, last, the manifest."""
        content = io.BytesIO()
        np.save(content, self._offsets)
        write_new(self._directory / OFFSETS_NAME, content.getvalue())
        write_new(self._directory / MANIFEST_NAME, self._manifest.to_json().encode("utf-8"))

    def abandon(self) -> None:
        """Let go of the open file, if any, whatever is wrong with it: an error is on its way already."""
        if self._file is not None:
            with suppress(OSError, arrow.ArrowException):
                self._file.close()

    def _open(self, part: int) -> None:
        if self._file is None:
            # in a random order, statistics do not help to find a row
            self._file = parquet.ParquetWriter(
                str(self._directory / part_name(part)),
                self._schema,
                compression=self._compression,
                write_statistics=False,
            )

    def _add(self, table: pa.Table, order: NDArray[np.int64]) -> None:
        begin = 0
        while begin < len(order):
            room = self._rows_per_group - sum(piece.num_rows for piece in self._waiting)
            rows = order[begin : begin + min(room, _MOST_ROWS)]
            self._waiting.append(table.take(arrow.array(rows)).cast(self._schema))
            begin += len(rows)
            if len(rows) == room or sum(piece.nbytes for piece in self._waiting) >= _MOST_BYTES:
                self._flush()

    def _flush(self) -> None:
        if self._waiting:
            table = arrow.concat_tables(self._waiting)
            self._file.write_table(table, row_group_size=table.num_rows)
            self._waiting = []

    def _close(self, part: int) -> None:
        self._flush()
        self._file.close()
        self._file = None
        (self._directory / part_name(part)).chmod(PRIVATE)  # also where it is moved out of its directory
        sync(self._directory / part_name(part))


def written_schema(schema: pa.Schema, *, padded: bool) -> pa.Schema:
    """The schema of the files: that of the input, with a weight if batches are padded."""
    if not padded:
        return schema
    columns = [entry if zero(entry.type).null_count == 0 else entry.with_nullable(True) for entry in schema]
    return arrow.schema([*columns, arrow.field(WEIGHT_COLUMN, arrow.float32())])


def padded(batches: Arranged, size: int) -> Iterator[Arranged]:
    """Fill every batch up to `size` with rows of weight 0, behind the real ones; give some batches at a time."""
    table = batches.table
    blank = arrow.table([zero(entry.type) for entry in table.schema], names=table.schema.names)
    nullable = arrow.schema([entry.with_nullable(True) for entry in table.schema])
    table = arrow.concat_tables([table.cast(nullable), blank.cast(nullable)]).combine_chunks()
    weights = np.ones(table.num_rows, dtype=np.float32)
    weights[-1] = 0.0
    table = table.append_column(WEIGHT_COLUMN, arrow.array(weights))
    ends = np.concatenate(([0], np.cumsum(batches.sizes)))
    some = max(1, _MOST_PADDED // size)
    for first in range(0, len(batches.sizes), some):
        sizes = batches.sizes[first : first + some]
        begins = np.cumsum(sizes) - sizes
        shift = np.repeat(np.arange(len(sizes)) * size - begins, sizes)
        order = np.full(len(sizes) * size, table.num_rows - 1, dtype=np.int64)
        real = batches.order[ends[first] : ends[first + len(sizes)]]
        order[np.arange(len(real)) + shift] = real
        yield Arranged(batches.first_step + first, np.full(len(sizes), size), table, order)


def zero(kind: pa.DataType) -> pa.Array:
    """One value of a type that stands for nothing: 0, the empty text or list; missing where there is neither."""
    if arrow.types.is_fixed_size_binary(kind):
        return arrow.array([bytes(kind.byte_width)], kind)
    values: tuple[Any, ...] = (0, False, "", b"", [])
    for value in values:
        try:
            return arrow.array([value], kind)
        except (arrow.ArrowException, TypeError, ValueError):  # not a value of this type
            continue
    return arrow.nulls(1, kind)
