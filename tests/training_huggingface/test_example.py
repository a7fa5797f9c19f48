"""The example runs as a user runs it, and ends with the statement."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "huggingface_lora.py"


def test_it_is_short():
    assert len(EXAMPLE.read_text().splitlines()) <= 60


@pytest.mark.slow  # imports transformers anew, and trains
def test_lora_at_epsilon_8_ends_with_the_statement():
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(EXAMPLE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=one_thread)
    assert done.returncode == 0, done.stderr
    assert "ε is at most 8 at δ = 1e-5" in done.stdout
    assert "**Floating point.** Covered." in done.stdout
    assert done.stdout.rstrip().endswith("by two methods.")
    assert "grad_norm" not in done.stdout
    assert float(re.search(r"eval_accuracy': '([\d.]+)", done.stdout)[1]) > 0.7
