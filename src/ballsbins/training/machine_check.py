"""Two properties of a machine that no proof about arithmetic can give, tested bit for bit on the step itself.

*Row-locality*: at a fixed batch shape, what an example adds to the sums depends on that example and the parameters
only, not on what stands in the other rows. All rows but one get weight 0, so that one example makes up the whole
sum; then the other rows are filled with something else, and the sum must keep all its bits.

*Reproducibility*: the same step, taken twice, gives the same bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ballsbins.training._jax import jax, jnp
from ballsbins.training.clipping import grid_of
from ballsbins.training.machine import MachineCheck
from ballsbins.training.model import Batch, Model, Parameters
from ballsbins.training.step import Scalars, initial_state, private_step

_WATCHED_ROWS = 3


def check_step(model: Model, parameters: Parameters, rows: int, seed: int = 0) -> MachineCheck:
    """Test the private step of a model on batches of this shape; takes as long as about ten steps."""
    grid = grid_of(model, 1.0, 1.0, rows)
    scalars = Scalars(np.float32(1e-3), np.float64(1.0), np.float64(grid.unit), np.float64(rows))
    silence = np.zeros(model.num_parameters, np.int32)  # without noise nothing hides the last bits

    def step(given: Batch) -> list[Any]:
        state, _ = private_step(
            model, initial_state(jax.tree.map(jnp.copy, parameters)), given, silence, scalars
        )
        return [np.asarray(leaf) for leaf in jax.tree.leaves(state.optimizer)]

    rng = np.random.default_rng(seed)
    full = _filled(model, rng, rows)
    reproducible = _same(step(full), step(full))
    row_local = True
    for row in rng.choice(rows, min(_WATCHED_ROWS, rows), replace=False):
        alone = np.zeros(rows, np.float32)
        alone[row] = 1.0
        first = full._replace(weights=alone)
        other = _filled(model, rng, rows, scale=1e3)._replace(weights=alone)
        mixed = Batch(*(_with_row(a, b, row) for a, b in zip(first, other, strict=True)))
        row_local &= _same(step(first), step(mixed))
    return MachineCheck(device_name(), bool(row_local), reproducible)


def device_name() -> str:
    """Where JAX computes: "cpu", or the platform with the kind of the device."""
    device = jax.devices()[0]
    return device.platform if device.platform == "cpu" else f"{device.platform} ({device.device_kind})"


def _filled(model: Model, rng: np.random.Generator, rows: int, scale: float = 1.0) -> Batch:
    labels = (rng.random(rows) < 0.5).astype(np.float32)
    integers = (scale * rng.normal(size=(rows, model.num_integers))).astype(np.float32)
    ids = [rng.integers(0, count, rows) for count in model.buckets]
    categories = np.stack(ids, axis=1).astype(np.int32) if ids else np.empty((rows, 0), np.int32)
    return Batch(labels, integers, categories, np.ones(rows, np.float32))


def _with_row(mine: Any, others: Any, row: int) -> Any:
    """What stands in the other rows, and in one row what is mine."""
    mixed = others.copy()
    mixed[row] = mine[row]
    return mixed


def _same(first: list[Any], second: list[Any]) -> bool:
    return all(np.array_equal(a, b, equal_nan=True) for a, b in zip(first, second, strict=True))
