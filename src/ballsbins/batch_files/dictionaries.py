"""Dictionary columns: their values are collected once, and rows carry 32-bit codes from then on.

A Parquet file has a dictionary of its own in every row group, and Arrow would copy it with every piece of rows that
is read or moved. So rows are read with plain values, which take no more than text does, and get the codes of one
dictionary for the whole table: the values in the order in which the dictionaries of the files have them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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

_LARGEST_DICTIONARY = 2 << 20  # bytes, twice what writers put into the dictionary of a row group by default
_ARROW_SCHEMA = (
    b"ARROW:schema",
    b"ARROW:ignore",
)  # the key of a footer under which Arrow finds its own types


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """The schema with the values of dictionaries in place of their codes."""
    return arrow.schema(
        [
            entry.with_type(entry.type.value_type) if arrow.types.is_dictionary(entry.type) else entry
            for entry in schema
        ]
    )


def stored_schema(schema: pa.Schema, coded: Sequence[str]) -> pa.Schema:
    """The schema of rows that carry codes."""
    return shown_schema(schema, dict.fromkeys(coded, arrow.int32()))


def shown_schema(schema: pa.Schema, types: Mapping[str, pa.DataType]) -> pa.Schema:
    """The schema with other types for some columns."""
    return arrow.schema([entry.with_type(types.get(entry.name, entry.type)) for entry in schema])


@dataclass(frozen=True)
class Dictionaries:
    """The dictionary of each dictionary column of a table: its type, and its values in the order of their codes."""

    types: Mapping[str, pa.DataType]
    values: Mapping[str, pa.Array]

    @staticmethod
    def of(inputs: Inputs, columns: Sequence[str]) -> Dictionaries:
        """Collect the values of some columns from all files: a pass over these columns alone, by row group."""
        types = {name: inputs.dictionary_types[name] for name in columns}
        found = {name: arrow.array([], kind.value_type) for name, kind in types.items()}
        for file in inputs.files if types else ():
            with naming(file), file.location.open() as source:
                opened = parquet.ParquetFile(source, pre_buffer=False)
                plain = parquet.ParquetFile(source, metadata=_without_dictionaries(source), pre_buffer=False)
                for group in range(opened.num_row_groups):
                    for name in types:
                        chosen = plain if _has_outgrown(opened.metadata.row_group(group), name) else opened
                        column = chosen.read_row_group(group, columns=[name], use_threads=False).column(0)
                        for piece in column.chunks:
                            values = compute.unique(piece) if chosen is plain else piece.dictionary
                            found[name] = _joined(found[name], values)
        arrow.default_memory_pool().release_unused()
        return Dictionaries(types, found)

    def encode(self, batch: Any) -> Any:
        """Put codes in place of values, in a batch of rows or a table."""
        for name, values in self.values.items():
            place = batch.schema.get_field_index(name)
            column = batch.column(place)
            codes = compute.index_in(column, value_set=values)
            if codes.null_count != column.null_count:
                raise DataError(
                    f"The column {name!r} has a value that was not there when the files were first read. Build from "
                    "files that do not change."
                )
            batch = batch.set_column(place, batch.schema.field(place).with_type(arrow.int32()), codes)
        return batch

    @staticmethod
    def from_stream(content: bytes) -> Dictionaries:
        """The dictionaries of a batch that `as_stream` made bytes of; none of no bytes."""
        if not content:
            return Dictionaries({}, {})
        table = arrow.ipc.open_stream(content).read_all()
        found = {name: table.column(name).chunk(0) for name in table.column_names}
        return Dictionaries(
            {name: column.type for name, column in found.items()},
            {name: column.dictionary for name, column in found.items()},
        )

    def as_batch(self) -> pa.RecordBatch | None:
        """A batch of no rows whose columns have the dictionaries: what the format stores; None if there are none."""
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
    """The bytes of an Arrow stream of one batch."""
    buffer = arrow.BufferOutputStream()
    options = arrow.ipc.IpcWriteOptions(compression="zstd")
    with arrow.ipc.new_stream(buffer, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return buffer.getvalue()


def _joined(known: pa.Array, more: pa.Array) -> pa.Array:
    """Put the values that are not known yet behind those that are."""
    if len(more) <= len(known) and known.slice(0, len(more)).equals(
        more
    ):  # as in files that were cut from one
        return known
    if not len(known):
        return more.drop_null()
    new = more.filter(compute.invert(compute.is_in(more, value_set=known))).drop_null()
    return known if not len(new) else arrow.concat_arrays([known, new])


def _has_outgrown(group: Any, name: str) -> bool:
    """Whether a column of a row group has more values than the dictionary of its file holds.

    The rest stands there as plain values, from which Arrow would make a dictionary at twice the cost.
    """
    chunks = (group.column(number) for number in range(group.num_columns))
    (size,) = [chunk.total_uncompressed_size for chunk in chunks if chunk.path_in_schema == name]
    return bool(size > _LARGEST_DICTIONARY + 4 * group.num_rows)


def read_plain(
    source: Any, rows: int, groups: Sequence[int], names: Sequence[str], coded: Sequence[str], **options: Any
) -> Iterator[pa.RecordBatch]:
    """Read row groups of an open Parquet file, the columns `coded` among `names` with plain values."""
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
    """The footer of a file as if Arrow's own types did not stand in it: then text is read as text."""
    size = source.size()
    source.seek(size - 8)
    length = int.from_bytes(source.read(4), "little")
    source.seek(size - 8 - length)
    footer = source.read(length + 8).replace(*_ARROW_SCHEMA)
    return parquet.read_metadata(arrow.BufferReader(b"PAR1" + footer))
