"""The command line as people use it: real processes for what a shell sees, in-process calls for the rest."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from ballsbins import BallsAndBins, BallsBinsError, Key, Mechanism, calibrate
from ballsbins.cli import app

RUN = CliRunner()


def installed(*words, **more):
    """Run the installed command in a process of its own; returns it, finished."""
    command = [str(Path(sys.executable).parent / "ballsbins"), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, **more)


def answer(*words):
    """Run in this process; returns standard output."""
    done = RUN.invoke(app, [str(word) for word in words])
    if done.exception is not None:
        raise done.exception
    return done.stdout


def test_epsilon_json_is_the_python_answer():
    data = json.loads(answer("epsilon", "-s", 0.35, "-T", 1000, "-d", 1e-6, "--json"))
    assert data == json.loads(json.dumps(Mechanism(BallsAndBins(1000), 0.35).epsilon(1e-6).to_dict()))


def test_delta_json_of_several_points_is_a_list():
    data = json.loads(answer("delta", "-s", 0.5, "-T", 50, "-e", 1, "-e", 2, "--json"))
    assert [part["quantity"] for part in data] == ["delta", "delta"]
    assert data[0]["value"] > data[1]["value"]


def test_printed_bounds_are_rounded_against_ourselves():
    bound = Mechanism(BallsAndBins(1000), 0.35).epsilon(1e-6)
    text = answer("epsilon", "-s", 0.35, "-T", 1000, "-d", 1e-6)
    headline = float(re.search(r"ε ≤ ([\d.]+)", text)[1])
    assert bound.upper <= headline <= bound.upper * (1 + 1e-5)
    lower, value, upper = (
        float(x) for x in re.search(r"both directions +([\d.]+) +([\d.]+) +([\d.]+)", text).groups()
    )
    assert lower <= bound.lower
    assert upper >= bound.upper
    assert value == pytest.approx(bound.value, rel=1e-9)


def test_steps_are_derived_and_shown():
    text = answer("epsilon", "-s", 0.7, "-n", 1001, "-b", 100, "-d", 1e-5)
    assert "11 steps per epoch" in text
    data = json.loads(answer("epsilon", "-s", 0.7, "-n", 1001, "-b", 100, "-d", 1e-5, "--json"))
    assert data["mechanism"]["sampler"]["steps"] == 11


@pytest.mark.parametrize("sampler", ["balls-and-bins", "poisson", "shuffle", "deterministic"])
def test_every_sampler_answers(sampler):
    data = json.loads(answer("epsilon", "-s", 1.0, "-T", 20, "-d", 1e-5, "--sampler", sampler, "--json"))
    assert 0 < data["lower"] <= data["value"] <= data["upper"]


def test_fixed_bins():
    data = json.loads(answer("epsilon", "-s", 2, "-T", 20, "-E", 4, "-d", 1e-5, "--fixed-bins", "--json"))
    assert data["mechanism"]["sampler"]["redraw"] is False
    assert data["value"] == pytest.approx(Mechanism(BallsAndBins(20), 1.0).epsilon(1e-5).value, rel=1e-12)


def test_calibrate_finds_the_least_noise():
    data = json.loads(answer("calibrate", "-e", 2, "-d", 1e-5, "-T", 100, "--json"))
    mechanism = Mechanism.from_dict(data["mechanism"])
    assert mechanism == calibrate(BallsAndBins(100), epsilon=2.0, delta=1e-5)
    assert data["epsilon"]["upper"] <= 2.0


def test_calibrate_says_that_no_more_epochs_can_be_asked_for():
    words = (
        "calibrate",
        "-e",
        8,
        "-d",
        1e-9,
        "-T",
        9,
        "--sampler",
        "deterministic",
        "--find",
        "epochs",
        "-s",
    )
    assert "1,000,000,000 epochs (the most that can be asked for" in answer(*words, 1e6)
    assert "the most" not in answer(*words, 3.0)


def test_calibrate_finds_steps_and_epochs():
    data = json.loads(answer("calibrate", "-e", 2, "-d", 1e-5, "-s", 1, "--find", "steps", "--json"))
    steps = data["mechanism"]["sampler"]["steps"]
    assert Mechanism(BallsAndBins(steps), 1.0).epsilon(1e-5).upper <= 2.0
    assert Mechanism(BallsAndBins(steps - 1), 1.0).epsilon(1e-5).upper > 2.0
    data = json.loads(
        answer(
            "calibrate", "-e", 2, "-d", 1e-5, "-s", 4, "-T", 9, "--fixed-bins", "--find", "epochs", "--json"
        )
    )
    epochs = data["mechanism"]["epochs"]
    assert Mechanism(BallsAndBins(9, redraw=False), 4.0, epochs).epsilon(1e-5).upper <= 2.0
    assert Mechanism(BallsAndBins(9, redraw=False), 4.0, epochs + 1).epsilon(1e-5).upper > 2.0


def test_calibrate_with_truncation():
    words = ("calibrate", "-e", 4, "-d", 1e-6, "-n", 10**6, "-b", 1000, "-B", "auto")
    data = json.loads(answer(*words, "--json"))
    assert 1000 < data["mechanism"]["sampler"]["max_batch_size"] < 1400
    assert 0 < data["epsilon"]["penalty"] <= 1.01e-8
    assert "truncation adds" in answer(*words)


def test_plan():
    rows = json.loads(answer("plan", "-n", 10000, "-e", 3, "-d", 1e-5, "-b", 100, "-b", 1000, "--json"))
    assert [row["batch_size"] for row in rows] == [100, 1000]
    assert rows[0]["mechanism"]["noise_multiplier"] < rows[1]["mechanism"]["noise_multiplier"]
    assert rows[0]["noise_per_example"] > rows[1]["noise_per_example"]
    assert "σ / batch size" in answer("plan", "-n", 10000, "-e", 3, "-d", 1e-5, "-b", 100)


def test_compare_says_what_it_means():
    text = answer("compare", "-s", 0.4, "-T", 500, "-d", 1e-6)
    assert all(name in text for name in ("balls-and-bins", "Poisson", "shuffle", "deterministic"))
    assert "the truth is at least" in " ".join(text.split())
    assert "Crossover" in text
    data = json.loads(answer("compare", "-s", 0.4, "-T", 500, "-e", 3, "-e", 6, "--json"))
    assert set(data) == {"samplers", "crossover"}
    assert len(data["samplers"]["Poisson"]) == 2


def test_curve_as_csv_and_json(tmp_path):
    rows = list(csv.DictReader(io.StringIO(answer("curve", "-s", 0.5, "-T", 100, "--points", 5, "--to", 4))))
    assert [float(row["epsilon"]) for row in rows] == [0.0, 1.0, 2.0, 3.0, 4.0]
    expected = Mechanism(BallsAndBins(100), 0.5).delta(np.array([0.0, 1.0, 2.0, 3.0, 4.0]))
    np.testing.assert_allclose([float(row["delta_upper"]) for row in rows], expected.upper, rtol=1e-9)
    file = tmp_path / "curve.json"
    answer("curve", "-s", 0.5, "-T", 100, "--points", 5, "--to", 4, "-o", file)
    assert json.loads(file.read_text())["quantity"] == "delta"


@pytest.mark.parametrize("name", ["curve.png", "curve.svg", "curve.pdf", "compare.png"])
def test_pictures(tmp_path, name):
    """The name's ending decides the format, by one function for all commands."""
    command, ending = name.split(".")
    words = ("curve", "--to", 6, "--points", 11) if command == "curve" else ("compare", "-d", 1e-5)
    answer(*words, "-s", 0.6, "-T", 50, "-o", tmp_path / name)
    start = (tmp_path / name).read_bytes()[:8]
    assert start.startswith({"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[ending])


def test_key_is_written_once_and_for_its_owner_alone(tmp_path):
    file = tmp_path / "run.key"
    text = answer("key", file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert Key.from_file(file).commitment() in text
    assert file.read_bytes().hex() not in text
    with pytest.raises(BallsBinsError):
        answer("key", file)


def test_version_and_help():
    assert installed("--version").stdout.startswith("ballsbins 0.")
    assert "Usage" in answer("epsilon", "--help")
    for command in ("delta", "calibrate", "plan", "compare", "curve", "statement", "total", "key", "demo"):
        assert "Usage" in answer(command, "--help")


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("epsilon", "-s", 0, "-T", 10, "-d", 1e-6), ["--noise-multiplier is 0.0"]),
        (("epsilon", "-s", -1, "-T", 10, "-d", 1e-6), ["--noise-multiplier is -1.0"]),
        (("epsilon", "-s", "nan", "-T", 10, "-d", 1e-6), ["--noise-multiplier is nan"]),
        (("epsilon", "-s", 1, "-T", 0, "-d", 1e-6), ["steps is 0"]),
        (("epsilon", "-s", 1, "-T", 10, "-d", 0), ["delta is 0.0", "(0, 1)"]),
        (("epsilon", "-s", 1, "-T", 10, "-d", 1), ["delta is 1.0"]),
        (("epsilon", "-s", 1, "-T", 10, "-E", 0, "-d", 1e-6), ["epochs is 0"]),
        (("epsilon", "-s", 1, "-d", 1e-6), ["--steps", "--examples"]),
        (("epsilon", "-s", 1, "-T", 10, "-b", 5, "-d", 1e-6), ["--batch-size"]),
        (("epsilon", "-s", 1, "-n", 10, "-b", 0, "-d", 1e-6), ["--batch-size is 0"]),
        (("epsilon", "-s", 1, "-T", 10, "-B", 5, "-d", 1e-6), ["--examples"]),
        (
            ("epsilon", "-s", 1, "-T", 10, "-d", 1e-6, "--sampler", "shuffle", "--fixed-bins"),
            ["--fixed-bins"],
        ),
        (("delta", "-s", 1, "-T", 10, "-e", "nan"), ["epsilon is nan"]),
        (("calibrate", "-e", 1e-9, "-d", 1e-300, "-T", 5), ["no noise multiplier up to 1e+06"]),
        (("calibrate", "-e", 0, "-d", 1e-6, "-T", 5), ["epsilon is 0.0"]),
        (("calibrate", "-e", 1, "-d", 1e-6, "-s", 1, "-T", 5), ["--find"]),
        (("calibrate", "-e", 1, "-d", 1e-6, "--find", "luck", "-T", 5), ["--find is 'luck'"]),
        (("calibrate", "-e", 1, "-d", 1e-9, "-s", 0.1, "-T", 5, "--find", "epochs"), ["not even one epoch"]),
        (("calibrate", "-e", 1, "-d", 1e-6, "-T", 5, "-n", 50, "-B", "many"), ["--max-batch-size is 'many'"]),
        (("compare", "-s", 1, "-T", 10), ["--delta"]),
        (("curve", "-s", 1, "-T", 10, "--from", 3, "--to", 2), ["--from is 3.0"]),
        (("curve", "-s", 1, "-T", 10, "-o", "curve.gif"), [".png"]),
        (("plan", "-n", 0, "-e", 1, "-d", 1e-6), ["--examples is 0"]),
        (("epsilon", "-s", 1, "-n", 100, "-b", 256, "-d", 1e-6), ["--batch-size is 256", "from 1 to 100"]),
        (("epsilon", "-s", 1, "-n", 10, "-b", 0, "-d", 1e-6), ["A batch has at least one example"]),
        (
            ("epsilon", "-s", 1, "-T", 10, "-d", 1e-6, "--sampler", "shuffle", "--fixed-bins"),
            ["--fixed-bins must be left out for shuffle"],
        ),
        (
            ("epsilon", "-s", 1, "-T", 10, "-d", 1e-6, "--method", "rdp"),
            ["--method is 'rdp'", "one of auto, renyi, lower-bound, monte-carlo"],
        ),
        (
            ("epsilon", "-s", 1, "-T", 100, "-n", 1000, "-B", 5, "-d", 1e-6),
            ["--max-batch-size 5 truncates", "Use --max-batch-size 33 or more", "--delta 1e-06"],
        ),
        (
            ("calibrate", "-e", 1, "-T", 100, "-n", 1000, "-B", 5, "-d", 1e-6),
            ["--max-batch-size 5 truncates batches so often that no noise", "Use --max-batch-size 3"],
        ),
        (
            ("calibrate", "-e", 1, "-d", 1e-6, "-T", 5, "--find", "epochs"),
            ["--noise-multiplier must be given with --find epochs"],
        ),
        (
            ("calibrate", "-e", 1, "-d", 1e-6, "-s", 1, "-T", 5),
            ["--noise-multiplier is 1.0, but must be left out", "--find epochs"],
        ),
        (
            ("audit-run", "-e", -3, "-n", 100, "-b", 10, "-d", 1e-6),
            ["--claimed-epsilon is -3.0, but must be a number in (0, 700]"],
        ),
        (
            ("audit-run", "-e", 3, "-s", 1, "-n", 100, "-b", 10, "-d", 1e-6),
            ["--claimed-epsilon is 3.0, but must be left out with --noise-multiplier"],
        ),
        (
            ("page", "-s", 1, "-T", 10, "-d", 1e-6, "-o", "nowhere/page.html"),
            ["--out is 'nowhere/page.html'", "Make the directory first"],
        ),
        (("key", "nowhere/run.key"), ["No such file or directory", "Make the directory first"]),
        (("assign", "-n", 100, "-T", 10, "-o", "bins.parquet"), ["--key-file", "ballsbins key FILE"]),
        (
            ("assign", "-n", 1000, "-T", 10, "-B", 50, "-o", "bins.parquet"),
            ["--max-batch-size is 50", "at least 100", "auto"],
        ),
    ],
)
def test_bad_input_gets_one_sentence_and_exit_code_2(words, names, tmp_path, shell):
    done = shell(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert "\nballsbins: " in f"\n{done.stderr}"  # slow work may say how far it is before
    for name in names:
        assert name in done.stderr
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("words", "value"),
    [(("-T", "1.5"), "'1.5'"), (("-T", "10", "--sampler", "shufle"), "'shufle' is not one of")],
)
def test_a_value_that_no_option_takes_is_named(words, value):
    done = RUN.invoke(app, ["epsilon", "-s", "1", "-d", "1e-6", *words])
    shown = " ".join(re.sub(r"[│╭╮╰╯─]", " ", done.stderr).split())
    assert done.exit_code == 2
    assert value in shown
    assert "Value error" not in shown


