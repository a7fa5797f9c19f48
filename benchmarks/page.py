"""Write the tables and the two plots of docs/benchmarks.md from benchmarks/results/: `python benchmarks/page.py`.

Between `<!-- begin NAME -->` and `<!-- end NAME -->` of the page stands what `NAME()` here gives. A test compares.
"""

from __future__ import annotations

import re
from pathlib import Path

import record

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "benchmarks.md"
PLOTS = ROOT / "docs" / "assets"

NAMES = {
    "ballsbins": "ballsbins",
    "pld_accounting": "PLD_accounting",
    "random_allocation": "random-allocation",
    "authors": "the authors' sampler",
    "dp_accounting": "dp_accounting",
    "opacus": "Opacus, PRV",
    "prv_accountant": "prv_accountant",
}
COLOURS = {"ballsbins": "#0b6e4f", "random_allocation": "#6a6a8a"}


def seconds(value):
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if value >= unit:
            return f"{value / unit:.{0 if value >= 100 * unit else 1}f} {name}"
    return f"{value:.1e} s"


def megabytes(value):
    return f"{value:,.0f} MB" if value >= 10 else f"{value:.1f} MB"


def times(value):
    """A ratio, with two digits."""
    return f"{float(f'{value:.2g}'):,g} ×"


def small(value):
    """A difference of two ε: it may be tiny."""
    if value < 1e-9:
        return "< 10⁻⁹"
    return (
        f"{value:.2g}"
        if value >= 1e-3
        else re.sub(r"e-0?(\d+)", lambda m: f"·10⁻{power(m[1])}", f"{value:.1e}")
    )


def power(digits):
    return "".join("⁰¹²³⁴⁵⁶⁷⁸⁹"[int(digit)] for digit in digits)


def table(head, rows, words=1):
    """A Markdown table; the first columns are words, the others numbers."""
    right = "|".join(["---"] * words + ["---:"] * (len(head) - words))
    return "\n".join([f"| {' | '.join(head)} |", f"|{right}|", *(f"| {' | '.join(row)} |" for row in rows)])


def machine():
    """Who made the numbers, for all of them if they agree."""
    made = {
        name: record.load(name)[1] for name in sorted(path.stem for path in record.RESULTS.glob("*.json"))
    }
    packages = {}
    for one in made.values():
        packages |= {k: v for k, v in one["packages"].items() if k != "ballsbins"}
    processors = sorted({f"{one['processor']}, {one['cores']} cores" for one in made.values()})
    pythons = sorted({one["python"] for one in made.values()})
    ours = sorted({one["ballsbins"] for one in made.values()})
    listed = ", ".join(
        f"{name} {number}" for name, number in sorted(packages.items(), key=lambda kv: kv[0].lower())
    )
    return f"ballsbins {' and '.join(ours)}, Python {' and '.join(pythons)}, {' and '.join(processors)}; {listed}."


def accountants(sampler):
    rows, _ = record.load("epsilon")
    lines, ours = [], {}
    for row in rows:
        if row["sampler"] != sampler:
            continue
        setting = (row["sigma"], row["steps"], row["epochs"])
        if row["accountant"] == "ballsbins":
            ours = row
            asked = f"σ = {setting[0]:g}, T = {setting[1]:,}, " + (
                "1 epoch" if setting[2] == 1 else f"{setting[2]} epochs"
            )
        ratio = row["seconds"] / ours["seconds"]
        if row["accountant"] == "authors":
            above = f"δ ≤ {row['upper'] / ours['delta']:.2g} × exact, sampled"
        else:
            above = "exact" if row is ours else small(row["upper"] - ours["upper"])
        lines.append(
            [
                asked,
                NAMES[row["accountant"]],
                seconds(row["seconds"]),
                times(ratio),
                megabytes(row["megabytes"]),
                above,
            ]
        )
        asked = ""
    return table(["ε at δ = 10⁻⁶", "accountant", "CPU", "of ours", "memory", "ε too high by"], lines, 2)


def bins():
    return accountants("balls-and-bins")


def poisson():
    return accountants("Poisson")


def start():
    rows, _ = record.load("start")
    base = rows[0]["seconds"]
    return table(
        ["cold start", "CPU", "of the import of numpy and scipy.special"],
        [[f"`{row['program']}`", seconds(row["seconds"]), f"{row['seconds'] / base:.2f}"] for row in rows],
    )


def samplers():
    rows, _ = record.load("samplers")
    timed = [row for row in rows if "ratio" in row]
    lines = [[row["job"], f"{row['n']:,}", seconds(row["seconds"]), f"{row['ratio']:.2f}"] for row in timed]
    memory = {row["job"]: row["bytes"] for row in rows if "bytes" in row}
    words = ", ".join(f"{name} {max(value, 0.0):.1f}" for name, value in memory.items())
    steps = timed[0]["steps"]
    return (
        table([f"one epoch, T = {steps:,}", "n", "CPU", "of numpy's permutation of n"], lines)
        + f"\n\nPeak memory above the result, in bytes per example: {words}."
    )


