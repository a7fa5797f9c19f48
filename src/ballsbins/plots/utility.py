"""What noise costs in quality: AUC against σ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ballsbins.plots.labels import Line, label_lines
from ballsbins.plots.style import look, new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]
_JOIN = 0.1  # σ: logarithmic below, linear above, as in the paper's figure
_DECADE = 0.1  # a decade below is as wide as 0.1 above


def auc_against_noise(
    series: Mapping[str, tuple[ArrayLike, ArrayLike, ArrayLike]],
    *,
    axes: Axes | None = None,
    title: str | None = None,
) -> Axes:
    """AUC with error bars, by the name of the sampler: σ, mean and error (one standard deviation, say) of each.

    σ is on a logarithmic scale below 0.1 and on a linear one above; σ = 0 (no noise) stands at the left end.
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
    """Where σ stands on the axis."""
    sigma = np.asarray(sigma, dtype=np.float64)
    low = _JOIN + _DECADE * np.log10(np.maximum(sigma, 1e-12) / _JOIN)
    return np.where(sigma >= _JOIN, sigma, low)


def _backward(place: Array) -> Array:
    place = np.asarray(place, dtype=np.float64)
    low = _JOIN * 10.0 ** ((np.minimum(place, _JOIN) - _JOIN) / _DECADE)
    return np.where(place >= _JOIN, place, low)


def _ticks(axes: Axes, least: float, largest: float, without: float | None) -> None:
    """Powers of ten below 0.1, round numbers above, and 0 where there is no noise."""
    decades = [10.0**k for k in range(int(np.floor(np.log10(least))), 0) if 10.0**k >= 0.99 * least]
    span = max(largest - _JOIN, 0.0)
    step = next(size for size in (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, np.inf) if span / size <= 6.0)
    linear = list(np.arange(step, largest + 1e-9, step)) if np.isfinite(step) else [largest]
    places = sorted({*decades, *(float(tick) for tick in linear if tick > 1.01 * _JOIN)})
    names = [f"$10^{{{round(np.log10(tick))}}}$" if tick < 0.99 * _JOIN else f"{tick:g}" for tick in places]
    if without is not None:
        places, names = [without, *places], ["0", *names]
    margin = 0.04
    first = float(_forward(np.array(places[0] if without is not None else least)))
    ends = _backward(np.array([first - margin, float(_forward(np.array(largest))) + margin]))
    axes.set_xlim(float(ends[0]), float(ends[1]))
    axes.set_xticks(places, names)
    axes.minorticks_off()
