"""Mechanism: validated once, saved and read back, batches and accounting of one and the same sampler."""

from __future__ import annotations

import json
import math
import pickle
from dataclasses import FrozenInstanceError

import numpy as np
import pytest

from ballsbins import BallsAndBins, Deterministic, InvalidInputError, Mechanism, Poisson, Shuffle
from ballsbins.mechanism import LEAST_NOISE, MOST_NOISE

SAMPLERS = [
    Deterministic(7),
    Shuffle(7),
    Poisson(7),
    BallsAndBins(7),
    BallsAndBins(7, redraw=False),
    Poisson(7, max_batch_size=30, num_examples=100),
    BallsAndBins(7, max_batch_size=30, num_examples=100),
]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
@pytest.mark.parametrize("last", [None, 3])
def test_saved_and_read_back(sampler, last):
    mechanism = Mechanism(sampler, 0.75, epochs=4, last_epoch_steps=last)
    text = json.dumps(mechanism.to_dict())
    assert Mechanism.from_dict(json.loads(text)) == mechanism
    assert pickle.loads(pickle.dumps(mechanism)) == mechanism
    names = {
        "BallsAndBins": BallsAndBins,
        "Poisson": Poisson,
        "Shuffle": Shuffle,
        "Deterministic": Deterministic,
    }
    assert eval(repr(mechanism), names | {"Mechanism": Mechanism}) == mechanism


def test_what_is_saved_never_changes_its_meaning():
    mechanism = Mechanism(BallsAndBins(1000, max_batch_size=1300, num_examples=10**6), 0.5, epochs=3)
    assert mechanism.to_dict() == {
        "schema": 1,
        "sampler": {
            "type": "balls_and_bins",
            "steps": 1000,
            "max_batch_size": 1300,
            "num_examples": 1000000,
            "redraw": True,
        },
        "noise_multiplier": 0.5,
        "epochs": 3,
        "last_epoch_steps": None,
    }


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"schema": 2}, "schema"),
        ({"schema": None}, "schema"),
        ({"colour": "red"}, "fields"),
        ({"sampler": {"type": "bagging", "steps": 3}}, "type"),
        ({"sampler": None}, "a saved sampler is None"),
        ({"sampler": [3]}, "a saved sampler is"),
        ({"noise_multiplier": "0.5"}, "noise_multiplier"),
        ({"noise_multiplier": 10**400}, r"noise_multiplier is 10+ … \(401 characters\)"),
        ({"noise_multiplier": 10**5000}, "noise_multiplier is an integer of 16,610 bits"),
        ({"epochs": 10**5000}, "epochs is an integer of 16,610 bits"),
    ],
)
def test_a_saved_mechanism_that_is_not_one(change, name):
    saved = Mechanism(BallsAndBins(3), 0.5).to_dict() | change
    with pytest.raises(InvalidInputError, match=name):
        Mechanism.from_dict(saved)


@pytest.mark.parametrize("saved", [None, [], "text", 3])
def test_what_has_no_fields(saved):
    with pytest.raises(InvalidInputError, match="a saved Mechanism is"):
        Mechanism.from_dict(saved)


def test_a_missing_field():
    saved = Mechanism(BallsAndBins(3), 0.5).to_dict()
    del saved["epochs"]
    with pytest.raises(InvalidInputError, match="missing"):
        Mechanism.from_dict(saved)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, "1", True, None, 9e-10, 1.1e6])
def test_noise_multiplier(bad):
    with pytest.raises(InvalidInputError, match="noise_multiplier is") as caught:
        Mechanism(BallsAndBins(3), bad)
    assert "clip norm" in caught.value.advice


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.parametrize("kind", [BallsAndBins, Poisson, Shuffle, Deterministic])
def test_the_least_and_the_most_noise_have_answers(kind, epochs):
    assert Mechanism(kind(10), LEAST_NOISE, epochs).epsilon(1e-6).lower >= 100.0
    assert Mechanism(kind(10), MOST_NOISE, epochs).epsilon(1e-6).upper <= 1e-3


@pytest.mark.parametrize("bad", [0, -1, 1.0, 2.5, math.nan, True, "3"])
def test_epochs(bad):
    with pytest.raises(InvalidInputError, match="epochs is"):
        Mechanism(BallsAndBins(3), 1.0, epochs=bad)


@pytest.mark.parametrize("bad", [0, 4, -1, 1.5])
def test_last_epoch_steps(bad):
    with pytest.raises(InvalidInputError, match="last_epoch_steps is"):
        Mechanism(BallsAndBins(3), 1.0, last_epoch_steps=bad)


