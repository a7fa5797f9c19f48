"""Every wrong value gets an error that names it and its bound, and nothing is half-built."""

import math
import pickle

import numpy as np
import pytest

from ballsbins.errors import InvalidInputError, MissingExtraError
from ballsbins.samplers import (
    BallsAndBins,
    Batches,
    Deterministic,
    Poisson,
    Shuffle,
    binomial_sizes,
    pad,
    rank_slice,
    split,
    thrown_sizes,
    truncate,
)

ALL = [Deterministic, Shuffle, Poisson, BallsAndBins]
NOT_INTEGERS = [1.0, 2.5, math.nan, math.inf, "3", None, True, np.True_, np.float64(3), np.ones(2), [1], 1j]
BATCH = np.arange(4, dtype=np.uint32)


def refused(name, value, call):
    """Check that `call` is refused with the name and the value, a bound, and advice."""
    with pytest.raises(InvalidInputError) as caught:
        call()
    message = str(caught.value)
    assert message.startswith(name)
    assert repr(value) in message
    assert "must be" in message
    assert len(caught.value.advice) > 10
    assert message.rstrip()[-1] in ".)…"


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("bad", [0, -1, 10**12 + 1, *NOT_INTEGERS])
def test_steps(kind, bad):
    refused("steps", bad, lambda: kind(bad))


@pytest.mark.parametrize("kind", ALL)
def test_steps_that_can_be_accounted_for_but_not_drawn(kind):
    assert kind(10**12).steps == 10**12
    refused("steps", 2**31, lambda: kind(2**31).batches(10, 1))


def test_bins_that_cannot_be_counted():
    refused("steps", 2**31, lambda: BallsAndBins(2**31).bin_of(1, 0, 5))
    refused("steps", 2**31, lambda: BallsAndBins(2**31).bin_of(1, 0, b"row"))


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("bad", [-1, 2**48 + 1, *NOT_INTEGERS])
def test_num_examples(kind, bad):
    refused("num_examples", bad, lambda: kind(3).batches(bad, 1))


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("bad", [-1, 2**63, *NOT_INTEGERS])
def test_epoch(kind, bad):
    refused("epoch", bad, lambda: kind(3).batches(10, 1, epoch=bad))


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("bad", [-1, 4, *NOT_INTEGERS])
def test_start(kind, bad):
    refused("start", bad, lambda: kind(3).batches(10, 1, start=bad))


@pytest.mark.parametrize("kind", [Poisson, BallsAndBins])
@pytest.mark.parametrize("bad", [0, -1, *(value for value in NOT_INTEGERS if value is not None)])
def test_max_batch_size(kind, bad):
    refused("max_batch_size", bad, lambda: kind(3, max_batch_size=bad, num_examples=10))


@pytest.mark.parametrize("kind", [Poisson, BallsAndBins])
def test_truncation_needs_the_number_of_examples_and_insists_on_it(kind):
    refused("num_examples", None, lambda: kind(3, max_batch_size=5))
    refused("num_examples", -4, lambda: kind(3, max_batch_size=5, num_examples=-4))
    sampler = kind(3, max_batch_size=5, num_examples=10)
    refused("num_examples", 11, lambda: sampler.batches(11, 1))
    assert isinstance(sampler.batches(10, 1), Batches)
    stated = kind(3, num_examples=10)  # without a limit: only a check
    refused("num_examples", 9, lambda: stated.batches(9, 1))
    with pytest.raises(TypeError):
        kind(3, True, 5, 10)  # two plain integers are easily exchanged


@pytest.mark.parametrize("route", [thrown_sizes, binomial_sizes])
def test_routes_for_shuffled_data(route):
    sampler = BallsAndBins(3, max_batch_size=5, num_examples=10)
    refused("num_examples", 11, lambda: route(sampler, 11, 1))
    refused("num_examples", -1, lambda: route(BallsAndBins(3), -1, 1))
    refused("epoch", -1, lambda: route(BallsAndBins(3), 10, 1, -1))


@pytest.mark.parametrize("bad", [0, 1, "yes", None, np.True_])
def test_redraw(bad):
    refused("redraw", bad, lambda: BallsAndBins(3, redraw=bad))


