"""Run all benchmarks, one after the other.

python benchmarks/run.py           all, with peers; writes benchmarks/results/ and docs/benchmarks.md
python benchmarks/run.py --small   each in seconds to a minute; writes nothing that stays

One that fails does not stop the others: its results stay what they were, and the command ends with exit code 1. How
long each took is printed at the end.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent

SAVING = ("compare.py", "samplers.py", "training.py", "training_torch.py", "engines.py", "reading.py")
OTHERS = ("accounting.py", "monte_carlo.py", "spark.py", "floating_point.py")


def main():
    small = "--small" in sys.argv[1:]
    took, failed = {}, []
    with tempfile.TemporaryDirectory(prefix="ballsbins-bench-") as folder:
        for script in (*SAVING, *OTHERS, *(() if small else ("page.py",))):
            print(f"== {script}", flush=True)
            options = ["--small"] if small else []
            if script in SAVING:
                options += ["--save", folder] if small else ["--save"]
            begin = time.monotonic()
            done = subprocess.run([sys.executable, str(HERE / script), *options], check=False)
            took[script] = time.monotonic() - begin
            failed += [script] if done.returncode else []
    print("== by the clock")
    for script, seconds in took.items():
        print(f"{script:20}{seconds:6.0f} s{'  FAILED' if script in failed else ''}")
    print(f"{'together':20}{sum(took.values()):6.0f} s")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
