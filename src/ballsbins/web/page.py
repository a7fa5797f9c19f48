"""The static page: curves, table and statement of given runs in one HTML file that needs nothing else to be read."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from string import Template
from typing import Any

from ballsbins.report import Statement, words
from ballsbins.web import chart, markup
from ballsbins.web.answers import Points, Row

_CLOSE = 0.05  # bounds on log δ closer than this are drawn as one line


@dataclass(frozen=True)
class Run:
    """What the page shows of one run; no statement for those that are there to compare with only."""

    row: Row
    points: Points
    statement: Statement | None = None


def page(title: str, runs: Sequence[Run], note: str = "") -> str:
    """The whole file."""
    inks = [markup.ink_of(run.row.name, position) for position, run in enumerate(runs)]
    stated = [run for run in runs if run.statement is not None]
    several = len(stated) > 1
    deltas = sorted({run.row.delta for run in runs})
    rows = "".join(
        f"<tr>{markup.row_html(run.row, ink, delta=len(deltas) > 1)}</tr>"
        for run, ink in zip(runs, inks, strict=True)
    )
    data = {
        "curves": [
            curve_data(run.row, run.points, ink, position)
            for position, (run, ink) in enumerate(zip(runs, inks, strict=True))
        ],
        "delta": deltas[0],
        "statements": [
            {"markdown": run.statement.markdown(), "text": run.statement.text()}
            for run in stated
            if run.statement is not None
        ],
    }
    scripts = [
        chart.library(),
        markup.asset("chart.js"),
        markup.asset("copy.js"),
        markup.asset("page.js"),
    ]
    return Template(markup.asset("page.html")).substitute(
        title=escape(title),
        policy=_policy(scripts),
        style=markup.asset("style.css"),
        headlines="".join(_headline(run, several) for run in stated),
        delta=" and ".join(map(words.stated, deltas)),
        rows=rows,
        compared="" if several else " compared",
        note=escape(note),
        statements="".join(_statement(run, position, several) for position, run in enumerate(stated)),
        figure=script_json(json.loads(chart.figure_json(inks))),
        data=script_json(data),
        scripts="\n".join(f"<script>{script}</script>" for script in scripts),
    )


def curve_data(row: Row, points: Points, ink: int, position: int) -> dict[str, Any]:
    """A curve as assets/chart.js wants it; no lower line where it cannot be told from the upper one."""
    apart = [low < high * (1.0 - _CLOSE) for low, high in zip(points.lower, points.upper, strict=True)]
    wide = any(apart)
    return {
        "position": position,
        "ink": ink,
        "dash": list(markup.DASHES[ink]),
        "name": row.name,
        "answer": row.upper if math.isfinite(row.upper) else None,
        "delta": row.delta,
        "epsilon": points.epsilon,
        "lower": points.lower if wide else [],
        "upper": points.upper,
        # δ at most so much at an ε rounded up is still true
        "at": [words.up(value, 4) for value in points.epsilon],
        "at_most": [words.up(value, 3) for value in points.upper],
    }


def _headline(run: Run, several: bool) -> str:
    name = f"<h2>{escape(run.row.name)}</h2>" if several else ""
    return f'<div class="card headline">{name}{markup.headline_html(run.row)}</div>'


def _statement(run: Run, position: int, several: bool) -> str:
    assert run.statement is not None
    name = f"Privacy statement: {run.row.name}" if several else "Privacy statement"
    return (
        f'<article class="card statement" data-statement="{position}"><header><h2>{escape(name)}</h2>'
        f'<div class="actions"><button type="button" data-copy="markdown">Copy Markdown</button>'
        f'<button type="button" data-copy="text">Copy text</button></div></header>'
        f"{markup.statement_html(run.statement)}</article>"
    )


def script_json(data: Any) -> str:
    """JSON that may stand in a script element: nothing in it can end the element."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.replace("<", "\\u003c")


def _policy(scripts: Sequence[str]) -> str:
    """A policy under which these scripts run and no others, and nothing is fetched from anywhere."""
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
        for script in scripts
    )
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
