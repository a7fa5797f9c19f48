"""The files of a table: their locations and kinds, the content of their footers, and whether they have changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ballsbins._extras import Later
from ballsbins.batch_files.store import Location, located
from ballsbins.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

arrow = Later("pyarrow", feature="Reading tables", extra="data")
parquet = Later("pyarrow.parquet", feature="Reading tables", extra="data")
fs = Later("pyarrow.fs", feature="Reading tables", extra="data")

_KINDS = {".parquet": "parquet", ".pq": "parquet", ".csv": "csv", ".tsv": "tsv"}
_PACKED = (".gz", ".bz2", ".zst", ".lz4")  # pyarrow decompresses files with these suffixes
_AT_ONCE = 16  # files to query in parallel: a store takes some hundredths of a second for each answer
_ENOUGH_ROWS, _ENOUGH_BYTES = 1000, 1 << 20  # in smaller row groups, sizes reflect headers more than rows

_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class File:
    """One file: its location, size, modification time and kind."""

    location: Location
    size: int
    modified: int | None
    kind: str

    @property
    def shown(self) -> str:
        """The address to show to people."""
        return str(self.location)


@dataclass(frozen=True)
class Footer:
    """The needed facts from a Parquet file's footer. Whole footers would fill the memory."""

    schema: pa.Schema
    group_rows: tuple[int, ...]
    leaves: tuple[str, ...]
    leaf_bytes: NDArray[np.int64]  # uncompressed, for each row group and leaf
    packed_bytes: tuple[int, ...]
    etag: bytes | None

    @property
    def rows(self) -> int:
        """The number of rows of the file."""
        return sum(self.group_rows)

    def widest_row(self, columns: Sequence[str]) -> float:
        """Uncompressed bytes per row of these columns in the widest row group; 0 if all groups are too small."""
        below = tuple(f"{name}." for name in columns)
        chosen = [f"{leaf}.".startswith(below) for leaf in self.leaves]
        widest = 0.0
        for rows, sizes in zip(self.group_rows, self.leaf_bytes, strict=True):
            if rows >= _ENOUGH_ROWS or sizes.sum() >= _ENOUGH_BYTES:
                widest = max(widest, float(sizes[chosen].sum()) / max(rows, 1))
        return widest


def each(ask: Callable[[File], _Answer], files: Sequence[File]) -> list[_Answer]:
    """Query many files in parallel; the answers are in the order of the files."""
    if len(files) == 1:
        return [ask(files[0])]
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="ballsbins-files") as pool:
        return list(pool.map(ask, files))


def read_footer(file: File) -> Footer:
    """Open a Parquet file and read its footer."""
    with naming(file), file.location.open() as source:
        etag = etag_of(source)
        found = parquet.read_metadata(source)
        groups = [found.row_group(number) for number in range(found.num_row_groups)]
        chunks = [[group.column(number) for number in range(group.num_columns)] for group in groups]
        return Footer(
            found.schema.to_arrow_schema().remove_metadata(),
            tuple(group.num_rows for group in groups),
            tuple(found.schema.column(number).path for number in range(len(found.schema))),
            np.array(
                [[chunk.total_uncompressed_size for chunk in row] for row in chunks], dtype=np.int64
            ).reshape(len(groups), len(found.schema)),
            tuple(sum(chunk.total_compressed_size for chunk in row) for row in chunks),
            etag,
        )


def etag_of(source: Any) -> bytes | None:
    """The store's version tag of a file; None for local files, which have no such tag."""
    found = (source.metadata() or {}).get("ETag")
    return None if found is None else bytes(found)


def require_unchanged(files: Sequence[File]) -> None:
    """Raise if a file's size or modification time has changed since the table was opened."""
    for file, info in zip(files, each(lambda file: file.location.info(), files), strict=True):
        if (info.size, info.mtime_ns) != (file.size, file.modified):
            raise changed(file)


def changed(file: File) -> DataError:
    """The error for a file that has changed."""
    return DataError(
        f"{file.shown!r} changed while it was being read, so nothing was kept. Build from files that do not change: "
        "copy them, or wait until they are written."
    )


def files_at(address: str | Path) -> list[File]:
    """The file at an address, or the files of the table below it in order of path."""
    here, shown = located(address), str(address)
    try:
        shown.encode()  # fails if the name's bytes are not text
        info = here.info()
        found = here.files() if info.type == fs.FileType.Directory else []
        for _, entry in found:
            entry.path.encode()
    except UnicodeError as error:
        raise DataError(f"{shown!r} cannot be read ({error}). Check the address and your rights.") from None
    if info.type == fs.FileType.File:
        kind = _kind_of(here.path)
        if kind is None:
            raise DataError(
                f"{str(here)!r} is of no kind that can be read: its name must end in .parquet, .pq, .csv or .tsv "
                "(text also with .gz, .bz2, .zst or .lz4 behind). Rename or convert it."
            )
        return [File(here, info.size, info.mtime_ns, kind)]
    if info.type == fs.FileType.NotFound:
        raise DataError(f"{str(here)!r} does not exist. Name a file or a directory of files.")
    files = [
        File(where, entry.size, entry.mtime_ns, kind)
        for where, entry in found
        if not _hidden(where.path[len(here.path) :]) and (kind := _kind_of(where.path)) is not None
    ]
    if not files:
        raise DataError(f"{str(here)!r} has no Parquet, CSV or TSV files. Name a directory that has some.")
    return files


def _hidden(path: str) -> bool:
    """Whether the file is bookkeeping of another tool, such as _SUCCESS or .part-0.crc."""
    return any(part.startswith((".", "_")) for part in path.split("/") if part)


def _kind_of(path: str) -> str | None:
    name = Path(path).name.lower()
    for ending in _PACKED:
        if name.endswith(ending):
            kind = _KINDS.get(Path(name.removesuffix(ending)).suffix)
            return None if kind == "parquet" else kind
    return _KINDS.get(Path(name).suffix)


@contextmanager
def naming(file: File) -> Iterator[None]:
    """Turn any failure with the content of a file into an error that names the file."""
    try:
        yield
    except (OSError, arrow.ArrowException, UnicodeDecodeError) as error:
        said = " ".join(str(error).split())  # some Arrow messages span several lines
        raise DataError(
            f"{file.shown!r} cannot be read: {said.rstrip('.')}. Check that it is whole and that you may read it; "
            "for text, that its columns have the types they seem to have (see --type)."
        ) from None
