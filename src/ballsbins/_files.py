"""Write files completely or not at all, even if the process is killed or the power fails."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from ballsbins.errors import InvalidInputError

PRIVATE = 0o600


@contextmanager
def replacing(path: Path, *, mode: int | None = PRIVATE) -> Iterator[IO[bytes]]:
    """Open a temporary file beside `path`; if the block succeeds, it replaces `path` atomically.

    Args:
        path: the file to create or replace. Until the block ends, and after an error, an existing file is unchanged.
        mode: the permissions of the file; None leaves them to the process's umask.

    Raises:
        OSError: the file cannot be written. No partial file is left behind.
    """
    descriptor, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(beside, _usual_mode() if mode is None else mode)
        os.replace(beside, path)
    except BaseException:
        Path(beside).unlink(missing_ok=True)
        raise
    sync(path.parent)


def write_text(path: Path, text: str) -> None:
    """Create or replace a file with the process's usual permissions.

    Raises:
        InvalidInputError: the file cannot be written.
    """
    try:
        with replacing(path, mode=None) as file:
            file.write(text.encode("utf-8"))
    except OSError as error:
        bound = f"a file that can be written ({error.strerror})"
        raise InvalidInputError("the file", str(path), bound, "Choose another path.") from None


def write_new(path: Path, content: bytes) -> None:
    """Create a new file with mode 0600 and flush it to disk; a partial file is removed after an error."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def sync(path: Path) -> None:
    """Flush a file, or the entries of a directory, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _usual_mode() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask
