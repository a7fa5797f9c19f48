"""The tilt: its cells and bounds one by one, and δ within a few percent of the exact one wherever it may lie.

Intervals are at β = 10⁻⁶ a side, means within 5 standard errors: all checks of this file together raise a false alarm
with probability below 10⁻⁴ (and the seeds are fixed).
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import ndtr, ndtri

from ballsbins import BallsAndBins, InvalidInputError, Mechanism, MonteCarlo
from ballsbins.accounting.monte_carlo import levels
from ballsbins.accounting.monte_carlo.cells import Cells, Law
from ballsbins.accounting.monte_carlo.run import Job, run
from ballsbins.accounting.monte_carlo.state import StateFile
from ballsbins.accounting.monte_carlo.tilted import SHARES, Tilted, _call, _put

BETA = 1e-6


def within(cells, k, points=4000):
    """Z/T at equally likely places of cell k."""
    low = ndtr(cells.edges[k - 1]) if k else 0.0
    u = low + (ndtr(cells.edges[k]) - low) * (np.arange(points) + 0.5) / points
    return np.exp(cells.s * ndtri(u) - cells.s**2 / 2 - cells.log_unit) / cells.steps


@pytest.mark.parametrize(("s", "steps", "unit"), [(1.0, 10, 0.3), (0.1, 3, 0.0), (3.0, 100, 2.0)])
def test_cells_have_the_mass_and_mean_of_the_normal_law(s, steps, unit):
    cells = Cells.below(s, steps, unit, np.linspace(-3.0, 4.0, 30))
    assert np.exp(cells.log_mass).sum() == pytest.approx(ndtr(4.0), rel=1e-13)
    for k in (0, 1, 15, 29):
        z = within(cells, k)
        assert cells.mean[k] == pytest.approx(z.mean(), rel=1e-3)
        assert cells.ends[0, k] <= z.min() < z.max() <= cells.ends[1, k] * (1 + 1e-12)
        assert z.var() == pytest.approx(cells.variance[k], rel=2e-2)
        assert cells.variance[k] <= cells.spread[k]
        for theta in (-30.0, -1.0, 0.5, 4.0):
            bound = cells.log_tilts(np.array([theta]))[0, k]
            assert math.log(np.exp(theta * z).mean()) <= bound + 1e-3 * abs(theta) * cells.mean[k]


@pytest.mark.parametrize("steps", [7, 5000])  # drawn one by one, and counted
@pytest.mark.parametrize("first", [0, 60])
def test_a_law_draws_what_it_says(steps, first):
    """The mean of M, and of the number in the level, of independent tilted coordinates; one of them in the level."""
    cells, theta, top, m = Cells.below(1.0, steps, 0.0, np.linspace(-4.0, 4.0, 81)), 0.3 * steps, 75, 20_000
    found = Law(cells, theta, first, top).draw(np.random.default_rng(4), m)
    chance = np.exp(cells.log_mass + cells.log_tilts(np.array([theta]))[0])[:top]
    for column, value in ((0, cells.mean[:top]), (4, (np.arange(top) >= first) * (first > 0))):
        own = chance[first:] @ value[first:] / chance[first:].sum() if first else 0.0
        expected = own + (steps - (first > 0)) * (chance @ value / chance.sum())
        error = found[:, column].std() / math.sqrt(m)
        assert abs(found[:, column].mean() - expected) <= 5 * error
    assert np.all(found[:, 4] >= (first > 0))
    assert np.allclose(found[:, 3], theta * found[:, 0] + theta**2 / 2 * found[:, 1])


@pytest.mark.parametrize("k", np.exp(np.linspace(-1.5, 1.5, 13)).tolist())
def test_payoffs_are_bounded_given_the_cells(k):
    """One coordinate in a wide cell, and the product of two: against equally likely places in it."""
    cells = Cells.below(1.0, 1, 0.0, np.array([-0.3, 0.9]))
    z, M, v, variance = within(cells, 1), cells.mean[1], cells.spread[1], cells.variance[1]
    few = within(cells, 1, 500)
    one, two = z / k, (few[:, None] * few).ravel() / k
    below, above = (
        math.exp(x[0]) for x in _put(*(np.array([x]) for x in (M / k, v / k**2, variance / k**2)))
    )
    assert below - 1e-4 <= np.maximum(1 - one, 0).mean() <= above + 1e-4
    for product, epochs in ((one, 1), (two, 2)):
        bounds = _call(*(np.full((1, epochs), x) for x in (M, v, variance)), math.log(k))
        below, above = (math.exp(x[0]) for x in bounds)
        truth = k * np.maximum(product - 1, 0).mean()
        assert below - 1e-3 <= truth <= above + 1e-3
        assert above < below + 0.5 * M**epochs


def answer(sampler, samples=20_000, bound="auto"):
    found = run([Job(sampler, SHARES, samples)], seed=1)[0].log_delta(sampler.epsilon, BETA / 0.9, bound)
    return math.exp(found.lower[0]), math.exp(found.upper[0])


GRID = [
    (0.35, 1000, 10.0, 1), (1.0, 100, 0.858, 1), (1.0, 1, 3.0, 1), (3.0, 2, 1.0, 1), (0.05, 10, 291.87, 1),
    (0.25, 5000, 20.0, 1), (0.5, 10**6, 0.0595, 1), (10.0, 10**6, 1.944e-4, 1), (2.0, 50, 0.5, 3),
    (0.3, 100, 20.0, 3), (0.5, 50, -0.5, 1), (5.0, 2, 1.02, 1), (1.0, 10**9, 2e-4, 1),
]  # fmt: skip


@pytest.mark.parametrize("direction", ["remove", "add"])
@pytest.mark.parametrize(("sigma", "steps", "epsilon", "epochs"), GRID)
def test_against_the_exact_delta(sigma, steps, epsilon, epochs, direction):
    """Jumps, the central limit and both, T to 10⁹, δ from 0.5 to 10⁻¹⁹⁹; no contribution above a few times δ."""
    if direction == "add" and epochs > 1:
        pytest.skip("see TiltedAdd")
    truth = Mechanism(BallsAndBins(steps), sigma, epochs).delta(epsilon).directions[direction]
    if truth.value < 1e-300:
        pytest.skip("nothing to compare")
    sampler = Tilted(sigma, steps, direction, epsilon, epochs)
    low, high = answer(sampler)
    assert low <= truth.upper
    assert high >= truth.lower
    assert 0.85 * truth.lower < low < high < 1.2 * truth.upper
    assert 1.0 <= math.exp(sampler.log_weight) / truth.lower < 12.0


@pytest.mark.parametrize("wrong", [0.97, 1.03])
@pytest.mark.parametrize(
    ("sigma", "steps", "epsilon", "epochs", "direction"),
    [
        (0.35, 1000, 10.0, 1, "remove"),
        (1.0, 10**6, 5.9e-3, 1, "remove"),
        (1.0, 10**6, 5.9e-3, 1, "add"),
        (2.0, 50, 0.5, 3, "remove"),
    ],
)
def test_a_sigma_off_by_three_percent_is_rejected(sigma, steps, epsilon, epochs, direction, wrong):
    truth = Mechanism(BallsAndBins(steps), sigma, epochs).delta(epsilon).directions[direction]
    low, high = answer(Tilted(wrong * sigma, steps, direction, epsilon, epochs))
    assert high < truth.lower or low > truth.upper


def test_it_takes_betting_to_see_a_small_variance():
    sampler = Tilted(0.05, 10, "remove", 291.87)
    low, high = answer(sampler)
    low_kl, high_kl = answer(sampler, bound="kl")
    low_b, high_b = answer(sampler, bound="bernstein")
    assert high < high_b < high_kl
    assert low > low_b > low_kl


def test_samples_serve_the_epsilon_they_were_drawn_for():
    found = run([Job(Tilted(0.5, 100, "remove", 4.0), SHARES, 1000)])[0]
    for other in (3.9, 4.1):
        with pytest.raises(InvalidInputError, match=r"epsilon is .*, but must be 4\.0"):
            found.log_delta(other, BETA)


def test_many_epochs_of_few_steps_are_drawn_plainly():
    """No tilt of this kind has a small range there; δ is large, and plain samples do."""
    mechanism = Mechanism(BallsAndBins(5), 1.0, 200)
    found, truth = mechanism.delta(30.0, MonteCarlo(2000, BETA)), mechanism.delta(30.0)
    assert found.lower <= truth.upper
    assert truth.lower <= found.upper < 1.5 * truth.upper


def test_where_no_level_is_left_out_the_rest_is_nothing():
    for sigma, steps, epochs, epsilon in ((0.05, 10, 1, 291.87), (1.0, 1000, 50, 1.27), (10.0, 100, 1, 0.05)):
        plan = levels.remove(sigma, steps, epochs, epsilon)
        assert plan.rest < 1e-12
        assert plan.chance[-1] == pytest.approx(1.0)


def test_resumed_equals_uninterrupted(tmp_path):
    job = Job(Tilted(0.5, 100, "remove", 4.0), SHARES, 20_000)

    def stop(outcomes, over):
        if not over and outcomes[0].tally.count >= 8_000:
            raise KeyboardInterrupt

    state = tmp_path / "state.npz"
    part = run([job], seed=3, state=StateFile(state), progress=stop)[0]
    assert 8_000 <= part.tally.count < 20_000
    resumed, whole = run([job], seed=3, state=StateFile(state))[0], run([job], seed=3)[0]
    assert resumed.tally.count == whole.tally.count == 20_000
    assert np.array_equal(resumed.tally.high, whole.tally.high)
    assert resumed.log_delta(4.0, 1e-3).upper == whole.log_delta(4.0, 1e-3).upper
    assert part.log_delta(4.0, 1e-3).upper > whole.log_delta(4.0, 1e-3).upper
