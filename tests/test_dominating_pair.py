"""Theorem 3.1 itself: the mechanism, simulated with our own batches, against the exact accountant.

ABLQ with the query ψ(x) = x on the data sets (0, …, 0, 1) and (0, …, 0, ⊥) releases one noisy sum a step. Its
likelihood ratio is monotone in S = mean_t exp((x_t − ½)/σ²), so the events {S > K} are the best tests and
δ(ε) = P(S > e^ε) − e^ε·Q(S > e^ε): two frequencies that simulation can count. Every check is two-sided at five
standard deviations (false alarm below 10⁻⁵ in all), and a simulation with σ off by 10 % must be noticed.
"""

from __future__ import annotations

import numpy as np
import pytest

from ballsbins import BallsAndBins, Mechanism

RUNS = 40_000


def simulate(sigma, steps, epsilon, seed):
    """Estimates of δ in both directions, with standard errors, from runs on either data set."""
    rng = np.random.default_rng(seed)
    sampler = BallsAndBins(steps)
    bins = np.array(
        [sampler.bin_of(seed, epoch, 6) for epoch in range(RUNS)]
    )  # where the seventh example goes
    noise = sigma * rng.standard_normal((2, RUNS, steps))
    present, absent = noise[0].copy(), noise[1]
    present[np.arange(RUNS), bins] += 1.0
    loss = [np.log(np.exp((x - 0.5) / sigma**2).mean(axis=1)) for x in (present, absent)]
    result = {}
    for direction, sign in (("remove", 1.0), ("add", -1.0)):
        first, second = loss if direction == "remove" else loss[::-1]
        hits = sign * first > epsilon, sign * second > epsilon
        value = hits[0].mean() - np.exp(epsilon) * hits[1].mean()
        variance = (hits[0].var() + np.exp(2 * epsilon) * hits[1].var()) / RUNS
        result[direction] = value, np.sqrt(variance)
    return result


@pytest.mark.parametrize(("sigma", "steps", "epsilon"), [(0.6, 5, 0.5), (1.0, 3, 0.2), (0.4, 12, 1.0)])
def test_simulated_mechanism(sigma, steps, epsilon):
    exact = Mechanism(BallsAndBins(steps), sigma).delta(epsilon)
    for direction, (value, error) in simulate(sigma, steps, epsilon, 11).items():
        assert abs(value - exact.directions[direction].value) < 5 * error


def test_the_simulation_would_notice_a_wrong_sigma():
    exact = Mechanism(BallsAndBins(5), 0.6).delta(0.5).directions["remove"].value
    for wrong in (0.54, 0.66):
        value, error = simulate(wrong, 5, 0.5, 11)["remove"]
        assert abs(value - exact) > 5 * error
