"""Read one epoch of batch files: its row groups in order, each cut into batches."""

from __future__ import annotations

import io
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from itertools import accumulate, chain, islice, repeat
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ballsbins._extras import Later
from ballsbins.batch_files.batch import Batch
from ballsbins.batch_files.columns import Arrays, Converter
from ballsbins.batch_files.format import Files, Manifest, StoredFile
from ballsbins.batch_files.part_reader import PartReader, Run, damaged, one_batch, require_checksum
from ballsbins.batch_files.store import Location
from ballsbins.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

arrow = Later("pyarrow", feature="Reading batch files", extra="data")

_SMALL_PART = 1 / 8  # of a piece: copying it costs little beside decoding the piece
_WINDOW = 1 << 12  # batches whose sizes are made Python integers at once


class EpochReader:
    """The files of one epoch: where each batch begins, and the row groups from a given row on."""

    def __init__(self, directory: Location, manifest: Manifest, columns: Sequence[str] | None = None) -> None:
        """Take the directory of the epoch and the columns to read, by default all."""
        self.directory, self.manifest, self.columns = directory, manifest, columns
        if manifest.files is None:
            raise DataError(f"The manifest in {str(directory)!r} names no files. Build the epoch again.")
        self.files: Files = manifest.files
        self._runs: Sequence[Run] = ()

    def _whole(self, file: StoredFile) -> bytes:
        content = (self.directory / file.name).read_bytes()
        require_checksum(content, file.checksum, self.directory / file.name)
        return content

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """The row at which each batch begins, followed by the number of rows."""
        place = self.directory / self.files.offsets.name
        try:
            found = np.load(io.BytesIO(self._whole(self.files.offsets)), allow_pickle=False)
        except ValueError as error:
            raise DataError(f"{str(place)!r} cannot be read ({error}). Build the epoch again.") from None
        if found.dtype != np.int64 or found.shape != (self.manifest.steps + 1,) or (np.diff(found) < 0).any():
            raise DataError(
                f"{str(place)!r} is not of {self.manifest.steps + 1} ascending 64-bit integers. Build the epoch "
                "again."
            )
        return found  # type: ignore[no-any-return]

    @cached_property
    def dictionaries(self) -> dict[str, pa.DictionaryArray]:
        """An array without rows for each dictionary column; it carries the column's dictionary."""
        if self.files.dictionaries is None:
            return {}
        content = self._whole(self.files.dictionaries)
        table = arrow.ipc.open_stream(content).read_all()
        return {name: table.column(name).chunk(0) for name in table.column_names}

    @cached_property
    def _nullable(self) -> dict[str, bool]:
        return {column.name: column.nullable for column in self.manifest.columns}

    def shown_schema(self, schema: pa.Schema) -> pa.Schema:
        """The schema of batches for that of a part: all batches of a run have one schema.

        A value may be missing where the manifest says so. A part says less: in this epoch no value of the column is
        missing. Codes are shown as what they stand for.
        """
        words = {name: empty.type for name, empty in self.dictionaries.items()}
        fields = (entry.with_type(words.get(entry.name, entry.type)) for entry in schema)
        return arrow.schema([entry.with_nullable(self._nullable[entry.name]) for entry in fields])

    def sizes(self, rank: int, ranks: int) -> NDArray[np.int64]:
        """The number of rows of every batch that belong to one rank."""
        return (np.diff(self.offsets) + ranks - 1 - rank) // ranks

    def part(self, number: int, file: StoredFile) -> PartReader:
        """Open a part."""
        place = self.directory / file.name
        opened = PartReader(place, file, self.columns, self._runs)
        self._runs = opened.runs
        per_file, steps = self.manifest.batches_per_file, self.manifest.steps
        begin, end = (self.offsets[min(step, steps)] for step in (number * per_file, (number + 1) * per_file))
        if sum(opened.rows) != end - begin or len(opened.rows) % self.manifest.world_size:
            raise DataError(f"{str(place)!r} does not have the rows it should have. Build the epoch again.")
        if opened.names != [column.name for column in self.manifest.columns]:
            raise DataError(
                f"{str(place)!r} has other columns than the manifest says. Build the epoch again."
            )
        return opened

    def pieces(self, start: int, rank: int | None) -> Iterator[_Piece]:
        """Give the units to read, from batch `start` on: the row groups of one rank, or of all ranks together."""
        per_file, ranks = self.manifest.batches_per_file, self.manifest.world_size
        sizes = np.diff(self.offsets) if rank is None else self.sizes(rank, ranks)
        schema: pa.Schema | None = None
        for number in range(self.manifest.part_of(start), self.manifest.num_parts):
            part = self.part(number, self.files.parts[number])
            schema = schema or self.shown_schema(part.schema)  # the same for all parts
            skip = int(sizes[number * per_file : max(start, number * per_file)].sum())
            first_row = int(self.offsets[number * per_file])
            for run in range(0, len(part.rows), ranks):
                groups = list(range(run, run + ranks)) if rank is None else [run + rank]
                rows = sum(part.rows[group] for group in groups)
                if skip < rows:
                    yield _Piece(self, part, schema, groups, skip, first_row)
                skip, first_row = max(skip - rows, 0), first_row + rows


