"""Counted losses bound what the losses themselves give, and merge without a trace of how they were divided."""

from __future__ import annotations

import numpy as np
import pytest

from ballsbins.accounting.monte_carlo.estimate import Lattice, Tally, moments, moments_of_shares, shares
from ballsbins.errors import InvalidInputError


def values(loss, epsilon, tilt):
    entropy = tilt**tilt / (1 + tilt) ** (1 + tilt) if tilt > 0 else 1.0
    return (
        np.where(
            loss > epsilon, -np.expm1(np.minimum(epsilon - loss, 0)) * np.exp(-tilt * (loss - epsilon)), 0
        )
        / entropy
    )


@pytest.mark.parametrize("tilt", [0.0, 0.3, 2.0, 25.0])
@pytest.mark.parametrize("width", [0.0, 0.2])
def test_means_and_variances_are_bounded(tilt, width):
    rng = np.random.default_rng(3)
    low = rng.normal(1.0, 0.7, 20_000)
    high = low + width * rng.random(low.size)
    lattice = Lattice.around(0.5, 1.5, tilt)
    tally = Tally.of(lattice, low, high)
    for epsilon in (0.5, 1.0, 1.5):
        found = moments(tally, tilt, epsilon)
        some = values(low + (high - low) * rng.random(low.size), epsilon, tilt)
        assert found.mean_low <= some.mean() <= found.mean_high
        if width == 0.0:
            assert found.mean_high - found.mean_low < 2e-3 * some.mean()
            assert found.variance_high == pytest.approx(some.var(ddof=1), rel=5e-3)
            assert found.standard_error == pytest.approx(some.std(ddof=1) / np.sqrt(some.size), rel=5e-3)


def test_rounding_is_outward_beyond_the_ends_of_the_lattice():
    lattice = Lattice.around(0.0, 0.0, 0.0)
    for loss, least, most in ((-5.0, 0.0, 0.0), (1e9, 1.0 - 1e-9, 1.0), (np.inf, 1.0 - 1e-9, 1.0)):
        found = moments(Tally.of(lattice, np.array([loss]), np.array([loss])), 0.0, 0.0)
        assert least <= found.mean_low <= found.mean_high <= most


def test_merging_is_exactly_associative():
    rng = np.random.default_rng(5)
    lattice = Lattice.around(0.0, 1.0, 1.0)
    a, b, c = (Tally.of(lattice, x, x + 0.1) for x in rng.normal(size=(3, 100)))
    one, two = a.merge(b).merge(c), c.merge(a.merge(b))
    assert one.count == two.count == 300
    assert np.array_equal(one.low, two.low)
    assert np.array_equal(one.high, two.high)
    with pytest.raises(InvalidInputError, match="lattice"):
        a.merge(Tally.empty(Lattice.around(0.0, 2.0, 1.0)))


@pytest.mark.parametrize(("low", "high"), [(np.nan, np.nan), (0.5, np.nan), (1.0, 0.9)])
def test_what_bounds_nothing_is_refused(low, high):
    """A loss that is not a number, or bounds in the wrong order, would be counted somewhere."""
    with pytest.raises(InvalidInputError, match="bounds on a loss"):
        Tally.of(Lattice.around(0.0, 1.0, 0.0), np.array([0.1, low]), np.array([0.2, high]))


def test_an_epsilon_below_the_lattice_is_refused():
    with pytest.raises(InvalidInputError, match="epsilon"):
        moments(Tally.empty(Lattice.around(1.0, 2.0, 0.0)), 0.0, 0.5)


def test_contributions_are_counted_outwards():
    rng = np.random.default_rng(6)
    low = rng.random(5000) ** 3
    high = np.minimum(low + 1e-3 * rng.random(5000), 1.0)
    tally = Tally.of(Lattice(0.0, 2.0**-10, 2**10 + 1), low, high)
    found = moments_of_shares(tally, 1e-4)
    assert low.mean() - 2e-3 < found.mean_low <= low.mean()
    assert high.mean() + 1e-4 <= found.mean_high < high.mean() + 2e-3
    assert found.variance_low == pytest.approx(low.var(ddof=1), rel=1e-2)
    (_, below), (most, above) = shares(tally, 0.5)
    assert below.sum() == above.sum() == 5000
    assert most.max() == 1.0
