"""A hash of rows as they pass by: it does not depend on the batch boundaries, the file or the engine.

It covers values, not files: null slots, dictionaries and padding in Arrow arrays do not count. Every row group of a
Parquet file has a hash, and so does a whole text file. The hash of a file is the hash of its row groups' hashes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ballsbins._extras import Later

if TYPE_CHECKING:
    import pyarrow as pa

arrow = Later("pyarrow", feature="Reading tables", extra="data")
compute = Later("pyarrow.compute", feature="Reading tables", extra="data")
xxhash = Later("xxhash", feature="Checksums of tables", extra="data")


class RowsDigest:
    """The hash of the rows given to `update` so far, by column."""

    def __init__(self) -> None:
        """Start without rows."""
        self._rows = 0
        self._columns: dict[str, _Values] = {}

    def update(self, rows: pa.RecordBatch) -> None:
        """Add rows; all rows must have the same columns."""
        names = rows.schema.names
        if not self._columns:
            self._columns = {name: _Values() for name in names}
        for name, column in zip(names, rows.columns, strict=True):
            self._columns[name].update(column)
        self._rows += rows.num_rows

    def digest(self) -> bytes:
        """The hash so far, 16 bytes."""
        whole = xxhash.xxh3_128(self._rows.to_bytes(8, "little"))
        for name, values in sorted(self._columns.items()):
            whole.update(f"{name}\0".encode())
            whole.update(values.digest())
        return bytes(whole.digest())


def combined(digests: Iterable[bytes]) -> str:
    """The hash of a file, from the hashes of its row groups in order."""
    return str(xxhash.xxh3_128(b"".join(digests)).hexdigest())


class _Values:
    """The hash of the values of one column, or of the values nested in it."""

    def __init__(self) -> None:
        self._count = 0
        self._hash, self._lengths, self._nulls = (xxhash.xxh3_64() for _ in range(3))
        self._nested: list[_Values] = []
        self._add: Callable[[Any], None] | None = None

    def digest(self) -> bytes:
        own = b"".join(part.digest() for part in (self._hash, self._lengths, self._nulls))
        return own + b"".join(child.digest() for child in self._nested)

    def update(self, array: Any) -> None:
        types = arrow.types
        if isinstance(array, arrow.ExtensionArray):
            array = array.storage
        if types.is_dictionary(array.type):
            array = array.dictionary_decode()
        count = len(array)
        if array.null_count:
            missing = np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))
            self._nulls.update(missing + self._count)
            array = array.drop_null()  # the slot of a missing value may hold anything
        self._count += count
        if count and len(array):
            if self._add is None:  # decided once per column, since there are many small pieces
                self._add = self._way(array.type)
            self._add(array)

    def _way(self, kind: Any) -> Callable[[Any], None]:
        """How to hash values of a type, none of them missing."""
        types = arrow.types
        if types.is_boolean(kind):
            return lambda array: self._hash.update(array.cast(arrow.uint8()).to_numpy())
        if types.is_fixed_size_binary(kind) or types.is_primitive(kind) or types.is_decimal(kind):
            return partial(self._update_fixed, width=kind.bit_width // 8)
        if types.is_large_string(kind) or types.is_large_binary(kind):
            return partial(self._update_text, index=np.int64)
        if types.is_string(kind) or types.is_binary(kind):
            return partial(self._update_text, index=np.int32)
        if types.is_struct(kind):
            return lambda array: self._update_nested(array.flatten())
        if types.is_fixed_size_list(kind):
            return lambda array: self._update_nested([array.flatten()])
        if types.is_list(kind) or types.is_large_list(kind) or types.is_map(kind):
            return self._update_lists
        return self._update_any

    def _update_fixed(self, array: Any, width: int) -> None:
        data = memoryview(array.buffers()[1])
        self._hash.update(data[array.offset * width : (array.offset + len(array)) * width])

    def _update_lists(self, array: Any) -> None:
        self._lengths.update(compute.list_value_length(array).cast(arrow.int64()).to_numpy())
        self._update_nested([array.flatten()])

    def _update_any(self, array: Any) -> None:
        """Hash values of rare types, which have neither value nor length buffers."""
        for value in array.to_pylist():
            self._hash.update(repr(value).encode())

    def _update_text(self, array: Any, index: Any) -> None:
        offsets = np.frombuffer(array.buffers()[1], dtype=index)[array.offset : array.offset + len(array) + 1]
        self._lengths.update(np.diff(offsets).astype(np.int64))
        data = array.buffers()[2]
        if data is not None:
            self._hash.update(memoryview(data)[int(offsets[0]) : int(offsets[-1])])

    def _update_nested(self, arrays: Iterable[Any]) -> None:
        for number, child in enumerate(arrays):
            if number == len(self._nested):
                self._nested.append(_Values())
            self._nested[number].update(child)
