"""`ballsbins data`, as typed."""

import json

import pytest
from typer.testing import CliRunner

from ballsbins import InvalidInputError
from ballsbins.cli import app


def answer(*words):
    done = CliRunner().invoke(app, ["data", *map(str, words)])
    if done.exception is not None:
        raise done.exception
    return done.stdout


def test_generate_then_prepare(tmp_path):
    file, out = tmp_path / "s.gz", tmp_path / "s"
    made = json.loads(answer("generate", file, "-n", 300, "--format", "sponsored-search", "--json"))
    assert made["examples"] == 300
    words = ["prepare", file, "--out", out, "--format", "sponsored-search", "--categories", "vocabulary"]
    done = json.loads(answer(*words, "--json"))
    assert sum(done["splits"].values()) == 300
    assert done["malformed_lines"] == {"count": 0, "first": []}
    assert len(done["not_covered"]) == 1


def test_malformed_lines_are_shown(tmp_path, ads_line):
    file = tmp_path / "a.txt"
    file.write_text("".join([ads_line()] * 5 + ["[red]?\n"] * 12 + [ads_line()] * 25))
    shown = answer("prepare", file, "--out", tmp_path / "a")
    assert "12 malformed lines left out" in shown
    assert "line 6: 1 field in place of 40" in shown
    assert "… and 2 more" in shown
    assert "30 examples of Criteo Display Ads pCTR" in shown
    with pytest.raises(InvalidInputError, match="line 6"):
        answer("prepare", file, "--out", tmp_path / "b", "--on-bad-line", "fail")
