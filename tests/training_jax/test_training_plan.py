"""What a plan accepts, the largest batch it takes, and the Mechanism it becomes."""

import numpy as np
import pytest

from ballsbins import BallsAndBins, Deterministic, Mechanism, Poisson, Shuffle
from ballsbins.accounting.truncated import log_overflow_probability
from ballsbins.errors import InvalidInputError
from ballsbins.largest_batch import PAPER_MAX_BATCH_SIZES, limited
from ballsbins.training.training_plan import TrainingPlan, digest

SHUFFLE = Shuffle(10)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"noise_multiplier": -1.0}, "noise_multiplier"),
        ({"noise_multiplier": 1.0, "clip_norm": None}, "clip_norm must be given"),
        ({"clip_norm": 0.0}, "clip_norm"),
        ({"learning_rate": float("nan")}, "learning_rate"),
        ({"epochs": 0}, "epochs"),
        ({"sampler": "shuffle"}, "a sampler"),
        ({"sampler": BallsAndBins(10)}, "limited"),
    ],
)
def test_bad_plans_are_refused(changes, message):
    with pytest.raises(InvalidInputError, match=message):
        TrainingPlan(**({"sampler": SHUFFLE, "clip_norm": 1.0} | changes))


def test_a_plan_is_the_mechanism_it_runs():
    mechanism = Mechanism(SHUFFLE, 0.5, 3)
    plan = TrainingPlan.of(mechanism, clip_norm=2.0)
    assert plan.mechanism == mechanism
    assert plan.after(30) == mechanism
    assert plan.after(17) == Mechanism(SHUFFLE, 0.5, 2, 7)
    assert plan.after(20) == Mechanism(SHUFFLE, 0.5, 2)
    assert plan.after(0) is None
    assert TrainingPlan(SHUFFLE, clip_norm=1.0).mechanism is None
    with pytest.raises(InvalidInputError, match="stop_after"):
        TrainingPlan.of(Mechanism(SHUFFLE, 0.5, 2, 7), clip_norm=2.0)


def test_rows_of_a_batch():
    assert TrainingPlan(SHUFFLE).batch_shape(95) == 10
    bins = BallsAndBins(10, max_batch_size=30, num_examples=100)
    assert TrainingPlan(bins).batch_shape(100) == 30
    with pytest.raises(InvalidInputError, match="number of training examples is 9"):
        TrainingPlan(SHUFFLE).batch_shape(9)


def test_auto_is_the_least_size_with_a_negligible_penalty():
    n, steps, epsilon, delta = 100_000, 100, 8.0, 1e-6
    sampler = limited(Poisson(steps), n, epochs=2, epsilon=epsilon, delta=delta)

    def penalty(size):
        return (1 + np.exp(epsilon)) * np.exp(log_overflow_probability(n, steps, size, 2 * steps))

    assert penalty(sampler.max_batch_size) <= 0.01 * delta < penalty(sampler.max_batch_size - 1)
    assert sampler.num_examples == n


def test_without_a_target_the_papers_rule():
    n, steps = 100_000, 100
    size = limited(BallsAndBins(steps), n).max_batch_size

    def penalty(B):
        return (1 + np.exp(10.0)) * np.exp(log_overflow_probability(n, steps, B, steps))

    assert penalty(size) <= 1e-10 < penalty(size - 1)


@pytest.mark.parametrize(("name", "n"), [("paper-pctr", 37_000_000), ("paper-search", 12_796_151)])
def test_the_papers_table_follows_its_rule(name, n):
    """To a percent: the paper took q = b/n in place of 1/T, and left some room."""
    for batch_size, size in PAPER_MAX_BATCH_SIZES[name].items():
        steps = -(-n // batch_size)
        assert limited(BallsAndBins(steps), n, name, batch_size=batch_size).max_batch_size == size
        ours = limited(BallsAndBins(steps), n).max_batch_size
        assert size == pytest.approx(ours, rel=0.01)


def test_sizes_that_do_not_fit():
    with pytest.raises(InvalidInputError, match="one of 1024"):
        limited(BallsAndBins(10), 1000, "paper-pctr", batch_size=100)
    with pytest.raises(InvalidInputError, match="auto"):
        limited(BallsAndBins(10), 1000, "large")
    with pytest.raises(InvalidInputError, match="one size already"):
        limited(Deterministic(10), 1000, 50)
    assert limited(SHUFFLE, 1000) is SHUFFLE
    assert limited(BallsAndBins(10), 1000, 150).max_batch_size == 150


def test_a_digest_tells_runs_apart(plan, data):
    facts = plan.facts(data.features, 240)
    assert digest(facts) == digest(plan.facts(data.features, 240))
    assert digest(facts) != digest(plan.facts(data.features, 241))
