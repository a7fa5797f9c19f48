"""Accountants beside each other: CPU time, peak memory and tightness, and how they grow with T, epochs and 1/δ.

    python benchmarks/compare.py [epsilon | scaling | start] [--small] [--save [DIR]]

Peers are asked in environments of their own (`make bench` sets up .venv-peers), every question in a fresh process:
see benchmarks/peers.py for how. A peer that is not installed is left out; one that fails or takes too long is
recorded as such. `start` is what a cold command costs beside the import of numpy and scipy.special.
"""

import argparse
import itertools
import json
import resource
import subprocess
import sys
from pathlib import Path

import record

ROOT = Path(__file__).resolve().parent.parent
PEERS = ROOT / ".venv-peers" / "bin" / "python"
DELTA = 1e-6
LIMIT = 90  # seconds by the clock for one question, after which there is no answer

BINS = [(0.35, 1000, 1), (0.3, 36133, 1), (0.8, 1000, 5)]
POISSON = [(1.0, 1000, 1), (0.3, 36133, 1), (1.0, 1000, 100)]
OURS, HERE = "ballsbins", ("ballsbins", "opacus")  # the latter are installed in our own environment
FOR_BINS = (OURS, "pld_accounting", "random_allocation")
FOR_POISSON = (OURS, "dp_accounting", "opacus", "prv_accountant")

SMALL_SETTINGS = {"balls-and-bins": BINS[:1], "Poisson": POISSON[:1]}
SETTINGS = {"balls-and-bins": BINS, "Poisson": POISSON}
SCALING = {  # σ, T, epochs, δ
    "steps": [(0.5, 10**k, 1, DELTA) for k in (2, 4, 6, 9)],
    "epochs": [(1.0, 1000, e, DELTA) for e in (1, 10, 100, 10_000)],
    "1/delta": [(0.5, 1000, 1, 10.0**-k) for k in (2, 6, 12)],
}


def ask(accountant, sampler, sigma, steps, epochs, delta, *, small=False):
    """The answer of one accountant, or why there is none; None where it is not installed."""
    python = sys.executable if accountant in HERE else PEERS
    if not Path(python).exists():
        return None
    words = [python, ROOT / "benchmarks" / "peers.py", accountant, sampler, sigma, steps, epochs, delta]
    words += ["--seconds", 0.1] if small else []
    try:
        done = subprocess.run(
            [str(word) for word in words], capture_output=True, text=True, check=True, timeout=LIMIT
        )
    except subprocess.TimeoutExpired:
        return {"failure": f"no answer in {LIMIT} s"}
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or [f"exit code {error.returncode}"])[-1]
        return {"failure": f"fails: {last[:100]}"}
    return json.loads(done.stdout.splitlines()[-1])


class Table:
    """Rows of answers, printed as they come, and the versions that gave them."""

    def __init__(self):
        self.rows, self.versions = [], {}

    def add(self, found, **row):
        if found is not None:
            self.versions |= found.pop("versions", {})
            self.rows.append(row | found)
            print("  " + ", ".join(f"{key} {value}" for key, value in self.rows[-1].items()), flush=True)
        return found


def epsilon(small):
    """ε at δ = 1e-6. The authors' algorithm samples δ: it is asked at our ε, and compared with δ = 1e-6."""
    table = Table()
    for sampler, settings in (SMALL_SETTINGS if small else SETTINGS).items():
        for sigma, steps, epochs in settings:
            mechanism = {"sampler": sampler, "sigma": sigma, "steps": steps, "epochs": epochs, "delta": DELTA}
            for accountant in FOR_BINS if sampler == "balls-and-bins" else FOR_POISSON:
                found = ask(accountant, sampler, sigma, steps, epochs, DELTA, small=small)
                if accountant == OURS:
                    exact = found["upper"]
                    at_most = found["seconds"]
                if table.add(found, accountant=accountant, **mechanism) and "upper" in found:
                    faster = found["seconds"] / at_most
                    print(f"    {faster:.3g} times our time, ε above ours by {found['upper'] - exact:.3g}")
            if sampler == "balls-and-bins" and (steps, epochs) == (1000, 1) and not small:
                found = ask("authors", sampler, sigma, steps, epochs, exact)
                table.add(found, accountant="authors", **mechanism | {"delta": None, "epsilon": exact})
    return table


def scaling(small):
    """How the time grows. An accountant that has no answer is not asked for more of the same."""
    table = Table()
    for sampler, accountants in (("balls-and-bins", FOR_BINS), ("Poisson", FOR_POISSON)):
        asked = accountants[:1] if small else accountants
        for (axis, settings), accountant in itertools.product(SCALING.items(), asked):
            for sigma, steps, epochs, delta in settings[:1] if small else settings:
                found = ask(accountant, sampler, sigma, steps, epochs, delta, small=small)
                row = {"sampler": sampler, "axis": axis, "sigma": sigma, "steps": steps, "epochs": epochs}
                table.add(found, accountant=accountant, **row, delta=delta)
                if found is None or "failure" in found:
                    break
    return table


def start(small):
    """CPU seconds of fresh processes, the least of several."""
    table = Table()
    question = ("epsilon", "--sampler", "balls-and-bins", "-s", "0.35", "-T", "1000", "-d", "1e-6")
    command = ("-c", "from ballsbins.cli import main; main()")
    programs = {
        "import numpy, scipy.special": ("-c", "import numpy, scipy.special"),
        "import ballsbins": ("-c", "import ballsbins"),
        "ballsbins --version": (*command, "--version"),
        "ballsbins epsilon": (*command, *question),
    }
    for name, words in programs.items():
        took = []
        for _ in range(1 if small else 15):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            took.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        table.add({"versions": {}, "seconds": min(took)}, program=name)
        print(f"    {min(took) / table.rows[0]['seconds']:.2f} times the import of numpy and scipy.special")
    return table


PARTS = {part.__name__: part for part in (epsilon, scaling, start)}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--small", action="store_true", help="a quick look")
    record.add_save(parser)
    options = parser.parse_args()
    if not PEERS.exists():
        print(f"no peers: {PEERS} is missing; `make bench` sets it up")
    for part in options.parts or PARTS:
        print(part, flush=True)
        table = PARTS[part](options.small)
        if options.save:
            packages = ("numpy", "scipy", "typer") if part == "start" else ()
            record.save(options.save, part, table.rows, table.versions, packages)


if __name__ == "__main__":
    main()
