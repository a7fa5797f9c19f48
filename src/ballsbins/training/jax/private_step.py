"""One step of DP-SGD (the paper's algorithm DP-SGD_G) with Adam: clip, sum, add noise, and step.

**Clipping** sums clipped per-example gradients without forming any of them, in arithmetic with a known error bound.
One backward pass gives, for every example, the signal g at the output of each layer: the gradient of its loss there.
For a dense layer with input a, the example's gradient is the outer product of a and g for the weight, and g for the
bias, so its squared norm is (‖a‖² + 1)·‖g‖². For a table, it is g in the row that was looked up. Each category has
its own rows and is looked up once, so these squared norms add up to ‖g‖². Together they give the norm of the whole
gradient and the factor min(1, C/norm). The signals are scaled by this factor, and each weight's gradient is then
formed once, for the whole batch:

    Σᵢ min(1, C/normᵢ)·∇ᵢ  =  aᵀ·(factor · g)

This costs as much arithmetic as a plain gradient, with memory for batch × activations, never batch × parameters.

**Floating point** (steps 2 to 5 of docs/floating_point.md). Activations and signals are float32; their rounding
errors depend only on the example itself. Everything after them has an error bound:

* norms are float64 sums of squares of float32 values: squares are exact there, and neither under- nor overflow;
* products aᵀ·v are float32 in chunks of CHUNK rows, added up in float64: an example moves the chunk it is in by at
  most C·(1 + excess_of(CHUNK)), and no other;
* contributions to rows of a table are rounded to the grid one by one and added as integers: exact in any order.

An example whose norm is not finite adds nothing, as if it were ⊥, so the sum keeps its sensitivity for any data.
`finite` tells the operator, who then stops the run. Like the loss, it is only for the operator: a run that stopped
for this reason reveals that the example is there, for any ε, and must not be published.

**The step** is compiled once for each shape. Everything that varies between runs of one shape (noise, clip norm,
learning rate, expected batch size) is an argument, so a sweep over these compiles nothing again.

Parameters and Adam's moments are float32. Sums of gradients are integers in units of the run's grid, held in float64.
The noise is also integers and is added to them exactly. Only then is the result multiplied by the unit and rounded to
float32, which is post-processing. Float64 is used only within a step, so callers need not enable it.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

from ballsbins.training.grid import CLIP_MARGIN, UNIT_ROUNDOFF_32, Grid, excess_of
from ballsbins.training.jax.model import Batch, Layer, Model, Parameters, losses

CHUNK = 64  # rows whose products are summed in float32; η grows with its square: 4.9·10⁻⁴ for 64


class TableSum(NamedTuple):
    """The sum for the tables: for every row, or, if a batch looks up fewer rows, only for those.

    In the second form `totals[j]` is the whole sum for row `rows[j]`. A row that was looked up several times has its
    total at one of its places; at the others `rows` is out of range, and such an index writes nothing. So memory
    grows with the batch, not with the tables.
    """

    rows: jax.Array | None  # int32[B · categories]; None if totals are for every row in order
    totals: jax.Array  # float64[·, embedding_dim]

    def dense(self, num_rows: int) -> jax.Array:
        """The sum for every row."""
        if self.rows is None:
            return self.totals
        zeros = jnp.zeros((num_rows, self.totals.shape[1]), self.totals.dtype)
        return zeros.at[self.rows].set(self.totals, mode="drop")


class ClippedSum(NamedTuple):
    """The sum of clipped gradients; and, not private, the weighted sum of losses and whether all norms are finite.

    Sums are float64. If a unit is given, they are integers: multiples of that unit.
    """

    table: TableSum
    layers: tuple[Layer, ...]
    loss: jax.Array
    finite: jax.Array


def grid_of(model: Model, noise_multiplier: float, clip_norm: float, rows: int) -> Grid:
    """Return the grid on which the noise covers all rounding of `clipped_sum`, for batches with `rows` rows."""
    # The terms are for float32 chunks, for rounding v to float32 before them, and for float64 sums (biases).
    excess = excess_of(min(CHUNK, rows), UNIT_ROUNDOFF_32) + 2.0 * UNIT_ROUNDOFF_32 + excess_of(rows)
    return Grid(noise_multiplier, clip_norm, rows, excess, model.num_dense, model.embedded)


def clipped_sum(
    model: Model, parameters: Parameters, batch: Batch, clip_norm: Any, unit: Any = None
) -> ClippedSum:
    """Sum [∇ loss(x)]_C over the examples x of the batch; those of weight 0 or without a finite norm add nothing.

    Call it within `jax.enable_x64(True)`.

    Args:
        model: the shape of the network.
        parameters: float32.
        batch: rows are examples; rows of weight 0 are padding.
        clip_norm: C, a float64 scalar.
        unit: the unit of the grid, a float64 scalar; None leaves sums unrounded, for runs without noise.
    """
    inputs, rows, logits = model.forward(parameters, batch)
    g = (batch.weights * (jax.nn.sigmoid(logits) - batch.labels))[:, None]
    squares = jnp.zeros(logits.shape, jnp.float64)
    signals = []
    for number in range(len(inputs) - 1, -1, -1):
        a, weight = inputs[number], parameters.layers[number].weight
        squares += (_squared(a) + 1.0) * _squared(g)
        signals.append(g)
        if number > 0:
            g = (g @ weight.T) * (a > 0)
        else:  # the integers have no parameters below
            g = g @ weight[: model.embedded].T
    signals.reverse()
    squares += _squared(g)
    norms = jnp.sqrt(squares)
    limit = clip_norm * (1.0 - CLIP_MARGIN)
    factor = jnp.where(norms > limit, limit / jnp.where(norms > 0.0, norms, 1.0), 1.0)[:, None]
    finite = jnp.isfinite(squares)
    usable = finite[:, None]  # all values that were squared are then finite; 0 times infinity would not be 0
    layers = []
    for a, signal in zip(inputs, signals, strict=True):
        scaled = jnp.where(usable, factor * signal, 0.0).astype(jnp.float32)
        weights = chunked_product(jnp.where(usable, a, 0.0), scaled)
        layers.append(Layer(_on_grid(weights, unit), _on_grid(scaled.astype(jnp.float64).sum(axis=0), unit)))
    spread = _on_grid(jnp.where(usable, factor * g, 0.0), unit).reshape(-1, model.embedding_dim)
    table = _by_row(rows.reshape(-1), spread, model.num_rows)
    return ClippedSum(table, tuple(layers), losses(logits, batch).sum(), finite.all())


def _by_row(rows: jax.Array, spread: jax.Array, num_rows: int) -> TableSum:
    """Add up the contributions to each row; they are integers, so the order does not matter."""
    if num_rows <= len(rows):
        return TableSum(None, jnp.zeros((num_rows, spread.shape[1]), spread.dtype).at[rows].add(spread))
    places = jnp.arange(len(rows), dtype=jnp.int32)
    # The place of a row that is written last represents all of its places.
    stands_for = jnp.zeros(num_rows, jnp.int32).at[rows].set(places)[rows]
    totals = jnp.zeros_like(spread).at[stands_for].add(spread)
    return TableSum(jnp.where(stands_for == places, rows, num_rows), totals)


def chunked_product(a: jax.Array, v: jax.Array) -> jax.Array:
    """Compute aᵀ·v: chunks of rows in float32, added up in float64."""
    rows = len(a)
    chunk = min(CHUNK, rows)
    missing = -rows % chunk
    if missing:
        a, v = (jnp.pad(part, ((0, missing), (0, 0))) for part in (a, v))
    pieces = [part.reshape(-1, chunk, part.shape[1]) for part in (a, v)]

    def add(total: jax.Array, both: tuple[jax.Array, ...]) -> tuple[jax.Array, None]:
        # By default GPUs and TPUs round the factors of a product to 10 bits or fewer.
        piece = jnp.matmul(both[0].T, both[1], precision=jax.lax.Precision.HIGHEST)
        return total + piece.astype(jnp.float64), None

    begin = jnp.zeros((a.shape[1], v.shape[1]), jnp.float64)
    return jax.lax.scan(add, begin, tuple(pieces))[0]


def _on_grid(values: jax.Array, unit: Any) -> jax.Array:
    return values if unit is None else jnp.rint(values * (1.0 / unit))


def _squared(rows: jax.Array) -> jax.Array:
    return jnp.square(rows.astype(jnp.float64)).sum(axis=1)


_ADAM = optax.scale_by_adam()
_SCORED_AT_ONCE = 8192


class State(NamedTuple):
    """The parameters and Adam's moments: everything that a run carries from step to step."""

    parameters: Parameters
    optimizer: Any


