"""The paper's network (appendix C): embeddings, log-transformed integers, dense layers with ReLU, one logit.

All tables stand in one matrix, one below the other: a category's ids are moved by the number of rows above its own.
So there is one lookup and one sum into rows for all categories, and rows of different categories never meet.
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

EMBEDDING_DIM, HIDDEN = 48, (598, 598, 598)  # the paper's


class Layer(NamedTuple):
    """A dense layer a ↦ a·weight + bias."""

    weight: jax.Array
    bias: jax.Array


class Parameters(NamedTuple):
    """All tables in one matrix, and the dense layers in order."""

    table: jax.Array
    layers: tuple[Layer, ...]


class Batch(NamedTuple):
    """Examples of a fixed number; where the weight is 0 the row is padding and counts for nothing."""

    labels: Any  # float32[B], 0 or 1; of NumPy outside, of JAX within a compiled step
    integers: Any  # float32[B, number of integers]
    categories: Any  # int32[B, number of categories]
    weights: Any  # float32[B], 0 or 1


class Activations(NamedTuple):
    """What enters each dense layer, the rows that were looked up, and the logits."""

    inputs: tuple[jax.Array, ...]
    rows: jax.Array
    logits: jax.Array


@dataclass(frozen=True)
class Model:
    """The shape of the network. It is hashable: one compiled step serves all runs of one shape."""

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
        """Rows of all tables together."""
        return sum(self.buckets)

    @property
    def embedded(self) -> int:
        """How many inputs of the first layer come from tables; the integers follow them."""
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
        """Parameters that are all 0; under `jax.eval_shape` they cost nothing and tell the shapes."""
        layers = tuple(Layer(_zeros(a, b), _zeros(b)) for a, b in self._dense)
        return Parameters(_zeros(self.num_rows, self.embedding_dim), layers)

    def initial(self, key: Key) -> Parameters:
        """Draw the parameters to begin with from the key: they do not depend on the data."""
        shapes = [(self.num_rows, self.embedding_dim), *self._dense]
        # Weights of variance 2 / inputs, for layers with ReLU; embeddings of norm about 1; biases 0.
        scales = [1.0 / math.sqrt(self.embedding_dim), *(math.sqrt(2.0 / a) for a, _ in self._dense)]
        table, *weights = (
            jnp.asarray(_drawn(key, number, shape, scale))
            for number, (shape, scale) in enumerate(zip(shapes, scales, strict=True))
        )
        return Parameters(table, tuple(Layer(weight, _zeros(weight.shape[1])) for weight in weights))

    def forward(self, parameters: Parameters, batch: Batch) -> Activations:
        """Compute the logits, and keep what the gradients need."""
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
    """Zeros of float32, whatever JAX is set to."""
    return jnp.zeros(shape, jnp.float32)


def _drawn(key: Key, number: int, shape: tuple[int, int], scale: float) -> NDArray[np.float32]:
    """Normal values of some standard deviation, rounded to float32: they depend on the key alone."""
    drawn = rounded_normals(key, ("initial parameters", number), math.prod(shape))
    return np.multiply(drawn, scale / SCALE, dtype=np.float64).astype(np.float32).reshape(shape)


def losses(logits: jax.Array, batch: Batch) -> jax.Array:
    """Binary cross-entropy of every example times its weight."""
    each: jax.Array = batch.weights * jax.nn.softplus((1.0 - 2.0 * batch.labels) * logits)
    return each
