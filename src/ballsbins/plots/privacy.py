"""δ against ε: lines and bands for what is computed, bars for what was sampled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from ballsbins.bound import Bound
from ballsbins.plots.labels import Line, label_lines
from ballsbins.plots.lines import draw_bound
from ballsbins.plots.style import look, new_axes, number_axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def privacy_curves(
    epsilon: ArrayLike,
    curves: Mapping[str, Bound],
    *,
    samples: Mapping[str, tuple[ArrayLike, Bound]] | None = None,
    title: str | None = None,
    floor: float = 1e-12,
) -> Axes:
    """Curves δ(ε) by the name of their sampler; what is below `floor` is left out.

    `samples` has Monte Carlo bounds on some of them, each with its own ε: bars from the lower to the upper bound.
    """
    x = np.asarray(epsilon, dtype=np.float64)
    axes = new_axes(title, "ε", "δ")
    axes.set_yscale("log")
    lines: list[Line] = []
    for name, bound in curves.items():
        parts = (np.asarray(bound.lower), np.asarray(bound.value), np.asarray(bound.upper))
        lines += draw_bound(axes, x, name, parts, floor)
    sampled = samples or {}
    for name, (at, bound) in sampled.items():
        remark = "" if len(sampled) == 1 and name in curves else f"{name}, "
        lines.append(_bars(axes, name, at, bound, floor)._replace(name=f"{remark}{_sampled(bound)}"))
    axes.set_xlim(float(x.min()), float(x.max()))
    lowest = [line.y[np.isfinite(line.y)].min() for line in lines if np.isfinite(line.y).any()]
    bottom = max(min(lowest, default=floor), floor)
    axes.set_ylim(10.0 ** np.floor(np.log10(bottom)), 1.6)
    number_axis(axes.yaxis)
    label_lines(axes, lines)
    return axes


def _bars(axes: Axes, name: str, at: ArrayLike, bound: Bound, floor: float) -> Line:
    """Bars with ends, in the colour of their curve but dark enough to be seen on it."""
    x, value = np.asarray(at, dtype=np.float64), np.asarray(bound.value, dtype=np.float64)
    lower, upper = np.maximum(np.asarray(bound.lower), 0.1 * floor), np.asarray(bound.upper)
    shown = upper >= floor
    middle = np.clip(value, lower, upper)
    color = "#000000" if name in ("balls-and-bins", "balls-and-bins (fixed bins)") else look(name)["color"]
    axes.errorbar(
        x[shown],
        middle[shown],
        yerr=np.stack([middle - lower, upper - middle])[:, shown],
        fmt="o",
        markersize=3,
        color=color,
        elinewidth=1.2,
        capsize=3.5,
        zorder=5,
    )
    return Line(name, x[shown], middle[shown], color)


def _sampled(bound: Bound) -> str:
    return "Monte Carlo" + (f" (β = {1.0 - bound.confidence:.2g})" if bound.confidence < 1.0 else "")
