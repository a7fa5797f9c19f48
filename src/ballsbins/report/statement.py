"""A privacy statement: sections of labelled paragraphs, and the same as facts; Markdown, plain text or JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

SCHEMA = 1  # of `to_dict`
_WIDTH = 88


class Item(NamedTuple):
    """One paragraph; a label says what it answers."""

    label: str
    text: str


class Section(NamedTuple):
    """What is said under one heading."""

    title: str
    items: tuple[Item, ...]


@dataclass(frozen=True)
class Statement:
    """What may be published about a run. `facts` has the same in numbers, unrounded."""

    headline: str
    sections: tuple[Section, ...]
    facts: Mapping[str, Any] = field(repr=False)

    def markdown(self, level: int = 2) -> str:
        """Markdown whose headings begin at `level`."""
        marks = "#" * level
        parts = [f"{marks} Privacy statement", f"**{self.headline}**"]
        for section in self.sections:
            parts.append(f"{marks}# {section.title}")
            parts.append("\n".join(f"- **{item.label}.** {item.text}" for item in section.items))
        return "\n\n".join(parts) + "\n"

    def text(self, width: int = _WIDTH) -> str:
        """Plain text, wrapped."""
        title = "Privacy statement"
        parts = [f"{title}\n{'=' * len(title)}", _filled(self.headline, width)]
        for section in self.sections:
            parts.append(f"{section.title}\n{'-' * len(section.title)}")
            parts += [_filled(f"{item.label}. {item.text}", width, indent="  ") for item in section.items]
        return "\n\n".join(parts) + "\n"

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON: the prose by section, and the facts behind it."""
        return {
            "schema": SCHEMA,
            "headline": self.headline,
            "sections": [
                {"title": title, "items": [item._asdict() for item in items]}
                for title, items in self.sections
            ],
            "facts": dict(self.facts),
        }

    def __str__(self) -> str:
        """Plain text."""
        return self.text()


def _filled(text: str, width: int, indent: str = "") -> str:
    """Lines of a paragraph; an equation such as δ = 1e-6 stays on one."""
    wrapped = textwrap.fill(
        text.replace(" = ", "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}"),
        width,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return wrapped.replace("\N{NO-BREAK SPACE}", " ")
