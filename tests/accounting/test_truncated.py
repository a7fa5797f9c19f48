"""The penalty of truncated batches: the binomial tail, the paper's tables, the running minimum."""

import math
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest
from scipy.special import log_ndtr

from ballsbins import BallsAndBins, Mechanism, Poisson, accountant
from ballsbins.accounting import search as search_module
from ballsbins.accounting.bounds_only import Diluted
from ballsbins.accounting.curve import ADD, DIRECTIONS, REMOVE
from ballsbins.accounting.epochs.composition import ComposedCurve
from ballsbins.accounting.gaussian import GaussianCurve
from ballsbins.accounting.one_epoch.curve import ExactCurve
from ballsbins.accounting.truncated import (
    Truncated,
    _sum,
    _sum_bound,
    least_max_batch_size,
    log_binomial_tail,
    log_drop_probability,
    log_overflow_probability,
)
from ballsbins.errors import UnreachableTargetError

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


def test_a_long_tail_is_bounded_in_closed_form():
    """Against the sum, where that is still to be had; the closed form is above it, by less than a thousandth."""
    for n, q in ((10**7, 0.3), (10**9, 0.5), (10**10, 1e-2), (10**11, 1e-4), (3 * 10**10, 0.9)):
        deviation = math.sqrt(n * q * (1 - q))
        for z in (1e-3, 0.1, 1.0, 6.0, 30.0):
            k = math.ceil(n * q + z * deviation) + 1
            excess = _sum_bound(n, k, q / (1 - q)) / _sum(n, k, q / (1 - q)) - 1
            assert -1e-12 <= excess < max(1e-3, 20 / deviation), (n, q, z)
            assert excess < 30 / deviation


