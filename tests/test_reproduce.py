"""The experiments run, in the form of seconds, as a user would call them; a false claim is not passed over."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from ballsbins import reproduce
from ballsbins.errors import InvalidInputError

NAMES = list(reproduce.names())


def shell(*words, cwd, **environment):
    command = [str(Path(sys.executable).parent / "ballsbins"), *words]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        cwd=cwd,
        env=os.environ | environment,
    )


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
def test_small_form(name, tmp_path):
    done = shell("reproduce", name, "--small", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "holds" in done.stdout
    written = {path.suffix for path in (tmp_path / "reproduced").iterdir()}
    assert written == {".json", ".png", ".svg"}
    for path in (tmp_path / "reproduced").glob("*.json"):
        assert json.loads(path.read_text())


def test_committed_results_are_there_and_small():
    results = Path(__file__).resolve().parent.parent / "experiments" / "results"
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
def test_bad_input(words, named, tmp_path):
    (tmp_path / "file").write_text("")
    done = shell("reproduce", *words, cwd=tmp_path)
    assert done.returncode == 2
    assert named in done.stderr
    assert "Traceback" not in done.stderr
    assert os.listdir(tmp_path) == ["file"]
