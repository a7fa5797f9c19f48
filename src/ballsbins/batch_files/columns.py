"""Convert columns to arrays: the schema decides the dtype and the shape that a column has in every batch.

| Arrow type | array of a batch of n rows |
|---|---|
| integers, floats | the same dtype, shape (n,) |
| bool | bool |
| decimal | float64, rounded to the nearest |
| timestamp, time, duration, date | int64 (32-bit ones int32), in the `unit` of the schema since its origin |
| string, binary | objects: `str`, `bytes` (in PyTorch, which has no such tensors, a list) |
| fixed-size binary of w bytes | uint8, shape (n, w) |
| dictionary | int32 codes; `BatchFiles.dictionary` gives the dictionary, once for all batches |
| fixed-size list of k | shape (n, k), of the dtype of its elements; nested ones have more dimensions |
| fixed-shape tensor | shape (n, …) |
| list | the elements of all rows, concatenated, and `<name>.offsets`: int64, n + 1 |
| null | float64 NaN |

A missing float is NaN. All other columns with possible missing values have a fill value (0, False or empty) and a
mask `<name>.valid` of the same shape as `<name>`, in every batch, whether or not anything is missing in it. In a list
of variable length, a missing list becomes an empty one. Structs, maps, unions, intervals and lists of
variable-length lists have no such form: a build refuses them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ballsbins import _check
from ballsbins._extras import Later
from ballsbins.errors import DataError, InvalidInputError

if TYPE_CHECKING:
    import pyarrow as pa

arrow = Later("pyarrow", feature="Reading batch files", extra="data")
compute = Later("pyarrow.compute", feature="Reading batch files", extra="data")

Arrays = dict[str, NDArray[Any]]
VALID, OFFSETS = ".valid", ".offsets"
# the types that are not numbers, and the fill value of each
_TEXTS: dict[str, Any] = {
    "text": "",
    "bytes": b"",
}


@dataclass(frozen=True)
class Column:
    """One column of batch files, and the arrays that it turns into.

    Attributes:
        name: its name.
        type: its Arrow type, as text.
        nullable: whether a value may be missing.
        dtype: the NumPy dtype of its array; `text` and `bytes` are arrays of objects.
        shape: the shape of one row; empty for a single value.
        unit: the unit of times and dates, abbreviated as in Arrow and NumPy.
        lists: whether a row is a list of variable length.
        codes: whether the values are codes of a dictionary.
        masked: whether every batch has `<name>.valid`.
    """

    name: str
    type: str
    nullable: bool
    dtype: str
    shape: tuple[int, ...] = ()
    unit: str | None = None
    lists: bool = False
    codes: bool = False
    masked: bool = False

    @property
    def array_names(self) -> list[str]:
        """The names of the arrays of this column."""
        return [self.name, *([self.name + OFFSETS] * self.lists), *([self.name + VALID] * self.masked)]

    @property
    def fill(self) -> Any:
        """The value that stands for a missing value, and fills the rows of weight 0."""
        return _TEXTS.get(self.dtype, False if self.dtype == "bool" else 0)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self) | {"shape": list(self.shape)}

    @staticmethod
    def from_dict(saved: Mapping[str, Any]) -> Column:
        """Build the column that `to_dict` wrote."""
        advice = "Nothing is guessed: build the epoch again."
        _check.fields("a column", saved, {field.name for field in fields(Column)}, advice=advice)
        return Column(**{**saved, "shape": tuple(saved["shape"])})


def columns_of(schema: pa.Schema) -> tuple[Column, ...]:
    """Return the columns of a table, in order.

    Args:
        schema: the Arrow schema of the rows.

    Raises:
        DataError: a column has a type that cannot become an array, or an array name would clash with another
        column's.
    """
    found = tuple(_column(entry) for entry in schema)
    counts = Counter(name for column in found for name in column.array_names)
    for name, count in counts.items():
        if count > 1:
            raise DataError(
                f"The column {name!r} has the name of an array that belongs to another column: a column that may be "
                f"missing has a mask <name>{VALID}, a list has <name>{OFFSETS}. Rename one of the columns."
            )
    return found


def _column(entry: pa.Field) -> Column:
    inner, shape, lists, missing = entry, [], False, entry.nullable
    while True:
        kind, types = _storage(inner.type), arrow.types
        if types.is_fixed_size_list(kind):
            shape += _tensor_shape(inner.type) or [kind.list_size]
        elif _is_list(kind) and not lists and not shape:
            lists, missing = True, False  # a missing list becomes an empty one
        else:
            break
        inner = kind.value_field
        missing = missing or inner.nullable
    dtype, unit = _leaf(inner.type, entry)
    if arrow.types.is_fixed_size_binary(kind):
        shape.append(kind.byte_width)
    masked = missing and not dtype.startswith("float")
    codes = arrow.types.is_dictionary(kind)
    if codes and (lists or shape):
        raise DataError(
            f"The column {entry.name!r} is of type {entry.type}: a list of values of a dictionary. Make it a list of "
            "the values themselves, or leave it out (--without)."
        )
    return Column(
        entry.name, str(entry.type), entry.nullable, dtype, tuple(shape), unit, lists, codes, masked
    )


def _storage(kind: pa.DataType) -> pa.DataType:
    return kind.storage_type if isinstance(kind, arrow.BaseExtensionType) else kind


def _is_list(kind: pa.DataType) -> bool:
    types = arrow.types
    return any(
        is_it(kind)
        for is_it in (types.is_list, types.is_large_list, types.is_list_view, types.is_large_list_view)
    )


def _tensor_shape(kind: pa.DataType) -> list[int]:
    if not isinstance(kind, arrow.FixedShapeTensorType):
        return []
    return [kind.shape[axis] for axis in kind.permutation or range(len(kind.shape))]


def _leaf(kind: pa.DataType, entry: pa.Field) -> tuple[str, str | None]:
    """The dtype and the unit of single values."""
    types, kind = arrow.types, _storage(kind)
    if types.is_dictionary(kind):
        return "int32", None
    if types.is_integer(kind) or types.is_boolean(kind) or types.is_floating(kind):
        return str(np.dtype(kind.to_pandas_dtype())), None
    if types.is_decimal(kind) or types.is_null(kind):
        return "float64", None
    if types.is_date(kind):
        return ("int32", "D") if types.is_date32(kind) else ("int64", "ms")
    if types.is_timestamp(kind) or types.is_time(kind) or types.is_duration(kind):
        return f"int{kind.bit_width}", kind.unit
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return "text", None
    if types.is_fixed_size_binary(kind):
        return "uint8", None
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind):
        return "bytes", None
    ways = "Make columns of its parts, or leave it out (--without)."
    if _is_list(kind):
        ways = "Cut or pad the inner lists to a fixed-size list, or leave the column out (--without)."
    raise DataError(
        f"The column {entry.name!r} is of type {entry.type}, which becomes no array of one dtype and shape. {ways}"
    )


class Converter:
    """Converts batches of one schema to NumPy arrays, whose dtypes and shapes the schema decides."""

    def __init__(self, schema: pa.Schema, *, writable: bool = False) -> None:
        """Analyse the schema, once for all batches; for writable arrays, nobody else may use what is converted."""
        self.columns, self._writable = columns_of(schema), writable
        self._lists = [column for column in self.columns if column.lists]
        self._steps = [_conversion(column, entry) for column, entry in zip(self.columns, schema, strict=True)]

    def __call__(self, batch: pa.RecordBatch) -> Arrays:
        """Return the arrays of a batch. Numeric columns without missing values are views of what was read."""
        found: Arrays = {}
        for column, convert, values in zip(self.columns, self._steps, batch.columns, strict=True):
            convert(column, values, found)
        if self._writable:
            return {name: np.require(values, requirements=["W"]) for name, values in found.items()}
        return found

    def cut(self, whole: Arrays, begin: int, rows: int) -> tuple[Arrays, int]:
        """Return (the arrays, their number of rows) for a range of the converted rows, without a copy."""
        found = {name: values[begin : begin + rows] for name, values in whole.items()}
        for column in self._lists:
            offsets = whole[column.name + OFFSETS][begin : begin + rows + 1]
            found[column.name + OFFSETS] = offsets - offsets[0]
            for name in {column.name, column.name + VALID} & whole.keys():
                found[name] = whole[name][offsets[0] : offsets[-1]]
        return found, rows

    def share(self, whole: Arrays, begin: int, rows: int, rank: int, ranks: int) -> tuple[Arrays, int]:
        """Return every `ranks`-th row of a range of the converted rows, starting with the `rank`-th."""
        found = {name: values[begin + rank : begin + rows : ranks] for name, values in whole.items()}
        for column in self._lists:
            offsets = whole[column.name + OFFSETS][begin : begin + rows + 1]
            begins, ends = offsets[:-1][rank::ranks], offsets[1:][rank::ranks]
            elements = [np.arange(first, last) for first, last in zip(begins, ends, strict=True)]
            chosen = np.concatenate([np.empty(0, np.int64), *elements])
            found[column.name + OFFSETS] = np.concatenate(([0], np.cumsum(ends - begins)))
            for name in {column.name, column.name + VALID} & whole.keys():
                found[name] = whole[name][chosen]
        return found, len(range(rank, rows, ranks))


def _conversion(column: Column, entry: pa.Field) -> Callable[[Column, Any, Arrays], None]:
    if column.lists:
        return _add_list
    kind = _storage(entry.type)
    plain = arrow.types.is_integer(kind) or (arrow.types.is_floating(kind) and kind.bit_width > 16)
    return _add_numbers if plain else _add_any


def _add_numbers(column: Column, array: pa.Array, found: Arrays) -> None:
    """A shortcut for the common case: integers and floats."""
    if isinstance(array, arrow.ExtensionArray):
        array = array.storage
    valid = array.is_valid() if column.masked and array.null_count else None
    whole = array.fill_null(0) if valid is not None else array
    found[column.name] = _in_place(whole) if not whole.null_count else whole.to_numpy(zero_copy_only=False)
    if column.masked:
        found[column.name + VALID] = _mask(valid, len(array))


def _in_place(array: pa.Array) -> NDArray[Any]:
    """Numbers, none of them missing, as a view that may be written to if Arrow's memory may."""
    dtype = np.dtype(array.type.to_pandas_dtype())
    memory = array.buffers()[1] or b""
    begin = array.offset * dtype.itemsize if memory else 0
    return np.frombuffer(memory, dtype, len(array), begin)


