"""One step of DP-SGD (the paper's algorithm DP-SGD_G) with Adam, compiled once for each shape.

What varies between runs of one shape (noise, clip norm, learning rate, expected batch size) is an argument, so that a
sweep over them compiles nothing anew.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ballsbins.training._jax import jax, jnp, optax
from ballsbins.training.clipping import clipped_sum
from ballsbins.training.model import Batch, Model, Parameters, losses
from ballsbins.training.noise import normals, words_for

_ADAM = optax.scale_by_adam()
_SCORED_AT_ONCE = 8192


class State(NamedTuple):
    """The parameters and Adam's moments: all that a run carries from step to step."""

    parameters: Parameters
    optimizer: Any


class Scalars(NamedTuple):
    """The numbers of a step. `noise` is σ·C; `expected` is the public n/T by which the noisy sum is divided."""

    learning_rate: np.float32
    clip_norm: np.float32
    noise: np.float32
    expected: np.float32


class Watched(NamedTuple):
    """What the operator sees, none of it private: the mean loss of the batch, and whether all is finite."""

    loss: jax.Array
    finite: jax.Array


def initial_state(parameters: Parameters) -> State:
    """Begin with Adam's moments at 0."""
    return State(parameters, _ADAM.init(parameters))


def noise_words(model: Model) -> int:
    """How many random words one step needs."""
    return sum(words_for(leaf.size) for leaf in jax.tree.leaves(jax.eval_shape(model.zeros)))


def private_gradient(
    model: Model, parameters: Parameters, batch: Batch, words: NDArray[np.uint32] | None, scalars: Scalars
) -> tuple[Parameters, Watched]:
    """Clip, sum, add noise to every parameter, and divide by the public n/T.

    Without `words` no noise is added: clipping alone, which is not private.
    """
    clipped = clipped_sum(model, parameters, batch, scalars.clip_norm)
    gradient = clipped.gradient
    if words is not None:
        # Without the barrier XLA on a CPU computes the matrix products inside the loop that adds noise: far slower.
        gradient = jax.lax.optimization_barrier(gradient)  # type: ignore[no-untyped-call]
        gradient = with_noise(gradient, words, scalars.noise)
    mean: Parameters = jax.tree.map(lambda leaf: leaf / scalars.expected, gradient)
    # the mean loss of an empty batch is not a number, and not shown
    return mean, Watched(clipped.loss / batch.weights.sum(), clipped.finite)


@functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
def private_step(
    model: Model, state: State, batch: Batch, words: NDArray[np.uint32] | None, scalars: Scalars
) -> tuple[State, Watched]:
    """Let Adam step along the private gradient."""
    mean, watched = private_gradient(model, state.parameters, batch, words, scalars)
    after = _stepped(state, mean, scalars)
    return after, Watched(watched.loss, watched.finite & _all_finite(after.parameters))


@functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
def plain_step(model: Model, state: State, batch: Batch, scalars: Scalars) -> tuple[State, Watched]:
    """Take an ordinary step, without clipping or noise, for reference. Its gradient is JAX's own."""

    def total(parameters: Parameters) -> jax.Array:
        return losses(model.forward(parameters, batch).logits, batch).sum()

    loss, gradient = jax.value_and_grad(total)(state.parameters)
    mean = jax.tree.map(lambda leaf: leaf / scalars.expected, gradient)
    after = _stepped(state, mean, scalars)
    return after, Watched(loss / batch.weights.sum(), _all_finite(after.parameters))


def with_noise(gradient: Parameters, words: jax.Array | NDArray[np.uint32], scale: Any) -> Parameters:
    """Add independent normal noise of this standard deviation to every entry."""
    leaves, structure = jax.tree.flatten(gradient)
    noisy, begin = [], 0
    for leaf in leaves:
        count = words_for(leaf.size)
        drawn = normals(jnp.asarray(words[begin : begin + count]), leaf.size)
        noisy.append(leaf + scale * drawn.reshape(leaf.shape))
        begin += count
    noised: Parameters = jax.tree.unflatten(structure, noisy)
    return noised


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
