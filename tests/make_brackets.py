"""Write tests/data/brackets.json: random runs of several epochs with bounds by polygons and tilted transforms.

    python tests/make_brackets.py [number of runs]

It takes minutes: the tests compare the exact accountant with what is stored.
"""

import json
import math
import signal
import sys
from pathlib import Path

import numpy as np

from ballsbins import BallsAndBins, Mechanism, Poisson
from ballsbins.accounting.epochs.curve import ProductCurve
from ballsbins.errors import AccuracyError

FILE = Path(__file__).parent / "data" / "brackets.json"


def random_run(rng):
    kind = "poisson" if rng.random() < 0.3 else "bins"
    sigma = math.exp(rng.uniform(math.log(0.2), math.log(20.0)))
    steps = int(math.exp(rng.uniform(math.log(2), math.log(1e9 if kind == "bins" else 1e6))))
    epochs = int(math.exp(rng.uniform(math.log(2), math.log(1e4 if kind == "bins" else 100))))
    last = int(rng.integers(1, steps)) if kind == "bins" and rng.random() < 0.2 and steps > 2 else None
    return {
        "kind": kind, "sigma": float(f"{sigma:.4g}"), "steps": steps, "epochs": epochs, "last": last,
        "delta": float(f"{10 ** rng.uniform(-30, -1):.3g}"), "direction": str(rng.choice(["remove", "add"])),
    }  # fmt: skip


def mechanism(run):
    sampler = (Poisson if run["kind"] == "poisson" else BallsAndBins)(run["steps"])
    return Mechanism(sampler, run["sigma"], run["epochs"], run["last"])


def too_long(*_):
    raise TimeoutError


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    rng, runs = np.random.default_rng(7), []
    signal.signal(signal.SIGALRM, too_long)
    while len(runs) < count:
        run = random_run(rng)
        curve = mechanism(run).curve.curve
        assert isinstance(curve, ProductCurve)
        signal.alarm(8)
        try:
            epsilon = float(curve.rough_epsilon(np.log([run["delta"]]), run["direction"])[0])
            if not 1e-9 < epsilon < 600.0:
                continue
            found = curve.bracket.log_delta(np.array([epsilon]), run["direction"])
        except (TimeoutError, AccuracyError):
            print("no bracket:", run, flush=True)
            continue
        finally:
            signal.alarm(0)
        if np.isfinite(found.lower[0]):
            run |= {"epsilon": epsilon, "lower": float(found.lower[0]), "upper": float(found.upper[0])}
            runs.append(run)
            FILE.write_text("[\n" + ",\n".join(json.dumps(each) for each in runs) + "\n]\n")


if __name__ == "__main__":
    main()
