"""True-positive rates against the Gaussian closed form, down to false-positive rates of 10⁻³⁰⁰ and up to 1."""

import math
from itertools import product

import numpy as np
import pytest
from scipy.special import log_ndtr, ndtri_exp

from ballsbins import BallsAndBins, Deterministic, Mechanism, Poisson, Shuffle
from ballsbins.accounting.curve import DIRECTIONS, REMOVE, Curve, Interval
from ballsbins.accounting.gaussian import GaussianCurve
from ballsbins.accounting.tradeoff import true_positive_rate

RATES = (1e-300, 1e-200, 1e-100, 1e-30, 1e-12, 1e-4, 0.03, 0.5, 0.97, 1 - 1e-9, 1 - 1e-15)


@pytest.mark.parametrize("sigma", [0.02, 0.05, 0.1, 0.3, 1.0, 20.0, 3000.0])
def test_the_gaussian_closed_form(sigma):
    """TPR(α) = Φ(Φ⁻¹(α) + 1/σ)."""
    for rate in RATES:
        truth = math.exp(log_ndtr(ndtri_exp(math.log(rate)) + 1 / sigma))
        slack = 1e-11 + 1e-13 * abs(math.log(rate))  # of the closed form itself
        for direction in DIRECTIONS:
            lower, value, upper = true_positive_rate(GaussianCurve(sigma), direction, rate)
            assert lower <= truth * (1 + slack), (rate, direction)
            assert upper >= truth * (1 - slack), (rate, direction)
            assert lower <= value <= upper
            assert upper - lower <= 1e-8 * upper, (rate, direction)


def test_the_rate_that_was_too_high():
    bound = Mechanism(Deterministic(2), 0.1).true_positive_rate(1e-30)
    assert bound.lower == pytest.approx(0.0716, rel=1e-3)
    assert bound.upper == pytest.approx(0.0716, rel=1e-3)


class Loose(Curve):
    """A Gaussian curve known within a factor: the minimum of the truth need not be where that of a bound is."""

    method, kind, confidence = "loose", "bounds", 1.0

    def at(self, epsilon, direction):
        return self.log_delta(epsilon, direction)

    def log_delta(self, epsilon, direction):
        truth = GaussianCurve(0.5).log_delta(epsilon, direction).value
        return Interval(truth - 3.0, truth, np.minimum(truth + 3.0 * (epsilon < 2.0), 0.0))


def test_bounds_that_are_far_apart_hold():
    for rate in (1e-20, 1e-6, 1e-3, 0.1, 0.6):
        truth = math.exp(log_ndtr(ndtri_exp(math.log(rate)) + 2.0))
        lower, _, upper = true_positive_rate(Loose(), REMOVE, rate)
        assert lower <= truth <= upper
        # as good as the lower curve itself, which is what δ may be
        least = np.linspace(-700.0, -math.log(rate), 40_001)
        possible = np.min(np.exp(Loose().log_delta(least, REMOVE).lower) + np.exp(least) * rate)
        assert lower >= min(0.9 * possible, 1.0)


@pytest.mark.parametrize(
    ("sampler", "sigma"),
    [
        *product(
            [BallsAndBins(20), BallsAndBins(20, redraw=False), Shuffle(20), Deterministic(20)],
            [1e-9, 0.03, 0.4],
        ),
        (Poisson(20), 1e-9),
        (Poisson(20), 0.03),
        (Poisson(1), 0.4),
    ],
    ids=repr,
)
def test_every_sampler_at_every_rate(sampler, sigma):
    """Between guessing and certainty, 0 at 0 and 1 at 1, and increasing."""
    mechanism = Mechanism(sampler, sigma, 1)
    rates = np.array([0.0, 1e-300, 1e-100, 1e-9, 0.2, 0.9999, 1.0])
    bound = mechanism.true_positive_rate(rates)
    assert (rates <= bound.lower).all()
    assert (bound.lower <= bound.value).all()
    assert (bound.value <= bound.upper).all()
    assert (bound.upper <= 1.0).all()
    assert (bound.lower[0], bound.upper[0], bound.lower[-1], bound.upper[-1]) == (0.0, 0.0, 1.0, 1.0)
    assert (np.diff(bound.upper) >= 0.0).all()
    assert (np.diff(bound.lower) >= 0.0).all()
