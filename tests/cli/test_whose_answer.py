"""An answer says for which batches it is, and drops nothing that was asked."""

from __future__ import annotations

import json
import re

import pytest
from typer.testing import CliRunner

from ballsbins import BallsAndBins, BallsBinsError, Mechanism, Shuffle
from ballsbins.cli import app
from ballsbins.report.numbers import up

RUN = CliRunner()
LOOP = ("-s", "1.1", "-n", "60000", "-b", "256", "-E", "10")


def said(*words):
    """Standard output of a command that works, without line breaks."""
    done = RUN.invoke(app, [str(word) for word in words])
    assert done.exception is None, done.exception
    return re.sub(r"\s+", " ", done.stdout)


@pytest.mark.parametrize(
    "command",
    [
        ("epsilon", *LOOP, "-d", "1e-6"),
        ("delta", *LOOP, "-e", "1"),
        ("calibrate", "-e", "8", "-d", "1e-6", "-T", "100"),
        ("plan", "-n", "60000", "-e", "8", "-d", "1e-6", "-b", "256"),
    ],
    ids=lambda words: words[0],
)
def test_who_does_not_name_a_sampler_is_told_of_shuffled_batches(command):
    text = said(*command)
    headline = text[: text.index("batches:")]
    assert "balls-and-bins batches" in headline
    assert "not what DataLoader(shuffle=True) gives" in text
    assert "With DataLoader(shuffle=True) instead," in text
    assert "--sampler shuffle" in text
    named = said(*command, "--sampler", "balls-and-bins")
    assert "With DataLoader(shuffle=True) instead," not in named


