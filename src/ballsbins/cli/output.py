"""What commands print, and whether a file can be written where it is to go."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from ballsbins import ask
from ballsbins.bound import Bound
from ballsbins.errors import InvalidInputError
from ballsbins.mechanism import Mechanism
from ballsbins.report.numbers import down, length_and_noise, near, up

PICTURES = (".png", ".svg", ".pdf")


def console() -> Console:
    """Standard output, as wide as the terminal, or 100 columns where there is none."""
    out = Console(highlight=False)
    return out if out.is_terminal else Console(highlight=False, width=100)


def print_json(data: Any) -> None:
    """Print data as JSON, the same way on every run."""
    typer.echo(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False))


def bound_table(bound: Bound, question: str) -> Table:
    """Lower, value and upper of a scalar bound, with both directions; no value where it is only the upper bound."""
    rows = [("both directions", bound)]
    # If ε is ∞ there is no privacy, and the direction that does not decide can take long.
    if math.isfinite(bound.upper):
        rows += [(f"  {name}", part) for name, part in bound.directions.items()]
    between = any(float(part.value) < float(part.upper) for _, part in rows)
    numbers = [
        (
            name,
            down(float(part.lower), 10),
            *([near(float(part.value), 10)] if between else []),
            up(float(part.upper), 10),
        )
        for name, part in rows
    ]
    return plain_table([question, "at least", *(["best value"] if between else []), "at most"], numbers)


def print_run(
    out: Console, mechanism: Mechanism, derived: str | None, warnings: Sequence[str | None]
) -> None:
    """How the batches are drawn, what else is run, and what a reader must not miss."""
    out.print(f"batches: {mechanism.sampler.batching}", style="dim")
    out.print(f"run: {length_and_noise(mechanism, derived)}", style="dim")
    for sentence in warnings:
        if sentence is not None:
            out.print(sentence, style="yellow")


def tell_if_shuffled(
    sampler: object, mechanism: Mechanism, *, delta: Sequence[float] = (), epsilon: Sequence[float] = ()
) -> None:
    """Say on standard error what a shuffled loop would have, if `sampler`, the option, was left out."""
    if sampler is None:
        typer.echo(f"ballsbins: {ask.if_shuffled(mechanism, delta=delta, epsilon=epsilon)}", err=True)


def plain_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table without lines; the first column is text, the others are numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for position, column in enumerate(columns):
        table.add_column(column, justify="left" if position == 0 else "right")
    for row in rows:
        table.add_row(*row)
    return table


def check_picture(out: Path) -> None:
    """Refuse a bad file name before anything is computed."""
    if out.suffix.lower() not in PICTURES:
        endings = f"a file ending in {', '.join(PICTURES)}"
        raise InvalidInputError("--out", str(out), endings, "Choose a picture format.")
    check_place(out)


def check_place(out: Path) -> None:
    """Refuse a place where nothing can be written before anything is computed."""
    if not out.parent.is_dir():
        raise InvalidInputError("--out", str(out), "in a directory that exists", "Make the directory first.")
    if out.is_dir():
        raise InvalidInputError("--out", str(out), "the name of a file", "It is a directory: add a name.")
