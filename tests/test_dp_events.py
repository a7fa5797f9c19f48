"""Balls-and-bins inside dp_accounting: events, accountant, privacy loss distributions, calibration."""

from __future__ import annotations

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld

from ballsbins import BallsAndBins, Deterministic, InvalidInputError, Mechanism, Poisson, Shuffle, calibrate
from ballsbins.dp_events import MechanismAccountant, MechanismDpEvent

DELTA = 1e-6


@pytest.mark.parametrize(
    "mechanism", [Mechanism(BallsAndBins(100), 1.0), Mechanism(BallsAndBins(100), 1.0, 4)], ids=repr
)
def test_a_run_alone_agrees_with_mechanism(mechanism):
    ours = mechanism.epsilon(DELTA)
    accountant = MechanismAccountant().compose(MechanismDpEvent(mechanism))
    theirs = accountant.get_epsilon(DELTA)
    assert ours.lower <= theirs <= ours.upper * 1.001
    assert accountant.get_delta(theirs) == pytest.approx(DELTA, rel=1e-2)


def test_the_two_roundings_enclose_the_truth():
    mechanism = Mechanism(BallsAndBins(100), 1.0)
    exact = mechanism.epsilon(DELTA)
    above, below = mechanism.pld(), mechanism.pld(pessimistic=False)
    assert below.get_epsilon_for_delta(DELTA) <= exact.upper
    assert above.get_epsilon_for_delta(DELTA) >= exact.lower
    assert above.get_epsilon_for_delta(DELTA) == pytest.approx(exact.value, rel=1e-4)
    assert below.get_epsilon_for_delta(DELTA) == pytest.approx(exact.value, rel=1e-4)
    for epsilon in (-0.5, 0.0, 0.3, 2.0):
        delta = mechanism.delta(epsilon)
        assert below.get_delta_for_epsilon(epsilon) <= delta.upper * (1 + 1e-9)
        assert above.get_delta_for_epsilon(epsilon) >= delta.lower * (1 - 1e-9)


def test_composes_with_a_gaussian_query():
    mechanism = Mechanism(BallsAndBins(100), 1.0)
    accountant = MechanismAccountant()
    accountant.compose(MechanismDpEvent(mechanism)).compose(dp_accounting.GaussianDpEvent(20.0))
    by_hand = mechanism.pld().compose(pld.from_gaussian_mechanism(20.0)).get_epsilon_for_delta(DELTA)
    assert accountant.get_epsilon(DELTA) == pytest.approx(by_hand, rel=1e-6)
    assert accountant.get_epsilon(DELTA) > mechanism.epsilon(DELTA).upper
    again = MechanismAccountant().compose(
        dp_accounting.ComposedDpEvent(
            [
                dp_accounting.GaussianDpEvent(20.0),
                dp_accounting.SelfComposedDpEvent(MechanismDpEvent(mechanism), 1),
            ]
        )
    )
    assert again.get_epsilon(DELTA) == pytest.approx(by_hand, rel=1e-6)


def test_count_composes():
    one = MechanismDpEvent(Mechanism(BallsAndBins(50), 1.5))
    three = MechanismAccountant().compose(one, 3).get_epsilon(DELTA)
    assert Mechanism(BallsAndBins(50), 1.5, 3).epsilon(DELTA).lower <= three
    assert three == pytest.approx(Mechanism(BallsAndBins(50), 1.5, 3).epsilon(DELTA).value, rel=2e-3)


def test_other_samplers():
    fixed = Mechanism(Deterministic(10), 2.0, 4)
    gauss = MechanismAccountant().compose(dp_accounting.GaussianDpEvent(1.0)).get_epsilon(DELTA)
    assert MechanismAccountant().compose(MechanismDpEvent(fixed)).get_epsilon(DELTA) == pytest.approx(
        gauss, rel=1e-3
    )
    poisson = Mechanism(Poisson(50), 1.0)
    event = dp_accounting.SelfComposedDpEvent(
        dp_accounting.PoissonSampledDpEvent(1 / 50, dp_accounting.GaussianDpEvent(1.0)), 50
    )
    theirs = MechanismAccountant().compose(event).get_epsilon(DELTA)
    assert MechanismAccountant().compose(MechanismDpEvent(poisson)).get_epsilon(DELTA) == pytest.approx(
        theirs, rel=1e-2
    )


