"""What all samplers promise: length, resuming, random access, ranks, pickling, saving."""

import json
import pickle
import sys
from subprocess import run

import numpy as np
import pytest

import ballsbins.samplers
from ballsbins.errors import InvalidInputError
from ballsbins.samplers import BallsAndBins, Deterministic, Poisson, Sampler, Shuffle, new_key
from ballsbins.samplers.base import index_dtype

N, STEPS, SEED = 200, 23, 4
SAMPLERS = [
    Deterministic(STEPS),
    Shuffle(STEPS),
    Poisson(STEPS),
    Poisson(STEPS, max_batch_size=9, num_examples=N),
    BallsAndBins(STEPS),
    BallsAndBins(STEPS, redraw=False),
    BallsAndBins(STEPS, max_batch_size=9, num_examples=N),
]
every_sampler = pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)


def lists(batches):
    return [batch.tolist() for batch in batches]


@every_sampler
def test_resuming_gives_the_same_batches(sampler):
    for epoch in (0, 3):
        whole = lists(sampler.batches(N, SEED, epoch))
        assert len(whole) == STEPS
        for start in (0, 1, 10, STEPS - 1, STEPS):
            resumed = sampler.batches(N, SEED, epoch, start)
            assert len(resumed) == STEPS - start
            assert lists(resumed) == whole[start:]


@every_sampler
def test_random_access_agrees_with_iteration(sampler):
    whole = lists(sampler.batches(N, SEED, 1))
    batches = sampler.batches(N, SEED, 1, start=5)
    for position in (17, 0, 3, -1, -18):  # in any order
        assert batches[position].tolist() == whole[5:][position]
    for step in (22, 0, 7):  # also before the start
        assert batches.at(step).tolist() == whole[step]
    for position in (18, -19):
        with pytest.raises(IndexError):
            batches[position]
    for step in (-1, STEPS, 1.0):
        with pytest.raises(InvalidInputError, match="step"):
            batches.at(step)


@every_sampler
def test_batches_can_be_iterated_twice_and_at_once(sampler):
    batches = sampler.batches(N, SEED)
    assert lists(batches) == lists(batches)
    assert all(np.array_equal(one, other) for one, other in zip(batches, batches, strict=True))


@every_sampler
def test_empty_batches_are_given(sampler):
    if getattr(sampler, "num_examples", None) is not None:
        sampler = type(sampler)(STEPS, max_batch_size=9, num_examples=3)
    batches = list(sampler.batches(3, SEED))
    assert len(batches) == STEPS
    assert any(len(batch) == 0 for batch in batches)
    assert all(batch.dtype == np.uint32 for batch in batches)


@every_sampler
@pytest.mark.parametrize("world_size", [1, 2, 5, 64])
def test_ranks_partition_every_batch(sampler, world_size):
    whole = sampler.batches(N, SEED, 2, start=3)
    shares = [whole.for_rank(rank, world_size) for rank in range(world_size)]
    assert all(len(share) == len(whole) == len(list(share)) for share in shares)
    for batch, *parts in zip(whole, *shares, strict=True):
        assert sorted(np.concatenate(parts).tolist()) == sorted(batch.tolist())
        sizes = [len(part) for part in parts]
        assert max(sizes) - min(sizes) <= 1


def test_a_share_is_not_shared_again():
    with pytest.raises(InvalidInputError, match="world_size"):
        BallsAndBins(3).batches(10, SEED).for_rank(0, 2).for_rank(0, 2)


@every_sampler
def test_another_process_draws_the_same(sampler):
    key = new_key()
    batches = sampler.batches(N, key, 1, start=2).for_rank(1, 3)
    expected = lists(batches)
    pickled = pickle.dumps(batches)
    assert len(pickled) < 2000  # what was drawn is not carried along
    assert lists(pickle.loads(pickled)) == expected


