"""Epochs that stop early, and bins of two kinds: fixed bins that stop inside an epoch."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binomtest

from ballsbins.accounting.curve import ADD, DIRECTIONS, REMOVE
from ballsbins.accounting.gaussian import GaussianCurve
from ballsbins.accounting.one_epoch.curve import ExactCurve

SWEEP = json.loads((Path(__file__).parent.parent / "data" / "sweep.json").read_text())["values"]
EPSILON = np.array([1e-3, 0.05, 0.3, 0.6, 0.69, 1.0, 3.0])


def test_one_of_two_steps_is_half_a_gaussian():
    """S = ½ + ½Z, so δ_remove(ε) = ½ E(Z − (2e^ε − 1))₊, and the put at 2e^−ε − 1: the Gaussian's δ at another ε."""
    for sigma in (0.3, 1.0, 4.0):
        curve, gaussian = ExactCurve(((1, sigma),), steps=2), GaussianCurve(sigma)
        found = curve.log_delta(EPSILON, REMOVE)
        strike = 2 * np.expm1(EPSILON) + 1
        closed = gaussian.log_delta(np.log(strike), REMOVE).value - np.log(2)
        assert found.value == pytest.approx(closed, abs=1e-12)
        assert ((found.lower <= closed + 1e-13) & (closed - 1e-13 <= found.upper)).all()

        found = curve.log_delta(EPSILON, ADD)
        alive = np.exp(-EPSILON) > 0.5
        assert np.isneginf(found.upper[~alive]).all()
        strike = 1 + 2 * np.expm1(-EPSILON[alive])
        put = gaussian.log_delta(-np.log(strike), ADD).value + np.log(strike)
        assert found.value[alive] == pytest.approx(put - np.log(2) + EPSILON[alive], rel=1e-11, abs=1e-11)


def test_add_is_exactly_zero_from_where_the_ratio_cannot_fall():
    """S ≥ 1 − t/T; at one double before the threshold it is tiny but not 0, and its upper bound is above 0."""
    for done, steps in ((1, 2), (3, 10), (999, 1000), (1, 10**6)):
        edge = -np.log1p(-done / steps)
        epsilon = np.array([edge * (1 - 1e-12), edge * (1 + 1e-12), 2 * edge, 50.0])
        for sigma in (0.2, 1.0):
            curve = ExactCurve(((done, sigma),), steps=steps)
            found = curve.log_delta(epsilon, ADD)
            assert np.isneginf(found.upper[1:]).all()
            assert found.upper[0] > -np.inf
            shallow = curve.log_delta(0.5 * epsilon[:1], ADD)
            assert np.isfinite(shallow.lower).all()
            # negative ε in the other direction: δ = 1 − e^−ε there exactly
            mirrored = curve.log_delta(-epsilon[1:], REMOVE)
            assert mirrored.value == pytest.approx(np.log(-np.expm1(-epsilon[1:])), rel=1e-12)


def test_close_to_the_edge_all_digits_are_kept():
    """The strike (e^−ε − 1 + t/T)·T/t cancels there; the sweep has points at a relative distance of 10⁻⁹."""
    near = [p for p in SWEEP if p["kind"] == "partial" and p["direction"] == ADD]
    assert len(near) >= 5
    closest = 1.0
    for point in near:
        (done, sigma), (rest, _) = point["groups"]
        found = ExactCurve(((done, sigma),), steps=done + rest).log_delta(np.array([point["epsilon"]]), ADD)
        assert found.lower[0] <= float(point["log_delta"]) <= found.upper[0]
        assert found.upper[0] - found.lower[0] <= 1e-9
        closest = min(closest, 1 - point["epsilon"] / -np.log1p(-done / (done + rest)))
    assert closest < 1e-3


def test_a_whole_epoch_is_an_unfinished_one_with_nothing_left():
    for steps, sigma in ((2, 1.0), (77, 0.4), (10**6, 2.0)):
        epsilon = np.array([-1.0, 0.0, 0.01, 0.5])
        for direction in DIRECTIONS:
            whole = ExactCurve(((steps, sigma),)).log_delta(epsilon, direction)
            explicit = ExactCurve(((steps, sigma),), steps=steps).log_delta(epsilon, direction)
            assert (whole.value == explicit.value).all()


@pytest.mark.parametrize(("steps", "sigma"), [(20, 0.5), (20, 3.0), (10**6, 0.4)])
def test_more_steps_are_less_private(steps, sigma):
    """δ grows with t: the mechanism after t steps is a post-processing of that after more."""
    epsilon = np.array([-0.3, 0.0, 0.003, 0.1, 1.0])
    for direction in DIRECTIONS:
        before = np.full(epsilon.shape, -np.inf)
        for done in (1, 2, steps // 3, steps // 2, steps - 1, steps):
            found = ExactCurve(((done, sigma),), steps=steps).log_delta(epsilon, direction)
            assert (found.upper >= before).all()
            before = found.lower


def losses(rng, count, done, steps, sigma):
    """S under Q: the likelihood ratio of what was seen after `done` of `steps` steps."""
    z = np.exp(rng.standard_normal((count, done)) / sigma - 0.5 / sigma**2)
    return 1 - done / steps + z.sum(axis=1) / steps


@pytest.mark.parametrize(
    ("done", "steps", "sigma", "epsilon"), [(3, 5, 1.0, 0.3), (1, 4, 0.7, 0.1), (9, 10, 0.5, 1.0)]
)
def test_simulation(done, steps, sigma, epsilon):
    """Two million draws, seed fixed; the interval of ±5 standard errors misses the truth once in 1.7 million tests.

    The negative control, accounting for a whole epoch instead, has to be seen.
    """
    rng = np.random.default_rng(20250101)
    ratio = np.concatenate([losses(rng, 200_000, done, steps, sigma) for _ in range(10)])
    for direction in DIRECTIONS:
        if direction == REMOVE:
            gain = np.maximum(ratio - np.exp(epsilon), 0.0)
        else:
            gain = np.maximum(1 - np.exp(epsilon) * ratio, 0.0)
        mean, deviation = gain.mean(), gain.std() / np.sqrt(len(gain))
        exact = np.exp(
            ExactCurve(((done, sigma),), steps=steps).log_delta(np.array([epsilon]), direction).value[0]
        )
        wrong = np.exp(ExactCurve(((steps, sigma),)).log_delta(np.array([epsilon]), direction).value[0])
        assert abs(exact - mean) <= 5 * deviation
        assert abs(wrong - mean) > 5 * deviation


def test_simulated_events_of_the_mechanism_itself():
    """ABLQ on three records, not the formula: P spikes a uniform bin of T, only `done` are seen.

    The test is the event {loss > ε}; Q and P are simulated as they run. 400 000 runs each, two-sided at 10⁻⁶.
    """
    done, steps, sigma, epsilon, runs = 2, 3, 0.8, 0.2, 400_000
    rng = np.random.default_rng(7)

    def seen(spiked):
        x = sigma * rng.standard_normal((runs, done))
        if spiked:
            bin_ = rng.integers(steps, size=runs)
            for t in range(done):
                x[bin_ == t, t] += 1.0
        return x

    def ratio(x):
        return 1 - done / steps + np.exp((x - 0.5) / sigma**2).sum(axis=1) / steps

    p = int((ratio(seen(True)) > np.exp(epsilon)).sum())
    q = int((ratio(seen(False)) > np.exp(epsilon)).sum())
    # P(S > K) = δ − K δ′(K), Q(S > K) = −δ′(K), by differences of the curve in K
    curve, h = ExactCurve(((done, sigma),), steps=steps), 1e-4
    k = np.exp(epsilon) + np.array([-h, 0.0, h])
    delta = np.exp(curve.log_delta(np.log(k), REMOVE).value)
    tail_q = (delta[0] - delta[2]) / (2 * h)
    tail_p = delta[1] + k[1] * tail_q
    assert binomtest(p, runs, tail_p).pvalue > 1e-6
    assert binomtest(q, runs, tail_q).pvalue > 1e-6
    assert binomtest(p, runs, tail_q).pvalue < 1e-6  # negative control


def test_two_kinds_of_bins_from_the_sweep():
    points = [p for p in SWEEP if p["kind"] == "fixed"]
    assert len(points) >= 10
    for point in points:
        kinds = tuple((count, sigma) for count, sigma in point["groups"])
        found = ExactCurve(kinds).log_delta(np.array([point["epsilon"]]), point["direction"])
        assert found.lower[0] <= float(point["log_delta"]) <= found.upper[0]
        # the bins the other way round are the same bins
        turned = ExactCurve(kinds[::-1]).log_delta(np.array([point["epsilon"]]), point["direction"])
        assert turned.lower[0] <= float(point["log_delta"]) <= turned.upper[0]


def test_equal_kinds_are_one_kind_and_kinds_in_between_lie_between():
    epsilon = np.array([0.01, 0.2, 1.5])
    for direction in DIRECTIONS:
        split = ExactCurve(((30, 0.9), (70, 0.9))).log_delta(epsilon, direction)
        whole = ExactCurve(((100, 0.9),)).log_delta(epsilon, direction)
        assert split.value == pytest.approx(whole.value, abs=1e-10)
        less = ExactCurve(((100, 0.8),)).log_delta(epsilon, direction)
        mixed = ExactCurve(((30, 0.8), (70, 0.9))).log_delta(epsilon, direction)
        assert (whole.lower <= mixed.upper).all()
        assert (mixed.lower <= less.upper).all()
