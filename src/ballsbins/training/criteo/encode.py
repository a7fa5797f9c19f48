"""From a block of text lines to a table of labels, log-transformed integers and categories."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ballsbins import _extras
from ballsbins.errors import InvalidInputError
from ballsbins.training.criteo.formats import Format
from ballsbins.training.criteo.hashing import MISSING_ID, bucket_ids
from ballsbins.training.criteo.lines import BadLines, Block
from ballsbins.training.dataset import LABEL

MISSING_INTEGER = -1.0  # below every logarithm of a value that is there, so a network can tell it from 0
INTEGER_RULE = f"log(1 + max(x, 0)); missing is {MISSING_INTEGER:g}"
_INTEGER = r"^-?[0-9]{1,18}$"
_SHOWN = 40  # characters of a wrong value in an error


class Encoder:
    """Turns blocks into tables; lines whose values are not what the format says go to `bad`.

    With a `salt` the categories become bucket ids; without one they stay text, for a vocabulary, and null is missing.
    """

    def __init__(self, form: Format, buckets: Mapping[str, int], salt: str | None, bad: BadLines) -> None:
        """Load what is needed."""
        self._form, self._buckets, self._salt, self._bad = form, buckets, salt, bad
        self._arrow = _extras.load("pyarrow", feature="Preparing data", extra="data")
        self._csv = _extras.load("pyarrow.csv", feature="Preparing data", extra="data")
        self._compute = _extras.load("pyarrow.compute", feature="Preparing data", extra="data")

    def encode(self, block: Block) -> tuple[Any, NDArray[np.int64]]:
        """The table of the block's lines, and their numbers."""
        if not block.text:
            return self._arrow.table({}), block.numbers
        table = self._parse(block.text)
        reasons: dict[int, str] = {}  # row → why it is left out
        columns: dict[str, Any] = {LABEL: self._labels(table.column(self._form.label), block.numbers)}
        for name in self._form.integers:
            columns[name] = self._integers(table.column(name), name, reasons)
        for name in self._form.buckets:
            columns[name] = self._category(table.column(name), name, reasons)
        encoded, numbers = self._arrow.table(columns), block.numbers
        if reasons:
            for row in sorted(reasons):
                self._bad.add(int(numbers[row]), reasons[row])
            keep = np.ones(len(numbers), bool)
            keep[list(reasons)] = False
            encoded, numbers = encoded.filter(self._arrow.array(keep)), numbers[keep]
        return encoded, numbers

    def _parse(self, text: bytes) -> Any:
        csv, string = self._csv, self._arrow.string()
        table = csv.read_csv(
            self._arrow.BufferReader(text),
            read_options=csv.ReadOptions(column_names=self._form.columns, block_size=len(text) + 1),
            parse_options=csv.ParseOptions(delimiter="\t", quote_char=False, ignore_empty_lines=False),
            convert_options=csv.ConvertOptions(
                column_types=dict.fromkeys(self._form.used, string),
                include_columns=list(self._form.used),
                strings_can_be_null=False,
                check_utf8=False,  # a category is bytes to be hashed; numbers are checked below
            ),
        )
        return table.combine_chunks()

    def _labels(self, column: Any, numbers: NDArray[np.int64]) -> NDArray[np.int8]:
        """0 or 1. Anything else means another file or another column, so it ends the run whatever the policy."""
        column = column.combine_chunks()
        ones = self._compute.equal(column, "1").to_numpy(zero_copy_only=False)
        zeros = self._compute.equal(column, "0").to_numpy(zero_copy_only=False)
        wrong = np.flatnonzero(~(ones | zeros))
        if len(wrong):
            raise InvalidInputError(
                f"the label {self._form.label!r} in line {int(numbers[wrong[0]]):,} of {self._bad.path}",
                _text_at(column, int(wrong[0])),
                "0 or 1",
                f"The file should be that of {self._form.title}; the labelled one, with the label in column "
                f"{self._form.columns.index(self._form.label) + 1}.",
            )
        return np.asarray(ones, np.int8)

    def _integers(self, column: Any, name: str, reasons: dict[int, str]) -> NDArray[np.float32]:
        compute, column = self._compute, column.combine_chunks()
        missing = compute.equal(column, "")
        present = compute.if_else(missing, None, column)
        # Always by this rule, of which the cast knows another: a line must not be judged by others of its block.
        fits = compute.match_substring_regex(present, _INTEGER).fill_null(True)
        for row in np.flatnonzero(~fits.to_numpy(zero_copy_only=False)).tolist():
            reasons.setdefault(
                row, f"{name} is {_text_at(column, row)!r}, not an integer of at most 18 digits"
            )
        values = compute.if_else(fits, present, None).cast(self._arrow.int64())
        numbers = values.fill_null(0).to_numpy(zero_copy_only=False).astype(np.float64)
        logs = np.log1p(np.maximum(numbers, 0.0))
        return np.where(missing.to_numpy(zero_copy_only=False), MISSING_INTEGER, logs).astype(np.float32)

    def _category(self, column: Any, name: str, reasons: dict[int, str]) -> Any:
        coded = column.combine_chunks().dictionary_encode()
        texts, places = coded.dictionary, coded.indices.to_numpy()
        missing = self._compute.is_in(texts, self._arrow.array(self._form.missing)).to_numpy(
            zero_copy_only=False
        )
        if self._form.pattern is not None:
            wrong = ~self._compute.match_substring_regex(texts, self._form.pattern).to_numpy(
                zero_copy_only=False
            )
            wrong &= ~missing
            if wrong.any():
                for row in np.flatnonzero(wrong[places]).tolist():
                    reasons.setdefault(row, f"{name} is {_text_at(column, row)!r}, not 8 hexadecimal digits")
        if self._salt is None:
            # Nulls in place of texts that stand for none; bytes, because a vocabulary need not be valid UTF-8.
            known = self._compute.if_else(self._arrow.array(missing), None, texts.cast(self._arrow.binary()))
            return known.take(coded.indices)
        ids = bucket_ids(texts, self._buckets[name], salt=self._salt, feature=name)
        ids[missing] = MISSING_ID
        return ids[places]


def _text_at(column: Any, row: int) -> str:
    raw: str = column[row].as_buffer().to_pybytes().decode("utf-8", "replace")
    return raw if len(raw) <= _SHOWN else raw[:_SHOWN] + "…"
