"""The options that several commands share, and how they become a Mechanism."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from ballsbins.errors import InvalidInputError
from ballsbins.mechanism import Mechanism
from ballsbins.samplers import BallsAndBins, Deterministic, Poisson, Sampler, Shuffle

if TYPE_CHECKING:
    from ballsbins.calibration import MaxBatchSize


class SamplerName(StrEnum):
    """What `--sampler` may be."""

    BALLS_AND_BINS = "balls-and-bins"
    POISSON = "poisson"
    SHUFFLE = "shuffle"
    DETERMINISTIC = "deterministic"


_RUN, _DATA = "What is run", "The data"

SamplerOption = Annotated[
    SamplerName, typer.Option("--sampler", help="How batches are drawn.", rich_help_panel=_RUN)
]
NoiseOption = Annotated[
    float,
    typer.Option(
        "--noise-multiplier",
        "-s",
        help="σ: standard deviation of the noise divided by the clip norm.",
        rich_help_panel=_RUN,
    ),
]
StepsOption = Annotated[
    int | None, typer.Option("--steps", "-T", help="Batches in one epoch.", rich_help_panel=_RUN)
]
EpochsOption = Annotated[
    int, typer.Option("--epochs", "-E", help="Passes over the data.", rich_help_panel=_RUN)
]
FixedBinsOption = Annotated[
    bool,
    typer.Option(
        "--fixed-bins", help="Keep the same bins in every epoch (far less private).", rich_help_panel=_RUN
    ),
]
ExamplesOption = Annotated[
    int | None,
    typer.Option(
        "--examples",
        "-n",
        help="Number of examples; with --batch-size in place of --steps.",
        rich_help_panel=_DATA,
    ),
]
BatchSizeOption = Annotated[
    int | None,
    typer.Option(
        "--batch-size",
        "-b",
        help="Expected batch size; steps = ⌈examples / batch size⌉.",
        rich_help_panel=_DATA,
    ),
]
MaxBatchSizeOption = Annotated[
    int | None,
    typer.Option(
        "--max-batch-size", "-B", help="Truncate larger batches; needs --examples.", rich_help_panel=_DATA
    ),
]
MethodOption = Annotated[
    str,
    typer.Option(
        "--method",
        help="auto; to compare with, for balls-and-bins: renyi, lower-bound or monte-carlo.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]


def steps_from(steps: int | None, examples: int | None, batch_size: int | None) -> tuple[int, str | None]:
    """T as stated, or ⌈n/b⌉ with a sentence that says so."""
    if steps is not None:
        if batch_size is not None:
            raise InvalidInputError(
                "--batch-size",
                batch_size,
                "left out if --steps is given",
                "Give --steps, or --examples with --batch-size.",
            )
        return steps, None
    if examples is None or batch_size is None:
        raise InvalidInputError(
            "--steps", None, "given", "Give --steps, or --examples with --batch-size to derive it."
        )
    for name, value in (("--examples", examples), ("--batch-size", batch_size)):
        if value < 1:
            raise InvalidInputError(
                name, value, "an integer of at least 1", "Count the examples of the data set."
            )
    derived = -(-examples // batch_size)
    return derived, f"{examples:,} examples in batches of {batch_size:,} are {derived:,} steps an epoch"


def sampler_from(
    name: SamplerName, steps: int, *, fixed_bins: bool, max_batch_size: int | None, examples: int | None
) -> Sampler:
    """The sampler that the options describe; what does not fit it is an error."""
    if fixed_bins and name is not SamplerName.BALLS_AND_BINS:
        raise InvalidInputError(
            "--fixed-bins", True, f"left out for {name}", "Only balls-and-bins has bins to keep."
        )
    if max_batch_size is not None:
        if name not in (SamplerName.BALLS_AND_BINS, SamplerName.POISSON):
            advice = "Only the batches of balls-and-bins and Poisson vary in size."
            raise InvalidInputError("--max-batch-size", max_batch_size, f"left out for {name}", advice)
        if examples is None:
            advice = "What truncation costs depends on the number of examples."
            raise InvalidInputError("--examples", None, "given with --max-batch-size", advice)
    limit = {} if max_batch_size is None else {"max_batch_size": max_batch_size, "num_examples": examples}
    match name:
        case SamplerName.BALLS_AND_BINS:
            return BallsAndBins(steps, redraw=not fixed_bins, **limit)
        case SamplerName.POISSON:
            return Poisson(steps, **limit)
        case SamplerName.SHUFFLE:
            return Shuffle(steps)
        case SamplerName.DETERMINISTIC:
            return Deterministic(steps)


def limit_from(text: str) -> MaxBatchSize:
    """The largest batch size, or the rule that finds it when the number of examples is known."""
    from ballsbins.calibration import PAPER_MAX_BATCH_SIZES

    if text == "auto" or text in PAPER_MAX_BATCH_SIZES:
        return text  # type: ignore[return-value]
    try:
        return int(text)
    except ValueError:
        bound = f"a number, auto, {' or '.join(PAPER_MAX_BATCH_SIZES)}"
        raise InvalidInputError(
            "--max-batch-size", text, bound, "auto costs next to nothing in privacy."
        ) from None


def mechanism_from(
    sampler: SamplerName,
    noise_multiplier: float,
    steps: int | None,
    epochs: int,
    *,
    fixed_bins: bool,
    examples: int | None,
    batch_size: int | None,
    max_batch_size: int | None,
) -> tuple[Mechanism, str | None]:
    """The Mechanism that the options describe, and how its steps were derived if they were."""
    count, derived = steps_from(steps, examples, batch_size)
    chosen = sampler_from(
        sampler, count, fixed_bins=fixed_bins, max_batch_size=max_batch_size, examples=examples
    )
    return Mechanism(chosen, noise_multiplier, epochs), derived


def refuse_beside_cards(context: typer.Context, *allowed: str) -> None:
    """A card states what was run: an option that could contradict it is an error."""
    for parameter in context.command.params:
        name = str(parameter.name)
        source = context.get_parameter_source(name)
        if name not in allowed and source is not None and source.name == "COMMANDLINE":
            advice = "The card states what was run."
            raise InvalidInputError(parameter.opts[0], context.params[name], "left out with --from", advice)
