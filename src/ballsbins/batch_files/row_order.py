"""Decide where each row goes, by its position or by the bytes of a unique column, and order the rows of a batch.

Each row has a place. Rows are sorted by place, and batches are formed from the sorted rows. The result is the same as
in memory.

A place is a 32-bit number that increases along the epoch. For balls-and-bins and deterministic batches it is the
number of the batch, and rows with the same place are ordered by identity. For shuffle it is the row's random word;
further words break ties, and a row's batch follows from its rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ballsbins._extras import Later, load
from ballsbins.errors import DataError, InvalidInputError
from ballsbins.samplers import BallsAndBins, Deterministic, Key, Sampler, Shuffle
from ballsbins.samplers.even_batches import break_ties
from ballsbins.samplers.physical import truncate

if TYPE_CHECKING:
    import pyarrow as pa

arrow = Later("pyarrow", feature="Batching tables", extra="data")
compute = Later("pyarrow.compute", feature="Batching tables", extra="data")


@dataclass(frozen=True)
class IdentityColumn:
    """A column whose values identify the rows: text as UTF-8, binary unchanged, integers as decimal digits."""

    name: str

    def check_type(self, schema: pa.Schema) -> None:
        """Raise unless values of the column's type can be written as bytes in exactly one way."""
        types = load("pyarrow.types", feature="Batching tables", extra="data")
        if self.name not in schema.names:
            raise DataError(
                f"The identity column {self.name!r} is not in the inputs (columns: {', '.join(schema.names)}). "
                "Name one that is."
            )
        kind = schema.field(self.name).type
        text = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
        binary = types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind)
        if not (text or binary or types.is_integer(kind)):
            raise DataError(
                f"The identity column {self.name!r} is of type {kind}, but must be text, binary or "
                "integer, which have "
                "one way to be written as bytes. Name another column, or convert it."
            )

    def of(self, table: pa.RecordBatch | pa.Table, start: int) -> Identities:
        """The identities of the rows of a table whose first row has position `start`."""
        column = table.column(self.name)
        if isinstance(column, arrow.ChunkedArray):
            column = column.combine_chunks()
        if column.null_count:
            row = start + int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
            raise DataError(
                f"The identity column {self.name!r} has no value in row {row:,}, counted from 0. "
                "Every row needs one."
            )
        if arrow.types.is_integer(column.type):
            column = compute.cast(column, arrow.string())
        return Identities(self.name, compute.cast(column, arrow.large_binary()))


@dataclass(frozen=True)
class Identities:
    """The bytes that identify some rows."""

    column: str
    values: Any

    def as_list(self, rows: NDArray[np.int64] | None = None) -> list[bytes]:
        """The identities as a list of bytes, for all rows or some of them."""
        chosen: list[bytes] = (self.values if rows is None else self.values.take(rows)).to_pylist()
        return chosen

    def sorted(self) -> NDArray[np.int64]:
        """The row numbers in ascending order of the rows' bytes."""
        order: NDArray[np.int64] = compute.array_sort_indices(self.values).to_numpy().astype(np.int64)
        return order

    def require_unique(self, order: NDArray[np.int64], positions: NDArray[np.int64]) -> None:
        """Raise if two neighbouring rows in `order` have the same bytes.

        Equal bytes give equal bins. So in rows sorted by bin and then by bytes, as in a bucket, equal rows are
        neighbours. Checking each bucket alone thus finds every duplicate, even if the table never fits in memory.
        """
        if len(order) < 2:
            return
        ordered = self.values.take(order)
        equal = compute.equal(ordered.slice(1), ordered.slice(0, len(ordered) - 1))
        found = compute.index(equal, True).as_py()
        if found >= 0:
            shown = ordered[found].as_py().decode("utf-8", "backslashreplace")
            first, second = sorted(int(positions[order[place]]) for place in (found, found + 1))
            raise DataError(
                f"The identity column {self.column!r} is not unique: {shown!r} names row {first:,} "
                f"and row {second:,}, "
                "counted from 0. Remove the duplicates, or name the rows by their position."
            )


@dataclass(frozen=True)
class Bucket:
    """All rows with begin ≤ place < end: their columns, positions and places."""

    begin: int
    end: int
    table: pa.Table
    positions: NDArray[np.int64]
    places: NDArray[np.uint32]


