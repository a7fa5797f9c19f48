"""Every sampler against the exact accountant, with negative controls on both sides, and the paper's errata.

A sampler agrees if the exact δ lies within its two-sided interval at β = 10⁻⁶ a side: all checks of this file
together raise a false alarm with probability below 10⁻³ (and the seeds are fixed).
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import log_ndtr, ndtri

from ballsbins import BallsAndBins, InvalidInputError, Mechanism, MonteCarlo
from ballsbins.accounting.monte_carlo import orders
from ballsbins.accounting.monte_carlo.estimate import Lattice
from ballsbins.accounting.monte_carlo.importance import Combined, Importance, log_event_probability, threshold
from ballsbins.accounting.monte_carlo.order_statistics import OrderStatistics
from ballsbins.accounting.monte_carlo.pairs import Untilted
from ballsbins.accounting.monte_carlo.plain import Epochs, Plain
from ballsbins.accounting.monte_carlo.run import Job, run
from ballsbins.accounting.monte_carlo.tilted import SHARES
from ballsbins.accounting.monte_carlo.tilted_add import TiltedAdd, best_power, log_laplace
from ballsbins.curves import curve_of
from ballsbins.samplers import pooled_noise

BETA = 1e-6


def exact(sigma, steps, epsilon, direction, epochs=1):
    bound = Mechanism(BallsAndBins(steps), sigma, epochs).delta(epsilon).directions[direction]
    return bound.lower, bound.upper


def interval(sampler, epsilon, samples, seed=1, beta=BETA):
    lattice = SHARES if isinstance(sampler, TiltedAdd) else Lattice.around(epsilon, epsilon, sampler.tilt)
    found = run([Job(sampler, lattice, samples)], seed=seed)[0]
    bounds = found.log_delta(epsilon, beta / 0.9)
    return math.exp(bounds.lower[0]), math.exp(bounds.upper[0])


def agree(one, two):
    return one[0] <= two[1] and two[0] <= one[1]


def k_of(draws, sigma, loose=2e-2):
    return tuple(int(k) for k in orders.automatic(draws, sigma, loose))


GRID = [(1.0, 2, 0.5), (1.0, 10, 0.3), (0.5, 100, 1.0), (2.0, 20, 0.1), (0.4, 300, 3.0), (5.0, 3, 0.05)]


@pytest.mark.parametrize(("sigma", "steps", "epsilon"), GRID)
@pytest.mark.parametrize("direction", ["remove", "add"])
def test_the_papers_samplers(sigma, steps, epsilon, direction):
    truth = exact(sigma, steps, epsilon, direction)
    m = 20_000
    assert agree(interval(Plain(sigma, steps, direction), epsilon, m), truth)
    assert agree(interval(Importance(sigma, steps, direction, epsilon), epsilon, m), truth)
    draws = steps if direction == "add" else steps - 1
    assert agree(interval(OrderStatistics(sigma, steps, direction, k_of(draws, sigma)), epsilon, m), truth)
    draws = steps if direction == "add" else steps - 2
    if draws > 0:
        assert agree(
            interval(Combined(sigma, steps, direction, epsilon, k_of(draws, sigma)), epsilon, m), truth
        )


@pytest.mark.parametrize("direction", ["remove", "add"])
def test_several_epochs_by_the_papers_samplers(direction):
    """Losses of independent epochs add up (the paper's last algorithm); two epochs are not three."""
    sigma, steps, epsilon, epochs, m = 1.0, 20, 0.5, 3, 20_000
    draws = steps if direction == "add" else steps - 1
    truth, fewer = (exact(sigma, steps, epsilon, direction, count) for count in (epochs, epochs - 1))
    for one in (
        Plain(sigma, steps, direction),
        OrderStatistics(sigma, steps, direction, k_of(draws, sigma, 1e-3)),
    ):
        found = interval(Epochs(one, epochs), epsilon, m)
        assert agree(found, truth)
        assert not agree(found, fewer)


TILTED = [
    (0.5, 100, 4.0, 1), (1.0, 10, 2.0, 1), (1.0, 1, 3.0, 1), (3.0, 2, 1.0, 1), (10.0, 50, 0.05, 1), (2.0, 50, 0.5, 3),
    (0.7, 30, 6.0, 2), pytest.param(1.0, 100, 1.964, 10, marks=pytest.mark.slow),
]  # fmt: skip


@pytest.mark.parametrize(("sigma", "steps", "epsilon", "epochs"), TILTED)
def test_the_tilt_of_add_reaches_any_delta(sigma, steps, epsilon, epochs):
    """25 % with 10,000 epochs, however small δ is: here down to 10⁻²⁰ and below."""
    power = best_power(sigma, steps, epochs, epsilon)
    truth = exact(sigma, steps, epsilon, "add", epochs)
    found = interval(TiltedAdd(sigma, steps, power, epsilon, epochs), epsilon, 10_000 // epochs)
    assert agree(found, truth)
    assert found[1] < 1.5 * truth[1]


@pytest.mark.parametrize(("sigma", "most"), [(0.05, 0.7), (0.2, 4.0), (1.0, 20.0), (10.0, 300.0)])
@pytest.mark.parametrize("share", [1e-3, 0.05, 1.0])
def test_the_weight_of_one_step_has_a_closed_form(sigma, most, share):
    """E Z^{−β} = e^{β(β+1)/2σ²}, however far below 1 the Z are that matter."""
    power = share * most
    sampler = TiltedAdd(sigma, 1, power, 1.0)
    assert sampler.log_weight_error < 1e-4
    assert abs(sampler.log_moment - power * (power + 1) / (2 * sigma**2)) <= sampler.log_weight_error


CORNERS = [
    (0.5, 2, 1, 0.02), (0.5, 1, 1, 0.02), (0.2, 1, 1, 12.5), (0.1, 3, 1, 70.0), (0.05, 10, 1, 60.0),
    (0.05, 2, 1, 240.0), (5.0, 2, 1, 1.02), (100.0, 3, 1, 0.03), (1.0, 1, 3, 0.3), (0.3, 5, 2, 3.0),
    (20.0, 2, 2, 0.3),
]  # fmt: skip


@pytest.mark.parametrize(("sigma", "steps", "epochs", "epsilon"), CORNERS)
def test_corners(sigma, steps, epochs, epsilon):
    """Little and much noise, one and two steps, δ near 1 and far below: as `ballsbins verify` compares them."""
    mechanism = Mechanism(BallsAndBins(steps), sigma, epochs)
    truth = mechanism.delta(epsilon).directions
    found = mechanism.delta(epsilon, MonteCarlo(2000, 4 * BETA)).directions
    for way in ("remove", "add"):
        assert agree((found[way].lower, found[way].upper), (truth[way].lower, truth[way].upper)), way


@pytest.mark.parametrize("sampler", ["importance", "combined"])
@pytest.mark.parametrize(
    ("sigma", "steps", "epsilon"), [(1.0, 1, 12.0), (1.0, 2, 14.0), (0.5, 3, 20.0), (0.4, 300, 1.0)]
)
def test_an_event_far_below_the_mean(sampler, sigma, steps, epsilon):
    """`add`: all coordinates up to 20 standard deviations below 0, where upper tails are 1 to rounding."""
    mechanism = Mechanism(BallsAndBins(steps), sigma)
    truth = mechanism.delta(epsilon).directions["add"]
    found = mechanism.delta(epsilon, MonteCarlo(20_000, 4 * BETA, sampler=sampler)).directions["add"]
    assert agree((found.lower, found.upper), (truth.lower, truth.upper))


def test_ten_thousand_epochs_are_not_private():
    """Next to everything is lost in both directions: no bound may claim otherwise, with samples or without."""
    curve = curve_of(Mechanism(BallsAndBins(20), 1.0, 10_000), MonteCarlo(100))
    assert curve._sure(30.0, "add") > -0.1


@pytest.mark.parametrize(("sigma", "steps", "epsilon"), [(1.0, 10, 2.0), (0.5, 20, 4.0), (3.0, 5, 0.5)])
def test_tilted_means_to_half_a_percent(sigma, steps, epsilon):
    """Within 5 standard errors (false alarms 6·10⁻⁷ each), which are half a percent or less."""
    sampler = TiltedAdd(sigma, steps, best_power(sigma, steps, 1, epsilon), epsilon)
    found = run([Job(sampler, SHARES, 200_000)], seed=3)[0].moments(epsilon)
    truth = sum(exact(sigma, steps, epsilon, "add")) / 2 / math.exp(sampler.log_weight)
    assert found.standard_error < 0.006 * truth
    assert found.mean_low - 5 * found.standard_error <= truth <= found.mean_high + 5 * found.standard_error


@pytest.mark.parametrize("wrong", [0.97, 1.03])
def test_a_sigma_off_by_three_percent_is_rejected(wrong):
    sigma, steps, epsilon = 0.5, 100, 4.0
    power = best_power(sigma, steps, 1, epsilon)
    found = interval(TiltedAdd(sigma * wrong, steps, power, epsilon), epsilon, 5_000)
    assert not agree(found, exact(sigma, steps, epsilon, "add"))
    found = interval(Plain(0.5 * wrong, 2, "remove"), 3.0, 200_000)
    assert not agree(found, exact(0.5, 2, 3.0, "remove"))


def test_fixed_bins_are_one_epoch_with_less_noise():
    truth = Mechanism(BallsAndBins(20, redraw=False), 1.5, 4).delta(1.0).directions["remove"]
    found = interval(Plain(pooled_noise(1.5, 4), 20, "remove"), 1.0, 100_000)
    assert agree(found, (truth.lower, truth.upper))
    # and the sum over epochs itself: bins kept, losses of the E-fold product computed in full
    rng = np.random.default_rng(8)
    x = 1.5 * rng.standard_normal((50_000, 4, 20))
    x[:, :, 0] += 1.0
    log_z = (x.sum(axis=1) - 2.0) / 1.5**2
    loss = np.log(np.exp(log_z).mean(axis=1))
    value = np.maximum(-np.expm1(1.0 - loss), 0.0)
    assert abs(value.mean() - truth.value) < 5.0 * value.std() / math.sqrt(value.size)


@pytest.mark.parametrize("redraw", [True, False])
@pytest.mark.parametrize(
    ("sigma", "steps", "epochs", "taken"), [(1.0, 10, 1, 4), (0.8, 12, 3, 5), (1.5, 5, 2, 1)]
)
def test_an_unfinished_epoch(sigma, steps, epochs, taken, redraw):
    """Against the exact answer; and those of one step more and less are rejected, where they differ enough."""
    sampler = BallsAndBins(steps, redraw=redraw)
    epsilon, method = 0.4, MonteCarlo(200_000, 4 * BETA, sampler="plain")
    found = Mechanism(sampler, sigma, epochs, taken).delta(epsilon, method).directions
    for direction in ("remove", "add"):
        bounds = found[direction].lower, found[direction].upper
        truth = Mechanism(sampler, sigma, epochs, taken).delta(epsilon).directions[direction]
        assert agree(bounds, (truth.lower, truth.upper))
    if epochs == 1:
        for wrong in (taken - 1, taken + 1):
            other = Mechanism(sampler, sigma, epochs, wrong).delta(epsilon).directions["remove"]
            assert not agree((found["remove"].lower, found["remove"].upper), (other.lower, other.upper))


def test_an_event_serves_no_smaller_epsilon():
    """E of ε = 1 misses losses from 0.3 to 1: what it says of δ(0.3) would be too small."""
    job = Job(Importance(1.0, 10, "remove", 1.0), Lattice.around(0.3, 1.0, 0.0), 1000)
    found = run([job])[0]
    assert found.log_delta(1.0, BETA).upper < 0.0
    with pytest.raises(InvalidInputError, match=r"epsilon is 0\.3, but must be at least 1\.0"):
        found.log_delta(np.array([1.0, 0.3]), BETA)


def test_events_do_not_compose():
    with pytest.raises(InvalidInputError, match="Importance"):
        Epochs(Importance(1.0, 10, "remove", 1.0), 2)


def test_event_probabilities_and_erratum_4():
    """The paper gives P(E) ≈ 3.75·10⁻³ at ε = 12 for T = 5000, σ = 0.4: that is its value at ε = 9."""
    for sigma, steps, epsilon, value in (
        (0.4, 5000, 12.0, 4.6198e-6), (0.4, 5000, 9.0, 3.754e-3), (0.35, 10_000, 12.0, 1.6632e-4)
    ):  # fmt: skip
        assert math.exp(log_event_probability(sigma, steps, epsilon, "remove")) == pytest.approx(
            value, rel=1e-4
        )


def test_outside_of_the_event_losses_are_below_epsilon():
    rng = np.random.default_rng(9)
    for sigma, steps, epsilon in ((1.0, 10, 0.3), (0.5, 100, 2.0)):
        s = 1 / sigma
        x = sigma * rng.standard_normal((50_000, steps))
        loss = -np.log(np.exp(s * x / sigma - s * s / 2).mean(axis=1))
        assert np.all(loss[x.max(axis=1) > threshold(sigma, steps, epsilon, "add")] < epsilon)
        loss, shifted = None, x.copy()
        shifted[:, 0] += 1.0
        loss = np.log(np.exp(s * shifted / sigma - s * s / 2).mean(axis=1))
        assert np.all(loss[x.max(axis=1) < threshold(sigma, steps, epsilon, "remove")] <= epsilon)


def test_erratum_1_the_printed_event_loses_most_of_delta():
    """With C = ½ − εσ² the estimate at T = 10, σ = 1, ε = 0.3 is 0.0021 instead of 0.0516."""
    sigma, steps, epsilon = 1.0, 10, 0.3
    truth = exact(sigma, steps, epsilon, "add")
    assert agree(interval(Importance(sigma, steps, "add", epsilon), epsilon, 50_000), truth)
    C = 0.5 - epsilon * sigma**2
    p = math.exp(steps * log_ndtr(C / sigma))
    rng = np.random.default_rng(10)
    x = ndtri(rng.random((50_000, steps)) * math.exp(log_ndtr(C)))
    loss = -np.log(np.exp(x - 0.5).mean(axis=1))
    printed = p * np.maximum(-np.expm1(epsilon - loss), 0.0).mean()
    assert printed == pytest.approx(0.0021, rel=0.05)
    assert printed < 0.05 * truth[0]


@pytest.mark.parametrize("mistake", [None, "x1 below y", "others free"])
def test_erratum_3_combined_sampling(mistake):
    """x₁ ≤ y* + 1 where another coordinate is largest, and the others ≤ y* where x₁ is: printed otherwise."""
    sigma, steps, epsilon = 1.0, 4, 0.3
    s, m = 1.0 / sigma, 400_000
    rng = np.random.default_rng(11)
    event = math.exp(log_event_probability(sigma, steps, epsilon, "remove"))
    y = sigma * ndtri((1 - event * rng.random(m)) ** (1 / steps))

    def below(limit):
        return sigma * ndtri(np.exp(log_ndtr(limit / sigma)) * rng.random(m))

    spiked = rng.random(m) * steps < 1
    other = below(y - 1.0) if mistake == "x1 below y" else below(y)
    x1 = np.where(spiked, y, other) + 1.0
    x2 = np.where(spiked, sigma * rng.standard_normal(m) if mistake == "others free" else below(y), y)
    rest = [
        np.where(spiked & (mistake == "others free"), sigma * rng.standard_normal(m), below(y))
        for _ in range(steps - 2)
    ]
    S = np.mean([np.exp(x * s * s - s * s / 2) for x in (x1, x2, *rest)], axis=0)
    value = np.maximum(1 - math.exp(epsilon) / S, 0.0)
    error = event * value.std() / math.sqrt(m)
    truth = exact(sigma, steps, epsilon, "remove")[1]
    off = abs(event * value.mean() - truth) / error
    assert (off < 5.0) == (mistake is None)
    printed = {None: truth, "x1 below y": 0.1071, "others free": 0.1416}[mistake]
    assert event * value.mean() == pytest.approx(printed, abs=5.0 * error)
    k = tuple(range(1, steps - 1))
    assert agree(interval(Combined(sigma, steps, "remove", epsilon, k), epsilon, 100_000), (truth, truth))


def test_moments_of_the_tilt():
    """E S^{−β} and E e^{−ωZ} against averages."""
    s = 1.0
    rng = np.random.default_rng(13)
    S = np.exp(s * rng.standard_normal((200_000, 7)) - 0.5).mean(axis=1)
    value = S**-2.5
    kappa = TiltedAdd(1.0, 7, 2.5, 1.0).log_moment
    assert math.exp(kappa) == pytest.approx(value.mean(), abs=5 * value.std() / math.sqrt(value.size))
    z = np.exp(s * rng.standard_normal(400_000) - 0.5)
    for omega in (1e-9, 0.3, 4.0):
        value = np.exp(-omega * z)
        found = math.exp(float(log_laplace(np.array([omega]), s)[0]))
        assert abs(found - value.mean()) < 5 * value.std() / math.sqrt(value.size) + 1e-15


class Coin(Untilted):
    """Somebody else's pair: randomised response, L = ±a, δ(ε) = (e^a − e^ε)/(1 + e^a)."""

    row = 1

    def losses(self, rng, count):
        loss = np.where(rng.random(count) < 1 / (1 + math.exp(-1.0)), 1.0, -1.0)
        return loss, loss


def test_another_pair_plugs_in():
    truth = (math.e - math.exp(0.5)) / (1 + math.e)
    assert agree(interval(Coin(), 0.5, 100_000), (truth, truth))
    assert not agree(interval(Coin(), 0.5, 100_000), (1.03 * truth, 1.03 * truth))
