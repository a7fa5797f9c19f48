"""Calibrated values are the least (or most) that meet the target, and are checked."""

from __future__ import annotations

import math

import pytest

from ballsbins import (
    BallsAndBins,
    Deterministic,
    InvalidInputError,
    Mechanism,
    Poisson,
    Shuffle,
    UnreachableTargetError,
    calibrate,
    least_steps,
    most_epochs,
    plan,
)
from ballsbins.mechanism import MOST_EPOCHS

ONE_EPOCH = [
    (BallsAndBins(1000), 8.0, 1e-6),
    (BallsAndBins(100), 0.5, 1e-5),
    (BallsAndBins(2), 1.0, 1e-8),
    (BallsAndBins(10**9), 1.0, 1e-10),
    (BallsAndBins(1), 2.0, 1e-6),
    (BallsAndBins(50, redraw=False), 3.0, 1e-30),
    (BallsAndBins(1000, max_batch_size=1400, num_examples=10**6), 2.0, 1e-6),
    (Deterministic(7), 1.0, 1e-6),
    (Shuffle(7), 1.0, 1e-6),
]


@pytest.mark.parametrize(("sampler", "epsilon", "delta"), ONE_EPOCH, ids=repr)
def test_the_least_noise(sampler, epsilon, delta):
    found = calibrate(sampler, epsilon=epsilon, delta=delta)
    assert found.sampler == sampler
    assert found.epsilon(delta).upper <= epsilon * (1 + 1e-12)
    less = Mechanism(sampler, found.noise_multiplier * (1 - 2e-6))
    assert less.epsilon(delta).upper > epsilon


@pytest.mark.slow
@pytest.mark.parametrize(
    "sampler", [BallsAndBins(100), Poisson(100), BallsAndBins(100, redraw=False)], ids=repr
)
def test_the_least_noise_for_several_epochs(sampler):
    found = calibrate(sampler, epsilon=2.0, delta=1e-6, epochs=5)
    assert found.epochs == 5
    assert found.epsilon(1e-6).upper <= 2.0 * (1 + 1e-9)
    less = Mechanism(sampler, found.noise_multiplier * (1 - 1e-3), 5)
    assert less.epsilon(1e-6).upper > 2.0 * (1 - 1e-4)


def test_the_gaussian_mechanism_in_closed_form():
    # one step, ε = 1, δ = 10⁻⁵: Balle and Wang's analytic Gaussian mechanism
    found = calibrate(BallsAndBins(1), epsilon=1.0, delta=1e-5)
    assert found.noise_multiplier == pytest.approx(3.7306314, rel=1e-6)
    assert calibrate(Deterministic(9), epsilon=1.0, delta=1e-5).noise_multiplier == pytest.approx(
        found.noise_multiplier, rel=1e-6
    )


def test_automatic_truncation():
    found = calibrate(BallsAndBins(1000), epsilon=4.0, delta=1e-6, max_batch_size="auto", num_examples=10**6)
    penalty = found.delta(4.0).penalty
    assert calibrate(
        BallsAndBins(9), epsilon=1.0, delta=1e-9, max_batch_size="auto", num_examples=2**48
    ).sampler.max_batch_size == pytest.approx(2**48 / 9, rel=1e-5)
    assert 0 < penalty <= 0.01 * 1e-6
    size = found.sampler.max_batch_size
    smaller = Mechanism(
        BallsAndBins(1000, max_batch_size=size - 1, num_examples=10**6), found.noise_multiplier
    )
    assert smaller.delta(4.0).penalty > 0.01 * 1e-6


def test_most_epochs():
    found = most_epochs(BallsAndBins(30, redraw=False), 3.0, epsilon=2.0, delta=1e-6)
    assert found.epsilon(1e-6).upper <= 2.0
    assert Mechanism(found.sampler, 3.0, found.epochs + 1).epsilon(1e-6).upper > 2.0


def test_the_most_epochs_that_can_be_asked_for():
    for sampler in (Deterministic(9), Shuffle(9), BallsAndBins(1), BallsAndBins(9)):
        found = most_epochs(sampler, 1e6, epsilon=8.0, delta=1e-9)
        assert found.epochs == MOST_EPOCHS


