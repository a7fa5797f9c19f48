"""What a long run has so far, in one file, replaced atomically: a crash leaves the old one or the new one, whole.

The file holds one entry for each question (sampler, lattice, seed), named by a hash of it, so that an entry is never
resumed for another question. Several processes may write to one file at a time and lose nothing: each reads it again
under a lock before it replaces it. Of two entries for one question the longer one contains the other, since the
blocks of a question are the same whoever draws them; the number of samples planned is that of whoever asked first.
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

_DIGITS = 32  # of a fingerprint
_HEAD = 5  # numbers before the tallies


def name_of(question: str) -> str:
    """The name under which the answer to a question is kept."""
    return hashlib.sha256(question.encode()).hexdigest()[:_DIGITS]


@dataclass(frozen=True)
class Saved:
    """What is known of a question.

    The samples first planned, the blocks done, their counts, those of every look (after 1, 2, 4, … blocks), and those
    of the samples first planned, once there were as many.
    """

    planned: int
    done: int
    tally: Tally
    looks: tuple[Tally, ...] = ()
    whole: Tally | None = None

    def encoded(self) -> Entry:
        """As integers."""
        tallies = [self.tally, *self.looks, *([] if self.whole is None else [self.whole])]
        head = [self.planned, self.done, len(self.looks), int(self.whole is not None), self.tally.low.size]
        parts = [np.concatenate([[tally.count], tally.low, tally.high]) for tally in tallies]
        return np.concatenate([np.array(head, dtype=np.int64), *parts])

    @staticmethod
    def decoded(lattice: Lattice, entry: Entry) -> Saved:
        """The reverse."""
        planned, done, looks, whole, size = (int(x) for x in entry[:_HEAD])
        rows = entry[_HEAD:].reshape(1 + looks + whole, 1 + 2 * size)
        found = [Tally(lattice, int(row[0]), row[1 : 1 + size], row[1 + size :]) for row in rows]
        return Saved(planned, done, found[0], tuple(found[1 : 1 + looks]), found[-1] if whole else None)


def _longer(old: Entry, new: Entry) -> Entry:
    """The one with more blocks, and the counts of the samples first planned from whichever has them."""
    further, other = (new, old) if new[1] > old[1] else (old, new)
    if further[3] or not other[3] or further[0] != other[0]:
        return further
    joined = np.append(further, other[-(1 + 2 * other[4]) :])
    joined[3] = 1
    return joined


class StateFile:
    """Entries by name; absent is empty."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Read what there is, and see that it can be replaced: better now than after hours of sampling."""
        self.path = Path(path)
        self._read()
        self._write(b"")

    def _read(self) -> dict[str, Entry]:
        if not self.path.exists():
            return {}
        try:
            with zipfile.ZipFile(self.path) as file:  # as np.savez writes it, and nobody else's
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
        """No other process reads or replaces a state in this directory meanwhile."""
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
        """What is known of a question; a new one is saved with the number of samples it plans."""
        name, fresh = name_of(question), Saved(samples, 0, Tally.empty(lattice))
        with self._alone():
            known = self._read()
            if name not in known:
                self._replace(known | {name: fresh.encoded()})
                return fresh
        return Saved.decoded(lattice, known[name])

    def put(self, found: Mapping[str, Saved]) -> None:
        """Keep what is known of each of these questions, on disk when this returns."""
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
        """Replace the file; without content, see only whether it can be written."""
        try:
            if not content:
                tempfile.TemporaryFile(dir=self.path.parent).close()
                return
            with replacing(self.path, mode=None) as file:
                file.write(content)
        except OSError as error:
            bound = f"a file that can be written ({error.strerror})"
            raise InvalidInputError("state", str(self.path), bound, "Name another file.") from None
