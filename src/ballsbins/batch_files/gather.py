"""Put rows in another order: fixed-width columns go into memory that is used again and again.

Fresh memory costs about as much as filling it, because the system clears every page. A thread that orders one block
of rows after the other therefore keeps its memory.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ballsbins._extras import Later

if TYPE_CHECKING:
    import pyarrow as pa

arrow = Later("pyarrow", feature="Batching tables", extra="data")
compute = Later("pyarrow.compute", feature="Batching tables", extra="data")

Bytes = NDArray[np.uint8]

_ALIGNMENT = 64  # bytes; what Arrow recommends for the beginning of an array
_SPARE = 32  # memory grows by 1/32 more than needed, since blocks of similar size differ a little


class ReusedMemory(threading.local):
    """Memory for blocks of arrays. Every thread has its own, and each purpose has one block at a time."""

    def __init__(self) -> None:
        """Start without memory; this runs once for each thread."""
        self._blocks: dict[str, Bytes] = {}

    def arrays(self, purpose: str, sizes: Sequence[int]) -> list[Bytes]:
        """Return aligned arrays of the given sizes, in bytes.

        Their content is arbitrary. They take the place of the arrays that were last returned for this purpose, so
        those must not be used any more.
        """
        starts = np.cumsum([0, *(-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes)]).tolist()
        needed = starts[-1] + _ALIGNMENT
        block = self._blocks.get(purpose)
        if block is None or len(block) < needed:
            self._blocks.pop(purpose, None)
            del block  # the old block must be free before the larger one is allocated
            block = self._blocks[purpose] = np.empty(needed + needed // _SPARE, dtype=np.uint8)
        first = -block.ctypes.data % _ALIGNMENT
        return [
            block[first + start : first + start + size]
            for start, size in zip(starts[:-1], sizes, strict=True)
        ]

    def clear(self) -> None:
        """Free the memory of this thread."""
        self._blocks.clear()


def fixed_width(kind: pa.DataType) -> int:
    """The bytes of a value of a type, if all of its values have the same number of whole bytes; otherwise 0."""
    types = arrow.types
    if types.is_primitive(kind) or types.is_decimal(kind) or types.is_fixed_size_binary(kind):
        return int(kind.bit_width) // 8 if kind.bit_width % 8 == 0 else 0
    return 0


def values_of(column: pa.Array, width: int) -> Bytes:
    """The bytes of the values of a fixed-width column, without a copy."""
    if not len(column):
        return np.empty(0, np.uint8)
    data = np.frombuffer(column.buffers()[1], np.uint8)
    return data[column.offset * width : (column.offset + len(column)) * width]


def ordered_rows(
    rows: pa.RecordBatch | pa.Table, order: NDArray[np.int64], memory: ReusedMemory, purpose: str
) -> Any:
    """Return rows[order], as a batch or table like `rows`.

    Args:
        rows: the rows.
        order: the numbers of the rows to return; every one must be a row.
        memory: where fixed-width columns without missing values go; other columns get memory of their own. The
            result is valid until this memory is used again for the same purpose.
        purpose: the purpose for which the memory is used.
    """
    columns = [_one_array(column) for column in rows.columns]
    widths = [0 if column.null_count else fixed_width(column.type) for column in columns]
    arrays = iter(memory.arrays(purpose, [width * len(order) for width in widths if width]))
    indices = None
    found = []
    for column, width in zip(columns, widths, strict=True):
        if width:
            dtype = np.dtype(f"u{width}" if width in (1, 2, 4, 8) else f"V{width}")
            target = next(arrays)
            # This mode is the one in which NumPy writes straight into `out`. No index is out of range.
            np.take(values_of(column, width).view(dtype), order, out=target.view(dtype), mode="clip")
            buffers = [None, arrow.py_buffer(target)]
            found.append(arrow.Array.from_buffers(column.type, len(order), buffers))
        else:
            if indices is None:
                indices = arrow.array(order)
            found.append(compute.take(column, indices, boundscheck=False))
    return type(rows).from_arrays(found, schema=rows.schema)


def _one_array(column: Any) -> Any:
    """A column as one array; it is copied only if it consists of several."""
    if not isinstance(column, arrow.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