class Scalars(NamedTuple):
    """The numbers of a step. `unit` is the grid's (None without noise), `expected` the public n/T to divide by."""

    learning_rate: np.float32
    clip_norm: np.float64
    unit: np.float64 | None
    expected: np.float64


class Watched(NamedTuple):
    """Values only for the operator, because they are not private: the batch's mean loss and whether all is finite."""

    loss: jax.Array
    finite: jax.Array


def initial_state(parameters: Parameters) -> State:
    """Begin with Adam's moments at 0."""
    return State(parameters, _ADAM.init(parameters))


def private_gradient(
    model: Model, parameters: Parameters, batch: Batch, noise: NDArray[np.int32] | None, scalars: Scalars
) -> tuple[Parameters, Watched]:
    """Clip, sum, add noise to every parameter, and divide by the public n/T. Call it within `jax.enable_x64(True)`.

    `noise` is round(2²⁶·N(0, 1)) for every parameter, in the order of the leaves. If it is None, gradients are only
    clipped, which is not private.
    """
    unit = None if noise is None else scalars.unit
    sums = clipped_sum(model, parameters, batch, scalars.clip_norm, unit)
    # Without the barrier, XLA on a CPU computes matrix products inside the loop that adds noise, which is far slower.
    table, layers = jax.lax.optimization_barrier((sums.table, sums.layers))  # type: ignore[no-untyped-call]
    mean = with_noise(model, table, layers, noise, (1.0 if unit is None else unit) / scalars.expected)
    # The mean loss of an empty batch is NaN, and is not shown.
    return mean, Watched(sums.loss / batch.weights.sum(), sums.finite)


def with_noise(
    model: Model, table: TableSum, layers: tuple[Layer, ...], noise: NDArray[np.int32] | None, scale: Any
) -> Parameters:
    """Add the integer noise to the integer sums, exactly; then multiply by `scale` and round to float32."""

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
        # Rows that were not looked up get only noise; the others are overwritten with sum plus noise.
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
    """Take an Adam step along the private gradient."""
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
    """Take an ordinary step without clipping or noise, for reference. JAX computes its gradient."""

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
    """Compute the logits of any number of examples, a fixed number at a time."""
    size = min(_SCORED_AT_ONCE, max(len(integers), 1))
    unused = np.zeros(size, np.float32)
    found = [np.empty(0, np.float32)]
    for begin in range(0, len(integers), size):
        places = np.arange(begin, begin + size).clip(max=len(integers) - 1)
        batch = Batch(unused, integers[places], categories[places], unused)
        found.append(np.asarray(_logits(model, parameters, batch)))
    return np.concatenate(found)[: len(integers)]
