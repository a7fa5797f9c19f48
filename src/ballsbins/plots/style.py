"""One look for all pictures: colour-blind-safe colours, direct labels, readable at 600 pixels."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import ascii_lowercase
from typing import TYPE_CHECKING, Any

from ballsbins import _extras
from ballsbins.errors import InvalidInputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

# Okabe and Ito's palette; samplers keep their colour and dash in every picture
LOOKS: Mapping[str, Mapping[str, Any]] = {
    "balls-and-bins": {"color": "#0072B2", "linestyle": "-", "linewidth": 2.2, "zorder": 4},
    "balls-and-bins (fixed bins)": {
        "color": "#3A93C7",  # a shade darker than the palette's sky blue: its name must be readable on white
        "linestyle": (0, (5, 1, 1, 1)),
        "linewidth": 1.8,
        "zorder": 3,
    },
    "Poisson": {"color": "#D55E00", "linestyle": "--", "linewidth": 1.8, "zorder": 3},
    "shuffle": {"color": "#009E73", "linestyle": "-.", "linewidth": 1.5, "zorder": 2},
    "deterministic": {"color": "#555555", "linestyle": ":", "linewidth": 1.8, "zorder": 2},
}
_OTHER: Mapping[str, Any] = {"color": "#CC79A7", "linestyle": "-", "linewidth": 1.8, "zorder": 3}
_TITLE = 64  # number of title characters that fit the width of a picture
_SYMBOL = 1  # maximum length of a label that stands upright: ε, δ
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_SETTINGS: Mapping[str, Any] = {
    "figure.figsize": (6.4, 4.2),
    "figure.dpi": 120,
    "savefig.dpi": 200,
    "font.size": 10.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "svg.hashsalt": "ballsbins",  # makes the same picture give the same file
    "path.simplify": True,
}


def look(name: str) -> dict[str, Any]:
    """How to draw the line of this name; text after a comma is a remark."""
    return dict(LOOKS.get(name.partition(",")[0], _OTHER))


def new_axes(title: str | None, x: str, y: str) -> Axes:
    """Empty axes in our style, not attached to any window."""
    return new_panels([title], x, y)[0]


def new_panels(titles: Sequence[str | None], x: str, y: str, columns: int = 2) -> list[Axes]:
    """A figure of several axes in our style, one per title, with letters; `save` any of them to save all."""
    matplotlib = _extras.load("matplotlib", feature="Drawing pictures", extra="plots")
    figure_module = _extras.load("matplotlib.figure", feature="Drawing pictures", extra="plots")
    width = min(columns, len(titles))
    rows = -(-len(titles) // width)
    with matplotlib.rc_context(dict(_SETTINGS)):
        one = matplotlib.rcParams["figure.figsize"]
        scale = 1.0 if len(titles) == 1 else 0.68  # two panels side by side must be readable at page width
        size = (scale * width * one[0], scale * rows * one[1])
        figure = figure_module.Figure(figsize=size, layout="constrained")
        panels: list[Axes] = []
        for position, title in enumerate(titles):
            axes = figure.add_subplot(rows, width, position + 1)
            axes.set_xlabel(x)
            upright = {"rotation": 0, "labelpad": 10, "va": "center"} if len(y) <= _SYMBOL else {}
            axes.set_ylabel(y, **upright)
            letter = "" if len(titles) == 1 else f"{ascii_lowercase[position]}   "
            if title:
                wide = _TITLE if width == 1 else _TITLE * 2 // 3  # a longer line would be cut off
                axes.set_title(letter + "\n".join(textwrap.fill(line, wide) for line in title.split("\n")))
            panels.append(axes)
    return panels


def number_axis(axis: Axis) -> None:
    """Readable ticks for a logarithmic axis: 1, 2, 5 over few decades, powers of ten over many."""
    ticker = _extras.load("matplotlib.ticker", feature="Drawing pictures", extra="plots")
    low, high = axis.get_view_interval()
    decades = math.log10(high / low)
    if decades <= 3.2:
        axis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
    else:
        axis.set_major_locator(ticker.LogLocator(numticks=9))
    axis.set_minor_formatter(ticker.NullFormatter())
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: number(value)))


def number(value: float) -> str:
    """A number as all pictures write it: 0.05, 2, 10,000, 10⁻⁶, 2·10⁻⁶."""
    if value == 0.0 or 0.999e-3 <= abs(value) <= 1.001e6:
        return f"{value:,.0f}" if abs(value) >= 1.0 and value == round(value) else f"{value:g}"
    digits, _, exponent = f"{value:.3e}".partition("e")
    digits = digits.rstrip("0").rstrip(".")
    power = f"10{str(int(exponent)).translate(_RAISED)}"
    return power if digits == "1" else f"{digits}·{power}"


def save(axes: Axes, path: Path | str) -> None:
    """Write the figure of these axes; the file name's suffix decides the format."""
    matplotlib = _extras.load("matplotlib", feature="Drawing pictures", extra="plots")
    target = Path(path)
    metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(target.suffix.lower())
    try:
        with matplotlib.rc_context(dict(_SETTINGS)):
            axes.get_figure(root=True).savefig(target, metadata=metadata)  # type: ignore[union-attr]
    except OSError as error:
        bound = f"a file that can be written ({error.strerror})"
        raise InvalidInputError("the file", str(target), bound, "Choose another path.") from None
