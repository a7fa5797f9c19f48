"""The arithmetic of version 0.1, which everybody else still uses: the failing control of the tests beside it.

Float32 normals by Box and Muller, float32 norms and sums, noise added in float32.
"""

import jax
import jax.numpy as jnp
import numpy as np

from ballsbins.training.jax.model import Layer, Parameters


def words_for(size):
    return 3 * (-(-size // 2))


def normals(words, size):
    """Three 32-bit words for each pair; the first half of the values are cosines, the second sines."""
    first, finer, second = words.reshape(3, -1)
    fraction = (finer.astype(jnp.float32) + 0.5) * np.float32(2.0**-32)
    uniform = (first.astype(jnp.float32) + fraction) * np.float32(2.0**-32)
    radius = jnp.sqrt(-2.0 * jnp.log(uniform))
    angle = second.astype(jnp.float32) * np.float32(2.0**-31 * np.pi)
    return jnp.concatenate([radius * jnp.cos(angle), radius * jnp.sin(angle)])[:size]


def clipped_sum(model, parameters, batch, clip):
    inputs, rows, logits = model.forward(parameters, batch)
    g = (batch.weights * (jax.nn.sigmoid(logits) - batch.labels))[:, None]

    def squared(part):
        return jnp.square(part).sum(axis=1)

    squares, signals = jnp.zeros_like(logits), []
    for number in range(len(inputs) - 1, -1, -1):
        a, weight = inputs[number], parameters.layers[number].weight
        squares += (squared(a) + 1.0) * squared(g)
        signals.insert(0, g)
        g = (g @ weight.T) * (a > 0) if number > 0 else g @ weight[: model.embedded].T
    squares += squared(g)
    factor = jnp.minimum(1.0, clip * (1 - 1e-4) / jnp.maximum(jnp.sqrt(squares), 1e-30))[:, None]
    layers = [
        Layer(a.T @ (factor * signal), (factor * signal).sum(axis=0))
        for a, signal in zip(inputs, signals, strict=True)
    ]
    spread = (factor * g).reshape(-1, model.embedding_dim)
    table = jnp.zeros_like(parameters.table).at[rows.reshape(-1)].add(spread)
    return Parameters(table, tuple(layers)), squares


def first_moment(model, parameters, batch, clip, sigma, expected, words):
    """What one step leaves in Adam's first moment, for the tables."""
    sums, _ = clipped_sum(model, parameters, batch, clip)
    noise = normals(words, sums.table.size).reshape(sums.table.shape)
    return np.float32(0.1) * ((sums.table + np.float32(sigma * clip) * noise) / np.float32(expected))
