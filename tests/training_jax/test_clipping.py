"""The sum of clipped gradients against a loop over examples that shares no code with it, and its sensitivity."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ballsbins.training.grid import CLIP_MARGIN
from ballsbins.training.jax.model import Batch, Model, Parameters
from ballsbins.training.jax.private_step import clipped_sum, grid_of

compiled = jax.jit(clipped_sum, static_argnums=0)


def summed(model, parameters, batch, clip):
    """The sums as one tree of float64, and what else there is."""
    with jax.enable_x64(True):
        found = compiled(model, parameters, batch, np.float64(clip))
        gradient = Parameters(found.table.dense(model.num_rows), found.layers)
    return Summed(jax.tree.map(np.asarray, gradient), found.loss, found.finite)


class Summed(NamedTuple):
    gradient: Parameters
    loss: jax.Array
    finite: jax.Array


def loss_of_one(parameters, label, integers, categories, offsets):
    """The network written once more, for one example, with logarithms of probabilities."""
    a = jnp.concatenate([parameters.table[categories + offsets].ravel(), integers])
    *hidden, last = parameters.layers
    for weight, bias in hidden:
        a = jnp.maximum(a @ weight + bias, 0.0)
    z = (a @ last.weight + last.bias)[0]
    return -(label * jax.nn.log_sigmoid(z) + (1 - label) * jax.nn.log_sigmoid(-z))


@pytest.fixture(scope="module")
def each(model, parameters, batch):
    """The gradient of every example of the batch, as leaves with a first axis of examples."""
    gradients = jax.jit(jax.vmap(jax.grad(loss_of_one), in_axes=(None, 0, 0, 0, None)))
    return gradients(parameters, batch.labels, batch.integers, batch.categories, model.offsets)


def norms_of(each):
    return np.sqrt(
        sum(
            np.square(np.asarray(leaf, np.float64)).reshape(len(leaf), -1).sum(1)
            for leaf in jax.tree.leaves(each)
        )
    )


@pytest.mark.parametrize("quantile", [0.0, 0.5, 1.0])
def test_equals_a_loop_over_examples(model, parameters, batch, each, quantile):
    norms = norms_of(each)
    clip = float(np.quantile(norms[:32], quantile)) * (0.5 if quantile == 0.0 else 1.01)
    assert (norms[:32] > clip).mean() == pytest.approx(1.0 - quantile, abs=0.05)
    factor = np.minimum(1.0, clip * (1 - CLIP_MARGIN) / norms) * batch.weights
    got = summed(model, parameters, batch, np.float32(clip))
    for ours, leaf in zip(jax.tree.leaves(got.gradient), jax.tree.leaves(each), strict=True):
        reference = np.einsum("n,n...->...", factor, np.asarray(leaf, np.float64))
        np.testing.assert_allclose(ours, reference, rtol=2e-4, atol=1e-5 * clip)


def test_a_category_looked_up_by_all_counts_each_of_them(model, parameters, batch):
    same = batch._replace(categories=np.zeros_like(batch.categories))
    got = summed(model, parameters, same, np.float32(1e6)).gradient.table
    used = np.asarray(np.abs(got).sum(axis=1) > 0)
    np.testing.assert_array_equal(np.flatnonzero(used), [0, 7])  # the first row of each table


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
@pytest.mark.parametrize("clip", [0.1, 3.0])
def test_sensitivity_to_any_one_example_is_within_the_clip_norm(model, parameters, batch, scale, clip):
    extreme = batch._replace(integers=batch.integers * np.float32(scale))
    whole = summed(model, parameters, extreme, np.float32(clip)).gradient
    largest = 0.0
    excess = grid_of(
        model, 1e-3, clip, 40
    ).excess  # what rounding may add: tests/training_jax/test_floating_point.py
    for place in range(0, 32, 3):
        weights = extreme.weights.copy()
        weights[place] = 0.0  # the example becomes ⊥
        without = summed(model, parameters, extreme._replace(weights=weights), np.float32(clip)).gradient
        parts = [
            np.linalg.norm(np.asarray(a, np.float64) - np.asarray(b, np.float64))
            for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(without), strict=True)
        ]
        assert np.linalg.norm(parts) <= clip * (1.0 + excess)
        largest = max(largest, float(np.linalg.norm(parts)))
    if scale == 1e4:  # and nothing is wasted
        assert largest >= 0.999 * clip


def test_without_clipping_one_example_exceeds_the_clip_norm(model, parameters, batch):
    """The negative control of the test above."""
    extreme = batch._replace(integers=batch.integers * np.float32(1e4))
    gradient = summed(model, parameters, extreme, np.float32(1e9)).gradient
    assert max(float(np.linalg.norm(leaf)) for leaf in jax.tree.leaves(gradient)) > 100.0


def test_padding_counts_for_nothing(model, parameters, batch):
    """Whatever padded rows hold, the sum has the same bits."""
    other = Batch(
        np.where(batch.weights > 0, batch.labels, 1 - batch.labels),
        np.where(batch.weights[:, None] > 0, batch.integers, np.float32(1e3)),
        np.where(batch.weights[:, None] > 0, batch.categories, 0),
        batch.weights,
    )
    first, second = (summed(model, parameters, given, np.float32(0.5)) for given in (batch, other))
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_array_equal(a, b)


def test_an_empty_batch_has_sum_zero(model, parameters, batch):
    empty = batch._replace(weights=np.zeros_like(batch.weights))
    got = summed(model, parameters, empty, np.float32(0.5))
    assert all(not np.asarray(leaf).any() for leaf in jax.tree.leaves(got.gradient))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_an_example_without_a_finite_norm_adds_nothing(model, parameters, batch, bad):
    """Whatever it holds, the sum keeps its sensitivity; and the operator is told."""
    broken = batch.integers.copy()
    broken[4, 1] = bad
    weights = batch.weights.copy()
    weights[4] = 0.0
    assert batch.weights[4] == 1.0
    got = summed(model, parameters, batch._replace(integers=broken), np.float32(0.5))
    without = summed(model, parameters, batch._replace(weights=weights), np.float32(0.5))
    assert not bool(got.finite)
    assert bool(without.finite)
    for a, b in zip(jax.tree.leaves(got.gradient), jax.tree.leaves(without.gradient), strict=True):
        np.testing.assert_array_equal(a, b)


def test_memory_grows_with_batch_times_activations_not_parameters():
    """And the negative control, one gradient for each example, does grow so."""
    model = Model(2, (3000, 3000), 8, (16,))
    parameters = jax.eval_shape(model.zeros)

    def one_each(model, parameters, batch, clip):
        one = jax.grad(loss_of_one)
        examples = (batch.labels, batch.integers, batch.categories)
        every = jax.vmap(one, in_axes=(None, 0, 0, 0, None))(parameters, *examples, model.offsets)
        norm = jnp.sqrt(
            sum(jnp.square(leaf).reshape(len(leaf), -1).sum(1) for leaf in jax.tree.leaves(every))
        )
        factor = batch.weights * jnp.minimum(1.0, clip / norm)
        return jax.tree.map(lambda leaf: jnp.einsum("n,n...->...", factor, leaf), every)

    def temporary_bytes(function, size):
        floats, ids = ((size,), (size, 2)), jax.ShapeDtypeStruct((size, 2), jnp.int32)
        labels, integers = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in floats)
        with jax.enable_x64(function is clipped_sum):
            lowered = jax.jit(function, static_argnums=0).lower(
                model, parameters, Batch(labels, integers, ids, labels), 1.0
            )
        return lowered.compile().memory_analysis().temp_size_in_bytes

    ours, theirs = (temporary_bytes(f, 256) - temporary_bytes(f, 128) for f in (clipped_sum, one_each))
    gradients = 128 * 4 * model.num_parameters  # bytes of 128 more gradients
    assert ours < gradients / 100
    assert theirs > gradients / 2