def test_data_sets_of_any_size_are_truncated():
    for n in (2**40, 2**48):
        for steps in (1, 2, 1000, 10**9):
            B = least_max_batch_size(n, steps, steps, math.log(1e-15))
            assert log_overflow_probability(n, steps, B, steps) <= math.log(1e-15)
            if steps > 1:
                deviation = math.sqrt(n / steps * (1 - 1 / steps))
                assert n / steps < B < n / steps + 12 * deviation + 30
    # the normal tail is approached: Pr[Bin > mean + 6 deviations] → Φ(−6)
    n = 2**48
    tail_at_six = log_binomial_tail(n, 0.5, n // 2 + 6 * 2**23)
    assert tail_at_six == pytest.approx(float(log_ndtr(-6.0)), abs=1e-5)
    assert tail_at_six >= float(log_ndtr(-6.0)) - 1e-6


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
    curve = Truncated(gauss, math.log(p), math.log(p))
    epsilon = np.linspace(-1, 14, 400)
    for direction in DIRECTIONS:
        plain, found = gauss.log_delta(epsilon, direction), curve.log_delta(epsilon, direction)
        naive = np.exp(plain.upper) + (1 + np.exp(epsilon)) * p
        assert np.diff(naive).max() > 0  # the negative control
        upper = np.exp(found.upper)
        assert np.all(np.diff(upper) <= 0.0)
        assert np.allclose(upper, np.minimum.accumulate(naive), rtol=1e-3)
        assert np.all(upper <= naive * (1 + 1e-12))
    # never below the true minimum over a dense grid
    dense = np.linspace(-1, 14, 200_001)
    least = np.min(np.exp(gauss.log_delta(dense, REMOVE).lower) + (1 + np.exp(dense)) * p)
    assert np.exp(curve.log_delta(np.array([14.0]), REMOVE).upper[0]) >= least * (1 - 1e-8)
    assert np.exp(curve.log_delta(np.array([14.0]), REMOVE).upper[0]) <= least * (1 + 1e-9)


@pytest.mark.parametrize("sigma", [0.3, 1.0, 8.0])
@pytest.mark.parametrize("p", [1e-3, 1e-9, 1e-40, 1e-200])
def test_both_bounds_fall_whether_asked_together_or_alone(sigma, p):
    epsilon = np.concatenate(
        [[-700.0, -30.0, -1.0, -1e-3], np.linspace(0, 40, 60), [100.0, 300.0, 690.0, 700.0]]
    )
    for direction in DIRECTIONS:
        together = Truncated(GaussianCurve(sigma), math.log(p), math.log(p)).log_delta(epsilon, direction)
        fresh = [
            Truncated(GaussianCurve(sigma), math.log(p), math.log(p)).log_delta(epsilon[k : k + 1], direction)
            for k in range(epsilon.size)
        ]
        for rows in (
            (together.lower, together.upper),
            (np.concatenate([one.lower for one in fresh]), np.concatenate([one.upper for one in fresh])),
        ):
            for row in rows:
                finite = row[np.isfinite(row)]
                assert np.all(finite[1:] <= finite[:-1] + 1e-12 * (1 + np.abs(finite[1:])))
        assert fresh[-1].upper == pytest.approx(together.upper[-1:], rel=1e-9)


def kept(n, steps, B):
    """The probability that an example is kept: E[B/(N+1)] if N+1 > B, N the others in its batch, as a fraction."""
    q, total = Fraction(1, steps), Fraction(0)
    for others in range(n):
        chance = math.comb(n - 1, others) * q**others * (1 - q) ** (n - 1 - others)
        total += chance * min(Fraction(1), Fraction(B, others + 1))
    return total


@pytest.mark.parametrize(
    ("steps", "n", "B", "sigma"), [(2, 20, 15, 0.5), (3, 30, 18, 1.0), (2, 20, 19, 0.3), (1, 9, 8, 1)]
)
def test_the_lower_bound_is_below_a_pair_that_truncation_makes(steps, n, B, sigma):
    """All gradients but one are 0: then P is that of the plain pair if the example is kept, and Q otherwise."""
    share = kept(n, steps, B)
    plain = GaussianCurve(sigma) if steps == 1 else ExactCurve(((steps, sigma),))
    truth = Diluted(plain, share.numerator, share.denominator)
    cut = Mechanism(BallsAndBins(steps, max_batch_size=B, num_examples=n), sigma).curve
    epsilon = np.array([-3.0, -0.5, -0.01, 0.0, 0.01, 0.3, 1.0, 2.0, 5.0, 12.0])
    dropped = math.exp(log_drop_probability(n, steps, B, steps))
    assert 1 - share <= dropped
    for direction in DIRECTIONS:
        found, exact = cut.log_delta(epsilon, direction), truth.log_delta(epsilon, direction)
        assert (found.lower <= exact.upper).all()
        assert (found.upper >= exact.lower).all()
        # and no farther below δ without truncation than truncation can take
        cost = dropped * (1.0 if direction == REMOVE else np.exp(epsilon))
        assert np.exp(found.lower) == pytest.approx(
            np.maximum(np.exp(plain.log_delta(epsilon, direction).lower) - cost, np.maximum(-np.expm1(epsilon), 0.0)),
            rel=1e-9, abs=1e-15,
        )  # fmt: skip
    if steps > 1 and B < 19:  # the negative control: δ without truncation is not below
        assert (plain.log_delta(epsilon, REMOVE).lower > truth.log_delta(epsilon, REMOVE).upper).any()


def test_an_example_is_dropped_as_often_as_stated():
    n, steps, B, draws = 12, 2, 6, 2000
    sampler = BallsAndBins(steps, max_batch_size=B, num_examples=n)
    seen = sum(
        sum(int(0 in batch) for batch in sampler.batches(n, key=5, epoch=epoch)) for epoch in range(draws)
    )
    share = float(kept(n, steps, B))
    deviation = math.sqrt(share * (1 - share) / draws)
    assert abs(seen / draws - share) < 5 * deviation
    assert 1 - share > 5 * deviation


def test_a_batch_of_one_protects():
    """One step of 1000 examples that keeps one: δ is at most 1/1000, whatever ε is."""
    bound = Mechanism(BallsAndBins(1, max_batch_size=1, num_examples=1000), 0.5).delta(1.0)
    assert bound.lower <= 1e-3
    assert bound.upper == 1.0


@pytest.mark.parametrize(
    "sampler",
    [
        BallsAndBins(100, max_batch_size=150, num_examples=10_000),
        BallsAndBins(100, max_batch_size=110, num_examples=10_000),
        BallsAndBins(100, max_batch_size=10_000, num_examples=10_000),
        BallsAndBins(7, max_batch_size=30, num_examples=100, redraw=False),
        Poisson(1, max_batch_size=9, num_examples=10),
    ],
    ids=repr,
)
def test_the_penalty_is_part_of_the_bound(sampler):
    plain = Mechanism(type(sampler)(sampler.steps), 0.6)
    epsilon = np.array([-5.0, 0.0, 0.5, 2.0, 8.0, 20.0])
    bound = Mechanism(sampler, 0.6).delta(epsilon)
    without = plain.delta(epsilon)
    assert (np.asarray(bound.penalty) >= 0.0).all()
    for part, alone in (
        (bound, without),
        *((bound.directions[way], without.directions[way]) for way in DIRECTIONS),
    ):
        assert (part.penalty <= part.upper).all()
        assert part.upper - alone.upper == pytest.approx(part.penalty, rel=1e-6, abs=1e-13)
        assert (part.lower <= alone.upper).all()


def test_no_penalty_changes_nothing():
    gauss, epsilon = GaussianCurve(1.0), np.linspace(-2, 5, 20)
    for direction in (REMOVE, ADD):
        found = Truncated(gauss, -math.inf, -math.inf).log_delta(epsilon, direction)
        assert np.array_equal(found.upper, gauss.log_delta(epsilon, direction).upper)
        assert np.array_equal(found.lower, gauss.log_delta(epsilon, direction).lower)


class Watched(GaussianCurve):
    """A Gaussian's curve that remembers the largest ε it was asked for."""

    farthest = 0.0

    def at(self, epsilon, direction):
        Watched.farthest = max(Watched.farthest, float(epsilon.max()))
        return super().at(epsilon, direction)


def test_nothing_is_asked_far_beyond_the_question():
    """The sum of δ and penalty rises at ε = 5 already, so its least value is before: far out δ takes minutes."""
    Watched.farthest = 0.0
    found = Truncated(Watched(1.0), -10.0, -11.0).log_delta(np.array([5.0]), REMOVE)
    assert Watched.farthest < 5.2
    grid = np.linspace(0.0, 5.0, 2001)
    total = np.logaddexp(GaussianCurve(1.0).log_delta(grid, REMOVE).upper, -10.0 + np.logaddexp(0.0, grid))
    assert found.upper[0] == pytest.approx(float(total.min()), rel=1e-5)


def test_poisson_batches_that_are_truncated_have_an_answer_in_little_time():
    """It took minutes and gigabytes: δ was asked for at ε = 20, four hundred deviations out."""
    sampler = Poisson(235, max_batch_size=369, num_examples=60_000)
    bound = Mechanism(sampler, 5.0).epsilon(1e-6)
    plain = Mechanism(Poisson(235), 5.0).epsilon(1e-6)
    assert plain.value < bound.upper < 1.01 * plain.value


@pytest.mark.parametrize("sampler", [Poisson, BallsAndBins], ids=lambda kind: kind.__name__)
def test_no_digits_are_asked_for_far_out(sampler):
    """With so much noise δ is e⁻³⁰⁰ at ε = 0.5; asking for its digits there took minutes."""
    plain = Mechanism(sampler(235), 5.0)
    cut = Mechanism(sampler(235, max_batch_size=369, num_examples=60_000), 5.0)
    assert plain.epsilon(1e-6).upper < cut.epsilon(1e-6).upper < plain.epsilon(0.95e-6).upper
    many = cut.delta(np.linspace(0.0, 3.0, 10)).upper
    assert (np.diff(many) <= 0).all()
    assert many[-1] <= cut.delta(0.2).upper  # nowhere above what a smaller ε gives


def test_a_direction_that_cannot_decide_is_not_searched(monkeypatch):
    """Truncated or not: `add` near its largest loss took seconds, and the answer did not need it."""
    asked, search = [], search_module.epsilon_at
    monkeypatch.setattr(
        search_module, "epsilon_at", lambda curve, way, logs: asked.append(way) or search(curve, way, logs)
    )
    sampler = Poisson(3, max_batch_size=1915, num_examples=3546)
    bound = Mechanism(sampler, 0.2589, 4).epsilon(2.8e-15)
    assert set(asked) == {REMOVE}
    assert bound.penalty == bound.directions["remove"].penalty > 0.0
    assert bound.directions["add"].upper < bound.upper
    assert set(asked) == {REMOVE, ADD}


@pytest.mark.parametrize(
    ("steps", "size", "examples", "sigma", "epochs", "delta"),
    [(361_485, 1801, 373_414_005, 0.1213, 22, 2.1e-5), (20, 1950, 29_740, 0.6176, 98, 7.5e-15)],
)
def test_no_lattice_is_built_where_truncation_decides(
    monkeypatch, steps, size, examples, sigma, epochs, delta
):
    """Where the sum of δ and penalty turns was found by composing `add`: it took up to ten minutes."""
    monkeypatch.setattr(ComposedCurve, "_lattice", lambda *_: pytest.fail("composed"))
    run = Mechanism(Poisson(steps, max_batch_size=size, num_examples=examples), sigma, epochs)
    if epochs == 98:
        with pytest.raises(UnreachableTargetError, match="max_batch_size=1950 truncates batches so often"):
            run.epsilon(delta)
    else:
        assert run.epsilon(delta).lower == 700.0
        assert run.epsilon(delta).directions["add"].upper == pytest.approx(21.991067, rel=1e-5)


@pytest.mark.parametrize(("delta", "sigma"), [(1e-6, 1.0), (1e-10, 0.4), (1e-2, 5.0)])
def test_the_size_that_an_error_names_is_the_least_and_found_at_few_points(monkeypatch, delta, sigma):
    """Every point can be a hard one: with 81 of them, an error took five seconds at σ = 0.156."""
    asked, largest = [], accountant.largest_log_delta
    monkeypatch.setattr(
        accountant, "largest_log_delta", lambda curve, at: asked.extend(at) or largest(curve, at)
    )

    def run(size):
        return Mechanism(BallsAndBins(20, max_batch_size=size, num_examples=1000), sigma)

    with pytest.raises(UnreachableTargetError, match="Use max_batch_size=") as refused:
        run(55).epsilon(delta)
    assert len(asked) <= 30
    least = int(str(refused.value).partition("Use max_batch_size=")[2].split()[0])
    assert 55 < least < 200
    assert run(least).epsilon(delta).upper < 700.0
    with pytest.raises(UnreachableTargetError):
        run(least - 1).epsilon(delta)
    # the closest p that is allowed, from many points
    plain = BallsAndBins(20)
    epsilon = Mechanism(plain, sigma).epsilon(delta).upper + np.linspace(0.0, 3.0, 2000)
    share = (delta - Mechanism(plain, sigma).delta(epsilon).upper) / (1.0 + np.exp(epsilon))
    assert least == least_max_batch_size(1000, 20, 20, math.log(share.max()))
