"""A text file, plain or gzip, as blocks of well-formed lines with their numbers, in bounded memory."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from ballsbins.errors import InvalidInputError

Progress = Callable[[str, int, int], None]  # what is done, how far, of how much
BLOCK_BYTES = 16 * 2**20
_REPORTED = 10  # malformed lines that are described; the others are counted
_NEWLINE, _RETURN, _TAB = 10, 13, 9
_MARK = b"\xef\xbb\xbf"  # with which some editors begin a file


class Block(NamedTuple):
    """Whole lines that have the right number of fields, the number of each in the file, and how many there were."""

    text: bytes
    numbers: NDArray[np.int64]  # counted from 1
    first: int  # number of the block's first line, malformed or not
    lines: int  # how many the block had, malformed ones included


class BadLine(NamedTuple):
    """One malformed line."""

    number: int
    reason: str


@dataclass
class BadLines:
    """Counts malformed lines and describes the first few, or ends at the first, as asked."""

    path: Path
    policy: Literal["skip", "fail"] = "skip"
    count: int = 0
    described: list[BadLine] = field(default_factory=list)

    def add(self, number: int, reason: str) -> None:
        """Note one; with the policy "fail" this raises."""
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


def count_lines(path: Path, progress: Progress | None = None) -> int:
    """Count the lines; a last one without a newline is one too."""
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
    progress: Progress | None = None,
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


def _chunks(path: Path, size: int, task: str, progress: Progress | None) -> Iterator[bytes]:
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
