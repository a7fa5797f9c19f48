"""The picture of δ(ε): an empty Bokeh figure whose named parts the browser fills and colours (assets/chart.js)."""

from __future__ import annotations

import json

from ballsbins import _extras
from ballsbins.web.markup import DASHES

FEATURE, EXTRA = "The web page", "web"
_HEIGHT = 380


def library() -> str:
    """BokehJS, out of the installed Python package: no other machine is asked for it."""
    resources = _extras.load("bokeh.resources", feature=FEATURE, extra=EXTRA)
    (source,) = resources.Resources(mode="inline", components=["bokeh"], log_level="error").js_raw[:1]
    return str(source)


def version() -> str:
    """Of Bokeh."""
    return str(_extras.load("bokeh", feature=FEATURE, extra=EXTRA).__version__)


def figure_json(inks: list[int]) -> str:
    """A figure with one line and band for each number of a colour, as BokehJS reads it."""
    plotting = _extras.load("bokeh.plotting", feature=FEATURE, extra=EXTRA)
    models = _extras.load("bokeh.models", feature=FEATURE, extra=EXTRA)
    embed = _extras.load("bokeh.embed", feature=FEATURE, extra=EXTRA)
    figure = plotting.figure(
        name="figure",
        height=_HEIGHT,
        sizing_mode="stretch_width",
        y_axis_type="log",
        x_range=models.Range1d(0.0, 1.0),
        y_range=models.Range1d(1e-8, 1.0),
        x_axis_label="ε",
        y_axis_label="δ",
        tools="xpan,xwheel_zoom,xbox_zoom,reset",
        active_scroll=None,
        active_drag=None,
        toolbar_location=None,
        min_border_right=16,
        background_fill_color=None,  # the page colours it, light or dark
        border_fill_color=None,
        outline_line_color=None,
    )
    figure.ygrid.ticker = models.LogTicker(desired_num_ticks=6)
    figure.yaxis.ticker = models.LogTicker(desired_num_ticks=6, num_minor_ticks=0)
    given = models.Span(name="given", location=1e-6, dimension="width", line_dash=[4, 4], line_width=1)
    figure.add_layout(given)
    lines = []
    for position, ink in enumerate(inks):
        source = models.ColumnDataSource(
            data={name: [] for name in ("epsilon", "lower", "least", "upper", "at", "at_most", "name")},
            name=f"curve-{position}",
        )
        figure.varea("epsilon", "lower", "upper", source=source, fill_alpha=0.14, name=f"band-{position}")
        figure.line("epsilon", "least", source=source, line_width=1.2, name=f"least-{position}")
        line = figure.line(
            "epsilon",
            "upper",
            source=source,
            line_width=2.4 if position == 0 else 1.8,
            line_dash=list(DASHES[ink]),
            name=f"line-{position}",
        )
        lines.append(line)
        answer = models.ColumnDataSource(data={"epsilon": [], "delta": []}, name=f"answer-{position}")
        figure.scatter(
            "epsilon", "delta", source=answer, size=8, line_width=2, line_color=None, name=f"dot-{position}"
        )
    figure.add_tools(
        models.HoverTool(
            renderers=lines,
            mode="mouse",
            line_policy="nearest",
            tooltips=[("", "@name"), ("ε", "@at"), ("δ at most", "@at_most")],
        )
    )
    return json.dumps(embed.json_item(figure), separators=(",", ":"))
