"""The loops of `clipped_sums`, compiled by numba: float64 arithmetic on float32 values, at memory speed."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from ballsbins.noise.numba_kernel import _bits_of as bits_of

# For |x| < 2⁵¹, adding 1.5·2⁵² rounds x to an integer, ties to even: the bits of the result are those of 1.5·2⁵² plus
# that integer. So we add the bits as 64-bit integers instead of adding floats, which is exact in any order.
_ROUNDER = 1.5 * 2.0**52
_ROUNDER_BITS = int(np.float64(_ROUNDER).view(np.int64))


def start_of_sum(rows: int) -> int:
    """The start value for a sum of `rows` rows, so that the bits of `_ROUNDER` cancel modulo 2⁶⁴."""
    return (-rows * _ROUNDER_BITS + 2**63) % 2**64 - 2**63


# The compiler may only reorder additions and fuse multiply-adds; NaN and infinity keep their meaning.
@numba.njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract"})
def add_squares(samples: Any, squares: Any) -> None:
    """Add the squared norm of every row of `samples` to `squares`; the terms are added in any order."""
    for i in range(samples.shape[0]):
        total = 0.0
        for j in range(samples.shape[1]):
            wide = np.float64(samples[i, j])
            total += wide * wide
        squares[i] += total


@numba.njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract"})
def _add_one(row: Any, factor: float, total: Any) -> None:
    for j in range(len(total)):
        total[j] += bits_of(np.float64(row[j]) * factor + _ROUNDER)


@numba.njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract"})
def _add_four(r0: Any, r1: Any, r2: Any, r3: Any, factors: Any, total: Any) -> None:
    """Add four rows at a time, so that totals are read and written once for all four."""
    f0, f1, f2, f3 = factors[0], factors[1], factors[2], factors[3]
    for j in range(len(total)):
        total[j] += (
            bits_of(np.float64(r0[j]) * f0 + _ROUNDER) + bits_of(np.float64(r1[j]) * f1 + _ROUNDER)
        ) + (bits_of(np.float64(r2[j]) * f2 + _ROUNDER) + bits_of(np.float64(r3[j]) * f3 + _ROUNDER))


@numba.njit(nogil=True, cache=True, error_model="numpy")
def add_rounded(samples: Any, factors: Any, total: Any, begin: int, end: int) -> None:
    """Add rint(factor · sample) of every row to `total`, for the columns begin … end − 1; |factor · sample| < 2⁵¹."""
    # Pass rows one by one, because loops over a matrix are not vectorised.
    rows, part = samples.shape[0], total[begin:end]
    whole = rows - rows % 4
    for i in range(0, whole, 4):
        _add_four(
            samples[i, begin:end],
            samples[i + 1, begin:end],
            samples[i + 2, begin:end],
            samples[i + 3, begin:end],
            factors[i : i + 4],
            part,
        )
    for i in range(whole, rows):
        _add_one(samples[i, begin:end], factors[i], part)


@numba.njit(nogil=True, cache=True, error_model="numpy")
def round_to_grid(values: Any, scale: float, out: Any) -> bool:
    """Set `out` to rint(value · scale); return whether all values are finite."""
    broken = False
    for j in range(len(out)):
        wide = np.float64(values[j])
        broken |= not (abs(wide) < np.inf)
        out[j] = np.rint(wide * scale)
    return not broken


@numba.njit(nogil=True, cache=True, error_model="numpy")
def release(sums: Any, noise: Any, unit: float, out: Any) -> None:
    """Set `out` to unit·(k + r): k + r is exact, and the product is rounded to the type of `out`."""
    for j in range(len(out)):
        out[j] = (sums[j] + noise[j]) * unit
