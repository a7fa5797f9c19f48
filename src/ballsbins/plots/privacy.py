"""δ against ε, a line for the best value and a band for what is proved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ballsbins.bound import Bound
from ballsbins.plots.style import look, new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]


def privacy_curves(
    epsilon: ArrayLike, curves: Mapping[str, Bound], *, title: str | None = None, floor: float = 1e-12
) -> Axes:
    """Curves δ(ε) by the name of their sampler; what is below `floor` is left out."""
    x = np.asarray(epsilon, dtype=np.float64)
    axes = new_axes(title, "ε", "δ")
    axes.set_yscale("log")
    ends: list[tuple[float, float, str]] = []
    for name, bound in curves.items():
        style = look(name)
        lower, value, upper = (np.asarray(part) for part in (bound.lower, bound.value, bound.upper))
        shown = upper >= floor
        if not shown.any():
            continue
        axes.fill_between(
            x, np.maximum(lower, 0.1 * floor), upper, color=style["color"], alpha=0.16, linewidth=0, zorder=1
        )
        wide = bool((np.log(upper[shown]) - np.log(np.maximum(lower[shown], floor))).max() > 0.5)
        if wide:  # only bounds are known: draw both, neither as if it were the value
            thin = style | {"linewidth": 1.2}
            axes.plot(x, np.where(lower >= floor, lower, np.nan), **thin)
            axes.plot(x, np.where(shown, upper, np.nan), **thin)
            last = _last(lower, floor)
            ends.append((x[last], float(lower[last]), f"{name}, at least"))
        else:
            axes.plot(x, np.where(shown, value, np.nan), **style)
            last = _last(value, floor)
            ends.append((x[last], float(value[last]), name))
    axes.set_xlim(float(x.min()), float(x.max()))
    bottom = min((y for _, y, _ in ends), default=floor)
    axes.set_ylim(max(floor, 10.0 ** np.floor(np.log10(max(bottom, floor)))), 1.6)
    _label(axes, ends, dict(curves))
    return axes


def _last(values: Array, floor: float) -> int:
    """The last point of a line that is still in the picture."""
    inside = np.flatnonzero(values >= floor)
    return int(inside[-1]) if inside.size else 0


def _label(axes: Axes, ends: list[tuple[float, float, str]], curves: Mapping[str, Bound]) -> None:
    """Names beside the ends of the lines, moved apart where they would overlap."""
    low, high = np.log10(axes.get_ylim())
    gap = 0.055 * (high - low)
    right = axes.get_xlim()[1]
    placed: list[float] = []
    for x, y, name in sorted(ends, key=lambda end: end[1]):
        at_edge = x >= right * 0.98
        height = float(np.log10(max(y, 10.0**low)))
        if at_edge:
            while any(abs(height - other) < gap for other in placed):
                height += 0.25 * gap
            placed.append(height)
        color = look(name.removesuffix(", at least"))["color"]
        axes.annotate(
            name,
            (right if at_edge else x, 10.0**height),
            xytext=(5, 0) if at_edge else (4, 4),
            textcoords="offset points",
            color=color,
            va="center" if at_edge else "bottom",
            ha="left",
            annotation_clip=False,
            fontsize=9.5,
        )
