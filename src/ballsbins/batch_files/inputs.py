"""The table to batch: Parquet, CSV or TSV files, local or at any address that pyarrow.fs knows, read in pieces."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ballsbins._extras import Later, load
from ballsbins.errors import DataError, InvalidInputError

if TYPE_CHECKING:
    import pyarrow as pa

arrow = Later("pyarrow", feature="Reading tables", extra="data")
parquet = Later("pyarrow.parquet", feature="Reading tables", extra="data")

_KINDS = {".parquet": "parquet", ".pq": "parquet", ".csv": "csv", ".tsv": "tsv"}
_PACKED = (".gz", ".bz2", ".zst", ".lz4")  # pyarrow unpacks these by their name
_FINGERPRINT_BYTES = 1 << 16  # of the beginning and the end of a file, where Parquet has its footer
_CSV_BLOCK = 1 << 22
_SAMPLE_ROWS, _SAMPLE_BYTES = 1 << 16, 1 << 23
# Rows at a time: they may be far wider than footers tell, which see repeated words once.
_SAMPLE_READ = 1 << 10


@dataclass(frozen=True)
class CsvOptions:
    """How text files are read: whether the first line has the names, and types that are not to be guessed."""

    header: bool = True
    types: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class File:
    """One file: where, and how large."""

    filesystem: Any
    path: str
    shown: str
    size: int
    kind: str


class Inputs:
    """Files of one kind and one schema, as one table whose rows are numbered by file, then by row."""

    def __init__(self, files: Sequence[File], csv: CsvOptions) -> None:
        """Use `open_inputs`."""
        self.files, self.csv = tuple(files), csv
        self.stored_schema: pa.Schema = self._common_schema()
        self.schema: pa.Schema = self.stored_schema

    @property
    def bytes(self) -> int:
        """The size of all files."""
        return sum(file.size for file in self.files)

    @property
    def is_parquet(self) -> bool:
        """Whether the files are Parquet, whose rows are counted without reading them."""
        return self.files[0].kind == "parquet"

    def only(self, columns: Sequence[str]) -> Inputs:
        """The same rows with these columns only."""
        narrow = copy(self)
        vars(narrow).pop("stored_row_bytes", None)
        narrow.schema = _selected(self.stored_schema, columns, self.files[0])
        return narrow

    def count(self) -> int:
        """The number of rows: from the footers of Parquet files; text files are read once for it."""
        if self.is_parquet:
            total = 0
            for file in self.files:
                with naming(file), file.filesystem.open_input_file(file.path) as source:
                    total += parquet.read_metadata(source).num_rows
            return total
        narrow = self.only(self.schema.names[:1])
        return sum(batch.num_rows for _, batch in narrow.read(1 << 20))

    @cached_property
    def stored_row_bytes(self) -> float:
        """The bytes of a row, unpacked, in the widest row group that a footer tells of; 0 where none does."""
        if not self.is_parquet:
            return 0.0
        widest = 0.0
        for file in self.files:
            with naming(file), file.filesystem.open_input_file(file.path) as source:
                footer = parquet.read_metadata(source)
            for number in range(footer.num_row_groups):
                group = footer.row_group(number)
                # small ones tell of headers more than of rows
                if group.num_rows >= 1000 or group.total_byte_size >= 1 << 20:
                    widest = max(widest, self._read_bytes(group) / max(group.num_rows, 1))
        return widest

    def _read_bytes(self, group: Any) -> int:
        """The bytes, unpacked, of the columns of a row group that are read."""
        if len(self.schema) == len(self.stored_schema):
            return int(group.total_byte_size)
        below = tuple(f"{name}." for name in self.schema.names)
        chunks = (group.column(number) for number in range(group.num_columns))
        return sum(
            int(chunk.total_uncompressed_size)
            for chunk in chunks
            if f"{chunk.path_in_schema}.".startswith(below)
        )

    def fingerprint(self) -> str:
        """A digest that tells two inputs apart: names, sizes, and the beginning and end of every file, in order."""
        digest = hashlib.sha256()
        for file in self.files:
            digest.update(f"{Path(file.path).name}\0{file.size}\0".encode())
            with naming(file), file.filesystem.open_input_file(file.path) as source:
                digest.update(source.read(min(file.size, _FINGERPRINT_BYTES)))
                source.seek(max(file.size - _FINGERPRINT_BYTES, 0))
                digest.update(source.read(_FINGERPRINT_BYTES))
        return f"sha256:{digest.hexdigest()}"

    def sample(self) -> pa.Table:
        """The first rows, to judge how large and how costly rows are: some ten thousands, fewer if they are wide."""
        taken: list[Any] = []
        rows = held = 0
        at_once = min(_SAMPLE_READ, _SAMPLE_BYTES // (8 * self.stored_row_bytes + 1))
        for _, batch in self.read(int(max(1, at_once))):
            taken.append(batch)
            rows, held = rows + batch.num_rows, held + batch.nbytes
            if rows >= _SAMPLE_ROWS or held >= _SAMPLE_BYTES:
                break
        return arrow.Table.from_batches(taken, schema=self.schema)

    def read(self, rows: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Give (bytes of the files read so far, about; some of the next rows), at most `rows` of them at a time."""
        before = 0
        for file in self.files:
            with naming(file):
                yield from self._read_file(file, rows, before)
            before += file.size

    def _read_file(self, file: File, rows: int, before: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        names = self.schema.names
        if file.kind == "parquet":
            with file.filesystem.open_input_file(file.path) as source:
                opened = parquet.ParquetFile(source, buffer_size=1 << 20, pre_buffer=False)
                done, total = 0, max(opened.metadata.num_rows, 1)
                for batch in opened.iter_batches(rows, columns=names, use_threads=False):
                    done += batch.num_rows
                    rows_of_table = batch.select(names)
                    if rows_of_table.schema != self.schema:
                        rows_of_table = rows_of_table.cast(self.schema)
                    yield before + file.size * done // total, rows_of_table
        else:
            with file.filesystem.open_input_stream(file.path) as source:
                types = {entry.name: entry.type for entry in self.schema}
                done = 0
                for batch in self._open_csv(file, source, types, names):
                    done += batch.nbytes
                    for begin in range(0, batch.num_rows, rows):
                        yield before + min(done, file.size), batch.slice(begin, rows)

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
        """The columns of all files, as types that all of them can be read as; what differs otherwise is an error.

        The types of text are guessed from the first file that has values, and hold for all.
        """
        known = {name: _type_of(name, kind) for name, kind in self.csv.types.items()}
        common: dict[str, Any] = {}
        for file in self.files:
            found = self._schema_of(file, known)
            repeated = [name for name in found.names if found.names.count(name) > 1]
            if repeated:
                raise DataError(
                    f"The column {min(repeated)!r} is twice in {file.shown!r}. Give every column its own name."
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

    def _schema_of(self, file: File, types: Mapping[str, Any]) -> pa.Schema:
        with naming(file):
            if file.kind == "parquet":
                with file.filesystem.open_input_file(file.path) as source:
                    return parquet.read_schema(source).remove_metadata()
            with file.filesystem.open_input_stream(file.path) as source:
                found = self._open_csv(file, source, types, None).schema
            for name in types.keys() - set(found.names):
                raise _missing_column(name, file, found.names)
            return found


def open_inputs(addresses: Sequence[str | Path], *, csv: CsvOptions | None = None) -> Inputs:
    """Open files, and directories of files, as one table.

    Args:
        addresses: Parquet, CSV or TSV files and directories of them, local or at an address that pyarrow.fs knows;
            all of one kind and one schema. They are taken in the order given, the files of a directory in order of
            path.
        csv: how text files are read.

    Returns:
        The table. Nothing but schemas is read yet.

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
    files = [file for address in addresses for file in _files_at(str(address))]
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


def _files_at(address: str) -> list[File]:
    fs = load("pyarrow.fs", feature="Reading tables", extra="data")
    scheme = f"{address.split('://', maxsplit=1)[0]}://" if "://" in address else ""
    try:
        if scheme:
            filesystem, path = fs.FileSystem.from_uri(address)
        else:
            filesystem, path = fs.LocalFileSystem(), str(Path(address).absolute())
        info = filesystem.get_file_info(path)
        found = []
        if info.type == fs.FileType.Directory:
            below = filesystem.get_file_info(fs.FileSelector(path, recursive=True))
            found = sorted((entry.path, entry.size) for entry in below if entry.type == fs.FileType.File)
    except (OSError, arrow.ArrowException, UnicodeError) as error:  # a name of bytes that are not text, too
        raise DataError(f"{address!r} cannot be read ({error}). Check the address and your rights.") from None

    def shown(path: str) -> str:
        return address if path == info.path else f"{address.rstrip('/')}/{path[len(info.path) :].lstrip('/')}"

    if info.type == fs.FileType.File:
        kind = _kind_of(path)
        if kind is None:
            raise DataError(
                f"{address!r} is of no kind that can be read: its name must end in .parquet, .pq, "
                ".csv or .tsv (text also "
                "with .gz, .bz2, .zst or .lz4 behind). Rename or convert it."
            )
        return [File(filesystem, path, address, info.size, kind)]
    if info.type == fs.FileType.NotFound:
        raise DataError(f"{address!r} does not exist. Name a file or a directory of files.")
    files = [
        File(filesystem, path, shown(path), size, kind)
        for path, size in found
        if not _hidden(path[len(info.path) :]) and (kind := _kind_of(path)) is not None
    ]
    if not files:
        raise DataError(f"{address!r} has no Parquet, CSV or TSV files. Name a directory that has some.")
    return files


def _hidden(path: str) -> bool:
    """Whether other tools left this file for themselves, as _SUCCESS and .part-0.crc are."""
    return any(part.startswith((".", "_")) for part in path.split("/") if part)


def _kind_of(path: str) -> str | None:
    name = Path(path).name.lower()
    for ending in _PACKED:
        if name.endswith(ending):
            kind = _KINDS.get(Path(name.removesuffix(ending)).suffix)
            return None if kind == "parquet" else kind
    return _KINDS.get(Path(name).suffix)


def _movable(entry: pa.Field, file: File) -> pa.Field:
    """The column of a type whose rows Arrow can put in another order, and whose files can be joined."""
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


@contextmanager
def naming(file: File) -> Iterator[None]:
    """Turn what goes wrong with a file into an error that names it."""
    try:
        yield
    except (OSError, arrow.ArrowException, UnicodeDecodeError) as error:
        said = " ".join(str(error).split())  # Arrow says some things in several lines
        raise DataError(
            f"{file.shown!r} cannot be read: {said.rstrip('.')}. Check that it is whole and that you may read it; "
            "for text, that its columns have the types they seem to have (see --type)."
        ) from None
