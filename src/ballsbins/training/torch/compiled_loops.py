"""The loops of `clipping`, compiled by numba: float64 arithmetic on float32 values, at the speed of memory."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from ballsbins.noise.numba_kernel import _bits_of as bits_of

# x + 1.5·2⁵² is x rounded to an integer, ties to even, for |x| < 2⁵¹; its bits are those of 1.5·2⁵² plus that
# integer. So bits are added instead of numbers: integers of 64 bits, exact in any order.
_ROUNDER = 1.5 * 2.0**52
_ROUNDER_BITS = int(np.float64(_ROUNDER).view(np.int64))


def start_of_sum(rows: int) -> int:
    """What a sum of so many rows starts with, so that the bits of `_ROUNDER` cancel modulo 2⁶⁴."""
    return (-rows * _ROUNDER_BITS + 2**63) % 2**64 - 2**63


# Only the order of the additions and fused multiply-adds are free; not-a-number and infinity stay what they are.
@numba.njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract"})
def add_squares(samples: Any, squares: Any) -> None:
    """Add the squared norm of every row of `samples` to `squares`; its terms are added in any order."""
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
    """Four rows at a time: totals are read and written once for all of them."""
    f0, f1, f2, f3 = factors[0], factors[1], factors[2], factors[3]
    for j in range(len(total)):
        total[j] += (
            bits_of(np.float64(r0[j]) * f0 + _ROUNDER) + bits_of(np.float64(r1[j]) * f1 + _ROUNDER)
        ) + (bits_of(np.float64(r2[j]) * f2 + _ROUNDER) + bits_of(np.float64(r3[j]) * f3 + _ROUNDER))


@numba.njit(nogil=True, cache=True, error_model="numpy")
def add_rounded(samples: Any, factors: Any, total: Any, begin: int, end: int) -> None:
    """Add rint(factor · sample) of every row to `total`, for the columns begin … end − 1; |factor · sample| < 2⁵¹."""
    # Rows are passed one by one: loops over a matrix are not vectorised.
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
    """Set out to rint(value · scale); return whether all values are finite."""
    broken = False
    for j in range(len(out)):
        wide = np.float64(values[j])
        broken |= not (abs(wide) < np.inf)
        out[j] = np.rint(wide * scale)
    return not broken


@numba.njit(nogil=True, cache=True, error_model="numpy")
def release(sums: Any, noise: Any, unit: float, out: Any) -> None:
    """Set out to unit·(k + r): k + r is exact, the product rounded to its type."""
    for j in range(len(out)):
        out[j] = (sums[j] + noise[j]) * unit
