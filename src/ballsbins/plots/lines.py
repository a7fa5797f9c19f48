"""A line for the best value, and a band for what is proved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ballsbins.bound import Bound
from ballsbins.plots.labels import Line
from ballsbins.plots.style import look

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]
_WIDE = 0.1  # in log: bounds farther apart are drawn as two lines, neither as if it were the value


def stacked(bounds: Sequence[Bound]) -> tuple[Array, Array, Array]:
    """Lower, value and upper of one bound a point."""
    lower, value, upper = np.array(
        [[float(bound.lower), float(bound.value), float(bound.upper)] for bound in bounds], dtype=np.float64
    ).T
    return lower, value, upper


def draw_bound(
    axes: Axes, x: Array, name: str, bound: tuple[Array, Array, Array], floor: float
) -> list[Line]:
    """Draw one curve on a logarithmic y axis; what is below `floor` is left out. Returns what to label."""
    lower, value, upper = bound
    style = look(name)
    shown = (upper >= floor) & np.isfinite(upper)
    if not shown.any():
        return []
    axes.fill_between(
        x,
        np.maximum(lower, 0.1 * floor),
        upper,
        where=shown.tolist(),
        color=style["color"],
        alpha=0.16,
        linewidth=0,
        zorder=1,
    )
    above = np.where(shown, upper, np.nan)
    gap = np.log(upper[shown]) - np.log(np.maximum(lower[shown], floor))
    if gap.max() <= _WIDE:
        middle = np.where(shown, np.maximum(value, 0.1 * floor), np.nan)
        axes.plot(x, middle, **style)
        return [Line(name, x, middle, style["color"])]
    below = np.where(lower >= floor, lower, np.nan)
    for edge in (below, above):
        axes.plot(x, edge, **(style | {"linewidth": 1.2}))
    if not np.isfinite(below).any():
        return [Line(f"{name}, at most", x, above, style["color"])]
    return [Line(f"{name}, at least", x, below, style["color"]), Line("", x, above, style["color"])]