@pytest.mark.parametrize(
    ("sampler", "epsilon", "delta", "low", "high"),
    [
        (BallsAndBins(2), 1e-3, 1e-9, 2000.0, 6000.0),
        (Poisson(1), 1e-3, 1e-9, 2000.0, 6000.0),
        (BallsAndBins(2), 1e-5, 1e-9, 1e4, 1e6),  # only δ_D is known
        (BallsAndBins(1000), 600.0, 1e-6, 0.02, 0.05),
        (BallsAndBins(50, redraw=False), 699.0, 1e-3, 0.02, 0.05),
        (Poisson(1000), 5.0, 1e-6, 0.3, 0.8),
    ],
    ids=repr,
)
def test_much_and_little_noise_is_found(sampler, epsilon, delta, low, high):
    found = calibrate(sampler, epsilon=epsilon, delta=delta)
    assert low < found.noise_multiplier < high
    assert found.epsilon(delta).upper <= epsilon * (1 + 1e-12)
    assert Mechanism(sampler, found.noise_multiplier * (1 - 1e-5)).epsilon(delta).upper > epsilon


def test_least_steps():
    for sampler in (BallsAndBins(1), BallsAndBins(1, redraw=False)):
        found = least_steps(sampler, 0.8, epsilon=1.0, delta=1e-6)
        steps = found.sampler.steps
        assert found.epsilon(1e-6).upper <= 1.0
        assert Mechanism(BallsAndBins(steps - 1), 0.8).epsilon(1e-6).upper > 1.0
    assert least_steps(BallsAndBins(5), 10.0, epsilon=1.0, delta=1e-6).sampler.steps == 1


def test_plan():
    rows = plan(10_000, epsilon=2.0, delta=1e-5, batch_sizes=[50, 500])
    assert [row.mechanism.sampler.steps for row in rows] == [200, 20]
    assert rows[0].noise_per_example == rows[0].mechanism.noise_multiplier / 50
    assert rows[0].mechanism == calibrate(BallsAndBins(200), epsilon=2.0, delta=1e-5)
    usual = plan(1000, epsilon=2.0, delta=1e-5)
    assert [row.batch_size for row in usual] == [16, 32, 64]


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: calibrate(BallsAndBins(9), epsilon=0.0, delta=1e-6), InvalidInputError, "epsilon is 0.0"),
        (
            lambda: calibrate(BallsAndBins(9), epsilon=math.nan, delta=1e-6),
            InvalidInputError,
            "epsilon is nan",
        ),
        (lambda: calibrate(BallsAndBins(9), epsilon=1.0, delta=0.0), InvalidInputError, "delta is 0.0"),
        (lambda: calibrate(BallsAndBins(9), epsilon=1.0, delta=1.0), InvalidInputError, "delta is 1.0"),
        (
            lambda: calibrate(BallsAndBins(9), epsilon=1e-9, delta=1e-99),
            UnreachableTargetError,
            "no noise multiplier",
        ),
        (
            lambda: calibrate(BallsAndBins(9), epsilon=1.0, delta=1e-6, max_batch_size="auto"),
            InvalidInputError,
            "num_examples",
        ),
        (
            lambda: calibrate(
                BallsAndBins(9), epsilon=1.0, delta=1e-6, max_batch_size="auto", num_examples=2**48 + 1
            ),
            InvalidInputError,
            "num_examples",
        ),
        (
            lambda: calibrate(Shuffle(9), epsilon=1.0, delta=1e-6, max_batch_size="auto", num_examples=99),
            InvalidInputError,
            "one size already",
        ),
        (
            lambda: calibrate(BallsAndBins(9), epsilon=1.0, delta=1e-6, max_batch_size=30, num_examples=99),
            InvalidInputError,
            '"auto"',
        ),
        (
            lambda: most_epochs(BallsAndBins(9), 0.1, epsilon=1.0, delta=1e-6),
            UnreachableTargetError,
            "not even one",
        ),
        (
            lambda: least_steps(BallsAndBins(9), 0.051, epsilon=1e-9, delta=1e-9),
            UnreachableTargetError,
            "even 1,000",
        ),
        (
            lambda: least_steps(Shuffle(9), 1.0, epsilon=1.0, delta=1e-6),
            InvalidInputError,
            "BallsAndBins or Poisson",
        ),
        (lambda: plan(0, epsilon=1.0, delta=1e-6), InvalidInputError, "num_examples is 0"),
        (
            lambda: plan(10, epsilon=1.0, delta=1e-6, batch_sizes=[11]),
            InvalidInputError,
            "batch size is 11",
        ),
    ],
)
def test_bad_input(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_truncation_that_leaves_no_room():
    with pytest.raises(UnreachableTargetError, match=r"max_batch_size=\d+ or more"):
        Mechanism(BallsAndBins(100, max_batch_size=110, num_examples=10_000), 1.0).epsilon(1e-6)
