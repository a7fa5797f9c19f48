"""Answers as HTML. The live page and the exported one show the same, because both take it from here."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.resources import files

from ballsbins.cli.compare import interval
from ballsbins.report import Statement
from ballsbins.report.words import how, stated, up
from ballsbins.web.answers import Calibrated, Row

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
