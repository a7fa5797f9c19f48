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
from ballsbins.errors import BallsBinsError, InvalidInputError
from ballsbins.samplers import Key, new_key
from ballsbins.training import jax_privacy as adapter
from ballsbins.training.jax_privacy import MechanismBatches, execution_plan, plan_card

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


def test_a_state_that_was_used_gives_no_numbers_and_holds_no_key():
    """The same noise on two gradients would show both: a state that is kept back and used again gives NaN."""
    noise = execution_plan(BINS, num_examples=N, clip_norm=0.5, key=new_key()).noise_addition_transform
    update, first = jax.jit(noise.update), noise.init(jnp.zeros(9))
    assert (first.shape, first.dtype, int(first)) == (
        (),
        np.int32,
        0,
    )  # the number of the step, and nothing else
    one, second = update(jnp.zeros(9), first)
    assert np.isfinite(one).all()
    again, _ = update(jnp.ones(9), first)
    assert np.isnan(again).all()
    assert np.isfinite(update(jnp.zeros(9), second)[0]).all()


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_gradients_of_16_bits_are_refused(dtype):
    noise = execution_plan(BINS, num_examples=N, clip_norm=0.5, key=1).noise_addition_transform
    with pytest.raises(InvalidInputError, match=f"the type of a gradient is '{jnp.dtype(dtype).name}'"):
        noise.update((jnp.zeros(4, jnp.float32), jnp.zeros(4, dtype)), noise.init(None))


def test_a_plan_is_for_one_model():
    noise = execution_plan(BINS, num_examples=N, clip_norm=0.5, key=1).noise_addition_transform
    noise.update(jnp.zeros(4), noise.init(None))
    with pytest.raises(InvalidInputError, match="A plan is for one model"):
        noise.update(jnp.zeros(5), noise.init(None))


def impossible(values, scale):
    """Values that float32 noise alone cannot have: no float32 z gives scale·z."""
    guess = (values.astype(np.float64) / scale).astype(np.float32)
    reached = np.zeros(values.shape, bool)
    for steps in range(-3, 4):
        reached |= np.float32(scale) * (guess.view(np.int32) + steps).view(np.float32) == values
    return ~reached


def test_noisy_gradients_do_not_tell_where_the_sum_was_zero():
    """jax_privacy's own noise does: where the sum is not 0, some values are none that noise alone can have."""
    from jax_privacy import noise_addition

    size, scale = 40_000, 0.8 * 0.5 / (N / 8)
    sums = jnp.where(jnp.arange(size) % 2 == 0, 0.01 * jax.random.normal(jax.random.key(1), (size,)), 0.0)
    theirs = noise_addition.gaussian_privatizer(stddev=scale, prng_key=jax.random.key(2))
    ours = execution_plan(BINS, num_examples=N, clip_norm=0.5, key=4).noise_addition_transform
    found = []
    for noise in (theirs, ours):
        noisy = np.asarray(noise.update(sums, noise.init(sums))[0])
        flagged = impossible(noisy, scale)
        found.append([[int(part.sum()), int((~part).sum())] for part in (flagged[0::2], flagged[1::2])])
    assert found[0][0][0] > 0.01 * size / 2
    assert found[0][1][0] == 0
    assert stats.fisher_exact(found[1]).pvalue > FALSE_ALARM


def test_a_run_can_be_continued_by_its_id():
    key = new_key()
    first = execution_plan(BINS, num_examples=N, clip_norm=0.5, key=key)
    run = first.batch_selection_strategy.run
    other = execution_plan(BINS, num_examples=N, clip_norm=0.5, key=key)
    assert other.batch_selection_strategy.run != run
    resumed = execution_plan(BINS, num_examples=N, clip_norm=0.5, key=key.for_run(run), start=3)
    whole = list(first.batch_selection_strategy.batch_iterator(N))
    for a, b in zip(whole[3:], resumed.batch_selection_strategy.batch_iterator(N), strict=True):
        np.testing.assert_array_equal(a, b)
    assert not all(
        np.array_equal(a, b)
        for a, b in zip(whole, other.batch_selection_strategy.batch_iterator(N), strict=True)
    )


def test_the_card_says_that_sums_are_not_covered():
    key = new_key()
    plan = execution_plan(BINS, num_examples=N, clip_norm=0.5, key=key)
    card = plan_card(plan, 1e-3, 5, num_examples=N, clip_norm=0.5)
    assert card.mechanism == Mechanism(BINS.sampler, 0.8, 1, 5)
    assert card.planned == BINS
    assert card.run == plan.batch_selection_strategy.run
    text = " ".join(card.statement().text().split())
    assert "The noise is exact" in text
    assert "NOT covered: jax_privacy clips and sums in float32" in text


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
    path = Path(__file__).parents[2] / "examples" / "train_jax.py"
    names = runpy.run_path(str(path))
    assert names["accuracy"] > 0.8
    assert names["mechanism"].epsilon(1e-5).upper <= 2.0
    assert "accuracy" in capsys.readouterr().out
    assert names["gradient"]._cache_size() == 1


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_parameters_of_16_bits_are_refused_before_the_first_step(dtype):
    noise = execution_plan(BINS, num_examples=N, clip_norm=0.5, key=1).noise_addition_transform
    with pytest.raises(
        InvalidInputError, match=f"the type of a parameter is '{jnp.dtype(dtype).name}'.*inside the loss"
    ):
        noise.init({"w": jnp.zeros(3, dtype), "b": jnp.zeros(3)})


def test_the_plan_is_found_at_either_place_and_a_version_without_it_is_named():
    """2.2 moved it to the top level; where it is nowhere, "install the extra" would be wrong advice."""
    assert len(adapter.PLACES) == 2
    assert adapter._plan_class() is adapter.DPExecutionPlan
    with pytest.raises(
        BallsBinsError, match=r"jax_privacy [\d.]+ has its DPExecutionPlan in none of .*pip install"
    ):
        adapter._plan_class(("jax_privacy.nowhere",))
    assert adapter._plan_class(("jax_privacy.nowhere", *adapter.PLACES)) is adapter.DPExecutionPlan
