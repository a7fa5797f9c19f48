"""Enclosures of one epoch contain what is known otherwise: reference values, the accountant, closed forms."""

from __future__ import annotations

import contextlib
import json
import math
from fractions import Fraction
from pathlib import Path

import pytest
from flint import arb, ctx, fmpq
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from ballsbins import BallsAndBins, Deterministic, Mechanism
from ballsbins.errors import AccuracyError
from ballsbins.proof.budget import within
from ballsbins.proof.certify import bins_of, exact_fraction
from ballsbins.proof.hyperbola import choose_hyperbola, put_on_hyperbola
from ballsbins.proof.line import choose_line, put_on_line
from ballsbins.proof.one_epoch import Bins, Put, enclose

REFERENCE = json.loads((Path(__file__).parents[1] / "data" / "reference_values.json").read_text())["values"]
WIDTH = 1e-6


def proved(mechanism, epsilon, direction, width=WIDTH):
    return enclose(bins_of(mechanism), exact_fraction(epsilon), direction, width)


def decimal(value):
    sigma = Fraction(value)
    return fmpq(sigma.numerator, sigma.denominator)


@pytest.mark.parametrize(
    "case", REFERENCE, ids=lambda c: f"{c['noise_multiplier']}-{c['steps']}-{c['epsilon']}"
)
def test_reference_values(case):
    """Their σ and ε are decimals, not doubles; sixteen digits are right to a unit of the last."""
    bins = Bins(((case["steps"], decimal(str(case["noise_multiplier"])) ** 2),), case["steps"])
    for direction in ("remove", "add"):
        text = case.get(f"delta_{direction}")
        if text is None:
            continue
        found = enclose(bins, decimal(str(case["epsilon"])), direction, WIDTH)
        with ctx.workprec(256):
            truth = arb(decimal(text)) * (1 + arb(0, 1e-15))
            assert found.ball.overlaps(truth)
            assert found.upper - found.lower <= WIDTH * truth


CORNERS = [
    (0.2, 1, 20.0), (10.0, 1, 1e-3), (0.2, 2, 1e-3), (0.2, 2, 20.0), (10.0, 2, 1e-3), (10.0, 2, 0.9),
    (0.2, 10**9, 20.0),
    (0.2, 10**9, 0.5), (10.0, 10**9, 1e-5), (1.0, 3, 15.0), (0.5, 10**9, 6.0), (3.0, 10**6, 3e-3),
]  # fmt: skip


@pytest.mark.parametrize(("sigma", "steps", "epsilon"), CORNERS)
def test_corners_agree_with_the_accountant(sigma, steps, epsilon):
    agree(Mechanism(BallsAndBins(steps), sigma), epsilon)


@pytest.mark.parametrize(
    "mechanism",
    [
        Mechanism(BallsAndBins(1000), 0.5, 1, 300),
        Mechanism(BallsAndBins(1000), 0.5, 1, 1),
        Mechanism(BallsAndBins(50, redraw=False), 2.0, 4),
        Mechanism(BallsAndBins(50, redraw=False), 2.0, 3, 20),
        Mechanism(BallsAndBins(50, redraw=False), 2.0, 2, 1),
        Mechanism(Deterministic(7), 1.5, 4),
    ],
)
def test_unfinished_epochs_fixed_bins_and_deterministic_batches(mechanism):
    agree(mechanism, 0.7)
    agree(mechanism, 1.9)


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.floats(math.log(0.2), math.log(10)), st.floats(0, math.log(1e9)), st.floats(math.log(1e-3), math.log(20))
)  # fmt: skip
def test_the_domain(log_sigma, log_steps, log_epsilon):
    """Whatever is answered agrees with the accountant; a refusal is an AccuracyError."""
    mechanism = Mechanism(BallsAndBins(int(math.exp(log_steps))), math.exp(log_sigma))
    epsilon = math.exp(log_epsilon)
    assume(float(mechanism.log_delta(epsilon).value) > -115)
    with contextlib.suppress(AccuracyError), within(minutes=0.1):
        agree(mechanism, epsilon)


def agree(mechanism, epsilon):
    bound = mechanism.log_delta(epsilon)
    for direction, part in bound.directions.items():
        found = proved(mechanism, epsilon, direction)
        assert found.upper == 0 or float(found.upper.log().upper()) >= float(part.lower)
        if found.lower > 0:
            assert float(found.lower.log().lower()) <= float(part.upper)
            assert found.upper - found.lower <= WIDTH * found.lower
        else:
            assert float(part.value) < -115


@pytest.mark.parametrize(("sigma", "steps", "epsilon", "sign"), [
    (0.35, 1000, 0.5, 1), (1.0, 100, 1.0, -1), (2.0, 500, 0.05, 1), (1.5, 10**5, 0.01, -1), (10.0, 3, 0.1, 1),
])  # fmt: skip
def test_two_contours_and_two_precisions_overlap(sigma, steps, epsilon, sign):
    """Four enclosures of one put: a line and a hyperbola, each with two tolerances."""
    put = Put(bins_of(Mechanism(BallsAndBins(steps), sigma)), exact_fraction(epsilon), sign)
    peak = put.sketch.log_transform(put.saddle) - math.log(put.saddle)
    balls = []
    for nats in (25.0, 60.0):
        line, path = choose_line(put.sketch, peak - nats), choose_hyperbola(put.sketch, peak - nats)
        balls.append(put_on_line(put.basket, line, put.nats(line, peak - nats))[0])
        balls.append(put_on_hyperbola(put.basket, path, put.nats(path, peak - nats))[0])
    assert all(one.overlaps(other) for one in balls for other in balls)
    assert balls[2].rad() < 1e-10 * balls[0].rad()
    assert balls[3].rad() < 1e-10 * balls[1].rad()


def test_too_small_a_delta_is_refused():
    with pytest.raises(AccuracyError, match="too small for this method"):
        proved(Mechanism(BallsAndBins(3), 8.0), 4.0, "remove")
