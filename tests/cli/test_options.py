"""Options that commands share: groups of them, one short name for each, and one text where they are the same."""

from __future__ import annotations

import dataclasses
import io
import re
import time
from collections import defaultdict
from types import SimpleNamespace
from typing import Annotated

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from ballsbins import _progress
from ballsbins.batch_files.build import BuildProgress
from ballsbins.cli import app, progress
from ballsbins.cli.options import Batches, JsonOption, Run, Without, with_groups


def options_of(command, name=""):
    """(command, option) of a command and all below it."""
    for part, below in getattr(command, "commands", {}).items():
        yield from options_of(below, f"{name} {part}".strip())
    for option in command.params:
        if option.param_type_name == "option" and not hasattr(command, "commands"):
            yield name, option


OPTIONS = list(options_of(typer.main.get_command(app)))


def test_an_option_has_one_short_name_in_all_commands():
    short = defaultdict(set)
    for _, option in OPTIONS:
        short[option.opts[0]].add(tuple(option.opts[1:]))
    assert {name: found for name, found in short.items() if len(found) > 1} == {}


@pytest.mark.parametrize("name", ["steps", "epochs", "sampler", "fixed_bins"])
def test_the_options_of_a_run_are_the_same_everywhere(name):
    found = {(option.opts[0], option.help) for _, option in OPTIONS if option.name == name}
    if name == "epochs":  # may be left out where a checkpoint states it
        found.discard(("--epochs", "Passes over the data; 1 if left out."))
    assert len(found) == 1


def test_a_group_becomes_options_and_one_argument():
    seen = []

    @with_groups
    def command(run: Annotated[Run, Without("sampler")], json: JsonOption = False) -> None:
        """Do nothing."""
        seen.append((run, json))

    one = typer.Typer(add_completion=False)
    one.command()(command)
    result = CliRunner().invoke(one, ["-s", "0.5", "-n", "1000", "-b", "10", "--json"])
    assert result.exit_code == 0, result.output
    ((run, json),) = seen
    assert json
    assert run.mechanism()[0].sampler.steps == 100
    assert CliRunner().invoke(one, ["-T", "5"]).exit_code == 2  # σ is required
    assert CliRunner().invoke(one, ["-s", "1", "-T", "5", "--sampler", "poisson"]).exit_code == 2  # left out
    names = {option.name for _, option in options_of(typer.main.get_command(one))}
    assert names - {"json", "help"} == {field.name for field in dataclasses.fields(Run)} - {"sampler"}


def test_a_group_cannot_leave_out_what_it_has_not():
    def command(batches: Annotated[Batches, Without("colour")]) -> None:
        del batches

    with pytest.raises(AssertionError):
        with_groups(command)


@pytest.mark.parametrize(
    "words",
    [
        ("plan", "-n", "60000", "-e", "8", "-d", "1e-6"),
        ("calibrate", "-T", "100", "-e", "8", "-d", "1e-6"),
        ("compare", "-s", "1", "-T", "100", "-d", "1e-6"),
        ("audit-run", "-s", "1", "-T", "100", "-d", "1e-6"),
        ("audit", "-s", "1", "-T", "5", "-d", "1e-3", "--trials", "1000"),
        ("verify", "-s", "1", "-T", "100", "-e", "1", "--samples", "5000", "--within", "9"),
        ("statement", "-s", "1", "-T", "100", "-d", "1e-6"),
        ("page", "-s", "1", "-T", "100", "-d", "1e-6", "-o", "page.html"),
        ("certify", "-s", "0.7", "-T", "50", "-e", "2"),
    ],
    ids=lambda words: words[0],
)
def test_long_commands_say_so_where_there_is_no_terminal(words, tmp_path, monkeypatch):
    """With the patience of 1.5 seconds taken away: nobody waits for longer without a word."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(_progress, "_FIRST", 0.0)
    done = CliRunner().invoke(app, words)
    assert done.exception is None, done.exception
    assert re.search(r", \d+ s$", done.stderr, re.MULTILINE), done.stderr
    assert not re.search(r", \d+ s$", done.stdout, re.MULTILINE)


@pytest.mark.parametrize(
    ("bar", "report", "line"),
    [
        (
            lambda: progress.build_bar(json_log=False),
            [BuildProgress(1, "reading", 500, 2000, 0, 0, 0.0, None)],
            "build: epoch 1 reading, 500 of 2,000 rows, 0 s",
        ),
        (progress.lines_bar, ["lines", 1000, 3000], "lines: 1,000 of 3,000, 0 s"),
        (
            lambda: progress.training_bar(Console(file=io.StringIO())),
            [SimpleNamespace(steps=1000, total_steps=4000)],
            "training: 1,000 of 4,000 steps, 0 s",
        ),
    ],
    ids=["build", "data", "train"],
)
def test_bars_become_lines_where_there_is_no_terminal(bar, report, line, monkeypatch, capsys):
    monkeypatch.setattr(_progress, "_FIRST", 0.0)
    monkeypatch.setattr(_progress, "_NEXT", 0.01)
    with bar() as note:
        note(*report)
        time.sleep(0.2)
    assert line in capsys.readouterr().err.splitlines()
