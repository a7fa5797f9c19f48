"""The penalty of truncated batches: the binomial tail, the paper's tables, the running minimum."""

import math

import mpmath as mp
import numpy as np
import pytest

from ballsbins.accounting.balls_and_bins.truncation import (
    Truncated,
    least_max_batch_size,
    log_binomial_tail,
    log_overflow_probability,
)
from ballsbins.accounting.curve import DIRECTIONS, REMOVE
from ballsbins.accounting.deterministic import GaussianCurve

BATCHES = [1024 << k for k in range(9)]
# Appendix C of the paper
PCTR = 37_000_000, [1328, 2469, 4681, 9007, 17_520, 34_355, 67_754, 134_172, 266_475]
SEARCH = 12_796_151, [1320, 2458, 4665, 8984, 17_488, 34_309, 67_687, 134_071, 266_317]


def tail(n, q, B):
    """Log Pr[Bin(n, q) > B] by summing from B+1 on."""
    with mp.workdps(40):
        q, k = mp.mpf(q), B + 1
        term = (
            mp.binomial(n, k) * q**k * (1 - q) ** (n - k)
            if n < 10**5
            else mp.exp(
                mp.loggamma(n + 1)
                - mp.loggamma(k + 1)
                - mp.loggamma(n - k + 1)
                + k * mp.log(q)
                + (n - k) * mp.log(1 - q)
            )
        )
        total = mp.mpf(0)
        while k <= n and term > total * mp.mpf(10) ** -25:
            total += term
            term *= (n - k) * q / ((k + 1) * (1 - q))
            k += 1
        return mp.log(total)


def test_tail_is_an_upper_bound_and_tight():
    rng = np.random.default_rng(3)
    checked = 0
    for _ in range(80):
        n = int(10 ** rng.uniform(0.5, 9.5))
        steps = 1 + int(10 ** rng.uniform(0.1, math.log10(n)))
        mean = n / steps
        B = min(n - 1, math.ceil(mean + math.sqrt(mean) * rng.uniform(0, 30)))
        if mean < B and B - mean < 1e5:
            excess = mp.mpf(log_binomial_tail(n, 1 / steps, B)) - tail(n, 1 / steps, B)
            assert 0 <= excess < 3e-9, (n, steps, B)
            checked += 1
    assert checked > 50


def test_ends_of_the_tail():
    assert log_binomial_tail(10, 0.3, 10) == -math.inf
    assert log_binomial_tail(10, 0.3, 9) == pytest.approx(10 * math.log(0.3), abs=1e-8)
    assert log_binomial_tail(10, 1.0, 3) == 0.0
    assert log_binomial_tail(1000, 0.5, 10) == 0.0
    assert log_overflow_probability(100, 1, 100, 5) == -math.inf
    assert log_overflow_probability(100, 1, 99, 5) == 0.0


@pytest.mark.parametrize(
    ("data", "least", "most"), [(PCTR, 3.6e-11, 3.99e-11), (SEARCH, 0.984e-10, 1.151e-10)]
)
def test_tables_of_the_paper(data, least, most):
    """Erratum 5: with the paper's q = b/n and T = n/b, δ′(10) of the Search list partly exceeds 10⁻¹⁰."""
    n, sizes = data
    penalties = [
        (1 + math.exp(10)) * (n / b) * math.exp(log_binomial_tail(n, b / n, B))
        for b, B in zip(BATCHES, sizes, strict=True)
    ]
    assert least < min(penalties)
    assert max(penalties) < most
    for b, B in zip(BATCHES, sizes, strict=True):  # with what is run, all are within 10⁻¹⁰
        steps = math.ceil(n / b)
        assert log_overflow_probability(n, steps, B, steps) + math.log(1 + math.exp(10)) < math.log(1e-10)


def test_least_size_is_least():
    for n, steps, batches, log_p in [
        (37_000_000, 36133, 36133, -33.0),
        (1000, 7, 70, -5.0),
        (50, 3, 3, -1e4),
        (9, 1, 1, -2),
    ]:
        B = least_max_batch_size(n, steps, batches, log_p)
        assert log_overflow_probability(n, steps, B, batches) <= log_p
        assert B == 0 or log_overflow_probability(n, steps, B - 1, batches) > log_p


def test_running_minimum():
    """δ(ε) + (1 + e^ε)p turns up again; the bound does not, and is the least over smaller ε."""
    p, gauss = 1e-9, GaussianCurve(1.0)
    curve = Truncated(gauss, math.log(p))
    epsilon = np.linspace(-1, 14, 400)
    for direction in DIRECTIONS:
        plain, found = gauss.log_delta(epsilon, direction), curve.log_delta(epsilon, direction)
        naive = np.exp(plain.upper) + (1 + np.exp(epsilon)) * p
        assert np.diff(naive).max() > 0  # the negative control
        upper = np.exp(found.upper)
        assert np.all(np.diff(upper) <= 1e-12 * upper[1:])
        assert np.allclose(upper, np.minimum.accumulate(naive), rtol=1e-3)
        assert np.all(upper <= naive * (1 + 1e-12))
        assert np.array_equal(found.lower, plain.lower)
    # never below the true minimum over a dense grid
    dense = np.linspace(-1, 14, 200_001)
    least = np.min(np.exp(gauss.log_delta(dense, REMOVE).lower) + (1 + np.exp(dense)) * p)
    assert np.exp(curve.log_delta(np.array([14.0]), REMOVE).upper[0]) >= least * (1 - 1e-7)
    assert np.exp(curve.log_delta(np.array([14.0]), REMOVE).upper[0]) <= least * 1.01


def test_no_penalty_changes_nothing():
    gauss, epsilon = GaussianCurve(1.0), np.linspace(-2, 5, 20)
    assert np.array_equal(
        Truncated(gauss, -math.inf).log_delta(epsilon, REMOVE).upper, gauss.log_delta(epsilon, REMOVE).upper
    )
