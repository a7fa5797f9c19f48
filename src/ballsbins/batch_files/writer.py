"""Write whole batches, one after the other, as the part files of an epoch."""

from __future__ import annotations

import io
import json
import secrets
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ballsbins._extras import Later
from ballsbins.batch_files.dictionaries import as_stream
from ballsbins.batch_files.format import (
    BLOCK_BYTES,
    MANIFEST_NAME,
    ROW_GROUPS_KEY,
    WEIGHT_COLUMN,
    Files,
    Manifest,
    StoredFile,
)
from ballsbins.batch_files.gather import ReusedMemory, ordered_rows
from ballsbins.batch_files.row_order import Arranged
from ballsbins.batch_files.store import Location

if TYPE_CHECKING:
    import pyarrow as pa

arrow = Later("pyarrow", feature="Writing batch files", extra="data")
parquet = Later("pyarrow.parquet", feature="Writing batch files", extra="data")

# Limit of a row group in bytes, in case later rows are wider than the first ones; a single batch may exceed it.
_MOST_BYTES = 1 << 26
_SINK_BUFFER = 1 << 20  # bytes that are hashed and handed to the system at a time
_TAKEN_GROUPS = 5  # row groups whose rows are put in order at once
_MOST_PADDED = 1 << 20  # rows, including blank ones, that are put in order at once


class PartsWriter:
    """Writes the part files of an epoch one after the other; call `write_epoch_end` once all parts exist.

    Attributes:
        parts: the part files written so far.
    """

    def __init__(
        self,
        directory: Location,
        schema: pa.Schema,
        manifest: Manifest,
        *,
        rows_per_group: int,
        compression: str,
        first_part: int = 0,
        dictionary_encoded: Sequence[str] | bool = True,
        without_nulls: Collection[str] = (),
        reused: ReusedMemory | None = None,
    ) -> None:
        """Start at the beginning of a part.

        Args:
            directory: the directory of the epoch.
            schema: the schema of the incoming rows, without weights.
            manifest: the manifest of the whole epoch.
            rows_per_group: the most rows in a row group. It holds whole batches, so one batch may exceed it.
            compression: of the Parquet files.
            first_part: the part that begins with the first batch to write.
            dictionary_encoded: the columns that Parquet encodes with a dictionary of its own; True for all columns.
            without_nulls: the columns in which no row of the epoch lacks a value. The parts store them as required,
                which saves decoding whether each value is there.
            reused: memory for ordering rows, if several writers are used in turn.
        """
        self._directory, self._manifest = directory, manifest
        self._schema = part_schema(schema, without_nulls, padded=manifest.padded_to is not None)
        self._rows_per_group = rows_per_group
        self._options = {"compression": compression, "use_dictionary": dictionary_encoded}
        self._step = first_part * manifest.batches_per_file  # the next step to write
        self._sizes: list[NDArray[np.int64]] = [np.empty(0, np.int64)]
        self._suffix, self._reused = _suffix(), reused or ReusedMemory()
        self._open: _Part | None = None
        self.parts: list[StoredFile] = []

    @property
    def sizes(self) -> NDArray[np.int64]:
        """The number of rows of each batch written so far, including padding."""
        return np.concatenate(self._sizes)

    def write(self, batches: Arranged) -> None:
        """Write the next batches; they begin where the previous ones ended."""
        size = self._manifest.padded_to
        for some in [batches] if size is None else padded(batches, size):
            self._write(some)

    def _write(self, batches: Arranged) -> None:
        ends = np.concatenate(([0], np.cumsum(batches.sizes)))
        stop = batches.first_step + len(batches.sizes)
        self._sizes.append(np.asarray(batches.sizes, np.int64))
        while self._step < stop:
            part = self._manifest.part_of(self._step)
            part_end = min((part + 1) * self._manifest.batches_per_file, self._manifest.steps)
            until = min(stop, part_end)
            if self._open is None:
                location = self._directory / f"part-{part:06d}-{self._suffix}.parquet"
                self._open = _Part(location, self._schema, self._options)
            self._add(self._open, batches, ends, self._step - batches.first_step, until - batches.first_step)
            self._step = until
            if until == part_end:
                self.parts.append(self._open.close())
                self._open = None

    def _add(self, part: _Part, batches: Arranged, ends: NDArray[np.int64], first: int, stop: int) -> None:
        """Write the row groups of batches `first` … `stop` − 1: runs of batches, rank by rank."""
        width = batches.table.nbytes / max(batches.table.num_rows, 1)
        group = max(1, min(self._rows_per_group, int(_MOST_BYTES / max(width, 1))))
        for begin, end in _runs(ends, first, stop, _TAKEN_GROUPS * group):
            order, groups = self._by_rank(batches, ends, begin, end, group)
            # This gathers all rows of a column before the next, so that the column stays in the cache.
            taken = ordered_rows(batches.table, order, self._reused, "gather")
            if taken.schema != self._schema:
                taken = taken.cast(self._schema)
            done = 0
            for rows in groups:
                part.write(taken.slice(done, rows))
                done += rows

    def _by_rank(
        self, batches: Arranged, ends: NDArray[np.int64], first: int, stop: int, group: int
    ) -> tuple[NDArray[np.int64], list[int]]:
        """The rows of some batches in file order, and the number of rows of each row group."""
        ranks = self._manifest.world_size
        order, groups = [], []
        for begin, end in _runs(ends, first, stop, ranks * group):
            rows, sizes = batches.order[ends[begin] : ends[end]], batches.sizes[begin:end]
            rank_of = (np.arange(len(rows)) - np.repeat(np.cumsum(sizes) - sizes, sizes)) % ranks
            order += [rows[rank_of == rank] for rank in range(ranks)] if ranks > 1 else [rows]
            groups += np.bincount(rank_of, minlength=ranks).tolist()
        return np.concatenate(order), groups

    def abandon(self) -> None:
        """Close the open file, if any, and ignore its errors: another error is already being raised."""
        if self._open is not None:
            self._open.abandon()
            self._open = None