def _mask(valid: pa.Array | None, rows: int) -> NDArray[np.bool_]:
    mask: NDArray[np.bool_] = (
        np.ones(rows, np.bool_) if valid is None else valid.to_numpy(zero_copy_only=False)
    )
    return mask


def _add_any(column: Column, array: pa.Array, found: Arrays) -> None:
    values, valid = _values(array, column.fill)
    found[column.name] = values
    if column.masked:
        found[column.name + VALID] = valid


def _add_list(column: Column, array: pa.Array, found: Arrays) -> None:
    lengths = compute.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
    _add_any(column, array.flatten(), found)
    found[column.name + OFFSETS] = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))


def _values(array: pa.Array, fill: Any) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """The values of an array of any depth, with missing ones filled, and the validity mask; both have one shape."""
    outer, types = array.type, arrow.types
    if isinstance(array, arrow.ExtensionArray):
        array = array.storage
    kind, rows = array.type, len(array)
    if types.is_fixed_size_list(kind):
        size = kind.list_size
        values, valid = _values(array.values.slice(array.offset * size, rows * size), fill)
        values, valid = (each.reshape(rows, size, *each.shape[1:]) for each in (values, valid))
        if array.null_count:
            there = _mask(array.is_valid(), rows)
            values, valid = values.copy(), valid.copy()
            values[~there] = np.nan if values.dtype.kind == "f" else fill
            valid[~there] = False
        return _as_tensor(values, outer), _as_tensor(valid, outer)
    valid = _mask(array.is_valid() if array.null_count else None, rows)
    if types.is_fixed_size_binary(kind):
        width = kind.byte_width
        flat = np.frombuffer(array.buffers()[1] or b"", np.uint8)
        content = flat[array.offset * width :][: rows * width].reshape(rows, width)
        return np.where(valid[:, None], content, 0).astype(np.uint8), np.repeat(valid[:, None], width, axis=1)
    return _leaf_values(array, fill), valid


