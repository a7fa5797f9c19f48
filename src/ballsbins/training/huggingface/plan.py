"""Derive the Mechanism and the unit of privacy from Trainer's arguments and data.

DP-SGD protects one row. If texts are packed, a row is not a text: one row holds pieces of several texts, and one text
may be spread over several rows. The token ids do not show this. So the unit is a required argument for language
models, and for data with signs of packing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import TrainingArguments

from ballsbins.calibration import calibrate
from ballsbins.errors import InvalidInputError, RunError
from ballsbins.mechanism import Mechanism
from ballsbins.samplers import BallsAndBins
from ballsbins.training.huggingface.losses import LANGUAGE_MODELS

ROW, PACKED_ROW, DOCUMENT = "row", "packed row", "document"
UNITS = (ROW, PACKED_ROW, DOCUMENT)
_SIGNS = ("seq_lengths", "cu_seq_lens_q", "document_ids")  # columns that packed data sets have
_MEANING = (
    "'row': every row is one text, and is protected whole; 'packed row': rows hold several texts, or pieces of them; "
    "one row is protected, not a text; 'document': one document is protected, which must lie in one row by itself "
    "(give document_ids)."
)


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
    """Return the mechanism to run, with at least as many steps as `args` ask for."""
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


def unit_of(
    given: str | None, kind: str | None, columns: Sequence[str], documents: Sequence[Any] | None, rows: int
) -> str:
    """Decide the unit of privacy, or ask for it.

    Args:
        given: the unit that the user stated; None if none.
        kind: the loss of the model, by transformers' name.
        columns: the columns of the data set.
        documents: for each row, the document it comes from, or a list of several.
        rows: the number of rows.

    Returns:
        One of "row", "packed row", "document".

    Raises:
        InvalidInputError: the unit must be stated, or the stated unit contradicts the data.
    """
    packed = [name for name in _SIGNS if name in columns]
    if given is None and not packed and documents is None and kind not in LANGUAGE_MODELS:
        return ROW
    if given not in UNITS:
        raise InvalidInputError(
            "privacy_unit", given, " or ".join(map(repr, UNITS)), f"Say what a row is. {_MEANING}"
        )
    if given == ROW and packed:
        raise InvalidInputError(
            "privacy_unit", given, f"'packed row' for data with the column {packed[0]!r}", _MEANING
        )
    if given == DOCUMENT:
        _require_documents_in_one_row(documents, rows)
    elif documents is not None:
        raise InvalidInputError("document_ids", "…", f"left out for privacy_unit={given!r}", _MEANING)
    return given


def _require_documents_in_one_row(documents: Sequence[Any] | None, rows: int) -> None:
    if documents is None or len(documents) != rows:
        raise InvalidInputError(
            "the number of document_ids",
            None if documents is None else len(documents),
            f"{rows:,}, one for each row",
            "They show that no document lies in two rows, and no row holds two.",
        )
    seen: dict[Any, int] = {}
    for row, given in enumerate(documents):
        ids = list(given) if isinstance(given, (list, tuple, set)) else [given]
        if len(set(ids)) != 1:
            raise InvalidInputError(
                f"the number of documents in row {row:,}", len(set(ids)), "1 for privacy_unit='document'",
                "A row with another of its documents left out is another row, whose gradient differs by up to 2C: "
                "put each document into a row of its own, or say privacy_unit='packed row'.",
            )  # fmt: skip
        if ids[0] in seen:
            raise InvalidInputError(
                "the set of rows of one document", [seen[ids[0]], row], "a single row for privacy_unit='document'",
                "A document in several rows counts several times: cut it to one row, or say privacy_unit='row' if a "
                "piece of a document is what is to be protected.",
            )  # fmt: skip
        seen[ids[0]] = row


def require_not_packed(unit: str, inputs: Mapping[str, Any]) -> None:
    """Refuse a batch whose positions restart within a row, which shows packing, if a row should hold one text."""
    positions = inputs.get("position_ids")
    if unit == PACKED_ROW or not isinstance(positions, torch.Tensor) or positions.dim() != 2:
        return
    mask = inputs.get("attention_mask")
    falls = positions[:, 1:] < positions[:, :-1]
    if isinstance(mask, torch.Tensor) and mask.shape == positions.shape:
        falls &= mask[:, 1:].bool() & mask[:, :-1].bool()
    if bool(falls.any()):
        raise RunError(
            f"position_ids begin anew within a row, so rows hold several texts, but privacy_unit is {unit!r}. "
            f"{_MEANING}"
        )


def not_covered_by(unit: str) -> tuple[str, ...]:
    """The sentences for the card on what the unit does not cover."""
    if unit != PACKED_ROW:
        return ()
    return (
        "Texts as such: one packed row is what is protected. A text that lies in several rows has less privacy than "
        "stated, and so has an author of several texts",
    )
