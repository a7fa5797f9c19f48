"""The input table: Parquet, CSV or TSV files, local or in an object store, read in pieces."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ballsbins._extras import Later, load
from ballsbins.batch_files.dictionaries import plain_schema, read_plain
from ballsbins.batch_files.digest import RowsDigest, combined
from ballsbins.batch_files.input_files import (
    File,
    Footer,
    changed,
    each,
    etag_of,
    files_at,
    naming,
    read_footer,
    require_unchanged,
)
from ballsbins.errors import DataError, InvalidInputError

if TYPE_CHECKING:
    import pyarrow as pa

arrow = Later("pyarrow", feature="Reading tables", extra="data")
parquet = Later("pyarrow.parquet", feature="Reading tables", extra="data")

_CSV_BLOCK = 1 << 22
_HASHED_ROWS = 1 << 16  # rows per read when rows are read only for their hash
# A row group in a store is fetched whole, not column by column, if its compressed size is below this.
_FETCHED_BYTES = 16 << 20
# Read-ahead per column and worker: 1 MB for each of forty columns exceeded a small memory limit.
_BUFFER, _STORE_BUFFER = 1 << 16, 1 << 20

Digests = dict[tuple[int, int], bytes]  # hashes of row groups, keyed by (file number, group number)


@dataclass(frozen=True)
class CsvOptions:
    """How to read text files: whether the first line holds the names, and the types that must not be guessed."""

    header: bool = True
    types: Mapping[str, str] = field(default_factory=dict)


class Piece(NamedTuple):
    """A row group of a Parquet file, or a whole text file: its location, first row, number of rows and bytes."""

    file: int
    group: int
    first: int
    rows: int
    bytes: int


class Inputs:
    """Files of one kind and schema, read as one table whose rows are numbered by file, then by row."""

    def __init__(self, files: Sequence[File], csv: CsvOptions) -> None:
        """Internal: call `open_inputs` instead."""
        self.files, self.csv = tuple(files), csv
        self.footers: list[Footer] = each(read_footer, self.files) if self.is_parquet else []
        common = self._common_schema()
        self.dictionary_types = {
            entry.name: entry.type for entry in common if arrow.types.is_dictionary(entry.type)
        }
        self.stored_schema: pa.Schema = plain_schema(common)
        self.schema: pa.Schema = self.stored_schema

    @property
    def bytes(self) -> int:
        """The total size of all files."""
        return sum(file.size for file in self.files)

    @property
    def is_parquet(self) -> bool:
        """Whether the files are Parquet, whose rows can be counted without reading them."""
        return self.files[0].kind == "parquet"

    def only(self, columns: Sequence[str]) -> Inputs:
        """The same rows with these columns only."""
        narrow = copy(self)
        vars(narrow).pop("stored_row_bytes", None)
        narrow.schema = _selected(self.stored_schema, columns, self.files[0])
        return narrow

    def count(self) -> int:
        """The number of rows: Parquet footers state it; text files are read once to count them."""
        return sum(self.row_counts)

    @cached_property
    def row_counts(self) -> list[int]:
        """The number of rows of every file."""
        if self.is_parquet:
            return [footer.rows for footer in self.footers]
        narrow = self.only(self.schema.names[:1])
        counts = []
        for file in self.files:
            with naming(file):
                counts.append(sum(batch.num_rows for batch in narrow._read_text(file, 1 << 20)))
        return counts

    @cached_property
    def stored_row_bytes(self) -> float:
        """The uncompressed bytes per row in the widest row group, according to the footers; 0 if no footer tells."""
        return max((footer.widest_row(self.schema.names) for footer in self.footers), default=0.0)

    def pieces(self) -> list[Piece]:
        """All pieces, in row order."""
        found, first = [], 0
        for number, (file, rows) in enumerate(zip(self.files, self.row_counts, strict=True)):
            if not self.is_parquet:
                found.append(Piece(number, 0, first, rows, file.size))
                first += rows
                continue
            footer = self.footers[number]
            for group, (size, packed) in enumerate(zip(footer.group_rows, footer.packed_bytes, strict=True)):
                found.append(Piece(number, group, first, size, packed))
                first += size
        return found

    def read(
        self, rows: int, pieces: Sequence[Piece] | None = None, digests: Digests | None = None
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Give (approximate bytes of the files read so far, the next rows), at most `rows` rows at a time.

        Args:
            rows: the maximum number of rows to give at a time.
            pieces: what to read, in order; everything by default.
            digests: receives the hash of every piece once it has been read.

        Raises:
            DataError: a file cannot be read, or is no longer the file that was opened.
        """
        before = 0
        for number, of_file in groupby(self.pieces() if pieces is None else pieces, lambda piece: piece.file):
            file, these = self.files[number], list(of_file)
            total, size = sum(piece.rows for piece in these), sum(piece.bytes for piece in these)
            with naming(file):
                some = (
                    self._read_groups(number, these, rows) if self.is_parquet else self._read_text(file, rows)
                )
                done = 0
                for batch in some if digests is None else _hashed(file, some, these, digests):
                    done += batch.num_rows
                    yield before + size * done // max(total, 1), batch
            before += size

    def file_digests(self, digests: Digests) -> list[str]:
        """The hash of every file, from those of its pieces; raises if a file has changed since it was opened."""
        require_unchanged(self.files)
        groups = [len(footer.group_rows) for footer in self.footers] or [1] * len(self.files)
        return [
            combined(digests[number, group] for group in range(count)) for number, count in enumerate(groups)
        ]

    def _read_groups(self, number: int, pieces: Sequence[Piece], rows: int) -> Iterator[pa.RecordBatch]:
        file, footer, names = self.files[number], self.footers[number], self.schema.names
        groups = [piece.group for piece in pieces]
        stored = file.location.local is None
        fetch = stored and max(footer.packed_bytes, default=0) <= _FETCHED_BYTES
        buffer = _STORE_BUFFER if stored else _BUFFER
        with file.location.open() as source:
            if etag_of(source) != footer.etag:
                raise changed(file)
            opened = parquet.ParquetFile(source, buffer_size=buffer, pre_buffer=fetch)
            if opened.num_row_groups != len(footer.group_rows):
                raise changed(file)
            # A prefetching reader fetches all row groups of a call ahead, so pass it one group at a time.
            coded = [name for name in names if name in self.dictionary_types]
            for some in [[group] for group in groups] if fetch else [groups]:
                for batch in (
                    read_plain(source, rows, some, names, coded, buffer_size=buffer, pre_buffer=fetch)
                    if coded
                    else opened.iter_batches(rows, row_groups=some, columns=names, use_threads=False)
                ):
                    chosen = batch.select(names)
                    yield chosen if chosen.schema == self.schema else chosen.cast(self.schema)

    def _read_text(self, file: File, rows: int) -> Iterator[pa.RecordBatch]:
        types = {entry.name: entry.type for entry in self.schema}
        with file.location.open_stream() as source:
            for batch in self._open_csv(file, source, types, self.schema.names):
                for begin in range(0, batch.num_rows, rows):
                    yield batch.slice(begin, rows)

    def _open_csv(
        self, file: File, source: Any, types: Mapping[str, Any], names: Sequence[str] | None
    ) -> Any:
        csv = load("pyarrow.csv", feature="Reading CSV", extra="data")
        return csv.open_csv(
            source,
            read_options=csv.ReadOptions(
                block_size=_CSV_BLOCK, autogenerate_column_names=not self.csv.header, use_threads=False
            ),
            parse_options=csv.ParseOptions(
                delimiter="\t" if file.kind == "tsv" else ",", newlines_in_values=True
            ),
            convert_options=csv.ConvertOptions(column_types=dict(types), include_columns=names),
        )

    def _common_schema(self) -> pa.Schema:
        """The columns of all files, with types that every file can be read as; any other difference is an error.

        Types of text columns are guessed from the first file that has values, and apply to all files.
        """
        known = {name: _type_of(name, kind) for name, kind in self.csv.types.items()}
        common: dict[str, Any] = {}
        for number, file in enumerate(self.files):
            found = self.footers[number].schema if self.is_parquet else self._text_schema(file, known)
            repeated = [name for name in found.names if found.names.count(name) > 1]
            if repeated:
                headless = (
                    ""
                    if self.is_parquet
                    else " If it has no header, add --no-header (in Python, CsvOptions(header=False))."
                )
                raise DataError(
                    f"The column {min(repeated)!r} is twice in {file.shown!r}. Give every column its own name."
                    f"{headless}"
                )
            movable = arrow.schema([_movable(entry, file) for entry in found])
            if not common:
                common = {entry.name: entry for entry in movable}
            _require_same(common, movable, self.files[0], file)
            for entry in movable:
                nullable = entry.nullable or common[entry.name].nullable
                common[entry.name] = entry.with_nullable(nullable)
                if not self.is_parquet and not arrow.types.is_null(entry.type):
                    known[entry.name] = entry.type
        if not self.is_parquet:
            return arrow.schema([arrow.field(name, known.get(name, arrow.null())) for name in common])
        return arrow.schema(list(common.values()))

    def _text_schema(self, file: File, types: Mapping[str, Any]) -> pa.Schema:
        with naming(file):
            with file.location.open_stream() as source:
                found = self._open_csv(file, source, types, None).schema
            for name in types.keys() - set(found.names):
                raise _missing_column(name, file, found.names)
            return found


