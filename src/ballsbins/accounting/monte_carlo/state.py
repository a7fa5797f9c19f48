"""The state of a long run in one file, replaced atomically: a crash leaves either the old or the new file, complete.

The file holds one entry for each question (sampler, lattice, seed), named by a hash of it, so that an entry is never
resumed for another question. Several processes may write to one file at the same time without losing anything: each
reads it again under a lock before replacing it. Of two entries for one question the longer one contains the other,
because the blocks of a question are the same in every process. The planned number of samples is that of the process
that asked first.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ballsbins._files import replacing
from ballsbins.accounting.monte_carlo.estimate import Lattice, Tally
from ballsbins.errors import InvalidInputError

try:
    import fcntl
except ImportError:  # Windows: one writer at a time
    fcntl = None  # type: ignore[assignment]

Entry = NDArray[np.int64]

_DIGITS = 32  # hexadecimal digits of a fingerprint: enough that no two questions share one
_HEAD = 5  # numbers before the tallies in an entry


def name_of(question: str) -> str:
    """The name under which the answer to a question is kept."""
    return hashlib.sha256(question.encode()).hexdigest()[:_DIGITS]


@dataclass(frozen=True)
class Saved:
    """The saved results of a question.

    The number of samples first planned, the blocks done, their counts, the counts of every look (after 1, 2, 4, …
    blocks), and the counts of the samples first planned, once all of them were drawn.
    """

    planned: int
    done: int
    tally: Tally
    looks: tuple[Tally, ...] = ()
    whole: Tally | None = None

    def encoded(self) -> Entry:
        """Encode as an array of integers."""
        tallies = [self.tally, *self.looks, *([] if self.whole is None else [self.whole])]
        head = [self.planned, self.done, len(self.looks), int(self.whole is not None), self.tally.low.size]
        parts = [np.concatenate([[tally.count], tally.low, tally.high]) for tally in tallies]
        return np.concatenate([np.array(head, dtype=np.int64), *parts])

    @staticmethod
    def decoded(lattice: Lattice, entry: Entry) -> Saved:
        """Decode what `encoded` returned."""
        planned, done, looks, whole, size = (int(x) for x in entry[:_HEAD])
        rows = entry[_HEAD:].reshape(1 + looks + whole, 1 + 2 * size)
        found = [Tally(lattice, int(row[0]), row[1 : 1 + size], row[1 + size :]) for row in rows]
        return Saved(planned, done, found[0], tuple(found[1 : 1 + looks]), found[-1] if whole else None)


def _longer(old: Entry, new: Entry) -> Entry:
    """The entry with more blocks, with the counts of the samples first planned from whichever entry has them."""
    further, other = (new, old) if new[1] > old[1] else (old, new)
    if further[3] or not other[3] or further[0] != other[0]:
        return further
    joined = np.append(further, other[-(1 + 2 * other[4]) :])
    joined[3] = 1
    return joined


class StateFile:
    """A file of entries by name; a missing file counts as empty."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Read the file, and check that it can be replaced: better to fail now than after hours of sampling."""
        self.path = Path(path)
        self._read()
        self._write(b"")

    def _read(self) -> dict[str, Entry]:
        if not self.path.exists():
            return {}
        try:
            with zipfile.ZipFile(self.path) as file:  # the format of np.savez; anything else is rejected
                if file.testzip() is not None:
                    raise ValueError
                found = {name.removesuffix(".npy"): np.load(file.open(name)) for name in file.namelist()}
            if any(len(name) != _DIGITS or entry.dtype != np.int64 for name, entry in found.items()):
                raise ValueError
            return found
        except (OSError, ValueError, zipfile.BadZipFile, EOFError, zlib.error):
            raise InvalidInputError(
                "state",
                str(self.path),
                "a file that ballsbins wrote",
                "Name another file, or remove this one.",
            ) from None

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other processes from reading or replacing a state in this directory."""
        if fcntl is None:
            yield
            return
        descriptor = os.open(self.path.parent, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def begin(self, question: str, lattice: Lattice, samples: int) -> Saved:
        """The saved results of a question; a new question is saved with its planned number of samples."""
        name, fresh = name_of(question), Saved(samples, 0, Tally.empty(lattice))
        with self._alone():
            known = self._read()
            if name not in known:
                self._replace(known | {name: fresh.encoded()})
                return fresh
        return Saved.decoded(lattice, known[name])

    def put(self, found: Mapping[str, Saved]) -> None:
        """Save the results of each of these questions; they are on disk when this returns."""
        with self._alone():
            known = self._read()
            for question, saved in found.items():
                name, new = name_of(question), saved.encoded()
                known[name] = _longer(known[name], new) if name in known else new
            self._replace(known)

    def _replace(self, entries: Mapping[str, Entry]) -> None:
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **entries)  # type: ignore[arg-type]
        self._write(buffer.getvalue())

    def _write(self, content: bytes) -> None:
        """Replace the file; without content, only check that it can be written."""
        try:
            if not content:
                tempfile.TemporaryFile(dir=self.path.parent).close()
                return
            with replacing(self.path, mode=None) as file:
                file.write(content)
        except OSError as error:
            bound = f"a file that can be written ({error.strerror})"
            raise InvalidInputError("state", str(self.path), bound, "Name another file.") from None
