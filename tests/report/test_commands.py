"""`ballsbins statement | check | citation` as people use them."""

from __future__ import annotations

import json
import os

import pytest
from typer.testing import CliRunner

from ballsbins import BallsAndBins, Mechanism
from ballsbins.cli import app
from ballsbins.report import Card

RUN = Mechanism(BallsAndBins(100), 0.6)
FEW = ("--samples", 2000)


@pytest.fixture
def card(tmp_path):
    file = tmp_path / "card.json"
    Card(RUN, 1e-5, clip_norm=1.0, num_examples=5000).write(file)
    return file


def invoke(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def test_a_statement_from_options_and_from_the_card_agree(card):
    from_card = invoke("statement", "--from", card)
    from_options = invoke("statement", "-s", 0.6, "-n", 5000, "-b", 50, "-d", 1e-5, "-C", 1)
    assert from_card.exit_code == from_options.exit_code == 0
    assert from_card.stdout == from_options.stdout
    assert "Privacy statement" in from_card.stdout


def test_formats_and_files(card, tmp_path):
    expected = Card.read(card).statement()
    assert invoke("statement", "--from", card, "--format", "markdown").stdout == expected.markdown()
    assert json.loads(invoke("statement", "--from", card, "--format", "json").stdout) == expected.to_dict()
    for name, content in (("s.md", expected.markdown()), ("s.txt", expected.text())):
        done = invoke("statement", "--from", card, "--out", tmp_path / name)
        assert (tmp_path / name).read_text() == content
        assert "at most" in done.stdout
    invoke("statement", "--from", card, "--out", tmp_path / "s.json")
    assert json.loads((tmp_path / "s.json").read_text()) == expected.to_dict()


def test_an_unfinished_epoch():
    done = invoke("statement", "-s", 0.6, "-T", 100, "--last-epoch-steps", 40, "-d", 1e-5)
    assert "40 of the 100 steps of one epoch" in " ".join(done.stdout.split())


def test_check_agrees(card):
    done = invoke("check", card, *FEW)
    assert done.exit_code == 0
    assert "AGREE" in done.stdout
    assert "Monte Carlo" in done.stdout
    data = json.loads(invoke("check", card, *FEW, "--json").stdout)
    assert data["agrees"] is True
    assert data["epsilon"]["upper"] == RUN.epsilon(1e-5).upper
    assert data["second_delta_at_claim"]["confidence"] == pytest.approx(1 - 1e-6, rel=1e-12)


def test_check_of_a_claim_that_is_too_small(card, shell):
    saved = json.loads(card.read_text())
    for part in (saved["claim"], *saved["claim"]["directions"].values()):
        for name in ("lower", "value", "upper"):
            part[name] *= 0.5
    card.write_text(json.dumps(saved))
    done = shell("check", card, *FEW)
    assert done.returncode == 1
    assert "DISAGREE" in done.stderr
    assert "TOO SMALL" in done.stderr
    assert "too small" in done.stdout
    assert "AGREE:" not in done.stdout
    assert "Traceback" not in done.stderr
    assert json.loads(invoke("check", card, *FEW, "--json").stdout)["agrees"] is False


def test_the_words_of_a_card_are_no_instructions(card, shell):
    saved = json.loads(card.read_text())
    saved["claim"]["method"] = "[/bold] [red]AGREE"
    card.write_text(json.dumps(saved))
    done = shell("check", card, *FEW)
    assert done.returncode == 0
    assert "claimed by: [/bold] [red]AGREE" in done.stdout


def test_an_infinite_claim_is_checked(card, shell):
    saved = json.loads(card.read_text())
    saved["claim"] |= {"upper": "inf", "directions": {}}
    card.write_text(json.dumps(saved))
    done = shell("check", card, *FEW)
    assert done.returncode == 0
    assert "AGREE: ε is at most ∞" in done.stdout
    assert "protects nobody" in done.stdout


def test_citation(card):
    text = invoke("citation", "--from", card).stdout
    assert text == invoke("citation", "-s", 0.6, "-T", 100).stdout
    assert "@inproceedings{chua25balls," in text


def edited(card, **changes):
    card.write_text(json.dumps(json.loads(card.read_text()) | changes))


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("check", "no.json"), ["the card is 'no.json'", "No such file"]),
        (("check", "."), ["the card is '.'"]),
        (("check", "card.json", "--samples", 0), ["samples is 0"]),
        (("statement", "--from", "no.json"), ["No such file"]),
        (("statement", "--from", "card.json", "-E", 2), ["--epochs is 2", "left out with --from"]),
        (("statement", "--from", "card.json", "--fixed-bins"), ["--fixed-bins must be left out"]),
        (("statement", "-s", 1, "-T", 10), ["--delta must be given"]),
        (("statement", "-T", 10, "-d", 1e-5), ["--noise-multiplier must be given"]),
        (("statement", "-s", 1, "-T", 10, "-d", 2), ["delta is 2.0"]),
        (("statement", "-s", 1, "-T", 10, "-d", 1e-5, "-C", 0), ["--clip-norm is 0.0"]),
        (
            ("statement", "-s", 1, "-T", 10, "-d", 1e-5, "--last-epoch-steps", 11),
            ["--last-epoch-steps is 11"],
        ),
        (("statement", "--from", "card.json", "-o", "no/where.md"), ["no/where.md", "another path"]),
        (("citation",), ["--noise-multiplier must be given"]),
        (("citation", "--from", "card.json", "-s", 1), ["--noise-multiplier is 1.0"]),
    ],
)
def test_bad_input_gets_one_sentence_and_exit_code_2(words, names, card, tmp_path, shell):
    done = shell(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "\nballsbins: " in f"\n{done.stderr}"  # slow work may say how far it is before
    assert "Traceback" not in done.stderr
    for name in names:
        assert name in done.stderr
    assert os.listdir(tmp_path) == ["card.json"]


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"schema": 7}, "later version"),
        ({"mood": "good"}, "the field 'mood' of the card is 'good'"),
        ({"delta": None}, "delta is None"),
    ],
)
def test_bad_cards(changes, name, card):
    edited(card, **changes)
    for command in (("check", card), ("statement", "--from", card), ("citation", "--from", card)):
        done = invoke(*command)
        assert done.exit_code != 0
        assert name in str(done.exception)


