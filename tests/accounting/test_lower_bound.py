"""The paper's S_C bound against direct evaluation, the closed form at T = 1, and the exact curve."""

import math

import mpmath as mp
import numpy as np
import pytest

from ballsbins.accounting.curve import ADD, DIRECTIONS, REMOVE
from ballsbins.accounting.gaussian import GaussianCurve
from ballsbins.accounting.one_epoch.curve import ExactCurve
from ballsbins.accounting.one_epoch.lower_bound import BallsAndBinsLowerBound, MaximumCurve


def at_threshold(sigma, steps, epsilon, means, C, direction):
    """P(max ≥ C) − e^ε Q(max ≥ C), or Q(max < C) − e^ε P(max < C), in high precision (eq. bnb-lb)."""
    with mp.workdps(80):
        below = [mp.ncdf((C - m) / mp.mpf(sigma)) * mp.ncdf(mp.mpf(C) / sigma) ** (steps - 1) for m in means]
        if direction == REMOVE:
            return (1 - below[0]) - mp.exp(epsilon) * (1 - below[1])
        return below[1] - mp.exp(epsilon) * below[0]


@pytest.mark.parametrize("means", [(1.0, 0.0), (2.0, 1.0)])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(
    ("sigma", "steps", "epsilon"),
    [
        (0.4, 5000, 4.0),
        (1.0, 10, 0.3),
        (0.35, 1000, 10.0),
        (5.0, 100, 0.01),
        (0.3, 10**12, 3.0),
        (2.0, 1, 1.0),
    ],
)
def test_no_threshold_does_better(sigma, steps, epsilon, means, direction):
    curve = MaximumCurve(sigma, steps, *means)
    found = curve.log_delta(np.array([epsilon]), direction)
    best = curve._threshold(np.array([epsilon if direction == REMOVE else -epsilon]))[0]
    value = at_threshold(sigma, steps, epsilon, means, best, direction)
    assert found.lower[0] <= found.upper[0]
    if np.isneginf(found.lower[0]) or value < mp.mpf(10) ** -300:
        assert value < mp.mpf(10) ** -15
        return
    assert mp.mpf(float(found.lower[0])) <= mp.log(value) <= mp.mpf(float(found.upper[0]))
    assert found.upper[0] - found.lower[0] < 1e-8
    for away in (
        -0.3,
        -1e-2,
        -1e-4,
        1e-4,
        1e-2,
        0.3,
    ):  # relative accuracy in C: the paper's grid has steps of 0.01
        assert at_threshold(sigma, steps, epsilon, means, best + away * sigma, direction) < value


def test_one_step_is_the_gaussian():
    """With T = 1 the maximum is all there is, and the bound is the truth."""
    epsilon = np.array([-2.0, -0.1, 0.0, 0.5, 3.0, 12.0])
    for direction in DIRECTIONS:
        found = BallsAndBinsLowerBound(0.8, 1).log_delta(epsilon, direction)
        truth = GaussianCurve(0.8).log_delta(epsilon, direction)
        assert np.allclose(found.lower, truth.value, rtol=0, atol=1e-10)
        assert np.all((found.lower <= truth.upper) & (truth.lower <= found.upper))


@pytest.mark.parametrize(("sigma", "steps"), [(0.35, 1000), (0.6, 50), (2.0, 10), (0.3, 36133)])
def test_below_the_exact_curve_and_close_for_small_delta(sigma, steps):
    epsilon = np.array([-1.0, 0.01, 0.3, 2.0, 8.0])
    exact = ExactCurve(((steps, sigma),), steps)
    for direction in DIRECTIONS:
        found = BallsAndBinsLowerBound(sigma, steps).log_delta(epsilon, direction)
        assert np.all(found.lower <= exact.log_delta(epsilon, direction).upper)
    if sigma == 0.35:  # the paper: "quite close": 1.331226e-6 against 1.331230e-6
        ten = np.array([10.0])
        ratio = (
            BallsAndBinsLowerBound(sigma, steps).log_delta(ten, REMOVE).lower
            - exact.log_delta(ten, REMOVE).value
        )
        assert -1e-5 < ratio[0] < 0


def test_directions_are_one_pair():
    """δ(−ε) = 1 − e^−ε + e^−ε δ_other(ε), as for any pair; and convex in e^ε."""
    curve, epsilon = MaximumCurve(0.7, 20, 2.0, 1.0), np.linspace(-3, 3, 121)
    remove, add = (np.exp(curve.log_delta(epsilon, d).lower) for d in (REMOVE, ADD))
    K = np.exp(epsilon)
    assert np.allclose(remove, 1 - K + K * add[::-1], rtol=1e-9)
    slopes = np.diff(remove) / np.diff(K)
    assert np.all(np.diff(slopes) > -1e-12)


def test_tiny_delta_keeps_its_digits():
    found = BallsAndBinsLowerBound(0.3, 10**12).log_delta(np.array([50.0]), REMOVE)
    assert -250 < found.lower[0] < -230
    assert found.upper[0] - found.lower[0] < 1e-10


@pytest.mark.parametrize("steps", [2, 1000, 10**12])
def test_events_rarer_than_the_doubles(steps):
    """σ = 0.05, ε = 700: Q(max ≥ C) is e^−1050. Far out one bin decides, so δ_B(ε) = δ_G(ε + log T)."""
    epsilon = np.array([300.0, 500.0, 700.0])
    found = BallsAndBinsLowerBound(0.05, steps).log_delta(epsilon, REMOVE)
    truth = GaussianCurve(0.05).log_delta(epsilon + math.log(steps), REMOVE)
    assert (found.lower <= truth.upper).all()
    assert found.lower == pytest.approx(truth.value, abs=1e-9)
