"""An epoch appears whole or not at all: it is made beside, then renamed; kill −9 at any time is harmless.

DIR/.building-epoch-000003/    locked by the process that works in it; what a killed one left is thrown away
DIR/epoch-000003/              appears by one rename, with everything in it
DIR/.removing-…/               what was an epoch until a rename made it vanish

DIR itself is locked while an epoch is compared with the others and renamed, so a directory never holds two runs.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ballsbins._extras import Later
from ballsbins._files import PRIVATE, sync
from ballsbins.batch_files.format import DIRECTORY_MODE, MANIFEST_NAME, Manifest, epoch_name, epoch_number
from ballsbins.errors import DataError, SecretError

arrow = Later("pyarrow", feature="Writing batch files", extra="data")

try:
    import fcntl
except ImportError:  # not a POSIX system: there are no locks
    fcntl = None  # type: ignore[assignment]

_BUILDING, _REMOVING = ".building-", ".removing-"
_NO_SPACE = (errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC))


def prepare_directory(directory: Path) -> None:
    """Make a directory for batch files, or take one that is empty or has some; never one with other things."""
    try:
        str(directory).encode()  # Arrow knows only names that are text
        directory.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
        names = os.listdir(directory)
        if not names:
            directory.chmod(DIRECTORY_MODE)
    except (OSError, UnicodeError) as error:
        raise DataError(
            f"{str(directory)!r} cannot be used for batch files ({error}). Name a directory you may write to."
        ) from None
    strange = [name for name in names if epoch_number(name) is None and not _is_ours(name)]
    if strange:
        raise DataError(
            f"{str(directory)!r} holds {min(strange)!r}, which is not of batch files. Name an empty "
            "directory, or a new one."
        )
    require_private(directory)
    finished = {f"{_BUILDING}{epoch_name(epoch)}" for epoch in complete_epochs(directory)}
    for name in names:  # left by a process that was killed at its very end
        if name.startswith(_REMOVING) or name in finished:
            shutil.rmtree(directory / name, ignore_errors=True)


def _is_ours(name: str) -> bool:
    return name.startswith((_BUILDING, _REMOVING))


@contextmanager
def new_epoch(directory: Path, manifest: Manifest) -> Iterator[tuple[Path, Path]]:
    """Give (a directory for the files of an epoch, one for temporary files); rename the first if all went well.

    Raises:
        DataError: another process builds this epoch or has built it, or has built an epoch of another run meanwhile.
    """
    epoch = manifest.epoch
    work = directory / f"{_BUILDING}{epoch_name(epoch)}"
    with _workplace(work, f"epoch {epoch} in {str(directory)!r}") as scratch:
        target = directory / epoch_name(epoch)
        if (target / MANIFEST_NAME).exists():
            raise DataError(
                f"Another process has just built epoch {epoch} in {str(directory)!r}. Run the same command again: it "
                "keeps what is there."
            )
        made = work / "epoch"
        made.mkdir(mode=DIRECTORY_MODE)
        yield made, scratch
        sync(made)
        with _alone(directory):
            _require_one_run(directory, manifest)
            _publish(made, target)


def _require_one_run(directory: Path, manifest: Manifest) -> None:
    """Refuse an epoch if another process has built one of another run since this build looked."""
    for other in complete_epochs(directory):
        found = read_manifest(directory, other)
        try:
            manifest.require_same_run(found)
        except DataError:
            raise DataError(
                f"Another process built epoch {other} of another run in {str(directory)!r} while epoch "
                f"{manifest.epoch} was being built, so epoch {manifest.epoch} was not kept. Run the same command "
                "again: it continues the run that is there, or says how the two differ."
            ) from None


@contextmanager
def new_file(path: Path) -> Iterator[tuple[Path, Path]]:
    """Give (where to write a file, a directory for temporary files); rename the file if all went well."""
    if not path.name:
        raise DataError(f"{str(path)!r} is not the name of a file. Name one that does not exist yet.")
    work = path.with_name(f"{_BUILDING}{path.name}")
    if path.exists():
        shutil.rmtree(work, ignore_errors=True)  # left by a process that was killed at its very end
        raise DataError(f"{str(path)!r} exists, and is not overwritten. Remove it, or name another file.")
    if not path.parent.is_dir():
        raise DataError(f"{str(path.parent)!r} is not a directory. Make it first, or name another file.")
    with _workplace(work, repr(str(path))) as scratch:
        made = scratch.with_name("file")
        yield made, scratch
        made.chmod(PRIVATE)
        sync(made)
        made.rename(path)
        sync(path.parent)


@contextmanager
def _workplace(work: Path, what: str) -> Iterator[Path]:
    """Hold `work`, cleared of what a killed process left, and give a directory in it; nothing of it is left after."""
    with writing(work.parent), _locked(work, what):
        for entry in work.iterdir():
            shutil.rmtree(entry, ignore_errors=True) if entry.is_dir() else entry.unlink()
        scratch = work / "scratch"
        scratch.mkdir(mode=DIRECTORY_MODE)
        try:
            yield scratch
        finally:
            shutil.rmtree(work, ignore_errors=True)


def remove_epoch(directory: Path, epoch: int) -> None:
    """Remove an epoch, so that a reader sees it whole or not at all, and what killed processes left of it."""
    target = directory / epoch_name(epoch)
    there = ", ".join(map(str, complete_epochs(directory))) or "none"
    left = _leftovers(directory, target.name)
    if not target.exists() and not left:
        raise DataError(
            f"Epoch {epoch} is not in {str(directory)!r} (complete epochs: {there}), so it cannot be removed."
        )
    with _removing(directory):
        with _alone(directory):
            if target.exists():
                _remove(target)
        for path in left:
            if path.name.startswith(_BUILDING):
                with _locked(path, f"epoch {epoch} in {str(directory)!r}"):
                    shutil.rmtree(path)
            else:
                shutil.rmtree(path)
        sync(directory)


def _leftovers(directory: Path, name: str) -> list[Path]:
    """What processes that were killed left of an epoch: rows in the order of their batches."""
    mine = (f"{_BUILDING}{name}", f"{_REMOVING}{name}-")
    return [
        directory / entry for entry in os.listdir(directory) if entry == mine[0] or entry.startswith(mine[1])
    ]


@contextmanager
def _removing(directory: Path) -> Iterator[None]:
    """Say it where something secret could not be removed."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"Not all could be removed below {str(directory)!r} ({error}), and the rest is as secret as the key. "
            "Remove it by hand."
        ) from None


