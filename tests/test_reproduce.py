"""The experiments run, in the form of seconds, as a user would call them; a false claim is not passed over."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from ballsbins import BallsAndBins, Mechanism, _progress, reproduce
from ballsbins.comparison import at_equal_noise
from ballsbins.errors import InvalidInputError

NAMES = list(reproduce.names())


def test_names():
    assert {"crossover", "importance", "order-statistics", "privacy"} <= set(NAMES)
    assert all(shows for shows in reproduce.names().values())
    with pytest.raises(InvalidInputError, match="nowhere"):
        reproduce.load("nowhere")


def test_an_experiment_is_a_module_like_any_other(tmp_path, monkeypatch):
    """With dataclasses, and with what it defines sent to other processes."""
    text = """from __future__ import annotations
import dataclasses, pickle

@dataclasses.dataclass
class Point:
    x: int

def run(scale, out, console):
    assert pickle.loads(pickle.dumps(Point(1))) == Point(1)
"""
    (tmp_path / "mine.py").write_text(f'"""Mine."""\n{text}')
    monkeypatch.setattr(reproduce, "directory", lambda: tmp_path)
    reproduce.load("mine")("small", tmp_path, Console(file=io.StringIO()))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_small_form(name, tmp_path, shell):
    done = shell("reproduce", name, "--small", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "holds" in done.stdout
    written = {path.suffix for path in (tmp_path / "reproduced").iterdir()}
    assert written == {".json", ".png", ".svg"}
    for path in (tmp_path / "reproduced").glob("*.json"):
        assert json.loads(path.read_text())


RESULTS = Path(__file__).resolve().parent.parent / "experiments" / "results"


@pytest.mark.parametrize("name", NAMES)
def test_committed_figures_are_what_the_code_draws_from_the_committed_numbers(name, tmp_path):
    reproduce.load(name)
    module = sys.modules[f"ballsbins_experiment_{name.replace('-', '_')}"]
    stem = name.replace("-", "_")
    axes = module.picture(json.loads((RESULTS / f"{stem}.json").read_text()))
    reproduce.draw(tmp_path, "now", axes)
    assert (tmp_path / "now.svg").read_bytes() == (RESULTS / f"{stem}.svg").read_bytes()
    width, height = axes.get_figure(root=True).get_size_inches()
    assert width / height < 3.2  # wider ones cannot be read where a README shows them


def test_every_data_set_of_utility_has_its_committed_figure(tmp_path):
    reproduce.load("utility")
    module = sys.modules["ballsbins_experiment_utility"]
    result = json.loads((RESULTS / "utility.json").read_text())
    assert [each["name"] for each in result["data_sets"]] == ["display ads", "sponsored search"]
    reproduce.draw(tmp_path, "now", module.picture(result, 1))
    committed = RESULTS / "utility_sponsored_search.svg"
    assert (tmp_path / "now.svg").read_bytes() == committed.read_bytes()


def test_committed_numbers_of_the_privacy_figure_are_those_of_today():
    """Its Poisson line once stayed where an older accountant had put it."""
    for panel in json.loads((RESULTS / "privacy.json").read_text()):
        run = Mechanism(BallsAndBins(panel["steps"]), panel["noise_multiplier"])
        for name, mechanism in at_equal_noise(run).items():
            bound = mechanism.epsilon(1e-6)
            shown = panel["epsilon_at_1e-6"][name]
            assert shown["upper"] == pytest.approx(bound.upper, rel=1e-5)
            assert shown["lower"] == pytest.approx(bound.lower, rel=1e-5)


@pytest.mark.parametrize("name", ["importance", "order_statistics"])
def test_committed_exact_numbers_are_those_of_today(name):
    for panel in json.loads((RESULTS / f"{name}.json").read_text()):
        run = Mechanism(BallsAndBins(panel["steps"]), panel["noise_multiplier"])
        now = run.delta(panel["epsilon"])
        assert panel["exact"]["upper"] == pytest.approx(now.upper, rel=1e-5)
        assert panel["exact"]["lower"] == pytest.approx(now.lower, rel=1e-5)


def test_committed_crossovers_are_those_of_today():
    """At every tenth point, a little inside of both intervals."""
    points = json.loads((RESULTS / "crossover.json").read_text())
    assert len(points) == 72
    for point in points[4::10]:
        runs = at_equal_noise(Mechanism(BallsAndBins(point["steps"]), point["noise_multiplier"]))
        bins, poisson = (
            runs[name].delta(np.array([point["worse"][1], point["better"][0]]))
            for name in ("balls-and-bins", "Poisson")
        )
        assert bins.lower[0] > poisson.upper[0]
        assert bins.upper[1] < poisson.lower[1]


@pytest.mark.slow
def test_what_was_interrupted_is_labelled_as_what_was_drawn(tmp_path):
    """Ctrl-C during a panel: it is drawn with the samples that there are, no further one is begun, exit code 130."""
    command = [str(Path(sys.executable).parent / "ballsbins"), "reproduce", "privacy"]
    # a process group of its own: Ctrl-C in a terminal reaches all processes of a command
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        start_new_session=True,
    ) as running:
        first = running.stderr.readline()  # it says how far it is, though this is not a terminal
        assert first.startswith("privacy: 1 of 4, Criteo pCTR, batches of 1,024, ")
        running.stderr.readline()
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=300)
    assert running.returncode == 130, err
    (panel,) = json.loads((tmp_path / "reproduced/privacy.json").read_text())
    drawn = panel["monte_carlo"]["samples"]
    assert 0 <= drawn < panel["monte_carlo"]["planned"] == 1_000_000
    assert f"{drawn:,} of 1,000,000 samples" in " ".join(out.split())
    assert (tmp_path / "reproduced/privacy.png").exists()
    assert "Traceback" not in err


def test_short_work_says_nothing_and_long_work_says_how_far_it_is(capfd, monkeypatch):
    monkeypatch.setattr(_progress, "_FIRST", 0.05)
    monkeypatch.setattr(_progress, "_NEXT", 0.05)
    with _progress.stages("short", 1) as begin:
        begin("at once")
    assert capfd.readouterr().err == ""
    with _progress.stages("long", 3) as begin:
        begin("one")
        time.sleep(0.2)
        begin("two")
        time.sleep(0.2)
    lines = capfd.readouterr().err.splitlines()
    assert lines[0].startswith("long: 1 of 3, one, ")
    assert lines[-1].startswith("long: 2 of 3, two, ")


def test_the_first_line_comes_within_two_seconds():
    assert _progress._FIRST < 2.0


def test_committed_results_are_there_and_small():
    results = RESULTS
    for path in results.glob("*.json"):
        assert path.stat().st_size < 200_000
        assert path.with_suffix(".png").exists()
        assert path.with_suffix(".svg").exists()


def test_a_false_claim_is_raised():
    console = Console(file=io.StringIO())
    reproduce.claim(console, "one is one", holds=True)
    with pytest.raises(reproduce.FalseClaimError, match="two is one"):
        reproduce.claim(console, "two is one", holds=False)


def test_a_false_claim_ends_the_command_with_1(tmp_path, monkeypatch):
    from typer.testing import CliRunner

    from ballsbins.cli import app

    def run(scale, out, console):
        reproduce.claim(console, "two is one", holds=scale != "small")

    monkeypatch.setattr("ballsbins.cli.experiments.load", lambda name: run)
    assert CliRunner().invoke(app, ["reproduce", "x", "--out", str(tmp_path)]).exit_code == 0
    done = CliRunner().invoke(app, ["reproduce", "x", "--small", "--out", str(tmp_path)])
    assert done.exit_code == 1
    assert "CLAIM FAILED in x" in done.output


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("privacy", "--small", "--full"), "--small"),
        (("nowhere",), "nowhere"),
        (("crossover", "--out", "file"), "--out"),
        (("crossover", "--out", "file/below"), "--out"),
    ],
)
def test_bad_input(words, named, tmp_path, shell):
    (tmp_path / "file").write_text("")
    done = shell("reproduce", *words, cwd=tmp_path)
    assert done.returncode == 2
    assert named in done.stderr
    assert "Traceback" not in done.stderr
    assert os.listdir(tmp_path) == ["file"]
