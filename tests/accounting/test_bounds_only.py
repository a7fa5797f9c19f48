"""Curves below and above the truth: the bounds are theirs, each is searched by itself, and one may fail."""

import math

import numpy as np
import pytest

from ballsbins import BallsAndBins, Mechanism, Poisson, Shuffle, calibrate
from ballsbins.accounting.bounds_only import Between, OrBounds
from ballsbins.accounting.curve import REMOVE, Curve, Interval
from ballsbins.accounting.epochs.composition import ComposedCurve
from ballsbins.accounting.epochs.lines import NoLine
from ballsbins.accounting.epochs.saddles import Product
from ballsbins.accounting.one_epoch.curve import ExactCurve
from ballsbins.accounting.one_epoch.lower_bound import MaximumCurve
from ballsbins.accounting.poisson import PoissonCurve
from ballsbins.accounting.search import epsilon_at
from ballsbins.errors import AccuracyError


class Line(Curve):
    """log δ = −slope·ε, not to be had beyond `end`."""

    method, kind, confidence = "line", "bounds", 1.0

    def __init__(self, slope, end=math.inf):
        self.slope, self.end, self.failures = slope, end, 0

    def at(self, epsilon, direction):
        if np.max(epsilon, initial=0.0) > self.end:
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


def test_bounds_stand_in_where_a_curve_has_no_answer():
    curve = OrBounds(Line(2.0, end=10.0), Between([Line(9.0)], Line(1.5)))
    epsilon = np.array([20.0, 1.0, 0.5, 8.0, 15.0])
    found = curve.log_delta(epsilon, REMOVE)
    own = epsilon <= 10.0
    assert found.lower == pytest.approx(np.where(own, -2.0, -9.0) * epsilon)
    assert found.upper == pytest.approx(np.where(own, -2.0, -1.5) * epsilon)
    # the same whether asked together or alone, in whatever order
    for k in range(epsilon.size):
        alone = curve.log_delta(epsilon[k : k + 1], REMOVE)
        assert (alone.lower[0], alone.upper[0]) == (found.lower[k], found.upper[k])
    assert epsilon_at(curve, REMOVE, np.array([-8.0]))[:, 0] == pytest.approx([4.0, 4.0, 4.0])
    assert epsilon_at(curve, REMOVE, np.array([-300.0]))[2, 0] == pytest.approx(200.0)


def test_a_curve_is_never_above_what_costs_nothing():
    found = OrBounds(Line(1.0), Between([Line(9.0)], Line(1.5))).log_delta(np.array([2.0]), REMOVE)
    assert found.upper[0] == found.value[0] == Line(1.5).log_delta(np.array([2.0]), REMOVE).upper[0]
    assert found.lower[0] <= found.upper[0]


def test_many_points_without_an_answer_cost_few_questions():
    line = Line(2.0, end=-1.0)
    OrBounds(line, Between([Line(9.0)], Line(1.0))).log_delta(np.linspace(0.0, 9.0, 500), REMOVE)
    assert line.failures <= 15


def _no_line(*_):
    raise NoLine


@pytest.mark.parametrize(
    "mechanism",
    [
        Mechanism(BallsAndBins(5), 0.7, 3),
        Mechanism(BallsAndBins(5), 0.7, 3, 2),
        Mechanism(Poisson(5), 0.7, 3),
    ],
    ids=repr,
)
def test_every_mechanism_has_an_answer(mechanism, monkeypatch):
    """If nothing can be composed, δ_D with all epochs (or steps) is above the truth and one epoch (or step) below."""
    exact = mechanism.log_delta(np.array([0.5, 2.0]))
    monkeypatch.setattr(ComposedCurve, "log_delta", Line(1.0, end=-1.0).log_delta)
    monkeypatch.setattr(PoissonCurve, "log_delta", Line(1.0, end=-1.0).log_delta)
    monkeypatch.setattr(Product, "sheet", _no_line)
    again = Mechanism(mechanism.sampler, 0.7, mechanism.epochs, mechanism.last_epoch_steps)
    found, epsilon = again.log_delta(np.array([0.5, 2.0])), again.epsilon(1e-5)
    assert (found.method, epsilon.method) == ("bounds", "bounds")
    assert (found.lower <= exact.lower).all()
    assert (found.upper >= exact.upper).all()
    assert 0.0 < epsilon.lower < epsilon.upper < np.inf


def test_an_answer_that_is_only_a_cap_says_so(monkeypatch):
    def capped(self, epsilon, direction):
        upper = -np.abs(epsilon)
        return Interval(np.where(epsilon > 3.0, -np.inf, upper - 1e-9), upper, upper)

    monkeypatch.setattr(ExactCurve, "log_delta", capped)
    mechanism = Mechanism(BallsAndBins(7), 0.9)
    for answer in (mechanism.delta, mechanism.log_delta):
        assert answer(1.0).method == "exact"
        assert answer(5.0).method == answer([4.0, 5.0]).method == "bounds"
        assert answer([1.0, 5.0]).method == "exact; bounds at some points"
        assert (answer([1.0]).kind, answer([1.0, 5.0]).kind, answer(5.0).kind) == (
            "exact",
            "bounds",
            "bounds",
        )
        assert answer(5.0).directions["add"].method == "bounds"
    assert mechanism.epsilon(0.5).method == "exact"
    assert mechanism.epsilon(1e-4).method == "bounds"
