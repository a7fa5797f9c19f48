"""A privacy statement: sections of labelled paragraphs, and the underlying facts; as Markdown, plain text or JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

SCHEMA = 2  # version of `to_dict`
_WIDTH = 88


class Item(NamedTuple):
    """One paragraph; its label names the question that it answers."""

    label: str
    text: str


class Section(NamedTuple):
    """The paragraphs under one heading."""

    title: str
    items: tuple[Item, ...]


@dataclass(frozen=True)
class Statement:
    """What may be published about a run, as text, Markdown or JSON. `Card.statement` makes it.

    Attributes:
        headline: the claim in one or two sentences.
        sentence: the claim, the batches and the noise in one sentence, for the body of a paper.
        plain: what the claim means, in one paragraph for everybody.
        sections: the paragraphs under their headings, in order.
        facts: the same content in unrounded numbers, as plain data for JSON.

    Example:
        >>> from ballsbins import BallsAndBins, Mechanism
        >>> from ballsbins.report import Card
        >>> run = Mechanism(BallsAndBins(steps=1000), noise_multiplier=0.5)
        >>> statement = Card(run, delta=1e-6, num_examples=60_000).statement()
        >>> print(statement.headline)
        (ε, δ)-differential privacy for each training example: ε is at most ... at δ = 1e-6.
    """

    headline: str
    sentence: str
    plain: str
    sections: tuple[Section, ...]
    facts: Mapping[str, Any] = field(repr=False)

    def markdown(self, level: int = 2) -> str:
        """Give the statement as Markdown.

        Args:
            level: the heading level (number of #) of the top heading, at least 1.

        Returns:
            The text, which ends with a line break.
        """
        marks = "#" * level
        parts = [f"{marks} Privacy statement", f"**{self.headline}**", self.plain]
        for section in self.sections:
            parts.append(f"{marks}# {section.title}")
            parts.append("\n".join(f"- **{item.label}.** {item.text}" for item in section.items))
        return "\n\n".join(parts) + "\n"

    def text(self, width: int = _WIDTH) -> str:
        """Give the statement as plain text.

        Args:
            width: columns to wrap lines at.

        Returns:
            The text, which ends with a line break.
        """
        title = "Privacy statement"
        parts = [f"{title}\n{'=' * len(title)}", _filled(self.headline, width), _filled(self.plain, width)]
        for section in self.sections:
            parts.append(f"{section.title}\n{'-' * len(section.title)}")
            parts += [_filled(f"{item.label}. {item.text}", width, indent="  ") for item in section.items]
        return "\n\n".join(parts) + "\n"

    def to_dict(self) -> dict[str, Any]:
        """Give the statement as plain data for JSON.

        Returns:
            The prose by section, the facts behind it, and the schema number.
        """
        return {
            "schema": SCHEMA,
            "headline": self.headline,
            "sentence": self.sentence,
            "plain": self.plain,
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
    """The lines of a paragraph; an equation such as δ = 1e-6 is never split."""
    wrapped = textwrap.fill(
        text.replace(" = ", "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}"),
        width,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return wrapped.replace("\N{NO-BREAK SPACE}", " ")
