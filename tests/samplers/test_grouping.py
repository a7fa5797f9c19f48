"""The counting sort, in one chunk and in many."""

import numpy as np
import pytest

from ballsbins.samplers import balls_and_bins as partition
from ballsbins.samplers.balls_and_bins import group_by_bin


@pytest.mark.parametrize("num_bins", [1, 2, 50, 70_000])
@pytest.mark.parametrize("chunk", [1, 1000, 1 << 20])
def test_grouping_equals_a_stable_sort(num_bins, chunk, monkeypatch):
    monkeypatch.setattr(partition, "_PER_BIN", 0)
    monkeypatch.setattr(partition, "_DRAWN", 777)
    n = 5003 if chunk > 1 else 40
    bins = np.random.default_rng(num_bins).integers(0, num_bins, n).astype(np.uint32)
    chunk = max(chunk, 1)
    grouped = group_by_bin(lambda start, stop: bins[start:stop], n, num_bins, chunk)
    assert np.array_equal(grouped.order, np.argsort(bins, kind="stable"))
    assert grouped.order.dtype == np.uint32
    assert np.array_equal(np.diff(grouped.offsets), np.bincount(bins, minlength=num_bins))
    assert grouped.offsets[0] == 0


def test_chunks_widen_with_the_number_of_bins():
    bins = np.random.default_rng(0).integers(0, 100, 10_000).astype(np.uint32)
    one = group_by_bin(lambda start, stop: bins[start:stop], 10_000, 100)
    many = group_by_bin(lambda start, stop: bins[start:stop], 10_000, 100, chunk=1)  # 16 · 100 at once
    assert np.array_equal(one.order, many.order)
    assert np.array_equal(one.offsets, many.offsets)


def test_indices_beyond_four_bytes(monkeypatch):
    monkeypatch.setattr(partition, "index_dtype", lambda num_examples: np.int64)
    bins = np.arange(5000, dtype=np.uint32) % 7
    grouped = group_by_bin(lambda start, stop: bins[start:stop], 5000, 7, chunk=100)
    assert grouped.order.dtype == np.int64
    assert np.array_equal(grouped.order, np.argsort(bins, kind="stable"))
