"""A step adds exact noise of the stated scale to every parameter, and divides by the public size alone.

Fixed seeds; FALSE_ALARM is the probability with which a right step would have failed when they were chosen.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from ballsbins.noise import SCALE, rounded_normals
from ballsbins.noise.draw import NoiseAhead
from ballsbins.samplers import Key
from ballsbins.training.jax.model import Model, Parameters
from ballsbins.training.jax.private_step import (
    Scalars,
    clipped_sum,
    grid_of,
    initial_state,
    private_gradient,
    private_step,
)

FALSE_ALARM = 1e-6


def gradient_of(model, parameters, batch, noise, scalars):
    with jax.enable_x64(True):
        return jax.jit(private_gradient, static_argnums=0)(model, parameters, batch, noise, scalars)


def scalars_of(grid, expected):
    unit = None if grid is None else np.float64(grid.unit)
    return Scalars(np.float32(1e-3), np.float64(0.5), unit, np.float64(expected))


def standard_deviation_fits(values, scale):
    """Two-sided: too little noise is no privacy, too much is no model."""
    statistic = np.square(np.asarray(values, np.float64) / scale).sum()
    tail = min(stats.chi2.sf(statistic, values.size), stats.chi2.cdf(statistic, values.size))
    return tail > FALSE_ALARM / 2


def test_every_parameter_has_noise_of_the_stated_scale(batch):
    """An empty batch of a network in which every part has enough parameters to judge its noise."""
    wide = Model(2, (300, 400), 16, (300, 200))
    grid = grid_of(wide, 0.7, 0.5, 40)
    noise = rounded_normals(Key.from_seed(2), ("r", 3), wide.num_parameters)
    empty = batch._replace(weights=np.zeros_like(batch.weights))
    mean, watched = gradient_of(wide, wide.initial(Key.from_seed(1)), empty, noise, scalars_of(grid, 20.0))
    assert bool(watched.finite)
    assert not np.isfinite(watched.loss)  # an empty batch has none
    scale = 0.7 * 0.5 / 20.0
    for leaf in jax.tree.leaves(mean):
        assert leaf.dtype == np.float32
        assert standard_deviation_fits(leaf, scale)
        if leaf.size > 1000:
            assert not standard_deviation_fits(leaf, scale * 1.2)
            assert not standard_deviation_fits(leaf, scale / 1.2)
    every = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(mean)])
    np.testing.assert_array_equal(every, (noise * (grid.unit / 20.0)).astype(np.float32))


def test_the_sum_and_the_noise_are_added_as_integers(model, parameters, batch):
    grid = grid_of(model, 0.7, 0.5, 40)
    noise = rounded_normals(Key.from_seed(2), ("r", 3), model.num_parameters)
    mean, _ = gradient_of(model, parameters, batch, noise, scalars_of(grid, 20.0))
    with jax.enable_x64(True):
        sums = jax.jit(clipped_sum, static_argnums=0)(
            model, parameters, batch, np.float64(0.5), np.float64(grid.unit)
        )
        integers = Parameters(sums.table.dense(model.num_rows), sums.layers)
    flat = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(integers)])
    np.testing.assert_array_equal(flat, np.rint(flat))
    assert np.abs(flat).max() > 1e6
    found = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(mean)])
    np.testing.assert_array_equal(found, ((flat + noise) * (grid.unit / 20.0)).astype(np.float32))


def test_a_sum_is_divided_by_the_expected_size_not_the_realised_one(model, parameters, batch):
    with jax.enable_x64(True):
        sums = jax.jit(clipped_sum, static_argnums=0)(model, parameters, batch, np.float64(0.5))
        whole = Parameters(sums.table.dense(model.num_rows), sums.layers)
    mean, _ = gradient_of(model, parameters, batch, None, scalars_of(None, 20.0))
    for got, total in zip(jax.tree.leaves(mean), jax.tree.leaves(whole), strict=True):
        np.testing.assert_allclose(got, np.asarray(total) / 20.0, rtol=1e-6, atol=1e-12)


def test_the_state_stays_float32(model, parameters, batch):
    """A model made within `enable_x64` would get float64 parameters, and with them another step."""
    grid = grid_of(model, 0.7, 0.5, 40)
    noise = rounded_normals(Key.from_seed(2), ("r", 3), model.num_parameters)
    state, _ = private_step(
        model, initial_state(jax.tree.map(jnp.copy, parameters)), batch, noise, scalars_of(grid, 20.0)
    )
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(state)} == {"float32", "int32"}
    with jax.enable_x64(True):
        made = jax.tree.leaves(model.initial(Key.from_seed(3))) + jax.tree.leaves(model.zeros())
    assert {str(leaf.dtype) for leaf in made} == {"float32"}


@pytest.mark.parametrize("count", [1, 5000])
def test_noise_drawn_ahead_is_that_of_its_step(count):
    """XLA reads a room in place, later than it is filled: filled again too early, it would change what is read."""
    key, steps = Key.from_seed(3), 6
    total = jax.jit(lambda values: jnp.sum(jnp.sort(values) * jnp.arange(values.size, dtype=jnp.int32)))
    expected = [int(total(rounded_normals(key, ("a run", step), count))) for step in range(steps)]
    noise, found = NoiseAhead(rooms=2, wait=jax.block_until_ready), []
    for step in range(steps):
        drawn = noise.of(key, ("a run", step), count)
        assert drawn.ctypes.data % 64 == 0
        found.append(total(drawn))
        noise.read_by(found[-1])
        noise.begin(key, ("a run", step + 1), count)
    assert [int(value) for value in found] == expected
    # what was begun and is not wanted is forgotten, and rooms grow
    np.testing.assert_array_equal(noise.of(key, ("another", 4), 9), rounded_normals(key, ("another", 4), 9))
    more = noise.of(key, ("a run", 2), 3 * count)
    np.testing.assert_array_equal(more, rounded_normals(key, ("a run", 2), 3 * count))
    # one room is enough for whoever has read it when the next is begun
    single = NoiseAhead()
    first = single.of(key, ("a run", 0), count).copy()
    single.begin(key, ("a run", 1), count)
    np.testing.assert_array_equal(first, rounded_normals(key, ("a run", 0), count))
    np.testing.assert_array_equal(
        single.of(key, ("a run", 1), count), rounded_normals(key, ("a run", 1), count)
    )


def test_initial_parameters_follow_from_the_key_and_have_their_scale():
    model = Model(2, (3000,), 16, (300, 200))
    first, again, other = (model.initial(Key.from_seed(seed)) for seed in (1, 1, 2))
    for a, b, c in zip(*map(jax.tree.leaves, (first, again, other)), strict=True):
        np.testing.assert_array_equal(a, b)
        assert not np.asarray(a).any() or not np.array_equal(a, c)
    assert standard_deviation_fits(np.asarray(first.table), 0.25)
    for (inputs, _), layer in zip(model._dense, first.layers, strict=True):
        assert standard_deviation_fits(np.asarray(layer.weight), np.sqrt(2.0 / inputs))
    assert SCALE == 2.0**26
