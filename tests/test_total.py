"""Several runs on one data set: composed against closed forms, one run of many epochs, and another library."""

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
    Total,
    UnreachableTargetError,
)
from ballsbins.dp_events import MechanismAccountant, MechanismDpEvent


def test_runs_of_one_epoch_are_one_run_of_several():
    one, three = Mechanism(BallsAndBins(100), 0.9), Mechanism(BallsAndBins(100), 0.9, epochs=3)
    total, whole = Total([one, one, one]).epsilon(1e-6), three.epsilon(1e-6)
    assert total.kind == "exact"
    assert total.upper == pytest.approx(whole.upper, rel=1e-9)
    assert total.lower <= whole.upper
    assert whole.lower <= total.upper


def test_gaussians_add_by_their_inverse_squares():
    total = Total([Mechanism(Deterministic(10), 3.0), Mechanism(Deterministic(70), 4.0)]).delta(1.0)
    truth = Mechanism(Deterministic(1), 1 / math.sqrt(1 / 9 + 1 / 16)).delta(1.0)
    assert total.lower <= truth.upper
    assert truth.lower <= total.upper <= truth.upper * 1.01


def test_different_runs_against_dp_accounting():
    runs = [
        Mechanism(BallsAndBins(50), 1.0, epochs=2),
        Mechanism(Poisson(40), 1.2, epochs=1),
        Mechanism(BallsAndBins(30, redraw=False), 2.0, epochs=3),
    ]
    accountant = MechanismAccountant(1e-3)
    for run in runs:
        accountant.compose(MechanismDpEvent(run))
    theirs, ours = accountant.get_epsilon(1e-5), Total(runs).epsilon(1e-5)
    assert ours.kind == "exact"
    assert ours.upper <= theirs
    assert theirs == pytest.approx(ours.upper, rel=2e-2)
    assert ours.lower > max(run.epsilon(1e-5).upper for run in runs)


def test_with_shuffled_batches_there_are_bounds():
    runs = [Mechanism(Shuffle(50), 3.0), Mechanism(BallsAndBins(50), 1.0)]
    bound = Total(runs).epsilon(1e-5)
    above = Total([Mechanism(Deterministic(50), 3.0), runs[1]]).epsilon(1e-5)
    assert bound.kind == "bounds"
    assert bound.lower >= max(run.epsilon(1e-5).lower for run in runs) * (1 - 1e-12)
    assert bound.upper == pytest.approx(above.upper, rel=1e-3)


def test_truncation_of_every_run_is_paid_for():
    plain = Mechanism(BallsAndBins(10), 2.0)
    cut = Mechanism(BallsAndBins(10, max_batch_size=60, num_examples=200), 2.0)
    assert Total([plain, plain]).epsilon(1e-5).upper < Total([plain, cut]).epsilon(1e-5).upper
    assert Total([plain, cut]).epsilon(1e-5).upper < Total([cut, cut]).epsilon(1e-5).upper
    small = Mechanism(BallsAndBins(10, max_batch_size=30, num_examples=200), 2.0)
    with pytest.raises(UnreachableTargetError, match="larger delta"):
        Total([plain, small]).epsilon(1e-9)


def test_one_run_is_itself():
    run = Mechanism(BallsAndBins(1000), 0.5, 2, 17)
    assert Total([run]).epsilon(1e-6).upper == run.epsilon(1e-6).upper


@pytest.mark.parametrize("runs", [[], [1], 3, ["x"]])
def test_only_runs_are_composed(runs):
    with pytest.raises(InvalidInputError, match="list of Mechanisms"):
        Total(runs)
