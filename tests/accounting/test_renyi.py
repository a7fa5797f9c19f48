"""Rényi divergences against closed forms and direct sums, and the bound they give against the exact curve."""

import math

import mpmath as mp
import numpy as np
import pytest
from dp_accounting.rdp import rdp_privacy_accountant

from ballsbins import BallsAndBins, Mechanism
from ballsbins.accounting.curve import ADD, DIRECTIONS, REMOVE
from ballsbins.accounting.one_epoch.curve import ExactCurve
from ballsbins.accounting.one_epoch.renyi import (
    ORDERS,
    RenyiCurve,
    log_inverse_moment,
    log_moments,
    renyi_divergence,
)
from ballsbins.errors import InvalidInputError


@pytest.mark.parametrize("sigma", [0.1, 1.0, 20.0])
def test_one_step_is_the_gaussian(sigma):
    """D_α = α/(2σ²) in both directions."""
    orders = [1.5, 2.0, 7.0, 64.0]
    for direction in DIRECTIONS:
        found = renyi_divergence(sigma, 1, orders, direction)
        truth = np.array(orders) / (2 * sigma**2)
        exact = slice(None) if direction == ADD else slice(1, None)
        assert np.all(found >= truth * (1 - 1e-15))
        assert np.allclose(found[exact], truth[exact], rtol=1e-8, atol=2e-9)


@pytest.mark.parametrize("sigma", [0.3, 1.0, 5.0])
@pytest.mark.parametrize("steps", [2, 3, 7])
def test_moments_by_multinomial_sums(sigma, steps):
    """E[S^α] = T^−α Σ over exponents α!/Πj_t! · Π e^{j_t(j_t−1)s²/2}, in high precision."""

    def count(alpha, left):
        if left == 1:
            return mp.exp(mp.mpf(alpha * (alpha - 1)) / (2 * mp.mpf(sigma) ** 2)) / mp.factorial(alpha)
        return sum(
            mp.exp(mp.mpf(j * (j - 1)) / (2 * mp.mpf(sigma) ** 2))
            / mp.factorial(j)
            * count(alpha - j, left - 1)
            for j in range(alpha + 1)
        )

    logs = log_moments(sigma, steps, 6)
    for alpha in range(2, 7):
        truth = mp.log(count(alpha, steps) * mp.factorial(alpha) / mp.mpf(steps) ** alpha)
        assert 0 <= mp.mpf(float(logs[alpha])) - truth < 1e-11 * (1 + abs(truth))


def test_inverse_moment_of_two_steps_by_quadrature():
    sigma, beta = 0.8, 2.5
    g = np.arange(-12, 12, 0.02)
    weight = np.exp(-0.5 * g * g) * 0.02 / math.sqrt(2 * math.pi)
    Z = np.exp(g / sigma - 0.5 / sigma**2)
    truth = math.log(weight @ (0.5 * (Z[:, None] + Z[None, :])) ** -beta @ weight)
    assert 0 <= log_inverse_moment(sigma, 2, beta) - truth < 1e-8


def test_large_numbers_of_steps():
    """T·(E[S^α] − 1) → C(α,2)·(e^{s²} − 1) as T grows, for both signs of α."""
    sigma, steps = 1.0, 10**6
    variance = math.expm1(1 / sigma**2)
    assert log_moments(sigma, steps, 5)[5] * steps == pytest.approx(10 * variance, rel=1e-3)
    assert log_inverse_moment(sigma, 10**4, 3.0) * 10**4 == pytest.approx(6 * variance, rel=1e-2)


@pytest.mark.parametrize(("sigma", "steps"), [(1.0, 100), (0.35, 1000), (2.0, 50), (0.5, 10**6)])
def test_above_the_exact_curve(sigma, steps):
    epsilon = np.array([-0.5, 0.01, 0.1, 1.0, 5.0, 10.0])
    curve, exact = RenyiCurve(sigma, steps), ExactCurve(((steps, sigma),), steps)
    for direction in DIRECTIONS:
        found = curve.log_delta(epsilon, direction)
        assert np.all(found.upper >= exact.log_delta(epsilon, direction).lower)
        assert np.all(found.lower <= exact.log_delta(epsilon, direction).upper)
        assert np.all(np.diff(found.upper[1:]) <= 0)


def test_conversion_is_that_of_dp_accounting():
    """Theirs finds ε from δ over the same orders."""
    sigma, steps, epochs, delta = 1.0, 100, 3, 1e-6
    rdp = epochs * renyi_divergence(sigma, steps, ORDERS, REMOVE)
    epsilon, _ = rdp_privacy_accountant.compute_epsilon(ORDERS, rdp, delta)
    found = RenyiCurve(sigma, steps, epochs).log_delta(np.array([epsilon]), REMOVE)
    assert found.upper[0] == pytest.approx(math.log(delta), abs=1e-9)


def test_epochs_add_up():
    one, three = RenyiCurve(1.0, 50), RenyiCurve(1.0, 50, 3)
    for direction in DIRECTIONS:
        assert np.allclose(3 * one._divergence[direction], three._divergence[direction])


@pytest.mark.parametrize("order", [1.0, 0.5, float("nan"), 5000.0])
def test_bad_orders(order):
    with pytest.raises(InvalidInputError):
        Mechanism(BallsAndBins(10), 1.0).renyi([order])
