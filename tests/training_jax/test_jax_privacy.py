"""The parts that jax_privacy expects: batches, clipped gradients, noise, event; and the example."""

import runpy
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from ballsbins import BallsAndBins, Mechanism, Poisson, Shuffle
from ballsbins.dp_events import MechanismAccountant
from ballsbins.errors import InvalidInputError
from ballsbins.samplers import Key, new_key
from ballsbins.training.jax_privacy import MechanismBatches, execution_plan

pytestmark = pytest.mark.filterwarnings("ignore:optax.global_norm is deprecated:DeprecationWarning")

FALSE_ALARM = 1e-6
N = 100
BINS = Mechanism(BallsAndBins(8, max_batch_size=40, num_examples=N), 0.8, 3)


def test_batches_are_those_of_the_mechanism_padded_with_minus_one():
    key = Key.from_seed(1)
    batches = list(MechanismBatches(BINS, key).batch_iterator(N))
    assert len(batches) == 24
    for epoch in range(3):
        own = list(BINS.batches(N, key, epoch))
        for ours, theirs in zip(own, batches[8 * epoch : 8 * epoch + 8], strict=True):
            assert theirs.shape == (40,)
            np.testing.assert_array_equal(theirs[: len(ours)], ours)
            assert (theirs[len(ours) :] == -1).all()