def _runs(ends: NDArray[np.int64], first: int, stop: int, rows: int) -> Iterator[tuple[int, int]]:
    """Cut batches into runs of equal length, as few as have at most `rows` rows each; none is empty.

    A run ends with the batch that ends nearest to where it should, so it may be half a batch too long.
    """
    count = -(-int(ends[stop] - ends[first]) // rows)
    cuts = np.linspace(ends[first], ends[stop], count + 1)[1:-1]
    middles = (ends[first:stop] + ends[first + 1 : stop + 1]) / 2
    steps = np.unique([first, *(np.searchsorted(middles, cuts) + first), stop])
    for begin, end in pairwise(steps.tolist()):
        if ends[end] > ends[begin]:
            yield begin, end


class _Part:
    """A part that is being written, and the checksums of its row groups."""

    def __init__(self, location: Location, schema: pa.Schema, options: dict[str, Any]) -> None:
        self._location, self._groups = location, list[tuple[int, str]]()
        self._creating = location.create()
        self._sink = self._creating.__enter__()
        self._sink.block_bytes = BLOCK_BYTES
        # Parquet writes thousands of small pieces, and each call of a Python object costs as much as 10 kB.
        self._buffered = arrow.BufferedOutputStream(arrow.PythonFile(self._sink, mode="w"), _SINK_BUFFER)
        # Rows are in random order, so statistics would not help to find a row.
        self._file = parquet.ParquetWriter(self._buffered, schema, write_statistics=False, **options)

    def write(self, table: pa.Table) -> None:
        """Write one row group, which may be empty."""
        self._file.write_table(table, row_group_size=max(table.num_rows, 1))
        self._buffered.flush()
        self._groups.append((self._sink.bytes, self._sink.section()))

    def close(self) -> StoredFile:
        self._file.add_key_value_metadata({ROW_GROUPS_KEY: json.dumps(self._groups)})
        self._sink.block_bytes = None  # the footer, which follows, has one checksum
        self._file.close()
        self._buffered.close()
        self._creating.__exit__(None, None, None)
        return StoredFile(self._location.name, self._sink.bytes, self._sink.checksum)

    def abandon(self) -> None:
        for stream in (self._file, self._buffered):
            with suppress(OSError, arrow.ArrowException):
                stream.close()
        reason = RuntimeError("the part is not wanted")
        self._creating.__exit__(type(reason), reason, None)


def write_epoch_end(
    directory: Location,
    manifest: Manifest,
    sizes: NDArray[np.int64],
    parts: Sequence[StoredFile],
    dictionaries: pa.RecordBatch | None = None,
) -> Manifest:
    """Write what follows the parts of an epoch: the offsets, the dictionaries and, last, the manifest.

    Args:
        directory: the directory of the epoch.
        manifest: the facts of the epoch, including its inputs.
        sizes: the number of rows of each batch in the files.
        parts: the part files, in order.
        dictionaries: a batch without rows whose columns carry the dictionaries.

    Returns:
        The manifest as written, with the names and checksums of all files.
    """
    suffix, content = _suffix(), io.BytesIO()
    np.save(content, np.concatenate(([0], np.cumsum(sizes, dtype=np.int64))))
    stored = _written(directory / f"offsets-{suffix}.npy", content.getvalue())
    words = None
    if dictionaries is not None:
        words = _written(directory / f"dictionaries-{suffix}.arrow", as_stream(dictionaries))
    whole = replace(manifest, files=Files(stored, tuple(parts), words))
    (directory / MANIFEST_NAME).write(whole.to_json().encode("utf-8"))
    return whole


def _written(location: Location, content: Any) -> StoredFile:
    sink = location.write(content)
    return StoredFile(location.name, sink.bytes, sink.checksum)


def _suffix() -> str:
    """A random suffix that keeps the files of different attempts apart, so none overwrites what a manifest names."""
    return secrets.token_hex(4)


def written_schema(schema: pa.Schema, *, padded: bool) -> pa.Schema:
    """The schema of the files: that of the input, plus a weight if batches are padded."""
    if not padded:
        return schema
    columns = [entry if zero(entry.type).null_count == 0 else entry.with_nullable(True) for entry in schema]
    return arrow.schema([*columns, arrow.field(WEIGHT_COLUMN, arrow.float32(), nullable=False)])


def part_schema(schema: pa.Schema, without_nulls: Collection[str], *, padded: bool) -> pa.Schema:
    """The schema of the parts: that of the files, with the columns required in which no value is missing.

    Parquet stores for each value of any other column whether it is there. A type without a blank value stays as it
    is, since padding needs a missing one; so does the null type, which Parquet cannot require.
    """
    whole = written_schema(schema, padded=padded)
    required = [entry.name in without_nulls and not zero(entry.type).null_count for entry in whole]
    return arrow.schema(
        [entry.with_nullable(False) if it else entry for entry, it in zip(whole, required, strict=True)]
    )


def padded(batches: Arranged, size: int) -> Iterator[Arranged]:
    """Fill every batch up to `size` with rows of weight 0 after the real ones; give some batches at a time."""
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
    """A blank value of a type: 0, an empty text or list; missing if the type has neither."""
    if isinstance(kind, arrow.BaseExtensionType):
        return arrow.ExtensionArray.from_storage(kind, zero(kind.storage_type))
    if arrow.types.is_fixed_size_binary(kind):
        return arrow.array([bytes(kind.byte_width)], kind)
    if arrow.types.is_fixed_size_list(kind):
        inner = zero(kind.value_type)
        return arrow.FixedSizeListArray.from_arrays(arrow.concat_arrays([inner] * kind.list_size), type=kind)
    values: tuple[Any, ...] = (0, False, "", b"", [])
    for value in values:
        try:
            return arrow.array([value], kind)
        except (arrow.ArrowException, TypeError, ValueError):  # not a value of this type
            continue
    return arrow.nulls(1, kind)
