"""One step of DP-SGD (the paper's algorithm DP-SGD_G) with Adam, compiled once for each shape.

What varies between runs of one shape (noise, clip norm, learning rate, expected batch size) is an argument, so that a
sweep over them compiles nothing anew.

Parameters and Adam's moments are float32. Sums of gradients are integers in units of the run's grid, held in float64;
the noise, integers too, is added to them exactly, and only then is the result multiplied by the unit and rounded to
float32: all of that is post-processing. Float64 exists within a step alone, so callers need not enable it.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ballsbins.training._jax import jax, jnp, optax
from ballsbins.training.clipping import TableSum, clipped_sum
from ballsbins.training.model import Batch, Layer, Model, Parameters, losses

_ADAM = optax.scale_by_adam()
_SCORED_AT_ONCE = 8192


class State(NamedTuple):
    """The parameters and Adam's moments: all that a run carries from step to step."""

    parameters: Parameters
    optimizer: Any


class Scalars(NamedTuple):
    """The numbers of a step. `unit` is the grid's (None without noise), `expected` the public n/T to divide by."""

    learning_rate: np.float32
    clip_norm: np.float64
    unit: np.float64 | None
    expected: np.float64


class Watched(NamedTuple):
    """What the operator sees, none of it private: the mean loss of the batch, and whether all is finite."""

    loss: jax.Array
    finite: jax.Array


def initial_state(parameters: Parameters) -> State:
    """Begin with Adam's moments at 0."""
    return State(parameters, _ADAM.init(parameters))


def private_gradient(
    model: Model, parameters: Parameters, batch: Batch, noise: NDArray[np.int32] | None, scalars: Scalars
) -> tuple[Parameters, Watched]:
    """Clip, sum, add noise to every parameter, and divide by the public n/T. Call it within `jax.enable_x64(True)`.

    `noise` is round(2²⁶·N(0, 1)) for every parameter, in the order of the leaves. Without it no noise is added:
    clipping alone, which is not private.
    """
    unit = None if noise is None else scalars.unit
    sums = clipped_sum(model, parameters, batch, scalars.clip_norm, unit)
    # Without the barrier XLA on a CPU computes the matrix products inside the loop that adds noise: far slower.
    table, layers = jax.lax.optimization_barrier((sums.table, sums.layers))  # type: ignore[no-untyped-call]
    mean = with_noise(model, table, layers, noise, (1.0 if unit is None else unit) / scalars.expected)
    # the mean loss of an empty batch is not a number, and not shown
    return mean, Watched(sums.loss / batch.weights.sum(), sums.finite)


def with_noise(
    model: Model, table: TableSum, layers: tuple[Layer, ...], noise: NDArray[np.int32] | None, scale: Any
) -> Parameters:
    """Add the integers of the noise to those of the sums, exactly; then multiply by `scale` and round to float32."""

    def released(total: jax.Array) -> jax.Array:
        value: jax.Array = (total * scale).astype(jnp.float32)
        return value

    size, shape = model.num_rows * model.embedding_dim, (model.num_rows, model.embedding_dim)
    if noise is None:
        return Parameters(released(table.dense(model.num_rows)), jax.tree.map(released, layers))
    rows = jnp.asarray(noise[:size]).reshape(shape)
    if table.rows is None:
        everywhere = released(table.totals + rows.astype(jnp.float64))
    else:
        # Rows that nobody looked up have noise alone; the others are written over with sum and noise.
        drawn = rows.at[table.rows].get(mode="clip").astype(jnp.float64)
        everywhere = released(rows.astype(jnp.float64))
        everywhere = everywhere.at[table.rows].set(released(table.totals + drawn), mode="drop")
    noisy, begin = [], size
    for leaf in jax.tree.leaves(layers):
        added = jnp.asarray(noise[begin : begin + leaf.size]).reshape(leaf.shape)
        noisy.append(released(leaf + added.astype(jnp.float64)))
        begin += leaf.size
    return Parameters(everywhere, jax.tree.unflatten(jax.tree.structure(layers), noisy))


def private_step(
    model: Model, state: State, batch: Batch, noise: NDArray[np.int32] | None, scalars: Scalars
) -> tuple[State, Watched]:
    """Let Adam step along the private gradient."""
    with jax.enable_x64(True):
        after, watched = _private_step(model, state, batch, noise, scalars)
    return after, watched


@functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
def _private_step(
    model: Model, state: State, batch: Batch, noise: NDArray[np.int32] | None, scalars: Scalars
) -> tuple[State, Watched]:
    mean, watched = private_gradient(model, state.parameters, batch, noise, scalars)
    after = _stepped(state, mean, scalars)
    return after, Watched(watched.loss, watched.finite & _all_finite(after.parameters))


@functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
def plain_step(model: Model, state: State, batch: Batch, scalars: Scalars) -> tuple[State, Watched]:
    """Take an ordinary step, without clipping or noise, for reference. Its gradient is JAX's own."""

    def total(parameters: Parameters) -> jax.Array:
        return losses(model.forward(parameters, batch).logits, batch).sum()

    loss, gradient = jax.value_and_grad(total)(state.parameters)
    mean = jax.tree.map(lambda leaf: leaf / jnp.float32(scalars.expected), gradient)
    after = _stepped(state, mean, scalars)
    return after, Watched(loss / batch.weights.sum(), _all_finite(after.parameters))


def _stepped(state: State, mean: Parameters, scalars: Scalars) -> State:
    updates, optimizer = _ADAM.update(mean, state.optimizer)
    parameters = jax.tree.map(
        lambda old, update: old - scalars.learning_rate * update, state.parameters, updates
    )
    return State(parameters, optimizer)


def _all_finite(parameters: Parameters) -> jax.Array:
    return jnp.all(jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(parameters)]))


@functools.partial(jax.jit, static_argnums=0)
def _logits(model: Model, parameters: Parameters, batch: Batch) -> jax.Array:
    return model.forward(parameters, batch).logits


def scores(
    model: Model, parameters: Parameters, integers: NDArray[np.float32], categories: NDArray[np.int32]
) -> NDArray[np.float32]:
    """Logits of any number of examples, a fixed number at a time."""
    size = min(_SCORED_AT_ONCE, max(len(integers), 1))
    unused = np.zeros(size, np.float32)
    found = [np.empty(0, np.float32)]
    for begin in range(0, len(integers), size):
        places = np.arange(begin, begin + size).clip(max=len(integers) - 1)
        batch = Batch(unused, integers[places], categories[places], unused)
        found.append(np.asarray(_logits(model, parameters, batch)))
    return np.concatenate(found)[: len(integers)]
