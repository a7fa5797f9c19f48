"""The two plots of docs/benchmarks.md, as SVG, from benchmarks/results/. Their headlines are computed, too."""

import io
import math
import re

import matplotlib
from matplotlib.figure import Figure

import record

NAMES = {
    "ballsbins": "ballsbins",
    "pld_accounting": "PLD_accounting",
    "random_allocation": "random-allocation",
    "authors": "the authors' sampler",
    "dp_accounting": "dp_accounting",
    "opacus": "Opacus, PRV",
    "prv_accountant": "prv_accountant",
}
COLOURS = {
    "ballsbins": "#0b6e4f",
    "pld_accounting": "#c8553d",
    "random_allocation": "#6a6a8a",
    "dp_accounting": "#c8553d",
    "opacus": "#6a6a8a",
    "prv_accountant": "#b8860b",
}
SAMPLERS = ("balls-and-bins", "Poisson")
AXES = {"steps": "steps per epoch, T", "epochs": "epochs", "1/delta": "1/δ"}
NO_ANSWER = 1000.0  # seconds: the height at which a question without an answer is drawn, above all others


def place(row):
    """Where a row of the scaling stands on its axis."""
    return 1 / row["delta"] if row["axis"] == "1/delta" else row[row["axis"]]


def svg(figure):
    """The picture as text: the same text from the same numbers, on every machine.

    Matplotlib names shapes by a hash of their coordinates, whose last bits depend on the processor. They are numbered
    here instead.
    """
    out = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "ballsbins"}):
        figure.savefig(out, format="svg", metadata={"Date": None})
    text = "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"
    numbers = {}
    return re.sub(
        r"\b[mp][0-9a-f]{10}\b", lambda name: f"shape{numbers.setdefault(name[0], len(numbers))}", text
    )


def panel(axis):
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)


def rounded(value):
    return f"{value * 1e3:.2g} milliseconds" if value < 0.1 else f"{value:.2g} seconds"


def scaling_headline(rows):
    ours = [row["seconds"] for row in rows if row["accountant"] == "ballsbins"]
    return f"Our exact ε takes {rounded(min(ours))} to {rounded(max(ours))}, for all T, δ and epochs here"


def scaling():
    """CPU time against T, epochs and 1/δ, of every accountant that was asked."""
    rows, _ = record.load("scaling")
    made = Figure(figsize=(9.0, 5.6), layout="constrained")
    grid = made.subplots(len(SAMPLERS), len(AXES), sharey=True, sharex="col", squeeze=False)
    for line, sampler in zip(grid, SAMPLERS, strict=True):
        for axis, (kind, label) in zip(line, AXES.items(), strict=True):
            here = [row for row in rows if (row["sampler"], row["axis"]) == (sampler, kind)]
            for name in dict.fromkeys(row["accountant"] for row in here):
                asked = [row for row in here if row["accountant"] == name]
                points = [(place(row), row["seconds"]) for row in asked if "failure" not in row]
                style = {"color": COLOURS[name], "markersize": 4}
                axis.loglog([x for x, _ in points], [y for _, y in points], "o-", label=NAMES[name], **style)
                lost = [(place(row), NO_ANSWER) for row in asked if "failure" in row]
                for end in lost:
                    if points:
                        axis.loglog(*zip(points[-1], end, strict=True), ":", color=COLOURS[name])
                    axis.loglog(*end, "x", color=COLOURS[name], markersize=7)
            panel(axis)
            if sampler == SAMPLERS[-1]:
                axis.set_xlabel(label)
        line[0].set_ylabel(f"{sampler}\nCPU seconds for one ε")
        line[-1].legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    grid[0][0].set_yticks([1e-3, 1e-2, 0.1, 1, 10, 100, NO_ANSWER])
    grid[0][0].set_yticklabels(["10⁻³", "10⁻²", "0.1", "1", "10", "100", "no answer"])
    made.suptitle(scaling_headline(rows), fontsize=11)
    return svg(made)


def gap(row, ours):
    """How far above the exact ε an answer is; for our own, the width of its interval."""
    return row["upper"] - ours["lower"] if row["accountant"] == "ballsbins" else row["upper"] - ours["upper"]


def answered(sampler):
    """The answers for a sampler, each with our own to the same question."""
    rows, _ = record.load("epsilon")
    here = [
        row
        for row in rows
        if row["sampler"] == sampler and row["accountant"] != "authors" and "failure" not in row
    ]
    ours = {(r["sigma"], r["steps"], r["epochs"]): r for r in here if r["accountant"] == "ballsbins"}
    return [(row, ours[row["sigma"], row["steps"], row["epochs"]]) for row in here]


def tightness_headline():
    pairs = [pair for sampler in SAMPLERS for pair in answered(sampler)]
    widest = max(gap(row, ours) for row, ours in pairs if row is ours)
    faster = [gap(row, ours) for row, ours in pairs if row["seconds"] < ours["seconds"]]
    end = "; only a looser bound is faster" if faster and min(faster) > widest else ""
    power = str(math.ceil(math.log10(widest))).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"Lower left is better: our intervals are narrower than 10{power}{end}"


def tightness():
    """How far above the exact ε an answer is, against its CPU time."""
    made = Figure(figsize=(9.0, 3.4), layout="constrained")
    axes = made.subplots(1, len(SAMPLERS), sharey=True)
    for axis, sampler in zip(axes, SAMPLERS, strict=True):
        pairs = answered(sampler)
        for name in dict.fromkeys(row["accountant"] for row, _ in pairs):
            points = [
                (row["seconds"], max(gap(row, ours), 1e-13))
                for row, ours in pairs
                if row["accountant"] == name
            ]
            axis.loglog(*zip(*points, strict=True), "o", color=COLOURS[name], markersize=6)
            offset = (-6, -14) if name == "opacus" else (6, 4)  # it is as tight as prv_accountant
            axis.annotate(
                NAMES[name], max(points), offset, textcoords="offset points", color=COLOURS[name], fontsize=9
            )
        axis.set_title(f"{sampler} batches", fontsize=10)
        axis.set_xlabel("CPU seconds for one ε")
        panel(axis)
        axis.set_xlim(right=axis.get_xlim()[1] * 30)
    axes[0].set_ylabel("ε stated minus exact ε\n(ours: width of its interval)")
    made.suptitle(tightness_headline(), fontsize=11)
    return svg(made)


PLOTS = {"bench_scaling.svg": scaling, "bench_tightness.svg": tightness}
