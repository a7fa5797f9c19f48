"""Write docs/benchmarks.md and its two plots from benchmarks/results/: `python benchmarks/page.py`.

Between `<!-- begin NAME -->` and `<!-- end NAME -->` of the page stands what `NAME()` here gives. A test compares.
"""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path

import plots
import record
from peers import MOST_BYTES
from plots import NAMES

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "benchmarks.md"
IDLE = 0.1  # cores: up to here the machine counts as idle


def seconds(value):
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")):
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


def number(value):
    """A value of an axis: a power of ten beyond thousands."""
    return f"{value:,.0f}" if value < 1e5 else f"10{power(f'{math.log10(value):.0f}')}"


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
    by = f"ballsbins {' and '.join(ours)}, Python {' and '.join(pythons)}, {' and '.join(processors)}; {listed}."
    return f"{by}\n\n{load(made)}"


def load(made):
    """What other programs did meanwhile."""
    busiest = max(made, key=lambda name: made[name]["others"])
    most, cores = made[busiest]["others"], made[busiest]["cores"]
    if most <= IDLE:
        return f"The machine was idle otherwise: other programs used at most {most:g} of its {cores} cores."
    return (
        f"Other programs used up to {most:g} of the {cores} cores on average (during `{busiest}.json`), which can "
        "lengthen single times; ratios suffer less."
    )


def why(row):
    """Why there is no answer, in few words."""
    if "MemoryError" in row["failure"]:
        return f"needs more than {MOST_BYTES / 1e9:.0f} GB"
    return row["failure"]


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
        if "failure" in row:
            lines.append([asked, NAMES[row["accountant"]], why(row), "", "", ""])
            continue
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


def scaling():
    """The least and the greatest value of each axis; what lies between is in the plot."""
    rows, _ = record.load("scaling")
    heads = {"steps": "T", "epochs": "epochs", "1/delta": "1/δ"}
    lines = []
    for sampler, axis in dict.fromkeys((row["sampler"], row["axis"]) for row in rows):
        here = [row for row in rows if (row["sampler"], row["axis"]) == (sampler, axis)]
        values = sorted({plots.place(row) for row in here})
        for name in dict.fromkeys(row["accountant"] for row in here):
            found = {plots.place(row): row for row in here if row["accountant"] == name}
            last = max(found)
            if "failure" in found[last]:
                end = f"{why(found[last])} from {number(last)} on"
            else:
                end = seconds(found[last]["seconds"])
            first = found[values[0]]
            begin = why(first) if "failure" in first else seconds(first["seconds"])
            growth = f"{heads[axis]} from {number(values[0])} to {number(values[-1])}"
            lines.append([f"{sampler}, {growth}", NAMES[name], begin, end])
    for before, line in reversed(list(itertools.pairwise(lines))):
        line[0] = "" if line[0] == before[0] else line[0]
    return table(["what grows", "accountant", "CPU at first", "at last"], lines, 2)


def samplers():
    rows, _ = record.load("samplers")
    timed = [row for row in rows if "ratio" in row]
    most, steps = max(row["n"] for row in timed), timed[0]["steps"]
    lines = [
        [row["job"], seconds(row["seconds"]), f"{row['ratio']:.2f}"] for row in timed if row["n"] == most
    ]
    memory = {row["job"]: row["bytes"] for row in rows if "bytes" in row}
    words = ", ".join(f"{name} {max(value, 0.0):.1f}" for name, value in memory.items())
    grows = sorted((row for row in timed if row["job"] == timed[0]["job"]), key=lambda row: row["n"])
    by_n = [
        [f"{r['n']:,}", seconds(r["seconds"]), seconds(r["seconds"] / r["n"]), f"{r['ratio']:.2f}"]
        for r in grows
    ]
    return (
        table([f"one epoch, n = {most:,}, T = {steps:,}", "CPU", "of numpy's permutation of n"], lines)
        + f"\n\nPeak memory above the result, in bytes per example: {words}.\n\n"
        + table([f"{timed[0]['job']}: n", "CPU", "per example", "of numpy's permutation of n"], by_n, 0)
    )


