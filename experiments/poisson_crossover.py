"""Where is balls-and-bins worse than Poisson? The question that appendix D of the paper leaves open.

The paper shows that neither of the two dominates the other, and asks whether for every σ and T > 1 there is an ε ≥ 0
with δ_B(ε) > δ_P(ε). This experiment looks for one at every point of a grid of (σ, T), and accepts it only if the
*lower* bound on δ_B is above the *upper* bound on δ_P. It also brackets the crossover, beyond which δ_B is below δ_P.

    python experiments/poisson_crossover.py            about ten minutes on one core; writes results/
    python experiments/poisson_crossover.py --small    seconds; prints only
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np

from ballsbins import AccuracyError
from ballsbins.comparison import crossover, four
from ballsbins.plots import save
from ballsbins.plots.style import new_axes

RESULTS = Path(__file__).resolve().parent / "results"
NOISE = [0.3, 0.4, 0.5, 0.7, 1.0, 1.5, 2.0, 4.0]
STEPS = [2, 5, 20, 100, 1000, 10_000]


def at(sigma, steps):
    """What is proved at one point."""
    mechanisms = four(sigma, steps)
    bins, poisson = mechanisms["balls-and-bins"], mechanisms["Poisson"]
    point = {"noise_multiplier": sigma, "steps": steps}
    try:
        found = crossover(bins, poisson)
    except AccuracyError as error:
        return point | {"proved": None, "why": str(error)}
    point |= {"proved": found.left is not None, "worse_up_to": found.left, "better_from": found.right}
    if found.left is not None:
        epsilon = 0.5 * found.left
        point |= {
            "epsilon": epsilon,
            "delta_balls_and_bins_at_least": bins.delta(epsilon).lower,
            "delta_poisson_at_most": poisson.delta(epsilon).upper,
            "delta_at_crossover": bins.delta(found.left).upper,
        }
    return point


def table(points):
    print(f"{'σ':>5} {'T':>7}  {'δ_B > δ_P proved up to ε':>26} {'δ_B < δ_P from ε':>18} {'δ there':>10}")
    for point in points:
        if point["proved"]:
            right = "?" if point["better_from"] is None else f"{point['better_from']:.4g}"
            print(
                f"{point['noise_multiplier']:5g} {point['steps']:7d}  {point['worse_up_to']:26.4g} {right:>18} "
                f"{point['delta_at_crossover']:10.2e}"
            )
        else:
            print(f"{point['noise_multiplier']:5g} {point['steps']:7d}  {'not proved':>26}")


def draw(points):
    """ε of the crossover against T, a line a σ."""
    axes = new_axes("Below each line balls-and-bins is proved worse than Poisson", "steps T", "ε")
    axes.set_xscale("log")
    axes.set_yscale("log")
    shades = np.linspace(0.15, 0.9, len(NOISE))
    for sigma, shade in zip(NOISE, shades, strict=True):
        rows = [p for p in points if p["noise_multiplier"] == sigma and p["proved"]]
        if rows:
            x, y = [p["steps"] for p in rows], [p["worse_up_to"] for p in rows]
            color = (0.0, 0.45 * (1 - shade) + 0.15, 0.3 + 0.6 * shade)
            axes.plot(x, y, "o-", color=color, markersize=4, linewidth=1.4)
            axes.annotate(
                f"σ = {sigma:g}",
                (x[-1], y[-1]),
                xytext=(6, -3),
                textcoords="offset points",
                color=color,
                fontsize=9,
            )
    axes.set_xlim(1.6, 4e4)
    return axes


def main():
    small = "--small" in sys.argv
    grid = [(1.0, 2), (0.5, 20)] if small else [(sigma, steps) for sigma in NOISE for steps in STEPS]
    points = []
    for sigma, steps in grid:
        begin = time.process_time()
        points.append(at(sigma, steps))
        print(f"σ = {sigma:g}, T = {steps}: {time.process_time() - begin:.1f} s", file=sys.stderr)
    table(points)
    proved = sum(bool(point["proved"]) for point in points)
    print(f"δ_B > δ_P at some ε ≥ 0 is proved at {proved} of {len(points)} points.")
    if not small:
        (RESULTS / "poisson_crossover.json").write_text(json.dumps(points, indent=1) + "\n")
        axes = draw(points)
        for ending in ("png", "svg"):
            save(axes, RESULTS / f"poisson_crossover.{ending}")


if __name__ == "__main__":
    main()
