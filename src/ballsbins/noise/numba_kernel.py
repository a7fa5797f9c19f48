"""The kernel compiled by numba."""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np
from numba.core import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from ballsbins.noise.kernel import HALF, pair_function


def _bitcast(name: str, source: Any, target: Any) -> Any:
    """A function that reads the bits of one type as another: a move between registers."""

    def typed(context: Any, x: Any) -> Any:
        def generated(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.bitcast(arguments[0], context.get_value_type(target))

        return target(source), generated

    typed.__name__ = name
    return intrinsic(typed)


_bits_of = _bitcast("bits_of", types.float64, types.int64)
_float_of = _bitcast("float_of", types.int64, types.float64)


@numba.njit(inline="always")
def _where(condition: Any, a: Any, b: Any) -> Any:
    return a if condition else b


@numba.njit(inline="always")
def _nearest(x: Any) -> Any:
    """Round to an integer, ties to even: exact below 2⁵¹ and, unlike a function call, vectorised."""
    return (x + 1.5 * 2.0**52) - 1.5 * 2.0**52


_pair = numba.njit(forceinline=True, error_model="numpy", fastmath={"contract"})(
    pair_function(_where, _bits_of, _float_of, math.sqrt, _nearest)
)


@numba.njit(nogil=True, error_model="numpy", fastmath={"contract"})
def _fill(words: Any, out: Any, flags: Any) -> None:
    for block in range(len(flags) // HALF):
        begin = 2 * HALF * block
        for j in range(HALF):
            one, two, undecided = _pair(words[begin + j], words[begin + HALF + j])
            out[begin + j], out[begin + HALF + j] = np.int32(one), np.int32(two)
            flags[HALF * block + j] = undecided


def fill(words: NDArray[np.int64], out: NDArray[np.int32]) -> NDArray[np.int64]:
    """Fill r from the words of whole blocks; return the numbers of the undecided pairs."""
    flags = np.empty(len(words) // 2, np.bool_)
    _fill(words, out, flags)
    return np.flatnonzero(flags)
