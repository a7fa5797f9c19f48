"""The static page: curves, table and statement of given runs in one HTML file that needs nothing else to be read."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from ballsbins.ask import meaning
from ballsbins.comparison import at_equal_noise
from ballsbins.errors import BallsBinsError
from ballsbins.mechanism import Mechanism
from ballsbins.report import Card, Statement
from ballsbins.report.check import shared_runs
from ballsbins.report.numbers import stated, up
from ballsbins.web import markup
from ballsbins.web.answers import Points, Row, points_of, row_of

_CLOSE = 0.05  # bounds on log δ closer than this are drawn as one line


@dataclass(frozen=True)
class Run:
    """What the page shows of one run; no statement for those that are there to compare with only."""

    row: Row
    points: Points
    statement: Statement | None = None


def page_of_mechanism(
    mechanism: Mechanism, delta: float, title: str, *, examples: int | None = None, alone: bool = False
) -> str:
    """The page of one run, with the other samplers at the same noise unless it is to stand alone."""
    runs = [Run(*_answers(mechanism, delta), Card(mechanism, delta, num_examples=examples).statement())]
    silent = []
    for other in () if alone else at_equal_noise(mechanism).values():
        if type(other.sampler) is type(mechanism.sampler):
            continue
        try:
            runs.append(Run(*_answers(other, delta)))
        except BallsBinsError as error:  # one sampler without an answer does not take the others away
            silent.append(f"{other.sampler.name}: {error}")
    return page(title, runs, note=note_of([run.row for run in runs], silent))


def page_of_cards(paths: Sequence[Path], title: str) -> str:
    """The page of several runs, each as its card claims it; a claim that is not true has no statement to show."""
    runs, cards = [], []
    for path, name in zip(paths, _names(paths), strict=True):
        card = Card.read(path)
        cards.append((name, card))
        statement = card.statement()
        row = row_of(card.mechanism, card.delta, card.claim, name)
        runs.append(Run(row, points_of(card.mechanism, row), statement))
    warnings = [f"Warning: {sentence}." for sentence in shared_runs(cards)]
    return page(title, runs, note=" ".join(warnings))


def note_of(rows: Sequence[Row], silent: Iterable[str] = ()) -> str:
    """What the table means, and which samplers had no answer."""
    by_name = {"balls-and-bins" if row.name.startswith("balls-and-bins") else row.name: row for row in rows}
    words = list(silent)
    if {"balls-and-bins", "Poisson", "shuffle"} <= set(by_name):
        answers = {name: row.bound for name, row in by_name.items()}
        words.insert(0, meaning(answers, rows[0].delta))
    return " ".join(words)


def _answers(mechanism: Mechanism, delta: float) -> tuple[Row, Points]:
    row = row_of(mechanism, delta)
    return row, points_of(mechanism, row)


def _names(paths: Sequence[Path]) -> list[str]:
    """Short names that tell the cards apart: the file's, with its directory where two are alike."""
    stems = [path.stem for path in paths]
    return [path.stem if stems.count(path.stem) == 1 else f"{path.parent.name}/{path.stem}" for path in paths]


def page(title: str, runs: Sequence[Run], note: str = "") -> str:
    """The whole file."""
    inks = [markup.ink_of(run.row.name, position) for position, run in enumerate(runs)]
    published = [run for run in runs if run.statement is not None]
    several = len(published) > 1
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
            for run in published
            if run.statement is not None
        ],
    }
    scripts = [
        markup.bokeh_library(),
        markup.asset("chart.js"),
        markup.asset("copy.js"),
        markup.asset("page.js"),
    ]
    return Template(markup.asset("page.html")).substitute(
        title=escape(title),
        policy=_policy(scripts),
        style=markup.asset("style.css"),
        headlines="".join(_headline(run, several) for run in published),
        delta=" and ".join(map(stated, deltas)),
        rows=rows,
        compared="" if several else " compared",
        note=escape(note),
        statements="".join(_statement(run, position, several) for position, run in enumerate(published)),
        figure=script_json(json.loads(markup.figure_json(inks))),
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
        "at": [up(value, 4) for value in points.epsilon],
        "at_most": [up(value, 3) for value in points.upper],
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
