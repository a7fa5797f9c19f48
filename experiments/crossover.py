"""Where is balls-and-bins worse than Poisson? The question that appendix D of the paper leaves open.

The paper shows that neither of the two dominates the other, and asks whether for every σ and T > 1 there is an ε ≥ 0
with δ_B(ε) > δ_P(ε). This experiment looks for one at every point of a grid of (σ, T), and accepts it only if the
*lower* bound on δ_B is above the *upper* bound on δ_P. It also brackets the crossover, beyond which δ_B is below δ_P.
The full form takes about ten minutes on one core.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from ballsbins import AccuracyError, BallsAndBins, Mechanism
from ballsbins._progress import stages
from ballsbins.comparison import at_equal_noise, crossover
from ballsbins.plots.style import new_axes, number_axis
from ballsbins.reproduce import claim, draw, write

GRIDS = {
    "small": ([1.0], [2, 20]),
    "quick": ([0.4, 0.7, 1.5, 4.0], [2, 20, 1000]),
    "full": ([0.3, 0.4, 0.5, 0.7, 1.0, 1.5, 2.0, 4.0], [2, 5, 20, 100, 1000, 10_000]),
}


def at(sigma, steps):
    """What is proved at one point."""
    mechanisms = at_equal_noise(Mechanism(BallsAndBins(steps), sigma))
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


def table(points, console):
    console.print(
        f"{'σ':>5} {'T':>7}  {'δ_B > δ_P proved up to ε':>26} {'δ_B < δ_P from ε':>18} {'δ there':>10}"
    )
    for point in points:
        head = f"{point['noise_multiplier']:5g} {point['steps']:7d}"
        if point["proved"]:
            right = "?" if point["better_from"] is None else f"{point['better_from']:.4g}"
            console.print(
                f"{head}  {point['worse_up_to']:26.4g} {right:>18} {point['delta_at_crossover']:10.2e}"
            )
        else:
            console.print(f"{head}  {'not proved':>26}")


def picture(points):
    """ε of the crossover against T, one line per σ: below it balls-and-bins is proved worse, above it better."""
    axes = new_axes("Worse than Poisson only at small ε, below the line of its σ", "steps T", "ε")
    axes.set_xscale("log")
    axes.set_yscale("log")
    noise = sorted({point["noise_multiplier"] for point in points})
    for sigma, shade in zip(noise, np.linspace(0.15, 0.9, len(noise)), strict=True):
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
    low, high = axes.get_ylim()
    axes.set_ylim(0.5 * low, high)
    for axis in (axes.xaxis, axes.yaxis):
        number_axis(axis)
    where = {"transform": axes.transAxes, "fontsize": 9.5}
    axes.text(
        0.98, 0.97, "above a line: balls-and-bins is better", color="#005a8c", ha="right", va="top", **where
    )
    axes.text(0.02, 0.03, "below a line: balls-and-bins is worse", color="#a84800", **where)
    return axes


def run(scale, out, console):
    noise, many = GRIDS[scale]
    found = []
    with stages("crossover", len(noise) * len(many)) as begin:
        for sigma, steps in product(noise, many):
            begin(f"σ = {sigma:g}, T = {steps:,}")
            found.append(at(sigma, steps))
    points = write(out, "crossover", found)
    draw(out, "crossover", picture(points))
    table(points, console)
    proved = [point for point in points if point["proved"]]
    console.print(f"δ_B > δ_P at some ε ≥ 0 is proved at {len(proved)} of {len(points)} points.")
    console.print("The paper: such an ε exists for every σ and T > 1 among all real ε; for ε ≥ 0 it asks.")
    claim(
        console,
        "δ_B > δ_P at some ε ≥ 0 for up to 20 steps (beyond, the two may be too close to tell apart)",
        all(p["proved"] for p in points if p["steps"] <= 20),
    )
    claim(
        console,
        "wherever a crossover is bracketed, δ_B is below δ_P beyond it",
        all(p["better_from"] is None or p["better_from"] > p["worse_up_to"] for p in proved),
    )
