"""What a long run has so far, in one file, replaced atomically: a crash leaves the old one or the new one, whole.

The file holds one entry for each question (sampler, lattice, seed), named by a hash of it, so that an entry is never
resumed for another question.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ballsbins.errors import InvalidInputError

Entry = NDArray[np.int64]

_DIGITS = 32


def name_of(question: str) -> str:
    """The name under which the answer to a question is kept."""
    return hashlib.sha256(question.encode()).hexdigest()[:_DIGITS]


class StateFile:
    """Entries by name; absent is empty."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Read what there is, and see that it can be replaced: better now than after hours of sampling."""
        self.path = Path(path)
        self._entries = self._read() if self.path.exists() else {}
        self._write(b"")

    def _read(self) -> dict[str, Entry]:
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

    def get(self, question: str) -> Entry | None:
        """What is known of a question."""
        return self._entries.get(name_of(question))

    def put(self, known: Mapping[str, Entry]) -> None:
        """Keep what is known of each of these questions, on disk when this returns."""
        self._entries |= {name_of(question): entry for question, entry in known.items()}
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **self._entries)  # type: ignore[arg-type]
        self._write(buffer.getvalue())

    def _write(self, content: bytes) -> None:
        """Replace the file; nothing is written if there is no content."""
        beside = self.path.with_name(f".{self.path.name}.{os.getpid()}.new")
        try:
            with beside.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            if content:
                beside.replace(self.path)
            beside.unlink(missing_ok=True)
        except OSError as error:
            with contextlib.suppress(OSError):
                beside.unlink()
            bound = f"a file that can be written ({error.strerror})"
            raise InvalidInputError("state", str(self.path), bound, "Name another file.") from None
