"""`ballsbins verify`: the exact δ against Monte Carlo, and how sharp the comparison was."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import typer

from ballsbins.bound import Bound
from ballsbins.cli import monte_carlo, options, render
from ballsbins.cli.options import SamplerName
from ballsbins.errors import InvalidInputError
from ballsbins.mechanism import Mechanism
from ballsbins.report.words import stated
from ballsbins.samplers import BallsAndBins

# of a direction: within 10 % at every setting of benchmarks/verify.py
_FEW_EPOCHS, _MANY_EPOCHS = 250_000, 26_000
DISAGREE, INCONCLUSIVE = 1, 3  # exit codes; 2 is an error in the question
_NOTHING = 1e-300  # two δ below are both 0
_NEGLIGIBLE = (
    1e-6  # of the δ of the other direction: cannot decide the larger of the two, and need not be sharp
)


@dataclass(frozen=True)
class Check:
    """One δ by two methods."""

    epsilon: float
    direction: str
    exact: Bound
    sampled: Bound
    other: float = 0.0  # what the δ of the other direction is at least, by both methods

    @property
    def factor(self) -> float:
        """An exact δ that were wrong by more than this factor would have been found out."""
        exact, sampled = self.exact, self.sampled
        if float(exact.upper) <= _NOTHING and float(sampled.upper) <= _NOTHING:
            return 1.0
        pairs = ((sampled.upper, exact.lower), (exact.upper, sampled.lower))
        return max(float(above) / float(below) if below > 0.0 else math.inf for above, below in pairs)

    def verdict(self, within: float) -> Literal["agree", "disagree", "inconclusive", "negligible"]:
        """Whether the two intervals meet, and are narrow enough for that to mean something."""
        exact, sampled = self.exact, self.sampled
        if not (exact.lower <= sampled.upper and sampled.lower <= exact.upper):
            return "disagree"
        if self.factor <= 1.0 + within:
            return "agree"
        most = max(float(exact.upper), float(sampled.upper))
        return "negligible" if most <= _NEGLIGIBLE * self.other else "inconclusive"

    def to_dict(self, within: float) -> dict[str, Any]:
        """For JSON; the factor is null where it is infinite."""
        return {
            "epsilon": self.epsilon,
            "direction": self.direction,
            "verdict": self.verdict(within),
            "factor": self.factor if math.isfinite(self.factor) else None,
            "exact": self.exact.to_dict(),
            "monte_carlo": self.sampled.to_dict(),
        }


def compared(epsilon: float, exact: Bound, sampled: Bound) -> list[Check]:
    """Both directions of two answers."""
    found = []
    for name, other in (("remove", "add"), ("add", "remove")):
        least = min(float(bound.directions[other].lower) for bound in (exact, sampled))
        found.append(Check(epsilon, name, exact.directions[name], sampled.directions[name], least))
    return found


def usual_samples(mechanism: Mechanism) -> int:
    """Samples a direction; with several redrawn epochs each of them costs as much as one."""
    redrawn = mechanism.epochs if mechanism.sampler == BallsAndBins(mechanism.sampler.steps) else 1
    return max(_MANY_EPOCHS, _FEW_EPOCHS // max(redrawn, 5))


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("verify")(verify)


def verify(
    noise_multiplier: options.NoiseOption,
    epsilon: Annotated[list[float], typer.Option("--epsilon", "-e", help="ε; may be given several times.")],
    steps: options.StepsOption = None,
    epochs: options.EpochsOption = 1,
    fixed_bins: options.FixedBinsOption = False,
    examples: options.ExamplesOption = None,
    batch_size: options.BatchSizeOption = None,
    within: Annotated[
        float, typer.Option("--within", help="How sharp the comparison must be: 0.1 is a factor of 1.1.")
    ] = 0.1,
    samples: monte_carlo.SamplesOption = None,
    error_prob: monte_carlo.ErrorProbOption = None,
    seed: monte_carlo.SeedOption = None,
    workers: monte_carlo.WorkersOption = None,
    state: monte_carlo.StateOption = None,
    json: options.JsonOption = False,
) -> None:
    """Check the exact δ by Monte Carlo. For example: ballsbins verify -s 0.35 -T 1000 -e 10

    Exit code 0: they agree, within the factor shown. 1: they disagree. 3: it was not sharp enough to tell.
    """
    from ballsbins.accounting.monte_carlo.confidence import error_probability

    if not within > 0.0:
        raise InvalidInputError("--within", within, "above 0", "0.1 asks for a factor of 1.1.")
    mechanism, derived = options.mechanism_from(
        SamplerName.BALLS_AND_BINS, noise_multiplier, steps, epochs, fixed_bins=fixed_bins, examples=examples,
        batch_size=batch_size, max_batch_size=None,
    )  # fmt: skip
    # the confidence is shared over all ε, so that a false alarm at any of them is as rare as stated
    rare = error_probability(1e-6 if error_prob is None else error_prob)
    many = usual_samples(mechanism) if samples is None else samples
    method = monte_carlo.method_from(monte_carlo.NAME, many, rare / len(epsilon), seed, workers, state)
    exacts, answers = (monte_carlo.deltas(mechanism, epsilon, how) for how in ("auto", method))
    checks = [
        one
        for point, exact, sampled in zip(epsilon, exacts, answers, strict=True)
        for one in compared(point, exact, sampled)
    ]
    verdicts = [check.verdict(within) for check in checks]
    worst = next(name for name in ("disagree", "inconclusive", "agree", "negligible") if name in verdicts)
    if json:
        found = [check.to_dict(within) for check in checks]
        render.print_json(
            {"mechanism": mechanism.to_dict(), "verdict": worst, "within": within, "checks": found}
        )
    else:
        out = render.console()
        out.print(render.describe(mechanism, derived), style="dim")
        out.print()
        rows = [(*_row(check), verdict.upper() if verdict == "disagree" else verdict)
                for check, verdict in zip(checks, verdicts, strict=True)]  # fmt: skip
        columns = ("ε, direction", "δ at least", "δ at most", "sampled, at least", "at most", "factor", "")
        out.print(render.plain_table(columns, rows))
        out.print()
        against = f"{answers[0].method}, which fails with probability {stated(rare)}"
        out.print(f"method: {exacts[0].method}, against {against}", style="dim")
    there = [check for check, verdict in zip(checks, verdicts, strict=True) if verdict == worst]
    where = ", ".join(f"{check.direction} at ε = {stated(check.epsilon)}" for check in there)
    if worst == "disagree":
        typer.echo(
            f"ballsbins: VERIFICATION FAILED: the intervals are disjoint for {where}. By chance alone this happens "
            f"with probability below {stated(rare)}. Do not rely on these numbers; report it.",
            err=True,
        )
        raise typer.Exit(DISAGREE)
    if worst == "inconclusive":
        typer.echo(
            f"ballsbins: INCONCLUSIVE: the intervals meet, but an error of {stated(100 * within)} % would not have "
            f"been found for {where}. Draw more with --samples, or accept less with --within.",
            err=True,
        )
        raise typer.Exit(INCONCLUSIVE)


def _row(check: Check) -> tuple[str, ...]:
    exact, sampled = check.exact, check.sampled
    return (
        f"{stated(check.epsilon)}, {check.direction}",
        render.down(float(exact.lower)),
        render.up(float(exact.upper)),
        render.down(float(sampled.lower)),
        render.up(float(sampled.upper)),
        render.up(check.factor, 4),
    )
