"""What noise, batch size and epochs cost: ε against σ, σ against batch size, ε against epochs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from ballsbins.bound import Bound
from ballsbins.errors import InvalidInputError
from ballsbins.plots.labels import Line, label_lines
from ballsbins.plots.lines import draw_bound, stacked
from ballsbins.plots.style import look, new_axes, number_axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def epsilon_against_noise(
    noise: ArrayLike, curves: Mapping[str, Sequence[Bound]], *, title: str | None = None
) -> Axes:
    """ε at one δ against σ, by the name of the sampler."""
    return _epsilon(noise, curves, title, "noise multiplier σ")


def epsilon_against_epochs(
    epochs: ArrayLike, curves: Mapping[str, Sequence[Bound]], *, title: str | None = None
) -> Axes:
    """ε at one δ against the number of epochs, by the name of the sampler."""
    return _epsilon(epochs, curves, title, "epochs")


def _epsilon(at: ArrayLike, curves: Mapping[str, Sequence[Bound]], title: str | None, label: str) -> Axes:
    x = np.asarray(at, dtype=np.float64)
    axes = new_axes(title, label, "ε")
    axes.set_xscale("log")
    axes.set_yscale("log")
    lines: list[Line] = []
    for name, bounds in curves.items():
        lines += draw_bound(axes, x, name, stacked(bounds), floor=1e-3)
    return _finished(axes, x, lines)


def noise_against_batch_size(
    sizes: ArrayLike, noise: Mapping[str, ArrayLike], *, title: str | None = None
) -> Axes:
    """The least σ that meets a target, against the expected batch size, by the name of the sampler."""
    x = np.asarray(sizes, dtype=np.float64)
    axes = new_axes(title, "expected batch size", "noise multiplier σ")
    axes.set_xscale("log")
    axes.set_yscale("log")
    lines = []
    for name, values in noise.items():
        y, style = np.asarray(values, dtype=np.float64), look(name)
        axes.plot(x, y, **style)
        lines.append(Line(name, x, y, style["color"]))
    return _finished(axes, x, lines)


def _finished(axes: Axes, x: np.ndarray, lines: list[Line]) -> Axes:
    """Limits, ticks that can be read, and names."""
    axes.set_xlim(float(x.min()), float(x.max()))
    every = np.concatenate([np.zeros(0), *(line.y[np.isfinite(line.y) & (line.y > 0)] for line in lines)])
    if not every.size:
        advice = "Nothing is left to draw; choose another range."
        raise InvalidInputError("the number of points", 0, "at least 1", advice)
    axes.set_ylim(0.8 * float(every.min()), 1.3 * float(every.max()))
    number_axis(axes.xaxis)
    number_axis(axes.yaxis)
    label_lines(axes, lines)
    return axes
