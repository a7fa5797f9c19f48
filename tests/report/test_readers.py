"""The statement for three readers, of runs that were ours and of others; several runs in one statement."""

from __future__ import annotations

import re

import numpy as np
import pytest
from typer.testing import CliRunner

from ballsbins import BallsAndBins, Deterministic, InvalidInputError, Mechanism, Poisson, Shuffle, Total
from ballsbins.cli import app
from ballsbins.report import Card, total_statement
from ballsbins.report.plain_words import FALSE_ALARMS, RARELY, best_attack, percent

RUN = CliRunner()


def said(*words):
    done = RUN.invoke(app, [str(word) for word in words])
    assert done.exception is None, done.exception
    return re.sub(r"\s+", " ", done.stdout)


def test_the_best_attack_on_known_batches_is_that_on_a_gaussian():
    """One Gaussian with σ = 1: all three numbers in closed form, by another library's normal distribution."""
    from statistics import NormalDist

    normal = NormalDist()
    attack = best_attack(Mechanism(Deterministic(5), 1.0))
    assert attack.right == pytest.approx(normal.cdf(0.5), rel=1e-9)
    rate = 1 - normal.cdf(normal.inv_cdf(1 - FALSE_ALARMS) - 1.0)
    assert rate <= attack.true_positive_rate * (1 + 1e-9)
    assert attack.true_positive_rate == pytest.approx(rate, rel=1e-6)
    # the loss is N(½, 1) if the example was used: belief beyond 1/(1 + e^−l) has probability P(loss > l)
    level = np.log(attack.belief / (1 - attack.belief))
    assert 1 - normal.cdf(level - 0.5) <= RARELY


def test_belief_is_a_bound_on_simulated_losses():
    """A million losses of one epoch under P; the share beyond the stated belief has a standard error of 3e-5."""
    sigma, steps = 0.8, 20
    attack = best_attack(Mechanism(BallsAndBins(steps), sigma))
    level = np.log(attack.belief / (1 - attack.belief))
    generator = np.random.default_rng(5)
    x = generator.normal(0.0, sigma, (1_000_000, steps)).astype(np.float32)
    x[:, 0] += 1.0
    losses = np.log(np.mean(np.exp((x - 0.5) / sigma**2), axis=1))
    assert np.mean(losses > level) <= 1.1 * RARELY
    assert np.mean(losses > level - 1.0) > RARELY  # the bound is not idle: a level lower by 1 is exceeded


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.5, "50 %"),
        (0.1231, "12.4 %"),
        (0.123, "12.3 %"),
        (0.1230000000001, "12.4 %"),
        (0.01, "1 %"),
        (0.99993, "99.993 %"),
        (0.9999335, "99.9934 %"),
        (1.0, "100 %"),
    ],
)
def test_percent_is_rounded_up(share, text):
    assert percent(share) == text


def test_a_sentence_a_paragraph_and_the_whole():
    run = ("--sampler", "poisson", "-s", 1.1, "-n", 60000, "-b", 256, "-E", 10, "-d", "1e-6")
    sentence = said("statement", *run, "--format", "sentence")
    assert sentence.strip().count(". ") == 0
    for part in ("Poisson batches", "60,000 examples", "10 epochs of 235 steps", "zero-out", "δ = 1e-6"):
        assert part in sentence
    plain = said("statement", *run, "--format", "plain")
    assert "1.1" not in plain
    assert "6 % of 1/n" in plain
    assert plain.strip() in said("statement", *run)


def test_statements_of_loops_that_were_not_ours_claim_nothing_of_our_sampler():
    text = said("statement", "--sampler", "shuffle", "-s", 1.1, "-n", 60000, "-b", 256, "-d", "1e-6")
    for ours in ("differ by at most one", "secret key", "rounded up or down", "AES"):
        assert ours not in text
    ours = Card(Mechanism(Shuffle(10), 1.0), 1e-6, num_examples=100, key_commitment="ab12", run="r1")
    text = ours.statement().text(10_000)
    assert "differ by at most one" in text
    assert "commitment ab12" in text