def torch():
    rows, _ = record.load("training-torch")
    lines = [
        [
            row["model"],
            f"{row['parameters']:,}",
            row["mode"],
            str(row["batch"]),
            seconds(row["seconds"]),
            f"{row['ratio']:.2f}",
        ]
        for row in rows
    ]
    head = ["model", "parameters trained", "clipping", "batch", "CPU per step", "of Opacus' own step"]
    return table(head, lines)


def part_of_jax(part):
    return [row for row in record.load("training-jax")[0] if row["part"] == part]


def jax():
    lines = [
        [
            f"{row['parameters']:,}",
            f"{row['batch']:,}",
            seconds(row["plain"]),
            seconds(row["seconds"]),
            f"{row['ratio']:.2f}",
            row["aim"],
        ]
        for row in part_of_jax("step")
    ]
    memory = [
        row for row in part_of_jax("memory") if row["parameters"] == part_of_jax("peers")[0]["parameters"]
    ]
    held = " and ".join(f"{megabytes(row['megabytes'])} at batch {row['batch']:,}" for row in memory)
    least = memory[0]
    whole = 4 * least["batch"] * least["parameters"] / 1e9
    return (
        table(["parameters", "batch", "plain step", "private step", "of the plain step", "aim"], lines, 0)
        + f"\n\nWith {least['parameters']:,} parameters the temporaries of a private step take {held}. "
        f"One gradient for each of {least['batch']:,} examples would take {whole:,.0f} GB."
    )


def jax_peers():
    rows = part_of_jax("peers")
    busy = {row["job"]: row for row in rows if row["busy"]}
    count = max(row["busy"] for row in rows)
    lines = [
        [
            row["job"],
            seconds(row["seconds"]),
            f"{row['ratio']:.2f}",
            f"{busy[row['job']]['ratio']:.2f}" if row["job"] in busy else "not measured",
        ]
        for row in rows
        if not row["busy"]
    ]
    head = f"{rows[0]['parameters']:,} parameters, batch {rows[0]['batch']:,}"
    return table([head, "by the clock", "of ours", f"of ours, beside {count} busy processes"], lines)


def noise():
    lines = [[row["job"], seconds(row["seconds"]), f"{row['ratio']:.2f}"] for row in part_of_jax("noise")]
    return table(["noise", "per value", "of torch.normal"], lines)


def ratio_and_aim(row):
    return ["" if row["ratio"] is None else f"{row['ratio']:.2f}", row["aim"]]


def engines():
    rows, _ = record.load("engines")
    parts = []
    for count in dict.fromkeys(row["rows"] for row in rows):
        lines = [
            [
                row["job"],
                seconds(row["cpu"]),
                seconds(row["wall"]),
                megabytes(row["megabytes"]),
                *ratio_and_aim(row),
            ]
            for row in rows
            if row["rows"] == count
        ]
        parts.append(table([f"{count:,} rows", "CPU", "by the clock", "peak memory", "ratio", "aim"], lines))
    return "\n\n".join(parts)


def reading():
    rows, _ = record.load("reading")
    lines = [[row["job"], seconds(row["cpu"]), *ratio_and_aim(row)] for row in rows]
    return table([f"{rows[0]['rows']:,} rows", "CPU", "ratio", "aim"], lines)


PARTS = {
    part.__name__: part
    for part in (
        machine,
        bins,
        poisson,
        scaling,
        start,
        samplers,
        torch,
        jax,
        jax_peers,
        noise,
        engines,
        reading,
    )
}


def written(text):
    """The page with every part written anew."""
    for name, part in PARTS.items():
        block = rf"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)"
        text, count = re.subn(block, lambda m, p=part: f"{m[1]}\n{p()}\n\n{m[2]}", text, flags=re.DOTALL)
        if count != 1:
            raise SystemExit(f"{PAGE} has {count} places for {name}")
    return text


def main():
    PAGE.write_text(written(PAGE.read_text()))
    for name, draw in plots.PLOTS.items():
        (ROOT / "docs" / "assets" / name).write_text(draw())


if __name__ == "__main__":
    main()
