"""Order statistics: the paper's figure "with and without order statistics sampling", with the exact δ_B.

σ = 0.32, T = 100,000 (10,000 samples without, 100,000 with) and σ = 0.25, T = 1,000,000 (1,000 without, 300,000
with), at the 590 orders of appendix B. Upper confidence bounds on δ_B(ε) of both, the paper's lower bound, and
exactly. The paper's times are ratios: 10 times the samples in 25 % of the time, 300 times in 82 %.
"""

from __future__ import annotations

import time

import numpy as np
from rich.table import Table

from ballsbins import BallsAndBins, Mechanism, MonteCarlo
from ballsbins._progress import stages
from ballsbins.accounting.monte_carlo import PAPER_ORDERS
from ballsbins.plots.lines import Line, label_lines
from ballsbins.plots.style import look, new_panels, number, number_axis
from ballsbins.reproduce import Samples, claim, draw, workers, write

SETTINGS = [
    # σ, T, samples without and with in the paper, seconds without and with, largest ε shown
    (0.32, 100_000, 10_000, 100_000, 268.0, 66.0, 9.0),
    (0.25, 1_000_000, 1_000, 300_000, 245.0, 203.0, 14.0),
]
SHARE = {"small": 250, "quick": 4, "full": 1}  # of the paper's samples
BETA = 1e-3  # of each of the two sides of two directions: four times that in all
POINTS = 37


def rounded(numbers):
    return [float(f"{x:.6g}") for x in np.atleast_1d(numbers)]


def panel(setting, scale):
    """All that is shown of one setting."""
    sigma, steps, few, many, slow, fast, largest = setting
    mechanism = Mechanism(BallsAndBins(steps), sigma)
    epsilon = np.linspace(0.0, largest, POINTS)
    name = f"B, T={steps}"
    shown = {}
    for kind, samples, more in (
        ("plain", max(few // SHARE[scale], 4), {}),
        ("order-statistics", many // SHARE[scale], {"orders": name}),
    ):
        watch = Samples(samples)
        method = MonteCarlo(samples, 4 * BETA, sampler=kind, workers=workers(scale), progress=watch, **more)
        begun = time.monotonic()
        found = mechanism.delta(epsilon, method)
        took = time.monotonic() - begun
        if watch.stopped:  # what is stopped compares with nothing, so nothing of it is shown
            raise KeyboardInterrupt
        shown[kind] = {
            "lower": rounded(found.lower),
            "upper": rounded(found.upper),
            "samples": samples,
            "seconds": round(took, 2),
        }
    exact = mechanism.delta(epsilon)
    return {
        "noise_multiplier": sigma,
        "steps": steps,
        "number_of_orders": len(PAPER_ORDERS[name]),
        "epsilon": epsilon.tolist(),
        "exact": {"lower": rounded(exact.lower), "upper": rounded(exact.upper)},
        "lower_bound": rounded(mechanism.delta(epsilon, "lower-bound").lower),
        "paper_seconds": {"plain": slow, "order-statistics": fast},
        **shown,
    }


def picture(panels):
    """Two panels as in the paper: upper bounds on δ of balls-and-bins, and the truth."""
    figure = new_panels(
        [
            f"Order statistics: tighter, in less time\nT = {p['steps']:,}, σ = {p['noise_multiplier']:g}"
            for p in panels
        ],
        "ε",
        "δ",
    )
    marks = {"plain": ("without", "#D55E00", "--"), "order-statistics": ("with", "#009E73", "-.")}
    for axes, p in zip(figure, panels, strict=True):
        axes.set_yscale("log")
        at, exact = np.array(p["epsilon"]), np.array(p["exact"]["upper"])
        lines = []
        for kind, (label, color, line) in marks.items():
            axes.plot(at, p[kind]["upper"], line, color=color, linewidth=1.6)
            lines.append(
                Line(f"{label}, n = {number(p[kind]['samples'])}", at, np.array(p[kind]["upper"]), color)
            )
        axes.plot(at, exact, **look("balls-and-bins"))
        axes.plot(at, p["lower_bound"], ":", color="black", linewidth=1.1, zorder=6)
        lines.append(Line("exact\ndotted: lower bound", at, exact, look("balls-and-bins")["color"]))
        axes.set_xlim(0.0, at[-1])
        axes.set_ylim(0.5 * exact[-1], 2.0)
        number_axis(axes.yaxis)
        label_lines(axes, lines, fontsize=8.5)
    return figure[0]


def table(panels, console):
    grid = Table(box=None, pad_edge=False)
    heads = (
        "T",
        "orders",
        "samples without",
        "with",
        "seconds without",
        "with",
        "time ratio",
        "in the paper",
    )
    for head in heads:
        grid.add_column(head, justify="right")
    for p in panels:
        without, with_ = p["plain"], p["order-statistics"]
        paper = p["paper_seconds"]
        grid.add_row(
            f"{p['steps']:,}",
            f"{p['number_of_orders']}",
            f"{without['samples']:,}",
            f"{with_['samples']:,}",
            f"{without['seconds']:.1f}",
            f"{with_['seconds']:.1f}",
            f"{100 * with_['seconds'] / without['seconds']:.1f} %",
            f"{100 * paper['order-statistics'] / paper['plain']:.1f} %",
        )
    console.print(grid)
    grid = Table(box=None, pad_edge=False)
    for head in ("T", "ε", "lower bound", "exact δ", "upper, with", "upper, without"):
        grid.add_column(head, justify="right")
    for p in panels:
        for k in range(4, POINTS, 8):
            columns = ("lower_bound",), ("exact", "upper"), ("order-statistics", "upper"), ("plain", "upper")
            numbers = [p[c[0]][k] if len(c) == 1 else p[c[0]][c[1]][k] for c in columns]
            grid.add_row(f"{p['steps']:,}", f"{p['epsilon'][k]:g}", *(f"{x:.4g}" for x in numbers))
    console.print(grid)


def run(scale, out, console):
    with stages("order-statistics", len(SETTINGS)) as begin:
        panels = []
        for setting in SETTINGS:
            begin(f"T = {setting[1]:,}")
            panels.append(panel(setting, scale))
    panels = write(out, "order_statistics", panels)
    draw(out, "order_statistics", picture(panels))
    table(panels, console)
    console.print(
        "Difference: the upper bound needs k_{r+1} = R + 1; with R, as printed, its weights sum to R − 1."
    )
    for p in panels:
        where = f"T = {p['steps']:,}"
        exact = np.array(p["exact"]["lower"])
        with_, without = (np.array(p[kind]["upper"]) for kind in ("order-statistics", "plain"))
        small = (exact < 1e-2) & (exact > 1e-9)
        claim(
            console,
            f"{where}: order statistics give the tighter bound at all {small.sum()} points with δ from 10⁻⁹ to 10⁻²",
            small.any() and np.all(with_[small] < without[small]),
        )
        claim(
            console,
            f"{where}: the exact δ is below both upper bounds, above the paper's lower bound",
            np.all(exact <= np.minimum(with_, without))
            and np.all(np.array(p["lower_bound"]) <= np.array(p["exact"]["upper"])),
        )
        claim(
            console,
            f"{where}: the lower confidence bounds are below the exact δ",
            all(
                np.all(np.array(p[kind]["lower"]) <= np.array(p["exact"]["upper"]))
                for kind in ("order-statistics", "plain")
            ),
        )
