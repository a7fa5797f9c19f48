"""Truncate, pad, split, share."""

import itertools

import numpy as np
import pytest

from ballsbins.errors import InvalidInputError
from ballsbins.samplers import BallsAndBins, pad, rank_slice, split, split_padded, truncate

BATCH = np.array([3, 5, 8, 13, 21, 34, 55], dtype=np.uint32)


def test_truncate_keeps_the_smallest_words_in_order():
    words = np.array([7, 1, 6, 2, 5, 3, 4], dtype=np.uint64)
    assert truncate(BATCH, words, 3).tolist() == [5, 13, 34]
    assert truncate(BATCH, words, 7) is BATCH
    assert truncate(BATCH[:0], words[:0], 1).tolist() == []


def test_truncate_breaks_ties_by_place():
    assert truncate(BATCH, np.zeros(7, dtype=np.uint64), 3).tolist() == [3, 5, 8]
    words = np.array([2, 1, 1, 2, 1, 1, 0], dtype=np.uint64)
    assert truncate(BATCH, words, 4).tolist() == [5, 8, 21, 55]


def test_truncated_subsets_are_equally_likely(fits):
    n, limit, draws = 6, 3, 12_000
    sampler = BallsAndBins(1, max_batch_size=limit, num_examples=n)
    numbers = {subset: number for number, subset in enumerate(itertools.combinations(range(n), limit))}
    kept = [numbers[tuple(sampler.batches(n, 3, epoch).at(0).tolist())] for epoch in range(draws)]
    assert fits(np.bincount(kept, minlength=len(numbers)))
    first = [
        numbers[0, 1, 2] if epoch % 50 == 0 else number for epoch, number in enumerate(kept)
    ]  # 2 % keep the first
    assert not fits(np.bincount(first, minlength=len(numbers)))


def test_truncation_by_index_and_by_bytes_uses_words_of_each_step():
    sampler = BallsAndBins(4)
    by_index = [sampler.truncation_words(1, 0, step, BATCH) for step in range(4)]
    by_name = [sampler.truncation_words(1, 0, step, [b"a", b"b", b"c"]) for step in range(4)]
    assert len(np.unique(by_index)) == 28
    assert len(np.unique(by_name)) == 12
    assert all(words.dtype == np.uint64 for words in by_index + by_name)
    assert np.array_equal(sampler.truncation_words(1, 0, 2, BATCH[::-1].astype(np.int64)), by_index[2][::-1])


def test_pad_fills_with_no_example_of_weight_zero():
    padded = pad(BATCH, 10)
    assert padded.indices.tolist() == [*BATCH.tolist(), -1, -1, -1]
    assert padded.weights.tolist() == [1] * 7 + [0] * 3
    assert padded.indices.dtype == np.int64
    assert padded.weights.dtype == np.float32
    assert pad(BATCH, 7).weights.all()
    empty = pad(BATCH[:0], 2)
    assert empty.indices.tolist() == [-1, -1]
    assert empty.weights.tolist() == [0, 0]


def test_no_error_and_no_repr_names_a_realised_size():
    with pytest.raises(InvalidInputError, match="Truncate first") as caught:
        pad(BATCH, 6)
    assert "7" not in str(caught.value)
    assert repr(pad(BATCH, 10)) == repr(pad(BATCH[:2], 10)) == "PaddedBatch(size=10)"
    with pytest.raises(InvalidInputError) as caught:
        truncate(BATCH, np.zeros(3, np.uint64), 2)
    assert "7" not in str(caught.value)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_split_gives_all_pieces_in_order(size):
    pieces = split(BATCH, size)
    assert np.array_equal(np.concatenate(pieces), BATCH)
    assert all(len(piece) <= size for piece in pieces)
    assert len(pieces) == -(-7 // size)
    assert [piece.tolist() for piece in split(BATCH[:0], size)] == [[]]


def test_split_padded_gives_equal_shapes():
    for batch in (BATCH, BATCH[:0]):
        pieces = split_padded(pad(batch, 12), 4)
        assert (
            [len(piece.indices) for piece in pieces] == [len(piece.weights) for piece in pieces] == [4, 4, 4]
        )
        assert np.array_equal(np.concatenate([piece.indices for piece in pieces]), pad(batch, 12).indices)
    with pytest.raises(InvalidInputError, match="divisor of 12"):
        split_padded(pad(BATCH, 12), 5)


@pytest.mark.parametrize("world_size", [1, 2, 3, 7, 20])
def test_rank_slices_partition_the_batch(world_size):
    shares = [rank_slice(BATCH, rank, world_size) for rank in range(world_size)]
    assert sorted(np.concatenate(shares).tolist()) == BATCH.tolist()
    assert sum(map(len, shares)) == len(BATCH)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
