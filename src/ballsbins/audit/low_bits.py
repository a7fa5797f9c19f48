"""An attack on floating point alone: which low bits a value has, whatever its size says about the sum.

Noise that is drawn as a float32 number and added in float32 gives the sum away in two ways. 1 − 0.99 leaves
trailing zeros where noise of that size has none; and many float32 numbers are not σ·z for any float32 z, so that
they cannot be noise alone. Here values are sorted into cells by their exponent, the number of trailing zeros of
their mantissa, and whether noise alone could be that value. How often the canary's batch and other batches fall
into each cell is counted on runs of their own, and the ratio of the two is the statistic of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from ballsbins.audit.canary import Array, log_mean_exp

_MANTISSA = 23  # bits of float32
_CELLS = 2 * 256 * (_MANTISSA + 1)
_NEIGHBOURS = range(-2, 3)  # a z that gives the value is among those next to value / σ

Observed = NDArray[np.float32]


def cells_of(values: Observed, noise_multiplier: float) -> NDArray[np.int64]:
    """The cell of every value: exponent, trailing zeros, and whether it is σ·z in float32 for a float32 z."""
    bits = values.view(np.uint32).astype(np.int64)
    exponent, mantissa = (bits >> _MANTISSA) & 0xFF, bits & (2**_MANTISSA - 1)
    lowest = mantissa & -mantissa  # 0 for a power of two, which has all of them
    zeros = np.where(lowest > 0, np.log2(np.maximum(lowest, 1)), _MANTISSA).astype(np.int64)
    scale = np.float32(noise_multiplier)
    guess = (values / scale).view(np.int32)
    possible = np.zeros(values.shape, np.int64)
    for steps in _NEIGHBOURS:
        possible |= scale * (guess + np.int32(steps)).view(np.float32) == values
    return (exponent * (_MANTISSA + 1) + zeros) * 2 + possible


def learned(
    present: Iterable[tuple[Observed, Array]],
    absent: Iterable[tuple[Observed, Array]],
    noise_multiplier: float,
) -> Callable[[Array], Array]:
    """Return the score of a run, learned from other runs with the canary and without.

    Args:
      present: observations and sums of runs with the canary; values whose sum is not 0 are those of its batch.
      absent: the same without it; all of its values, or those whose sum is not 0 if there are any.
      noise_multiplier: σ of the noise.
    """
    counts = [np.ones(_CELLS), np.ones(_CELLS)]
    for side, runs in enumerate((absent, present)):
        for observed, sums in runs:
            values = observed[sums != 0.0] if sums.any() else observed.reshape(-1)
            counts[side] += np.bincount(cells_of(values, noise_multiplier), minlength=_CELLS)
    logs: Array = np.log(counts[1] / counts[1].sum()) - np.log(counts[0] / counts[0].sum())

    def score(observed: Array) -> Array:
        each = logs[cells_of(observed.astype(np.float32), noise_multiplier)]
        total: Array = log_mean_exp(each).sum(axis=1)
        return total

    return score
