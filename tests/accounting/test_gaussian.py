"""The Gaussian closed form against high precision: the stated error holds and is small."""

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ballsbins.accounting.curve import ADD, REMOVE
from ballsbins.accounting.gaussian import GaussianCurve, log_hockey_stick, mills_difference


def log_delta(sigma, epochs, epsilon):
    """Log(Φ(s/2 − ε/s) − e^ε Φ(−s/2 − ε/s)) with as many digits as its cancellation takes."""
    rough = epochs**0.5 / sigma
    with mp.workdps(50 + int(abs(epsilon)) + int((abs(epsilon) / rough + rough) ** 2 / 4)):
        s, e = mp.sqrt(epochs) / mp.mpf(sigma), mp.mpf(epsilon)
        return mp.log(mp.ncdf(s / 2 - e / s) - mp.exp(e) * mp.ncdf(-s / 2 - e / s))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    st.floats(np.log(0.05), np.log(100)),
    st.integers(1, 1000),
    st.floats(np.log(1e-6), np.log(80)),
    st.booleans(),
)
def test_contains_high_precision(log_sigma, epochs, log_epsilon, negative):
    sigma, epsilon = float(np.exp(log_sigma)), float(np.exp(log_epsilon)) * (-1 if negative else 1)
    s = np.sqrt(epochs) / sigma
    if abs(epsilon) / s + s > 60:  # log δ beyond −1800, or within 10⁻¹⁰⁰ of 0
        epsilon = float(np.sign(epsilon)) * max(60 - s, 0.1) * s
    if s > 60:
        return
    found = GaussianCurve(sigma, epochs).log_delta(np.array([epsilon]), REMOVE)
    truth = log_delta(sigma, epochs, epsilon)
    assert mp.mpf(float(found.lower[0])) <= truth <= mp.mpf(float(found.upper[0]))
    assert found.upper[0] - found.lower[0] <= 2e-14 * (10 + 4 * abs(float(truth)) + s * s)


@pytest.mark.parametrize("sigma", [0.05, 0.3, 1.0, 7.0, 100.0])
def test_relative_error_of_ten_to_the_minus_13(sigma):
    """Where |log δ| is at most 100, i.e. δ down to 10⁻⁴³."""
    epsilon = np.linspace(max(0.0, 0.5 / sigma**2 - 5 / sigma), 0.5 / sigma**2 + 13 / sigma, 40)
    value, error = log_hockey_stick(epsilon, 1 / sigma)
    truth = np.array(
        [float(log_delta(sigma, 1, e) - mp.mpf(float(v))) for e, v in zip(epsilon, value, strict=True)]
    )
    near = (value > -100) & (value < -1e-12)
    assert near.sum() > 20
    assert np.max(np.abs(truth[near])) < 1e-13
    assert np.all(np.abs(truth) <= error)


def test_difference_of_mills_ratios_does_not_cancel():
    """R(x) − R(x+s) ≈ s/x² for large x: a plain difference has lost all digits at x = 10⁶, s = 10⁻⁶."""
    x, s = np.array([1e6]), 1e-6
    assert mills_difference(x, s)[0] == pytest.approx(s / (x[0] * (x[0] + s)), rel=1e-11)


def test_epochs_are_one_epoch_with_less_noise():
    epsilon = np.linspace(-5, 20, 50)
    assert np.allclose(
        GaussianCurve(2.0, 16).log_delta(epsilon, REMOVE).value,
        GaussianCurve(0.5).log_delta(epsilon, ADD).value,
        rtol=1e-14,
        atol=0,
    )


def test_limits():
    found = GaussianCurve(0.01, 1000).log_delta(np.array([-700.0, 0.0, 50.0, 1e4]), REMOVE)
    assert np.all(found.upper <= 0)
    assert np.all(found.lower > -1e-9)
    assert GaussianCurve(100.0).log_delta(np.array([50.0]), REMOVE).value[0] < -1e7
