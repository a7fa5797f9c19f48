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