def test_calibrates_with_dp_accounting():
    found = dp_accounting.calibrate_dp_mechanism(
        MechanismAccountant,
        lambda sigma: MechanismDpEvent(Mechanism(BallsAndBins(100), sigma)),
        2.0,
        DELTA,
        dp_accounting.ExplicitBracketInterval(0.4, 3.0),
        tol=1e-3,
    )
    assert found == pytest.approx(
        calibrate(BallsAndBins(100), epsilon=2.0, delta=DELTA).noise_multiplier, rel=2e-3
    )


def test_truncation_is_carried_aside():
    cut = Mechanism(BallsAndBins(100, max_batch_size=175, num_examples=10_000), 1.0)
    accountant = MechanismAccountant().compose(MechanismDpEvent(cut))
    epsilon = accountant.get_epsilon(DELTA)
    assert epsilon == pytest.approx(cut.epsilon(DELTA).upper, rel=1e-3)
    assert epsilon > MechanismAccountant().compose(
        MechanismDpEvent(Mechanism(BallsAndBins(100), 1.0))
    ).get_epsilon(DELTA)
    assert accountant.get_delta(epsilon) <= DELTA * (1 + 1e-9)
    too_small = Mechanism(BallsAndBins(100, max_batch_size=110, num_examples=10_000), 1.0)
    assert MechanismAccountant().compose(MechanismDpEvent(too_small)).get_epsilon(DELTA) == math.inf
    with pytest.raises(InvalidInputError, match="MechanismAccountant"):
        cut.pld()
    with pytest.raises(InvalidInputError, match="without truncation"):
        cut.renyi([2.0])


def test_shuffle_is_refused():
    shuffle = Mechanism(Shuffle(10), 1.0)
    with pytest.raises(InvalidInputError, match="upper bound"):
        shuffle.pld()
    assert not MechanismAccountant().supports(MechanismDpEvent(shuffle))


def test_renyi_is_an_upper_bound():
    mechanism = Mechanism(BallsAndBins(100), 1.0, 3)
    assert mechanism.epsilon(1e-5, method="renyi").upper > mechanism.epsilon(1e-5).lower
    orders = mechanism.renyi([2.0, 3.0, 8.0])
    assert (np.diff(orders["remove"]) > 0).all()  # divergences grow with the order
    assert set(orders) == {"remove", "add"}


def test_lower_bound_is_one():
    mechanism = Mechanism(BallsAndBins(1000), 0.35)
    bound = mechanism.epsilon(1e-6, method="lower-bound")
    assert bound.lower <= mechanism.epsilon(1e-6).upper
    assert bound.lower > 0.9 * mechanism.epsilon(1e-6).value
    with pytest.raises(InvalidInputError, match="method is 'magic'"):
        mechanism.epsilon(1e-6, method="magic")


def test_true_positive_rate_of_the_gaussian_mechanism():
    # one step: TPR(α) = Φ(Φ⁻¹(α) + 1/σ)
    from scipy.stats import norm

    mechanism = Mechanism(BallsAndBins(1), 0.8)
    rates = np.array([1e-4, 0.01, 0.2, 0.7])
    bound = mechanism.true_positive_rate(rates)
    truth = norm.cdf(norm.ppf(rates) + 1 / 0.8)
    assert (bound.lower <= truth * (1 + 1e-12)).all()
    assert (bound.upper >= truth * (1 - 1e-12)).all()
    np.testing.assert_allclose(bound.upper, truth, rtol=1e-4)
    np.testing.assert_allclose(bound.lower, truth, rtol=1e-4)


def test_true_positive_rate_of_balls_and_bins():
    mechanism = Mechanism(BallsAndBins(1000), 0.4)
    bound = mechanism.true_positive_rate(1e-3)
    assert 1e-3 < bound.lower <= bound.value <= bound.upper < 1.0
    assert bound.upper - bound.lower < 1e-3 * bound.upper
    assert mechanism.true_positive_rate(1.0).upper == 1.0
    with pytest.raises(InvalidInputError, match=r"false_positive_rate is 1\.5"):
        mechanism.true_positive_rate(1.5)
