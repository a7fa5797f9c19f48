"""The sum of clipped per-example gradients without any per-example gradient: by book-keeping.

One backward pass gives, for every example, the signal g at the output of each layer: the gradient of its loss there.
The example's gradient of a dense layer with input a is the outer product of a and g, and g for the bias, so its
squared norm is (‖a‖² + 1)·‖g‖². Of a table it is g in the row that was looked up; each category has rows of its own
and is looked up once, so the squared norms add up to ‖g‖². Those give the norm of the whole gradient and the factor
min(1, C/norm). The signals are scaled by it, and each weight's gradient is then formed once, for the whole batch:

    Σᵢ min(1, C/normᵢ)·∇ᵢ  =  aᵀ·(factor · g)

That is the arithmetic of a plain gradient, with memory for batch × activations, never batch × parameters.

An example whose norm is not a finite number adds nothing, as if it were ⊥: the sum keeps its sensitivity whatever
the data holds. `finite` tells the operator, who then stops; that is for the operator's eyes, as the loss is: a run
that stopped so shows that the example is there, whatever ε is, and is not to be published.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ballsbins.training._jax import jax, jnp
from ballsbins.training.model import Batch, Layer, Model, Parameters, losses

# Norms are sums of a thousand or so squares in float32: relative error below 10⁻⁴ at worst. Clip to a little less
# than C, so that the true norm of what an example adds is within C.
MARGIN = 1e-4


class ClippedSum(NamedTuple):
    """The sum of clipped gradients; and, not private, the weighted sum of losses and if all norms are numbers."""

    gradient: Parameters
    loss: jax.Array
    finite: jax.Array


def clipped_sum(model: Model, parameters: Parameters, batch: Batch, clip_norm: Any) -> ClippedSum:
    """Sum [∇ loss(x)]_C over the examples x of the batch; those of weight 0 or without a finite norm add nothing."""
    inputs, rows, logits = model.forward(parameters, batch)
    g = (batch.weights * (jax.nn.sigmoid(logits) - batch.labels))[:, None]
    squares = jnp.zeros_like(logits)
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
    limit = clip_norm * (1.0 - MARGIN)
    factor = jnp.minimum(1.0, limit / jnp.maximum(jnp.sqrt(squares), 1e-30))[:, None]
    finite = jnp.isfinite(squares)
    usable = finite[:, None]  # then all that was squared is finite; 0 times the others would not be 0
    layers = []
    for a, signal in zip(inputs, signals, strict=True):
        scaled = jnp.where(usable, factor * signal, 0.0)
        # By default GPUs and TPUs round what they multiply to 10 bits or fewer, which is more than MARGIN allows for.
        weights = jnp.matmul(jnp.where(usable, a, 0.0).T, scaled, precision=jax.lax.Precision.HIGHEST)
        layers.append(Layer(weights, scaled.sum(axis=0)))
    spread = jnp.where(usable, factor * g, 0.0).reshape(-1, model.embedding_dim)
    table = jnp.zeros_like(parameters.table).at[rows.reshape(-1)].add(spread)
    return ClippedSum(Parameters(table, tuple(layers)), losses(logits, batch).sum(), finite.all())


def _squared(rows: jax.Array) -> jax.Array:
    return jnp.square(rows).sum(axis=1)
