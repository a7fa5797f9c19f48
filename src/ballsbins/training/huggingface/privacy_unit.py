"""What one row of the training data is, which decides whose privacy the statement is about.

DP-SGD protects one row. Where texts are packed, a row is not a text: one row holds pieces of several, and one text
may lie in several rows. Nobody can see that in the token ids. So for language models, and where packing shows, the
unit is a required argument.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ballsbins.errors import InvalidInputError, RunError
from ballsbins.training.huggingface.losses import LANGUAGE_MODELS

ROW, PACKED_ROW, DOCUMENT = "row", "packed row", "document"
UNITS = (ROW, PACKED_ROW, DOCUMENT)
_SIGNS = ("seq_lengths", "cu_seq_lens_q", "document_ids")  # columns that packed data sets have
_MEANING = (
    "'row': every row is one text, and is protected whole; 'packed row': rows hold several texts, or pieces of them; "
    "one row is protected, not a text; 'document': one document is protected, which must lie in one row by itself "
    "(give document_ids)."
)


def unit_of(
    given: str | None, kind: str | None, columns: Sequence[str], documents: Sequence[Any] | None, rows: int
) -> str:
    """Decide the unit of privacy, or ask for it.

    Args:
        given: what the user says; None if nothing.
        kind: which loss the model has.
        columns: of the data set.
        documents: for each row, the document it is from, or a list of several.
        rows: the number of rows.

    Returns:
        One of "row", "packed row", "document".

    Raises:
        InvalidInputError: it must be said, or what was said cannot be.
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
    """Refuse a batch that shows packing if a row was said to be one text: positions that begin anew within a row."""
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
    """Say on the card what the unit leaves out."""
    if unit != PACKED_ROW:
        return ()
    return (
        "Texts as such: one packed row is what is protected. A text that lies in several rows has less privacy than "
        "stated, and so has an author of several texts",
    )
