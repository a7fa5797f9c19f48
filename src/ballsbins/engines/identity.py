"""Rows that are named by the bytes of a unique column: the bytes, their order, and no two alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ballsbins._extras import load
from ballsbins.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class IdentityColumn:
    """A column whose values name the rows: text as UTF-8, binary as it is, integers as decimal digits."""

    name: str

    def check_type(self, schema: pa.Schema) -> None:
        """Raise unless the column is of a kind that has one way to be written as bytes."""
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
        """The identities of the rows of a table that begins at position `start`."""
        arrow = load("pyarrow", feature="Batching tables", extra="data")
        compute = load("pyarrow.compute", feature="Batching tables", extra="data")
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
    """The bytes that name some rows."""

    column: str
    values: Any

    def as_list(self, rows: NDArray[np.int64] | None = None) -> list[bytes]:
        """As a list of bytes, of all rows or of some."""
        chosen: list[bytes] = (self.values if rows is None else self.values.take(rows)).to_pylist()
        return chosen

    def sorted(self) -> NDArray[np.int64]:
        """The rows in ascending order of their bytes."""
        compute = load("pyarrow.compute", feature="Batching tables", extra="data")
        order: NDArray[np.int64] = compute.array_sort_indices(self.values).to_numpy().astype(np.int64)
        return order

    def require_unique(self, order: NDArray[np.int64], positions: NDArray[np.int64]) -> None:
        """Raise if two rows that follow each other in `order` have the same bytes.

        Equal bytes give equal bins. So in rows that are sorted by bin and then by bytes, as a bucket is, equals are
        neighbours, and looking at each bucket alone finds every pair of a table that never was in memory as a whole.
        """
        compute = load("pyarrow.compute", feature="Batching tables", extra="data")
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
