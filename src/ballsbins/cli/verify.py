"""`ballsbins verify | audit | audit-training`: doubt the accountant by sampling its δ, and attack what is run."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from ballsbins import ask
from ballsbins._progress import telling
from ballsbins.bound import Bound
from ballsbins.cli import output
from ballsbins.cli.options import DeltaOption, JsonOption, Run, Sampling, Without, with_groups
from ballsbins.cli.privacy import deltas
from ballsbins.errors import InvalidInputError
from ballsbins.mechanism import Mechanism
from ballsbins.report.numbers import batches_of, down, stated, too_large_delta, up

# samples per direction: enough to agree within 10 % at every setting of benchmarks/verify.py
_FEW_EPOCHS, _MANY_EPOCHS = 250_000, 26_000
DISAGREE, INCONCLUSIVE = 1, 3  # exit codes; 2 means an error in the question
_NOTHING = 1e-300  # two δ below this both count as 0
_VERDICTS = {  # of `verify`, by the worst of its comparisons
    "agree": "δ and its samples agree",
    "negligible": "δ and its samples are both negligible",
    "inconclusive": "δ and its samples meet, but not sharply enough to tell",
    "disagree": "δ and its samples DISAGREE",
}
# A δ below this fraction of the other direction's cannot decide the maximum, so it need not be sharp.
_NEGLIGIBLE = 1e-6


@dataclass(frozen=True)
class Check:
    """One δ by two methods."""

    epsilon: float
    direction: str
    exact: Bound
    sampled: Bound
    other: float = 0.0  # lower bound on the δ of the other direction, from both methods

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
    """Samples per direction; with several redrawn epochs each of them costs as much as one."""
    _, epochs = mechanism.independent_epochs
    return max(_MANY_EPOCHS, _FEW_EPOCHS // max(epochs, 5))


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("verify")(verify)
    app.command("audit")(audit)
    app.command("audit-training")(audit_training)


@with_groups
def verify(
    run: Annotated[Run, Without("sampler", "max_batch_size")],
    epsilon: Annotated[list[float], typer.Option("--epsilon", "-e", help="ε; may be given several times.")],
    sampling: Annotated[Sampling, Without("grid", "draw", "confidence_bound", "orders")],
    within: Annotated[
        float, typer.Option("--within", help="How sharp the comparison must be: 0.1 is a factor of 1.1.")
    ] = 0.1,
    json: JsonOption = False,
) -> None:
    """Check the exact δ by Monte Carlo.

    For example: ballsbins verify -s 0.35 -T 1000 -e 10

    Exit code 0: they agree, within the factor shown. 1: they disagree. 3: it was not sharp enough to tell.
    """
    from ballsbins.accounting.monte_carlo.confidence import error_probability

    if not within > 0.0:
        raise InvalidInputError("--within", within, "above 0", "0.1 asks for a factor of 1.1.")
    mechanism, derived = run.mechanism()
    # divide the confidence among all ε, so that a false alarm at any of them is as rare as stated
    rare = error_probability(1e-6 if sampling.error_prob is None else sampling.error_prob)
    many = usual_samples(mechanism) if sampling.samples is None else sampling.samples
    method = replace(sampling, samples=many, error_prob=rare / len(epsilon)).monte_carlo()
    exacts, answers = (deltas(mechanism, epsilon, how) for how in ("auto", method))
    checks = [
        one
        for point, exact, sampled in zip(epsilon, exacts, answers, strict=True)
        for one in compared(point, exact, sampled)
    ]
    verdicts = [check.verdict(within) for check in checks]
    worst = next(name for name in ("disagree", "inconclusive", "agree", "negligible") if name in verdicts)
    if json:
        found = [check.to_dict(within) for check in checks]
        output.print_json(
            {"mechanism": mechanism.to_dict(), "verdict": worst, "within": within, "checks": found}
        )
    else:
        out = output.console()
        out.print(f"[bold]{_VERDICTS[worst]}[/bold] for {batches_of(mechanism)}")
        output.print_run(out, mechanism, derived, [])
        out.print()
        rows = [(*_row(check), verdict.upper() if verdict == "disagree" else verdict)
                for check, verdict in zip(checks, verdicts, strict=True)]  # fmt: skip
        columns = ("ε, direction", "δ at least", "δ at most", "sampled ≥", "sampled ≤", "factor", "")
        out.print(output.plain_table(columns, rows))
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
        down(float(exact.lower)),
        up(float(exact.upper)),
        down(float(sampled.lower)),
        up(float(sampled.upper)),
        up(check.factor, 4),
    )


def _print_audited(
    out: Console,
    run: Run,
    mechanism: Mechanism,
    derived: str | None,
    claimed: Bound,
    delta: float,
    holds: bool,
) -> None:
    """What became of the claim, and for which batches it is."""
    verdict = "may be true" if holds else "is REFUTED"
    claim = f"ε ≤ {up(float(claimed.upper), 5)} at δ = {stated(delta)}"
    out.print(f"[bold]{claim} {verdict}[/bold] for {batches_of(mechanism)}")
    shuffled = ask.if_shuffled(mechanism, delta=[delta]) if run.sampler is None else None
    output.print_run(out, mechanism, derived, [too_large_delta(delta, run.examples), shuffled])


@with_groups
def audit(
    run: Annotated[Run, Without("max_batch_size")],
    delta: DeltaOption,
    trials: Annotated[
        int, typer.Option("--trials", help="Runs with the canary, and as many without.")
    ] = 100_000,
    confidence: Annotated[
        float, typer.Option("--confidence", help="Probability that the lower bounds hold.")
    ] = 0.999,
    seed: Annotated[int, typer.Option("--seed", help="The same seed gives the same audit.")] = 0,
    secret_noise_multiplier: Annotated[
        float | None,
        typer.Option(
            "--secret-noise-multiplier",
            help="Really run with this σ: a negative control, to see that the audit notices.",
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Does the claimed ε stand up to the best attack?

    For example: ballsbins audit --sampler poisson -s 1 -T 20 -d 1e-3

    Runs the mechanism many times with and without one example, on the data that is worst for its sampler and with the
    noise and arithmetic of training, and tells them apart by the likelihood ratio and by the low bits of what is
    released. Ends with exit code 1 if the runs refute the claim.
    """
    from ballsbins.audit import audit as attack

    mechanism, derived = run.mechanism()
    with telling(lambda: "attacking"):
        result = attack(
            mechanism,
            delta,
            trials=trials,
            confidence=confidence,
            seed=seed,
            secret_noise_multiplier=secret_noise_multiplier,
        )
    if json:
        output.print_json(result.to_dict() | {"secret_noise_multiplier": secret_noise_multiplier})
    else:
        out = output.console()
        _print_audited(out, run, mechanism, derived, result.at_delta.claimed, delta, result.consistent)
        if secret_noise_multiplier is not None:
            out.print(f"negative control: really run with σ = {secret_noise_multiplier:g}", style="yellow")
        out.print()
        tests = [("at the δ asked for", result.at_delta)]
        if result.sharpest is not None:
            tests.append(("at the most informative δ", result.sharpest))
        tests.append(("by the low bits of floats", result.low_bits))
        rows = [
            (
                name,
                down(test.shown.delta, 4),
                down(test.shown.epsilon, 5),
                up(float(test.claimed.upper), 5),
                "may be true" if test.consistent else "REFUTED",
            )
            for name, test in tests
        ]
        out.print(output.plain_table(["", "δ", "runs show ε ≥", "claimed ε ≤", "the claim"], rows))
        out.print()
        out.print(
            f"{trials:,} runs with the canary and as many without; the bounds hold with confidence {confidence:g}",
            style="dim",
        )
    if not result.consistent:
        typer.echo(
            "ballsbins: CLAIM REFUTED: what was run is less private than claimed. By chance alone this happens with "
            f"probability below {1.0 - confidence:.3g}.",
            err=True,
        )
        raise typer.Exit(1)


