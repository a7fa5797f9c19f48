"""An epoch exists if and only if its manifest does, which is written last; kill −9 at any time is harmless.

DIR/epoch-000003/              files with unique names; without a manifest it is not an epoch, and is cleared away
DIR/.building-epoch-000003/    temporary files, locked by the process that uses it; on local disks only

Nothing is renamed, so DIR may be in an object store. A local DIR is locked while an epoch is compared with the others
and its manifest is written, so a directory never holds two runs. Stores have no locks: if two processes build into
one store at the same time, they write under different names, and the later one is refused when it checks again at its
end.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ballsbins._extras import Later
from ballsbins._files import PRIVATE, sync
from ballsbins.batch_files.format import MANIFEST_NAME, Manifest, epoch_name, epoch_number
from ballsbins.batch_files.store import DIRECTORY_MODE, Location, located
from ballsbins.errors import DataError, SecretError

arrow = Later("pyarrow", feature="Writing batch files", extra="data")
fs = Later("pyarrow.fs", feature="Writing batch files", extra="data")

try:
    import fcntl
except ImportError:  # not a POSIX system: no locks
    fcntl = None  # type: ignore[assignment]

_BUILDING = ".building-"
_GROUP_MODE = 0o770
_NO_SPACE = (errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC))


def prepare_directory(directory: Location, *, group_readable: bool = False) -> None:
    """Create a directory for batch files, or accept one that is empty or holds only batch files."""
    try:
        str(directory).encode()  # Arrow accepts only names that are text
        directory.make_directory()
        names = directory.names()
        if not names and directory.local is not None and not group_readable:
            directory.local.chmod(DIRECTORY_MODE)
    except (OSError, UnicodeError) as error:
        raise DataError(
            f"{str(directory)!r} cannot be used for batch files ({error}). Name a directory you may write to."
        ) from None
    strange = [name for name in names if epoch_number(name) is None and not name.startswith(_BUILDING)]
    if strange:
        raise DataError(
            f"{str(directory)!r} holds {min(strange)!r}, which is not of batch files. Name an empty "
            "directory, or a new one."
        )
    require_private(directory, group_readable=group_readable)
    if directory.local is not None:
        for epoch in complete_epochs(directory):  # left by a process that was killed at its very end
            shutil.rmtree(directory.local / f"{_BUILDING}{epoch_name(epoch)}", ignore_errors=True)


@dataclass(frozen=True)
class NewEpoch:
    """An epoch that is being built: where its files go, and a local directory for temporary files."""

    directory: Location
    epoch: int
    made: Location
    scratch: Path

    @contextmanager
    def publishing(self, manifest: Manifest, parts: Sequence[str]) -> Iterator[None]:
        """Check once more, with the directory locked where locks exist, before the block writes the manifest.

        Args:
            manifest: the manifest that the block writes.
            parts: the names of the parts, which must exist.

        Raises:
            DataError: another process has built this epoch, or an epoch of another run, or has removed files.
        """
        self.made.sync()
        with _alone(self.directory):
            _require_absent(self.directory, self.epoch)
            _require_one_run(self.directory, manifest)
            before = set(self.made.names())
            missing = set(parts) - before
            if missing:
                raise DataError(
                    f"{str(self.made / min(missing))!r} was removed while epoch {self.epoch} was being built, "
                    "perhaps by another process that builds it, too. Run the same command again."
                )
            yield
            self.made.sync()
            self.directory.sync()
        for name in before - set(parts):  # left in a store by a process that was killed
            (self.made / name).remove()


@contextmanager
def new_epoch(directory: Location, epoch: int, scratch: Path | None = None) -> Iterator[NewEpoch]:
    """Give an epoch to build; files of an unfinished attempt are removed.

    Args:
        directory: where the epoch will be.
        epoch: its number.
        scratch: where temporary files go; by default beside the epoch, or in the system's temporary directory.

    Raises:
        DataError: another process is building or has built this epoch, or has meanwhile built one of another run.
    """
    made = directory / epoch_name(epoch)
    with (
        writing(directory),
        _workplace(directory, epoch_name(epoch), f"epoch {epoch} in {str(directory)!r}", scratch) as work,
    ):
        _require_absent(directory, epoch)
        if made.local is not None:
            made.remove_tree()  # without a manifest, it was left by a killed process
        made.make_directory()
        try:
            yield NewEpoch(directory, epoch, made, work)
        finally:
            if epoch not in complete_epochs(directory):
                made.remove_tree()


def _require_absent(directory: Location, epoch: int) -> None:
    if epoch in complete_epochs(directory):
        raise DataError(
            f"Another process has just built epoch {epoch} in {str(directory)!r}. Run the same command again: it "
            "keeps what is there."
        )


def _require_one_run(directory: Location, manifest: Manifest) -> None:
    """Refuse an epoch if another process has built one of another run since this build checked."""
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
def new_file(path: Location, scratch: Path | None = None) -> Iterator[tuple[Location, Path]]:
    """Give (where to write a file, a directory for temporary files); the file appears whole if the block succeeds."""
    if path.local is not None and not Path(path.address).name:
        raise DataError(f"{str(path)!r} is not the name of a file. Name one that does not exist yet.")
    if path.info().type != fs.FileType.NotFound:
        if path.local is not None:  # left by a process that was killed at its very end
            shutil.rmtree(path.local.with_name(f"{_BUILDING}{path.name}"), ignore_errors=True)
        raise DataError(f"{str(path)!r} exists, and is not overwritten. Remove it, or name another file.")
    if path.local is not None and not path.local.parent.is_dir():
        raise DataError(
            f"{str(path.local.parent)!r} is not a directory. Make it first, or name another file."
        )
    parent = path.parent
    with writing(parent), _workplace(parent, path.name, repr(str(path)), scratch) as work:
        if path.local is None:
            yield path, work
            return
        made = parent / f"{_BUILDING}{path.name}" / "file"
        yield made, work
        Path(made.path).chmod(PRIVATE)
        os.rename(made.path, path.path)  # a single local file
        sync(path.local.parent)


@contextmanager
def _workplace(directory: Location, name: str, what: str, scratch: Path | None) -> Iterator[Path]:
    """Give a directory for temporary files, cleared of what a killed process left; it is removed afterwards."""
    if directory.local is None or scratch is not None:
        with tempfile.TemporaryDirectory(
            prefix="ballsbins-", dir=scratch, ignore_cleanup_errors=True
        ) as made:
            if directory.local is None:
                yield Path(made)
                return
            with _workplace(directory, name, what, None):
                yield Path(made)
        return
    work = directory.local / f"{_BUILDING}{name}"
    with _locked(work, what):
        for entry in work.iterdir():
            shutil.rmtree(entry, ignore_errors=True) if entry.is_dir() else entry.unlink()
        beside = work / "scratch"
        beside.mkdir(mode=DIRECTORY_MODE)
        try:
            yield beside
        finally:
            shutil.rmtree(work, ignore_errors=True)


def remove_epoch(address: str | os.PathLike[str], epoch: int) -> None:
    """Remove an epoch and what killed processes left; the manifest goes first, so that no reader opens the epoch."""
    directory = located(address)
    target = directory / epoch_name(epoch)
    work = None if directory.local is None else directory.local / f"{_BUILDING}{target.name}"
    if target.name not in directory.names() and not (work is not None and work.exists()):
        there = ", ".join(map(str, complete_epochs(directory))) or "none"
        raise DataError(
            f"Epoch {epoch} is not in {str(directory)!r} (complete epochs: {there}), so it cannot be removed."
        )
    with ExitStack() as held:
        if work is not None:
            held.enter_context(_locked(work, f"epoch {epoch} in {str(directory)!r}"))
        try:
            with _alone(directory):
                if (target / MANIFEST_NAME).is_file():
                    (target / MANIFEST_NAME).remove()
                    target.sync()
            target.remove_tree()
            if work is not None:
                shutil.rmtree(work)
            directory.sync()
        except (OSError, DataError) as error:
            raise DataError(
                f"Not all could be removed below {str(directory)!r} ({error}), and the rest is as secret as the key. "
                "Remove it by hand."
            ) from None


@contextmanager
def writing(directory: Location) -> Iterator[None]:
    """Turn any failure while writing into an error that names the directory."""
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


@contextmanager
def _alone(directory: Location) -> Iterator[None]:
    """Wait for the directory's lock, and hold it while its set of epochs is checked and changed."""
    if fcntl is None or directory.local is None:
        yield
        return
    descriptor = os.open(directory.local, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _locked(work: Path, what: str) -> Iterator[None]:
    """Lock a directory for this process; the lock ends with the process, however it ends."""
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
        os.close(descriptor)  # this is the lock of a directory that has been removed
    try:
        yield
    finally:
        os.close(descriptor)


def _is_same(descriptor: int, path: Path) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), path.stat())
    return False