def test_an_epsilon_beyond_all_is_explained():
    none = answer("epsilon", "-s", "0.01", "-T", "100", "-d", "1e-6")
    assert "no privacy" in none
    assert "both directions" in none
    assert "  add" not in none  # a direction that does not decide, and can take ten seconds
    assert "no privacy" not in answer("epsilon", "-s", "0.1", "-T", "100", "-d", "1e-6")


def test_help_shows_no_value_for_options_that_take_none():
    shown = answer("epsilon", "--help")
    assert "bool" not in shown.lower()
    assert "--json" in shown
    assert "bool" not in answer("--help").lower()
    assert "CARD..." not in answer("check", "--help").replace("[CARD]...", "")  # once is enough


def test_the_installed_command_ends_as_it_does_in_this_process(shell, tmp_path):
    words = ("epsilon", "-s", 1, "-T", 10, "-d", 0)
    there, here = installed(*words, cwd=tmp_path), shell(*words, cwd=tmp_path)
    assert (there.returncode, there.stdout, there.stderr) == (here.returncode, here.stdout, here.stderr)


def test_a_reader_that_has_seen_enough():
    command = f"{Path(sys.executable).parent / 'ballsbins'} curve -s 0.5 -T 100 --points 20000 | head -n 2"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, timeout=120)
    assert len(done.stdout.splitlines()) == 2
    assert "Traceback" not in done.stderr
