"""The paper's ABLQ, run as it stands."""

import numpy as np
import pytest

from ballsbins import BallsAndBins, Deterministic, InvalidInputError, Mechanism, Poisson, Shuffle
from ballsbins.audit import answer_queries

SILENT = 1e-6  # a noise multiplier that leaves the sums to be seen, on a grid that does not overflow
SAMPLERS = [BallsAndBins(6), BallsAndBins(6, redraw=False), Poisson(6), Shuffle(6), Deterministic(6)]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
def test_responses_are_sums_over_the_mechanisms_batches(sampler):
    mechanism = Mechanism(sampler, 1.0, epochs=2)
    values = np.random.default_rng(0).uniform(-0.5, 0.5, (20, 3))
    ours = answer_queries(mechanism, lambda _: values, key=5, noise_multiplier=SILENT)
    batches = [batch for epoch in range(2) for batch in mechanism.batches(20, 5, epoch)]
    assert ours.shape == (12, 3)
    assert ours == pytest.approx(np.array([values[batch].sum(axis=0) for batch in batches]), abs=1e-5)


def test_noise_has_the_claimed_scale():
    """4000 normals: their standard deviation is within 6 % but with probability below 1e-6; twice as much is not."""
    mechanism = Mechanism(BallsAndBins(40), 0.7)
    answers = answer_queries(mechanism, lambda _: np.zeros((3, 100)), key=0)
    assert answers.std() == pytest.approx(0.7, rel=0.06)
    assert answers.std() != pytest.approx(1.4, rel=0.06)


def test_responses_are_what_training_releases():
    """Sums on the grid with integer noise, in float32, from the key alone."""
    mechanism = Mechanism(BallsAndBins(3), 0.7)
    first, again, other = (answer_queries(mechanism, lambda _: np.ones((5, 1)), key=key) for key in (1, 1, 2))
    assert first.dtype == np.float32
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_queries_adapt_to_the_responses():
    seen = []

    def query(previous):
        seen.append(len(previous))
        return np.full((4, 1), 0.5 if len(previous) == 0 else -0.5)

    answers = answer_queries(
        Mechanism(Deterministic(4), 1.0),
        query,
        key=0,
        noise_multiplier=SILENT,
    )
    assert seen == [0, 1, 2, 3]
    assert answers[:, 0].tolist() == pytest.approx([0.5, -0.5, -0.5, -0.5], abs=1e-5)


def test_a_query_outside_of_the_unit_ball_is_refused():
    with pytest.raises(InvalidInputError, match=r"step 0 is 1\.414.*at most 1.*Clip"):
        answer_queries(Mechanism(Poisson(3), 1.0), lambda _: np.ones((2, 2)), key=0)
