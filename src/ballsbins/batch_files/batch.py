"""One batch of batch files: a view of rows that were read together with those of other batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ballsbins._extras import Later
from ballsbins.batch_files.dictionaries import as_stream

if TYPE_CHECKING:
    import pyarrow as pa

arrow = Later("pyarrow", feature="Reading batch files", extra="data")


class Batch:
    """The rows of one step. A column is cut out when it is asked for.

    Cutting a `pyarrow.RecordBatch` out of the rows that were read takes time for each column, whether it is used or
    not. A `Batch` only knows where its rows are.

    It has the methods and attributes of a `RecordBatch`. Libraries that read Arrow data take it as it is, e.g.
    `pyarrow.table(batch)` and `polars.DataFrame(batch)`. Where a function insists on a `RecordBatch`, give it
    `record_batch`.

    Attributes:
        num_rows: the number of rows. It is secret, unless batches are padded: do not log it.

    Example:
        >>> import pyarrow as pa
        >>> batch = Batch(pa.record_batch({"x": [1, 2, 3], "y": [4, 5, 6]}), begin=1, num_rows=2)
        >>> batch["x"].to_pylist(), pa.table(batch).num_columns, batch.record_batch.to_pydict()
        ([2, 3], 2, {'x': [2, 3], 'y': [5, 6]})
    """

    __slots__ = ("_begin", "_rows", "num_rows")

    def __init__(self, rows: pa.RecordBatch, begin: int, num_rows: int) -> None:
        """Take the rows `begin` … `begin` + `num_rows` − 1 of some rows."""
        self._rows, self._begin, self.num_rows = rows, begin, num_rows

    @property
    def record_batch(self) -> pa.RecordBatch:
        """The rows as a `pyarrow.RecordBatch`, without a copy."""
        return self._rows.slice(self._begin, self.num_rows)

    @property
    def schema(self) -> pa.Schema:
        """The schema, the same for all batches of a run."""
        return self._rows.schema

    def column(self, column: str | int) -> pa.Array:
        """Return a column by its name or number, without a copy."""
        return self._rows.column(column).slice(self._begin, self.num_rows)

    __getitem__ = column

    def __len__(self) -> int:
        """The number of rows."""
        return self.num_rows

    def __getattr__(self, name: str) -> Any:
        """Whatever else a `RecordBatch` offers."""
        if name.startswith("_"):  # internals of Python and pyarrow, which are not meant for a stand-in
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.record_batch, name)

    def equals(self, other: object, *, check_metadata: bool = False) -> bool:
        """Whether another batch, of either kind, has the same columns and rows."""
        rows = other.record_batch if isinstance(other, Batch) else other
        return bool(self.record_batch.equals(rows, check_metadata=check_metadata))

    def __eq__(self, other: object) -> bool:
        """Whether another batch, of either kind, has the same columns and rows."""
        return self.equals(other)

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle these rows only: pyarrow would pickle all that were read with them."""
        return _unpickled, (as_stream(self.record_batch).to_pybytes(),)

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        """Hand the rows to another library: Arrow's PyCapsule interface."""
        return self.record_batch.__arrow_c_array__(requested_schema)  # type: ignore[no-any-return]

    def __arrow_c_schema__(self) -> object:
        """Hand the schema to another library: Arrow's PyCapsule interface."""
        return self.schema.__arrow_c_schema__()

    def __repr__(self) -> str:
        """Show the columns, but neither rows nor their number."""
        return f"Batch({', '.join(self.schema.names)})"


def _unpickled(stream: bytes) -> Batch:
    rows = arrow.ipc.open_stream(stream).read_next_batch()
    return Batch(rows, 0, rows.num_rows)
