"""Importance sampling: the paper's figure "with and without importance sampling", with the exact δ_B and our tilt.

T = 5000, σ = 0.4 and T = 10,000, σ = 0.35. Upper confidence bounds on δ_B(ε): from plain samples (one set serves all
ε), from the paper's importance sampler (new samples for every ε), plain sampling being given the time that importance
sampling took for the whole curve; from our tilted sampler with as many samples; the paper's lower bound; and exactly.
The paper has 200,000 and 100,000 samples for every ε, as the full form has.
"""

from __future__ import annotations

import math
import time

import numpy as np
from rich.table import Table

from ballsbins import BallsAndBins, Mechanism, MonteCarlo
from ballsbins._progress import stages
from ballsbins.accounting.monte_carlo.importance import log_event_probability
from ballsbins.plots.lines import Line, label_lines
from ballsbins.plots.style import look, new_panels, number_axis
from ballsbins.reproduce import Samples, claim, draw, workers, write

SETTINGS = [
    # σ, T, samples for every ε in the paper, what it says P(E) is at ε = 12
    (0.40, 5_000, 200_000, 3.75e-3),
    (0.35, 10_000, 100_000, 1.66e-4),
]
SHARE = {"small": 400, "quick": 10, "full": 1}  # of the paper's samples
GRID = {"small": [6.0, 9.0, 12.0], "quick": [4.0, 6.0, 8.0, 9.0, 10.0, 11.0, 12.0]}
GRID["full"] = [float(e) for e in range(3, 14)]
BETA = 1e-3  # of each of the two sides of two directions: four times that in all
FINE = 41


def rounded(numbers):
    return [float(f"{x:.6g}") for x in np.atleast_1d(numbers)]


def timed(mechanism, epsilon, sampler, count, scale):
    """The bound, and the seconds that it took; what is stopped compares with nothing, so nothing of it is shown."""
    samples = Samples(count)
    method = MonteCarlo(count, 4 * BETA, sampler=sampler, workers=workers(scale), progress=samples)
    begun = time.monotonic()
    found = mechanism.delta(epsilon, method)
    if samples.stopped:
        raise KeyboardInterrupt
    return found, time.monotonic() - begun


def panel(setting, scale):
    """All that is shown of one setting."""
    sigma, steps, paper_samples, paper_event = setting
    mechanism = Mechanism(BallsAndBins(steps), sigma)
    epsilon = np.array(GRID[scale])
    samples = paper_samples // SHARE[scale]
    importance, took = timed(mechanism, epsilon, "importance", samples, scale)
    _, once = timed(mechanism, 0.0, "plain", samples, scale)
    count = max(samples, int(float(f"{samples * took / once:.2g}")))
    plain, plain_took = timed(mechanism, epsilon, "plain", count, scale)
    tilted, tilted_took = timed(mechanism, epsilon, "tilted", samples, scale)
    fine = np.linspace(epsilon[0], epsilon[-1], FINE)
    exact, lower = mechanism.delta(fine), mechanism.delta(fine, "lower-bound")
    return {
        "noise_multiplier": sigma,
        "steps": steps,
        "epsilon": epsilon.tolist(),
        "exact": {
            "lower": rounded(mechanism.delta(epsilon).lower),
            "upper": rounded(mechanism.delta(epsilon).upper),
        },
        "plain": {"upper": rounded(plain.upper), "samples": count, "seconds": round(plain_took, 1)},
        "importance": {
            "upper": rounded(importance.upper),
            "samples_for_each_epsilon": samples,
            "seconds": round(took, 1),
        },
        "tilted": {
            "upper": rounded(tilted.upper),
            "samples_for_each_epsilon": samples,
            "seconds": round(tilted_took, 1),
        },
        "event_probability": rounded(
            [math.exp(log_event_probability(sigma, steps, e, "remove")) for e in epsilon]
        ),
        "event_probability_paper_at_12": paper_event,
        "fine": {
            "epsilon": fine.tolist(),
            "exact": rounded(exact.upper),
            "lower_bound": rounded(lower.lower),
        },
    }


