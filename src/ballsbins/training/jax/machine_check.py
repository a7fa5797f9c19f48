"""Test bit for bit, on the step itself, two properties of a machine that no proof about arithmetic can establish.

*Row-locality*: at a fixed batch shape, what an example adds to the sums depends only on that example and the
parameters, not on the content of the other rows. All rows except one get weight 0, so that one example makes up the
whole sum. Then the test replaces the other rows, and the sum must keep all its bits.

*Reproducibility*: the same step, taken twice, gives the same bits.

The test also checks two properties that compiler flags such as fast-math can break: products are within their error
bound of those in float64, and an example with an infinite value adds nothing and is reported.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ballsbins.training.grid import UNIT_ROUNDOFF, UNIT_ROUNDOFF_32, gamma
from ballsbins.training.jax.model import Batch, Model, Parameters
from ballsbins.training.jax.private_step import (
    CHUNK,
    Scalars,
    chunked_product,
    grid_of,
    initial_state,
    private_step,
)
from ballsbins.training.machine_check import MachineCheck

_WATCHED_ROWS = 3
_WIDTH = 48


def check_step(model: Model, parameters: Parameters, rows: int, seed: int = 0) -> MachineCheck:
    """Test the private step of a model on batches of this shape; takes as long as about ten steps."""
    grid = grid_of(model, 1.0, 1.0, rows)
    scalars = Scalars(np.float32(1e-3), np.float64(1.0), np.float64(grid.unit), np.float64(rows))
    silence = np.zeros(model.num_parameters, np.int32)  # no noise, so that the last bits stay visible

    def step(given: Batch, finite: bool = True) -> list[Any]:
        state, watched = private_step(
            model, initial_state(jax.tree.map(jnp.copy, parameters)), given, silence, scalars
        )
        seen.append(bool(watched.finite) == finite)
        return [np.asarray(leaf) for leaf in jax.tree.leaves(state.optimizer)]

    seen: list[bool] = []  # for each step, whether `finite` was reported correctly
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
    infinite, left_out = full.integers.copy(), np.ones(rows, np.float32)
    infinite[0], left_out[0] = np.inf, 0.0
    precise = _precise(rng, rows)
    if model.num_integers:
        broken = step(full._replace(integers=infinite), finite=False)
        precise &= _same(broken, step(full._replace(weights=left_out)))
    return MachineCheck(device_name(), bool(row_local), reproducible, bool(precise and all(seen)))


def _precise(rng: np.random.Generator, rows: int) -> bool:
    """Whether a product is within γ of the float64 product in each entry (step 4 of docs/floating_point.md)."""
    a, v = (rng.normal(size=(rows, _WIDTH)).astype(np.float32) for _ in range(2))
    with jax.enable_x64(True):
        found = np.asarray(jax.jit(chunked_product)(a, v))
    wide = a.astype(np.float64), v.astype(np.float64)
    bound = (gamma(min(CHUNK, rows), UNIT_ROUNDOFF_32) + gamma(rows, UNIT_ROUNDOFF)) * (
        abs(wide[0]).T @ abs(wide[1])
    )
    return bool((abs(found - wide[0].T @ wide[1]) <= bound).all())


def device_name() -> str:
    """The device of JAX: "cpu", or the platform with the kind of the device."""
    device = jax.devices()[0]
    return device.platform if device.platform == "cpu" else f"{device.platform} ({device.device_kind})"


def _filled(model: Model, rng: np.random.Generator, rows: int, scale: float = 1.0) -> Batch:
    labels = (rng.random(rows) < 0.5).astype(np.float32)
    integers = (scale * rng.normal(size=(rows, model.num_integers))).astype(np.float32)
    ids = [rng.integers(0, count, rows) for count in model.buckets]
    categories = np.stack(ids, axis=1).astype(np.int32) if ids else np.empty((rows, 0), np.int32)
    return Batch(labels, integers, categories, np.ones(rows, np.float32))


def _with_row(mine: Any, others: Any, row: int) -> Any:
    """Return `others` with one row replaced by that of `mine`."""
    mixed = others.copy()
    mixed[row] = mine[row]
    return mixed


def _same(first: list[Any], second: list[Any]) -> bool:
    return all(np.array_equal(a, b, equal_nan=True) for a, b in zip(first, second, strict=True))
