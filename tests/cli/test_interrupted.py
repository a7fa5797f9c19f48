"""Ctrl-C while a command has something to show: it shows it, and the exit code says that it was cut short."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest


@pytest.mark.slow
def test_an_interrupted_answer_has_an_exit_code_of_its_own():
    words = [
        "delta",
        "--sampler",
        "balls-and-bins",
        "-s",
        "1",
        "-T",
        "1000",
        "-e",
        "1",
        "--method",
        "monte-carlo",
    ]
    program = "import sys; from ballsbins.cli import main; sys.argv[0] = 'ballsbins'; main()"
    command = [sys.executable, "-c", program, *words, "--samples", "2000000000", "--draw", "plain"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        time.sleep(1.0)
        while True:  # until it is past its imports, and draws
            with open(f"/proc/{running.pid}/stat", encoding="ascii") as stat:
                busy = sum(map(int, stat.read().rsplit(")", 1)[1].split()[11:13])) / os.sysconf("SC_CLK_TCK")
            if busy > 3.5 or running.poll() is not None:
                break
            time.sleep(0.2)
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=120)
    assert running.returncode == 130, err
    assert "δ ≤" in out
