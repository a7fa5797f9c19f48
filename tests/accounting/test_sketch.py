"""Rough values that tell where to look, and the one bound among them."""

import numpy as np
import pytest

from ballsbins.accounting.curve import ADD, DIRECTIONS, REMOVE
from ballsbins.accounting.one_epoch.basket import Basket
from ballsbins.accounting.one_epoch.curve import ExactCurve
from ballsbins.accounting.one_epoch.quadrature import Strikes
from ballsbins.accounting.one_epoch.sketch import PutSketch, log_call, log_small_put, rough_noise
from ballsbins.accounting.search import epsilon_at

CASES = [
    (2, 0.05),
    (3, 8.0),
    (50, 0.8),
    (1000, 0.35),
    (1000, 5.0),
    (10**6, 0.2),
    (10**9, 1.0),
    (10**12, 30.0),
]


@pytest.mark.parametrize(("steps", "sigma"), CASES)
def test_chernoff_is_above_every_put_and_not_far(steps, sigma):
    """(K−S)₊ ≤ e^{cT(K−S)}/(e·cT); also before the table was extended for smaller strikes."""
    curve, sketch = ExactCurve(((steps, sigma),)), PutSketch(Basket(((steps, sigma),)))
    epsilon = np.minimum(min(curve.deviation, 3.0) * np.array([0.1, 1.0, 4.0, 12.0, 25.0]), 600.0)
    found = curve.log_delta(epsilon, ADD)
    for rows in (slice(0, 1), slice(None)):
        bound = sketch.log_bound(Strikes.from_log(-epsilon[rows])) + epsilon[rows]
        assert (bound >= found.lower[rows]).all()
        close = found.value[rows] > -700.0
        assert (bound - found.value[rows])[close].max() < 8.0
    assert (log_small_put(curve.basket, Strikes.from_log(-epsilon)) + epsilon >= found.lower).all()
    assert (curve.log_upper(epsilon, ADD) >= found.lower).all()
    assert (curve.log_upper(epsilon, ADD, np.zeros(epsilon.shape)) >= found.lower).all()
    assert (curve.log_upper(epsilon, REMOVE) >= curve.log_delta(epsilon, REMOVE).lower).all()


@pytest.mark.parametrize(("steps", "sigma"), [(10**12, 0.1), (10**12, 0.3), (10**9, 0.2), (5, 2.0), (3, 5.0)])
def test_no_bound_is_below_the_best_of_all_chernoff_bounds(steps, sigma):
    """At strikes for which a c of the table is the best one, so that nothing but its own digits is to spare."""
    basket = Basket(((steps, sigma),))
    log_c = np.log(0.5 / steps) + 0.5 * np.arange(2.0, 24.0)
    with np.errstate(all="ignore"):
        c = np.exp(log_c)
        _, _, mean, gap, _ = basket.on_axis(c)
        strikes = Strikes((mean + 1.0) / (steps * c), (1.0 - gap) / (steps * c))
        exact, exact_plain = basket.exponent(c + 0j, 1.6)
        scaled = float(steps) * c
        drift = np.where(exact_plain == steps, strikes.k * scaled, strikes.k_minus_1 * scaled)
        best = drift + exact.real - 1.0 - np.log(scaled)
        bound = PutSketch(basket).log_bound(strikes)
    assert np.isfinite(bound).all()
    assert (bound >= best - 1e-12 * (1 + np.abs(drift) + np.abs(exact.real))).all()


@pytest.mark.parametrize(("steps", "sigma"), CASES[1:])
def test_rough_roots_are_close(steps, sigma):
    curve = ExactCurve(((steps, sigma),))
    top = curve.log_delta(np.array([0.0]), REMOVE).value[0]
    for direction in DIRECTIONS:
        for target in (top - 4.0, top - 15.0):
            root = epsilon_at(curve, direction, np.array([target]))[1, 0]
            assert curve.rough_epsilon(np.array([target]), direction)[0] == pytest.approx(root, rel=0.15)
    assert curve.rough_epsilon(np.array([-1e-30]), REMOVE)[0] < 1e-6


def test_rough_noise_is_where_the_target_is_met():
    for steps, epsilon, target in ((1000, 8.0, -13.8), (10**6, 0.5, -20.0), (20, 2.0, -11.5)):
        sigma = rough_noise(steps, epsilon, target, 0.05, 100.0)
        found = ExactCurve(((steps, sigma),)).log_delta(np.array([epsilon]), REMOVE).value[0]
        assert found == pytest.approx(target, abs=0.5)


def test_one_kind_or_two_that_are_alike():
    excess = np.geomspace(1e-3, 1e4, 20)
    assert log_call([(30, 0.9), (70, 0.9)], excess) == pytest.approx(log_call([(100, 0.9)], excess), abs=1e-9)


def test_capped_points_say_so():
    """Far beyond where δ vanishes there is an upper bound and nothing else: quickly, also with next to no noise."""
    for steps, sigma, epsilon, direction in ((10**6, 0.05, 700.0, ADD), (10**6, 0.3, 600.0, ADD)):
        curve = ExactCurve(((steps, sigma),))
        point = np.array([epsilon, 0.3])
        found = curve.log_delta(point, direction)
        assert curve.capped(point, direction).tolist() == [True, False]
        assert np.isneginf(found.lower).tolist() == [True, False]
        assert found.value[0] == found.upper[0] < -700.0
        assert np.isfinite(found.upper[0])
        assert curve.capped(-point, REMOVE).tolist() == [True, False]
        below_zero = curve.log_delta(-point, REMOVE).lower[0]  # 1 − e^ε, which always holds, rounded down
        assert np.log(-np.expm1(-epsilon)) - 1e-15 <= below_zero <= np.log(-np.expm1(-epsilon))


def test_a_closed_form_proves_that_add_cannot_decide():
    """Without Chernoff's table, which is still empty afterwards; and two kinds of bins are bounded together."""
    curve = ExactCurve(((1000, 0.35),))
    epsilon = np.array([10.0])
    bound = curve.log_upper(epsilon, ADD, np.array([-400.0]))
    assert -700.0 < bound[0] <= -400.0
    assert "sketch" not in vars(curve._options)
    assert curve.log_upper(epsilon, ADD)[0] <= bound[0]
    two = Basket(((400, 0.35), (600, 0.35)))
    strikes = Strikes.from_log(-epsilon)
    assert log_small_put(two, strikes) == pytest.approx(log_small_put(curve.basket, strikes), rel=1e-12)
