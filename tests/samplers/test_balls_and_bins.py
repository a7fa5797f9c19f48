"""The formal guarantees of BallsAndBins, each with a negative control."""

import numpy as np
import pytest

from ballsbins.samplers import BallsAndBins
from ballsbins.samplers.balls_and_bins import uniform_below

SEED = 2_024


def with_one_likelier_bin(bins, steps, extra):
    """Move examples to bin 0 so that it is likelier by the factor 1 + extra: the negative control."""
    generator = np.random.default_rng(1)
    moved = generator.random(len(bins)) < extra / steps
    return np.where(moved, 0, bins)


@pytest.mark.parametrize("steps", [3, 10])
def test_bins_are_uniform(fits, steps):
    bins = BallsAndBins(steps).bins(SEED, 0, 0, 4_000_000)
    assert fits(np.bincount(bins, minlength=steps))
    assert not fits(np.bincount(with_one_likelier_bin(bins, steps, 0.02), minlength=steps))


def test_many_bins_are_uniform(fits):
    steps = 36_133
    bins = BallsAndBins(steps).bins(SEED, 0, 0, 3_000_000)
    counts = np.bincount(bins, minlength=steps)
    assert fits(counts)
    assert not fits(np.bincount(np.where(bins % 2, bins, bins - bins % 25), minlength=steps))


