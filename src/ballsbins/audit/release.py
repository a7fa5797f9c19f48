"""What a step of training releases: the sum on the grid, with exact noise, in float32."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ballsbins.noise import Domain, rounded_normals
from ballsbins.samplers.key import Key
from ballsbins.training.grid import Grid, excess_of

Array = NDArray[np.float64]


def released(
    sums: Array, noise_multiplier: float, key: Key, domain: Domain, *, rows: int = 1, dense: int = 1
) -> NDArray[np.float32]:
    """Release float64 sums of at most `rows` vectors of norm 1 and length `dense`, as a training step does.

    Any number of such sums may be stacked; `domain` is used once.
    """
    grid = Grid(noise_multiplier, 1.0, rows, excess_of(rows), dense)
    integers = np.rint(sums / grid.unit)
    integers += rounded_normals(key, domain, sums.size).reshape(sums.shape)
    return (integers * grid.unit).astype(np.float32)