@dataclass(frozen=True)
class Arranged:
    """Whole batches: step first_step + j consists of the next sizes[j] rows of table[order[…]]."""

    first_step: int
    sizes: NDArray[np.int64]
    table: pa.Table
    order: NDArray[np.int64]


class RowOrder(Protocol):
    """Gives the place of every row, and forms batches from sorted buckets."""

    num_places: int

    def places(self, start: int, table: pa.RecordBatch) -> NDArray[np.uint32]:
        """The places of the rows of `table`, whose first row has position `start`."""

    def arrange(self, buckets: Iterator[Bucket]) -> Iterator[Arranged]:
        """The batches, in order. The buckets must come in ascending order and cover every place."""


def row_order_of(
    sampler: Sampler, key: Key, epoch: int, num_examples: int, identity: IdentityColumn | None
) -> RowOrder:
    """The row order of a sampler that puts every row into exactly one batch."""
    check_row_order(sampler, num_examples, identity)
    match sampler:
        case BallsAndBins():
            return _Bins(sampler, key, epoch, identity)
        case Deterministic():
            return _Cuts(sampler, num_examples)
        case Shuffle():
            return _Shuffled(sampler, key, epoch, num_examples)
    raise AssertionError(f"no row_order for {sampler!r}")


def check_row_order(sampler: Sampler, num_examples: int, identity: IdentityColumn | None) -> None:
    """Raise unless the sampler puts every row into exactly one batch and supports the way rows are identified."""
    sampler._check_drawn_steps()
    sampler._check_num_examples(num_examples)
    if not sampler.partitions:
        raise InvalidInputError(
            "sampler",
            sampler,
            "one that puts every row into one batch",
            "Poisson batches repeat rows: write them with `ballsbins assign` and join.",
        )
    if identity is not None and not isinstance(sampler, BallsAndBins):
        raise InvalidInputError(
            "the identity column",
            identity.name,
            f"left out for {sampler.type_name}",
            "Only balls-and-bins places a row by itself; the other samplers number the rows.",
        )


