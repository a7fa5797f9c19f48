"""The noise is standard normal, of the stated scale on every parameter, and follows from the key alone.

Fixed seeds; FALSE_ALARM is the probability with which a right generator would have failed when they were chosen.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from ballsbins import BallsAndBins, Mechanism
from ballsbins.samplers import Key
from ballsbins.samplers.keystream import Keystream
from ballsbins.training import noise
from ballsbins.training.clipping import clipped_sum
from ballsbins.training.model import Model
from ballsbins.training.noise import RunWords, normals, step_words, words_for
from ballsbins.training.step import Scalars, noise_words, private_gradient, with_noise
from ballsbins.training.tail import REACH, missing_from_delta, tail_not_covered

FALSE_ALARM = 1e-6
GOLDEN = [1872301919, 1345563424]
SIZE = 1 << 20


def standard_deviation_fits(values, scale):
    """Two-sided: too little noise is no privacy, too much is no model."""
    statistic = np.square(np.asarray(values, np.float64) / scale).sum()
    tail = min(stats.chi2.sf(statistic, values.size), stats.chi2.cdf(statistic, values.size))
    return tail > FALSE_ALARM / 2


@pytest.fixture(scope="module")
def values():
    words = step_words(Key.from_seed(11), b"a run", 0, words_for(SIZE))
    return np.asarray(normals(jnp.asarray(words), SIZE), np.float64)


def test_values_are_normal(values):
    assert stats.kstest(values, "norm").pvalue > FALSE_ALARM
    assert stats.kstest(values * 1.01, "norm").pvalue < FALSE_ALARM
    assert stats.kstest(values * 0.99, "norm").pvalue < FALSE_ALARM
    assert standard_deviation_fits(values, 1.0)
    assert not standard_deviation_fits(values, 1.01)
    assert not standard_deviation_fits(values, 0.99)


def test_tails_are_normal(values):
    for limit in (3.0, 4.0):
        chance = 2 * stats.norm.sf(limit)
        beyond = int((np.abs(values) > limit).sum())
        assert stats.binomtest(beyond, SIZE, chance).pvalue > FALSE_ALARM


def test_noise_reaches_far_beyond_what_an_example_moves():
    """What no noise can reach shows an example that is there, so the reach is a matter of privacy: see `tail`."""

    def radius(first, finer):
        return float(np.linalg.norm(normals(jnp.asarray(np.array([first, finer, 0], np.uint32)), 2)))

    assert radius(0, 0) == pytest.approx(REACH, rel=1e-6)
    assert radius(2**32 - 1, 2**32 - 1) == 0.0  # not a number would be as bad
    # the radii just below are as dense as float32, not the few that 32 bits alone would give
    uniform = (
        np.array([0.5, 1.5, 3.5, 1e3 + 0.5, 1e9 + 0.5]) + 2.0**32 * np.array([0, 0, 0, 1, 7])
    ) * 2.0**-64
    found = [radius(*divmod(word, 2**32)) for word in (0, 1, 3, 2**32 + 1000, 7 * 2**32 + 10**9)]
    np.testing.assert_allclose(found, np.sqrt(-2 * np.log(uniform)), rtol=1e-6)


def test_the_best_test_of_an_example_gains_no_more_than_delta_from_the_reach():
    """σ = 0.35 and T = 1000 have ε ≈ 10.17 at δ = 1e-6; noise of 32 bits was beyond reach with probability 4.7e-5."""
    mechanism = Mechanism(BallsAndBins(1000), 0.35)
    assert stats.norm.sf(REACH - 1 / 0.35) < missing_from_delta(mechanism) < 1e-8
    assert stats.norm.sf(np.sqrt(2 * 33 * np.log(2)) - 1 / 0.35) > 40e-6  # what this is about
    assert tail_not_covered(mechanism, 1e-6) == ()
    (said,) = tail_not_covered(Mechanism(BallsAndBins(1000), 0.2), 1e-6)
    assert "adds up to 4.2e-5 to δ" in said
    assert missing_from_delta(Mechanism(BallsAndBins(1000), 0.01)) == 1.0


def test_the_two_values_of_a_pair_are_unrelated(values):
    first, second = values.reshape(2, -1)
    bound = stats.norm.isf(FALSE_ALARM / 2) / np.sqrt(SIZE // 2)
    for f in (lambda x: x, np.square, np.abs):
        assert abs(np.corrcoef(f(first), f(second))[0, 1]) < bound
    assert (
        abs(np.corrcoef(np.square(first), np.square(first + second))[0, 1]) > bound
    )  # what a relation looks like


def test_sine_and_cosine_go_around_the_circle():
    """Angles of all quarters, their ends included: the direction is (2·word/2³² − 1/4) half turns, up to rotation."""
    angle = np.concatenate([np.arange(0, 2**32, 2**20, dtype=np.uint64), [2**32 - 1]]).astype(np.uint32)
    radius, finer = np.full_like(angle, 2**31), np.zeros_like(angle)
    x, y = np.asarray(
        normals(jnp.asarray(np.concatenate([radius, finer, angle])), 2 * len(angle)), np.float64
    ).reshape(2, -1)
    expected = np.sqrt(2 * np.log(2))
    np.testing.assert_allclose(np.hypot(x, y), expected, rtol=1e-6)
    turned = np.unwrap(np.arctan2(y, x))
    np.testing.assert_allclose(turned - turned[0], 2 * np.pi * angle.astype(np.float64) / 2**32, atol=2e-6)


def test_an_odd_number_of_values():
    words = jnp.asarray(step_words(Key.from_seed(1), b"r", 0, words_for(5)))
    assert normals(words, 5).shape == (5,)


@pytest.fixture(scope="module")
def wide():
    """A network in which every part has enough parameters to judge its noise."""
    return Model(40, (300, 400), 16, (300, 200))


def test_every_parameter_has_noise_of_the_stated_scale(wide):
    sigma, clip = 0.7, 0.5
    words = step_words(Key.from_seed(2), b"r", 3, noise_words(wide))
    noise = jax.jit(with_noise)(wide.zeros(), words, np.float32(sigma * clip))
    for leaf in jax.tree.leaves(noise):
        assert standard_deviation_fits(leaf, sigma * clip)
        if leaf.size > 1000:
            assert not standard_deviation_fits(leaf, sigma * clip * 1.2)
            assert not standard_deviation_fits(leaf, sigma * clip / 1.2)
    every = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(noise)])
    assert len(np.unique(every)) > 0.99 * len(every)  # no part repeats another's noise


def test_parts_do_not_share_their_noise():
    zeros = np.zeros(100_000, np.float32)
    words = step_words(Key.from_seed(2), b"r", 3, 2 * words_for(zeros.size))
    first, second = (np.asarray(part) for part in jax.jit(with_noise)((zeros, zeros), words, np.float32(1.0)))
    bound = stats.norm.isf(FALSE_ALARM / 2) / np.sqrt(zeros.size)
    for f in (lambda x: x, np.square):
        assert abs(np.corrcoef(f(first), f(second))[0, 1]) < bound


def test_a_step_on_an_empty_batch_is_noise_divided_by_the_expected_size(model, parameters, batch):
    empty = batch._replace(weights=np.zeros_like(batch.weights))
    words = step_words(Key.from_seed(2), b"r", 3, noise_words(model))
    scalars = Scalars(*map(np.float32, (1e-3, 0.5, 0.35, 20.0)))
    mean, watched = jax.jit(private_gradient, static_argnums=0)(model, parameters, empty, words, scalars)
    noise = jax.jit(with_noise)(model.zeros(), words, np.float32(0.35))
    assert bool(watched.finite)
    assert not np.isfinite(watched.loss)  # an empty batch has none
    for got, drawn in zip(jax.tree.leaves(mean), jax.tree.leaves(noise), strict=True):
        np.testing.assert_allclose(got, np.asarray(drawn) / 20.0, rtol=1e-6)


def test_a_sum_is_divided_by_the_expected_size_not_the_realised_one(model, parameters, batch):
    scalars = Scalars(*map(np.float32, (1e-3, 0.5, 0.0, 20.0)))
    whole = jax.jit(clipped_sum, static_argnums=0)(model, parameters, batch, np.float32(0.5)).gradient
    mean, _ = jax.jit(private_gradient, static_argnums=0)(model, parameters, batch, None, scalars)
    for got, total in zip(jax.tree.leaves(mean), jax.tree.leaves(whole), strict=True):
        np.testing.assert_allclose(got, np.asarray(total) / 20.0, rtol=1e-4, atol=1e-8)


def test_words_follow_from_key_run_and_step():
    key = Key.from_seed(1)
    words = step_words(key, b"run", 5, 8)
    np.testing.assert_array_equal(words, step_words(key, b"run", 5, 8))
    others = [
        step_words(key, b"run", 6, 8),
        step_words(key, b"ran", 5, 8),
        step_words(Key.from_seed(2), b"run", 5, 8),
    ]
    assert all(not np.array_equal(words, other) for other in others)
    # what this key and step give must never change: a run that was begun must be continued with the same noise
    assert words[:2].tolist() == step_words(key, b"run", 5, 2).tolist() == GOLDEN


@pytest.mark.parametrize("count", [1, 16, noise._PIECE - 1, 2 * noise._PIECE + 5])
def test_words_are_those_of_the_keystream_where_xla_takes_them_uncopied(count):
    key = Key.from_seed(4)
    words = step_words(key, b"run", 5, count)
    np.testing.assert_array_equal(words, Keystream(key, "training noise", b"run", 5).words32(0, 0, count))
    assert words.ctypes.data % 64 == 0


def test_rooms_that_take_turns_hold_the_words_of_their_step():
    """XLA reads them in place and later than they are made: a room that is filled too early changes what it reads."""
    count, steps = 3 << 20, 6
    total = jax.jit(lambda words: jnp.bitwise_xor.reduce(jnp.sort(words)) + jnp.sum(words * words[::-1]))
    expected = [int(total(step_words(Key.from_seed(3), b"run", step, count))) for step in range(steps)]
    words, found = RunWords(Key.from_seed(3), b"run", count), []
    for step in range(steps):
        found.append(total(words.of(step)))
        words.read_by(step, found[-1])
    assert [int(value) for value in found] == expected
    assert len(set(expected)) == steps
