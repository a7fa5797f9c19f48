"""Where no exact answer is to be had there are bounds, and they hold: little noise, much noise, tiny rates."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from ballsbins import BallsAndBins, Mechanism, Shuffle
from ballsbins.accounting.curve import DIRECTIONS
from ballsbins.accounting.gaussian import GaussianCurve
from ballsbins.accounting.poisson import PoissonStepCurve
from ballsbins.comparison import at_equal_noise, crossover
from ballsbins.errors import AccuracyError


@pytest.mark.parametrize("sigma", [0.04, 1e-3, 1e-9, 2e5])
@pytest.mark.parametrize(
    "sampler", [BallsAndBins(1000), BallsAndBins(1000, redraw=False), Shuffle(1000)], ids=repr
)
def test_one_step_of_an_epoch_is_a_step_of_poisson(sampler, sigma):
    """The example is in it with probability 1/1000: the closed form is that of one Poisson step."""
    mechanism = Mechanism(sampler, sigma, 1, 1)
    epsilon = np.array([-2.0, 0.0, 1e-6, 1e-3, 1.0, 100.0, 700.0])
    bound = mechanism.log_delta(epsilon)
    for direction in DIRECTIONS:
        truth = PoissonStepCurve(sigma, 1000).log_delta(epsilon, direction)
        assert (bound.directions[direction].lower <= truth.upper).all()
        assert (bound.directions[direction].upper >= truth.lower).all()
    if isinstance(sampler, BallsAndBins):
        one = mechanism.delta(1.0)
        assert one.lower == pytest.approx(one.upper, rel=1e-5)
        assert one.upper == pytest.approx(1e-3 if sigma < 1.0 else 0.0, rel=1e-6)


def test_an_unfinished_pass_over_fixed_bins_is_bounded_by_the_runs_around_it():
    """One more step than 1 epoch: at least what 1 epoch tells, and at least what that step alone would."""
    steps, sigma, epsilon = 1000, 0.04, np.array([1.0, 100.0, 330.0, 400.0])
    before = Mechanism(BallsAndBins(steps, redraw=False), sigma, 1).log_delta(epsilon)
    run = Mechanism(BallsAndBins(steps, redraw=False), sigma, 2, 1).log_delta(epsilon)
    after = Mechanism(BallsAndBins(steps, redraw=False), sigma, 2).log_delta(epsilon)
    assert (before.lower <= run.lower).all()
    assert (run.upper <= after.upper).all()
    # seen twice with probability 1/1000, where ε = 400 cannot come of one pass
    twice = PoissonStepCurve(sigma / math.sqrt(2), steps).log_delta(epsilon[3:], "remove")
    assert run.directions["remove"].lower[3] == pytest.approx(float(twice.value[0]), rel=1e-6)


def two_bins(sigma, epsilon, direction):
    """T = 2 by quadrature over the difference of the two; given that, S is one log-normal."""
    s = 1 / sigma
    v, weight = np.polynomial.hermite_e.hermegauss(120)
    log_mean = np.log(np.cosh(s * v / math.sqrt(2))) - s * s / 4
    gauss = GaussianCurve(sigma * math.sqrt(2))
    if direction == "remove":
        options = np.exp(log_mean + gauss.log_delta(epsilon - log_mean, "remove").value)
    else:
        options = np.exp(gauss.log_delta(log_mean + epsilon, "add").value)
    return math.log(weight @ options / math.sqrt(2 * math.pi))


@pytest.mark.parametrize("sigma", [150.0, 1e3, 1e4])
def test_much_noise_is_exact(sigma):
    """Against quadrature for T = 2; against the central limit, which is off by some 1/σ², for many steps."""
    for direction in DIRECTIONS:
        for z in (0.0, 0.5, 3.0):
            deviation = 1 / sigma / math.sqrt(2)
            bound = Mechanism(BallsAndBins(2), sigma).log_delta(z * deviation)
            side = bound.directions[direction]
            assert bound.method == "exact"
            slack = 1e-14 / deviation  # ε − log_mean is a difference of numbers of the size of the deviation
            assert side.lower - slack <= two_bins(sigma, z * deviation, direction) <= side.upper + slack
            assert side.upper - side.lower < 1e-8
    for z in (0.5, 3.0, 6.0):
        deviation = 1 / sigma / 1e3
        limit = math.log(deviation * (norm.pdf(z) - z * norm.sf(z)))
        assert Mechanism(BallsAndBins(10**6), sigma).log_delta(z * deviation).value == pytest.approx(
            limit, abs=20 / sigma**2 + 0.02 / sigma
        )


def test_much_noise_and_a_large_epsilon_is_a_question():
    """δ is far below the doubles, and proved to be."""
    bound = Mechanism(BallsAndBins(9), 1e4).log_delta(np.array([1.0, 8.0, 700.0]))
    assert (bound.upper < -800.0).all()
    assert bound.method == "bounds"
    assert (bound.lower <= bound.upper).all()


@pytest.mark.parametrize(("sigma", "steps"), [(1e-9, 10), (1e-3, 2), (1e6, 10), (2e4, 3)])
def test_samplers_are_compared_at_any_noise_without_a_warning(sigma, steps):
    """Warnings of NumPy are errors in the tests."""
    mechanisms = at_equal_noise(Mechanism(BallsAndBins(steps), sigma))
    for mechanism in mechanisms.values():
        assert mechanism.epsilon(1e-6).lower <= mechanism.epsilon(1e-6).upper
    found = crossover(mechanisms["balls-and-bins"], mechanisms["deterministic"])
    assert found.left is None  # never worse


@pytest.mark.parametrize(
    ("mechanism", "interval", "words"),
    [
        (
            Mechanism(BallsAndBins(10), 0.04),
            1e-4,
            "interval=0.0001 is too narrow: losses reach 6.* such as 2",
        ),
        (Mechanism(BallsAndBins(10), 0.06), 1e-4, "is too narrow"),
        (Mechanism(BallsAndBins(1000), 50.0), 0.01, "interval=0.01 is too wide"),
        (Mechanism(BallsAndBins(1000), 50.0), 0.5, "is too wide"),
        (Mechanism(BallsAndBins(10), 0.1), 1e-6, "Use a larger interval"),
    ],
    ids=repr,
)
def test_a_loss_distribution_that_cannot_be_had_names_the_cause_and_a_way_out(mechanism, interval, words):
    with pytest.raises(AccuracyError, match=words):
        mechanism.pld(interval=interval)


def test_the_interval_named_does():
    assert Mechanism(BallsAndBins(10), 0.04).pld(interval=2.0).get_epsilon_for_delta(1e-6) > 428.0


def test_far_beyond_the_doubles_there_are_bounds_at_once():
    """δ of two epochs is e^−14261 or less at ε = 300; the bracket took half a minute to say that it is nearly 0."""
    run = Mechanism(BallsAndBins(50), 0.8, 2)
    bound = run.log_delta(np.array([60.0, 300.0, 600.0]))
    assert (np.diff(bound.upper) < 0).all()
    assert bound.upper[1] < -14_000
    assert bound.lower[0] > -711
    assert bound.directions["remove"].lower[2] < bound.upper[2]
