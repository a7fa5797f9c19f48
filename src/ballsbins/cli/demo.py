"""`ballsbins demo`, which `make run` runs: from a target to noise to batches to what may be claimed."""

from __future__ import annotations

import time

import numpy as np
import typer

from ballsbins.cli import render
from ballsbins.samplers import BallsAndBins, new_key

EPSILON, DELTA = 8.0, 1e-6
EXAMPLES, BATCH_SIZE = 1_000_000, 1_000


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("demo")(demo)


def demo() -> None:
    """Calibrate the noise for a target, draw one epoch of balls-and-bins batches, and state its privacy."""
    from ballsbins.calibration import calibrate
    from ballsbins.comparison import four

    out = render.console()
    steps = -(-EXAMPLES // BATCH_SIZE)
    out.print(
        f"Target: ε ≤ {EPSILON:g} at δ = {DELTA:g} for {EXAMPLES:,} examples in batches of {BATCH_SIZE:,}."
    )
    begin = time.perf_counter()
    mechanism = calibrate(BallsAndBins(steps), epsilon=EPSILON, delta=DELTA)
    took = time.perf_counter() - begin
    out.print(f"Noise:  σ = {render.up(mechanism.noise_multiplier, 8)}, found and checked in {took:.2f} s.")

    begin = time.perf_counter()
    seen = np.zeros(EXAMPLES, dtype=np.uint8)
    count = 0
    for batch in mechanism.batches(EXAMPLES, new_key()):
        seen[batch] += 1
        count += 1
    took = time.perf_counter() - begin
    once = (
        "every example was in exactly one of them" if (seen == 1).all() else "NOT every example was seen once"
    )
    out.print(f"Batches: {count:,} drawn from a fresh key in {took:.2f} s; {once}.")

    out.print()
    rows = []
    for name, other in four(mechanism.noise_multiplier, steps).items():
        bound = other.epsilon(DELTA)
        rows.append(
            (name, render.down(float(bound.lower), 5), render.up(float(bound.upper), 5), bound.method)
        )
    out.print(f"What one epoch at σ = {mechanism.noise_multiplier:.6g} may claim at δ = {DELTA:g}:")
    out.print(render.plain_table(["sampler", "ε at least", "ε at most", "method"], rows))
    out.print()
    out.print("Next: ballsbins --help, or the five lines of Python in README.md.", style="dim")
