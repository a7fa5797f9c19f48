"""The loops of `clipping`, compiled by numba: float64 arithmetic on float32 values, at the speed of memory."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from ballsbins.noise.with_numba import _bits_of as bits_of

_LANE = 1 << 16  # terms of a sum of squares that are added in any order; such sums are then added one by one
# x + 1.5·2⁵² is x rounded to an integer, ties to even, for |x| < 2⁵¹; its bits are those of 1.5·2⁵² plus that
# integer. # So bits are added instead of numbers: integers of 64 bits, exact in any order.
_ROUNDER = 1.5 * 2.0**52
_ROUNDER_BITS = int(np.float64(_ROUNDER).view(np.int64))


def start_of_sum(rows: int) -> int:
    """What a sum of so many rows starts with, so that the bits of `_ROUNDER` cancel modulo 2⁶⁴."""
    return (-rows * _ROUNDER_BITS + 2**63) % 2**64 - 2**63


# Only the order of the additions and fused multiply-adds are free; not-a-number and infinity stay what they are.
@numba.njit(nogil=True, error_model="numpy", fastmath={"reassoc", "contract"})
def _squares_of_part(row: Any) -> Any:
    total = 0.0
    for value in row:
        wide = np.float64(value)
        total += wide * wide
    return total


@numba.njit(nogil=True, error_model="numpy")
def add_squares(samples: Any, squares: Any) -> None:
    """Add the squared norm of every row of `samples` to `squares`."""
    for i in range(samples.shape[0]):
        for begin in range(0, samples.shape[1], _LANE):
            squares[i] += _squares_of_part(samples[i, begin : begin + _LANE])


@numba.njit(nogil=True, error_model="numpy", fastmath={"contract"})
def add_rounded(samples: Any, factors: Any, total: Any, begin: int, end: int) -> None:
    """Add rint(factor · sample) of every row to `total`, for the columns begin … end − 1; |factor · sample| < 2⁵¹."""
    rows = samples.shape[0]
    whole = rows - rows % 4
    # Four rows at a time: totals are read and written once for all of them.
    for i in range(0, whole, 4):
        a, b, c, d = factors[i], factors[i + 1], factors[i + 2], factors[i + 3]
        for j in range(begin, end):
            total[j] += (
                bits_of(np.float64(samples[i, j]) * a + _ROUNDER)
                + bits_of(np.float64(samples[i + 1, j]) * b + _ROUNDER)
            ) + (
                bits_of(np.float64(samples[i + 2, j]) * c + _ROUNDER)
                + bits_of(np.float64(samples[i + 3, j]) * d + _ROUNDER)
            )
    for i in range(whole, rows):
        a = factors[i]
        for j in range(begin, end):
            total[j] += bits_of(np.float64(samples[i, j]) * a + _ROUNDER)


@numba.njit(nogil=True, error_model="numpy")
def release(sums: Any, noise: Any, unit: float, out: Any, begin: int, end: int) -> None:
    """Set out to unit·(k + r), for the values begin … end − 1: k + r is exact, the product rounded to its type."""
    for j in range(begin, end):
        out[j] = (sums[j] + noise[j]) * unit
