"""Write files that are on the disk whole or not at all, also when the process is killed or the power fails."""

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
    """Give a file beside `path` to write to; if the block ends well, it takes the place of `path` at once.

    Args:
        path: the file to make or to replace. Until the end, and after an error, what was there stays as it was.
        mode: the permissions of the file; None leaves them to the process's umask.

    Raises:
        OSError: the file cannot be written. Nothing of it is left behind.
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
    """Make or replace a file for everybody to read.

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
    """Write a file that does not exist yet, of mode 0600, to the disk itself; half a file is removed."""
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
    """Have the disk keep a file, or the names in a directory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _usual_mode() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask
