"""From Trainer's arguments and data to the Mechanism that is run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from transformers import TrainingArguments

from ballsbins.calibration import calibrate
from ballsbins.errors import InvalidInputError
from ballsbins.mechanism import Mechanism
from ballsbins.samplers import BallsAndBins


def rows_of(dataset: Any) -> int:
    """Count the examples of a data set."""
    if dataset is None or not hasattr(dataset, "__len__"):
        raise InvalidInputError(
            "train_dataset", type(dataset).__name__, "one with a length and examples by index",
            "Batches name examples by their index: a data set that only iterates (streaming) cannot be batched.",
        )  # fmt: skip
    return len(dataset)


def columns_of(dataset: Any) -> list[str]:
    """Name the columns of a data set."""
    names = getattr(dataset, "column_names", None)
    if names is not None:
        return list(names)
    first = dataset[0] if len(dataset) else {}
    return list(first) if isinstance(first, Mapping) else []


def mechanism_for(
    args: TrainingArguments, rows: int, given: Mechanism | None, epsilon: float | None, delta: float | None
) -> Mechanism:
    """The mechanism to run, which has at least the steps that `args` ask for."""
    if (given is None) == (epsilon is None):
        raise InvalidInputError(
            "mechanism", given, "given, or else epsilon and delta, not both",
            "A Mechanism states the noise; a target is what the noise is found for.",
        )  # fmt: skip
    batch = args.per_device_train_batch_size * args.gradient_accumulation_steps * max(1, args.world_size)
    steps = -(-rows // batch) if given is None else given.sampler.steps
    wanted = args.max_steps if args.max_steps > 0 else math.ceil(args.num_train_epochs * steps)
    if given is None:
        if delta is None:
            raise InvalidInputError(
                "delta", None, "stated with epsilon", "Usually below 1 / number of examples."
            )
        assert epsilon is not None
        epochs = max(1, -(-wanted // steps))
        return calibrate(BallsAndBins(steps), epsilon=epsilon, delta=delta, epochs=epochs).after(wanted)
    if wanted > given.total_steps:
        asked = (
            f"max_steps={args.max_steps}"
            if args.max_steps > 0
            else f"num_train_epochs={args.num_train_epochs:g}"
        )
        raise InvalidInputError(
            f"the number of steps of {asked}", wanted, f"at most {given.total_steps:,}, as {given!r} has",
            f"Set num_train_epochs={given.total_steps / steps:g}, or give a mechanism with more epochs: a longer run "
            "costs more privacy.",
        )  # fmt: skip
    return given
