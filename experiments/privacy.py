"""Privacy of D, P, S and B: the paper's figure "Bounds on δ_P, δ_S and δ_B", with the exact δ_B on top.

The four settings of appendix C: Criteo pCTR (n = 37,000,000) and Criteo Search (n = 12,796,151) with batches of 1024
and 8192. δ_B three ways: exactly; by the paper's Monte Carlo with order statistics at the orders of appendix C
(all bars of one panel hold together with probability 1 − 10⁻³); and Poisson, shuffling and deterministic batches
beside it. The paper's text does not state the σ of its figure; here they are chosen from 0.3 to 0.5 so that δ from
10⁻¹ down to 10⁻⁹ shows. The paper drew 5·10⁸ samples on 60 machines; the full form does too, in hours.
"""

from __future__ import annotations

import time

import numpy as np
from rich.table import Table

from ballsbins import BallsAndBins, Mechanism, MonteCarlo
from ballsbins.accounting.monte_carlo import PAPER_ORDERS
from ballsbins.comparison import at_equal_noise, crossover
from ballsbins.plots.style import look, new_panels
from ballsbins.reproduce import claim, draw, workers, write

SETTINGS = [
    # data set, examples, batch size, T of the paper, orders it counts, σ (ours), largest ε shown
    ("Criteo pCTR", 37_000_000, 1024, 36133, 739, 0.30, 14.0),
    ("Criteo pCTR", 37_000_000, 8192, 4517, 589, 0.40, 9.0),
    ("Criteo Search", 12_796_151, 1024, 12497, 609, 0.35, 11.0),
    ("Criteo Search", 12_796_151, 8192, 1563, 589, 0.50, 6.0),
]
SAMPLES = {"small": 5_000, "quick": 1_000_000, "full": 500_000_000}
POINTS = {"small": 15, "quick": 57, "full": 57}
BARS = 8
BETA = 1e-3


def rounded(numbers):
    return [float(f"{x:.6g}") for x in np.atleast_1d(numbers)]


def bounds(mechanism, epsilon):
    """Lower and upper bounds; δ falls in ε, so an upper bound at a smaller ε holds as well."""
    found = mechanism.delta(epsilon)
    return np.maximum.accumulate(found.lower[::-1])[::-1], np.minimum.accumulate(found.upper)


def panel(setting, scale):
    """All that is shown of one setting."""
    data, n, b, steps, _, sigma, largest = setting
    assert -(-n // b) == steps  # T = ⌈n/b⌉, as the paper has it
    epsilon = np.linspace(0.0, largest, POINTS[scale])
    mechanisms = at_equal_noise(Mechanism(BallsAndBins(steps), sigma))
    curves = {}
    for name, mechanism in mechanisms.items():
        begun = time.process_time()
        lower, upper = bounds(mechanism, epsilon)
        curves[name] = {"lower": rounded(lower), "upper": rounded(upper)}
        if name == "balls-and-bins":
            exact_seconds = time.process_time() - begun
    bins, poisson = mechanisms["balls-and-bins"], mechanisms["Poisson"]
    bars = epsilon[:: (epsilon.size - 1) // (BARS - 1)]
    orders = f"C, T={steps}"
    method = MonteCarlo(
        SAMPLES[scale],
        BETA,
        sampler="order-statistics",
        orders=orders,
        epsilons=tuple(bars),
        workers=workers(scale),
    )
    begun = time.monotonic()
    sampled = bins.delta(bars, method)
    sampled_seconds = time.monotonic() - begun
    exact = bins.delta(bars)
    crossing = crossover(bins, poisson)
    at = {name: float(mechanism.epsilon(1e-6).upper) for name, mechanism in mechanisms.items()}
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
            "samples": SAMPLES[scale],
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
        "epsilon_at_1e-6": at,
    }


def picture(panels):
    """Four panels as in the paper: lines for what is proved, bars for what was sampled."""
    titles = [
        f"{p['data']}, batches of {p['batch_size']:,}: T = {p['steps']:,}, σ = {p['noise_multiplier']:g}"
        for p in panels
    ]
    figure = new_panels(titles, "ε", "δ")
    for axes, p in zip(figure, panels, strict=True):
        axes.set_yscale("log")
        axes.set_ylim(1e-10, 1.6)
        axes.set_xlim(-0.01 * p["epsilon"][-1], 1.02 * p["epsilon"][-1])
        for name in ("deterministic", "shuffle", "Poisson", "balls-and-bins"):
            # shuffling is bounded below by S_C and above by deterministic batches; of the others both bounds agree
            side = p["curves"][name]["lower" if name == "shuffle" else "upper"]
            label = {"balls-and-bins": "balls-and-bins, exact", "shuffle": "shuffle, at least"}.get(
                name, name
            )
            axes.plot(p["epsilon"], np.maximum(side, 1e-300), label=label, **look(name))
        bars = p["monte_carlo"]
        x, low, mean, high = (np.array(bars[key]) for key in ("epsilon", "lower", "mean", "upper"))
        axes.vlines(x, np.maximum(low, 1e-12), high, color="black", linewidth=1.3, zorder=5)
        axes.plot(x, high, "_", color="black", markersize=9, zorder=5)
        some = mean > 0
        count = f"{bars['samples']:.0e}".replace("e+0", "·10^").replace("1·", "")
        label = f"Monte Carlo, ${count}$ samples".replace("·", r"\cdot ")
        axes.plot(x[some], mean[some], "o", color="black", markersize=3.2, zorder=6, label=label)
    figure[0].legend(loc="lower left", fontsize=8.5, framealpha=0.9)
    return figure[0]


def table(panels, console):
    """What the paper states, and what is so."""
    counted = {(data, b): orders for data, _, b, _, orders, _, _ in SETTINGS}
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
                f"{at['balls-and-bins']:.4f}",
                f"{at['Poisson']:.4f}",
                f"{at['shuffle']:.3f}",
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
        "S, at most",
        "B worse than P",
    )
    grid = Table(*heads, box=None, pad_edge=False)
    for row in rows:
        grid.add_row(*row)
    console.print(grid)
    m, seconds = panels[0]["monte_carlo"]["samples"], sum(p["monte_carlo"]["seconds"] for p in panels)
    exact = sum(p["exact_cpu_seconds"] for p in panels)
    console.print(
        f"Monte Carlo: {m:,} samples a direction and panel, {seconds:.0f} s in all; in the paper 5·10⁸ on 60 "
        f"machines. The exact curves took {exact:.2f} s."
    )
    console.print(
        "Differences (orders: as the paper counts them / as it lists them): the list for T = 1563 has 549, not "
        "589; the paper's text has no σ for its figure; and at small ε, where δ is above 10⁻² or so, δ_B is "
        "above δ_P."
    )


def run(scale, out, console):
    some = SETTINGS[3:] if scale == "small" else SETTINGS
    panels = write(out, "privacy", [panel(setting, scale) for setting in some])
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