def _as_tensor(values: NDArray[Any], kind: pa.DataType) -> NDArray[Any]:
    if not isinstance(kind, arrow.FixedShapeTensorType):
        return values
    whole = values.reshape(len(values), *kind.shape, *values.shape[2:])
    return whole if kind.permutation is None else whole.transpose(0, *(1 + axis for axis in kind.permutation))


def _leaf_values(array: pa.Array, fill: Any) -> NDArray[Any]:
    types, kind = arrow.types, array.type
    if types.is_dictionary(kind):
        array = array.indices.cast(arrow.int32())
    elif types.is_decimal(kind) or types.is_null(kind):
        array = array.cast(arrow.float64())
    elif types.is_temporal(kind):
        array = array.view(arrow.int32() if kind.bit_width == 32 else arrow.int64())
    if array.null_count and not types.is_floating(array.type):  # a missing float becomes NaN without help
        array = array.fill_null(fill)
    values: NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return values


def require_fixed(columns: tuple[Column, ...]) -> None:
    """Raise if a column has rows of different lengths: batches of one shape cannot hold it."""
    for column in columns:
        if column.lists:
            raise InvalidInputError(
                "columns",
                column.name,
                f"left out where batches have one shape: the lists of a {column.type} have any length",
                "Name the other columns, or cut and pad it to a fixed-size list before you build.",
            )
