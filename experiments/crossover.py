"""Where is balls-and-bins worse than Poisson? The question that appendix D of the paper leaves open.

The paper shows that neither of the two dominates the other: over all real ε the divergence D(P_B‖Q_B) is somewhere
above and somewhere below D(P_P‖Q_P). It asks whether for every σ and T > 1 there is an ε ≥ 0 with δ_B(ε) > δ_P(ε),
δ being the larger of both directions. At every point of a grid of (σ, T) this experiment proves

* the intervals of ε ≥ 0 on which δ_B > δ_P and on which δ_B < δ_P, at every ε between their ends;
* how far below 0 the divergence D(P_B‖Q_B) stays above D(P_P‖Q_P) (theorem D.1 is about real ε). For negative ε this
  is the comparison of the other direction at |ε|, since D_{e^−ε}(P‖Q) = 1 − e^−ε + e^−ε·D_{e^ε}(Q‖P).

docs/errata.md has what is proved for all σ and T: δ_B(0) > δ_P(0) for T = 2 and for little noise, and D(P_B‖Q_B)
above D(P_P‖Q_P) for every ε ≤ T·log(1 − 1/T). The full form takes about a minute on one core.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from ballsbins import AccuracyError, BallsAndBins, Mechanism
from ballsbins._progress import stages
from ballsbins.comparison import at_equal_noise, crossover
from ballsbins.plots.style import new_axes, number_axis
from ballsbins.report.numbers import down, up
from ballsbins.reproduce import claim, draw, write

GRIDS = {
    "small": ([1.0], [2, 20]),
    "quick": ([0.4, 0.7, 1.5, 4.0], [2, 20, 1000]),
    "full": (
        [0.3, 0.4, 0.5, 0.7, 1.0, 1.5, 2.0, 4.0, 10.0],
        [2, 5, 20, 100, 1000, 10_000, 100_000, 1_000_000],
    ),
}
LEAST_DELTA = 1e-10  # intervals end where δ_B has come down to this


def at(sigma, steps):
    """What is proved at one point."""
    mechanisms = at_equal_noise(Mechanism(BallsAndBins(steps), sigma))
    pair = mechanisms["balls-and-bins"], mechanisms["Poisson"]
    point = {"noise_multiplier": sigma, "steps": steps}
    try:
        found = crossover(*pair, LEAST_DELTA)
        added = crossover(*pair, LEAST_DELTA, direction="add")
        bins, poisson = (run.delta(0.0) for run in pair)
    except AccuracyError as error:
        return point | {"why": str(error)}
    return point | {
        "worse": [found.start, found.left],
        "better": [found.right, found.end],
        "worse_down_to": None if added.start != 0.0 or added.right is not None else -added.left,
        "delta_at_0": {"balls_and_bins_at_least": bins.lower, "poisson_at_most": poisson.upper},
        "delta_at_crossover": None if found.left is None else pair[0].delta(found.left).upper,
    }


def table(points, console):
    console.print(
        f"{'σ':>4} {'T':>9} {'δ_B/δ_P − 1 at 0':>16}  {'δ_B > δ_P for ε in':>20}  {'δ_B < δ_P for ε in':>20}  "
        f"{'D_B > D_P from':>14}",
        highlight=False,
    )
    for point in points:
        head = f"{point['noise_multiplier']:4g} {point['steps']:9,d}"
        if "why" in point:
            console.print(f"{head}  not known: {point['why']}", highlight=False)
            continue
        zero = point["delta_at_0"]
        more = zero["balls_and_bins_at_least"] / zero["poisson_at_most"] - 1.0
        worse, better = (
            "not proved" if ends[0] is None else f"[{up(ends[0], 4)}, {down(ends[1], 4)}]"
            for ends in (point["worse"], point["better"])
        )
        down_to = "not proved" if point["worse_down_to"] is None else f"−{down(-point['worse_down_to'], 3)}"
        console.print(
            f"{head} {down(more, 3):>16}  {worse:>20}  {better:>20}  {down_to:>14}",
            highlight=False,
        )


def picture(points):
    """ε of the crossover against T, one line per σ: below it balls-and-bins is proved worse, above it better."""
    axes = new_axes("Worse than Poisson only at small ε, below the line of its σ", "steps T", "ε")
    axes.set_xscale("log")
    axes.set_yscale("log")
    noise = sorted({point["noise_multiplier"] for point in points})
    for sigma, shade in zip(noise, np.linspace(0.15, 0.9, len(noise)), strict=True):
        rows = [p for p in points if p["noise_multiplier"] == sigma and p.get("worse", [None])[0] is not None]
        if rows:
            x, y = [p["steps"] for p in rows], [p["worse"][1] for p in rows]
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
    axes.set_xlim(1.6, 6.0 * max(point["steps"] for point in points))
    low, high = axes.get_ylim()
    axes.set_ylim(0.2 * low, high)
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
    console.print(
        "Intervals are proved at every ε between their ends. D is D(P‖Q) alone, for negative ε too; there the order "
        "is also proved for every ε ≤ T·log(1 − 1/T), about −1 (docs/errata.md).",
        highlight=False,
    )
    known = [point for point in points if "why" not in point]
    console.print(f"{len(known)} of {len(points)} points can be computed with a known error.")
    claim(
        console,
        "δ_B > δ_P for every ε from 0 up to the crossover",
        all(point["worse"][0] == 0.0 for point in known),
    )
    claim(
        console,
        f"δ_B < δ_P for every ε from the crossover up to where δ_B = {LEAST_DELTA:g}",
        all(
            point["better"][0] is not None and point["better"][0] < 1.02 * point["worse"][1]
            for point in known
        ),
    )
    claim(
        console,
        f"D(P_B‖Q_B) > D(P_P‖Q_P) for negative ε too, down to where D(Q_B‖P_B) = {LEAST_DELTA:g} at |ε|",
        all(point["worse_down_to"] is not None for point in known),
    )
