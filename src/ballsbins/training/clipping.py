"""The sum of clipped per-example gradients without any per-example gradient, in arithmetic whose error is known.

One backward pass gives, for every example, the signal g at the output of each layer: the gradient of its loss there.
The example's gradient of a dense layer with input a is the outer product of a and g, and g for the bias, so its
squared norm is (‖a‖² + 1)·‖g‖². Of a table it is g in the row that was looked up; each category has rows of its own
and is looked up once, so the squared norms add up to ‖g‖². Those give the norm of the whole gradient and the factor
min(1, C/norm). The signals are scaled by it, and each weight's gradient is then formed once, for the whole batch:

    Σᵢ min(1, C/normᵢ)·∇ᵢ  =  aᵀ·(factor · g)

That is the arithmetic of a plain gradient, with memory for batch × activations, never batch × parameters.

**Floating point** (steps 2 to 5 of docs/floating_point.md). Activations and signals are float32, and whatever
rounding they have is the example's own. Everything after them has an error bound:

* norms are float64 sums of squares of float32 values: squares are exact there, and neither under- nor overflow;
* products aᵀ·v are float32 in chunks of CHUNK rows, added up in float64: an example moves the chunk it is in by at
  most C·(1 + excess_of(CHUNK)), and no other;
* contributions to rows of a table are rounded to the grid one by one and added as integers: exact in any order.

An example whose norm is not a finite number adds nothing, as if it were ⊥: the sum keeps its sensitivity whatever
the data holds. `finite` tells the operator, who then stops; that is for the operator's eyes, as the loss is: a run
that stopped so shows that the example is there, whatever ε is, and is not to be published.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ballsbins.training._jax import jax, jnp
from ballsbins.training.grid import CLIP_MARGIN, UNIT_ROUNDOFF_32, Grid, excess_of
from ballsbins.training.model import Batch, Layer, Model, Parameters, losses

CHUNK = 64  # rows whose products are summed in float32; η grows with its square: 4.9·10⁻⁴ for 64


class TableSum(NamedTuple):
    """The sum for the tables: for every row, or, where a batch looks up fewer, for the rows that were looked up.

    In the second form `totals[j]` is all of what goes to row `rows[j]`. A row that was looked up several times has
    its total at one of its places; at the others `rows` is out of range, and such an index writes nothing. So
    memory is for the batch, not for the tables.
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
    """The sum of clipped gradients; and, not private, the weighted sum of losses and if all norms are numbers.

    Sums are float64. With a unit they are integers: the sum in that unit.
    """

    table: TableSum
    layers: tuple[Layer, ...]
    loss: jax.Array
    finite: jax.Array


def grid_of(model: Model, noise_multiplier: float, clip_norm: float, rows: int) -> Grid:
    """The grid on which the noise covers all that `clipped_sum` rounds, for batches of so many rows."""
    # Float32 chunks, the rounding of v to float32 before them, and float64 sums over all rows for the biases.
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
      batch: its rows are examples; where the weight is 0, padding.
      clip_norm: C, a float64 scalar.
      unit: of the grid, a float64 scalar; without it sums stay unrounded, for runs without noise.
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
    usable = finite[:, None]  # then all that was squared is finite; 0 times the others would not be 0
    layers = []
    for a, signal in zip(inputs, signals, strict=True):
        scaled = jnp.where(usable, factor * signal, 0.0).astype(jnp.float32)
        weights = chunked_product(jnp.where(usable, a, 0.0), scaled)
        layers.append(Layer(_on_grid(weights, unit), _on_grid(scaled.astype(jnp.float64).sum(axis=0), unit)))
    spread = _on_grid(jnp.where(usable, factor * g, 0.0), unit).reshape(-1, model.embedding_dim)
    table = _by_row(rows.reshape(-1), spread, model.num_rows)
    return ClippedSum(table, tuple(layers), losses(logits, batch).sum(), finite.all())


def _by_row(rows: jax.Array, spread: jax.Array, num_rows: int) -> TableSum:
    """Add up what goes to the same row: integers, so in any order."""
    if num_rows <= len(rows):
        return TableSum(None, jnp.zeros((num_rows, spread.shape[1]), spread.dtype).at[rows].add(spread))
    places = jnp.arange(len(rows), dtype=jnp.int32)
    # Whichever place of a row is written last stands for all of its places.
    stands_for = jnp.zeros(num_rows, jnp.int32).at[rows].set(places)[rows]
    totals = jnp.zeros_like(spread).at[stands_for].add(spread)
    return TableSum(jnp.where(stands_for == places, rows, num_rows), totals)


def chunked_product(a: jax.Array, v: jax.Array) -> jax.Array:
    """aᵀ·v: chunks of rows in float32, added up in float64."""
    rows = len(a)
    chunk = min(CHUNK, rows)
    missing = -rows % chunk
    if missing:
        a, v = (jnp.pad(part, ((0, missing), (0, 0))) for part in (a, v))
    pieces = [part.reshape(-1, chunk, part.shape[1]) for part in (a, v)]

    def add(total: jax.Array, both: tuple[jax.Array, ...]) -> tuple[jax.Array, None]:
        # By default GPUs and TPUs round what they multiply to 10 bits or fewer.
        piece = jnp.matmul(both[0].T, both[1], precision=jax.lax.Precision.HIGHEST)
        return total + piece.astype(jnp.float64), None

    begin = jnp.zeros((a.shape[1], v.shape[1]), jnp.float64)
    return jax.lax.scan(add, begin, tuple(pieces))[0]


def _on_grid(values: jax.Array, unit: Any) -> jax.Array:
    return values if unit is None else jnp.rint(values * (1.0 / unit))


def _squared(rows: jax.Array) -> jax.Array:
    return jnp.square(rows.astype(jnp.float64)).sum(axis=1)
