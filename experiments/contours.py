"""The contours on which δ of one epoch is computed, as the accountant lays them: the figure of docs/accounting.md.

a: the put (direction `add`) on a path through its saddle. b: the call (`remove`) where the tail is heavy, on the
branch cut: what each node contributes. c: the call in the central-limit regime, on the cut as far as the integrand
falls, then up into the plane. d: the path for the transform L on the cut, in the plane of its own variable X: along
the real axis to the larger saddle, then down on the path of steepest descent. Everything comes from the accountant's
own classes. Each value is compared with the accountant's answer; the lift also with parity, along another contour.
"""

from __future__ import annotations

import math

import numpy as np

from ballsbins import BallsAndBins, Mechanism
from ballsbins.accounting.one_epoch.basket import Basket
from ballsbins.accounting.one_epoch.call import CutLattice, LiftContour
from ballsbins.accounting.one_epoch.contours import PutContour
from ballsbins.accounting.one_epoch.cut import larger_root
from ballsbins.accounting.one_epoch.quadrature import Strikes
from ballsbins.plots.style import new_panels, number
from ballsbins.reproduce import claim, draw, write

PUT = (1.0, 100, 0.5)  # σ, T, ε
CUT = (0.35, 1000, (6.0, 10.0, 14.0))
LIFT = (2.0, 1000, 0.06)
RHO = (0.001, 0.03, 0.3)
SHADES = {"small": (24, 16), "quick": (72, 48), "full": (144, 96)}  # points of the background, across and up
DEEPEST = -12.0  # powers of ten below the largest that are told apart
ALIKE = 1e-9  # relative difference of two ways to the same number
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#555555"


def rounded(numbers):
    return [float(f"{x:.5g}") for x in np.ravel(numbers)]


def background(basket, strikes, left, right, top, count):
    """Log₁₀ of the integrand's modulus over a part of the upper half plane, relative to the largest within it."""
    across, up = np.linspace(left, right, count[0]), np.linspace(0.0, top, count[1])
    omega = (across[None, :] + 1j * np.maximum(up, 1e-3 * top)[:, None]).ravel()
    total, plain = basket.exponent(omega)
    drift = omega * (basket.size * float(strikes.k_minus_1[0]) + plain)
    size = ((drift + total).real - 2.0 * np.log(np.abs(omega))) / math.log(10.0)
    return {
        "across": rounded(across), "up": rounded(up),
        "log10_size": [round(float(x), 2) for x in size],
    }  # fmt: skip