def file_digest(inputs: Inputs, number: int) -> str:
    """The hash of one file, which is read only for this purpose."""
    digests: Digests = {}
    pieces = [piece for piece in inputs.pieces() if piece.file == number]
    for _ in inputs.read(_HASHED_ROWS, pieces, digests):
        pass
    return combined(digests[piece.file, piece.group] for piece in pieces)


def _hashed(
    file: File, batches: Iterator[pa.RecordBatch], pieces: Sequence[Piece], digests: Digests
) -> Iterator[pa.RecordBatch]:
    """Pass on the rows of some pieces of a file, and record the hash of each piece."""
    waiting, digest = deque(pieces), RowsDigest()
    left = waiting[0].rows

    def finish_piece() -> None:
        nonlocal digest, left
        piece = waiting.popleft()
        digests[piece.file, piece.group] = digest.digest()
        digest, left = RowsDigest(), waiting[0].rows if waiting else 0

    for batch in batches:
        begin = 0
        while begin < batch.num_rows:
            if not waiting:  # more rows than when they were counted
                raise changed(file)
            taken = min(left, batch.num_rows - begin)
            digest.update(batch.slice(begin, taken))
            begin, left = begin + taken, left - taken
            if not left:
                finish_piece()
        yield batch
    while waiting and not left:
        finish_piece()
    if waiting:
        raise changed(file)


