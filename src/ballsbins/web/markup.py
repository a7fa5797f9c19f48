"""Answers as HTML, and the picture of δ(ε): an empty Bokeh figure that the browser fills (assets/chart.js).

The live page and the exported one show the same, because both take it from here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files

from ballsbins import _extras
from ballsbins.ask import interval
from ballsbins.report import Statement
from ballsbins.report.numbers import how, stated, up
from ballsbins.web.answers import Calibrated, Row

FEATURE, EXTRA = "The web page", "web"
_HEIGHT = 380
INKS = 7  # colours that the style sheet has, --ink-0 … --ink-6
_SAMPLERS = {
    "balls-and-bins": 0,
    "Poisson": 1,
    "shuffle": 2,
    "deterministic": 3,
    "balls-and-bins (fixed bins)": 4,
}
# the lengths of dash and gap, as in the printed pictures
DASHES: Sequence[tuple[int, ...]] = ((), (7, 4), (8, 3, 2, 3), (2, 3), (9, 2, 2, 2), (10, 3), (4, 2))


def asset(name: str) -> str:
    """One of our own files."""
    return (files("ballsbins.web") / "assets" / name).read_text(encoding="utf-8")


def ink_of(name: str, position: int) -> int:
    """The number of the colour and dash of a run: that of its sampler, in every picture, or the next one."""
    return _SAMPLERS.get(name, position % INKS)


def swatch(ink: int) -> str:
    """A piece of the line, to tell which one is meant."""
    dash = " ".join(map(str, DASHES[ink]))
    return (
        f'<svg class="swatch" viewBox="0 0 30 8" aria-hidden="true"><line x1="0" y1="4" x2="30" y2="4" '
        f'stroke="var(--ink-{ink})" stroke-dasharray="{dash}"/></svg>'
    )


def row_html(row: Row, ink: int, *, delta: bool = False) -> str:
    """A line of the table of runs, with its δ where not all have the same."""
    at = f"at δ = {stated(row.delta)}, " if delta else ""
    return (
        f'<th scope="row">{swatch(ink)}<span>{escape(row.name)}</span></th>'
        f'<td class="number">{escape(interval(row.bound))}</td>'
        f'<td class="method">{at}{escape(how(row.bound))}</td>'
    )


def headline_html(row: Row) -> str:
    """The one number that was asked for."""
    return (
        f'<p class="epsilon"><span class="symbol">ε ≤</span> <output>{up(row.upper, 5)}</output></p>'
        f'<p class="given">at δ = {stated(row.delta)} · {escape(how(row.bound))}</p>'
        f'<p class="run">{escape(row.run)}</p>'
    )


def calibrated_html(found: Calibrated) -> str:
    """The noise that a target needs."""
    return (
        f'<p class="epsilon"><span class="symbol">σ =</span> <output>{up(found.noise_multiplier, 5)}</output></p>'
        f'<p class="given">is the least noise for ε ≤ {stated(found.target)} at δ = {stated(found.delta)}</p>'
    )


def statement_html(statement: Statement) -> str:
    """The statement, with its sections under headings."""
    parts = [f'<p class="claim">{escape(statement.headline)}</p>']
    for section in statement.sections:
        items = "".join(
            f"<div><dt>{escape(item.label)}</dt><dd>{_code(escape(item.text))}</dd></div>"
            for item in section.items
        )
        parts.append(f"<section><h3>{escape(section.title)}</h3><dl>{items}</dl></section>")
    return "".join(parts)


def _code(text: str) -> str:
    """What stands between backticks is to be typed."""
    parts = text.split("`")
    return "".join(f"<code>{part}</code>" if odd % 2 else part for odd, part in enumerate(parts))


def bokeh_library() -> str:
    """BokehJS, out of the installed Python package: no other machine is asked for it."""
    resources = _extras.load("bokeh.resources", feature=FEATURE, extra=EXTRA)
    (source,) = resources.Resources(mode="inline", components=["bokeh"], log_level="error").js_raw[:1]
    return str(source)


def bokeh_version() -> str:
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