def picture(panels):
    """Two panels as in the paper: upper bounds on δ of balls-and-bins, and the truth."""
    figure = new_panels(
        [
            f"Importance sampling is tighter at small δ\nT = {p['steps']:,}, σ = {p['noise_multiplier']:g}"
            for p in panels
        ],
        "ε",
        "δ",
    )
    marks = {
        "plain": ("plain", "#D55E00", "s--"),
        "importance": ("importance", "#009E73", "D-."),
        "tilted": ("", "#000000", "o"),
    }
    for axes, p in zip(figure, panels, strict=True):
        axes.set_yscale("log")
        lines = []
        for name, (label, color, mark) in marks.items():
            axes.plot(
                p["epsilon"], p[name]["upper"], mark, color=color, markersize=4, linewidth=1.5, zorder=5
            )
            lines.append(Line(label, np.array(p["epsilon"]), np.array(p[name]["upper"]), color))
        fine = p["fine"]
        at, exact = np.array(fine["epsilon"]), np.array(fine["exact"])
        axes.plot(at, exact, **look("balls-and-bins"))
        axes.plot(at, fine["lower_bound"], ":", color="black", linewidth=1.1, zorder=6)
        names = "exact\ndots: tilted (ours)\ndotted: lower bound"
        lines.append(Line(names, at, exact, look("balls-and-bins")["color"]))
        axes.set_xlim(at[0] - 0.1, at[-1] + 0.1)
        number_axis(axes.yaxis)
        label_lines(axes, lines, fontsize=8.5)
    return figure[0]


def table(p, console):
    console.print(
        f"T = {p['steps']:,}, σ = {p['noise_multiplier']:g}: {p['importance']['samples_for_each_epsilon']:,} samples "
        f"for each ε in {p['importance']['seconds']:.0f} s; plain: {p['plain']['samples']:,} samples in "
        f"{p['plain']['seconds']:.0f} s; tilted: {p['tilted']['seconds']:.1f} s"
    )
    grid = Table(box=None, pad_edge=False)
    for head in ("ε", "P(E)", "P(E) in the paper", "exact δ", "upper: plain", "importance", "tilted"):
        grid.add_column(head, justify="right")
    for k, e in enumerate(p["epsilon"]):
        paper = f"{p['event_probability_paper_at_12']:.3g}" if e == 12.0 else ""
        numbers = (p["exact"]["upper"], *(p[name]["upper"] for name in ("plain", "importance", "tilted")))
        grid.add_row(
            f"{e:g}", f"{p['event_probability'][k]:.3g}", paper, *(f"{column[k]:.4g}" for column in numbers)
        )
    console.print(grid)


def run(scale, out, console):
    with stages("importance", len(SETTINGS)) as begin:
        panels = []
        for setting in SETTINGS:
            begin(f"T = {setting[1]:,}")
            panels.append(panel(setting, scale))
    panels = write(out, "importance", panels)
    draw(out, "importance", picture(panels))
    for p in panels:
        table(p, console)
    console.print(
        "Difference: for T = 5000, σ = 0.4 the paper's 3.75·10⁻³ is P(E) at ε = 9; at ε = 12 its formula gives "
        "4.62·10⁻⁶, so there importance sampling helps more than the paper says."
    )
    for p in panels:
        where = f"T = {p['steps']:,}"
        rare = np.array(p["event_probability"]) < 0.1
        plain, importance, tilted = (np.array(p[name]["upper"]) for name in ("plain", "importance", "tilted"))
        exact = np.array(p["exact"]["lower"])
        claim(
            console,
            f"{where}: importance sampling is tighter at equal time wherever P(E) < 0.1, "
            f"{plain[-1] / importance[-1]:,.0f} times at ε = {p['epsilon'][-1]:g}",
            rare.any() and np.all(importance[rare] < plain[rare]),
        )
        claim(
            console,
            f"{where}: the exact δ is below every upper confidence bound",
            all(np.all(exact <= upper) for upper in (plain, importance, tilted)),
        )
        claim(
            console,
            f"{where}: the exact δ is above the paper's lower bound",
            np.all(np.array(p["fine"]["lower_bound"]) <= np.array(p["fine"]["exact"])),
        )
        claim(
            console,
            f"{where}: where P(E) < 0.1 our tilt is tighter still, "
            f"{importance[-1] / tilted[-1]:,.1f} times at ε = {p['epsilon'][-1]:g}",
            np.all(tilted[rare] < importance[rare]),
        )
    left, right = panels
    at = left["event_probability"][left["epsilon"].index(9.0)]
    claim(console, "P(E) = 3.75·10⁻³ for T = 5000, σ = 0.4 at ε = 9", abs(at / 3.75e-3 - 1) < 0.01)
    at = right["event_probability"][right["epsilon"].index(12.0)]
    claim(console, "P(E) = 1.66·10⁻⁴ for T = 10,000, σ = 0.35 at ε = 12", abs(at / 1.66e-4 - 1) < 0.01)
