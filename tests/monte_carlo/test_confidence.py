"""Confidence bounds: to ten digits where there is a closed form, and with the coverage they claim."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

from ballsbins.accounting.monte_carlo import confidence
from ballsbins.accounting.monte_carlo.confidence import (
    log_bernstein_lower,
    log_bernstein_upper,
    log_bet_lower,
    log_bet_upper,
    log_kl_lower,
    log_kl_upper,
    spend,
)
from ballsbins.errors import InvalidInputError


@pytest.mark.parametrize("m", [1, 10, 10**6, 10**12])
@pytest.mark.parametrize("beta", [0.5, 1e-3, 1e-30])
def test_no_hits_have_the_closed_form_to_ten_digits(m, beta):
    with mpmath.workdps(40):
        exact = 1 - mpmath.mpf(beta) ** (mpmath.mpf(1) / m)
        found = mpmath.exp(mpmath.mpf(float(log_kl_upper(np.array(0.0), m, beta))))
        assert abs(found / exact - 1) < 1e-10


def kl(q, p):
    q, p = mpmath.mpf(q), mpmath.mpf(p)
    return q * mpmath.log(q / p) + (1 - q) * mpmath.log((1 - q) / (1 - p))


@pytest.mark.parametrize("q", [1e-12, 1e-6, 0.01, 0.5, 0.99])
@pytest.mark.parametrize("m", [100, 10**7, 10**14])
def test_bounds_solve_the_equation_and_stay_on_the_safe_side(q, m):
    beta = 1e-3
    target = math.log(1 / beta) / m
    low, high = (float(f(np.array(q), m, beta)) for f in (log_kl_lower, log_kl_upper))
    assert low < math.log(q) < high
    with mpmath.workdps(60):
        if high < -1e-9:
            ratio = kl(q, mpmath.exp(mpmath.mpf(high))) / target
            assert abs(ratio - 1) < 1e-6 + 1e-9 / (high - math.log(q))
        if low > -600:
            ratio = kl(q, mpmath.exp(mpmath.mpf(low))) / target
            assert abs(ratio - 1) < 1e-6 + 1e-9 / (math.log(q) - low)


def test_all_hits_and_the_ends():
    assert float(log_kl_upper(np.array(1.0), 10, 1e-3)) == 0.0
    assert float(log_kl_lower(np.array(1.0), 10, 1e-3)) == pytest.approx(math.log(1e-3) / 10)
    assert float(log_kl_lower(np.array(0.0), 10, 1e-3)) == -math.inf


@pytest.mark.parametrize("p", [0.002, 0.05, 0.4])
@pytest.mark.parametrize("kind", ["kl", "bernstein"])
def test_coverage(p, kind):
    """Of 4000 repetitions at β = 5 % no more than 5 % + 5 standard deviations may fail: false alarms 3·10⁻⁷."""
    beta, m, repetitions = 0.05, 400, 4000
    hits = np.random.default_rng(7).binomial(m, p, repetitions) / m
    variance = hits * (1 - hits) * m / (m - 1)
    if kind == "kl":
        low, high = log_kl_lower(hits, m, beta), log_kl_upper(hits, m, beta)
    else:
        low, high = log_bernstein_lower(hits, variance, m, beta), log_bernstein_upper(hits, variance, m, beta)
    allowed = beta + 5 * math.sqrt(beta / repetitions)
    assert np.mean(high < math.log(p)) <= allowed
    assert np.mean(low > math.log(p)) <= allowed
    # and they say something: a bound that is merely 1 would pass the above
    assert np.mean(high) < math.log(min(1.0, 6 * p + 0.05))


@pytest.mark.parametrize(("mean", "spread"), [(0.1, 0.001), (0.1, 0.3), (0.5, 0.5), (0.004, 0.004)])
def test_coverage_of_betting(mean, spread):
    """Numbers in [0, 1]: of 600 repetitions at β = 10 % no more than 10 % + 5 standard deviations fail."""
    beta, m, repetitions = 0.1, 300, 600
    rng = np.random.default_rng(8)
    # two values, the larger one with the probability that makes the mean right
    low, high = max(mean - spread, 0.0), min(mean + 3 * spread, 1.0)
    share = (mean - low) / (high - low)
    hits = rng.binomial(m, share, repetitions)
    values = np.array([low, high])
    above = below = 0
    for h in hits:
        counts = np.array([m - h, h], dtype=float)
        above += log_bet_upper(values, counts, beta) < math.log(mean)
        below += log_bet_lower(values, counts, beta) > math.log(mean)
    allowed = repetitions * beta + 5 * math.sqrt(repetitions * beta)
    assert above <= allowed
    assert below <= allowed


def test_betting_sees_a_small_variance():
    """Equal numbers: KL stays √(1/m) away, betting 1/m; and never on the wrong side of them."""
    counts = np.array([10_000.0])
    upper = math.exp(log_bet_upper(np.array([0.1]), counts, 1e-3))
    lower = math.exp(log_bet_lower(np.array([0.1]), counts, 1e-3))
    assert 0.0999 < lower < 0.1 < upper < 0.102
    assert math.exp(log_kl_upper(np.array(0.1), 1e4, 1e-3)) > 0.11
    # the money itself, computed plainly: just refuted at the bound, not yet a little inside
    stakes = 0.5 ** np.arange(2 + math.ceil(0.5 * math.log2(1e4)))

    def money(m):
        return np.mean(np.exp(1e4 * np.log1p(stakes * (m - 0.1) / (1 - m))))

    assert money(upper) >= 1e3
    assert money(0.1 + 0.999 * (upper - 0.1)) < 1e3


def test_the_ends_of_betting():
    one = np.array([5.0])
    assert log_bet_upper(np.array([1.0]), one, 1e-3) == 0.0
    assert log_bet_lower(np.array([0.0]), one, 1e-3) == -math.inf
    assert log_bet_lower(np.array([1.0]), one, 1e-3) < 0.0
    assert -8.0 < log_bet_upper(np.array([0.0]), np.array([1e6]), 1e-3) + math.log(1e6) < 8.0
    assert log_bet_upper(np.array([0.0]), np.array([1.0]), 1e-3) <= 0.0


def test_looking_often_fails_too_often_without_spending():
    """Bounds for a fixed m, shown again and again, fail more often than β; with shares of β they do not."""
    beta, p, repetitions = 0.5, 0.3, 1500
    x = np.random.default_rng(11).random((repetitions, 4096)) < p
    sums = np.cumsum(x, axis=1)
    naive, spent = np.zeros(repetitions, bool), np.zeros(repetitions, bool)
    for m in np.unique(np.geomspace(1, 4096, 120).astype(int)):
        naive |= log_kl_upper(sums[:, m - 1] / m, m, beta) < math.log(p)
    for look in range(13):
        m = 2**look
        spent |= log_kl_upper(sums[:, m - 1] / m, m, spend(beta, look)) < math.log(p)
    allowed = 5 * math.sqrt(beta * (1 - beta) / repetitions)
    assert naive.mean() > beta + allowed
    assert spent.mean() <= beta
    assert sum(spend(beta, k) for k in range(10**5)) == pytest.approx(beta, rel=1e-4)


@pytest.mark.parametrize("beta", [0.0, 1.0, -1.0, 2.0, math.nan, "0.1", True])
def test_error_probability_must_be_one(beta):
    with pytest.raises(InvalidInputError, match="error_probability"):
        confidence.error_probability(beta)
