"""Whatever is given to a public call by mistake, the answer is an error of ours that says what to give."""

from __future__ import annotations

import numpy as np
import pytest

from ballsbins import (
    BallsAndBins,
    BallsBinsError,
    Deterministic,
    Key,
    Mechanism,
    MonteCarlo,
    Poisson,
    Sampler,
    Shuffle,
    Total,
    calibrate,
    least_steps,
    most_epochs,
    plan,
)
from ballsbins.comparison import at_equal_noise, crossover, noise_of_claim, poisson_claim
from ballsbins.report import Card

# None, an empty list or an empty mapping leave an option out in some calls; those are not in this list.
TEXTS, FLAGS, RAGGED = np.array(["a"]), np.array([True]), [[1, 2], [3]]
WRONG = ["abc", "1", True, 10**400, -1, float("nan"), object(), 1 + 2j, b"x", RAGGED, TEXTS, FLAGS]
# What is right after all: a seed of any length, an array of texts for a list of them, text for the name of a file.
RIGHT = {
    "MonteCarlo seed": lambda given: isinstance(given, int),
    "Card not_covered": lambda given: given is TEXTS,
    "Card.read": lambda given: isinstance(given, str),
    "Key.from_file": lambda given: isinstance(given, str),
}
RUN = Mechanism(BallsAndBins(50), 1.0)
TARGET = {"epsilon": 2.0, "delta": 1e-5}


def with_one(call, **given):
    """For each argument, how the call is made with a wrong one and all others right."""
    return {
        f"{call.__name__} {name}": lambda wrong, name=name: call(**(given | {name: wrong})) for name in given
    }


CALLS = {
    "epsilon": RUN.epsilon,
    "epsilon method": lambda wrong: RUN.epsilon(1e-5, wrong),
    "epsilon adjacency": lambda wrong: RUN.epsilon(1e-5, adjacency=wrong),
    "true_positive_rate": RUN.true_positive_rate,
    "after": RUN.after,
    "under": RUN.under,
    "statement": RUN.statement,
    "statement clip_norm": lambda wrong: RUN.statement(1e-5, clip_norm=wrong),
    "statement num_examples": lambda wrong: RUN.statement(1e-5, num_examples=wrong),
    "batches": lambda wrong: RUN.batches(wrong, 1),
    "batches epoch": lambda wrong: RUN.batches(10, 1, wrong),
    "renyi": RUN.renyi,
    "renyi, one": lambda wrong: RUN.renyi([wrong]),
    "pld": lambda wrong: RUN.pld(interval=wrong),
    "Mechanism.from_dict": Mechanism.from_dict,
    "Sampler.from_dict": Sampler.from_dict,
    **{kind.__name__: kind for kind in (BallsAndBins, Poisson, Shuffle, Deterministic)},
    **with_one(Mechanism, sampler=BallsAndBins(10), noise_multiplier=1.0, epochs=2, last_epoch_steps=3),
    **with_one(BallsAndBins.for_batch_size, num_examples=100, batch_size=10),
    **with_one(BallsAndBins, steps=10, max_batch_size=5, num_examples=20),
    **with_one(
        calibrate, sampler=BallsAndBins(10), epochs=1, max_batch_size="auto", num_examples=100, **TARGET
    ),
    **with_one(most_epochs, sampler=BallsAndBins(10), noise_multiplier=2.0, **TARGET),
    **with_one(least_steps, sampler=BallsAndBins(10), noise_multiplier=2.0, epochs=1, **TARGET),
    **with_one(plan, num_examples=1000, epochs=1, batch_sizes=[100], sampler=BallsAndBins, **TARGET),
    "Key.from_file": Key.from_file,
    "Total": Total,
    "Total.epsilon": Total([RUN, RUN]).epsilon,
    **with_one(
        MonteCarlo, samples=100, error_probability=0.1, epsilons=(1.0,), sampler="plain", bound="kl", seed=1
    ),
    **with_one(crossover, first=RUN, second=RUN, least_delta=1e-5),
    "at_equal_noise": at_equal_noise,
    **with_one(poisson_claim, run=RUN, delta=1e-5),
    **with_one(noise_of_claim, steps=10, epochs=1, accountant="exact", **TARGET),
    **with_one(
        Card, mechanism=RUN, delta=1e-5, clip_norm=1.0, num_examples=5, metrics={}, not_covered=(), about={}
    ),
    "Card.read": Card.read,
    "Card.from_dict": Card.from_dict,
}


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_argument_is_told_so(name):
    for wrong in WRONG:
        if name in RIGHT and RIGHT[name](wrong):
            continue
        with pytest.raises(BallsBinsError) as caught:
            CALLS[name](wrong)
        assert str(caught.value)


@pytest.mark.parametrize("wrong", ["1", True, np.array([True]), 10**400])
def test_text_and_bools_are_no_numbers(wrong):
    for ask in (RUN.delta, RUN.log_delta):
        with pytest.raises(BallsBinsError):
            ask(wrong)


def test_integers_of_any_length_within_the_bounds_are_numbers():
    assert RUN.delta(1).upper == RUN.delta(1.0).upper
    assert (RUN.delta([1, 2]).upper == RUN.delta(np.array([1.0, 2.0])).upper).all()


@pytest.mark.parametrize("empty", [[], {}, ""])
def test_nothing_is_not_a_list_of_numbers(empty):
    with pytest.raises(BallsBinsError):
        RUN.renyi(empty)
    with pytest.raises(BallsBinsError):
        plan(1000, batch_sizes=empty, **TARGET)