class _Bins:
    """Balls-and-bins: the place is the bin."""

    def __init__(self, sampler: BallsAndBins, key: Key, epoch: int, identity: IdentityColumn | None) -> None:
        self.num_places = sampler.steps
        self._sampler, self._key, self._epoch, self._identity = sampler, key, epoch, identity

    def places(self, start: int, table: pa.RecordBatch) -> NDArray[np.uint32]:
        if self._identity is None:
            return self._sampler.bins(self._key, self._epoch, start, start + table.num_rows)
        identities = self._identity.of(table, start)
        return self._sampler.bins_of(self._key, self._epoch, identities.as_list())

    def arrange(self, buckets: Iterator[Bucket]) -> Iterator[Arranged]:
        for bucket in buckets:
            identities = None if self._identity is None else self._identity.of(bucket.table, 0)
            by_place = sort_by_place(bucket, identities)
            if identities is not None:
                identities.require_unique(by_place, bucket.positions)
            sizes = np.bincount(bucket.places - np.uint32(bucket.begin), minlength=bucket.end - bucket.begin)
            order, kept = self._truncated(bucket, identities, by_place, sizes)
            yield Arranged(bucket.begin, kept, bucket.table, order)

    def _truncated(
        self,
        bucket: Bucket,
        identities: Identities | None,
        order: NDArray[np.int64],
        sizes: NDArray[np.int64],
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Keep at most B rows of each batch: the same rows that the in-memory sampler keeps."""
        limit = self._sampler.max_batch_size
        if limit is None or sizes.max(initial=0) <= limit:
            return order, sizes
        begins = np.concatenate(([0], np.cumsum(sizes)))
        keep = np.ones(len(order), dtype=np.bool_)
        for batch in np.flatnonzero(sizes > limit):
            span = slice(begins[batch], begins[batch + 1])
            rows = order[span]
            named: Any = bucket.positions[rows] if identities is None else identities.as_list(rows)
            step = bucket.begin + int(batch)
            words = self._sampler.truncation_words(self._key, self._epoch, step, named)
            keep[span] = False
            keep[begins[batch] + truncate(np.arange(len(rows)), words, limit)] = True
        return order[keep], np.minimum(sizes, limit)


class _Cuts:
    """Deterministic batches: the place is the batch, computed from the position."""

    def __init__(self, sampler: Deterministic, num_examples: int) -> None:
        self.num_places = sampler.steps
        self._cuts = _EvenCuts(num_examples, sampler.steps)

    def places(self, start: int, table: pa.RecordBatch) -> NDArray[np.uint32]:
        return self._cuts.batch_of(np.arange(start, start + table.num_rows)).astype(np.uint32)

    def arrange(self, buckets: Iterator[Bucket]) -> Iterator[Arranged]:
        for bucket in buckets:
            sizes = np.bincount(bucket.places - np.uint32(bucket.begin), minlength=bucket.end - bucket.begin)
            yield Arranged(bucket.begin, sizes, bucket.table, sort_by_place(bucket, None))


class _Shuffled:
    """Shuffle: the place is the row's first word; the batches are cut from the sorted rows."""

    num_places = 2**32

    def __init__(self, sampler: Shuffle, key: Key, epoch: int, num_examples: int) -> None:
        self._keystream = sampler.keystream(key, epoch)
        self._steps, self._cuts = sampler.steps, _EvenCuts(num_examples, sampler.steps)

    def places(self, start: int, table: pa.RecordBatch) -> NDArray[np.uint32]:
        return self._keystream.words32(0, start, table.num_rows)

    def arrange(self, buckets: Iterator[Bucket]) -> Iterator[Arranged]:
        import pyarrow as pa

        step, left = 0, None  # `left` holds the rows of a batch that continues in the next bucket
        for part in buckets:
            bucket = part
            if left is not None:
                bucket = Bucket(
                    left.begin,
                    part.end,
                    pa.concat_tables([left.table, part.table]).combine_chunks(),
                    np.concatenate((left.positions, part.positions)),
                    np.concatenate((left.places, part.places)),
                )
            order = self._sorted(bucket)
            stop = int(self._cuts.batch_of(np.array([self._cuts.begin(step) + len(order)]))[0])
            sizes = self._cuts.sizes(step, stop)
            whole = int(sizes.sum())
            if stop > step:
                yield Arranged(step, sizes, bucket.table, order[:whole])
            rest = order[whole:]
            left = Bucket(
                bucket.begin,
                bucket.end,
                bucket.table.take(pa.array(rest)),
                bucket.positions[rest],
                bucket.places[rest],
            )
            step = stop

    def _sorted(self, bucket: Bucket) -> NDArray[np.int64]:
        rank = np.argsort(bucket.places, kind="stable")
        ordered, words = bucket.positions[rank], bucket.places[rank]
        before = ordered.copy()
        break_ties(self._keystream, ordered, words[1:] == words[:-1])
        if np.array_equal(before, ordered):
            return rank
        by_position = np.argsort(bucket.positions, kind="stable")
        return by_position[np.searchsorted(bucket.positions, ordered, sorter=by_position)]


def sort_by_place(bucket: Bucket, identities: Identities | None) -> NDArray[np.int64]:
    """The rows of a bucket by place, then by identity; positions are already ascending."""
    first = None if identities is None else identities.sorted()
    places = bucket.places - np.uint32(bucket.begin)
    if bucket.end - bucket.begin <= 2**16:
        places = places.astype(np.uint16)  # NumPy uses a radix sort for 16-bit numbers
    if first is None:
        return np.argsort(places, kind="stable")
    return first[np.argsort(places[first], kind="stable")]


class _EvenCuts:
    """`samplers.base.even_cuts` for many rows at once: the first n mod T batches have one extra row."""

    def __init__(self, num_examples: int, steps: int) -> None:
        self._rows, self._steps = num_examples, steps
        self._size, self._longer = divmod(num_examples, steps)

    def begin(self, step: int) -> int:
        """The first row of a batch; for step T, the total number of rows."""
        return step * self._size + min(step, self._longer)

    def sizes(self, start: int, stop: int) -> NDArray[np.int64]:
        """The sizes of the batches start … stop − 1."""
        return self._size + (np.arange(start, stop) < self._longer).astype(np.int64)

    def batch_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The batch of each row; row n, one past the last, counts as part of batch T."""
        in_longer = self._longer * (self._size + 1)
        late = self._longer + (rows - in_longer) // max(self._size, 1)
        batch = np.where(rows < in_longer, rows // (self._size + 1), late)
        return np.where(rows < self._rows, batch, self._steps)
