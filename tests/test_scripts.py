"""Benchmarks still run: the forms that take seconds, as a user would call them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "benchmarks").glob("*.py")
    if "--small" in path.read_text() and path.name != "run.py"
)


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_small_form(script, tmp_path):
    saves = "add_save(parser)" in (ROOT / script).read_text()
    done = subprocess.run(
        [sys.executable, str(ROOT / script), "--small", *(["--save", str(tmp_path)] if saves else [])],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    written = [json.loads(path.read_text()) for path in tmp_path.iterdir()]
    assert bool(written) == saves
    assert all(result["rows"] and result["made_by"]["ballsbins"] for result in written)


def test_there_are_some():
    assert "benchmarks/accounting.py" in SCRIPTS
