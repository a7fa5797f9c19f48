"""Order statistics: their joint law, both bounds on the sum, the paper's lists, bad lists."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
from scipy import stats
from scipy.special import ndtri

from ballsbins.accounting.monte_carlo import kernel, orders
from ballsbins.accounting.monte_carlo.order_statistics import (
    OrderStatistics,
    bounded_sums,
    rounding,
    table,
    upper_tails,
    z_of_tail,
)
from ballsbins.errors import InvalidInputError

K = np.array([1, 2, 3, 5, 9, 20])
R = 30


def sorted_tails(rng, count):
    return np.sort(rng.random((count, R)), axis=1)[:, K - 1].T


def projections(v):
    """Functions of several order statistics at once: what only the joint law gets right."""
    return [*v, v[0] / v[1], v[2] - v[1], v[4] / v[5], (v[3] - v[2]) / (v[5] - v[0]), v.sum(axis=0)]


def test_the_joint_law_is_that_of_sorted_draws():
    """11 Kolmogorov–Smirnov tests at p = 10⁻⁶: false alarms about 10⁻⁵."""
    rng = np.random.default_rng(1)
    for mine, theirs in zip(
        projections(upper_tails(rng, 20_000, R, K)), projections(sorted_tails(rng, 20_000)), strict=True
    ):
        assert stats.ks_2samp(mine, theirs).pvalue > 1e-6


def test_a_wrong_joint_law_is_noticed():
    rng = np.random.default_rng(2)
    wrong = upper_tails(rng, 20_000, R + 1, K)
    pairs = zip(projections(wrong), projections(sorted_tails(rng, 20_000)), strict=True)
    assert min(stats.ks_2samp(a, b).pvalue for a, b in pairs) < 1e-6


def test_draws_below_a_point():
    rng = np.random.default_rng(3)
    above = 0.3
    mine = upper_tails(rng, 20_000, R, K, np.full(20_000, above))
    theirs = above + (1 - above) * sorted_tails(rng, 20_000)
    for a, b in zip(projections(mine), projections(theirs), strict=True):
        assert stats.ks_2samp(a, b).pvalue > 1e-6


def test_weights_of_both_bounds_sum_to_the_number_of_draws():
    """Erratum: with k_{r+1} = R, as printed, the upper weights sum to R − 1 and R = 1 has the bound 0."""
    x = np.sort(np.random.default_rng(4).normal(size=R))[::-1]
    e = np.exp(3.0 * x)
    printed = np.append(np.diff(K), R - K[-1]) @ e[K - 1]
    right = np.append(np.diff(K), R + 1 - K[-1]) @ e[K - 1]
    lower = np.diff(np.append(0, K)) @ e[K - 1]
    assert lower <= e.sum() <= right
    assert np.append(np.diff(K), R + 1 - K[-1]).sum() == R
    one = bounded_sums(np.random.default_rng(5), 1000, 1, np.array([1]), 1.0)
    assert np.all(one[1] > 0.0)
    assert np.allclose(*one)
    assert stats.kstest(one[1], stats.lognorm(1.0, scale=math.exp(-0.5)).cdf).pvalue > 1e-6
    equal = np.ones(R)  # where all are equal the sum is R times one: the printed bound fails
    assert np.append(np.diff(K), R - K[-1]) @ equal[K - 1] < equal.sum()
    assert printed < right


@pytest.mark.parametrize("sigma", [0.1, 0.2, 0.25, 0.35, 0.5, 1.0, 5.0, 50.0])
def test_the_table_is_as_good_as_it_says(sigma):
    s = 1.0 / sigma
    known = table(s)
    rng = np.random.default_rng(6)
    v = np.concatenate(
        [10.0 ** rng.uniform(-17, 0, 100_000), rng.random(100_000), 1.0 - 10.0 ** rng.uniform(-15, -1, 1000)]
    )
    v = np.append(v, [2.0**-60, 0.5, np.nextafter(0.5, 0), np.nextafter(0.5, 1), np.nextafter(1.0, 0)])
    assert (known.slope.size > 0) == (sigma >= 0.2)  # the fast path is what is tested where it is meant
    assert known.relative <= 5.1e-5
    if known.slope.size > 0:
        # 1 − V is exact, so compare at what is left of it: the table is linear in that
        true = np.where(v <= 0.5, z_of_tail(v, s), np.exp(s * ndtri(1.0 - v) - 0.5 * s * s))
        assert np.all(np.abs(known.chords(v[None, :].copy())[0] / true - 1.0) <= known.relative + 1e-13)


def test_what_rounding_of_v_can_do():
    """Z at V and at V(1 ± 10⁻¹³), up to the largest V of R draws."""
    for s, draws in ((1.0, 10.0), (0.2, 1e6), (4.0, 1e6), (1.0, 1e12)):
        v = np.linspace(0.5, 1.0 - 0.02 / draws, 2000)
        change = np.abs(z_of_tail(np.minimum(v * (1 + 1e-13), 1.0), s) - z_of_tail(v, s))
        assert np.all(change <= 1.1 * rounding(s, draws))


@pytest.mark.slow  # compiling takes seconds
@pytest.mark.parametrize("above", [False, True])
def test_compiled_is_the_same_bit_for_bit(above, monkeypatch):
    pytest.importorskip("numba")
    count, draws = 500, 5000
    k = np.array([1, 2, 3, 4, 7, 10, 13, 100, 1000, 2000, 3000, 4500, 5000])

    def both(seed):
        below = np.random.default_rng(9).random(count) * 0.3 if above else None
        return bounded_sums(np.random.Generator(np.random.SFC64(seed)), count, draws, k, 2.0, below)

    monkeypatch.setattr(kernel, "_WORTH_IT", math.inf)
    plain = both(3)
    monkeypatch.setattr(kernel, "_WORTH_IT", -1.0)
    assert kernel.compiled(0) is not None
    compiled = both(3)
    assert np.array_equal(plain, compiled)
    assert not np.array_equal(plain, both(4))


def test_without_numba_nothing_is_compiled(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    kernel.compile_now.cache_clear()
    try:
        monkeypatch.setattr(kernel, "_WORTH_IT", -1.0)
        assert kernel.compiled(0) is None
        low, high = bounded_sums(np.random.default_rng(1), 10, R, K, 1.0)
        assert np.all(low <= high)
    finally:
        kernel.compile_now.cache_clear()


def test_bounds_enclose_sums_in_the_mean_and_orders_tighten_them():
    """Both ends from the same order statistics; E ΣZ = R. 6 standard errors."""
    rng = np.random.default_rng(7)
    for loose in (1e-1, 1e-2):
        k = orders.automatic(1000, 1.0, loose)
        low, high = bounded_sums(rng, 20_000, 1000, k, 1.0)
        assert np.all(low <= high)
        error = 6 * high.std() / math.sqrt(high.size)
        assert low.mean() - error <= 1000.0 <= high.mean() + error
        assert (high - low).mean() < 1.5 * loose * 1000


def test_the_papers_lists():
    sizes = {name: len(k) for name, k in orders.PAPER.items()}
    assert sizes == {
        "B, T=100000": 590,
        "B, T=1000000": 590,
        "C, T=36133": 739,
        "C, T=4517": 589,
        "C, T=12497": 609,
        "C, T=1563": 549,  # erratum: the paper says 589
    }
    for name, k in orders.PAPER.items():
        steps = int(name.split("=")[1])
        assert np.array_equal(orders.checked(name, steps - 1), k)


@pytest.mark.parametrize(
    ("given", "draws", "named"),
    [
        ([2, 3], 10, "first"),
        ([1, 3, 2], 10, r"\(3, 2\)"),
        ([1, 2, 2], 10, r"\(2, 2\)"),
        ([1, 2, 11], 10, "11"),
        ([], 10, "orders"),
        ([1.0, 2.0], 10, "orders"),
        ("B", 10, "'B'"),
    ],
)
def test_bad_orders_are_named(given, draws, named):
    with pytest.raises(InvalidInputError, match=named):
        orders.checked(given, draws)
    if isinstance(given, list) and given:
        with pytest.raises(InvalidInputError):
            OrderStatistics(1.0, draws + 1, "remove", tuple(given))