def test_a_whole_last_epoch_is_no_unfinished_one():
    assert Mechanism(BallsAndBins(3), 1.0, last_epoch_steps=3) == Mechanism(BallsAndBins(3), 1.0)


def test_not_a_sampler():
    with pytest.raises(InvalidInputError, match="BallsAndBins"):
        Mechanism(1000, 1.0)


def test_frozen():
    with pytest.raises(FrozenInstanceError):
        Mechanism(BallsAndBins(3), 1.0).noise_multiplier = 2.0


def test_total_steps():
    assert Mechanism(BallsAndBins(10), 1.0, epochs=3).total_steps == 30
    assert Mechanism(BallsAndBins(10), 1.0, epochs=3, last_epoch_steps=4).total_steps == 24


def test_batches_are_the_samplers():
    mechanism = Mechanism(BallsAndBins(10), 1.0, epochs=2)
    for ours, theirs in zip(
        mechanism.batches(200, 5, 1, 4), BallsAndBins(10).batches(200, 5, 1, 4), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)
    with pytest.raises(InvalidInputError, match="epoch is 2"):
        mechanism.batches(200, 5, epoch=2)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 701.0, "x", None])
def test_delta_of_a_bad_epsilon(bad):
    with pytest.raises(InvalidInputError, match="epsilon is"):
        Mechanism(BallsAndBins(3), 1.0).delta(bad)


@pytest.mark.parametrize("bad", [0.0, 1.0, -1e-6, math.nan, 1.5, "x"])
def test_epsilon_of_a_bad_delta(bad):
    with pytest.raises(InvalidInputError, match="delta is"):
        Mechanism(BallsAndBins(3), 1.0).epsilon(bad)


@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
def test_facts_of_a_run_as_far_as_it_came(sampler):
    planned = Mechanism(sampler, 0.75, epochs=4)
    assert planned.after(planned.total_steps) == planned
    assert planned.after(14) == Mechanism(sampler, 0.75, epochs=2)
    early = planned.after(17)
    assert early == Mechanism(sampler, 0.75, epochs=3, last_epoch_steps=3)
    assert (early.finished, early.finished_epochs, early.steps_in_last_epoch) == (False, 2, 3)
    assert early.batches_drawn == (7 if sampler.draws_once else 17)
    assert early.under(Poisson) == Mechanism(Poisson(7), 0.75, epochs=3, last_epoch_steps=3)
    assert early.under(sampler) == early
    with pytest.raises(InvalidInputError, match="steps_taken is 0"):
        planned.after(0)
    with pytest.raises(InvalidInputError, match="steps of the other sampler is 8, but must be 7"):
        early.under(Shuffle(8))


def test_fixed_bins_pool_the_noise_of_their_visits():
    fixed = Mechanism(BallsAndBins(7, redraw=False), 0.75, epochs=4)
    assert fixed.independent_epochs == (0.375, 1)
    assert fixed.noise_of_bins == ((7, 0.375),)
    assert fixed.after(10).noise_of_bins == ((3, 0.75 / math.sqrt(2)), (4, 0.75))
    assert fixed.after(3).noise_of_bins == ((3, 0.75),)
    assert Mechanism(BallsAndBins(7), 0.75, epochs=4).independent_epochs == (0.75, 4)


def test_facts_of_the_samplers():
    facts = {
        sampler.name: (
            sampler.is_random, sampler.random_sizes, sampler.partitions, sampler.amplifies,
            sampler.draws_once, sampler.largest_batch(100),
        )
        for sampler in SAMPLERS[:5]
    }  # fmt: skip
    assert facts == {
        "deterministic": (False, False, True, False, True, 15),
        "shuffle": (True, False, True, False, False, 15),
        "Poisson": (True, True, False, True, False, None),
        "balls-and-bins": (True, True, True, True, False, None),
        "balls-and-bins (fixed bins)": (True, True, True, True, True, None),
    }
    for sampler in SAMPLERS[5:]:
        assert sampler.largest_batch(100) == sampler.max_batch_size == 30
        assert sampler.untruncated() == type(sampler)(7)
        assert sampler.untruncated().truncated_to(30, 100) == sampler
    assert Shuffle(7).untruncated() == Shuffle(7)
    with pytest.raises(InvalidInputError, match="one size already"):
        Shuffle(7).truncated_to(30, 100)
