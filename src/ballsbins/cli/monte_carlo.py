"""`ballsbins verify`, and the options of `ballsbins delta --method monte-carlo`."""

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
from ballsbins.cli import options, render
from ballsbins.cli.options import SamplerName
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


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("verify")(verify)


def method_from(
    method: str,
    samples: int | None,
    error_prob: float | None,
    seed: int | None,
    workers: int | None,
    state: Path | None,
) -> str | MonteCarlo:
    """The method that the options describe; options of Monte Carlo without it are an error."""
    given: dict[str, Any] = {
        "samples": samples,
        "error_probability": error_prob,
        "seed": seed,
        "workers": workers,
        "state": state,
    }
    given = {name: value for name, value in given.items() if value is not None}
    if method != NAME:
        for name, value in given.items():
            advice = f"Add --method {NAME}, or leave it out."
            raise InvalidInputError(name, value, f"left out for --method {method}", advice)
        return method
    from ballsbins.accounting.monte_carlo import MonteCarlo

    chosen = MonteCarlo(**given)
    return replace(chosen, progress=ProgressLine(chosen.error_probability)) if sys.stderr.isatty() else chosen


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
        looks = tuple(outcome.look for outcome in outcomes)
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


def verify(
    noise_multiplier: options.NoiseOption,
    epsilon: Annotated[list[float], typer.Option("--epsilon", "-e", help="ε; may be given several times.")],
    steps: options.StepsOption = None,
    epochs: options.EpochsOption = 1,
    fixed_bins: options.FixedBinsOption = False,
    examples: options.ExamplesOption = None,
    batch_size: options.BatchSizeOption = None,
    samples: SamplesOption = None,
    error_prob: ErrorProbOption = None,
    seed: SeedOption = None,
    workers: WorkersOption = None,
    state: StateOption = None,
    json: options.JsonOption = False,
) -> None:
    """Check the exact δ by Monte Carlo. For example: ballsbins verify -s 0.35 -T 1000 -e 10"""
    mechanism, derived = options.mechanism_from(
        SamplerName.BALLS_AND_BINS, noise_multiplier, steps, epochs, fixed_bins=fixed_bins, examples=examples,
        batch_size=batch_size, max_batch_size=None,
    )  # fmt: skip
    from ballsbins.accounting.monte_carlo.confidence import error_probability

    # the confidence is shared over all ε, so that a false alarm at any of them is as rare as stated
    rare = error_probability(1e-6 if error_prob is None else error_prob)
    method = method_from(NAME, samples, rare / len(epsilon), seed, workers, state)
    rows, disjoint = [], []
    exacts, answers = deltas(mechanism, epsilon, "auto"), deltas(mechanism, epsilon, method)
    for point, exact, sampled in zip(epsilon, exacts, answers, strict=True):
        for direction in ("remove", "add"):
            one, two = exact.directions[direction], sampled.directions[direction]
            agree = bool(one.lower <= two.upper and two.lower <= one.upper)
            rows.append((point, direction, one, two, agree))
            if not agree:
                disjoint.append(f"{direction} at ε = {stated(point)}")
    if json:
        render.print_json(
            {
                "mechanism": mechanism.to_dict(),
                "agree": not disjoint,
                "checks": [
                    {
                        "epsilon": e,
                        "direction": d,
                        "agree": ok,
                        "exact": a.to_dict(),
                        "monte_carlo": b.to_dict(),
                    }
                    for e, d, a, b, ok in rows
                ],
            }
        )
    else:
        out = render.console()
        out.print(render.describe(mechanism, derived), style="dim")
        out.print()
        out.print(
            render.plain_table(
                ("ε, direction", "δ at least", "δ at most", "sampled, at least", "at most", ""),
                [
                    (
                        f"{stated(e)}, {d}",
                        render.down(float(a.lower)),
                        render.up(float(a.upper)),
                        render.down(float(b.lower)),
                        render.up(float(b.upper)),
                        "agree" if ok else "DISJOINT",
                    )
                    for e, d, a, b, ok in rows
                ],
            )
        )
        out.print()
        against = f"{sampled.method}, which fails with probability {stated(rare)}"
        out.print(f"method: {exact.method}, against {against}", style="dim")
    if disjoint:
        typer.echo(
            f"ballsbins: VERIFICATION FAILED: the intervals are disjoint for {', '.join(disjoint)}. By chance alone "
            f"this happens with probability below {stated(rare)}. Do not rely on these numbers; report it.",
            err=True,
        )
        raise typer.Exit(1)