def complete_epochs(directory: Location) -> tuple[int, ...]:
    """The epochs of a directory that have a manifest, in ascending order."""
    if directory.local is not None and not directory.local.is_dir():
        problem = "is not a directory" if directory.local.exists() else "does not exist"
        raise DataError(f"{str(directory)!r} cannot be read: it {problem}. Name a directory of batch files.")
    numbers = ((name, epoch_number(name)) for name in directory.names())
    return tuple(
        sorted(number for name, number in numbers if number is not None and _is_whole(directory / name))
    )


def _is_whole(epoch: Location) -> bool:
    """Whether the manifest is there completely: a local file grows while it is written."""
    path = epoch / MANIFEST_NAME
    if not path.is_file():
        return False
    if path.local is not None:
        try:
            json.loads(path.read_bytes())
        except ValueError:
            return False
    return True


def read_manifest(directory: Location, epoch: int) -> Manifest:
    """The manifest of a complete epoch."""
    path = directory / epoch_name(epoch) / MANIFEST_NAME
    try:
        manifest = Manifest.from_json(path.read_bytes().decode("utf-8"), path)
    except UnicodeDecodeError as error:
        raise DataError(f"{str(path)!r} cannot be read ({error}). Build the epoch again.") from None
    if manifest.epoch != epoch:  # reusing bins in a second epoch costs far more privacy than drawing new ones
        raise DataError(
            f"{str(path)!r} is of epoch {manifest.epoch}: it was copied or renamed. Every epoch has batches of its "
            f"own: remove it, and build epoch {epoch}: ballsbins build … --epoch {epoch}"
        )
    return manifest


def require_private(directory: Location, *, group_readable: bool = False) -> None:
    """Refuse local batch files that users other than their owner can read: they reveal the assignment.

    Args:
        directory: where the files are. The permissions of a store cannot be seen from here.
        group_readable: whether to accept access by the owner's group, as on mounts that always show mode 0770.
    """
    if directory.local is None or os.name != "posix":
        return
    mode = directory.local.stat().st_mode & 0o777
    if mode & ~(_GROUP_MODE if group_readable else DIRECTORY_MODE):
        least = "0770" if group_readable else "0700"
        way_out = (
            ""
            if group_readable or mode & ~_GROUP_MODE
            else (" Where the group is trusted with the key, too, as on some mounts, add --group-readable.")
        )
        raise SecretError(
            f"{str(directory)!r} has mode {mode:04o}, so that others than its owner can use it, but must have "
            f"{least}: batch files are as secret as the key. Run: chmod {least[1:]} {str(directory)!r}; if others "
            f"may have read them, build with a new key.{way_out}"
        )
