"""What one-run audits of honest and broken training show: `python benchmarks/audit.py jax` (or torch).

Prints, for each kind of run, how many of the seeds refute the claim and the ε that they show in the mean.
"""

from __future__ import annotations

import math
import sys
import time
from importlib import import_module

import numpy as np

from ballsbins import BallsAndBins, calibrate

CANARIES, DELTA, CONFIDENCE, SEEDS = 1000, 1e-5, 0.99, 20
CLAIMS = {"jax": (4.0, 100), "torch": (3.0, 50)}  # ε and steps per epoch


def main(library: str) -> None:
    """Run all audits of a library and print a row for each kind of run."""
    audit = import_module(f"ballsbins.audit.one_run_{library}").audit_example
    epsilon, steps = CLAIMS[library]
    claim = calibrate(BallsAndBins(steps), epsilon=epsilon, delta=DELTA)
    kinds = {
        "what was claimed": {},
        "no noise": {"secret_noise_multiplier": 0.0},
        "a quarter of the noise": {"secret_noise_multiplier": claim.noise_multiplier / 4},
        "no clipping": {"secret_clip_norm": math.inf},
    }
    for kind, changes in kinds.items():
        start = time.process_time()
        found = [
            audit(claim, DELTA, canaries=CANARIES, seed=seed, confidence=CONFIDENCE, **changes)
            for seed in range(SEEDS)
        ]
        shown = np.mean([each.shown for each in found])
        refuted = sum(not each.consistent for each in found)
        print(
            f"{library}, {kind}: {refuted} of {SEEDS} refuted, ε ≥ {shown:.2f} in the mean, {shown / epsilon:.0%} of "
            f"the claimed {epsilon:g}, {(time.process_time() - start) / SEEDS:.1f} s of processor time each",
            flush=True,
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