def put(count):
    sigma, steps, epsilon = PUT
    basket, strikes = Basket(((steps, sigma),)), Strikes.from_log(np.array([-epsilon]))
    contour = PutContour.through(basket, strikes)[0]
    omega = contour.nodes.omega
    start = float(omega[0].real)
    reach = float(np.abs(omega.imag[: len(omega) * 5 // 6]).max())
    return {
        "noise_multiplier": sigma, "steps": steps, "epsilon": epsilon, "saddle": start,
        "path": [rounded(omega.real), rounded(omega.imag)],
        "background": background(basket, strikes, -0.6 * reach, start + 0.7 * reach, reach, count),
        "log_delta": float(contour(strikes).log[0]) + epsilon,
    }  # fmt: skip


def cut():
    sigma, steps, epsilons = CUT
    basket, strikes = Basket(((steps, sigma),)), Strikes.from_log(np.array(epsilons))
    with np.errstate(divide="ignore"):  # the sine of a phase may be 0
        lattice = CutLattice.covering(basket, strikes)
    modulus, _ = lattice.exponents(strikes)
    terms = (
        np.exp(modulus + lattice.log_sine - (modulus + lattice.log_sine).max(axis=1)[:, None]) * lattice.sign
    )
    seen = (np.abs(terms) > 1e-4).any(axis=0)
    return {
        "noise_multiplier": sigma, "steps": steps, "epsilon": epsilons, "log_r": rounded(lattice.log_r[seen]),
        "terms": [rounded(row) for row in terms[:, seen]], "log_delta": lattice(strikes).log.tolist(),
    }  # fmt: skip


def lift(count):
    sigma, steps, epsilon = LIFT
    basket, strikes = Basket(((steps, sigma),)), Strikes.from_log(np.array([epsilon]))
    with np.errstate(divide="ignore"):
        lattice = CutLattice.covering(basket, strikes)
    _, _, leave = lattice.explore(strikes)
    contour = LiftContour(basket, strikes, float(leave[0]), lattice)
    omega, log_r = contour.fine.omega, contour.cut_fine[0]
    start = float(omega.real.max())
    reach = 0.8 * float(np.abs(omega.imag).max())
    return {
        "noise_multiplier": sigma, "steps": steps, "epsilon": epsilon, "leaves_at": start,
        "path": [rounded(omega.real), rounded(omega.imag)], "on_cut": rounded(-np.exp(log_r)),
        "background": background(basket, strikes, 2.2 * start, -0.8 * start, reach, count),
        "log_delta": float(contour(strikes).log[0]),
        "log_delta_by_parity": float(
            np.log(np.exp(PutContour.through(basket, strikes, step=0.025)[0](strikes).log[0]) - strikes.k_minus_1[0])
        ),
    }  # fmt: skip


def descents():
    """X = a − ib with ρ·e^a·sin b = a·b: from the larger saddle X₂, where b = 0, down to b = π."""
    b = np.linspace(0.0, math.pi, 60)[:-1]
    shrink = np.log(np.sinc(b / math.pi))
    return [
        {"rho": rho, "a": rounded(larger_root(-(math.log(rho) + shrink))), "b": rounded(b)} for rho in RHO
    ]


def plane(axes, part, label):
    """The integrand's size as a background, with a scale that says how much of it matters."""
    ground = part["background"]
    size = np.array(ground["log10_size"]).reshape(len(ground["up"]), len(ground["across"]))
    start = part.get("saddle", part.get("leaves_at"))
    top = size[0, int(np.argmin(np.abs(np.array(ground["across"]) - start)))]
    levels = np.arange(DEEPEST, 7.0, 2.0)
    axes.contourf(
        ground["across"], ground["up"], np.clip(size - top, DEEPEST, 6.0), levels, cmap="Greys_r", extend="both",
        alpha=0.75,
    )  # fmt: skip
    axes.plot(*part["path"], "o-", color=BLUE, markersize=3, linewidth=1.4, label=label)
    axes.axhline(0.0, color=ORANGE, linewidth=0.8)
    axes.set_xlim(ground["across"][0], ground["across"][-1])
    axes.set_ylim(-0.06 * ground["up"][-1], ground["up"][-1])
    axes.set_xlabel("Re ω")
    axes.set_ylabel("Im ω", rotation=90, labelpad=3, va="bottom")
    axes.grid(visible=False)


def picture(result):
    """Four panels: the put, the cut, the lift, and the path of the transform on the cut."""
    titles = (
        "the put: through its saddle\n(darker: smaller integrand)",
        "the call, heavy tail: along the cut\n(what each node contributes)",
        "the call, many steps: off the cut\n(darker: smaller integrand)",
        "the transform on the cut\n(its path, for three ρ)",
    )
    panels = new_panels(titles, "", "")
    one, two, three, four = panels
    plane(one, result["put"], "path")
    saddle = result["put"]["saddle"]
    one.plot([saddle], [0.0], "D", color=ORANGE, markersize=6, zorder=5)
    one.annotate("saddle", (saddle, 0.0), xytext=(6, 6), textcoords="offset points", color=ORANGE, fontsize=9)
    for terms, epsilon, color in zip(
        result["cut"]["terms"], result["cut"]["epsilon"], (GREEN, BLUE, GREY), strict=True
    ):
        two.plot(result["cut"]["log_r"], terms, "o-", color=color, markersize=2.5, linewidth=1.2)
        peak = int(np.argmax(terms))
        two.annotate(
            f"ε = {number(epsilon)}", (result["cut"]["log_r"][peak], 1.0), xytext=(0, 4), textcoords="offset points",
            color=color, fontsize=9, ha="center",
        )  # fmt: skip
    two.set_xlabel("log r, at ω = −r + i0")
    two.set_ylabel("share of the largest", rotation=90, labelpad=3, va="bottom")
    two.set_ylim(None, 1.16)
    plane(three, result["lift"], "path")
    three.plot(
        result["lift"]["on_cut"], np.zeros(len(result["lift"]["on_cut"])), "o", color=GREEN, markersize=3
    )
    three.annotate(
        "on the cut", (0.45 * result["lift"]["leaves_at"], 0.0), xytext=(0, 7), textcoords="offset points",
        color=GREEN, fontsize=9, ha="center",
    )  # fmt: skip
    for each, color in zip(result["descents"], (GREEN, BLUE, GREY), strict=True):
        a, b = each["a"], each["b"]
        four.plot([-2.0, a[0]], [0.0, 0.0], color=color, linewidth=1.4)
        four.plot(a, [-value for value in b], color=color, linewidth=1.4)
        four.plot([a[0]], [0.0], "D", color=ORANGE, markersize=5, zorder=5)
        four.annotate(
            f"ρ = {each['rho']:g}",
            (a[0], 0.0),
            xytext=(6, -13),
            textcoords="offset points",
            color=color,
            fontsize=9,
        )
    four.axhline(-math.pi, color=GREY, linestyle=":", linewidth=1.0)
    four.set_xlim(-2.0, 15.0)
    four.set_yticks([-math.pi, -0.5 * math.pi, 0.0], ["−π", "−π/2", "0"])
    four.set_xlabel("Re X")
    four.set_ylabel("Im X", rotation=90, labelpad=3, va="bottom")
    return panels[0]


def run(scale, out, console):
    count = SHADES[scale]
    result = write(
        out, "contours", {"put": put(count), "cut": cut(), "lift": lift(count), "descents": descents()}
    )
    draw(out, "contours", picture(result))
    checks = []
    for name, direction in (("put", "add"), ("cut", "remove"), ("lift", "remove")):
        part = result[name]
        run_ = Mechanism(BallsAndBins(part["steps"]), part["noise_multiplier"])
        found = run_.delta(np.atleast_1d(part["epsilon"])).directions[direction]
        mine = np.exp(np.atleast_1d(part["log_delta"]))
        checks.append(np.max(np.abs(mine / np.asarray(found.value) - 1.0)))
        console.print(
            f"{name}: δ of direction {direction} = {', '.join(f'{x:.10g}' for x in mine)}", highlight=False
        )
    claim(console, "δ on each contour shown is the accountant's", max(checks) < ALIKE)
    gap = abs(math.expm1(result["lift"]["log_delta"] - result["lift"]["log_delta_by_parity"]))
    claim(
        console,
        f"off the cut and by parity with a put: the same δ (relative difference {gap:.1e})",
        gap < 1e-6,
    )