@with_groups
def audit_training(
    run: Annotated[Run, Without("max_batch_size")],
    delta: DeltaOption,
    library: Annotated[
        Literal["jax", "torch"],
        typer.Option("--library", help="The JAX trainer, or a PyTorch loop with Opacus."),
    ] = "jax",
    canaries: Annotated[
        int, typer.Option("--canaries", help="Examples that are in the run by the toss of a coin.")
    ] = 1000,
    confidence: Annotated[
        float, typer.Option("--confidence", help="Probability that the lower bound holds.")
    ] = 0.99,
    seed: Annotated[int, typer.Option("--seed", help="The same seed gives the same audit.")] = 0,
    secret_noise_multiplier: Annotated[
        float | None,
        typer.Option(
            "--secret-noise-multiplier",
            help="Really train with this σ, 0 for none: a negative control, to see that the audit notices.",
        ),
    ] = None,
    secret_clip_norm: Annotated[
        float | None,
        typer.Option(
            "--secret-clip-norm",
            help="Really clip to this norm instead of 0.1, inf for not at all: a negative control.",
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Attack one training run: does it keep the claim?

    For example: ballsbins audit-training --sampler balls-and-bins -s 0.6 -T 50 -d 1e-5

    Trains once, with the real batches, sums and noise, on random data and many canaries, and guesses from the noisy
    gradients which canaries were in the run. Ends with exit code 1 if the guesses refute the claim. In Python,
    ballsbins.audit.one_run_jax and one_run_torch audit your own data, model and loss.
    """
    if library == "jax":
        from ballsbins.audit.one_run_jax import audit_example
    else:
        from ballsbins.audit.one_run_torch import audit_example

    mechanism, derived = run.mechanism()
    with telling(lambda: "training"):
        found = audit_example(
            mechanism, delta, canaries=canaries, seed=seed, confidence=confidence,
            secret_noise_multiplier=secret_noise_multiplier, secret_clip_norm=secret_clip_norm,
        )  # fmt: skip
    if json:
        output.print_json(found.to_dict())
    else:
        out = output.console()
        _print_audited(out, run, mechanism, derived, found.claimed, delta, found.consistent)
        if secret_noise_multiplier is not None or secret_clip_norm is not None:
            out.print("negative control: really trained in another way than claimed", style="yellow")
        out.print()
        verdict = "may be true" if found.consistent else "REFUTED"
        row = (stated(delta), down(found.shown, 3), up(float(found.claimed.upper), 5), verdict)
        out.print(output.plain_table(["δ", "run shows ε ≥", "claimed ε ≤", "the claim"], [row]))
        out.print()
        out.print(
            f"{found.right:,} of {found.guesses:,} guesses about {canaries:,} canaries were right; the bound holds "
            f"with confidence {confidence:g}",
            style="dim",
        )
    if not found.consistent:
        typer.echo(
            "ballsbins: CLAIM REFUTED: the training is less private than claimed. By chance alone this happens with "
            f"probability below {1.0 - confidence:.3g}.",
            err=True,
        )
        raise typer.Exit(1)
