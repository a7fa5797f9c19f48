"""Read batch files front to back: one batch per step, starting at any (epoch, step)."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ballsbins import _check
from ballsbins.batch_files.batch import Batch
from ballsbins.batch_files.columns import Arrays, require_fixed
from ballsbins.batch_files.epoch_directory import complete_epochs, read_manifest, require_private
from ballsbins.batch_files.epoch_reader import EpochReader, read_arrays, read_batches
from ballsbins.batch_files.format import MANIFEST_NAME, WEIGHT_COLUMN, Manifest, epoch_name, stored_epoch
from ballsbins.batch_files.store import Location, located
from ballsbins.errors import DataError, InvalidInputError
from ballsbins.samplers.base import check_epoch
from ballsbins.samplers.physical import check_rank, filled

if TYPE_CHECKING:
    import pyarrow as pa


class OtherWorldSizeWarning(UserWarning):
    """The files are laid out for a different number of ranks: batches are correct, but reading them costs more."""


class BatchFiles:
    """A directory of batch files, as `batch_files.format` describes it; made by `open`.

    Formal guarantees: `batches` gives the rows of step start, start + 1, …, each once, in the order of the sampler.
    A later start gives the same batches from there on, and reads at most one row group that it does not use. Over all
    ranks every batch is partitioned as `Batches.for_rank` does, and every rank gets all the steps. All bytes read are
    compared with their checksums.

    Attributes:
        manifest: the public facts of the run that the files belong to.
        epochs: the numbers of the complete epochs that exist now.

    Example:
        >>> import pyarrow as pa
        >>> import pyarrow.parquet as pq
        >>> from ballsbins import BallsAndBins, new_key
        >>> from ballsbins.batch_files.build import build
        >>> from ballsbins.batch_files.build_plan import plan_build
        >>> from ballsbins.batch_files.inputs import open_inputs
        >>> pq.write_table(pa.table({"x": range(100)}), "table.parquet")
        >>> made = build(plan_build(open_inputs(["table.parquet"]), BallsAndBins(steps=4)), "batches", new_key())
        >>> files = BatchFiles.open("batches")
        >>> files.epochs, sum(batch.num_rows for batch in files.batches(epoch=0))
        ((0,), 100)
    """

    def __init__(self, directory: Location, manifest: Manifest) -> None:
        """Internal: call `open` instead."""
        self._directory, self._manifest = directory, manifest

    @classmethod
    def open(cls, directory: str | os.PathLike[str], *, group_readable: bool = False) -> BatchFiles:
        """Open a directory that has at least one complete epoch; epochs may be added and removed while it is open.

        Args:
            directory: the directory, of mode 0700, or its address in an object store.
            group_readable: whether to accept mode 0770, which trusts the group with the batches.

        Returns:
            The batch files.

        Raises:
            DataError: there is no complete epoch, or its manifest is damaged.
            SecretError: users other than the owner may use the directory.
        """
        place = located(directory)
        epochs = complete_epochs(place)
        if not epochs:
            raise DataError(
                f"{str(place)!r} holds no complete epoch of batch files. Build one: ballsbins build --help"
            )
        require_private(place, group_readable=group_readable)
        return cls(place, read_manifest(place, epochs[0]))

    @property
    def manifest(self) -> Manifest:
        """The public facts, taken from the first epoch found. Epochs of a run differ only in `epoch`."""
        return self._manifest

    @property
    def epochs(self) -> tuple[int, ...]:
        """The complete epochs that exist now."""
        return complete_epochs(self._directory)

    def batches(
        self,
        epoch: int,
        start: int = 0,
        rank: int = 0,
        ranks: int = 1,
        columns: Sequence[str] | None = None,
    ) -> Iterator[Batch]:
        """Give the batches of an epoch from step `start` on, including empty ones.

        If the files were built for `ranks` ranks (build --world-size), the batches are views of what was read, and
        each rank reads only its own rows. With a different number of ranks every rank reads all rows, and a warning
        says so. The number of rows of a batch is secret, unless padded: do not log it.

        Args:
            epoch: the number of the epoch, from 0.
            start: the first step to give.
            rank: the number of this process, from 0.
            ranks: the number of processes among which every batch is divided.
            columns: the columns to read; all by default.

        Yields:
            One `Batch` for each step, which can be used like an Arrow record batch.

        Raises:
            InvalidInputError: an argument is out of range, or a column does not exist.
            DataError: the epoch does not exist, belongs to another run, or is damaged.
        """
        return read_batches(*self._request(epoch, start, rank, ranks, columns))

    def dictionary(self, column: str, epoch: int = 0) -> pa.Array:
        """Return the values that the codes of a dictionary column stand for.

        Args:
            column: the name of the column.
            epoch: an existing epoch. All epochs of a run have the same dictionaries.

        Returns:
            The values; code c stands for the c-th value, counted from 0.

        Raises:
            InvalidInputError: the column has no dictionary.
            DataError: the epoch does not exist, or is damaged.
        """
        opened = self._open_epoch(stored_epoch(self._manifest.sampler, check_epoch(epoch)))
        known = list(opened.dictionaries)
        if column not in known:
            raise InvalidInputError(
                "column", column, f"among {known}", "Only columns with a dictionary have codes."
            )
        return opened.dictionaries[column].dictionary

    def paths(self, epoch: int) -> list[Location]:
        """Return the locations of the files that hold the rows of an epoch.

        Args:
            epoch: the number of the epoch, from 0.

        Returns:
            The offsets, the dictionaries if there are any, and then the parts in order.

        Raises:
            DataError: the epoch does not exist, or belongs to another run.
        """
        opened = self._open_epoch(stored_epoch(self._manifest.sampler, check_epoch(epoch)))
        return [opened.directory / file.name for file in opened.files.all]

    def verify(self, epoch: int) -> None:
        """Read all bytes of an epoch and compare them with their checksums.

        Args:
            epoch: the number of the epoch, from 0.

        Raises:
            DataError: a file is missing or damaged; the error names it.
        """
        opened = self._open_epoch(stored_epoch(self._manifest.sampler, check_epoch(epoch)))
        _ = opened.offsets, opened.dictionaries
        for number, file in enumerate(opened.files.parts):
            part = opened.part(number, file)
            for group in range(len(part.rows)):
                part.check(group)
            part.close()

    def _request(
        self, epoch: int, start: int, rank: int, ranks: int, columns: Sequence[str] | None
    ) -> tuple[EpochReader, int, int, int]:
        """Check a request and resolve it to the open epoch, the first step, the rank and the ranks."""
        number = stored_epoch(self._manifest.sampler, check_epoch(epoch))
        advice = "Steps count from 0; to resume, give the number of steps already taken in this epoch."
        first = _check.integer("start", start, 0, self._manifest.steps, advice=advice)
        known = [column.name for column in self._manifest.columns]
        for name in columns or ():
            if name not in known:
                raise InvalidInputError(
                    "columns", name, f"among {', '.join(known)}", "Read columns that the batch files have."
                )
        checked_rank, checked_ranks = check_rank(rank, ranks)
        opened = self._open_epoch(number, columns)
        _warn_of_other_ranks(opened.manifest.world_size, checked_ranks)
        return opened, first, checked_rank, checked_ranks

    def _open_epoch(self, epoch: int, columns: Sequence[str] | None = None) -> EpochReader:
        if not (self._directory / epoch_name(epoch) / MANIFEST_NAME).is_file():
            there = ", ".join(map(str, self.epochs)) or "none"
            raise DataError(
                f"Epoch {epoch} is not in {str(self._directory)!r} (complete epochs: {there}). "
                f"Build it: ballsbins build … --epoch {epoch}"
            )
        manifest = read_manifest(self._directory, epoch)
        manifest.require_same_run(self._manifest)
        return EpochReader(self._directory / epoch_name(epoch), manifest, columns)

    def __repr__(self) -> str:
        """Show the location and public facts."""
        return f"BatchFiles({str(self._directory)!r}, {self._manifest.sampler!r})"


def _warn_of_other_ranks(world_size: int, ranks: int) -> None:
    if world_size == ranks:
        return
    cost = "this process reads the rows of all of them and puts them in order"
    if ranks > 1:
        cost = f"each of the {ranks} ranks reads the rows of all"
    warnings.warn(
        f"The batch files are laid out for a world size of {world_size}, so {cost}, which takes longer. To avoid "
        f"that, build them with --world-size {ranks}.",
        OtherWorldSizeWarning,
        stacklevel=4,
    )


def padded_arrays(
    files: BatchFiles,
    epoch: int,
    start: int = 0,
    rank: int = 0,
    ranks: int = 1,
    columns: Sequence[str] | None = None,
) -> Iterator[Arrays]:
    """Give batches as NumPy arrays of one public length, with their `weight`, so that JAX compiles only once.

    The length is the largest possible batch size, divided among the ranks; the files themselves need not be padded.
    Rows of weight 0 hold no example: multiply losses or clipped gradients by the weight, and divide by the public
    n/T.

    Args:
        files: the batch files.
        epoch: the number of the epoch, from 0.
        start: the first step to give.
        rank: the number of this process, from 0.
        ranks: the number of processes among which every batch is divided.
        columns: the columns to read; all by default.

    Yields:
        One dict per step, from column name to array.

    Raises:
        InvalidInputError: the sampler does not limit the batch size, or a column of the table is named `weight`.
        DataError: a batch is larger than the limit.

    Example:
        >>> import pyarrow as pa
        >>> import pyarrow.parquet as pq
        >>> pq.write_table(pa.table({"x": range(100)}), "table.parquet")
        >>> from ballsbins import BallsAndBins, new_key
        >>> from ballsbins.batch_files import BatchFiles
        >>> from ballsbins.batch_files.build import build
        >>> from ballsbins.batch_files.build_plan import plan_build
        >>> from ballsbins.batch_files.inputs import open_inputs
        >>> sampler = BallsAndBins(steps=4, max_batch_size=60, num_examples=100)
        >>> made = build(plan_build(open_inputs(["table.parquet"]), sampler), "batches", new_key())
        >>> {len(batch["weight"]) for batch in padded_arrays(BatchFiles.open("batches"), epoch=0)}
        {60}
    """
    stored = [column.name for column in files.manifest.columns] if columns is None else list(columns)
    if files.manifest.padded_to is not None:
        stored = list(dict.fromkeys([*stored, WEIGHT_COLUMN]))
    elif WEIGHT_COLUMN in stored:
        # Clipped gradients are multiplied by our weight; a weight from the table could exceed the clip norm.
        raise InvalidInputError(
            "columns",
            WEIGHT_COLUMN,
            "left out: it would be taken for the weight that says which rows are real",
            "Name the other columns, or rename it before you build.",
        )
    batches = arrays(files, epoch, start, rank, ranks, stored)
    known = {column.name: column for column in files.manifest.columns}
    require_fixed(tuple(known[name] for name in stored))
    size = -(-largest_batch(files.manifest) // ranks)
    fills = {name: known[name].fill for name in stored}
    for batch, rows in batches:
        yield padded(batch, rows, size, fills)


def largest_batch(manifest: Manifest) -> int:
    """The size that no batch of these files exceeds. It is public."""
    if manifest.padded_to is not None:
        return manifest.padded_to
    size = manifest.sampler.largest_batch(manifest.num_examples)
    if size is None:
        raise InvalidInputError(
            "max_batch_size",
            None,
            "given for batches of one shape",
            "Build the batches with --max-batch-size, which costs a little privacy, and maybe with --pad.",
        )
    return size


def arrays(
    files: BatchFiles,
    epoch: int,
    start: int = 0,
    rank: int = 0,
    ranks: int = 1,
    columns: Sequence[str] | None = None,
    *,
    writable: bool = False,
) -> Iterator[tuple[Arrays, int]]:
    """Give (the arrays, the number of rows) of each batch; `batch_files.columns` describes the arrays.

    Every path from batch files to arrays goes through here: `padded_arrays`, the PyTorch dataset and the trainer.
    It takes the arguments of `BatchFiles.batches` and checks them at once. The arrays are views of what was read,
    which nobody else sees, or of one copy of it where that is not `writable`. So keeping one batch also keeps some
    others in memory.
    """
    return read_arrays(*files._request(epoch, start, rank, ranks, columns), writable=writable)


def padded(batch: Arrays, rows: int, size: int, fills: Mapping[str, Any]) -> Arrays:
    """Fill every column up to `size` rows, and add the weight column if there is none."""
    _check.integer("size", size, 1, advice="Give the fixed size of batches.")
    if rows > size:
        raise DataError("A batch of the batch files is larger than it may be. Build them again.")
    weights = batch.get(WEIGHT_COLUMN, np.ones(rows, dtype=np.float32))
    whole = batch | {WEIGHT_COLUMN: weights}
    return {name: filled(column, size, fills.get(name, 0)) for name, column in whole.items()}
