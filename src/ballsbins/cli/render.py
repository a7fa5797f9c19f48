"""Numbers and tables as people read them. What is rounded is rounded against ourselves."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal
from typing import Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from ballsbins.bound import Bound
from ballsbins.mechanism import Mechanism
from ballsbins.samplers import BallsAndBins, Deterministic, Poisson, Sampler, Shuffle


def console() -> Console:
    """Standard output, as wide as the terminal, or 100 columns where there is none."""
    out = Console(highlight=False)
    return out if out.is_terminal else Console(highlight=False, width=100)


def print_json(data: Any) -> None:
    """Print data as JSON, the same way on every run."""
    typer.echo(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False))


def up(value: float, digits: int = 6) -> str:
    """A number rounded up to so many significant digits: for upper bounds."""
    return "1e-300" if 0.0 < value < 1e-300 else _rounded(value, digits, ROUND_CEILING)


def down(value: float, digits: int = 6) -> str:
    """A number rounded down: for lower bounds."""
    return _rounded(value, digits, ROUND_FLOOR)


def near(value: float, digits: int = 6) -> str:
    """A number rounded to nearest: for best values only."""
    return _rounded(value, digits, ROUND_HALF_EVEN)


def _rounded(value: float, digits: int, rounding: str) -> str:
    if not np.isfinite(value):
        return "∞" if value > 0 else "−∞"
    number = Decimal(value).normalize(Context(prec=digits, rounding=rounding))
    if number == 0:
        return "0"
    if 1e-3 <= abs(float(number)) < 1e6:
        return f"{number:f}"
    return f"{number:e}".replace("e-0", "e-").replace("e+0", "e+")


def name_of(sampler: Sampler) -> str:
    """A sampler in words."""
    match sampler:
        case BallsAndBins():
            return "balls-and-bins" if sampler.redraw else "balls-and-bins (fixed bins)"
        case Poisson():
            return "Poisson"
        case Shuffle():
            return "shuffle"
        case Deterministic():
            return "deterministic"
    return type(sampler).__name__


def describe(mechanism: Mechanism, derived: str | None = None) -> str:
    """The run in one line of public facts."""
    sampler = mechanism.sampler
    epochs = "1 epoch" if mechanism.epochs == 1 else f"{mechanism.epochs:,} epochs"
    limit = getattr(sampler, "max_batch_size", None)
    cut = "" if limit is None else f", batches truncated to {limit:,}"
    why = "" if derived is None else f" ({derived})"
    sigma = f"{mechanism.noise_multiplier:.10g}"
    return f"{name_of(sampler)}, σ = {sigma}, {sampler.steps:,} steps an epoch{why}, {epochs}{cut}"


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


def how(bound: Bound) -> str:
    """How the numbers were obtained, and what truncation cost."""
    sure = "" if bound.confidence == 1.0 else f", confidence {bound.confidence:g}"
    penalty = float(np.max(np.asarray(bound.penalty)))
    cost = "" if penalty == 0.0 else f"; truncation adds {up(penalty, 3)} to δ, included"
    return f"method: {bound.method}{sure}{cost}"


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
