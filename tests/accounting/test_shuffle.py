"""Bounds for shuffling: in the right order, tighter with C optimised, and composed over epochs."""

import numpy as np
import pytest
from scipy.stats import norm

from ballsbins.accounting.bounds_only import ShuffleCurve
from ballsbins.accounting.curve import DIRECTIONS, REMOVE
from ballsbins.accounting.epochs.composition import ComposedCurve
from ballsbins.accounting.gaussian import GaussianCurve
from ballsbins.accounting.one_epoch.curve import ExactCurve
from ballsbins.accounting.one_epoch.lower_bound import MaximumCurve


def shuffle(sigma, steps, epochs=1, whole=None):
    one = ExactCurve(((steps, sigma),), steps)
    bins = one if epochs == 1 else ComposedCurve([(one, epochs)])
    return ShuffleCurve(sigma, steps, epochs, epochs if whole is None else whole, bins)


@pytest.mark.parametrize(("sigma", "steps"), [(0.4, 5000), (1.0, 10), (0.8, 1000), (3.0, 50)])
def test_balls_and_bins_below_shuffle_below_deterministic(sigma, steps):
    """Proposition B-vs-S-and-D, in the sense of the bounds there are."""
    epsilon = np.array([-1.0, 0.05, 0.5, 2.0, 6.0])
    for direction in DIRECTIONS:
        found = shuffle(sigma, steps).log_delta(epsilon, direction)
        assert np.all(found.lower <= found.upper)
        assert np.array_equal(found.value, found.upper)
        assert np.all(found.lower >= ExactCurve(((steps, sigma),), steps).log_delta(epsilon, direction).lower)
        assert np.all(found.upper == GaussianCurve(sigma).log_delta(epsilon, direction).upper)


def test_at_least_the_bound_on_a_grid_of_thresholds():
    """Chua et al. try C in steps of 0.01; the optimum is above all of them, and of that order."""
    sigma, steps, epsilon = 0.4, 5000, 4.0
    C = np.arange(0, 10, 0.01)
    below = [norm.logcdf((C - m) / sigma) + (steps - 1) * norm.logcdf(C / sigma) for m in (2.0, 1.0)]
    grid = np.max(-np.expm1(below[0]) + np.exp(epsilon) * np.expm1(below[1]))
    found = np.exp(shuffle(sigma, steps).log_delta(np.array([epsilon]), REMOVE).lower[0])
    assert grid <= found <= grid * (1 + 1e-3)
    assert found > 1000 * np.exp(
        ExactCurve(((steps, sigma),), steps).log_delta(np.array([epsilon]), REMOVE).upper[0]
    )


def test_several_epochs_against_direct_rounding():
    """Binning the maximum and rounding losses down is a cruder bound below the same truth, of first order in h."""
    sigma, steps, epochs, epsilon, h = 0.7, 100, 3, np.array([2.0]), 2e-4
    edges = np.concatenate([[-np.inf], np.linspace(0, 6, 4001), [np.inf]])
    cdf = [norm.cdf((edges - m) / sigma) * norm.cdf(edges / sigma) ** (steps - 1) for m in (2.0, 1.0)]
    p, q = np.diff(cdf[0]), np.diff(cdf[1])
    keep = (p > 1e-13) & (q > 1e-13)
    index = np.floor(np.log(p[keep] / q[keep]) / h).astype(int)
    first = index.min()
    n = 1 << 18
    total = np.fft.irfft(np.fft.rfft(np.bincount(index - first, weights=p[keep]), n) ** epochs, n)
    losses = h * (epochs * first + np.arange(n))
    crude = np.log(np.sum(np.maximum(total, 0) * np.maximum(-np.expm1(epsilon - losses), 0)))
    pair = ComposedCurve([(MaximumCurve(sigma, steps, 2.0, 1.0), epochs)]).log_delta(epsilon, REMOVE)
    assert crude <= pair.upper[0] + 1e-9  # a lower bound is below an upper one
    assert pair.lower[0] <= crude + epochs * h  # and ours below the truth, which is within n·h of that one
    assert pair.upper[0] - pair.lower[0] < 1e-3
    found = shuffle(sigma, steps, epochs).log_delta(epsilon, REMOVE)
    assert found.lower[0] == pair.lower[0]
    assert found.upper[0] == GaussianCurve(sigma, epochs).log_delta(epsilon, REMOVE).upper[0]


def test_more_epochs_cost_more_and_unfinished_ones_count_where_they_may():
    epsilon = np.array([1.0])
    lower = [shuffle(0.8, 100, e).log_delta(epsilon, REMOVE).lower[0] for e in (1, 2, 4)]
    assert lower[0] < lower[1] < lower[2]
    cut = shuffle(0.8, 100, 2, whole=1).log_delta(epsilon, REMOVE)
    assert lower[0] <= cut.lower[0] <= lower[1]
    none = shuffle(0.8, 100, 1, whole=0).log_delta(epsilon, REMOVE)
    assert none.lower[0] == ExactCurve(((100, 0.8),), 100).log_delta(epsilon, REMOVE).lower[0]


def test_the_pair_of_the_maximum_composes_below_the_gaussian():
    """T = 1: it is the Gaussian, and so are its products."""
    epsilon = np.array([0.5, 4.0])
    found = ComposedCurve([(MaximumCurve(1.0, 1, 2.0, 1.0), 5)]).log_delta(epsilon, REMOVE)
    truth = GaussianCurve(1.0, 5).log_delta(epsilon, REMOVE)
    assert np.all(found.lower <= truth.upper)
    assert np.all(found.lower > truth.value - 0.02)
