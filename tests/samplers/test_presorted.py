"""The two routes of the paper for data that is already shuffled."""

import numpy as np
import pytest
from scipy import stats

from ballsbins.samplers import BallsAndBins, binomial_sizes, cut_in_order, thrown_sizes

SEED = 8
ROUTES = [thrown_sizes, binomial_sizes]


def epochs_of(route, n, steps, epochs):
    return np.array([list(route(BallsAndBins(steps), n, SEED, epoch)) for epoch in range(epochs)])


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(("n", "steps"), [(0, 1), (0, 4), (1, 1), (10, 1), (10, 4), (3, 50), (100_000, 7)])
def test_sizes_add_up(route, n, steps):
    sizes = list(route(BallsAndBins(steps), n, SEED))
    assert len(sizes) == steps
    assert sum(sizes) == n
    assert min(sizes) >= 0


@pytest.mark.parametrize("route", ROUTES)
def test_sizes_are_multinomial(fits, route):
    """All size vectors of a small case against their exact probabilities."""
    n, steps, epochs = 4, 3, 12_000
    vectors = [(a, b, n - a - b) for a in range(n + 1) for b in range(n + 1 - a)]
    shares = [stats.multinomial(n, [1 / steps] * steps).pmf(vector) for vector in vectors]
    numbers = {vector: number for number, vector in enumerate(vectors)}
    drawn = [numbers[tuple(int(size) for size in sizes)] for sizes in epochs_of(route, n, steps, epochs)]
    counts = np.bincount(drawn, minlength=len(vectors))
    assert fits(counts, shares)
    # The negative control: the sequential rule with 1/(T − t) + 2 % in its first step.
    wrong = [stats.binom(n, 1.02 / steps).pmf(a) * stats.binom(n - a, 0.5).pmf(b) for a, b, _ in vectors]
    assert not fits(1e6 * np.array(wrong), shares)


@pytest.mark.parametrize("route", ROUTES)
def test_marginal_sizes_are_binomial(fits_binomial, route):
    n, steps, epochs = 300, 10, 1500
    sizes = epochs_of(route, n, steps, epochs)
    for step in (0, 4, 9):
        assert fits_binomial(sizes[:, step], n, 1 / steps)
        assert not fits_binomial(sizes[:, step] + sizes[:, step - 1] // 10, n, 1 / steps)


def test_both_routes_and_the_batches_are_independent(fits_binomial):
    """The sizes come from words of their own: the difference of two routes varies as of independent sizes."""
    n, steps, epochs = 400, 8, 1500
    thrown = epochs_of(thrown_sizes, n, steps, epochs)[:, 0]
    binomial = epochs_of(binomial_sizes, n, steps, epochs)[:, 0]
    drawn = [np.count_nonzero(BallsAndBins(steps).bins(SEED, epoch, 0, n) == 0) for epoch in range(epochs)]
    for one, other in ((thrown, binomial), (thrown, np.array(drawn)), (binomial, np.array(drawn))):
        assert fits_binomial(one + other, 2 * n, 1 / steps)
    assert not fits_binomial(thrown + thrown, 2 * n, 1 / steps)


@pytest.mark.parametrize("route", ROUTES)
def test_epochs_redraw_or_keep_the_sizes(route):
    def sizes(sampler, epoch):
        return [int(size) for size in route(sampler, 1000, SEED, epoch)]

    assert sizes(BallsAndBins(10), 0) != sizes(BallsAndBins(10), 1)
    fixed = BallsAndBins(10, redraw=False)
    assert sizes(fixed, 0) == sizes(fixed, 1)


def test_cutting_in_order_gives_consecutive_parts():
    data = np.arange(100, 110)
    parts = [data[part].tolist() for part in cut_in_order([3, 0, 6, 1, 0])]
    assert parts == [[100, 101, 102], [], [103, 104, 105, 106, 107, 108], [109], []]
    sizes = thrown_sizes(BallsAndBins(5), 77, SEED)
    assert np.array_equal(
        np.concatenate([np.arange(77)[part] for part in cut_in_order(sizes)]), np.arange(77)
    )