def test_bins():
    sampler = BallsAndBins(3)
    refused("start", 5, lambda: sampler.bins(1, 0, 5, 4))
    refused("start", -1, lambda: sampler.bins(1, 0, -1, 4))
    refused("stop", 2**48 + 1, lambda: sampler.bins(1, 0, 0, 2**48 + 1))
    refused("epoch", -1, lambda: sampler.bins(1, -1, 0, 4))
    refused("identity", -1, lambda: sampler.bin_of(1, 0, -1))
    refused("identity", "row", lambda: sampler.bin_of(1, 0, "row"))
    refused("identity", 1.0, lambda: sampler.bin_of(1, 0, 1.0))
    refused("identities[1]", "str", lambda: sampler.bins_of(1, 0, [b"a", "b"]))
    refused("identities[0]", "int", lambda: sampler.bins_of(1, 0, [3]))
    refused("identities[0]", "float64", lambda: sampler.bins_of(1, 0, np.array([1.0])))
    refused("identities[0]", "ndarray", lambda: sampler.bins_of(1, 0, np.array([[1]])))
    refused("the smallest index", -1, lambda: sampler.bins_of(1, 0, np.array([4, -1])))
    refused("the largest index", 2**48, lambda: sampler.bins_of(1, 0, np.array([4, 2**48])))


def test_truncation_words():
    sampler = BallsAndBins(3)
    refused("step", 3, lambda: sampler.truncation_words(1, 0, 3, BATCH))
    refused("epoch", -1, lambda: sampler.truncation_words(1, -1, 0, BATCH))
    refused("epoch", -1, lambda: Poisson(3).truncation_words(1, -1, 0, BATCH))
    refused("identities[0]", "str", lambda: sampler.truncation_words(1, 0, 0, ["a"]))
    refused("identities[0]", "float64", lambda: sampler.truncation_words(1, 0, 0, np.array([1.5])))
    refused("the smallest index", -1, lambda: sampler.truncation_words(1, 0, 0, np.array([-1])))


@pytest.mark.parametrize("bad", [0, -1, *NOT_INTEGERS])
def test_physical_sizes(bad):
    refused("max_batch_size", bad, lambda: truncate(BATCH, np.zeros(4, np.uint64), bad))
    refused("size", bad, lambda: pad(BATCH, bad))
    refused("microbatch_size", bad, lambda: split(BATCH, bad))
    refused("world_size", bad, lambda: rank_slice(BATCH, 0, bad))


@pytest.mark.parametrize("bad", [-1, 4, 5, *NOT_INTEGERS])
def test_rank(bad):
    refused("rank", bad, lambda: rank_slice(BATCH, bad, 4))
    refused("rank", bad, lambda: BallsAndBins(3).batches(10, 1).for_rank(bad, 4))


@pytest.mark.parametrize("kind", [Shuffle, BallsAndBins])
def test_more_examples_than_memory_holds(kind, monkeypatch):
    def out_of_memory(*_, **__):
        raise MemoryError

    refused("num_examples", 2**47, lambda: kind(3).batches(2**47, 1))  # before anything is drawn
    monkeypatch.setattr("ballsbins.samplers.base.physical_memory", lambda: 6000)
    refused("num_examples", 1001, lambda: kind(3).batches(1001, 1))
    assert len(kind(3).batches(490, 1).at(0))
    monkeypatch.setattr(np, "empty", out_of_memory)  # there is enough, but others use it
    refused("num_examples", 490, lambda: kind(3).batches(490, 1).at(0))


@pytest.mark.parametrize("kind", [Deterministic, Poisson])
def test_a_batch_larger_than_memory(kind):
    refused("num_examples", 2**47, lambda: kind(3).batches(2**47, 1))
    assert len(kind(2**31 - 1).batches(2**47, 1)) == 2**31 - 1


def test_more_steps_than_memory_holds(monkeypatch):
    monkeypatch.setattr("ballsbins.samplers.base.physical_memory", lambda: 6000)
    refused("num_examples", 10, lambda: BallsAndBins(1000).batches(10, 1))


def test_numpy_integers_become_plain_ones():
    sampler = BallsAndBins(np.int32(4), max_batch_size=np.uint8(3), num_examples=np.int64(9))
    assert all(type(value) in {int, bool, str} for value in sampler.to_dict().values())


def test_an_error_crosses_a_process_boundary():
    with pytest.raises(InvalidInputError) as caught:
        Shuffle(0)
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value)
    assert (again.name, again.value) == ("steps", 0)
    missing = pickle.loads(pickle.dumps(MissingExtraError("drawing", "plots")))
    assert "pip install 'ballsbins[plots]'" in str(missing)
