"""Dictionary columns: their values are collected once, and from then on rows carry 32-bit codes.

A Parquet file has a separate dictionary in every row group, and Arrow would copy it with every piece of rows that is
read or moved. So rows are read with plain values, which take no more space than text, and get the codes of one
dictionary for the whole table. Its values are in the order in which the dictionaries of the files have them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ballsbins._extras import Later
from ballsbins.batch_files.input_files import naming
from ballsbins.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

    from ballsbins.batch_files.inputs import Inputs

arrow = Later("pyarrow", feature="Batching tables", extra="data")
compute = Later("pyarrow.compute", feature="Batching tables", extra="data")
parquet = Later("pyarrow.parquet", feature="Batching tables", extra="data")

_LARGEST_DICTIONARY = 2 << 20  # bytes: twice what writers put into the dictionary of a row group by default
_BLOCK = 8  # bytes of rows to encode at a time, per byte of the dictionaries
_KEPT, _KEPT_PER_VALUE = 1 << 20, 100  # bytes allowed for the codes of all rows, and extra bytes per value
# the footer key under which Arrow stores its own types, and a key of equal length that it ignores
_ARROW_SCHEMA = (
    b"ARROW:schema",
    b"ARROW:ignore",
)


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """The schema with dictionary columns replaced by columns of their values."""
    return arrow.schema(
        [
            entry.with_type(entry.type.value_type) if arrow.types.is_dictionary(entry.type) else entry
            for entry in schema
        ]
    )


def stored_schema(schema: pa.Schema, coded: Sequence[str]) -> pa.Schema:
    """The schema of rows that carry codes instead of values."""
    return shown_schema(schema, dict.fromkeys(coded, arrow.int32()))


def shown_schema(schema: pa.Schema, types: Mapping[str, pa.DataType]) -> pa.Schema:
    """The schema with different types for some columns."""
    return arrow.schema([entry.with_type(types.get(entry.name, entry.type)) for entry in schema])


@dataclass(frozen=True)
class Dictionaries:
    """The dictionary of each dictionary column of a table.

    Attributes:
        types: the type of each column.
        values: the values of each column, in the order of their codes.
        codes: the codes of all rows of a column, kept only if they are small compared with its values.
    """

    types: Mapping[str, pa.DataType]
    values: Mapping[str, pa.Array]
    codes: Mapping[str, pa.ChunkedArray] = field(default_factory=dict)

    @staticmethod
    def of(inputs: Inputs, columns: Sequence[str]) -> Dictionaries:
        """Collect the values of some columns from all files: one pass over these columns only, by row group."""
        types = {name: inputs.dictionary_types[name] for name in columns}
        found = {name: _Union(kind.value_type) for name, kind in types.items()}
        for file in inputs.files if types else ():
            with naming(file), file.location.open() as source:
                opened = parquet.ParquetFile(source, pre_buffer=False)
                plain = parquet.ParquetFile(source, metadata=_without_dictionaries(source), pre_buffer=False)
                for group in range(opened.num_row_groups):
                    for name in types:
                        chosen = plain if _has_outgrown(opened.metadata.row_group(group), name) else opened
                        column = chosen.read_row_group(group, columns=[name], use_threads=False).column(0)
                        for piece in column.chunks:
                            found[name].add(piece)
        values = {name: union.values() for name, union in found.items()}
        codes = {name: kept for name, union in found.items() if (kept := union.codes()) is not None}
        arrow.default_memory_pool().release_unused()
        return Dictionaries(types, values, codes)

    def block_bytes(self, least: int, most: int) -> int:
        """The size of a block of rows, in bytes, that is worth encoding at once.

        Arrow hashes all values of a dictionary again for each block, so a block should be several times as large as
        the dictionaries. It is at most `most`, except that it is always at least twice the dictionaries.
        """
        held = sum(values.nbytes for name, values in self.values.items() if name not in self.codes)
        return int(max(least, min(_BLOCK * held, most), 2 * held))

    def encode(self, batch: Any, first: int | None = None) -> Any:
        """Replace values with codes, in a batch of rows or a table.

        Args:
            batch: the rows.
            first: the position of the first row in the whole table, if the rows are consecutive there.
        """
        for name, values in self.values.items():
            place = batch.schema.get_field_index(name)
            column = batch.column(place)
            if first is not None and name in self.codes:
                codes = self.codes[name].slice(first, batch.num_rows).combine_chunks()
                same = bool(values.take(codes).equals(column))
            else:
                codes = compute.index_in(column, value_set=values)
                same = codes.null_count == column.null_count
            if not same:
                raise DataError(
                    f"The column {name!r} has a value that was not there when the files were first read. Build from "
                    "files that do not change."
                )
            batch = batch.set_column(place, batch.schema.field(place).with_type(arrow.int32()), codes)
        return batch

    @staticmethod
    def from_stream(content: bytes) -> Dictionaries:
        """Restore the dictionaries from the bytes that `as_stream` made; no bytes give no dictionaries."""
        if not content:
            return Dictionaries({}, {})
        table = arrow.ipc.open_stream(content).read_all()
        found = {name: table.column(name).chunk(0) for name in table.column_names}
        return Dictionaries(
            {name: column.type for name, column in found.items()},
            {name: column.dictionary for name, column in found.items()},
        )

    def as_batch(self) -> pa.RecordBatch | None:
        """A batch without rows whose columns carry the dictionaries, as stored; None if there are none."""
        if not self.types:
            return None
        columns = {
            name: arrow.DictionaryArray.from_arrays(
                arrow.array([], arrow.int32()), self.values[name], ordered=kind.ordered
            )
            for name, kind in self.types.items()
        }
        return arrow.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def as_stream(batch: pa.RecordBatch) -> Any:
    """The bytes of an Arrow stream that holds one batch."""
    buffer = arrow.BufferOutputStream()
    options = arrow.ipc.IpcWriteOptions(compression="zstd")
    with arrow.ipc.new_stream(buffer, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return buffer.getvalue()


class _Union:
    """The distinct values of a column, in order of first appearance, and the codes of its rows.

    New values wait until there are as many as known ones, and are then joined. So each value is hashed only a few
    times, however many row groups there are.
    """

    def __init__(self, kind: pa.DataType) -> None:
        self._known = arrow.array([], kind)
        self._waiting: list[tuple[pa.Array, pa.Array | None]] = []  # values, and the rows' codes within them
        self._values = self._rows = 0
        # No codes for floats: codes are checked by comparing values, and a NaN does not equal itself.
        self._codes: list[pa.Array] | None = None if arrow.types.is_floating(kind) else []

    def add(self, rows: pa.Array) -> None:
        """Add the rows of a row group: plain values, or dictionary codes."""
        values, codes = (
            (rows.dictionary, rows.indices) if isinstance(rows, arrow.DictionaryArray) else (rows, None)
        )
        self._rows += len(rows)
        known = self._known.slice(0, len(values))
        if codes is not None and not self._waiting and len(known) == len(values) and known.equals(values):
            self._keep(codes.cast(arrow.int32()))  # same dictionary, as in files that were cut from one
            return
        self._waiting.append((values, codes))
        self._values += len(values)
        if self._values >= len(self._known):
            self._join()

    def _join(self) -> None:
        if not self._waiting:
            return
        pieces = [self._known, *(values for values, _ in self._waiting)]
        whole = arrow.chunked_array(pieces, self._known.type).dictionary_encode()
        places = arrow.chunked_array(
            [chunk.indices for chunk in whole.chunks], arrow.int32()
        ).combine_chunks()
        begin = len(self._known)
        if whole.num_chunks:
            self._known = whole.chunk(0).dictionary
        for values, codes in self._waiting:
            own = places.slice(begin, len(values))
            self._keep(own if codes is None else own.take(codes))
            begin += len(values)
        self._waiting, self._values = [], 0

    def _keep(self, codes: pa.Array) -> None:
        if self._codes is not None:
            self._codes.append(codes)
            if 4 * self._rows > _KEPT + _KEPT_PER_VALUE * len(self._known):
                self._codes = None

    def values(self) -> pa.Array:
        self._join()
        return self._known

    def codes(self) -> pa.ChunkedArray | None:
        self._join()
        return None if self._codes is None else arrow.chunked_array(self._codes, arrow.int32())


def _has_outgrown(group: Any, name: str) -> bool:
    """Whether a column of a row group has more values than the file's dictionary holds.

    The file stores the rest as plain values, and making a dictionary from them would cost Arrow twice as much.
    """
    chunks = (group.column(number) for number in range(group.num_columns))
    (size,) = [chunk.total_uncompressed_size for chunk in chunks if chunk.path_in_schema == name]
    return bool(size > _LARGEST_DICTIONARY + 4 * group.num_rows)


def read_plain(
    source: Any, rows: int, groups: Sequence[int], names: Sequence[str], coded: Sequence[str], **options: Any
) -> Iterator[pa.RecordBatch]:
    """Read row groups of an open Parquet file; of the columns `names`, those in `coded` come as plain values."""
    plain = parquet.ParquetFile(source, metadata=_without_dictionaries(source), **options)
    rest = [name for name in names if name not in coded]
    streams = [plain.iter_batches(rows, row_groups=groups, columns=list(coded), use_threads=False)]
    if rest:
        opened = parquet.ParquetFile(source, **options)
        streams.append(opened.iter_batches(rows, row_groups=groups, columns=rest, use_threads=False))
    schema, order = None, []
    for batches in zip(*streams, strict=True):
        found = [column for batch in batches for column in batch.columns]
        if schema is None:
            fields = [entry for batch in batches for entry in batch.schema]
            read = [entry.name for entry in fields]
            order = [read.index(name) for name in names]
            schema = arrow.schema([fields[place] for place in order])
        yield arrow.RecordBatch.from_arrays([found[place] for place in order], schema=schema)


def _without_dictionaries(source: Any) -> Any:
    """The footer of a file with Arrow's own types hidden, so that text is read as text."""
    size = source.size()
    source.seek(size - 8)
    length = int.from_bytes(source.read(4), "little")
    source.seek(size - 8 - length)
    footer = source.read(length + 8).replace(*_ARROW_SCHEMA)
    return parquet.read_metadata(arrow.BufferReader(b"PAR1" + footer))