@pytest.mark.parametrize(
    "command",
    [
        ("curve", "-s", "0.7", "-T", "50", "--points", "3", "--out", "curve.csv"),
        ("statement", "-s", "0.7", "-T", "50", "-d", "1e-6"),
        ("page", "-s", "0.7", "-T", "50", "-d", "1e-6", "--alone", "--out", "page.html"),
        ("certify", "-s", "0.7", "-T", "50", "-e", "2"),
    ],
    ids=lambda words: words[0],
)
def test_what_is_written_is_for_known_batches_too(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = RUN.invoke(app, command)
    assert done.exception is None, done.exception
    assert "With DataLoader(shuffle=True) instead," in done.stderr
    named = RUN.invoke(app, [*command, "--sampler", "balls-and-bins"])
    assert "DataLoader" not in named.stderr


@pytest.mark.parametrize(
    "command",
    [
        ("verify", "-s", "1.1", "-T", "100", "-e", "1", "--samples", "2000", "--within", "1"),
        ("certify", "-s", "0.7", "-T", "50", "-e", "2", "--sampler", "balls-and-bins"),
        ("audit", "-s", "1", "-T", "5", "-d", "1e-3", "--trials", "500"),
    ],
    ids=lambda words: words[0],
)
def test_who_doubts_an_answer_reads_for_which_batches_it_is(command):
    text = said(*command)
    assert "for balls-and-bins batches batches: every example in one random batch" in text
    assert ("With DataLoader(shuffle=True) instead, ε " in text) is command[0].startswith("audit")
    if command[0].startswith("audit"):
        named = said(*command, "--sampler", "shuffle")
        assert "for shuffled batches" in named
        assert "With DataLoader(shuffle=True) instead" not in named


def test_the_shuffled_numbers_are_those_of_the_same_loop():
    bound = Mechanism(Shuffle(235), 1.1, 10).epsilon(1e-6)
    text = said("epsilon", *LOOP, "-d", "1e-6")
    low, high = re.search(r"ε is at least ([\d.]+), at most ([\d.]+) at δ = 1e-6\. If that", text).groups()
    assert float(low) <= bound.lower < float(low) * 1.0001
    assert float(high) >= bound.upper > float(high) * 0.9999


def test_a_headline_of_bounds_has_both_ends():
    bound = Mechanism(Shuffle(235), 1.1, 10).epsilon(1e-6)
    text = said("epsilon", "--sampler", "shuffle", *LOOP, "-d", "1e-6")
    low, high = map(
        float, re.match(r"([\d.]+) ≤ ε ≤ ([\d.]+) at δ = 1e-6 for shuffled batches", text).groups()
    )
    assert low <= bound.lower < bound.upper <= high
    assert "poisson_sampling=False" in text
    assert "best value" not in text  # it would be the upper bound, which is not the best guess


def test_every_delta_is_answered():
    run = Mechanism(BallsAndBins(100), 0.7)
    data = json.loads(said("epsilon", "-s", 0.7, "-T", 100, "-d", 1e-5, "-d", 1e-7, "--json"))
    assert [answer["upper"] for answer in data] == [run.epsilon(1e-5).upper, run.epsilon(1e-7).upper]
    text = said("epsilon", "-s", 0.7, "-T", 100, "-d", 1e-5, "-d", 1e-7)
    assert "at δ = 1e-5 for balls" in text
    assert "at δ = 1e-7 for balls" in text
    # and the shuffled loop has an answer at each, too
    shuffled = text[text.index("With DataLoader") : text.index("--sampler shuffle")]
    for delta in ("1e-5", "1e-7"):
        assert (
            f"at most {up(Mechanism(Shuffle(100), 0.7).epsilon(float(delta)).upper)} at δ = {delta}"
            in shuffled
        )
    text = said("delta", "-s", 0.7, "-T", 100, "-e", 1, "-e", 2)
    assert text.count(" at ε = 1") == text.count(" at ε = 2") == 3


@pytest.mark.parametrize(
    "words",
    [
        ("calibrate", "-e", "8", "-d", "1e-6", "-d", "1e-5", "-T", "100"),
        ("epsilon", "-s", "1", "-T", "100", "-T", "10", "-d", "1e-5"),
        ("data", "generate", "ads.tsv", "--examples", "10", "--examples", "20"),
    ],
)
def test_an_option_with_one_value_is_not_taken_twice(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = RUN.invoke(app, words)
    assert isinstance(done.exception, BallsBinsError)
    assert "more than once" in str(done.exception)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (("epsilon", "-s", "-1", "-T", "10", "-d", "1e-5"), "--noise-multiplier"),
        (("epsilon", "-s", "1", "-T", "0", "-d", "1e-5"), "--steps"),
        (("epsilon", "-s", "1", "-T", "10", "-d", "0"), "--delta"),
        (("calibrate", "-e", "8", "-d", "1e-6", "-T", "100", "-E", "0"), "--epochs"),
        (("delta", "-s", "1", "-T", "10", "-e", "nan"), "--epsilon"),
    ],
)
def test_errors_speak_of_options(words, option):
    done = RUN.invoke(app, words)
    assert str(done.exception).startswith(f"{option} is ")


def test_a_delta_of_one_in_n_is_said_loudly():
    loud = "WARNING: δ = 1e-4 is not below 1/n"
    assert loud in said("epsilon", *LOOP, "-d", "1e-4")
    assert "WARNING" not in said("epsilon", *LOOP, "-d", "1e-6")
    assert loud in said("calibrate", "-n", 60000, "-b", 256, "-e", 8, "-d", "1e-4")
    assert loud in said("plan", "-n", 60000, "-b", 256, "-e", 8, "-d", "1e-4")
    assert "WARNING" in said("delta", *LOOP, "-e", "0.1")
    assert loud in said("compare", *LOOP, "-d", "1e-4")
    assert loud in said("audit-run", *LOOP, "-d", "1e-4")
    assert loud in said("certify", *LOOP[:-2], "-d", "1e-4")


def test_paragraphs_of_the_help_are_wrapped_by_the_terminal_only():
    """At 600 columns each is one line; the source wraps them at 118, which a terminal of 80 would wrap once more."""
    for name in ("audit-run", "check-machine", "build", "assign"):
        shown = RUN.invoke(app, [name, "--help"], env={"COLUMNS": "600", "TERMINAL_WIDTH": "600"}).output
        above = [line.strip() for line in shown[: shown.index("╭")].splitlines()]
        told = [line for line in above if line and not line.startswith("Usage:")]
        assert all(line.endswith((".", "?")) or line.startswith("For example:") for line in told), told