class _Piece(NamedTuple):
    """Row groups that are read together, how many of their rows to skip, and the number of the first row."""

    epoch: EpochReader
    part: PartReader
    schema: pa.Schema
    groups: list[int]
    skip: int
    first_row: int

    def read(self, following: _Piece | None) -> pa.RecordBatch:
        """Read the rows; what comes next is fetched while these are decoded and used."""
        then = None if following is None else partial(following.part.expect, following.groups[0])
        expected = [*(partial(self.part.expect, group) for group in self.groups[1:]), then]
        decoded = [
            self.part.read(group, next_one) for group, next_one in zip(self.groups, expected, strict=True)
        ]
        columns = decoded[0] if len(decoded) == 1 else self._in_order(decoded)
        for name, empty in self.epoch.dictionaries.items():
            if name in self.schema.names:
                place = self.schema.get_field_index(name)
                columns[place] = arrow.DictionaryArray.from_arrays(
                    columns[place], empty.dictionary, ordered=empty.type.ordered, safe=False
                )
        if not columns:
            return _without_columns(sum(self.part.rows[group] for group in self.groups) - self.skip)
        batch = arrow.RecordBatch.from_arrays(columns, schema=self.schema)
        return batch.slice(self.skip) if self.skip else batch

    def _in_order(self, decoded: list[list[pa.Array]]) -> list[pa.Array]:
        """Restore batch order for a run of batches whose rows come rank by rank."""
        rows = np.arange(self.first_row, self.first_row + sum(self.part.rows[group] for group in self.groups))
        begins = self.epoch.offsets[np.searchsorted(self.epoch.offsets, rows, side="right") - 1]
        by_rank = np.argsort((rows - begins) % len(self.groups), kind="stable")
        place = np.empty_like(by_rank)
        place[by_rank] = np.arange(len(place))
        columns = [arrow.chunked_array(parts) for parts in zip(*decoded, strict=True)]
        table = arrow.Table.from_arrays(columns, names=[str(number) for number in range(len(columns))])
        return one_batch(table.take(arrow.array(place))).columns if columns else []


def _without_columns(rows: int) -> pa.RecordBatch:
    """Rows of which nothing was read."""
    return arrow.record_batch({"": arrow.nulls(rows)}).select([])


def read_batches(epoch: EpochReader, start: int, rank: int, ranks: int) -> Iterator[Batch]:
    """Give one rank's batches of an epoch from step `start` on."""
    own = epoch.manifest.world_size == ranks
    for piece, sizes in _read_pieces(epoch, start, rank, ranks):
        batches = map(Batch, repeat(piece), accumulate(sizes, initial=0), sizes)
        if own:
            yield from islice(batches, len(sizes) - 1)
            last = _apart(next(batches), piece)
            del piece, batches
            yield last
        else:
            yield from (_share(batch, rank, ranks) for batch in batches)
            del piece, batches


