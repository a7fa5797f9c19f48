"""The formal guarantees of Poisson, each with a negative control."""

import numpy as np
import pytest

from ballsbins.samplers import Poisson

SEED = 31


def inclusion(steps, n, epochs, seed=SEED):
    """Return a boolean array [epoch, step, example]."""
    table = np.zeros((epochs, steps, n), dtype=bool)
    for epoch in range(epochs):
        for step, batch in enumerate(Poisson(steps).batches(n, seed, epoch=epoch)):
            table[epoch, step, batch] = True
    return table


@pytest.fixture(scope="module")
def table():
    return inclusion(steps=8, n=50, epochs=4000)


def test_each_example_is_in_each_batch_with_probability_one_in_steps(fits_binomials, fits, table):
    steps = table.shape[1]
    for axes in ((0, 1), (0, 2), 0):  # by example; by step; by both
        counts = table.sum(axis=axes)
        assert fits_binomials(counts, table.size // counts.size, 1 / steps)
    total = int(table.sum())
    right = [1 / steps, 1 - 1 / steps]
    assert fits([total, table.size - total], right)
    assert not fits([1.02 * total, table.size - 1.02 * total], right)  # everybody 2 % likelier
    counts = table.sum(axis=(0, 1))
    counts[7] += counts[7] // 4  # one example likelier
    assert not fits_binomials(counts, table.size // counts.size, 1 / steps)


def joint(fits, steps, one, other):
    """Test two arrays of inclusions for independence with the right marginals."""
    counts = np.bincount((2 * one + other).ravel(), minlength=4)
    p = 1 / steps
    return fits(counts, [(1 - p) ** 2, (1 - p) * p, p * (1 - p), p * p])


def test_inclusions_are_independent(fits, table):
    _, steps, n = table.shape
    assert joint(fits, steps, table[:, :, :-1], table[:, :, 1:])  # neighbours
    assert joint(fits, steps, table[:, :, : n // 2], table[:, :, n // 2 :])  # examples far apart
    assert joint(fits, steps, table[:, :-1], table[:, 1:])  # steps
    assert joint(fits, steps, table[:-1], table[1:])  # epochs
    copied = table.copy()
    copied[1::20] = table[:-1][::20]  # one epoch in 20 repeats the one before
    assert not joint(fits, steps, copied[:-1], copied[1:])


def test_batch_sizes_are_binomial(fits_binomial, table):
    _, steps, n = table.shape
    sizes = table.sum(axis=2)
    assert fits_binomial(sizes, n, 1 / steps)
    assert not fits_binomial(sizes, n, 1.02 / steps)


def test_some_examples_are_in_no_batch_and_some_in_several(table):
    often = table.sum(axis=1)
    assert (often == 0).any()
    assert (often > 1).any()


def test_a_large_batch_is_drawn_in_several_chunks():
    batch = Poisson(2).batches(1_000_000, SEED).at(1)
    assert abs(len(batch) - 500_000) < 6 * 500
    assert np.all(np.diff(batch.astype(np.int64)) > 0)


def test_work_follows_the_batch_not_the_data():
    batch = Poisson(2**31 - 1).batches(2**40, SEED).at(12)  # a terabyte, were it O(n)
    assert abs(len(batch) - 512) < 6 * 23
    assert batch.dtype == np.int64
    assert batch[-1] < 2**40


def test_one_step_takes_everything():
    assert np.array_equal(Poisson(1).batches(100, SEED).at(0), np.arange(100))
