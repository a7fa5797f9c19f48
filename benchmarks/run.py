"""Run all benchmarks, one after the other. `--small` keeps each to seconds."""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent

for script in (
    "samplers.py",
    "accounting.py",
    "monte_carlo.py",
    "engines.py",
    "spark.py",
    "training.py",
    "floating_point.py",
):
    print(f"== {script}", flush=True)
    subprocess.run([sys.executable, str(HERE / script), *sys.argv[1:]], check=True)