@every_sampler
def test_batches_are_read_only(sampler):
    batch = next(batch for batch in sampler.batches(N, SEED) if len(batch))
    with pytest.raises(ValueError, match="read-only"):
        batch[0] = 0


@every_sampler
def test_epochs_and_keys_matter(sampler):
    batches = lists(sampler.batches(N, SEED, 0))
    fixed = isinstance(sampler, Deterministic) or getattr(sampler, "redraw", True) is False
    assert (batches == lists(sampler.batches(N, SEED, 1))) == fixed
    assert (batches == lists(sampler.batches(N, SEED + 1, 0))) == isinstance(sampler, Deterministic)


@every_sampler
def test_saving_and_loading(sampler):
    saved = json.loads(json.dumps(sampler.to_dict()))
    assert Sampler.from_dict(saved) == sampler
    assert type(Sampler.from_dict(saved)) is type(sampler)
    assert hash(Sampler.from_dict(saved)) == hash(sampler)
    for field in set(saved) - {"type"}:
        with pytest.raises(InvalidInputError, match="missing"):
            Sampler.from_dict({name: value for name, value in saved.items() if name != field})
    with pytest.raises(InvalidInputError, match="unknown"):
        Sampler.from_dict(saved | {"batch_size": 3})
    with pytest.raises(InvalidInputError, match="one of balls_and_bins"):
        Sampler.from_dict(saved | {"type": "other"})


def test_what_is_saved_never_changes():
    assert [sampler.to_dict() for sampler in SAMPLERS[:2]] == [
        {"type": "deterministic", "steps": 23},
        {"type": "shuffle", "steps": 23},
    ]
    assert SAMPLERS[3].to_dict() == {"type": "poisson", "steps": 23, "max_batch_size": 9, "num_examples": 200}
    assert SAMPLERS[5].to_dict() == {
        "type": "balls_and_bins",
        "steps": 23,
        "redraw": False,
        "max_batch_size": None,
        "num_examples": None,
    }


def test_the_repr_builds_the_sampler():
    for sampler in SAMPLERS:
        assert eval(repr(sampler), vars(ballsbins.samplers).copy()) == sampler
    assert repr(BallsAndBins(5)) == "BallsAndBins(steps=5, redraw=True)"
    assert "start=2, rank=1, world_size=3" in repr(Shuffle(4).batches(9, 1, start=2).for_rank(1, 3))


def test_truncation_keeps_part_of_the_batch():
    for kind in (Poisson, BallsAndBins):
        limited = kind(4, max_batch_size=30, num_examples=N)
        cut = 0
        for batch, whole in zip(limited.batches(N, SEED), kind(4).batches(N, SEED), strict=True):
            assert len(batch) == min(len(whole), 30)
            assert set(batch.tolist()) <= set(whole.tolist())
            assert batch.tolist() == sorted(batch.tolist())
            cut += len(whole) > 30
        assert cut


def test_an_engine_that_truncates_by_itself_agrees():
    for kind in (Poisson, BallsAndBins):
        limited = kind(4, max_batch_size=30, num_examples=N)
        for step, whole in enumerate(kind(4).batches(N, SEED, 2)):
            words = limited.truncation_words(SEED, 2, step, whole)
            kept = sorted(index for _, index in sorted(zip(words.tolist(), whole.tolist(), strict=True))[:30])
            assert limited.batches(N, SEED, 2).at(step).tolist() == kept


def test_four_bytes_an_index_as_long_as_they_suffice():
    assert index_dtype(0) is index_dtype(2**32 - 1) is np.uint32
    assert index_dtype(2**32) is np.int64
    far = Deterministic(2**31 - 1).batches(2**40, SEED)[-1]
    assert far.dtype == np.int64
    assert far[-1] == 2**40 - 1


def test_importing_stays_light():
    code = (
        "import sys, ballsbins.samplers; "
        "print([m for m in ('scipy', 'cryptography', 'torch', 'pandas') if m in sys.modules])"
    )
    done = run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
