"""Tables and JSON on a terminal; the numbers in them are written by `ballsbins.report.words`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from ballsbins.bound import Bound
from ballsbins.report.words import describe, down, name_of, near, up

__all__ = [
    "bound_table",
    "console",
    "describe",
    "down",
    "name_of",
    "near",
    "plain_table",
    "print_json",
    "up",
]


def console() -> Console:
    """Standard output, as wide as the terminal, or 100 columns where there is none."""
    out = Console(highlight=False)
    return out if out.is_terminal else Console(highlight=False, width=100)


def print_json(data: Any) -> None:
    """Print data as JSON, the same way on every run."""
    typer.echo(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False))


def bound_table(bound: Bound, given: str) -> Table:
    """Lower, value and upper of a scalar bound, with both directions."""
    symbol = {"epsilon": "ε", "delta": "δ", "log_delta": "log δ"}[bound.quantity]
    table = Table(title=None, box=None, pad_edge=False, header_style="bold")
    for heading in (f"{symbol} {given}", "at least", "best value", "at most"):
        table.add_column(heading, justify="left" if heading.startswith(symbol) else "right")
    rows: list[tuple[str, Bound]] = [("both directions", bound)]
    rows += [(f"  {name}", part) for name, part in bound.directions.items()]
    for name, part in rows:
        table.add_row(
            name, down(float(part.lower), 10), near(float(part.value), 10), up(float(part.upper), 10)
        )
    return table


def plain_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], styles: Mapping[str, str] | None = None
) -> Table:
    """A table without lines; the first column is text, the others are numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for position, column in enumerate(columns):
        table.add_column(
            column, justify="left" if position == 0 else "right", style=(styles or {}).get(column)
        )
    for row in rows:
        table.add_row(*row)
    return table
