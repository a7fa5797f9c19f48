"""`ballsbins audit`: attack the mechanism, and see whether the claim stands."""

from __future__ import annotations

from typing import Annotated

import typer

from ballsbins.cli import options, render
from ballsbins.cli.options import SamplerName


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("audit")(audit)


def audit(
    noise_multiplier: options.NoiseOption,
    delta: Annotated[float, typer.Option("--delta", "-d", help="δ of the claim, a probability in (0, 1).")],
    steps: options.StepsOption = None,
    epochs: options.EpochsOption = 1,
    sampler: options.SamplerOption = SamplerName.BALLS_AND_BINS,
    fixed_bins: options.FixedBinsOption = False,
    examples: options.ExamplesOption = None,
    batch_size: options.BatchSizeOption = None,
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
    json: options.JsonOption = False,
) -> None:
    """Does the claimed ε stand up to the best attack? For example: ballsbins audit -s 1 -T 20 -d 1e-3

    Runs the mechanism many times with and without one example, on the data that is worst for its sampler and with the
    noise and arithmetic of training, and tells them apart by the likelihood ratio and by the low bits of what is
    released. Ends with exit code 1 if the runs refute the claim.
    """
    from ballsbins.audit import audit as run

    mechanism, derived = options.mechanism_from(
        sampler, noise_multiplier, steps, epochs, fixed_bins=fixed_bins, examples=examples, batch_size=batch_size,
        max_batch_size=None,
    )  # fmt: skip
    result = run(
        mechanism,
        delta,
        trials=trials,
        confidence=confidence,
        seed=seed,
        secret_noise_multiplier=secret_noise_multiplier,
    )
    if json:
        render.print_json(result.to_dict() | {"secret_noise_multiplier": secret_noise_multiplier})
    else:
        out = render.console()
        out.print(render.describe(mechanism, derived), style="dim")
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
                render.down(test.shown.delta, 4),
                render.down(test.shown.epsilon, 5),
                render.up(float(test.claimed.upper), 5),
                "may be true" if test.consistent else "REFUTED",
            )
            for name, test in tests
        ]
        out.print(render.plain_table(["", "δ", "runs show ε ≥", "claimed ε ≤", "the claim"], rows))
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
