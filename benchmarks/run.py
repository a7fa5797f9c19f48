"""Run all benchmarks, one after the other.

python benchmarks/run.py           all, with peers; writes benchmarks/results/ and docs/benchmarks.md
python benchmarks/run.py --small   each in seconds to a minute; writes nothing
"""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent

SMALL = "--small" in sys.argv[1:]
SAVING = ("compare.py", "samplers.py", "training.py")
OTHERS = ("accounting.py", "monte_carlo.py", "engines.py", "spark.py", "floating_point.py")

for script in (*SAVING, *OTHERS, *(() if SMALL else ("page.py",))):
    print(f"== {script}", flush=True)
    options = ["--small"] if SMALL else ["--save"] if script in SAVING else []
    subprocess.run([sys.executable, str(HERE / script), *options], check=True)
