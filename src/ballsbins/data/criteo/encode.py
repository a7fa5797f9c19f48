"""Convert the lines of a file to encoded columns: read in blocks, note malformed lines, and encode the others."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from ballsbins import _extras
from ballsbins.data.criteo.formats import MISSING_ID, Format, bucket_ids
from ballsbins.data.dataset import LABEL
from ballsbins.errors import InvalidInputError

DataProgress = Callable[[str, int, int], None]  # arguments: the task, how much is done, the total
BLOCK_BYTES = 16 * 2**20
_REPORTED = 10  # number of malformed lines to describe; further ones are only counted
_NEWLINE, _RETURN, _TAB = 10, 13, 9
_MARK = b"\xef\xbb\xbf"  # byte order mark with which some editors begin a file


class Block(NamedTuple):
    """Whole lines with the right number of fields, the file's line number of each, and the count of all lines."""

    text: bytes
    numbers: NDArray[np.int64]  # counted from 1
    first: int  # number of the block's first line, malformed or not
    lines: int  # number of lines of the block, including malformed ones


class BadLine(NamedTuple):
    """One malformed line."""

    number: int
    reason: str


@dataclass
class BadLines:
    """Counts malformed lines and describes the first few, or raises at the first one, depending on the policy."""

    path: Path
    policy: Literal["skip", "fail"] = "skip"
    count: int = 0
    described: list[BadLine] = field(default_factory=list)

    def add(self, number: int, reason: str) -> None:
        """Record one malformed line; with the policy "fail" this raises."""
        if self.policy == "fail":
            raise InvalidInputError(
                f"line {number:,} of {self.path}",
                reason,
                "well-formed",
                "Correct the file, or have such lines counted and left out: --on-bad-line skip.",
            )
        self.count += 1
        if len(self.described) < _REPORTED:
            self.described.append(BadLine(number, reason))


def count_lines(path: Path, progress: DataProgress | None = None) -> int:
    """Count the lines, including a last one without a newline."""
    count, last = 0, b"\n"
    for chunk in _chunks(path, BLOCK_BYTES, "counting lines", progress):
        count += chunk.count(b"\n")
        last = chunk[-1:]
    return count + (last != b"\n")


def read_blocks(
    path: Path,
    fields: int,
    bad: BadLines,
    *,
    block_bytes: int = BLOCK_BYTES,
    progress: DataProgress | None = None,
) -> Iterator[Block]:
    """Give the lines with exactly `fields` tab-separated fields; the others go to `bad`."""
    number, rest = 1, b""
    for chunk in _chunks(path, block_bytes, "reading", progress):
        head, newline, tail = chunk.rpartition(b"\n")
        if not newline:
            rest += chunk
            if len(rest) > 4 * block_bytes:
                raise _not_text(path, f"no end of line within {len(rest):,} bytes")
            continue
        block = _well_formed(rest + head + b"\n", fields, number, bad)
        rest, number = tail, number + block.lines
        yield block
    if rest:
        yield _well_formed(rest + b"\n", fields, number, bad)


def _well_formed(text: bytes, fields: int, first: int, bad: BadLines) -> Block:
    if b"\r" in text:
        text = text.replace(b"\r\n", b"\n")
    raw = np.frombuffer(text, np.uint8)
    ends = np.flatnonzero(raw == _NEWLINE)
    tabs = np.searchsorted(np.flatnonzero(raw == _TAB), ends)
    found = np.diff(tabs, prepend=0) + 1
    numbers = np.arange(first, first + len(ends))
    good = found == fields
    broken = np.searchsorted(ends, np.flatnonzero(raw == _RETURN)) if b"\r" in text else np.empty(0, np.int64)
    good[broken] = False
    if good.all():
        return Block(text, numbers, first, len(ends))
    for place in np.flatnonzero(~good).tolist():
        count = int(found[place])
        wrong = f"{count} field{'s' * (count > 1)} in place of {fields}"
        bad.add(int(numbers[place]), wrong if count != fields else "a carriage return within the line")
    keep = np.repeat(good, np.diff(ends, prepend=-1))
    return Block(raw[keep].tobytes(), numbers[good], first, len(ends))


