"""The expectation over one coordinate: its quadrature, what it gives against the exact δ, and that it pays."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ballsbins import BallsAndBins, Mechanism, MonteCarlo
from ballsbins.accounting.monte_carlo import orders
from ballsbins.accounting.monte_carlo.conditional import Conditional
from ballsbins.accounting.monte_carlo.estimate import Lattice, Tally
from ballsbins.accounting.monte_carlo.run import Job, run
from ballsbins.accounting.monte_carlo.state import StateFile
from ballsbins.accounting.monte_carlo.tilted import TiltedRemove, best_balls

BETA = 1e-6


@pytest.mark.parametrize(
    ("sigma", "steps", "balls", "epsilon"),
    [(0.35, 1000, 3, 10.0), (0.1, 100, 2, 30.0), (1.0, 10, 6, 2.0), (5.0, 3, 12, 0.4), (0.5, 50, 1, 0.5)],
)
def test_the_quadrature_is_that_of_a_plain_sum(sigma, steps, balls, epsilon):
    sampler, s, tau = Conditional(sigma, steps, balls), 1 / sigma, balls - 1.0
    entropy = tau * math.log(tau) - (1 + tau) * math.log1p(tau) if tau > 0 else 0.0
    u = np.array([-1000.0, 0.0, epsilon - 1e-3, epsilon + 0.01, epsilon + 1.0, epsilon + 4.0])
    g = np.linspace(-12, 20, 400_001)
    weight = np.exp(-0.5 * g * g) * (g[1] - g[0]) / math.sqrt(2 * math.pi)
    for k in {1, balls}:
        rise, fall = sampler._parts(u, k, epsilon)
        for part in (rise, fall):
            assert np.all((part > -1e-12) & (part < 1 + 1e-12))
            assert np.all(np.diff(part) > -1e-9)
        for point, found in zip(u, rise - fall, strict=True):
            x = np.logaddexp(s * g + s * s * (k - 0.5) - math.log(steps), point) - epsilon
            x = np.maximum(x, 0.0)
            expected = (-np.expm1(-x) * np.exp(-tau * x - entropy)) @ weight
            assert found == pytest.approx(expected, rel=1e-7, abs=1e-13)


def answer(sampler, epsilon, samples, bound="auto"):
    found = run([Job(sampler, sampler.lattice(epsilon, epsilon), samples)], seed=1)[0]
    bounds = found.log_delta(epsilon, BETA / 0.9, bound)
    return math.exp(bounds.lower[0]), math.exp(bounds.upper[0])


GRID = [
    (0.35, 1000, 10.0),
    (0.5, 100, 4.0),
    (1.0, 10, 2.0),
    (3.0, 2, 1.0),
    (0.25, 5000, 20.0),
    (0.6, 400, 3.0),
]


@pytest.mark.parametrize(("sigma", "steps", "epsilon"), GRID)
def test_against_the_exact_delta(sigma, steps, epsilon):
    """β = 10⁻⁶ a side; within 10 % both ways; σ off by 3 % is rejected on both sides."""
    truth = Mechanism(BallsAndBins(steps), sigma).delta(epsilon).directions["remove"]
    n = best_balls(sigma, steps, 1, epsilon)
    many = steps - n > 300
    k = tuple(int(i) for i in orders.automatic(steps - n, sigma, 3e-3)) if many else None
    low, high = answer(Conditional(sigma, steps, n, k), epsilon, 20_000)
    assert low <= truth.upper
    assert high >= truth.lower
    assert 0.9 * truth.value < low < high < 1.1 * truth.value
    for wrong in (0.97, 1.03):
        low, high = answer(Conditional(wrong * sigma, steps, n, k), epsilon, 20_000)
        assert high < truth.lower or low > truth.upper


def test_drawn_and_bounded_sums_agree():
    k = tuple(int(i) for i in orders.automatic(997, 0.35, 3e-3))
    one, two = (answer(Conditional(0.35, 1000, 3, some), 10.0, 20_000) for some in (None, k))
    assert one[0] <= two[1]
    assert two[0] <= one[1]


def test_it_pays():
    """With as many samples the interval is less than a tenth as wide as that of `tilted`, which draws everything."""
    low, high = answer(Conditional(0.35, 1000, 3), 10.0, 20_000)
    plain = TiltedRemove(0.35, 1000, 3)
    found = run([Job(plain, Lattice.around(10.0, 10.0, plain.tilt), 20_000)], seed=1)[0]
    bounds = np.exp(found.log_delta(10.0, BETA / 0.9).upper - found.log_delta(10.0, BETA / 0.9).lower)
    assert high / low - 1 < 0.1 * (bounds[0] - 1)
    # and it takes betting to see it
    low_kl, high_kl = answer(Conditional(0.35, 1000, 3), 10.0, 20_000, "kl")
    low_b, high_b = answer(Conditional(0.35, 1000, 3), 10.0, 20_000, "bernstein")
    assert high < high_b < high_kl
    assert low > low_b > low_kl


def test_what_is_not_known_well_enough_counts_as_anything():
    sampler = Conditional(0.35, 1000, 3)
    lattice = sampler.lattice(10.0, 10.0)
    u = np.array([0.0, 0.0, 1e9, -np.inf])
    tally = Tally.of(lattice, u - np.array([0.0, 1.0, 0.0, 0.0]), u, np.array([2.0, 2.0, 0.0, 1.0]))
    least, most, counts = sampler.values(tally, 10.0)
    assert counts.sum() == 4
    assert np.sum((least == 0.0) & (most == 1.0)) == 2
    assert np.all(least <= most)
    for epsilon in (5.0, 10.0):
        least, most, _ = sampler.values(tally, epsilon)
        assert np.all((least >= 0) & (most <= 1))


def test_one_set_of_samples_serves_a_curve():
    mechanism = Mechanism(BallsAndBins(1000), 0.35)
    grid = np.linspace(-1.0, 12.0, 6)
    found = mechanism.delta(grid, MonteCarlo(4000, BETA)).directions["remove"]
    exact = mechanism.delta(grid).directions["remove"]
    assert np.all(found.lower <= exact.upper)
    assert np.all(found.upper >= exact.lower)
    assert np.all(found.upper[1:] < 1.2 * exact.upper[1:])


def test_resumed_equals_uninterrupted(tmp_path):
    sampler = Conditional(0.5, 100, 3)
    job = Job(sampler, sampler.lattice(4.0, 4.0), 50_000)

    def stop(outcomes, over):
        if not over and outcomes[0].tally.count >= 20_000:
            raise KeyboardInterrupt

    state = tmp_path / "state.npz"
    part = run([job], seed=3, state=StateFile(state), progress=stop)[0]
    assert 20_000 <= part.tally.count < 50_000
    resumed, whole = run([job], seed=3, state=StateFile(state))[0], run([job], seed=3)[0]
    assert resumed.tally.count == whole.tally.count == 50_000
    assert np.array_equal(resumed.tally.high, whole.tally.high)
    assert resumed.log_delta(4.0, 1e-3).upper == whole.log_delta(4.0, 1e-3).upper
    assert part.log_delta(4.0, 1e-3).upper > whole.log_delta(4.0, 1e-3).upper
