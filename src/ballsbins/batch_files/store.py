"""Locations of tables, batches and assignments: a directory on this machine, or an address in an object store.

Everything goes through `pyarrow.fs` (`s3://`, `gs://`, `abfs://`, `hdfs://`); other schemes go through `fsspec` if it
is installed. No caller renames anything, since stores cannot: a file appears when its writer has closed it.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from ballsbins._extras import Later
from ballsbins._files import PRIVATE, sync
from ballsbins.errors import DataError, InvalidInputError

arrow = Later("pyarrow", feature="Reading tables", extra="data")
fs = Later("pyarrow.fs", feature="Reading tables", extra="data")
xxhash = Later("xxhash", feature="Checksums of tables", extra="data")

DIRECTORY_MODE = 0o700
_SECRET_QUERY = ("access_key", "secret_key", "session_token")
# Error messages of stores, and what the user should do about each.
_ADVICE = {
    r"ACCESS_DENIED|InvalidAccessKeyId|INVALID_ACCESS_KEY|INVALID_CLIENT_TOKEN|SIGNATURE|HTTP status 40[13]": (
        "The store refused: set credentials that may do this, as its own tools find them (for s3:// "
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE)"
    ),
    r"NO_SUCH_BUCKET|NoSuchBucket|[Bb]ucket does not exist": "The bucket does not exist: make it, or name another",
    r"NETWORK_CONNECTION|SLOW_DOWN|SERVICE_UNAVAILABLE|INTERNAL_FAILURE|HTTP status 5\d\d|[Tt]imeout": (
        "The store did not answer, also after several tries: check the network and AWS_ENDPOINT_URL, then run the "
        "same command again"
    ),
}


@dataclass(frozen=True)
class Location:
    """A file or a directory, on this machine or in a store; made by `located`, used like a path.

    Attributes:
        filesystem: the pyarrow file system.
        path: the path within that file system.
        address: the address from which `located` makes this location again. It has no credentials.
    """

    filesystem: Any
    path: str
    address: str

    def __truediv__(self, name: str) -> Location:
        """The location of `name` below this one."""
        before, mark, query = self.address.partition("?") if self.local is None else (self.address, "", "")
        return Location(
            self.filesystem, f"{self.path.rstrip('/')}/{name}", f"{before.rstrip('/')}/{name}{mark}{query}"
        )

    def __str__(self) -> str:
        """The address to show to people, without the settings that say how to reach the store."""
        return self.address if self.local is not None else self.address.partition("?")[0]

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rstrip("/").rpartition("/")[2]

    @property
    def parent(self) -> Location:
        """The directory that contains this location."""
        before, mark, query = self.address.partition("?") if self.local is None else (self.address, "", "")
        upper = before.rstrip("/").rpartition("/")[0] if "/" in before else "."
        return Location(self.filesystem, self.path.rpartition("/")[0] or "/", f"{upper}{mark}{query}")

    @property
    def local(self) -> Path | None:
        """The path on this machine, or None in a store."""
        return Path(self.path) if isinstance(self.filesystem, fs.LocalFileSystem) else None

    @property
    def everywhere(self) -> str:
        """An address from which `located` finds this in any process, whatever its working directory."""
        return self.path if self.local is not None else self.address

    def info(self) -> Any:
        """What the file system knows about it: `pyarrow.fs.FileInfo`."""
        with naming(self):
            return self.filesystem.get_file_info(self.path)

    def is_file(self) -> bool:
        """Whether it is a file."""
        return bool(self.info().type == fs.FileType.File)

    def names(self) -> tuple[str, ...]:
        """The names directly below, sorted; empty if this does not exist."""
        return tuple(sorted(entry.base_name for entry in self._below(recursive=False)))

    def files(self) -> list[tuple[Location, Any]]:
        """All files below, at any depth, in order of path, with what the file system knows about each."""
        base = self.path.rstrip("/")
        found = sorted(self._below(recursive=True), key=lambda entry: entry.path)
        return [
            (self / entry.path[len(base) :].lstrip("/"), entry)
            for entry in found
            if entry.type == fs.FileType.File
        ]

    def _below(self, *, recursive: bool) -> Any:
        with naming(self):
            chosen = fs.FileSelector(self.path, recursive=recursive, allow_not_found=True)
            return self.filesystem.get_file_info(chosen)

    def open(self) -> Any:
        """Open an Arrow file for random access."""
        with naming(self):
            return self.filesystem.open_input_file(self.path)

    def open_stream(self) -> Any:
        """Open an Arrow stream that reads from the front, decompressed if the name says that it is compressed."""
        with naming(self):
            return self.filesystem.open_input_stream(self.path)

    def read_bytes(self) -> bytes:
        """The whole content of a file."""
        with naming(self), self.filesystem.open_input_stream(self.path, compression=None) as stream:
            return bytes(stream.read())

    @contextmanager
    def create(self) -> Iterator[Sink]:
        """Give a `Sink`; when the block succeeds, the file is there for good, with mode 0600 where there are modes.

        If the block fails, what it has written is removed.
        """
        with naming(self, "written"):
            sink = Sink(self._new_stream())
            try:
                yield sink
                if self.local is not None:
                    sink.stream.flush()
                    os.fsync(sink.stream.fileno())
                sink.stream.close()
            except BaseException:
                with suppress(OSError, arrow.ArrowException):
                    sink.stream.close()
                with suppress(OSError, DataError, arrow.ArrowException):
                    self.remove()
                raise

    def _new_stream(self) -> Any:
        if self.local is None:
            return self.filesystem.open_output_stream(self.path, compression=None)
        return os.fdopen(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE), "wb", buffering=0)

    def write(self, content: bytes) -> Sink:
        """Write a new file."""
        with self.create() as sink:
            sink.write(content)
        return sink

    def make_directory(self) -> None:
        """Create a directory of mode 0700; does nothing in stores, which have no directories."""
        if self.local is not None:
            with naming(self, "written"):
                self.local.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)

    def remove(self) -> None:
        """Remove a file."""
        with naming(self, "removed"):
            self.filesystem.delete_file(self.path)

    def remove_tree(self) -> None:
        """Remove a directory and everything below it; does nothing if it does not exist."""
        with naming(self, "removed"):
            if self.local is not None:
                if self.local.exists():
                    shutil.rmtree(self.local)
            elif self.info().type == fs.FileType.Directory:
                self.filesystem.delete_dir(self.path)

    def sync(self) -> None:
        """Make the local disk persist the names in a directory; stores keep what they have confirmed."""
        if self.local is not None:
            sync(self.local)


class Sink:
    """A file being written, for pyarrow's writers: it counts and hashes the bytes that pass through.

    Attributes:
        bytes: how many bytes have passed through.
        block_bytes: if set, every section has a hash for each block of so many bytes.
    """

    closed = False  # Arrow closes its own writer; `Location.create` closes the file

    def __init__(self, stream: Any) -> None:
        """Take an open stream."""
        self.stream, self.bytes = stream, 0
        self.block_bytes: int | None = None
        self._hash, self._hashed = xxhash.xxh3_64(), 0  # of the block that is not complete
        self._blocks: list[str] = []

    def write(self, data: Any) -> int:
        """Write the next bytes."""
        view = memoryview(data).cast("B")
        self._add(view)
        done = 0
        while done < len(view):  # a local file may accept only part of the data at a time
            taken = self.stream.write(view[done:])
            done += len(view) if taken is None else taken
        self.bytes += len(view)
        return len(view)

    def _add(self, view: memoryview) -> None:
        while self.block_bytes is not None and self._hashed + len(view) >= self.block_bytes:
            rest = self.block_bytes - self._hashed
            self._hash.update(view[:rest])
            view = view[rest:]
            self._end_block()
        self._hash.update(view)
        self._hashed += len(view)

    def _end_block(self) -> None:
        self._blocks.append(self._hash.hexdigest())
        self._hash.reset()
        self._hashed = 0

    def tell(self) -> int:
        """The number of bytes written so far."""
        return self.bytes

    def flush(self) -> None:
        """Do nothing: `Location.create` flushes at the end."""

    def close(self) -> None:
        """Do nothing: `Location.create` closes the file."""

    def writable(self) -> bool:
        """Always true."""
        return True

    def readable(self) -> bool:
        """Always false."""
        return False

    def seekable(self) -> bool:
        """Always false."""
        return False

    def section(self) -> str:
        """The 64-bit xxh3 hashes, as hexadecimal digits, of the blocks since the last call; a new section begins."""
        if self._hashed:
            self._end_block()
        found, self._blocks = "".join(self._blocks), []
        return found

    @property
    def checksum(self) -> str:
        """The xxh3 hash of the bytes since the last block, or of all bytes if there was none."""
        return str(self._hash.hexdigest())


def located(address: str | os.PathLike[str]) -> Location:
    """Find the file system of an address.

    Args:
        address: a local path, or an address such as s3://bucket/clicks. Settings of pyarrow.fs may follow a question
            mark, as in s3://bucket/clicks?region=eu-west-1.

    Returns:
        The location. Nothing is read yet.

    Raises:
        InvalidInputError: the scheme is unknown, or the address contains credentials.

    Example:
        >>> here = located("batches") / "epoch-000000"
        >>> here.name, here.is_file()
        ('epoch-000000', False)
    """
    text = os.fspath(address)
    scheme, separator, rest = text.partition("://")
    if not isinstance(address, str) or not separator:
        return Location(fs.LocalFileSystem(), str(Path(text).absolute()), text)
    if scheme == "file":
        path = unquote(rest)
        return Location(fs.LocalFileSystem(), path, path)
    _refuse_credentials(text)
    base, path = _filesystem(text)
    return Location(base, path.rstrip("/"), text)


def _refuse_credentials(address: str) -> None:
    parts = urlsplit(address)
    if ":" in parts.netloc.rpartition("@")[0] or any(f"{name}=" in parts.query for name in _SECRET_QUERY):
        shown = f"{parts.scheme}://…{parts.path}"
        advice = "Command lines and logs are seen by others: set them as the store's own tools find them."
        raise InvalidInputError("the address", shown, "without credentials", advice)


@lru_cache(maxsize=64)
def _filesystem(address: str) -> tuple[Any, str]:
    try:
        found, path = fs.FileSystem.from_uri(address)
    except arrow.ArrowInvalid as error:
        if "Unrecognized filesystem type" in str(error):
            return _through_fsspec(address)
        raise InvalidInputError(
            "the address", address, "one that pyarrow.fs can read", f"It says: {_one_line(error)}."
        ) from None
    except OSError as error:
        raise _told(error, address, "reached") from None
    if isinstance(found, fs.S3FileSystem):
        # Background uploads have no limit: a slow store would let them fill the memory.
        settings = found.__reduce__()[1][0] | {"background_writes": False}
        found = fs.S3FileSystem(
            **{name: value for name, value in settings.items() if value not in (None, "")}
        )
    return found, path


def _through_fsspec(address: str) -> tuple[Any, str]:
    scheme = address.partition("://")[0]
    advice = (
        "Known are s3://, gs://, abfs://, hdfs:// and, with the package fsspec, the schemes that it knows."
    )
    try:
        from fsspec.core import url_to_fs  # type: ignore[import-untyped]

        found, path = url_to_fs(address)
    except ImportError as missing:
        raise InvalidInputError(
            "the scheme", f"{scheme}://", "one that is installed", f"{_one_line(missing)}. {advice}"
        ) from None
    except ValueError:
        raise InvalidInputError("the scheme", f"{scheme}://", "one that is known", advice) from None
    return fs.PyFileSystem(fs.FSSpecHandler(found)), path


@contextmanager
def naming(where: Location | str, doing: str = "read") -> Iterator[None]:
    """Turn an error of a file or a store into one sentence that names it and says what to do."""
    try:
        yield
    except (OSError, arrow.ArrowException) as error:
        raise _told(error, str(where), doing) from None


def _told(error: BaseException, address: str, doing: str) -> DataError:
    said = _one_line(error)
    for pattern, advice in _ADVICE.items():
        if "://" in address and re.search(pattern, said):
            return DataError(f"{address!r} cannot be {doing} ({said}). {advice}.")
    return DataError(
        f"{address!r} cannot be {doing} ({said}). Check that it is there and that you may use it."
    )


def _one_line(error: BaseException) -> str:
    """The message of an error in one line, without the store's request number."""
    strerror = getattr(error, "strerror", None)
    said = " ".join(str(strerror or error).split())
    return re.sub(r"[ ,]*\(?Request ?ID: [^)]*\)?", "", said).rstrip(".")
