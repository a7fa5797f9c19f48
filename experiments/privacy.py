"""Privacy of D, P, S and B: the paper's figure "Bounds on δ_P, δ_S and δ_B", with the exact δ_B on top.

The four settings of appendix C: Criteo pCTR (n = 37,000,000) and Criteo Search (n = 12,796,151) with batches of 1024
and 8192. δ_B three ways: exactly; by the paper's Monte Carlo with order statistics at the orders of appendix C
(all bars of one panel hold together with probability 1 − 10⁻³); and Poisson, shuffling and deterministic batches
beside it. The paper's text does not state the σ of its figure; here they are chosen from 0.3 to 0.5. At δ = 10⁻⁶ the
gap between what Poisson accounting claims of shuffled batches and what is true of them is shaded. The paper drew
5·10⁸ samples on 60 machines; the full form does too, in hours.
"""

from __future__ import annotations

import time

import numpy as np
from matplotlib.ticker import MaxNLocator
from rich.table import Table

from ballsbins import BallsAndBins, Mechanism, MonteCarlo
from ballsbins._progress import stages
from ballsbins.accounting.monte_carlo import PAPER_ORDERS
from ballsbins.comparison import at_equal_noise, crossover
from ballsbins.plots.lines import Line, label_lines
from ballsbins.plots.style import look, new_panels, number_axis
from ballsbins.report.numbers import down, up
from ballsbins.reproduce import Samples, claim, draw, samples_drawn, workers, write

SETTINGS = [
    # data set, examples, batch size, T of the paper, orders it counts, σ (ours)
    ("Criteo pCTR", 37_000_000, 1024, 36133, 739, 0.30),
    ("Criteo pCTR", 37_000_000, 8192, 4517, 589, 0.40),
    ("Criteo Search", 12_796_151, 1024, 12497, 609, 0.35),
    ("Criteo Search", 12_796_151, 8192, 1563, 589, 0.50),
]
SAMPLES = {"small": 5_000, "quick": 1_000_000, "full": 500_000_000}
POINTS = {"small": 25, "quick": 81, "full": 81}
BARS = 6
TELLING = 100  # samples expected beyond the last bar: bars say something only where there are some
BETA = 1e-3
DELTA = 1e-6  # at which claim and truth are compared
FLOOR = 1e-8  # of the picture


def rounded(numbers):
    return [float(f"{x:.6g}") for x in np.atleast_1d(numbers)]


def bounds(mechanism, epsilon):
    """Lower and upper bounds; δ falls in ε, so an upper bound at a smaller ε holds as well."""
    found = mechanism.delta(epsilon)
    return np.maximum.accumulate(found.lower[::-1])[::-1], np.minimum.accumulate(found.upper)