def _chunks(path: Path, size: int, task: str, progress: DataProgress | None) -> Iterator[bytes]:
    try:
        with open(path, "rb") as raw:
            total = os.fstat(raw.fileno()).st_size
            compressed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            source = cast(BinaryIO, gzip.open(raw) if compressed else raw)  # noqa: SIM115 (closed with raw)
            begin = True
            while chunk := source.read(size):
                if begin and b"\0" in chunk[:512]:
                    raise _not_text(path, "an archive or another binary file")
                if begin:
                    chunk = chunk.removeprefix(_MARK)
                begin = False
                if progress is not None:
                    progress(task, raw.tell(), total)
                yield chunk
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise _not_text(path, f"a broken gzip file: {error}") from None
    except OSError as error:
        advice = "Check the path; it is the file that you downloaded and unpacked, plain or gzip."
        raise InvalidInputError(
            "the input file", str(path), f"a file that can be read ({error.strerror})", advice
        ) from None


def _not_text(path: Path, found: str) -> InvalidInputError:
    return InvalidInputError(
        "the input file", str(path), f"tab-separated text, plain or gzip (found {found})",
        "Give the unpacked file, such as train.txt or CriteoSearchData.",
    )  # fmt: skip


# below the logarithm of every observed value, so that a network can tell a missing value from 0
MISSING_INTEGER = -1.0
INTEGER_RULE = f"log(1 + max(x, 0)); missing is {MISSING_INTEGER:g}"
_INTEGER = r"^-?[0-9]{1,18}$"
_SHOWN = 40  # characters of a wrong value to show in an error


class Encoder:
    """Turns blocks into tables; lines whose values do not match the format go to `bad`.

    With a `salt`, the categories become bucket ids. Without one they stay text, for a vocabulary, and null means
    missing.
    """

    def __init__(self, form: Format, buckets: Mapping[str, int], salt: str | None, bad: BadLines) -> None:
        """Load the needed libraries."""
        self._form, self._buckets, self._salt, self._bad = form, buckets, salt, bad
        self._arrow = _extras.load("pyarrow", feature="Preparing data", extra="data")
        self._csv = _extras.load("pyarrow.csv", feature="Preparing data", extra="data")
        self._compute = _extras.load("pyarrow.compute", feature="Preparing data", extra="data")

    def encode(self, block: Block) -> tuple[Any, NDArray[np.int64]]:
        """The table of the block's lines, and their numbers."""
        if not block.text:
            return self._arrow.table({}), block.numbers
        table = self._parse(block.text)
        reasons: dict[int, str] = {}  # row → why it is excluded
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
                check_utf8=False,  # a category is just bytes to hash; numbers are checked below
            ),
        )
        return table.combine_chunks()

    def _labels(self, column: Any, numbers: NDArray[np.int64]) -> NDArray[np.int8]:
        """The labels, 0 or 1. Any other value means a wrong file or column, so it always stops the run."""
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
        # Apply this rule instead of the cast's own: whether a line is valid must not depend on the lines around it.
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
            # Replace texts that mean "no value" by nulls; use bytes, because a vocabulary need not be valid UTF-8.
            known = self._compute.if_else(self._arrow.array(missing), None, texts.cast(self._arrow.binary()))
            return known.take(coded.indices)
        ids = bucket_ids(texts, self._buckets[name], salt=self._salt, feature=name)
        ids[missing] = MISSING_ID
        return ids[places]


def _text_at(column: Any, row: int) -> str:
    raw: str = column[row].as_buffer().to_pybytes().decode("utf-8", "replace")
    return raw if len(raw) <= _SHOWN else raw[:_SHOWN] + "…"
