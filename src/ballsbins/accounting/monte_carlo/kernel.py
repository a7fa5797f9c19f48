"""The two inner loops of `order_statistics` compiled by numba, if it is installed (extra `[parallel]`).

They give the same numbers as the NumPy path, bit for bit. The generator is the same, it draws exponentials and gammas
by the same algorithms (ziggurat; Marsaglia and Tsang) in the same order, and sums are added up in the same order. The
loops are faster because they compute the constants of a gamma once for all samples and touch each number once.

Compiling takes seconds, so it only starts after NumPy has worked for about as long: `compiled` counts what was drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from ballsbins import _extras
from ballsbins.errors import MissingExtraError

_SQUEEZE = 0.0331  # of Marsaglia and Tsang's method for gamma variables (2000)
_WORTH_IT = 3e8  # numbers, about three seconds of the NumPy path
_drawn = 0.0


def compiled(numbers: int) -> tuple[Callable[..., None], Callable[..., None]] | None:
    """`partial_sums` and `weighted_sums`, or None until so many numbers were drawn that compiling pays off."""
    global _drawn  # noqa: PLW0603  # how much this process has drawn: decides speed, never an answer
    _drawn += numbers
    return compile_now() if _drawn > _WORTH_IT else None


def forget() -> None:
    """Reset the count of numbers drawn."""
    global _drawn  # noqa: PLW0603
    _drawn = 0.0


@lru_cache(maxsize=1)
def compile_now() -> tuple[Callable[..., None], Callable[..., None]] | None:
    """Compile the two loops, or return None without numba."""
    try:
        numba = _extras.load("numba", feature="Compiled order statistics", extra="parallel")
    except MissingExtraError:
        return None
    return numba.njit(_partial_sums), numba.njit(_weighted_sums)


def _partial_sums(rng: np.random.Generator, gaps: Any, v: Any) -> None:
    """v[i] = v[i−1] + Gamma(gaps[i]), for all samples of one order before the next."""
    for i in range(gaps.size):
        if gaps[i] == 1.0:
            for j in range(v.shape[1]):
                v[i, j] = rng.standard_exponential()
        else:
            b = gaps[i] - 1.0 / 3
            c = 1.0 / math.sqrt(9 * b)
            for j in range(v.shape[1]):
                while True:
                    x = rng.standard_normal()
                    w = 1.0 + c * x
                    while w <= 0.0:
                        x = rng.standard_normal()
                        w = 1.0 + c * x
                    w = w * w * w
                    u = rng.random()
                    if u < 1.0 - _SQUEEZE * (x * x) * (x * x):
                        break
                    if math.log(u) < 0.5 * x * x + b * (1.0 - w + math.log(w)):
                        break
                v[i, j] = b * w
        if i > 0:
            for j in range(v.shape[1]):
                v[i, j] += v[i - 1, j]


def _weighted_sums(
    v: Any, bits: Any, slope: Any, intercept: Any, shift: int, first: int, half: int, weights: Any, sums: Any
) -> None:
    """Sums of Z(v) over orders, with both rows of weights; the table has V ≤ ½ first, then 1 − V from `half` on."""
    for i in range(v.shape[0]):
        below, over = weights[0, i], weights[1, i]
        for j in range(v.shape[1]):
            if v[i, j] <= 0.5:
                b = (bits[i, j] >> shift) - first
            else:
                v[i, j] = 1.0 - v[i, j]
                b = half + max((bits[i, j] >> shift) - first, 0)
            z = v[i, j] * slope[b] + intercept[b]
            sums[0, j] += below * z
            sums[1, j] += over * z