def test_uniformity_is_exact_over_all_words():
    """Each answer is left with exactly ⌊2³²/bound⌋ words, however many 2³² words there are for it.

    All the words of an answer are consecutive, and only the first of them can be refused: their lower halves
    start below the bound and grow by it. So the code is asked about the two first words and the last.
    """
    accepted = 2**31 + 12_345
    for bound in (1, 2, 3, 5, 7, 1000, 36_133, 10**7, 2**16, 3 * 2**29, 2**31 - 1):
        for answer in np.unique(np.linspace(0, bound - 1, 60).astype(np.int64)).tolist():
            first = -(-answer * 2**32 // bound)  # the smallest word whose product reaches this answer
            last = -(-(answer + 1) * 2**32 // bound) - 1
            words = sorted({first, min(first + 1, last), last})
            refused = []

            def redraw(attempt, places, words=words, refused=refused):
                refused.extend(words[place] for place in places)
                return np.full(len(places), accepted, dtype=np.uint32)

            answers = uniform_below(bound, np.array(words, dtype=np.uint32), redraw)
            assert all(answers[place] == answer for place, word in enumerate(words) if word not in refused)
            assert set(refused) <= {first}
            assert last - first + 1 - len(refused) == 2**32 // bound


def test_a_refused_word_moves_no_other_answer():
    steps = 3 * 2**29  # refuses a quarter of all words
    sampler = BallsAndBins(steps)
    whole = sampler.bins(SEED, 0, 0, 2000)
    for start, stop in ((0, 1), (1, 2), (7, 50), (501, 2000)):
        assert np.array_equal(sampler.bins(SEED, 0, start, stop), whole[start:stop])


def test_bins_with_many_refusals_are_uniform(fits):
    steps = 3 * 2**29
    bins = BallsAndBins(steps).bins(SEED, 0, 0, 600_000)
    assert fits(np.bincount(bins // 2**25, minlength=48))
    unrefused = (
        np.random.default_rng(0).integers(0, 2**32, 600_000, dtype=np.uint64) * np.uint64(steps)
    ) >> np.uint64(32)
    assert not fits(np.bincount(unrefused.astype(np.int64) % 3, minlength=3))  # what redrawing corrects
    assert fits(np.bincount(bins % 3, minlength=3))


def pairs(first, second, steps):
    return np.bincount(first.astype(np.int64) * steps + second, minlength=steps**2)


def test_bins_of_different_examples_are_independent(fits):
    steps = 12
    bins = BallsAndBins(steps).bins(SEED, 3, 0, 1_000_000)
    for distance in (1, 2, 3, 4, 16, 500_000):
        assert fits(pairs(bins[:-distance], bins[distance:], steps))
    copied = np.where(np.arange(len(bins)) % 50 == 1, np.roll(bins, 1), bins)  # 2 % copy their neighbour
    assert not fits(pairs(copied[:-1], copied[1:], steps))


def test_bins_of_different_epochs_are_independent(fits):
    steps, n = 12, 1_000_000
    sampler = BallsAndBins(steps)
    epochs = [sampler.bins(SEED, epoch, 0, n) for epoch in range(4)]
    for one in range(4):
        for other in range(one):
            assert fits(pairs(epochs[one], epochs[other], steps))
    kept = np.where(np.arange(n) % 50 == 0, epochs[0], epochs[1])  # 2 % keep their bin
    assert not fits(pairs(epochs[0], kept, steps))


def test_bins_of_different_keys_and_steps_are_independent(fits):
    steps, n = 12, 300_000
    bins = BallsAndBins(steps).bins(SEED, 0, 0, n)
    assert fits(pairs(bins, BallsAndBins(steps).bins(SEED + 1, 0, 0, n), steps))
    assert fits(pairs(bins, BallsAndBins(2 * steps).bins(SEED, 0, 0, n) // 2, steps))
    assert fits(pairs(bins, BallsAndBins(steps, redraw=False).bins(SEED, 0, 0, n), steps))
    assert not fits(pairs(bins, bins, steps) + 1)


def test_without_redraw_the_epoch_does_not_enter():
    fixed = BallsAndBins(7, redraw=False, max_batch_size=10, num_examples=100)
    first = [batch.tolist() for batch in fixed.batches(100, SEED, epoch=0)]
    assert first == [batch.tolist() for batch in fixed.batches(100, SEED, epoch=12)]
    assert np.array_equal(fixed.bins(SEED, 0, 0, 50), fixed.bins(SEED, 9, 0, 50))
    assert fixed.bin_of(SEED, 0, b"row") == fixed.bin_of(SEED, 9, b"row")
    redrawn = BallsAndBins(7)
    assert not np.array_equal(redrawn.bins(SEED, 0, 0, 50), redrawn.bins(SEED, 9, 0, 50))


def test_batches_are_the_bins():
    n, steps = 5000, 37
    sampler = BallsAndBins(steps)
    bins = sampler.bins(SEED, 2, 0, n)
    batches = list(sampler.batches(n, SEED, epoch=2))
    assert len(batches) == steps
    for step, batch in enumerate(batches):
        assert np.array_equal(batch, np.flatnonzero(bins == step))


@pytest.mark.parametrize(
    ("n", "steps"), [(0, 1), (0, 5), (1, 1), (1, 9), (1000, 1), (1000, 10_000), (70_000, 70_001)]
)
def test_every_example_is_in_exactly_one_batch(n, steps):
    batches = list(BallsAndBins(steps).batches(n, SEED))
    assert len(batches) == steps
    assert np.array_equal(np.sort(np.concatenate(batches)), np.arange(n))


def test_batch_sizes_are_binomial(fits_binomial):
    n, steps, epochs = 600, 30, 400
    sampler = BallsAndBins(steps)
    sizes = np.array(
        [np.bincount(sampler.bins(SEED, epoch, 0, n), minlength=steps) for epoch in range(epochs)]
    )
    for step in (0, 13, 29):  # sizes of one step over epochs are independent
        assert fits_binomial(sizes[:, step], n, 1 / steps)
    assert not fits_binomial(sizes[:, 0] + sizes[:, 1] // 2, n, 1 / steps)
    shuffled = np.full(epochs, n // steps)  # the sizes of Shuffle: the right mean but no spread
    assert not fits_binomial(shuffled, n, 1 / steps)


def test_random_access_by_index_and_by_bytes():
    sampler = BallsAndBins(1000)
    bins = sampler.bins(SEED, 1, 0, 3000)
    indices = np.random.default_rng(0).permutation(3000)[:700]
    for dtype in (np.uint32, np.int64):
        assert np.array_equal(sampler.bins_of(SEED, 1, indices.astype(dtype)), bins[indices])
    assert [sampler.bin_of(SEED, 1, int(index)) for index in indices[:20]] == bins[indices[:20]].tolist()
    names = [b"row-%d" % index for index in indices]
    by_name = sampler.bins_of(SEED, 1, names)
    assert [sampler.bin_of(SEED, 1, name) for name in names[:20]] == by_name[:20].tolist()
    assert np.array_equal(sampler.bins_of(SEED, 1, names[::-1]), by_name[::-1])  # order does not matter
    assert sampler.bins_of(SEED, 1, []).shape == (0,)


def test_bins_of_bytes_are_uniform_and_redrawn(fits):
    steps = 8
    names = [b"user-%d" % number for number in range(60_000)]
    first = BallsAndBins(steps).bins_of(SEED, 0, names)
    second = BallsAndBins(steps).bins_of(SEED, 1, names)
    assert fits(pairs(first, second, steps))
    assert not fits(pairs(first, np.where(np.arange(len(first)) % 10 == 0, first, second), steps))
    assert fits(pairs(first, BallsAndBins(steps).bins(SEED, 0, 0, len(names)), steps))  # an index is no name
