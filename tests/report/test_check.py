"""`check`: a true claim agrees, a false one does not, and two methods are really asked."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ballsbins import BallsAndBins, Deterministic, Mechanism, MonteCarlo, Poisson, Shuffle
from ballsbins.report import Card
from ballsbins.report.check import check, second_opinion

DELTA = 1e-5
METHOD = MonteCarlo(samples=4000, error_probability=1e-6, seed=1)  # a true claim is refuted once in 10⁶ seeds

RUNS = [
    Mechanism(BallsAndBins(100), 0.6),
    Mechanism(BallsAndBins(100, redraw=False), 1.2, 4),
    Mechanism(BallsAndBins(50), 0.8, 2, 20),
    Mechanism(BallsAndBins(100, max_batch_size=110, num_examples=5000), 0.6),
    Mechanism(Poisson(50), 0.8),
    Mechanism(Deterministic(50), 2.0, 3),
    Mechanism(Shuffle(50), 0.8),
]


def claiming(card, factor):
    """The same card with all its numbers scaled."""
    claim = card.claim

    def scaled(bound):
        return replace(
            bound,
            lower=bound.lower * factor,
            value=bound.value * factor,
            upper=bound.upper * factor,
            directions={name: scaled(part) for name, part in bound.directions.items()},
        )

    return replace(card, stated=scaled(claim))


@pytest.mark.parametrize("mechanism", RUNS, ids=repr)
def test_a_true_claim_agrees(mechanism):
    found = check(Card(mechanism, DELTA), METHOD)
    assert found.findings == ()
    assert found.agrees
    assert found.verdict == "agrees"
    assert (found.second is None) == isinstance(mechanism.sampler, Shuffle)
    if found.second is not None:
        assert found.second_verdict == "agrees"
        assert found.second.method.startswith(
            "Monte Carlo" if isinstance(mechanism.sampler, BallsAndBins) else "dp_accounting"
        )
        assert found.second.lower <= found.delta.upper
        assert found.delta.lower <= found.second.upper <= 30 * found.delta.upper


@pytest.mark.parametrize("mechanism", RUNS[:2] + RUNS[4:], ids=repr)
def test_a_claim_that_is_too_small_is_refuted_by_both(mechanism):
    found = check(claiming(Card(mechanism, DELTA), 0.6), METHOD)
    assert not found.agrees
    assert found.verdict == "too small"
    assert "TOO SMALL" in found.findings[0]
    if found.second is not None and not isinstance(mechanism.sampler, Poisson):
        # dp_accounting's lower end for Poisson is loose
        assert found.second_verdict == "too small"


def test_a_claim_one_part_in_ten_thousand_too_small_is_refuted():
    found = check(claiming(Card(RUNS[0], DELTA), 1 - 1e-4), METHOD)
    assert found.verdict == "too small"
    assert found.second_verdict == "agrees"  # beyond what sampling can tell


def test_a_claim_for_shuffling_between_its_bounds_is_not_proved():
    bound = RUNS[-1].epsilon(DELTA)
    assert bound.lower < bound.upper * (1 - 1e-3)
    middle = 0.5 * (bound.lower + bound.upper)
    found = check(claiming(Card(RUNS[-1], DELTA), middle / bound.upper), METHOD)
    assert found.verdict == "not proved"
    assert not found.agrees


def test_a_larger_claim_agrees():
    assert check(claiming(Card(RUNS[0], DELTA), 1.5), METHOD).agrees


@pytest.mark.parametrize("mechanism", [RUNS[0], RUNS[2], Mechanism(BallsAndBins(50), 0.2, 2)], ids=repr)
def test_an_infinite_claim_is_true_and_there_is_no_delta_to_compare(mechanism):
    claim = replace(mechanism.epsilon(DELTA), upper=float("inf"), directions={})
    found = check(Card(mechanism, DELTA, stated=claim), METHOD)
    assert found.agrees
    assert found.delta is found.second is None
    assert found.second_verdict == "no opinion"


def test_a_claim_beyond_the_composed_curve_is_still_a_claim():
    mechanism = Mechanism(BallsAndBins(50), 0.8, 2)
    claim = replace(mechanism.epsilon(DELTA), upper=600.0, directions={})
    assert check(Card(mechanism, DELTA, stated=claim), METHOD).agrees


def test_the_claim_of_one_direction_is_checked_too():
    card = Card(RUNS[0], DELTA)
    add = card.claim.directions["add"]
    small = replace(add, lower=0.0, value=0.0, upper=0.5 * add.lower)
    wrong = replace(card.claim, directions={**card.claim.directions, "add": small})
    found = check(replace(card, stated=wrong), METHOD)
    assert any("direction add" in finding for finding in found.findings)


def test_the_accounting_of_the_wrong_sampler_is_found_out():
    """The common error: shuffled batches, Poisson's ε."""
    claimed = Mechanism(Poisson(50), 0.6).epsilon(DELTA)
    found = check(Card(Mechanism(Shuffle(50), 0.6), DELTA, stated=claimed), METHOD)
    assert found.verdict == "too small"


def test_truncation_that_leaves_no_epsilon():
    mechanism = Mechanism(BallsAndBins(100, max_batch_size=60, num_examples=5000), 0.6)
    claim = Mechanism(BallsAndBins(100), 0.6).epsilon(DELTA)
    found = check(Card(mechanism, DELTA, stated=claim), METHOD)
    assert found.epsilon is None
    assert "max_batch_size" in found.findings[0]
    assert not found.agrees


def test_methods_that_contradict_each_other_are_reported(monkeypatch):
    """Break the second method: whatever it says, disjoint intervals must be noticed."""
    from ballsbins.report import check as module

    def wrong(mechanism, epsilon, method):
        true = second_opinion(mechanism, epsilon, method)
        return replace(true, lower=0.0, value=0.0, upper=1e-3 * true.lower, directions={})

    monkeypatch.setattr(module, "second_opinion", wrong)
    found = check(Card(RUNS[0], DELTA), METHOD)
    assert any("contradict" in finding for finding in found.findings)


@pytest.mark.parametrize(
    "sampler",
    [Poisson(1, max_batch_size=1, num_examples=1000), BallsAndBins(1, max_batch_size=1, num_examples=1000)],
    ids=repr,
)
def test_a_second_opinion_grants_that_truncation_protects(sampler):
    """One step that keeps one of 1000 examples has δ ≤ 1/1000; without truncation it is above 1/2."""
    second = second_opinion(Mechanism(sampler, 0.5), 1.0, METHOD)
    assert second.lower <= 1e-3
    assert second.upper == 1.0
