"""`ballsbins plot …` makes each picture, and refuses bad input before it computes anything."""

from __future__ import annotations

import json
import os

import pytest
from typer.testing import CliRunner

from ballsbins import InvalidInputError, Mechanism, Poisson
from ballsbins.cli import app
from ballsbins.plots import privacy_curves, save


def invoke(*words):
    done = CliRunner().invoke(app, ["plot", *map(str, words)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


@pytest.mark.parametrize(
    "words",
    [
        ("curves", "-s", 0.8, "-T", 20, "--to", 6, "-m", 500),
        ("epsilon-vs-noise", "-T", 20, "-d", 1e-5, "--from", 0.8, "--points", 3),
        ("epsilon-vs-epochs", "-s", 1.5, "-T", 20, "-d", 1e-5, "--to", 2),
        ("noise-vs-batch-size", "-n", 1000, "-e", 3, "-d", 1e-5, "-b", 50, "-b", 100),
    ],
)
def test_every_picture(words, tmp_path):
    file = tmp_path / "picture.png"
    done = invoke(*words, "-o", file)
    assert done.exit_code == 0
    assert f"Wrote {file}" in done.stdout.replace("\n", "")
    assert file.read_bytes().startswith(b"\x89PNG")


def test_auc(tmp_path):
    results = tmp_path / "results.json"
    part = {"noise": [0, 0.01, 0.2], "auc": [0.8, 0.79, 0.7], "error": [0.01, 0.01, 0.02]}
    results.write_text(json.dumps({"balls-and-bins": part, "Poisson": part}))
    invoke("auc-vs-noise", results, "-o", tmp_path / "auc.svg")
    assert (tmp_path / "auc.svg").read_bytes().startswith(b"<?xml")


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("curves", "-s", 1, "-T", 10, "-o", "c.gif"), ".png"),
        (("curves", "-s", 1, "-T", 10, "-o", "no/c.png"), "directory that exists"),
        (("curves", "-s", 1, "-T", 10, "-o", "d.png"), "the name of a file"),
        (("curves", "-s", 0, "-T", 10, "-o", "c.png"), "--noise-multiplier is 0.0"),
        (
            ("epsilon-vs-epochs", "-s", 0.02, "-T", 10, "-d", 1e-6, "--to", 2, "-o", "c.png"),
            "Nothing is left",
        ),
        (("epsilon-vs-noise", "-T", 10, "-d", 1e-5, "--from", 2, "--to", 1, "-o", "c.png"), "--from is 2.0"),
        (("epsilon-vs-noise", "-T", 10, "-d", 0, "-o", "c.png"), "delta is 0.0"),
        (("epsilon-vs-epochs", "-s", 1, "-d", 1e-5, "-o", "c.png"), "--steps"),
        (("noise-vs-batch-size", "-n", 100, "-e", 3, "-d", 1e-5, "-b", 10, "-o", "c.png"), "two different"),
        (("auc-vs-noise", "no.json", "-o", "c.png"), "No such file"),
        (("auc-vs-noise", "bad.json", "-o", "c.png"), "one length"),
        (("auc-vs-noise", "list.json", "-o", "c.png"), "one length"),
        (("auc-vs-noise", "empty.json", "-o", "c.png"), "one length"),
    ],
)
def test_bad_input(words, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d.png").mkdir()
    (tmp_path / "bad.json").write_text('{"Poisson": {"noise": [1], "auc": [0.5, 0.6], "error": [0]}}')
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "empty.json").write_text("{}")
    with pytest.raises(InvalidInputError) as caught:
        invoke(*words)
    assert name in str(caught.value)
    assert sorted(os.listdir(tmp_path)) == ["bad.json", "d.png", "empty.json", "list.json"]


def test_a_picture_that_cannot_be_written(tmp_path):
    axes = privacy_curves([0.0, 1.0], {"Poisson": Mechanism(Poisson(10), 1.0).delta([0.0, 1.0])})
    with pytest.raises(InvalidInputError, match="a file that can be written"):
        save(axes, tmp_path / "no" / "c.png")
