"""What a long run has so far, in one file, replaced atomically: a crash leaves the old one or the new one, whole.

The file holds one entry for each question (sampler, lattice, seed), named by a hash of it, so that an entry is never
resumed for another question.
"""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ballsbins.errors import InvalidInputError

Entry = NDArray[np.int64]


def name_of(question: str) -> str:
    """The name under which the answer to a question is kept."""
    return hashlib.sha256(question.encode()).hexdigest()[:32]


class StateFile:
    """Entries by name; absent is empty."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Read what there is."""
        self.path = Path(path)
        self._entries: dict[str, Entry] = {}
        if not self.path.exists():
            return
        try:
            with np.load(io.BytesIO(self.path.read_bytes()), allow_pickle=False) as saved:
                self._entries = {name: saved[name] for name in saved.files}
        except (OSError, ValueError, zipfile.BadZipFile, EOFError):
            raise InvalidInputError(
                "state",
                str(self.path),
                "a file that ballsbins wrote",
                "Name another file, or remove this one.",
            ) from None

    def get(self, question: str) -> Entry | None:
        """What is known of a question."""
        return self._entries.get(name_of(question))

    def put(self, question: str, entry: Entry) -> None:
        """Keep it, on disk when this returns."""
        self._entries[name_of(question)] = entry
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **self._entries)  # type: ignore[arg-type]
        beside = self.path.with_name(f".{self.path.name}.{os.getpid()}.new")
        with beside.open("wb") as file:
            file.write(buffer.getvalue())
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self.path)