def panel(setting, scale):
    """All that is shown of one setting, and whether its sampling was stopped."""
    data, n, b, steps, _, sigma = setting
    assert -(-n // b) == steps  # T = ⌈n/b⌉, as the paper has it
    mechanisms = at_equal_noise(Mechanism(BallsAndBins(steps), sigma))
    at = {name: mechanism.epsilon(DELTA) for name, mechanism in mechanisms.items()}
    # as far as the claim for shuffled batches is wrong
    epsilon = np.linspace(0.0, 1.12 * float(at["shuffle"].upper), POINTS[scale])
    curves = {}
    for name, mechanism in mechanisms.items():
        begun = time.process_time()
        lower, upper = bounds(mechanism, epsilon)
        curves[name] = {"lower": rounded(lower), "upper": rounded(upper)}
        if name == "balls-and-bins":
            exact_seconds = time.process_time() - begun
    bins, poisson = mechanisms["balls-and-bins"], mechanisms["Poisson"]
    bars = np.linspace(0.0, float(bins.epsilon(TELLING / SAMPLES[scale]).upper), BARS)
    orders = f"C, T={steps}"
    samples = Samples(SAMPLES[scale])
    method = MonteCarlo(
        SAMPLES[scale],
        BETA,
        sampler="order-statistics",
        orders=orders,
        epsilons=tuple(bars),
        workers=workers(scale),
        progress=samples,
    )
    begun = time.monotonic()
    sampled = bins.delta(bars, method)
    sampled_seconds = time.monotonic() - begun
    exact = bins.delta(bars)
    crossing = crossover(bins, poisson)
    return {
        "data": data,
        "examples": n,
        "batch_size": b,
        "steps": steps,
        "noise_multiplier": sigma,
        "epsilon": epsilon.tolist(),
        "curves": curves,
        "exact_cpu_seconds": round(exact_seconds, 3),
        "monte_carlo": {
            "epsilon": bars.tolist(),
            "lower": rounded(sampled.lower),
            "mean": rounded(sampled.value),
            "upper": rounded(sampled.upper),
            "samples": samples.drawn,
            "planned": samples.planned,
            "orders": orders,
            "number_of_orders": len(PAPER_ORDERS[orders]),
            "seconds": round(sampled_seconds, 1),
        },
        "exact_at_bars": {"lower": rounded(exact.lower), "upper": rounded(exact.upper)},
        "crossover": {
            "worse_up_to": crossing.left,
            "delta_there": None if crossing.left is None else float(bins.delta(crossing.left).upper),
            "better_from": crossing.right,
        },
        "epsilon_at_1e-6": {
            name: {"lower": float(bound.lower), "upper": float(bound.upper)} for name, bound in at.items()
        },
    }


def picture(panels):
    """Four panels as in the paper: what Poisson accounting claims of shuffled batches, and what is true of them."""
    titles = [
        f"{p['data']}, batches of {p['batch_size']:,}\nT = {p['steps']:,}, σ = {p['noise_multiplier']:g}"
        for p in panels
    ]
    figure = new_panels(titles, "ε", "δ")
    for axes, p in zip(figure, panels, strict=True):
        draw_panel(axes, p)
    return figure[0]


def draw_panel(axes, p):
    epsilon = np.array(p["epsilon"])
    axes.set_yscale("log")
    axes.set_ylim(FLOOR, 1.6)
    axes.set_xlim(0.0, epsilon[-1])
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    number_axis(axes.yaxis)
    side = {name: np.maximum(p["curves"][name]["upper"], 1e-300) for name in p["curves"]}
    side["shuffle"] = np.maximum(p["curves"]["shuffle"]["lower"], 1e-300)
    # wide and pale under the line of shuffling, so that both are seen where they are one
    axes.plot(epsilon, side["deterministic"], color="#aaaaaa", linewidth=5, alpha=0.6, zorder=1)
    lines = [Line("deterministic", epsilon, side["deterministic"], "#555555")]
    for name in ("shuffle", "Poisson", "balls-and-bins"):
        axes.plot(epsilon, side[name], **look(name))
        label = "shuffle, at least" if name == "shuffle" else name
        lines.append(Line(label, epsilon, side[name], look(name)["color"]))
    claim_, truth = p["epsilon_at_1e-6"]["Poisson"]["upper"], p["epsilon_at_1e-6"]["shuffle"]["lower"]
    axes.fill_betweenx([FLOOR, 1.6], claim_, truth, color="#D55E00", alpha=0.1, linewidth=0, zorder=0)
    axes.axhline(DELTA, color="#444444", linestyle=(0, (4, 3)), linewidth=1.0, zorder=1)
    arrow = {"arrowstyle": "<->", "color": "#222222", "linewidth": 1.4, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", (claim_, DELTA), (truth, DELTA), arrowprops=arrow, zorder=5)
    text = f"claimed {up(claim_, 3)}\ntrue ≥ {down(truth, 3)}"
    middle = claim_ + 0.45 * (truth - claim_)
    axes.text(middle, 1.5 * DELTA, text, ha="center", va="bottom", fontsize=8.5, zorder=6)
    reach = np.array([-0.2, 0.2]) * (truth - claim_) + middle  # names keep away from the words
    lines += [Line("", reach, np.full(2, height * DELTA), "") for height in (2.0, 5.0, 12.0, 25.0)]
    lines.append(Line("δ = 10⁻⁶", np.array([0.0, claim_]), np.array([DELTA, DELTA]), "#444444"))
    bars = p["monte_carlo"]
    x, low, mean, high = (np.array(bars[key]) for key in ("epsilon", "lower", "mean", "upper"))
    low = np.maximum(low, 0.1 * FLOOR)
    mean = np.clip(mean, low, high)
    axes.errorbar(
        x, mean, [mean - low, high - mean], fmt="o", color="black", markersize=2.6, elinewidth=1.1, capsize=2.2,
        zorder=5,
    )  # fmt: skip
    drawn = samples_drawn(bars["samples"], bars["planned"])
    where = {"transform": axes.transAxes, "ha": "right", "va": "top", "fontsize": 7.5}
    axes.text(0.985, 0.97, f"dots: Monte Carlo,\n{drawn}", **where)
    label_lines(axes, lines, fontsize=8.5)


def table(panels, console):
    """What the paper states, and what is so."""
    counted = {(data, b): orders for data, _, b, _, orders, _ in SETTINGS}
    rows = []
    for p in panels:
        at, crossing = p["epsilon_at_1e-6"], p["crossover"]
        worse = "nowhere proved"
        if crossing["worse_up_to"] is not None:
            worse = f"ε < {crossing['worse_up_to']:.3f}, δ > {crossing['delta_there']:.2g}"
        rows.append(
            (
                f"{p['data'].removeprefix('Criteo ')}, b = {p['batch_size']}",
                f"{p['noise_multiplier']:g}",
                f"{p['steps']:,}",
                f"{counted[p['data'], p['batch_size']]} / {p['monte_carlo']['number_of_orders']}",
                up(at["balls-and-bins"]["upper"], 5),
                up(at["Poisson"]["upper"], 5),
                down(at["shuffle"]["lower"], 5),
                worse,
            )
        )
    heads = (
        "ε at δ = 10⁻⁶",
        "σ",
        "T",
        "orders",
        "B",
        "P",
        "S, at least",
        "B worse than P",
    )
    grid = Table(*heads, box=None, pad_edge=False)
    for row in rows:
        grid.add_row(*row)
    console.print(grid)
    m, seconds = (
        min(p["monte_carlo"]["samples"] for p in panels),
        sum(p["monte_carlo"]["seconds"] for p in panels),
    )
    exact = sum(p["exact_cpu_seconds"] for p in panels)
    drawn = samples_drawn(m, panels[0]["monte_carlo"]["planned"])
    console.print(
        f"Monte Carlo: {drawn} per direction and panel, {seconds:.0f} s in all; in the paper 5·10⁸ on 60 "
        f"machines. The exact curves took {exact:.2f} s."
    )
    console.print(
        "Differences (orders: as the paper counts them / as it lists them): the list for T = 1563 has 549, not "
        "589; the paper's text has no σ for its figure; and at small ε, where δ is above 10⁻² or so, δ_B is "
        "above δ_P."
    )


def run(scale, out, console):
    some, panels = SETTINGS[3:] if scale == "small" else SETTINGS, []
    with stages("privacy", len(some)) as begin:
        for setting in some:
            begin(f"{setting[0]}, batches of {setting[2]:,}")
            panels.append(panel(setting, scale))
            if stopped(panels[-1]):  # what was sampled is shown as what it is, and no more is begun
                break
    panels = write(out, "privacy", panels)
    draw(out, "privacy", picture(panels))
    table(panels, console)
    for p in panels:
        where = f"{p['data']}, b = {p['batch_size']}"
        b, poisson, shuffle = (p["curves"][name] for name in ("balls-and-bins", "Poisson", "shuffle"))
        upper = np.array(b["upper"])
        matters = (upper >= 1e-7) & (upper <= 1e-2)
        claim(
            console,
            f"{where}: δ_B < δ_P at all {matters.sum()} points with δ_B from 10⁻⁷ to 10⁻²",
            matters.any() and np.all(upper[matters] < np.array(poisson["lower"])[matters]),
        )
        claim(
            console,
            f"{where}: shuffling is worse than balls-and-bins at every ε > 0",
            np.all(np.array(shuffle["lower"])[1:] > upper[1:]),
        )
        sampled, exact = p["monte_carlo"], p["exact_at_bars"]
        inside = np.array(sampled["lower"]) <= np.array(exact["upper"])
        inside &= np.array(exact["lower"]) <= np.array(sampled["upper"])
        claim(console, f"{where}: every Monte Carlo bar holds the exact δ_B", inside.all())
    if stopped(panels[-1]):
        raise KeyboardInterrupt


def stopped(panel):
    return panel["monte_carlo"]["samples"] < panel["monte_carlo"]["planned"]