def _apart(batch: Batch, piece: pa.RecordBatch) -> Batch:
    """The last batch of a piece, in memory of its own if it is a small part of the piece.

    Whoever reads has it in hand while the next piece is decoded, and would keep all of this piece in memory.
    """
    if batch.num_rows > piece.num_rows * _SMALL_PART:
        return batch
    return Batch(arrow.concat_batches([batch.record_batch]), 0, batch.num_rows)


def _share(batch: Batch, rank: int, ranks: int) -> Batch:
    """One rank's rows of a batch that has those of all."""
    rows = batch.record_batch.take(arrow.array(np.arange(rank, batch.num_rows, ranks)))
    return Batch(rows, 0, rows.num_rows)


def read_arrays(
    epoch: EpochReader, start: int, rank: int, ranks: int, *, writable: bool = False
) -> Iterator[tuple[Arrays, int]]:
    """Give (the arrays, the number of rows) of each batch. A row group is converted as a whole and then cut."""
    own, convert = epoch.manifest.world_size == ranks, None
    for piece, sizes in _read_pieces(epoch, start, rank, ranks):
        convert = convert or Converter(piece.schema, writable=writable)
        cut = convert.cut if own else partial(convert.share, rank=rank, ranks=ranks)
        whole, begins, rows = convert(piece), accumulate(sizes, initial=0), piece.num_rows
        del piece
        yield from map(cut, repeat(whole, len(sizes) - 1), begins, sizes)
        last, size = cut(whole, rows - sizes[-1], sizes[-1])
        if size <= rows * _SMALL_PART:  # as in `_apart`
            last = {name: values.copy() for name, values in last.items()}
        del whole
        yield last, size


def _read_pieces(
    epoch: EpochReader, start: int, rank: int, ranks: int
) -> Iterator[tuple[pa.RecordBatch, list[int]]]:
    """Give each piece that was read, which holds whole batches, and the number of rows of each batch.

    It holds the rows of all ranks, unless the files are laid out for this number of ranks.
    """
    own = epoch.manifest.world_size == ranks
    sizes = (epoch.sizes(rank, ranks) if own else np.diff(epoch.offsets))[start:]
    ends, one_by_one = np.cumsum(sizes).data, _integers(sizes)
    rows = given = 0
    for piece in _read_in_turn(epoch.pieces(start, rank if own else None)):
        rows += piece.num_rows
        stop = bisect_right(ends, rows, given)  # including the empty batches that follow
        if stop == given or ends[stop - 1] != rows:
            raise damaged(epoch.directory)
        yield piece, list(islice(one_by_one, stop - given))
        del piece  # or it would stay in memory while the next one is decoded
        given = stop
    if given < len(sizes):
        if sizes[given:].any():
            raise damaged(epoch.directory)
        yield _empty(epoch), sizes[given:].tolist()


def _integers(numbers: NDArray[np.int64]) -> Iterator[int]:
    """Give the numbers as Python integers; thousands at once cost little, but millions would fill the memory."""
    windows = (numbers[begin : begin + _WINDOW] for begin in range(0, len(numbers), _WINDOW))
    return chain.from_iterable(window.tolist() for window in windows)


def _empty(epoch: EpochReader) -> pa.RecordBatch:
    """A batch without rows, with the schema of the others."""
    part = epoch.part(0, epoch.files.parts[0])
    part.close()
    schema = epoch.shown_schema(part.schema)
    return arrow.RecordBatch.from_arrays([arrow.nulls(0, kind) for kind in schema.types], schema=schema)


def _read_in_turn(pieces: Iterator[_Piece]) -> Iterator[pa.RecordBatch]:
    """Give the rows of each piece, and close a part after its last piece."""
    piece = following = next(pieces, None)
    try:
        while piece is not None:
            following = next(pieces, None)
            read = piece.read(following)
            if following is None or following.part is not piece.part:
                piece.part.close()
            piece = following
            yield read
            del read
    finally:
        for left in (piece, following):
            if left is not None:
                left.part.close()