def torch():
    rows, _ = record.load("training-torch")
    lines = [
        [row["model"], f"{row['parameters']:,}", row["mode"], seconds(row["seconds"]), f"{row['ratio']:.2f}"]
        for row in rows
    ]
    return table(["model", "parameters trained", "clipping", "CPU per step", "of Opacus' own step"], lines)


PARTS = {part.__name__: part for part in (machine, bins, poisson, start, samplers, torch)}


def written(text):
    """The page with every part written anew."""
    for name, part in PARTS.items():
        block = rf"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)"
        text, count = re.subn(block, lambda m, p=part: f"{m[1]}\n{p()}\n\n{m[2]}", text, flags=re.DOTALL)
        if count != 1:
            raise SystemExit(f"{PAGE} has {count} places for {name}")
    return text


def figure(width, height, columns):
    import matplotlib

    matplotlib.rcParams["svg.hashsalt"] = "ballsbins"  # the same file from the same numbers
    from matplotlib.figure import Figure

    made = Figure(figsize=(width, height), layout="constrained")
    return made, made.subplots(1, columns, sharey=True, squeeze=False)[0]


def label_at(axis, name, point, colour):
    axis.annotate(NAMES[name], point, (4, 5), textcoords="offset points", color=colour, fontsize=9)


def draw_scaling():
    """CPU time against T, epochs and 1/δ."""
    rows, _ = record.load("scaling")
    axes_of = {"steps": "steps per epoch, T", "epochs": "epochs", "1/delta": "1/δ"}
    made, axes = figure(9.0, 3.2, 3)
    for axis, (kind, label) in zip(axes, axes_of.items(), strict=True):
        for name, colour in COLOURS.items():
            points = [row for row in rows if row["axis"] == kind and row["accountant"] == name]
            x = [1 / row["delta"] if kind == "1/delta" else row[kind] for row in points]
            axis.loglog(x, [row["seconds"] for row in points], "o-", color=colour, markersize=4)
            if kind == "steps" and points:
                axis.annotate(
                    NAMES[name],
                    (x[0], points[0]["seconds"]),
                    (0, 6),
                    textcoords="offset points",
                    color=colour,
                    fontsize=9,
                )
        axis.set_xlabel(label)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("CPU seconds for one ε")
    made.suptitle(
        "An exact ε takes 3 to 50 milliseconds, whatever T, δ and the number of epochs", fontsize=11
    )
    made.savefig(PLOTS / "bench_scaling.svg", metadata={"Date": None})
    return made


def draw_tightness():
    """How far above the exact ε an answer is, against its CPU time."""
    rows, _ = record.load("epsilon")
    made, axes = figure(9.0, 3.4, 2)
    colours = ["#c8553d", "#6a6a8a", "#b8860b", "#3a6ea5"]
    for axis, sampler in zip(axes, ("balls-and-bins", "Poisson"), strict=True):
        here = [row for row in rows if row["sampler"] == sampler and row["accountant"] != "authors"]
        exact = {(r["sigma"], r["steps"], r["epochs"]): r for r in here if r["accountant"] == "ballsbins"}
        peers = list(dict.fromkeys(row["accountant"] for row in here))
        for name, colour in zip(peers, ["#0b6e4f", *colours], strict=False):
            points = []
            for row in here:
                if row["accountant"] == name:
                    ours = exact[row["sigma"], row["steps"], row["epochs"]]
                    gap = (
                        ours["upper"] - ours["lower"] if name == "ballsbins" else row["upper"] - ours["upper"]
                    )
                    points.append((row["seconds"], max(gap, 1e-13)))
            x, y = zip(*points, strict=True)
            axis.loglog(x, y, "o", color=colour, markersize=6)
            axis.annotate(
                NAMES[name], max(points), (6, 4), textcoords="offset points", color=colour, fontsize=9
            )
        axis.set_title(f"{sampler} batches", fontsize=10)
        axis.set_xlabel("CPU seconds for one ε")
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_xlim(right=axis.get_xlim()[1] * 30)
    axes[0].set_ylabel("ε stated minus exact ε\n(ours: width of its interval)")
    made.suptitle(
        "Lower left is better: our interval is narrower than 10⁻⁹, and only a looser bound is faster",
        fontsize=11,
    )
    made.savefig(PLOTS / "bench_tightness.svg", metadata={"Date": None})
    return made


def main():
    PAGE.write_text(written(PAGE.read_text()))
    draw_scaling()
    draw_tightness()


if __name__ == "__main__":
    main()
