"""The paper's network (appendix C): embeddings, log-transformed integers, dense layers with ReLU, one logit.

All tables are stacked in one matrix: the ids of a category are shifted by the number of rows above its table. So one
lookup and one sum into rows serve all categories, and rows of different categories never mix.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from ballsbins import _check
from ballsbins.data.dataset import Features
from ballsbins.errors import InvalidInputError
from ballsbins.noise import SCALE, rounded_normals
from ballsbins.samplers import Key

EMBEDDING_DIM, HIDDEN = 48, (598, 598, 598)  # the paper's values


class Layer(NamedTuple):
    """A dense layer a ↦ a·weight + bias."""

    weight: jax.Array
    bias: jax.Array


class Parameters(NamedTuple):
    """All tables in one matrix, and the dense layers in order."""

    table: jax.Array
    layers: tuple[Layer, ...]


class Batch(NamedTuple):
    """A fixed number of examples; a row with weight 0 is padding and adds nothing."""

    labels: Any  # float32[B], 0 or 1; a NumPy array outside, a JAX array within a compiled step
    integers: Any  # float32[B, number of integers]
    categories: Any  # int32[B, number of categories]
    weights: Any  # float32[B], 0 or 1


class Activations(NamedTuple):
    """The input of each dense layer, the rows that were looked up, and the logits."""

    inputs: tuple[jax.Array, ...]
    rows: jax.Array
    logits: jax.Array


@dataclass(frozen=True)
class Model:
    """The shape of the network. It is hashable, so one compiled step serves all runs of the same shape."""

    num_integers: int
    buckets: tuple[int, ...]
    embedding_dim: int = EMBEDDING_DIM
    hidden: tuple[int, ...] = HIDDEN

    def __post_init__(self) -> None:
        """Validate, once."""
        widths = (self.embedding_dim, *self.hidden)
        for width in widths:
            _check.integer("a width of the model", width, 1, advice="Layers have at least one unit.")
        if self.num_rows >= 2**31:
            advice = "Rows are counted in 32 bits: use fewer buckets."
            raise InvalidInputError("the number of all buckets", self.num_rows, "below 2³¹", advice)

    @staticmethod
    def for_features(
        features: Features, *, embedding_dim: int = EMBEDDING_DIM, hidden: tuple[int, ...] = HIDDEN
    ) -> Model:
        """The network for a data set's features."""
        buckets = tuple(count for _, count in features.categories)
        return Model(len(features.integers), buckets, embedding_dim, tuple(hidden))

    @property
    def num_rows(self) -> int:
        """The total number of rows of all tables."""
        return sum(self.buckets)

    @property
    def embedded(self) -> int:
        """The number of inputs of the first layer that come from tables; the integers follow them."""
        return len(self.buckets) * self.embedding_dim

    @property
    def widths(self) -> tuple[int, ...]:
        """Width of the input, of every hidden layer, and of the logit."""
        return (self.embedded + self.num_integers, *self.hidden, 1)

    @cached_property
    def offsets(self) -> NDArray[np.int32]:
        """The first row of every category."""
        return np.cumsum((0, *self.buckets[:-1]), dtype=np.int32)[: len(self.buckets)]

    @property
    def num_dense(self) -> int:
        """Count the weights and biases of the dense layers."""
        return sum((a + 1) * b for a, b in self._dense)

    @property
    def num_parameters(self) -> int:
        """Count all weights, biases and table entries."""
        return self.num_rows * self.embedding_dim + self.num_dense

    @property
    def _dense(self) -> list[tuple[int, int]]:
        """Inputs and outputs of every dense layer."""
        return list(zip(self.widths[:-1], self.widths[1:], strict=True))

    def zeros(self) -> Parameters:
        """Parameters that are all 0; under `jax.eval_shape` they give the shapes at no cost."""
        layers = tuple(Layer(_zeros(a, b), _zeros(b)) for a, b in self._dense)
        return Parameters(_zeros(self.num_rows, self.embedding_dim), layers)

    def initial(self, key: Key) -> Parameters:
        """Draw the initial parameters from the key; they do not depend on the data."""
        shapes = [(self.num_rows, self.embedding_dim), *self._dense]
        # Weights have variance 2 / inputs, for layers with ReLU; embeddings have norm about 1; biases are 0.
        scales = [1.0 / math.sqrt(self.embedding_dim), *(math.sqrt(2.0 / a) for a, _ in self._dense)]
        table, *weights = (
            jnp.asarray(_drawn(key, number, shape, scale))
            for number, (shape, scale) in enumerate(zip(shapes, scales, strict=True))
        )
        return Parameters(table, tuple(Layer(weight, _zeros(weight.shape[1])) for weight in weights))

    def forward(self, parameters: Parameters, batch: Batch) -> Activations:
        """Compute the logits, and keep the values that gradients need."""
        rows = batch.categories + self.offsets
        a = batch.integers
        if self.buckets:
            looked_up = parameters.table[rows].reshape(len(rows), self.embedded)
            a = jnp.concatenate([looked_up, a], axis=1)
        inputs = []
        for layer in parameters.layers[:-1]:
            inputs.append(a)
            a = jax.nn.relu(a @ layer.weight + layer.bias)
        inputs.append(a)
        last = parameters.layers[-1]
        return Activations(tuple(inputs), rows, (a @ last.weight + last.bias)[:, 0])


def _zeros(*shape: int) -> jax.Array:
    """Zeros in float32, regardless of JAX's settings."""
    return jnp.zeros(shape, jnp.float32)


def _drawn(key: Key, number: int, shape: tuple[int, int], scale: float) -> NDArray[np.float32]:
    """Normal values with standard deviation `scale`, rounded to float32; they depend only on the key."""
    drawn = rounded_normals(key, ("initial parameters", number), math.prod(shape))
    return np.multiply(drawn, scale / SCALE, dtype=np.float64).astype(np.float32).reshape(shape)


def losses(logits: jax.Array, batch: Batch) -> jax.Array:
    """Binary cross-entropy of every example times its weight."""
    each: jax.Array = batch.weights * jax.nn.softplus((1.0 - 2.0 * batch.labels) * logits)
    return each
