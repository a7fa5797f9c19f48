"""Group the numbers 0 … n − 1 by their bins: a counting sort in compiled code, with little memory.

Sorting by bin is what an epoch costs. A transposition of a sparse matrix with one entry in each row is
exactly a stable counting sort, and SciPy has it compiled. It writes all over its result; so it is done in
chunks that fit the processor's cache, and each chunk is then laid out bin by bin in the whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ballsbins.samplers.base import index_dtype
from ballsbins.samplers.physical import IndexArray

_DRAWN = 1 << 18  # bins drawn at once: their 64-bit temporaries stay in the cache
_SORTED = 1 << 20  # examples sorted at once
_PER_BIN = 16  # but at least so many for each bin, or visiting all the bins costs more than the examples


@dataclass(frozen=True)
class Grouped:
    """Members of bin t: order[offsets[t] : offsets[t + 1]], ascending."""

    order: IndexArray
    offsets: NDArray[np.int64]


def group_by_bin(
    bins: Callable[[int, int], NDArray[np.uint32]], num_examples: int, num_bins: int, chunk: int = _SORTED
) -> Grouped:
    """Group the examples by `bins(start, stop)`, the bins of a range of them.

    Memory besides the result: 2 or 4 bytes an example for the bins, and up to 22 bytes an example of one
    chunk (10 where one chunk holds all), which is at most a third of all if there are several.
    """
    narrow: type[np.uint16 | np.int32] = np.uint16 if num_bins <= 2**16 else np.int32
    stored = np.empty(num_examples, dtype=narrow)
    for start in range(0, num_examples, _DRAWN):
        stop = min(start + _DRAWN, num_examples)
        stored[start:stop] = bins(start, stop)

    pieces = -(-num_examples // min(max(chunk, _PER_BIN * num_bins), 2**30))
    if pieces <= 1:
        return Grouped(*_sort(stored, num_bins))

    size = -(-num_examples // (pieces + 1))  # one more, so that a chunk is at most a third of all
    offsets = np.zeros(num_bins + 1, dtype=np.int64)
    for start in range(0, num_examples, size):
        offsets[1:] += np.bincount(stored[start : start + size], minlength=num_bins)
    np.cumsum(offsets, out=offsets)

    dtype = index_dtype(num_examples)
    grouped = np.empty(num_examples, dtype=dtype)
    free = offsets[:-1].copy()  # where the next member of each bin goes
    for start in range(0, num_examples, size):
        order, begins = _sort(stored[start : start + size], num_bins)
        counts = np.diff(begins)
        places = np.repeat(free - begins[:-1], counts)
        places += np.arange(len(order))
        grouped[places] = order + dtype(start)
        free += counts
    return Grouped(grouped, offsets)


def _sort(bins: NDArray[np.integer], num_bins: int) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Return the places of `bins` in order of their bin, then of place; and where each bin begins."""
    from scipy.sparse import csr_array

    rows = len(bins)
    entries = np.zeros(rows, dtype=np.int8)
    one_each = np.arange(rows + 1, dtype=np.int32)
    matrix = csr_array((entries, bins.astype(np.int32, copy=False), one_each), shape=(rows, num_bins)).tocsc()
    return matrix.indices.view(np.uint32), matrix.indptr.astype(np.int64)
