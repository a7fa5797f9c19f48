"""The formal guarantees of Shuffle and of Deterministic, each with a negative control."""

import itertools

import numpy as np
import pytest

from ballsbins.samplers import Deterministic, Shuffle
from ballsbins.samplers.even_batches import random_order
from ballsbins.samplers.key import Key
from ballsbins.samplers.keystream import Keystream

SEED = 5


class NarrowWords(Keystream):
    """A keystream of few different words, so that nearly all of them are tied."""

    __slots__ = ()

    def words32(self, stream, start, count):
        return super().words32(stream, start, count) % np.uint32(3)

    def words32_at(self, stream, indices):
        return super().words32_at(stream, indices) % np.uint32(3)


def permutation_counts(orders, n):
    numbers = {order: number for number, order in enumerate(itertools.permutations(range(n)))}
    return np.bincount([numbers[tuple(order)] for order in orders], minlength=len(numbers))


def test_all_orders_are_equally_likely(fits):
    n, epochs = 5, 12_000
    orders = [Shuffle(2).order(n, SEED, epoch).tolist() for epoch in range(epochs)]
    assert fits(permutation_counts(orders, n))
    # The negative control: a shuffle that exchanges each place with any place, a well-known error.
    generator = np.random.default_rng(0)
    wrong = []
    for _ in range(epochs):
        order = list(range(n))
        for place, other in enumerate(generator.integers(0, n, n)):
            order[place], order[other] = order[other], order[place]
        wrong.append(order)
    assert not fits(permutation_counts(wrong, n))


def test_all_orders_are_equally_likely_when_words_are_tied(fits):
    n = 4
    keystreams = [NarrowWords(Key.from_seed(seed), "t") for seed in range(10_000)]
    assert fits(permutation_counts([random_order(words, n, packed=True) for words in keystreams], n))
    unbroken = [np.argsort(words.words32(0, 0, n), kind="stable") for words in keystreams]
    assert not fits(permutation_counts(unbroken, n))


@pytest.mark.parametrize("kind", [Keystream, NarrowWords])
@pytest.mark.parametrize("n", [0, 1, 2, 3, 1000])
def test_packed_and_unpacked_sorting_agree(kind, n):
    keystream = kind(Key.from_seed(SEED), "t")
    packed = random_order(keystream, n, packed=True)
    assert np.array_equal(packed, random_order(keystream, n, packed=False))
    assert np.array_equal(np.sort(packed), np.arange(n))
    words = [[int(keystream.words32(stream, index, 1)[0]) for stream in range(25)] for index in range(n)]
    assert packed.tolist() == sorted(range(n), key=words.__getitem__)


def test_orders_of_epochs_are_independent(fits):
    n, epochs = 4, 12_000
    first = np.array([Shuffle(2).order(n, SEED, epoch)[0] for epoch in range(epochs)]).astype(np.int64)
    assert fits(np.bincount(first[:-1] * n + first[1:], minlength=n * n))
    sticky = np.where(np.arange(epochs) % 8 == 1, np.roll(first, 1), first)
    assert not fits(np.bincount(sticky[:-1] * n + sticky[1:], minlength=n * n))


@pytest.mark.parametrize("sampler", [Shuffle, Deterministic])
@pytest.mark.parametrize(("n", "steps"), [(0, 3), (1, 1), (5, 8), (100, 7), (96, 8), (1001, 1000), (3, 3)])
def test_every_example_once_in_batches_of_even_size(sampler, n, steps):
    batches = list(sampler(steps).batches(n, SEED))
    assert len(batches) == steps
    assert np.array_equal(np.sort(np.concatenate(batches)), np.arange(n))
    sizes = [len(batch) for batch in batches]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


def test_shuffle_cuts_its_order():
    order = Shuffle(7).order(100, SEED, epoch=3)
    assert np.array_equal(np.concatenate(list(Shuffle(7).batches(100, SEED, epoch=3))), order)


def test_deterministic_keeps_the_order_whatever_the_key_and_epoch():
    for key, epoch in ((1, 0), (2, 9)):
        assert np.array_equal(np.concatenate(list(Deterministic(7).batches(100, key, epoch))), np.arange(100))
