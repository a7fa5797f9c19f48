"""The statement: everything it must name, nothing it does not know, and every number rounded conservatively."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest

from ballsbins import (
    BallsAndBins,
    Deterministic,
    InvalidInputError,
    Mechanism,
    MonteCarlo,
    Poisson,
    Shuffle,
)
from ballsbins.report import Card, FloatingPoint
from ballsbins.report.numbers import down, length_of, stated, up
from ballsbins.report.statement_facts import replace_one, under_others
from ballsbins.samplers import Key

DELTA = 1e-5
ONE = Mechanism(BallsAndBins(100), 0.6)


def flat(statement):
    return " ".join(statement.text().split())


def numbers(pattern, text):
    return [float(found.replace(",", "")) for found in re.findall(pattern + r"\s*([\d.]+(?:e-\d+)?)\b", text)]


def test_it_names_all_that_is_asked_for():
    card = Card(
        Mechanism(BallsAndBins(100, max_batch_size=110, num_examples=5000), 0.6),
        DELTA,
        clip_norm=1.25,
        key_commitment="00112233aabbccdd",
        noise="AES in counter mode from the same key",
        normaliser=50.0,
        not_covered=("The vocabulary was counted on the training data.",),
    )
    text = flat(card.statement())
    for words in (
        "One training example",
        "Zero-out",
        "n = 5,000",
        "adding or removing an example",
        "Replacing an example",
        "balls-and-bins",
        "drawn anew",
        "σ = 0.6",
        "1.25",
        "1 epoch of 100 steps",
        "50 expected, 110 at most",
        "to δ; it is included",
        "at δ = 1e-5",
        "contour integral",
        "Remove: ε is at most",
        "add: ε is at most",
        "every iterate may be published",
        "divided by the public constant 50",
        "commitment 00112233aabbccdd",
        "AES in counter mode from the same key",
        "numpy ",
        "Other trainings on the same data",
        "training losses",
        "realised batch sizes",
        "floating-point noise",
        "The vocabulary was counted on the training data",
        "if the batches had been shuffled, the ε to report would be at least",
        "with Poisson batches ε would be between",
        "ballsbins check",
    ):
        assert words.lower() in text.lower(), words


@pytest.mark.parametrize(
    "sampler", [BallsAndBins(100), Poisson(100), Shuffle(100), Deterministic(100)], ids=repr
)
def test_stated_numbers_are_on_the_safe_side(sampler):
    mechanism = Mechanism(sampler, 0.6)
    bound = mechanism.epsilon(DELTA)
    headline = mechanism.statement(DELTA).headline
    (most,) = numbers("at most", headline)
    assert bound.upper <= most <= bound.upper * (1 + 1e-5)
    least = numbers("at least", headline)
    if isinstance(sampler, Shuffle):
        assert least[0] <= bound.lower
    else:
        assert least == []


def test_the_same_run_under_other_samplers():
    (section,) = [part for part in ONE.statement(DELTA).sections if part.title == "Under other samplers"]
    text = section.items[0].text
    (least,) = numbers("would be at least", text)
    shuffle, poisson = (
        Mechanism(Shuffle(100), 0.6).epsilon(DELTA),
        Mechanism(Poisson(100), 0.6).epsilon(DELTA),
    )
    assert shuffle.lower * (1 - 1e-4) <= least <= shuffle.lower
    low, high = map(float, re.search(r"between ([\d.]+) and ([\d.]+)\. ", text).groups())
    assert poisson.lower * (1 - 1e-4) <= low <= poisson.lower
    assert poisson.upper <= high <= poisson.upper * (1 + 1e-4)
    assert "common practice, would claim too little" in text
    assert "Poisson would be the more private" not in text


def test_it_says_where_poisson_is_better():
    """Errata 6: at small ε, large δ, balls-and-bins is the worse of the two."""
    mechanism = Mechanism(BallsAndBins(2), 1.0)
    text = flat(mechanism.statement(mechanism.delta(0.1).value))
    assert "Here Poisson would be the more private" in text


def test_an_early_stop_states_the_steps_really_taken():
    plan = Mechanism(BallsAndBins(100), 0.6)
    run = Mechanism(BallsAndBins(100), 0.6, last_epoch_steps=37)
    card = Card(run, DELTA, planned=plan)
    text = flat(card.statement())
    assert "37 of the 100 steps of one epoch; the run stopped early" in text
    assert (
        "for the 37 of 100 steps that were taken, and may be claimed if the decision to stop"
        in card.statement().headline
    )
    claimed, beside = numbers("at most", card.statement().headline)
    assert beside == pytest.approx(plan.epsilon(DELTA).upper, rel=1e-5)
    assert claimed == pytest.approx(run.epsilon(DELTA).upper, rel=1e-5)
    assert claimed < 0.9 * plan.epsilon(DELTA).upper
    (planned,) = numbers(r"\(for which ε is at most", text)
    assert planned >= plan.epsilon(DELTA).upper
    assert "the plan's ε is the one to report" in text
    assert "as planned" in flat(Card(plan, DELTA, planned=plan).statement())
    assert "stopped early" not in flat(Card(plan, DELTA).statement())


def test_a_monte_carlo_claim_carries_its_beta():
    method = MonteCarlo(samples=2000, error_probability=1e-4, epsilons=(1.0, 2.0, 3.0, 4.0, 6.0, 9.0))
    text = flat(Card(ONE, DELTA, stated=ONE.epsilon(DELTA, method)).statement())
    assert "with confidence 1 − 1e-4" in text
    assert "fail with probability at most β = 1e-4" in text
    assert "β" not in flat(ONE.statement(DELTA))


def test_what_is_not_recorded_is_a_condition():
    text = flat(ONE.statement(DELTA))
    assert "must be divided by a public constant" in text
    assert "must follow from a secret key" in text
    assert "Not stated; ε does not depend on it" in text


def test_a_seed_is_not_called_secret():
    key = Key.from_seed(7)
    card = Card(ONE, DELTA, key_commitment=key.commitment(), key_secret=key.is_secret)
    assert "plain seed" in card.statement().headline
    assert "NOT secret" in flat(card.statement())


def test_two_runs_with_one_key_are_said_to_cost_more():
    assert "Another training with the same key has the same batches" in flat(ONE.statement(DELTA))
    named = Card(ONE, DELTA, key_commitment="00112233aabbccdd", run="ab" * 16).statement()
    assert f"Another training with the run id {'ab' * 16} has the same batches" in flat(named)
    assert "the same batches" not in flat(Mechanism(Deterministic(10), 1.0).statement(DELTA))
    twice = [
        Mechanism(BallsAndBins(1000, redraw=redraw), 1.0, epochs=2).epsilon(1e-6) for redraw in (False, True)
    ]
    assert [round(float(bound.upper), 2) for bound in twice] == [0.90, 0.24]  # as the page on PyTorch says


def test_fixed_bins_are_compared_with_redrawn_ones():
    text = flat(Mechanism(BallsAndBins(50, redraw=False), 1.5, 2).statement(DELTA))
    assert "fixed bins" in text
    assert "drawn anew in every epoch ε would be at most" in text


def test_replacing_one_example_costs_what_two_changes_do():
    """For one step, by the closed form: means ±1 instead of 0 and 1, so the Gaussian mechanism at σ/2."""
    mechanism = Mechanism(BallsAndBins(1), 1.5)
    claim = mechanism.epsilon(DELTA)
    found = replace_one(mechanism, claim, DELTA)
    truth = Mechanism(Deterministic(1), 0.75)
    assert found.twice_epsilon == 2 * claim.upper
    assert found.delta_at_twice == pytest.approx(DELTA * (1 + math.exp(claim.upper)), rel=1e-12)
    assert truth.delta(found.twice_epsilon).upper <= found.delta_at_twice
    assert truth.epsilon(DELTA).upper <= found.epsilon_at_delta <= 1.5 * truth.epsilon(DELTA).upper
    assert found.epsilon_at_delta > claim.upper


def test_replacing_one_example_against_quadrature():
    """Two steps: gradients +1 and −1 in one of two batches; D(P‖R) on a grid fine enough for a part in 10⁴."""
    sigma, delta = 1.2, 1e-3
    mechanism = Mechanism(BallsAndBins(2), sigma)
    found = replace_one(mechanism, mechanism.epsilon(delta), delta)
    x = np.linspace(-9.0, 9.0, 901)
    a, b = np.meshgrid(x, x)

    def density(mean):
        parts = [np.exp(-((a - u) ** 2 + (b - v) ** 2) / (2 * sigma**2)) for u, v in ((mean, 0), (0, mean))]
        return sum(parts) / (4 * np.pi * sigma**2)

    def truth(epsilon):
        return np.maximum(density(1) - math.exp(epsilon) * density(-1), 0).sum() * (x[1] - x[0]) ** 2

    assert truth(found.epsilon_at_delta) <= delta
    assert truth(found.twice_epsilon) <= found.delta_at_twice
    assert truth(mechanism.epsilon(delta).upper) > delta  # the negative control: zero-out's ε is not enough


def test_json_has_prose_and_facts():
    statement = ONE.statement(DELTA, clip_norm=1.0, num_examples=5000)
    data = json.loads(json.dumps(statement.to_dict(), allow_nan=False))
    assert data["schema"] == 2
    assert data["headline"] == statement.headline
    facts = data["facts"]
    assert facts["epsilon_at_most"] == ONE.epsilon(DELTA).upper
    assert facts["expected_batch_size"] == 50.0
    assert facts["mechanism"] == ONE.to_dict()
    assert (
        facts["under_other_samplers"]["shuffle"]["lower"] == Mechanism(Shuffle(100), 0.6).epsilon(DELTA).lower
    )
    titles = [section["title"] for section in data["sections"]]
    assert titles == [section.title for section in statement.sections]


def test_markdown_and_text_say_the_same():
    statement = ONE.statement(DELTA)
    plain = re.sub(r"[^\w.]+", " ", statement.text())
    marked = re.sub(r"[^\w.]+", " ", statement.markdown())
    assert plain.split() == marked.split()
    assert statement.markdown(level=3).startswith("### Privacy statement")
    assert max(len(line) for line in statement.text(60).splitlines()) <= 60


def test_equations_stay_on_one_line():
    lines = ONE.statement(DELTA, num_examples=5000).text(40).splitlines()
    assert any("n = 5,000" in line for line in lines)
    assert not any(line.endswith((" =", " δ", " σ")) or line.lstrip().startswith("=  ") for line in lines)
    assert "\N{NO-BREAK SPACE}" not in "".join(lines)


def test_a_claim_that_is_not_true_is_not_stated():
    claim = ONE.epsilon(DELTA)

    def stated_as(**words):
        return Card(ONE, DELTA, stated=replace(claim, **words)).statement()

    stated_as()
    stated_as(upper=2 * claim.upper)
    for words, name in (
        ({"lower": 0.0, "value": 1.0, "upper": 0.99 * claim.lower}, "the claim for balls-and-bins, σ = 0.6"),
        ({"value": 9.0, "lower": 9.0, "upper": 9.0}, "the lower end of the claim"),
        (
            {"directions": {"add": replace(claim.directions["add"], lower=0.0, value=0.0, upper=0.0)}},
            "in the direction add",
        ),
    ):
        with pytest.raises(InvalidInputError, match=re.escape(name)):
            stated_as(**words)


def test_a_claim_for_shuffling_below_what_is_proved_is_not_stated_unless_it_is_said_to_be_probable():
    run = Mechanism(Shuffle(50), 0.8)
    claim = run.epsilon(DELTA)
    middle = 0.5 * (claim.lower + claim.upper)
    less = replace(claim, value=middle, upper=middle, directions={})
    with pytest.raises(InvalidInputError, match="which is what is proved"):
        Card(run, DELTA, stated=less).statement()
    assert "confidence 1 −" in Card(run, DELTA, stated=replace(less, confidence=0.99)).statement().headline


@pytest.mark.parametrize(
    ("sampler", "said", "not_said"),
    [
        (BallsAndBins(10), "given the sizes, balls-and-bins is shuffling", "rounded up or down"),
        (Poisson(10), "realised batch sizes and the batches themselves;", "is shuffling"),
        (Shuffle(10), "About the number of examples divided by 10.", "batch sizes"),
        (Deterministic(10), "The batches are not random", "the batches themselves"),
    ],
    ids=repr,
)
def test_what_is_said_of_batches_fits_the_sampler(sampler, said, not_said):
    text = flat(Mechanism(sampler, 1.0).statement(DELTA))
    assert said in text
    assert not_said not in text


def test_odd_ends():
    assert "ε is at most 0 at δ" in Mechanism(BallsAndBins(100), 1e6).statement(DELTA).headline
    assert "such as n / steps" in flat(Mechanism(BallsAndBins(2), 1.0).statement(DELTA, num_examples=0))
    small = flat(Mechanism(BallsAndBins(2), 1.0).statement(DELTA, clip_norm=1e-7))
    assert "Clip norm. 1e-7." in small
    assert "1 epoch of 2 steps. Batch size" in small
    cut = Mechanism(BallsAndBins(100, max_batch_size=110, num_examples=5000), 0.6)
    assert "With the same noise, steps and epochs but no truncation" in flat(cut.statement(DELTA))


def test_length_in_words():
    assert (
        length_of(Mechanism(BallsAndBins(7), 1.0, 2, 1)) == "1 whole epoch of 7 steps and 1 step of the next"
    )
    assert length_of(Mechanism(BallsAndBins(7), 1.0)) == "1 epoch of 7 steps"
    assert (
        length_of(Mechanism(BallsAndBins(7), 1.0, 3, 2))
        == "2 whole epochs of 7 steps and 2 steps of the next"
    )


def test_rounding_is_against_ourselves():
    rng = np.random.default_rng(5)
    for value in np.exp(rng.uniform(-40, 10, 300)):
        assert float(down(value, 4)) <= value <= float(up(value, 4))
        assert float(stated(value)) >= value
    assert stated(1e-5) == "1e-5"  # although the double is a little above 1e-5
    assert stated(0.25) == "0.25"
    assert (
        up(1.3) == down(1.3) == "1.3"
    )  # a claim of 1.3 is shown as such, though its double is a little more
    assert stated(1 / 60000) == "1.66667e-5"


def test_next_to_no_noise_is_called_no_protection():
    """Experiments on utility train with such noise; their cards must say what it is worth."""
    statement = Mechanism(BallsAndBins(100), 1e-3).statement(DELTA)
    assert "ε is at least 700 (no protection: no upper bound is known) at δ = 1e-5" in statement.headline
    json.dumps(statement.to_dict(), allow_nan=False)


def test_shuffling_has_bounds_even_where_composition_gives_up():
    """At σ = 0.01 no lower bound on several epochs can be composed; the paragraph still has its numbers."""
    shuffled = under_others(Mechanism(BallsAndBins(100), 0.01, 3), DELTA)["shuffle"]
    assert shuffled is not None
    assert shuffled.lower >= Mechanism(Shuffle(100), 0.01).epsilon(DELTA).lower * (1 - 1e-9)


def test_floating_point_is_said_to_be_what_is_known_of_it():
    """Not recorded: not covered. Covered: how, under which assumptions. The noise alone: what is missing."""
    silent = flat(Card(ONE, DELTA).statement())
    assert "finite precision of floating-point noise and sums" in silent
    assert "taken to be exactly Gaussian" in silent
    covered = flat(Card(ONE, DELTA, floating_point=FloatingPoint("cpu (x)", 4.96e-4)).statement())
    for words in (
        "Floating point. Covered",
        "η = 4.96e-4",
        "computational",
        "AES-256",
        "cpu (x)",
        "zero-out adjacency",
    ):
        assert words in covered
    assert "finite precision" not in covered
    assert "taken to be" not in covered
    assert "Nothing is stated for adding or removing an example: with one row fewer" in covered
    partly = flat(
        Card(ONE, DELTA, floating_point=FloatingPoint("cpu", None, ("sums are float32",))).statement()
    )
    assert "The noise is exact" in partly
    assert "NOT covered: sums are float32" in partly
