"""The pictures: δ against ε; what noise, batch size and epochs cost; AUC against σ.

Lines and bands show computed values, and bars show sampled values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ballsbins.bound import Bound
from ballsbins.errors import InvalidInputError
from ballsbins.plots.lines import Line, draw_bound, label_lines, stacked
from ballsbins.plots.style import look, new_axes, number, number_axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]
_JOIN = 0.1  # σ: logarithmic below, linear above, as in the paper's figure
_LEVEL = "#444444"
_DECADE = 0.1  # one decade below it is drawn as wide as 0.1 above it


def privacy_curves(
    epsilon: ArrayLike,
    curves: Mapping[str, Bound],
    *,
    samples: Mapping[str, tuple[ArrayLike, Bound]] | None = None,
    delta: float | None = None,
    title: str | None = None,
    floor: float = 1e-12,
) -> Axes:
    """Curves δ(ε) by sampler name, with a line at `delta`; values below `floor` are left out.

    `samples` has Monte Carlo bounds for some of them, each with its own ε, drawn as bars from the lower to the upper
    bound.
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
    if delta is not None:
        lines.append(mark_delta(axes, delta))
    label_lines(axes, lines)
    return axes


def mark_delta(axes: Axes, delta: float) -> Line:
    """A dashed line at δ, with its name to be placed beside it."""
    axes.axhline(delta, color=_LEVEL, linestyle=(0, (4, 3)), linewidth=1.0, zorder=1)
    ends = np.array(axes.get_xlim())
    return Line(f"δ = {number(delta)}", ends, np.array([delta, delta]), _LEVEL)


def _bars(axes: Axes, name: str, at: ArrayLike, bound: Bound, floor: float) -> Line:
    """Bars with end caps, in the colour of their curve but dark enough to be seen on it."""
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
    return "Monte Carlo" + (
        f" (β = {number(float(f'{1.0 - bound.confidence:.2g}'))})" if bound.confidence < 1.0 else ""
    )


def epsilon_against_noise(
    noise: ArrayLike, curves: Mapping[str, Sequence[Bound]], *, title: str | None = None
) -> Axes:
    """ε at one δ against σ, by sampler name."""
    return _epsilon(noise, curves, title, "noise multiplier σ")


def epsilon_against_epochs(
    epochs: ArrayLike, curves: Mapping[str, Sequence[Bound]], *, title: str | None = None
) -> Axes:
    """ε at one δ against the number of epochs, by sampler name."""
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
    """The least σ that meets a target, against the expected batch size, by sampler name."""
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
    """Set limits and readable ticks, and add names."""
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


def auc_against_noise(
    series: Mapping[str, tuple[ArrayLike, ArrayLike, ArrayLike]],
    *,
    axes: Axes | None = None,
    title: str | None = None,
) -> Axes:
    """AUC with error bars, by sampler name: σ, mean and error (for example one standard deviation) of each.

    σ is on a logarithmic scale below 0.1 and on a linear one above; σ = 0 (no noise) is at the left end.
    """
    if axes is None:
        axes = new_axes(title, "noise multiplier σ", "AUC")
    columns = {
        name: np.array(sorted(zip(*(np.asarray(part, dtype=np.float64) for part in parts), strict=True))).T
        for name, parts in series.items()
    }
    every = np.concatenate([column[0] for column in columns.values()])
    positive = every[every > 0]
    least, largest = (float(positive.min()), float(positive.max())) if positive.size else (_JOIN, 2 * _JOIN)
    without = 0.1 * min(least, _JOIN) if (every == 0).any() else None
    axes.set_xscale("function", functions=(_forward, _backward))
    lines = []
    for shift, (name, (sigma, mean, error)) in enumerate(columns.items()):
        style = look(name)
        x = np.where(sigma > 0, sigma, 1.0 if without is None else without)
        x = _backward(_forward(x) + 0.004 * (shift - 0.5 * (len(columns) - 1)))  # side by side, not on top
        axes.errorbar(x, mean, yerr=error, marker="o", markersize=3.5, capsize=3, elinewidth=1.1, **style)
        lines.append(Line(name, x, mean, style["color"]))
        lines += [
            Line("", np.array([at, at]), np.array([middle - bar, middle + bar]), style["color"])
            for at, middle, bar in zip(x, mean, error, strict=True)
        ]
    _ticks(axes, least, largest, without)
    if least < _JOIN < largest:
        axes.axvline(_JOIN, color="#888888", linestyle=":", linewidth=1.0, zorder=1)
    label_lines(axes, lines)
    return axes


def _forward(sigma: Array) -> Array:
    """The position of σ on the axis."""
    sigma = np.asarray(sigma, dtype=np.float64)
    low = _JOIN + _DECADE * np.log10(np.maximum(sigma, 1e-12) / _JOIN)
    return np.where(sigma >= _JOIN, sigma, low)


def _backward(place: Array) -> Array:
    place = np.asarray(place, dtype=np.float64)
    low = _JOIN * 10.0 ** ((np.minimum(place, _JOIN) - _JOIN) / _DECADE)
    return np.where(place >= _JOIN, place, low)


def _ticks(axes: Axes, least: float, largest: float, without: float | None) -> None:
    """Ticks at powers of ten below 0.1, at round numbers above, and at 0 if there is a run without noise."""
    decades = [10.0**k for k in range(int(np.floor(np.log10(least))), 0) if 10.0**k >= 0.99 * least]
    span = max(largest - _JOIN, 0.0)
    step = next(size for size in (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, np.inf) if span / size <= 6.0)
    linear = list(np.arange(step, largest + 1e-9, step)) if np.isfinite(step) else [largest]
    places = sorted({*decades, *(float(tick) for tick in linear if tick > 1.01 * _JOIN)})
    names = [number(float(f"{tick:.6g}")) for tick in places]
    if without is not None:
        places, names = [without, *places], ["0", *names]
    margin = 0.04
    first = float(_forward(np.array(places[0] if without is not None else least)))
    ends = _backward(np.array([first - margin, float(_forward(np.array(largest))) + margin]))
    axes.set_xlim(float(ends[0]), float(ends[1]))
    axes.set_xticks(places, names)
    axes.minorticks_off()
