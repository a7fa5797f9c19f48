"""Lines of a picture: the best value, a band between the proved bounds, and names beside the lines, not a legend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ballsbins.bound import Bound
from ballsbins.plots.style import look

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]
_WIDE = 0.1  # difference in log δ: bounds farther apart than this are drawn as two lines
_SPOTS = 40  # places along a line to try for its name
_PAD = 1.0  # points of clear space around a name
_GAP = 4.0  # points between a line and its name
_SIDES = ((1, 1), (-1, -1), (1, -1), (-1, 1), (0, 1), (0, -1))  # right above, left below, …, above, below


class Line(NamedTuple):
    """A drawn line in data units, and its name. A line without a name is not labelled, but names avoid it."""

    name: str
    x: Array
    y: Array
    color: str


def stacked(bounds: Sequence[Bound]) -> tuple[Array, Array, Array]:
    """Lower, value and upper of the bounds, one bound per point."""
    lower, value, upper = np.array(
        [[float(bound.lower), float(bound.value), float(bound.upper)] for bound in bounds], dtype=np.float64
    ).T
    return lower, value, upper


def draw_bound(
    axes: Axes, x: Array, name: str, bound: tuple[Array, Array, Array], floor: float
) -> list[Line]:
    """Draw one curve on a logarithmic y axis, without values below `floor`. Returns the line to label."""
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


def label_lines(axes: Axes, lines: Sequence[Line], fontsize: float = 9.5) -> None:
    """Write every name once, at the place nearest to its own line that covers neither a line nor a name.

    Call it last: the limits and scales of the axes must not change after it.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()  # fixes the layout
    frame = axes.get_window_extent()
    paths = [_path(axes, line) for line in lines]
    taken: list[Array] = []
    gap = _GAP * figure.dpi / 72.0
    for number, line in enumerate(lines):
        inside = paths[number][_within(paths[number], (frame.x0, frame.y0, frame.x1, frame.y1))]
        if not line.name or not len(inside):
            continue
        text = axes.text(
            0.0,
            0.0,
            line.name,
            color=line.color,
            fontsize=fontsize,
            ha="center",
            va="center",
            zorder=6,
            bbox={"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": _PAD},
        )
        text.set_in_layout(False)
        extent = text.get_window_extent()
        half = np.array([extent.width, extent.height]) / 2.0 + _PAD * figure.dpi / 72.0
        spots = inside[np.linspace(0, len(inside) - 1, _SPOTS).round().astype(int)]
        rivals = [paths[k] for k, other in enumerate(lines) if k != number and other.name and len(paths[k])]
        best = min(
            (
                spot + np.array(side) * (half + gap * np.array([0.6, 0.35]))
                for spot in spots
                for side in _SIDES
            ),
            key=lambda center: _cost(center, half, paths[number], rivals, paths, taken, frame),
        )
        taken.append(np.concatenate([best - half, best + half]))
        x, y = axes.transData.inverted().transform(best)
        text.set_position((float(x), float(y)))


def _path(axes: Axes, line: Line) -> Array:
    """The line as closely spaced points on the screen."""
    points = np.column_stack([line.x, line.y]).astype(np.float64)
    points = points[np.isfinite(points).all(axis=1)]
    if axes.get_yscale() == "log":
        points = points[points[:, 1] > 0]
    screen: Array = axes.transData.transform(points)
    screen = screen[np.isfinite(screen).all(axis=1)]
    if len(screen) < 2:
        return screen
    along = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(screen, axis=0).T))])
    at = np.linspace(0.0, along[-1], 2 + int(along[-1] / 2.0))  # every other pixel
    return np.column_stack([np.interp(at, along, screen[:, 0]), np.interp(at, along, screen[:, 1])])


def _within(points: Array, box: tuple[float, float, float, float] | Array) -> NDArray[np.bool_]:
    return (
        (points[:, 0] >= box[0])
        & (points[:, 1] >= box[1])
        & (points[:, 0] <= box[2])
        & (points[:, 1] <= box[3])
    )


def _cost(
    center: Array,
    half: Array,
    own: Array,
    rivals: list[Array],
    every: list[Array],
    taken: list[Array],
    frame: Any,
) -> float:
    """How bad a place is: what it covers, and how much nearer another line is than its own."""
    low, high = center - half, center + half
    if low[0] < frame.x0 or low[1] < frame.y0 or high[0] > frame.x1 or high[1] > frame.y1:
        return np.inf
    box = np.concatenate([low, high])
    covered = float(sum(_within(path, box).sum() for path in every))
    for other in taken:
        overlap = np.minimum(high, other[2:]) - np.maximum(low, other[:2])
        if (overlap > -half[1]).all():  # keep at least half a line between two names
            covered += 1000.0
    near = _distance(own, box)
    confusing = sum(max(0.0, 2.0 * near + 6.0 - _distance(path, box)) for path in rivals)
    # prefer the top right slightly, where lines are further apart
    return 20.0 * covered + 3.0 * confusing + near - 0.004 * float(center[0]) - 0.02 * float(center[1])


def _distance(path: Array, box: Array) -> float:
    """The least distance between a line and a box."""
    beyond = np.maximum(np.maximum(box[:2] - path, path - box[2:]), 0.0)
    return float(np.hypot(beyond[:, 0], beyond[:, 1]).min())
