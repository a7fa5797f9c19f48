"""Which of two curves is the larger: proved at every ε of an interval, not only where they were evaluated."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import special

from ballsbins import BallsAndBins, Mechanism, Poisson
from ballsbins.accounting.curve import DIRECTIONS
from ballsbins.comparison import _above, at_equal_noise, crossover


def convex(random, x):
    """A convex function of x that does not increase, at x and everywhere: the largest of a few falling lines."""
    at, slope = random.uniform(1.0, 3.0, 5), -random.exponential(0.3, 5)
    height = random.uniform(0.1, 1.0, 5)
    return lambda z: np.max(height + slope * (np.asarray(z)[..., None] - at), axis=-1).clip(1e-3), x


def test_what_is_called_larger_between_two_points_is_larger_everywhere_between_them():
    """Random convex curves; for some of them a look at the two ends would have been wrong."""
    random = np.random.default_rng(1)
    called, wrong = 0, 0
    for _ in range(3000):
        x = np.sort(random.uniform(1.0, 3.0, 4))
        one, two = (convex(random, x)[0] for _ in range(2))
        logs = [np.log(np.stack([curve(x)] * 3)) for curve in (one, two)]
        place = int(random.integers(3))
        dense = np.linspace(x[place], x[place + 1], 400)
        larger = bool((one(dense) > two(dense)).all())
        if _above(np.log(x), *logs, place):
            called += 1
            assert larger
        ends = (one(x) > two(x))[[place, place + 1]].all()
        wrong += bool(ends and not larger)
    assert called > 500
    assert wrong > 0  # so often the two ends alone would have been wrong


def test_the_least_convex_curve_decides():
    """Of all curves through given points the least is made of continued chords: nothing more is claimed, nor less."""
    epsilon = np.log([1.0, 2.0, 3.0, 4.0])
    one = np.log(
        [0.9, 0.5, 0.3, 0.2]
    )  # a third of the way from 2 to 3 it may be as low as 0.5 − 0.4/3 = 0.4 − 0.1/3
    for end, holds in ((0.119, True), (0.121, False)):  # there a chord from 0.49 to `end` is 0.98/3 + end/3
        two = np.log([1.0, 0.49, end, 0.01])
        assert _above(epsilon, np.stack([one] * 3), np.stack([two] * 3), 1) is holds


@pytest.mark.parametrize(
    ("sigma", "steps", "direction"), [(0.5, 200, None), (1.0, 2, "remove"), (2.0, 50, "add")]
)
def test_no_point_of_an_interval_contradicts_it(sigma, steps, direction):
    runs = at_equal_noise(Mechanism(BallsAndBins(steps), sigma))
    pair = runs["balls-and-bins"], runs["Poisson"]
    found = crossover(*pair, direction=direction)
    ways = DIRECTIONS if direction is None else (direction,)
    assert found.start == 0.0

    def logs(low, high):
        points = np.linspace(low, high, 100)
        return [np.max([run.curve.log_delta(points, way).rows for way in ways], axis=0) for run in pair]

    bins, poisson = logs(found.start, found.left)
    assert (bins[0] > poisson[2]).all()
    if direction == "add":
        assert found.right is None  # the likelihood ratio of Poisson batches is never small
        return
    assert found.left < found.right < 1.02 * found.left
    bins, poisson = logs(found.right, found.end)
    assert (bins[2] < poisson[0]).all()
    assert pair[0].delta(found.end).value == pytest.approx(1e-10, rel=0.01)


def test_a_run_is_nowhere_above_itself():
    run = Mechanism(BallsAndBins(10), 1.0)
    found = crossover(run, run)
    assert (found.start, found.left, found.right, found.end) == (None, None, None, None)


def ratio(sigma, steps):
    """δ_B(0)/δ_P(0) − 1, at least and at most."""
    bins, poisson = (Mechanism(kind(steps), sigma).delta(0.0) for kind in (BallsAndBins, Poisson))
    return bins.lower / poisson.upper - 1.0, bins.upper / poisson.lower - 1.0


@pytest.mark.parametrize("steps", [2, 3, 10, 1000])
def test_at_epsilon_0_balls_and_bins_is_worse_by_what_the_expansion_says(steps):
    """Erratum 6: 1 − δ_P(0)/δ_B(0) → (T − 1)(19T − 11)/(24 T³σ²) for much noise."""
    for sigma, close in ((20.0, 0.01), (40.0, 0.003)):
        low, high = ratio(sigma, steps)
        expected = (steps - 1) * (19 * steps - 11) / (24 * steps**3 * sigma**2)
        assert low > 0.0
        assert low == pytest.approx(expected, rel=close)
        assert high == pytest.approx(expected, rel=close)


@pytest.mark.parametrize("sigma", [0.06, 0.1, 0.3, 1.0, 3.0, 100.0])
def test_for_two_steps_balls_and_bins_is_worse_at_epsilon_0(sigma):
    """Erratum 6 proves this for every σ."""
    assert ratio(sigma, 2)[0] > 0.0


@pytest.mark.parametrize("steps", [2, 50])
def test_with_little_noise_balls_and_bins_is_worse_at_epsilon_0(steps):
    """Erratum 6: wherever (T + 1)·Φ(−1/2σ) < (1 − 1/T)^T; both sides of that proof hold, at the largest such σ."""
    share = (1.0 - 1.0 / steps) ** steps
    sigma = -0.5 / special.ndtri(share / (steps + 1)) * (1.0 - 1e-9)
    bins, poisson = (Mechanism(kind(steps), sigma).delta(0.0) for kind in (BallsAndBins, Poisson))
    assert poisson.upper <= 1.0 - share + 1e-9
    assert bins.lower >= 1.0 - (steps + 1) * special.ndtr(-0.5 / sigma)
    assert bins.lower > poisson.upper


@pytest.mark.parametrize(("sigma", "steps"), [(0.3, 2), (1.0, 5), (0.5, 1000)])
def test_below_a_negative_epsilon_the_paper_s_theorem_d1_a_holds_with_a_number(sigma, steps):
    """D(P_P‖Q) = 1 − e^ε for every ε ≤ ε₀ = T·log(1 − 1/T), and D(P_B‖Q) is larger: δ_add is 0 and is not."""
    bins, poisson = (Mechanism(kind(steps), sigma).curve for kind in (BallsAndBins, Poisson))
    largest_loss = -steps * math.log1p(-1.0 / steps)
    for epsilon in np.array([1.001, 1.5]) * largest_loss:
        point = np.array([epsilon])
        assert poisson.log_delta(point, "add").upper[0] == -math.inf
        assert bins.log_delta(point, "add").lower[0] > -math.inf
        at = bins.log_delta(-point, "remove").lower[0]
        assert at >= np.log(-np.expm1(-epsilon)) - 1e-12


def test_neither_pair_dominates_the_other():
    """Erratum 9: D(P_B‖Q) is below D(P_P‖Q) at a large ε and above it at a small one."""
    bins, poisson = (Mechanism(kind(20), 1.0).curve for kind in (BallsAndBins, Poisson))
    small, large = np.array([0.05]), np.array([2.0])
    assert bins.log_delta(small, "remove").lower[0] > poisson.log_delta(small, "remove").upper[0]
    assert bins.log_delta(large, "remove").upper[0] < poisson.log_delta(large, "remove").lower[0]


def test_another_pair_has_another_order_at_epsilon_0():
    """Erratum 6 (v): P a point of Q-mass p. Then δ_B(0) < δ_P(0) for T = 2, by enumeration."""
    p = 0.45
    ratio = np.array([0.0, 1.0 / p])  # dP/dQ beside the point and on it
    mass = np.array([1.0 - p, p])
    weights = np.outer(mass, mass)
    bins = 0.5 * (ratio[:, None] + ratio)
    poisson = 0.25 * (1.0 + ratio[:, None]) * (1.0 + ratio)
    one, two = (float((weights * np.maximum(each - 1.0, 0.0)).sum()) for each in (bins, poisson))
    assert (round(one, 4), round(two, 4)) == (0.3025, 0.3231)


@pytest.mark.parametrize("sigma", [0.7, 2.0])
def test_kl_of_a_mixture_exceeds_that_of_the_product_of_its_marginals(sigma):
    """Lemma D.2 for T = 2, by quadrature: KL(P_B‖Q) > KL(P_P‖Q), by KL(P_B‖P_P)."""
    x, w = np.polynomial.hermite_e.hermegauss(120)
    w = np.outer(w, w) / w.sum() ** 2
    z = np.exp(x / sigma - 0.5 / sigma**2)
    bins, poisson = 0.5 * (z[:, None] + z), 0.25 * (1.0 + z[:, None]) * (1.0 + z)
    joint, product = ((w * ratio * np.log(ratio)).sum() for ratio in (bins, poisson))
    assert joint > product > 0.0
    assert joint - product == pytest.approx((w * bins * np.log(bins / poisson)).sum(), rel=1e-9)