def open_inputs(addresses: Sequence[str | Path], *, csv: CsvOptions | None = None) -> Inputs:
    """Open files, and directories of files, as one table.

    Args:
        addresses: Parquet, CSV or TSV files and directories of them, local or at an address that pyarrow.fs knows;
            all of one kind and one schema. They are read in the order given, and the files of a directory in order
            of path.
        csv: how to read text files.

    Returns:
        The table. Only schemas have been read so far.

    Raises:
        InvalidInputError: no address is given, or `csv` is given for Parquet.
        DataError: an address does not exist or cannot be read, or the files differ in kind or schema.

    Example:
        >>> import pyarrow as pa
        >>> import pyarrow.parquet as pq
        >>> pq.write_table(pa.table({"x": range(100)}), "table.parquet")
        >>> open_inputs(["table.parquet"]).count()
        100
    """
    if not addresses:
        raise InvalidInputError(
            "the inputs", [], "at least one file or directory", "Name the table to batch."
        )
    files = [file for address in addresses for file in files_at(address)]
    for file in files:
        if file.kind != files[0].kind:
            raise DataError(
                f"{file.shown!r} is {file.kind}, but {files[0].shown!r} is {files[0].kind}: all files "
                "of a table must be "
                "of one kind. Convert them, or name those of one kind."
            )
    if csv not in (None, CsvOptions()) and files[0].kind == "parquet":
        raise InvalidInputError(
            "the way to read text", csv, "left out for Parquet files", "They state their columns and types."
        )
    return Inputs(files, csv or CsvOptions())


def _type_of(column: str, name: str) -> Any:
    try:
        return arrow.type_for_alias(name)
    except ValueError:
        raise InvalidInputError(
            f"the type of {column}", name, "a type of Arrow", "For example int64, float32, string or bool."
        ) from None


def _movable(entry: pa.Field, file: File) -> pa.Field:
    """The column, converted to a type whose rows Arrow can reorder and whose files can be joined."""
    types, kind = arrow.types, entry.type
    if types.is_dictionary(kind) and kind.index_type.bit_width < 32:  # other files may have more values
        kind = arrow.dictionary(arrow.int32(), kind.value_type, kind.ordered)
    elif types.is_string_view(kind):
        kind = arrow.string()
    elif types.is_binary_view(kind):
        kind = arrow.binary()
    try:
        arrow.nulls(0, kind).take(arrow.array([], arrow.int64()))
    except arrow.ArrowNotImplementedError:
        raise DataError(
            f"The column {entry.name!r} of {file.shown!r} is of type {kind}, whose rows cannot be put in another "
            "order. Convert it, or leave it out."
        ) from None
    return entry.with_type(kind).remove_metadata()


def _require_same(first: Mapping[str, pa.Field], other: pa.Schema, first_file: File, file: File) -> None:
    types = load("pyarrow.types", feature="Reading tables", extra="data")
    for name, entry in first.items():
        if name not in other.names:
            raise _missing_column(name, file, other.names)
        kind, found = entry.type, other.field(name).type
        if kind != found and (file.kind == "parquet" or not (types.is_null(kind) or types.is_null(found))):
            raise DataError(
                f"The column {name!r} is of type {found} in {file.shown!r}, but of type {kind} in "
                f"{first_file.shown!r}. All files of a table must have one schema: convert it."
            )
    for name in other.names:
        if name not in first:
            raise _missing_column(name, first_file, list(first), file)


def _missing_column(name: str, file: File, known: Sequence[str], has_it: File | None = None) -> DataError:
    other = "" if has_it is None else f", which {has_it.shown!r} has"
    return DataError(
        f"The column {name!r}{other} is missing in {file.shown!r} (columns: {', '.join(known)}). All "
        "files of a table "
        "must have one schema, and every column you name."
    )


def _selected(schema: pa.Schema, columns: Sequence[str], file: File) -> pa.Schema:
    for name in columns:
        if name not in schema.names:
            raise _missing_column(name, file, schema.names)
    return arrow.schema([schema.field(name) for name in columns])
