"""Answers as HTML, and the static page: picture, curves, table and statement of given runs in one file.

The live page and the static page show the same because both use this module. The browser draws the curves
(assets/chart.js); everything else is text and small pieces of SVG.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from ballsbins.ask import SamplerName, under_each_sampler
from ballsbins.errors import BallsBinsError
from ballsbins.mechanism import Mechanism
from ballsbins.report import Card, Statement
from ballsbins.report.check import shared_runs
from ballsbins.report.numbers import down, how, stated, up
from ballsbins.web.answers import Calibrated, Points, Row, points_of, row_of

_CLOSE = 0.05  # bounds on log δ closer than this are drawn as one line
_DIGITS = 4  # significant digits of every ε on a page; the statement has more
_WORSE = 1.1  # the page states the ratio of truth to claim from this value on
INKS = 7  # number of colours in the style sheet, --ink-0 … --ink-6
_INK_OF = {
    "balls-and-bins": 0,
    "Poisson": 1,
    "shuffle": 2,
    "deterministic": 3,
    "balls-and-bins (fixed bins)": 4,
}
# lengths of dash and gap, as in the printed pictures
DASHES: Sequence[tuple[int, ...]] = ((), (7, 4), (8, 3, 2, 3), (2, 3), (9, 2, 2, 2), (10, 3), (4, 2))
# what people call the batches of each sampler
WAYS: Mapping[str, str] = {
    SamplerName.SHUFFLE: "shuffled batches",
    SamplerName.POISSON: "Poisson batches",
    SamplerName.BALLS_AND_BINS: "balls-and-bins batches",
    SamplerName.DETERMINISTIC: "the same batches every epoch",
}


@dataclass(frozen=True)
class Run:
    """What the page shows about one run; runs that are shown only for comparison have no statement."""

    row: Row
    points: Points
    statement: Statement | None = None


def page_of_mechanism(
    mechanism: Mechanism,
    delta: float,
    title: str,
    *,
    examples: int | None = None,
    alone: bool = False,
    proof: str = "",
) -> str:
    """The page of one run, compared with the other samplers at the same noise unless it should stand alone."""
    asked, runs, silent = None, {}, []
    for name, run in under_each_sampler(mechanism).items():
        if type(run.sampler) is type(mechanism.sampler):
            asked = name
            row = replace(row_of(mechanism, delta), proof=proof)
            statement = Card(mechanism, delta, num_examples=examples).statement()
            runs[name] = Run(row, points_of(mechanism, row), statement)
        elif not alone:
            try:
                row = row_of(run, delta)
                runs[name] = Run(row, points_of(run, row))
            except BallsBinsError as error:  # a sampler without an answer must not hide the others
                silent.append(f"{run.sampler.name}: {error}")
    return page_of_samplers(title, runs, asked, silent)


def page_of_samplers(
    title: str, runs: Mapping[SamplerName, Run], asked: SamplerName | None, silent: Iterable[str] = ()
) -> str:
    """The page of one run under several samplers; `asked` is the sampler in question, if it is known."""
    ordered = sorted(runs, key=lambda name: (name is not asked, list(SamplerName).index(name)))
    rows = {name: runs[name].row for name in ordered}
    top = (
        f'<section class="card verdict">{headline(rows, asked)}<div class="picture">{picture(rows, asked)}</div>'
        "</section>"
    )
    return page(title, [runs[name] for name in ordered], top, " ".join(silent))


def page_of_cards(paths: Sequence[Path], title: str, proof: str = "") -> str:
    """The page of several runs, each with the claim of its card; a card with a false claim is refused."""
    runs, cards = [], []
    for path, name in zip(paths, _names(paths), strict=True):
        card = Card.read(path)
        cards.append((name, card))
        statement = card.statement()
        row = replace(row_of(card.mechanism, card.delta, card.claim, name), proof=proof)
        runs.append(Run(row, points_of(card.mechanism, row), statement))
    warnings = [f"Warning: {sentence}." for sentence in shared_runs(cards)]
    each = "".join(
        f'<div class="card headline">{_title(run.row.name) if len(runs) > 1 else ""}{_number(run.row)}</div>'
        for run in runs
    )
    return page(title, runs, f'<div class="headlines">{each}</div>', " ".join(warnings))


def _names(paths: Sequence[Path]) -> list[str]:
    """Short names for the cards: the file names, with the directory if two are equal."""
    stems = [path.stem for path in paths]
    return [path.stem if stems.count(path.stem) == 1 else f"{path.parent.name}/{path.stem}" for path in paths]


# ---- the answer in a few words, and the picture beside it


def headline(rows: Mapping[SamplerName, Row], asked: SamplerName | None) -> str:
    """The number that was asked for, and for which batches; all numbers if the user does not know the sampler."""
    if asked is not None:
        return (
            f'<div class="headline">{_title(f"With {WAYS[asked]}, this run has")}{_number(rows[asked])}</div>'
        )
    low, high = (
        min(float(row.lower) for row in rows.values()),
        max(float(row.upper) for row in rows.values()),
    )
    delta = next(iter(rows.values())).delta
    return (
        f'<div class="headline">{_title("Depending on how batches are drawn, this run has")}'
        f'<p class="epsilon"><span class="symbol">ε</span> '
        f"<output>{down(low, _DIGITS)} … {up(high, _DIGITS)}</output></p>"
        f'<p class="given">at δ = {stated(delta)}. Find out how they are drawn before you state an ε.</p></div>'
    )


def _title(text: str) -> str:
    return f"<h2>{escape(text)}</h2>"


def _number(row: Row) -> str:
    """The upper bound, which may be claimed, and how far below it the truth can be."""
    known = how(row.bound)
    least = "" if _is_close(row) else f"and at least {down(row.lower, _DIGITS)}, "
    known = f"at δ = {stated(row.delta)}" + ("" if known == "bounds" else f" · {known}")
    proof = f'<p class="proof">{_code(escape(row.proof))}</p>' if row.proof else ""
    return (
        f'<p class="epsilon"><span class="symbol">ε ≤</span> <output>{up(row.upper, _DIGITS)}</output></p>'
        f'<p class="given">{least}{escape(known)}</p>{proof}'
        f'<p class="run">{escape(row.run)}</p>'
    )


def _is_close(row: Row) -> bool:
    """Whether a reader would see the two bounds as one number."""
    return math.isfinite(row.upper) and row.upper - row.lower <= 0.5 * 10.0**-_DIGITS * abs(row.upper)


def _interval(row: Row) -> str:
    """Both ends, or one number if they agree to the digits shown."""
    upper = up(row.upper, _DIGITS)
    return f"≤ {upper}" if _is_close(row) else f"{down(row.lower, _DIGITS)} … {upper}"


def picture(rows: Mapping[SamplerName, Row], asked: SamplerName | None) -> str:
    """Claim against truth, as bars under one sentence; empty if one of them is missing."""
    own = asked if asked in (SamplerName.SHUFFLE, SamplerName.DETERMINISTIC) else SamplerName.SHUFFLE
    shown = {
        SamplerName.POISSON: "reported, if accounted as Poisson",
        own: f"true of {WAYS[own]}",
        SamplerName.BALLS_AND_BINS: "with balls-and-bins batches",
    }
    if not set(shown) <= set(rows):
        return ""
    ends = [end for name in shown for end in (rows[name].lower, rows[name].upper) if math.isfinite(end)]
    scale = max(ends, default=0.0) or 1.0
    bars = "".join(_bar(rows[name], label, scale, yours=name is asked) for name, label in shown.items())
    return f'<p class="message">{escape(verdict(rows, own, asked))}</p><div class="bars">{bars}</div>'


def _bar(row: Row, label: str, scale: float, *, yours: bool) -> str:
    """A bar that is solid up to the proved lower bound, and pale up to the proved upper bound."""
    ink = ink_of(row.name, 0)
    least, most = (100.0 * min(end, scale) / scale for end in (row.lower, row.upper))
    own = ' <span class="yours">your batches</span>' if yours else ""
    # solid from the left; even the smallest bar stays visible
    return (
        f'<div class="bar"><span class="label">{escape(label)}{own}</span>'
        f'<svg viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="track" width="100" height="10"/>'
        f'<rect width="{max(most, 0.4):.2f}" height="10" fill="var(--ink-{ink})" fill-opacity="0.3"/>'
        f'<rect width="{max(least, 0.4):.2f}" height="10" fill="var(--ink-{ink})"/></svg>'
        f'<span class="number">ε {escape(_interval(row))}</span></div>'
    )


def verdict(rows: Mapping[SamplerName, Row], own: SamplerName, asked: SamplerName | None) -> str:
    """The message of the picture in one sentence."""
    claim, truth, bins = rows[SamplerName.POISSON], rows[own], rows[SamplerName.BALLS_AND_BINS]
    if not math.isfinite(bins.upper):
        return "With so little noise no way to draw batches protects anybody."
    if truth.lower <= claim.upper:
        return (
            f"A report of ε ≤ {up(claim.upper, _DIGITS)} is not refuted here, but for {WAYS[own]} only "
            f"ε ≤ {up(truth.upper, _DIGITS)} is proved."
        )
    least = down(truth.lower, _DIGITS)
    if asked is SamplerName.BALLS_AND_BINS:
        most = up(bins.upper, _DIGITS)
        return f"Your batches have ε ≤ {most}. If you shuffled instead, ε would be at least {least}."
    if asked is SamplerName.POISSON:
        return (
            f"ε ≤ {up(claim.upper, _DIGITS)} is true only if a coin is tossed for every example and batch. "
            f"Shuffled batches have at least {least}."
        )
    factor = truth.lower / claim.upper if claim.upper > 0 else math.inf
    often = f": {down(factor, 2)} times as much" if _WORSE <= factor < math.inf else ""
    report = f"a report of ε ≤ {up(claim.upper, _DIGITS)}"
    if asked is None:
        return f"If they are shuffled, {report} is false: the truth is at least {least}{often.replace(':', ',')}."
    return f"{report.capitalize()} would be false. {WAYS[own].capitalize()} have at least {least}{often}."


# ---- the table


def asset(name: str) -> str:
    """The content of one of our own asset files."""
    return (files("ballsbins.web") / "assets" / name).read_text(encoding="utf-8")


def ink_of(name: str, position: int) -> int:
    """The number of a run's colour and dash: its sampler's, as in every picture, or else the next one."""
    return _INK_OF.get(name, position % INKS)


def _swatch(ink: int) -> str:
    """A sample of the line, to identify it."""
    dash = " ".join(map(str, DASHES[ink]))
    return (
        f'<svg class="swatch" viewBox="0 0 30 8" aria-hidden="true"><line x1="0" y1="4" x2="30" y2="4" '
        f'stroke="var(--ink-{ink})" stroke-dasharray="{dash}"/></svg>'
    )


def row_html(row: Row, ink: int, *, delta: bool = False) -> str:
    """A line of the table of runs, with its δ if not all runs have the same."""
    at = f"at δ = {stated(row.delta)}, " if delta else ""
    return (
        f'<th scope="row">{_swatch(ink)}<span>{escape(row.name)}</span></th>'
        f'<td class="number">{escape(_interval(row))}</td>'
        f'<td class="method">{at}{escape(how(row.bound))}</td>'
    )


def silent_html(name: str, reason: str) -> str:
    """A line of the table for a sampler without an answer."""
    return (
        f'<th scope="row">{_swatch(ink_of(name, 0))}<span>{escape(name)}</span></th>'
        f'<td class="silent" colspan="2">{escape(reason)}</td>'
    )


def calibrated_html(found: Calibrated, way: str) -> str:
    """The noise that a target needs."""
    return (
        f'<p class="epsilon"><span class="symbol">σ =</span> <output>{up(found.noise_multiplier, 5)}</output></p>'
        f'<p class="given">is the least noise for ε ≤ {stated(found.target)} at δ = {stated(found.delta)}, '
        f"with {escape(way)}</p>"
    )


def statement_html(statement: Statement) -> str:
    """The statement, with its sections under headings."""
    parts = [
        f'<p class="claim">{escape(statement.headline)}</p><p class="plain">{escape(statement.plain)}</p>'
    ]
    for section in statement.sections:
        items = "".join(
            f"<div><dt>{escape(item.label)}</dt><dd>{_code(escape(item.text))}</dd></div>"
            for item in section.items
        )
        parts.append(f"<section><h3>{escape(section.title)}</h3><dl>{items}</dl></section>")
    return "".join(parts)


def copies_of(statement: Statement) -> dict[str, str]:
    """The texts that its buttons copy: one sentence for the body of a paper, or the whole statement."""
    return {"sentence": statement.sentence, "markdown": statement.markdown(), "text": statement.text()}


def _code(text: str) -> str:
    """Mark text between backticks as code."""
    parts = text.split("`")
    return "".join(f"<code>{part}</code>" if odd % 2 else part for odd, part in enumerate(parts))


# ---- the file


def page(title: str, runs: Sequence[Run], top: str, note: str = "") -> str:
    """The whole file: the top, and then the table, curves and statements."""
    inks = [ink_of(run.row.name, position) for position, run in enumerate(runs)]
    published = [(run.row.name, run.statement) for run in runs if run.statement is not None]
    several = len(published) > 1
    deltas = sorted({run.row.delta for run in runs})
    rows = "".join(
        f"<tr>{row_html(run.row, ink, delta=len(deltas) > 1)}</tr>"
        for run, ink in zip(runs, inks, strict=True)
    )
    data = {
        "curves": [
            curve_data(run.row, run.points, ink, position, main=run.statement is not None)
            for position, (run, ink) in enumerate(zip(runs, inks, strict=True))
        ],
        "delta": deltas[0],
        "statements": [copies_of(statement) for _, statement in published],
    }
    scripts = [asset(name) for name in ("chart.js", "copy.js", "page.js")]
    style = asset("style.css")
    return Template(asset("page.html")).substitute(
        title=escape(title),
        policy=_policy(scripts, style),
        style=style,
        top=top,
        delta=" and ".join(map(stated, deltas)),
        rows=rows,
        compared="" if several else " compared",
        note=escape(note),
        statements="".join(
            _statement(statement, f"Privacy statement: {name}" if several else "Privacy statement", position)
            for position, (name, statement) in enumerate(published)
        ),
        data=script_json(data),
        scripts="\n".join(f"<script>{script}</script>" for script in scripts),
    )


def curve_data(row: Row, points: Points, ink: int, position: int, *, main: bool) -> dict[str, Any]:
    """A curve in the form that assets/chart.js expects; no lower line if it cannot be told from the upper one."""
    apart = [low < high * (1.0 - _CLOSE) for low, high in zip(points.lower, points.upper, strict=True)]
    return {
        "position": position,
        "main": main,
        "ink": ink,
        "dash": list(DASHES[ink]),
        "name": row.name,
        "answer": row.upper if math.isfinite(row.upper) else None,
        "delta": row.delta,
        "epsilon": points.epsilon,
        "lower": points.lower if any(apart) else [],
        "upper": points.upper,
        "at_most": [up(value, 3) for value in points.upper],
    }


def _statement(statement: Statement, title: str, position: int) -> str:
    return (
        f'<article class="card statement" data-statement="{position}"><header>{_title(title)}'
        f'<div class="actions"><button type="button" data-copy="sentence">Copy sentence</button>'
        f'<button type="button" data-copy="markdown">Copy Markdown</button>'
        f'<button type="button" data-copy="text">Copy text</button></div></header>'
        f"{statement_html(statement)}</article>"
    )


def script_json(data: Any) -> str:
    """JSON that is safe in a script element: nothing in it can end the element."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.replace("<", "\\u003c")


def _policy(scripts: Sequence[str], style: str) -> str:
    """A policy that allows these scripts and this style only, and no fetching."""

    def hashed(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    return (
        f"default-src 'none'; script-src {' '.join(map(hashed, scripts))}; style-src {hashed(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