@contextmanager
def writing(directory: Path) -> Iterator[None]:
    """Turn what goes wrong while writing into an error that names where."""
    try:
        yield
    except (OSError, arrow.ArrowException) as error:
        advice = "Check that it is there and that you may write to it"
        if isinstance(error, OSError) and error.errno in _NO_SPACE:
            advice = "Make room (--dry-run says how much is needed) or name another disk"
        raise DataError(
            f"Writing below {str(directory)!r} failed: {error}. Nothing unfinished was left behind. "
            f"{advice}, then run "
            "the same command again."
        ) from None


def _publish(made: Path, target: Path) -> None:
    if target.exists() and not (target / MANIFEST_NAME).exists():
        _remove(target)  # never was an epoch: it has no manifest
    made.rename(target)
    sync(target.parent)


def _remove(target: Path) -> None:
    gone = target.with_name(f"{_REMOVING}{target.name}-{os.getpid()}")
    target.rename(gone)
    shutil.rmtree(gone)


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Wait for the directory, and hold it while its set of epochs is looked at and changed."""
    if fcntl is None:
        yield
        return
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _locked(work: Path, what: str) -> Iterator[None]:
    """Hold a directory for this process alone; the lock goes with the process, however it ends."""
    if fcntl is None:
        work.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
        yield
        return
    while True:
        with suppress(FileExistsError):
            work.mkdir(mode=DIRECTORY_MODE)
        try:
            descriptor = os.open(work, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:  # another process has just finished
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_same(descriptor, work):
                break
        except BlockingIOError:
            os.close(descriptor)
            raise DataError(
                f"Another process is building {what}. Wait for it to end, or build something else."
            ) from None
        os.close(descriptor)  # it is the lock of a directory that is gone
    try:
        yield
    finally:
        os.close(descriptor)


def _is_same(descriptor: int, path: Path) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), path.stat())
    return False


def complete_epochs(directory: Path) -> tuple[int, ...]:
    """The epochs of a directory that have a manifest, ascending."""
    try:
        names = os.listdir(directory)
    except OSError as error:
        raise DataError(
            f"{str(directory)!r} cannot be read ({error.strerror}). Name a directory of batch files."
        ) from None
    numbers = ((name, epoch_number(name)) for name in names)
    return tuple(
        sorted(
            number
            for name, number in numbers
            if number is not None and (directory / name / MANIFEST_NAME).is_file()
        )
    )


def read_manifest(directory: Path, epoch: int) -> Manifest:
    """The manifest of a complete epoch."""
    path = directory / epoch_name(epoch) / MANIFEST_NAME
    try:
        manifest = Manifest.from_json(path.read_text(encoding="utf-8"), path)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{str(path)!r} cannot be read ({error}). Build the epoch again.") from None
    if manifest.epoch != epoch:  # the same bins in two epochs cost far more privacy than bins drawn anew
        raise DataError(
            f"{str(path)!r} is of epoch {manifest.epoch}: it was copied or renamed. Every epoch has batches of its "
            f"own: remove it, and build epoch {epoch}: ballsbins build … --epoch {epoch}"
        )
    return manifest


def require_private(directory: Path) -> None:
    """Refuse batch files that others than their owner can read: they are the assignment."""
    mode = directory.stat().st_mode & 0o777
    if os.name == "posix" and mode & ~DIRECTORY_MODE:
        raise SecretError(
            f"{str(directory)!r} has mode {mode:04o}, so that others than its owner can use it, but must have 0700: "
            f"batch files are as secret as the key. Run: chmod 700 {str(directory)!r}; if others may have read them, "
            "build with a new key."
        )