@pytest.mark.parametrize("start", [0, 3, 8, 19, 20])
def test_an_unfinished_epoch_ends_and_a_later_start_agrees(start):
    mechanism = Mechanism(BINS.sampler, 0.8, 3, 4)
    whole = list(MechanismBatches(mechanism, Key.from_seed(1)).batch_iterator(N))
    rest = list(MechanismBatches(mechanism, Key.from_seed(1), start=start).batch_iterator(N))
    assert len(whole) == 20
    assert len(rest) == 20 - start
    for a, b in zip(whole[start:], rest, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("sampler", [Poisson(8), Shuffle(8), BallsAndBins(8, redraw=False)], ids=repr)
def test_batches_of_any_sampler_unpadded(sampler):
    mechanism = Mechanism(sampler, 1.0, 2)
    batches = list(MechanismBatches(mechanism, Key.from_seed(1)).batch_iterator(N))
    own = [batch for epoch in range(2) for batch in mechanism.batches(N, 1, epoch)]
    for a, b in zip(batches, own, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_generator_is_refused():
    with pytest.raises(InvalidInputError, match="leave rng out"):
        MechanismBatches(BINS, Key.from_seed(1)).batch_iterator(N, np.random.default_rng(0))
    with pytest.raises(InvalidInputError, match="start"):
        MechanismBatches(BINS, Key.from_seed(1), start=25)


def test_gradients_are_clipped_and_divided_by_the_expected_size():
    plan = execution_plan(BINS, num_examples=N, clip_norm=0.5, key=1)
    gradient = plan.clipped_grad(lambda w, x: (x @ w).sum())
    rows = jnp.asarray([[3.0, 4.0], [0.03, 0.04], [100.0, 0.0]])
    mean = gradient(jnp.zeros(2), rows, is_padding_example=jnp.asarray([False, False, True]))
    np.testing.assert_allclose(mean * (N / 8), [0.3 + 0.03, 0.4 + 0.04], rtol=1e-6)
    with pytest.raises(TypeError, match="l2_clip_norm"):
        plan.clipped_grad(lambda w, x: (x @ w).sum(), l2_clip_norm=9.0)


def test_padding_that_is_not_told_is_refused():
    """Index −1 is the last example: each of its copies would be clipped by itself, and add up to many times C."""
    rows = jnp.ones((3, 2))
    padded = execution_plan(BINS, num_examples=N, clip_norm=0.5, key=1).clipped_grad(
        lambda w, x: (x @ w).sum()
    )
    with pytest.raises(InvalidInputError, match="is_padding_example=indices == -1"):
        jax.jit(padded)(jnp.zeros(2), rows)
    varying = execution_plan(Mechanism(BallsAndBins(8), 0.8), num_examples=N, clip_norm=0.5, key=1)
    assert varying.clipped_grad(lambda w, x: (x @ w).sum())(jnp.zeros(2), rows).shape == (2,)


def test_gradients_of_another_norm_are_refused():
    """Norm 1 in place of C = 0.5 would have half of the noise that is accounted for."""
    plan = execution_plan(BINS, num_examples=N, clip_norm=0.5, key=1)
    with pytest.raises(InvalidInputError, match="leave out rescale_to_unit_norm"):
        plan.clipped_grad(lambda w, x: (x @ w).sum(), rescale_to_unit_norm=True)


@pytest.mark.parametrize("start", [0, 5])
def test_a_step_more_than_the_mechanism_has_gives_no_numbers(start):
    plan = execution_plan(BINS, num_examples=N, clip_norm=0.5, key=1, start=start)
    update = jax.jit(plan.noise_addition_transform.update)
    state = plan.noise_addition_transform.init(jnp.zeros(4))
    for _ in range(BINS.total_steps - start):
        noisy, state = update(jnp.zeros(4), state)
        assert np.isfinite(noisy).all()
    for _ in range(2):
        noisy, state = update(jnp.zeros(4), state)
        assert np.isnan(noisy).all()


def test_noise_has_the_scale_of_the_mechanism():
    plan = execution_plan(BINS, num_examples=N, clip_norm=0.5, key=1)
    zeros = jnp.zeros(50_000)
    drawn, _ = plan.noise_addition_transform.update(zeros, plan.noise_addition_transform.init(zeros))
    scale = 0.8 * 0.5 / (N / 8)

    def fits(expected):
        statistic = float(np.square(np.asarray(drawn, np.float64) / expected).sum())
        tails = stats.chi2.sf(statistic, drawn.size), stats.chi2.cdf(statistic, drawn.size)
        return min(tails) > FALSE_ALARM / 2

    assert fits(scale)
    assert not fits(scale * 1.05)
    assert not fits(scale / 1.05)


def first_noise(key, start=0, size=4, mechanism=BINS):
    plan = execution_plan(mechanism, num_examples=N, clip_norm=0.5, key=key, start=start)
    noise = plan.noise_addition_transform
    return np.asarray(jax.jit(noise.update)(jnp.zeros(size), noise.init(jnp.zeros(size)))[0])


def test_noise_of_a_seed_follows_from_the_seed_and_the_start():
    np.testing.assert_array_equal(first_noise(1, 0), first_noise(1, 0))
    assert not np.array_equal(first_noise(1, 0), first_noise(2, 0))
    assert not np.array_equal(first_noise(1, 0), first_noise(1, 5))


def test_two_runs_with_one_secret_key_do_not_share_noise():
    """Else the difference of their models, or σ₂ of the one less σ₁ of the other, would have none."""
    key, size = new_key(), 2500
    one, two = first_noise(key, size=size), first_noise(key, size=size)
    other = first_noise(key, size=size, mechanism=replace(BINS, noise_multiplier=1.6))
    # Correlations of independent values have a deviation of 1/√size: seven of them are a false alarm in 10¹¹ keys.
    correlations = np.corrcoef([one, two, other])[np.triu_indices(3, 1)]
    assert np.abs(correlations).max() < 7 / np.sqrt(size)


def test_noise_reaches_further_than_that_of_jax():
    """jax.random.normal gives no value beyond 5.42 in float32; the values of this seed have one at 5.49."""
    scale = 0.8 * 0.5 / (N / 8)
    assert np.abs(first_noise(0, size=2**19)).max() / scale > 5.45


def test_parts_and_steps_have_noise_of_their_own():
    noise = execution_plan(BINS, num_examples=N, clip_norm=0.5, key=3).noise_addition_transform
    zeros = (jnp.zeros(50), jnp.zeros((5, 10)))
    first, state = noise.update(zeros, noise.init(zeros))
    second, _ = noise.update(zeros, state)
    every = np.concatenate([np.ravel(part) for part in (*first, *second)])
    assert len(np.unique(every)) == len(every) == 200


def test_the_event_is_accounted_for():
    once = Mechanism(BallsAndBins(8), 0.8)
    plan = execution_plan(once, num_examples=N, clip_norm=0.5, key=1)
    epsilon = MechanismAccountant().compose(plan.dp_event).get_epsilon(1e-5)
    assert epsilon == pytest.approx(once.epsilon(1e-5).upper, rel=1e-3)


def test_the_key_is_not_shown():
    plan = execution_plan(BINS, num_examples=N, clip_norm=0.5, key=1)
    assert "Key(" not in repr(plan.batch_selection_strategy)


def test_the_example_learns(capsys):
    path = Path(__file__).parents[2] / "examples" / "jax_optax.py"
    names = runpy.run_path(str(path))
    assert names["accuracy"] > 0.8
    assert names["mechanism"].epsilon(1e-5).upper <= 2.0
    assert "accuracy" in capsys.readouterr().out
    assert names["gradient"]._cache_size() == 1
