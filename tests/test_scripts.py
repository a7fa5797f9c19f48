"""Benchmarks still run: the forms that take seconds, as a user would call them."""

from __future__ import annotations

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
def test_small_form(script):
    done = subprocess.run(
        [sys.executable, str(ROOT / script), "--small"],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_there_are_some():
    assert "benchmarks/accounting.py" in SCRIPTS