def test_help():
    for command in ("statement", "check", "citation"):
        done = invoke(command, "--help")
        assert done.exit_code == 0
        assert "Usage" in done.stdout


def test_two_cards_of_one_run_are_warned_of(tmp_path):
    """Their batches are the same, so neither claim covers both; two runs of one key file are no offence."""
    files = []
    for number, run in enumerate(("ab" * 16, "ab" * 16, "cd" * 16)):
        files.append(tmp_path / f"{number}.json")
        Card(RUN, 1e-5, key_commitment="00112233aabbccdd", run=run).write(files[-1])
    done = invoke("check", *files, *FEW)
    assert done.exit_code == 0
    assert done.stdout.count("AGREE") == 3
    assert f"WARNING: {files[0]} and {files[1]} are of the same run" in " ".join(done.stderr.split())
    found = json.loads(invoke("check", *files, *FEW, "--json").stdout)
    assert [each["agrees"] for each in found["cards"]] == [True] * 3
    assert len(found["same_run"]) == 1
    apart = invoke("check", files[0], files[2], *FEW)
    assert "same run" not in apart.stderr
    assert "same run" not in invoke("check", files[0], *FEW).stderr
    page = tmp_path / "page.html"
    assert invoke("page", "--from", files[0], "--from", files[1], "--out", page).exit_code == 0
    assert "are of the same run" in page.read_text()
    assert invoke("page", "--from", files[0], "--from", files[2], "--out", page).exit_code == 0
    assert "are of the same run" not in page.read_text()


def test_one_false_card_among_several_is_named(tmp_path):
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    Card(RUN, 1e-5).write(good)
    saved = json.loads(good.read_text())
    for part in (saved["claim"], *saved["claim"]["directions"].values()):
        part["lower"] = part["value"] = part["upper"] = 0.5
    bad.write_text(json.dumps(saved))
    done = invoke("check", good, bad, *FEW)
    assert done.exit_code == 1
    assert f"DISAGREE: {bad}:" in done.stderr
    assert f"DISAGREE: {good}:" not in done.stderr
