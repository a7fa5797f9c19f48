"""From what a person typed to a Mechanism, and the same run under every sampler."""

from __future__ import annotations

import pytest

from ballsbins import BallsAndBins, Deterministic, InvalidInputError, Mechanism, Poisson, Shuffle
from ballsbins.ask import SamplerName, sampler_from, steps_from, under_each_sampler
from ballsbins.comparison import at_equal_noise


def test_steps_are_stated_or_derived():
    assert steps_from(7, None, None) == (7, None)
    steps, said = steps_from(None, 1001, 10)
    assert steps == 101
    assert said == "1,001 examples in batches of 10"
    for given, name in (
        ((7, 100, 10), "--batch-size"),
        ((None, 100, None), "--steps"),
        ((None, 0, 10), "--examples"),
        ((None, 10, 0), "--batch-size"),
    ):
        with pytest.raises(InvalidInputError, match=name):
            steps_from(*given)


def test_every_name_is_a_sampler():
    kinds = (BallsAndBins, Poisson, Shuffle, Deterministic)
    assert [sampler_from(name, 5) for name in SamplerName] == [kind(5) for kind in kinds]
    assert sampler_from(SamplerName.BALLS_AND_BINS, 5, fixed_bins=True) == BallsAndBins(5, redraw=False)
    limited = sampler_from(SamplerName.POISSON, 5, max_batch_size=9, examples=20)
    assert limited == Poisson(5, max_batch_size=9, num_examples=20)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"fixed_bins": True}, "--fixed-bins"),
        ({"max_batch_size": 9, "examples": 20}, "--max-batch-size"),
    ],
)
def test_what_does_not_fit_the_sampler_is_named(given, name):
    with pytest.raises(InvalidInputError, match=name):
        sampler_from(SamplerName.SHUFFLE, 5, **given)
    with pytest.raises(InvalidInputError, match="--examples"):
        sampler_from(SamplerName.POISSON, 5, max_batch_size=9)


def test_the_same_run_under_every_sampler():
    run = Mechanism(BallsAndBins(5, max_batch_size=9, num_examples=20), 0.7, 3, 2)
    runs = at_equal_noise(run)
    assert list(runs) == ["balls-and-bins", "Poisson", "shuffle", "deterministic"]
    assert runs["balls-and-bins"] is run
    assert runs["Poisson"] == Mechanism(Poisson(5), 0.7, 3, 2)
    truncated = at_equal_noise(run, truncated=True)
    assert truncated["Poisson"].sampler == Poisson(5, max_batch_size=9, num_examples=20)
    assert truncated["shuffle"].sampler == Shuffle(5)


def test_fixed_bins_stand_beside_redrawn_ones():
    run = Mechanism(BallsAndBins(5, redraw=False), 0.7, 3)
    runs = at_equal_noise(run)
    assert list(runs)[:2] == ["balls-and-bins (fixed bins)", "balls-and-bins"]
    assert runs["balls-and-bins"].sampler == BallsAndBins(5)
    named = under_each_sampler(run)
    assert list(named) == list(SamplerName)
    assert named[SamplerName.BALLS_AND_BINS] is run
