"""The options of `--method monte-carlo`, what they mean, and the line that shows how far it is."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import rich.console
import rich.progress
import typer

from ballsbins.bound import Bound
from ballsbins.cli import render
from ballsbins.errors import InvalidInputError
from ballsbins.mechanism import Mechanism
from ballsbins.report.words import stated

if TYPE_CHECKING:
    from ballsbins.accounting.monte_carlo import MonteCarlo
    from ballsbins.accounting.monte_carlo.run import Outcome

NAME = "monte-carlo"
_PANEL = "Monte Carlo"

SamplesOption = Annotated[
    int | None, typer.Option("--samples", "-m", help="Samples a direction.", rich_help_panel=_PANEL)
]
ErrorProbOption = Annotated[
    float | None,
    typer.Option("--error-prob", help="Probability that the bounds fail.", rich_help_panel=_PANEL),
]
SeedOption = Annotated[
    int | None, typer.Option("--seed", help="One seed, one answer.", rich_help_panel=_PANEL)
]
WorkersOption = Annotated[
    int | None,
    typer.Option("--workers", help="Processes; the answer does not depend on it.", rich_help_panel=_PANEL),
]
StateOption = Annotated[
    Path | None,
    typer.Option(
        "--state", help="Save the samples here, and go on from what is there.", rich_help_panel=_PANEL
    ),
]

DrawOption = Annotated[
    str | None,
    typer.Option(
        "--draw",
        help="tilted, or as the paper: plain, importance, order-statistics or combined.",
        rich_help_panel=_PANEL,
    ),
]
ConfidenceBoundOption = Annotated[
    str | None,
    typer.Option("--confidence-bound", help="auto, kl (the paper's) or bernstein.", rich_help_panel=_PANEL),
]
OrdersOption = Annotated[
    str | None,
    typer.Option(
        "--orders",
        help='Order statistics to draw: auto, 1,2,3,10,…, or a list of the paper, such as "C, T=4517".',
        rich_help_panel=_PANEL,
    ),
]
GridOption = Annotated[
    str | None,
    typer.Option(
        "--grid",
        help="ε that hold together, from:to:points or a list 6,8,10. Needed to find ε.",
        rich_help_panel=_PANEL,
    ),
]


def method_from(
    method: str,
    samples: int | None,
    error_prob: float | None,
    seed: int | None,
    workers: int | None,
    state: Path | None,
    *,
    draw: str | None = None,
    confidence_bound: str | None = None,
    orders: str | None = None,
    grid: str | None = None,
) -> str | MonteCarlo:
    """The method that the options describe; options of Monte Carlo without it are an error."""
    given: dict[str, Any] = {
        "samples": samples,
        "error_probability": error_prob,
        "seed": seed,
        "workers": workers,
        "state": state,
        "sampler": draw,
        "bound": confidence_bound,
        "orders": None if orders is None else _orders(orders),
        "epsilons": None if grid is None else _grid(grid),
    }
    given = {name: value for name, value in given.items() if value is not None}
    if method != NAME:
        for name, value in given.items():
            option = "--" + {"error_probability": "error-prob", "sampler": "draw", "bound": "confidence-bound",
                             "epsilons": "grid"}.get(name, name)  # fmt: skip
            advice = f"Add --method {NAME}, or leave it out."
            raise InvalidInputError(option, value, f"left out for --method {method}", advice)
        return method
    from ballsbins.accounting.monte_carlo import MonteCarlo

    chosen = MonteCarlo(**given)
    return replace(chosen, progress=ProgressLine(chosen.error_probability)) if sys.stderr.isatty() else chosen


def _orders(text: str) -> str | tuple[int, ...]:
    """A name, or the integers of a list."""
    parts = text.split(",")
    return tuple(int(part) for part in parts) if all(part.strip().isdecimal() for part in parts) else text


def _grid(text: str) -> tuple[float, ...]:
    """from:to:points, or a list."""
    try:
        if ":" in text:
            first, last, points = text.split(":")
            return tuple(np.linspace(float(first), float(last), int(points)).tolist())
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        advice = "Write for example 0:12:25, or 6,8,10."
        raise InvalidInputError("--grid", text, "from:to:points, or numbers with commas", advice) from None


def deltas(mechanism: Mechanism, epsilon: list[float], method: str | MonteCarlo) -> list[Bound]:
    """δ at every ε, asked for together: Monte Carlo draws for all of them side by side."""
    found = mechanism.delta(np.array(epsilon), method)

    def at(bound: Bound, k: int) -> Bound:
        lower, value, upper, penalty = (
            float(np.asarray(part)[k]) for part in (bound.lower, bound.value, bound.upper, bound.penalty)
        )
        directions = {name: at(part, k) for name, part in bound.directions.items()}
        return replace(bound, lower=lower, value=value, upper=upper, penalty=penalty, directions=directions)

    return [at(found, k) for k in range(len(epsilon))]


class ProgressLine:
    """A bar on standard error with the time left and the bound so far, which holds whenever one looks at it."""

    def __init__(self, error_probability: float) -> None:
        """As in the answer, each side of each direction may fail with a quarter of that."""
        self._beta = error_probability / 4.0
        self._bar: rich.progress.Progress | None = None
        self._looks: tuple[int, ...] = ()

    def __call__(self, outcomes: Sequence[Outcome], over: bool) -> None:
        """Show what there is; remove the bar when it is over."""
        if self._bar is None:
            columns = (
                rich.progress.BarColumn(24),
                rich.progress.TextColumn("{task.completed:,.0f} of {task.total:,.0f} samples"),
                rich.progress.TimeRemainingColumn(elapsed_when_finished=True),
                rich.progress.TextColumn("{task.description}"),
            )
            console = rich.console.Console(stderr=True)
            self._bar = rich.progress.Progress(*columns, console=console, transient=True)
            self._task = self._bar.add_task("", total=sum(outcome.wanted for outcome in outcomes))
            self._bar.start()
        self._bar.update(self._task, completed=sum(outcome.tally.count for outcome in outcomes))
        looks = tuple(len(outcome.looks) for outcome in outcomes)
        if looks != self._looks:  # the bound changes only then
            self._looks = looks
            self._bar.update(self._task, description=self._bound(outcomes))
        if over:
            self._bar.stop()
            self._bar = None

    def _bound(self, outcomes: Sequence[Outcome]) -> str:
        """The larger of the two directions, at the least ε asked for."""
        epsilon = min(outcome.epsilon for outcome in outcomes)
        here = [outcome for outcome in outcomes if outcome.epsilon == epsilon]
        upper = max(float(outcome.log_delta(epsilon, self._beta).upper[0]) for outcome in here)
        return f"δ ≤ {render.up(math.exp(upper), 3)} so far, at ε = {stated(epsilon)}"
