"""Turn user input into a Mechanism, and answers into sentences, for the command line and the web page.

Both use the same functions, so the same mistake gives the same message. Errors name an input as the command line
writes it (`--batch-size`); the web page finds its field by that name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

from ballsbins.accounting.search import LARGEST_EPSILON
from ballsbins.bound import Bound
from ballsbins.comparison import at_equal_noise
from ballsbins.errors import InvalidInputError
from ballsbins.mechanism import Mechanism
from ballsbins.report.numbers import down, stated, up
from ballsbins.samplers import BallsAndBins, Deterministic, Poisson, Sampler, Shuffle

if TYPE_CHECKING:
    from ballsbins.largest_batch import MaxBatchSize


class SamplerName(StrEnum):
    """Names by which users refer to samplers."""

    BALLS_AND_BINS = "balls-and-bins"
    POISSON = "poisson"
    SHUFFLE = "shuffle"
    DETERMINISTIC = "deterministic"


_SAMPLERS: Mapping[SamplerName, type[Sampler]] = {
    SamplerName.BALLS_AND_BINS: BallsAndBins,
    SamplerName.POISSON: Poisson,
    SamplerName.SHUFFLE: Shuffle,
    SamplerName.DETERMINISTIC: Deterministic,
}


def steps_from(steps: int | None, examples: int | None, batch_size: int | None) -> tuple[int, str | None]:
    """Return T as given, or ⌈n/b⌉ with a phrase that explains it."""
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
    if examples < 1:
        advice = "Count the examples of the data set."
        raise InvalidInputError("--examples", examples, "an integer of at least 1", advice)
    if not 1 <= batch_size <= examples:
        bound = f"an integer from 1 to {examples:,}, the number of examples"
        advice = "A batch has at least one example, and at most all of them."
        raise InvalidInputError("--batch-size", batch_size, bound, advice)
    derived = -(-examples // batch_size)
    return derived, f"{examples:,} examples in batches of {batch_size:,}"


def sampler_from(
    name: SamplerName,
    steps: int,
    *,
    fixed_bins: bool = False,
    max_batch_size: int | None = None,
    examples: int | None = None,
) -> Sampler:
    """Return the sampler of that name; options that do not apply to it raise an error."""
    if fixed_bins and name is not SamplerName.BALLS_AND_BINS:
        raise InvalidInputError(
            "--fixed-bins", True, f"left out for {name}", "Only balls-and-bins has bins to keep."
        )
    sampler = BallsAndBins(steps, redraw=False) if fixed_bins else _SAMPLERS[name](steps)
    if max_batch_size is None:
        return sampler
    if not sampler.random_sizes:
        advice = "Only the batches of balls-and-bins and Poisson vary in size."
        raise InvalidInputError("--max-batch-size", max_batch_size, f"left out for {name}", advice)
    if examples is None:
        advice = "What truncation costs depends on the number of examples."
        raise InvalidInputError("--examples", None, "given with --max-batch-size", advice)
    return sampler.truncated_to(max_batch_size, examples)


def under_each_sampler(mechanism: Mechanism) -> dict[SamplerName, Mechanism]:
    """Return the same run under each sampler; its own sampler keeps `mechanism` itself.

    Samplers with random batch sizes truncate as `mechanism` does.
    """
    runs = {type(run.sampler): run for run in reversed(at_equal_noise(mechanism, truncated=True).values())}
    return {name: runs[kind] for name, kind in _SAMPLERS.items()}


def limit_from(text: str) -> MaxBatchSize:
    """Return the maximum batch size, or the rule that finds it once the number of examples is known."""
    from ballsbins.largest_batch import PAPER_MAX_BATCH_SIZES

    if text == "auto" or text in PAPER_MAX_BATCH_SIZES:
        return text  # type: ignore[return-value]
    try:
        return int(text)
    except ValueError:
        bound = f"a number, auto, {' or '.join(PAPER_MAX_BATCH_SIZES)}"
        raise InvalidInputError(
            "--max-batch-size", text, bound, "auto costs next to nothing in privacy."
        ) from None


def ends_agree(bound: Bound) -> bool:
    """Whether both ends agree to six digits."""
    lower, upper = float(bound.lower), float(bound.upper)
    return math.isfinite(upper) and upper - lower <= 2e-6 * abs(upper)


def interval(bound: Bound) -> str:
    """Return the interval as text, or one number if both ends agree to six digits."""
    lower, upper = float(bound.lower), float(bound.upper)
    return f"≤ {up(upper)}" if ends_agree(bound) else f"{down(lower)} … {up(upper)}"


def if_shuffled(mechanism: Mechanism, *, delta: Sequence[float] = (), epsilon: Sequence[float] = ()) -> str:
    """Return a sentence about a shuffled run of the same noise and length; it is shown if no sampler was named."""
    run = mechanism.under(Shuffle)
    answers = [
        *(("ε", f"at δ = {stated(point)}", run.epsilon(point)) for point in delta),
        *(("δ", f"at ε = {stated(point)}", run.delta(point)) for point in epsilon),
    ]
    ends = ", and ".join(
        f"{what} ≤ {up(float(bound.upper))} {at}"
        if ends_agree(bound)
        else f"{what} is at least {down(float(bound.lower))}, at most {up(float(bound.upper))} {at}"
        for what, at, bound in answers
    )
    return f"With DataLoader(shuffle=True) instead, {ends}. If that is how you batch, add --sampler shuffle."


def meaning(answers: Mapping[str, Bound], delta: float | None) -> str:
    """Explain what a comparison means for someone who trained with shuffled batches.

    `answers` maps the name of each sampler to its ε at `delta`, or to its δ at one ε if `delta` is None.
    """
    shuffle, poisson, bins = (answers[name] for name in ("shuffle", "Poisson", "balls-and-bins"))
    if not math.isfinite(float(bins.upper)):
        return "With so little noise no way to draw batches protects anybody."
    what, at = ("ε", f"δ = {stated(delta)}") if delta is not None else ("δ", "the first ε")
    claim, truth = float(poisson.upper), float(shuffle.lower)
    if truth > claim:
        often = f", {down(truth / claim, 2)} times as much" if truth >= 1.1 * claim > 0 else ""
        lie = (
            f"Training on shuffled batches and reporting Poisson claims {what} ≤ {up(claim, 4)} at {at}, "
            f"but the truth is at least {down(truth, 4)}{often}; "
        )
    else:
        lie = "For shuffled batches only the upper bound of deterministic batches is proved; "
    if float(bins.upper) < float(poisson.lower):
        how = "better than Poisson, and as easy as shuffling"
    elif float(bins.lower) > float(poisson.upper):
        how = "here worse than Poisson"
    else:
        how = "like Poisson, and as easy as shuffling"
    return f"{lie}balls-and-bins has {what} ≤ {up(float(bins.upper), 4)}, {how}."


def if_unbounded(bounds: Sequence[Bound]) -> str | None:
    """What an ε of ∞ means, if there is one."""
    if all(float(bound.lower) < LARGEST_EPSILON for bound in bounds):
        return None
    return f"An ε above {LARGEST_EPSILON:.0f} is no privacy, and is not computed: ∞. Take a larger σ."
