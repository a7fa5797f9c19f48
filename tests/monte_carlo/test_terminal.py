"""In a terminal: the bar shows a bound that holds at any time, and Ctrl-C answers with the samples so far."""

from __future__ import annotations

import os
import re
import select
import signal
import sys
import time
from pathlib import Path

import pytest

pty = pytest.importorskip("pty")


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_answers_at_once(workers):
    if workers > 1:
        pytest.importorskip("joblib")
    words = ["delta", "-s", "0.5", "-T", "100", "-e", "4", "-e", "2", "--method", "monte-carlo"]
    words += ["--samples", "1000000000", "--workers", str(workers)]
    child, terminal = pty.fork()
    if child == 0:
        os.environ.update(TERM="xterm", COLUMNS="120", OMP_NUM_THREADS="1")
        os.execv(str(Path(sys.executable).parent / "ballsbins"), ["ballsbins", *words])
    seen, pressed, deadline = b"", False, time.monotonic() + 200
    while True:
        if time.monotonic() > deadline or not select.select([terminal], [], [], 60)[0]:
            os.kill(child, signal.SIGKILL)
        try:
            seen += os.read(terminal, 65536)
        except OSError:  # the other end is closed
            break
        # a bound below 1 has been shown for both directions
        if not pressed and re.search(r"δ ≤ 0\.0\d+ so far, at ε = 2".encode(), seen):
            os.write(terminal, b"\x03")
            pressed = True
    _, status = os.waitpid(child, 0)
    os.close(terminal)
    text = seen.decode(errors="replace")
    assert os.waitstatus_to_exitcode(status) == 130, text[
        -2000:
    ]  # it answers, and says that it was cut short
    assert "Traceback" not in text
    assert "Warning" not in text
    assert "of 1,000,000,000 planned samples" in text
    for point in (4, 2):
        assert re.search(rf"δ ≤ \S+\x1b\[0m at ε = {point}", text)
    # no direction was left without samples: both upper bounds are below 1
    rows = re.findall(r"(?:remove|add) +\S+ +\S+ +(\S+)", text)
    assert len(rows) == 4
    assert all(float(row) < 0.5 for row in rows)
