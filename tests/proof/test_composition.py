"""Several epochs and Poisson steps: the enclosure contains a closed form, and what the accountant says."""

from __future__ import annotations

import dataclasses
import json

import pytest
from flint import fmpq

from ballsbins import (
    AccuracyError,
    BallsAndBins,
    Deterministic,
    InvalidInputError,
    Mechanism,
    Poisson,
    certify,
)
from ballsbins.proof import composition
from ballsbins.proof.certificate import Certificate
from ballsbins.proof.certify import check, exact_fraction
from ballsbins.proof.composition import Composition, Part
from ballsbins.proof.one_epoch import Bins


@pytest.fixture
def few_nodes(monkeypatch):
    """A coarse lattice: wider enclosures, in seconds."""
    monkeypatch.setattr(composition, "_PER_DEVIATION", 4)
    monkeypatch.setattr(composition, "_SPARSE", 5)


def agree(mechanism, epsilon, width):
    made = certify(mechanism, epsilon)
    bound = mechanism.delta(epsilon)
    assert made.method == "composition"
    for direction, part in made.bound.directions.items():
        known = bound.directions[direction]
        assert part.lower <= known.upper
        assert part.upper >= known.lower
    assert made.bound.upper - made.bound.lower < width * made.bound.upper
    return made


@pytest.mark.parametrize("epsilon", [0.5, 1.5, 3.0])
def test_gaussian_epochs_have_a_closed_form(epsilon):
    """Four steps that every example is in, composed as if nobody knew that they are one with half the noise."""
    made = Composition([Part(Bins(((1, fmpq(9)),), 1), 4)], 1e-5)
    closed = certify(Mechanism(Deterministic(1), 3.0, 4), epsilon).bound
    for direction in ("remove", "add"):
        ball = made.delta(exact_fraction(epsilon), direction)
        assert float(ball.lower()) <= closed.upper
        assert float(ball.upper()) >= closed.lower
        assert float(ball.upper()) < 1.2 * float(ball.lower()) + 1e-9


@pytest.mark.parametrize(
    ("mechanism", "epsilon"),
    [
        (Mechanism(Poisson(100), 1.0, 2), 1.15),
        (Mechanism(Poisson(50), 2.0, 1, 20), 0.3),
        (Mechanism(Poisson(10), 5.0, 3), 0.2),
    ],
)
def test_poisson_steps(mechanism, epsilon):
    agree(mechanism, epsilon, 0.15)


def test_several_epochs(few_nodes):
    agree(Mechanism(BallsAndBins(20), 2.0, 5), 1.0, 0.8)


@pytest.mark.slow
def test_an_unfinished_last_epoch(few_nodes):
    agree(Mechanism(BallsAndBins(50), 1.5, 3, 20), 0.5, 0.8)


def test_written_checked_and_changed():
    made = certify(Mechanism(Poisson(30), 3.0), delta=1e-5)
    assert float(made.upper) <= 1e-5
    exact = float(Mechanism(Poisson(30), 3.0).epsilon(1e-5).value)
    assert exact < made.epsilon < 1.01 * exact
    again = Certificate.from_dict(json.loads(json.dumps(made.to_dict())))
    assert check(again) == "by computing it again"
    better = dataclasses.replace(made.directions["remove"], upper="1.0e-7")
    forged = dataclasses.replace(made, directions={**made.directions, "remove": better})
    with pytest.raises(InvalidInputError, match="remove: δ is in"):
        check(forged)


def test_too_long_a_composition_is_refused():
    with pytest.raises(AccuracyError, match="points"):
        certify(Mechanism(Poisson(10**9), 1.0), 0.01)
