"""Curves below and above the truth: the bounds are theirs, each is searched by itself, and one may fail."""

import math

import numpy as np
import pytest

from ballsbins import Mechanism, Shuffle, calibrate
from ballsbins.accounting.balls_and_bins.lower_bound import MaximumCurve
from ballsbins.accounting.between import Between
from ballsbins.accounting.curve import REMOVE, Interval
from ballsbins.accounting.search import epsilon_at
from ballsbins.errors import AccuracyError


class Line:
    """log δ = −slope·ε, not to be had beyond `end`."""

    method, confidence = "line", 1.0

    def __init__(self, slope, end=math.inf):
        self.slope, self.end, self.failures = slope, end, 0

    def log_delta(self, epsilon, direction):
        if np.max(np.abs(epsilon), initial=0.0) > self.end:
            self.failures += 1
            raise AccuracyError("too far out")
        value = -self.slope * np.asarray(epsilon)
        return Interval(value - 1e-12, value, np.minimum(value + 1e-12, 0.0))


def test_the_bounds_are_those_of_the_curves():
    curve = Between([Line(9.0), Line(4.0)], Line(1.0))
    found = curve.log_delta(np.array([0.5, 2.0]), REMOVE)
    assert found.lower == pytest.approx([-2.0, -8.0])
    assert found.upper == pytest.approx([-0.5, -2.0])
    lower, value, upper = epsilon_at(curve, REMOVE, np.array([-12.0]))[:, 0]
    assert (lower, upper) == pytest.approx((3.0, 12.0))
    assert lower <= 3.0
    assert value == upper >= 12.0


def test_a_curve_below_that_fails_is_done_without_there_and_beyond():
    far = Line(4.0, end=1.0)
    curve = Between([far, Line(50.0)], Line(1.0))
    found = curve.log_delta(np.array([0.2, 0.9, 30.0, 40.0, 50.0]), REMOVE)
    assert found.lower == pytest.approx([-0.8, -3.6, -1500.0, -2000.0, -2500.0])
    assert far.failures == 1
    assert np.array_equal(
        curve.log_delta(np.array([40.0]), REMOVE).upper, Line(1.0).log_delta([40.0], REMOVE).upper
    )
    assert far.failures == 1
    never = Between([Line(1.0, end=-1.0)], Line(1.0))
    assert epsilon_at(never, REMOVE, np.array([-3.0]))[:, 0] == pytest.approx((0.0, 3.0, 3.0))


def test_curves_below_are_not_asked_about_the_root_of_the_one_above():
    """Over 50 epochs the lower bound has its root at ε = 0.7, the upper one at 22, where to ask takes a minute."""
    below = Line(20.0, end=2.0)
    assert epsilon_at(Between([below], Line(0.1)), REMOVE, np.array([-10.0]))[:, 0] == pytest.approx(
        (0.5, 100.0, 100.0)
    )
    assert below.failures == 0


def test_calibration_asks_the_curve_above_only(monkeypatch):
    def fail(self, epsilon, direction):
        raise AssertionError("a curve below was asked")

    with monkeypatch.context() as patch:
        patch.setattr(MaximumCurve, "log_delta", fail)
        mechanism = calibrate(Shuffle(10), epsilon=8.0, delta=1e-6)
    assert mechanism.epsilon(1e-6).upper <= 8.0
    assert Mechanism(Shuffle(10), 0.999 * mechanism.noise_multiplier).epsilon(1e-6).upper > 8.0