def test_a_delta_of_one_in_n_is_said_in_statement_and_check(tmp_path):
    card = Card(Mechanism(BallsAndBins(20), 1.0), 1e-3, num_examples=1000)
    assert "WARNING: δ = 0.001 is not below 1/n" in card.statement().headline
    card.write(tmp_path / "card.json")
    assert "WARNING: δ = 0.001 is not below 1/n" in said("check", tmp_path / "card.json", "-m", 2000)
    assert "WARNING" not in Card(card.mechanism, 1e-4, num_examples=1000).statement().headline


def test_a_run_that_stopped_early_states_both():
    plan = Mechanism(BallsAndBins(100), 0.8, epochs=5)
    headline = Card(plan.after(250), 1e-6, planned=plan).statement().headline
    numbers = [float(number) for number in re.findall(r"ε is at most (\d+\.\d+)", headline)]
    assert numbers == pytest.approx([plan.after(250).epsilon(1e-6).upper, plan.epsilon(1e-6).upper], rel=1e-5)
    assert "did not depend on the model or the data; otherwise report the plan" in headline


def test_what_else_people_publish(tmp_path):
    card = Card(
        Mechanism(BallsAndBins(20), 1.0),
        1e-6,
        about={"link": "https://example.org/run", "dataset": "clicks"},
        metrics={"test AUC": 0.75, "table": [1, 2]},
    )
    card.write(tmp_path / "card.json")
    assert Card.read(tmp_path / "card.json").about == {"dataset": "clicks", "link": "https://example.org/run"}
    text = said(
        "statement", "--from", tmp_path / "card.json", "--date", "2026-11-16", "--key-custody", "deleted",
        "--metric", "loss=0.5",
    )  # fmt: skip
    for part in (
        "Data set. clicks.",
        "Date. 2026-11-16.",
        "Custody of the key. deleted.",
        "test AUC = 0.75",
        "loss = 0.5",
    ):
        assert part in text
    for wrong in ({"owner": "me"}, {"date": 3}, {"date": "two\nlines"}, {"link": " "}, ["date"]):
        with pytest.raises(InvalidInputError):
            Card(card.mechanism, 1e-6, about=wrong)
    done = RUN.invoke(app, ["statement", "-s", "1", "-T", "9", "-d", "1e-6", "--metric", "good"])
    assert isinstance(done.exception, InvalidInputError)


def test_runs_are_added_up(tmp_path):
    runs = [
        Mechanism(BallsAndBins(100), 2.0),
        Mechanism(Poisson(50), 1.5),
        Mechanism(BallsAndBins(100), 1.0, 3),
    ]
    paths = []
    for number, run in enumerate(runs):
        paths.append(tmp_path / f"{number}.json")
        Card(run, 1e-6, run=f"r{number}", key_commitment="k", num_examples=5000).write(paths[-1])
    text = said("total", *paths)
    upper = float(re.search(r"3 runs together .*? ε is at most ([\d.]+) at δ = 1e-6", text)[1])
    assert upper == pytest.approx(Total(runs).epsilon(1e-6).upper, rel=1e-5)
    assert "Run r2." in text
    assert "all that can be checked" in text
    assert "No run id" not in text


def test_a_total_that_cannot_be_is_refused(tmp_path):
    run = Mechanism(BallsAndBins(100), 2.0)
    card = Card(run, 1e-6, run="r1", num_examples=10)
    cases = {
        r"the list of cards is \['a', 'b'\], but must be of different runs. a and b are of the same run": [
            ("a", card),
            ("b", card),
        ],
        "one and the same": [("a", card), ("b", Card(run, 1e-6, num_examples=11))],
        "δ differ": [("a", card), ("b", Card(run, 1e-5))],
        "one run or more": [],
    }
    for words, cards in cases.items():
        with pytest.raises(InvalidInputError, match=words):
            total_statement(cards)
    assert "No run id is recorded for b" in total_statement([("a", card), ("b", Card(run, 1e-6))]).text(
        10_000
    )
    done = RUN.invoke(app, ["total", str(tmp_path / "none.json")])
    assert isinstance(done.exception, InvalidInputError)
