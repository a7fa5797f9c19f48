"""Several epochs and Poisson steps: the enclosure contains a closed form, and what the accountant says."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
from fractions import Fraction

import pytest
from flint import arb, fmpq
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

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
from ballsbins.proof.certify import bins_of, check, exact_fraction
from ballsbins.proof.composition import Composition, Part
from ballsbins.proof.one_epoch import Bins


def agree(mechanism, epsilon, width, points=composition.POINTS):
    """The enclosure on one lattice meets what the accountant says, and is as narrow as its step lets it be."""
    bound = mechanism.delta(epsilon)
    made = Composition(bins_of(mechanism), float(bound.value), points)
    balls = {name: made.delta(exact_fraction(epsilon), name) for name in bound.directions}
    for name, known in bound.directions.items():
        assert float(balls[name].lower()) <= known.upper
        assert float(balls[name].upper()) >= known.lower
    lower, upper = (max(float(end(ball)) for ball in balls.values()) for end in (arb.lower, arb.upper))
    assert upper - lower < width * upper


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


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.floats(math.log(1.2), math.log(10)), st.floats(math.log(2), math.log(1e6)), st.integers(1, 100),
    st.floats(math.log(1e-12), math.log(1e-3)),
)  # fmt: skip
def test_the_domain_of_poisson_steps(log_sigma, log_steps, epochs, log_delta):
    """Whatever is answered agrees with the accountant to 1 % of ε; a refusal is an AccuracyError."""
    mechanism = Mechanism(Poisson(int(math.exp(log_steps))), math.exp(log_sigma), epochs)
    delta = math.exp(log_delta)
    exact = mechanism.epsilon(delta)
    assume(1e-3 < exact.value < 29)
    with contextlib.suppress(AccuracyError):
        made = certify(mechanism, delta=delta, minutes=0.2)
        assert Fraction(made.upper) <= Fraction(delta)
        assert exact.lower <= made.epsilon <= 1.01 * exact.upper


def test_several_epochs():
    agree(Mechanism(BallsAndBins(5), 2.0, 5), 1.0, 0.4, points=3)


def test_an_unfinished_last_epoch():
    agree(Mechanism(BallsAndBins(5), 2.0, 2, 1), 0.7, 0.4, points=3)


def test_many_steps_on_coarser_and_coarser_lattices():
    """20,000 steps are three lattices."""
    agree(Mechanism(Poisson(2000), 2.0, 10), 0.1, 0.08)


def test_the_lattice_is_made_finer_until_one_percent_is_met(monkeypatch):
    monkeypatch.setattr(composition.Composition.__init__, "__defaults__", (4,))
    mechanism = Mechanism(Poisson(300), 1.0)
    made = certify(mechanism, delta=1e-6)
    assert made.directions["remove"].contour["points"] > 4
    exact = float(mechanism.epsilon(1e-6).value)
    assert exact <= made.epsilon <= 1.01 * exact
    at = certify(mechanism, made.epsilon)
    assert at.directions["remove"].contour["points"] > 4
    assert Fraction(at.lower) <= Fraction(mechanism.delta(made.epsilon).upper)


def test_a_limit_of_time_is_kept():
    with pytest.raises(AccuracyError, match=r"not finished within 0\.01 minutes of CPU time"):
        certify(Mechanism(BallsAndBins(50), 1.5, 3), 0.5, minutes=0.01)
    made = certify(Mechanism(Poisson(30), 3.0), 0.5)
    with pytest.raises(AccuracyError, match="not finished"):
        check(made, minutes=0.0)


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
        certify(Mechanism(Poisson(10**6), 0.3), 0.01)
