"""Read batch files front to back: one batch per step, from any (epoch, step) on, a little ahead of their use."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ballsbins import _check
from ballsbins._extras import Later
from ballsbins.batch_files.epoch_directory import complete_epochs, read_manifest, require_private
from ballsbins.batch_files.format import (
    MANIFEST_NAME,
    OFFSETS_NAME,
    WEIGHT_COLUMN,
    Manifest,
    epoch_name,
    part_name,
    stored_epoch,
)
from ballsbins.errors import DataError, InvalidInputError
from ballsbins.samplers.base import check_epoch
from ballsbins.samplers.physical import check_rank, filled

if TYPE_CHECKING:
    import pyarrow as pa

arrow = Later("pyarrow", feature="Reading batch files", extra="data")
parquet = Later("pyarrow.parquet", feature="Reading batch files", extra="data")

_AHEAD = 1  # row groups that are read before they are asked for


class BatchFiles:
    """A directory of batch files, as `batch_files.format` describes it; made by `open`.

    Formal guarantees: `batches` gives the rows of step start, start + 1, …, each once, in the order of the files;
    a later start gives the same batches from there on, and costs the reading of at most one row group that is not
    used; over all ranks every batch is partitioned as `Batches.for_rank` does, and every rank has all the steps.

    Attributes:
        manifest: the public facts of the run that the files belong to.
        epochs: the numbers of the complete epochs that are there now.

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

    def __init__(self, directory: Path, manifest: Manifest) -> None:
        """Use `open`."""
        self._directory, self._manifest = directory, manifest

    @classmethod
    def open(cls, directory: str | os.PathLike[str]) -> BatchFiles:
        """Open a directory that has at least one complete epoch; epochs may be added and removed while it is open.

        Args:
            directory: the directory, of mode 0700.

        Returns:
            The batch files.

        Raises:
            DataError: there is no complete epoch, or its manifest is damaged.
            SecretError: others than the owner may use the directory.
        """
        path = Path(directory)
        epochs = complete_epochs(path)
        if not epochs:
            raise DataError(
                f"{str(path)!r} holds no complete epoch of batch files. Build one: ballsbins build --help"
            )
        require_private(path)
        return cls(path, read_manifest(path, epochs[0]))

    @property
    def manifest(self) -> Manifest:
        """The public facts: those of the first epoch that was there. All epochs of a run agree but in `epoch`."""
        return self._manifest

    @property
    def epochs(self) -> tuple[int, ...]:
        """The complete epochs that are there now."""
        return complete_epochs(self._directory)

    def batches(
        self,
        epoch: int,
        start: int = 0,
        rank: int = 0,
        ranks: int = 1,
        columns: Sequence[str] | None = None,
    ) -> Iterator[pa.Table]:
        """Give the batches of an epoch from step `start` on, empty ones too.

        Tables are views of what was read, without a copy, unless `ranks` > 1. The number of rows of a table is
        secret, unless padded: log it nowhere.

        Args:
            epoch: the number of the epoch, from 0.
            start: the first step to give.
            rank: the number of this process, from 0.
            ranks: the number of processes that share every batch.
            columns: the columns to read; all by default.

        Yields:
            One Arrow table for each step.

        Raises:
            InvalidInputError: an argument is out of its range, or a column is not there.
            DataError: the epoch is not there, is of another run, or is damaged.
        """
        number, first, share, wanted = self._checked(epoch, start, rank, ranks, columns)
        return _batches(self._open_epoch(number), first, share, wanted)

    def paths(self, epoch: int) -> list[Path]:
        """Name the files that hold the rows of an epoch.

        Args:
            epoch: the number of the epoch, from 0.

        Returns:
            The offsets, then the parts in order.

        Raises:
            DataError: the epoch is not there, or is of another run.
        """
        manifest = self._open_epoch(stored_epoch(self._manifest.sampler, check_epoch(epoch))).manifest
        directory = self._directory / epoch_name(manifest.epoch)
        return [
            directory / OFFSETS_NAME,
            *(directory / part_name(part) for part in range(manifest.num_parts)),
        ]

    def _checked(
        self, epoch: int, start: int, rank: int, ranks: int, columns: Sequence[str] | None
    ) -> tuple[int, int, tuple[int, int], list[str] | None]:
        number = stored_epoch(self._manifest.sampler, check_epoch(epoch))
        advice = "Steps count from 0; to resume, give the number of steps already taken in this epoch."
        first = _check.integer("start", start, 0, self._manifest.steps, advice=advice)
        known = [name for name, _ in self._manifest.columns]
        for name in columns or ():
            if name not in known:
                raise InvalidInputError(
                    "columns", name, f"among {', '.join(known)}", "Read columns that the batch files have."
                )
        return number, first, check_rank(rank, ranks), None if columns is None else list(columns)

    def _open_epoch(self, epoch: int) -> _Epoch:
        if not (self._directory / epoch_name(epoch) / MANIFEST_NAME).is_file():
            there = ", ".join(map(str, self.epochs)) or "none"
            raise DataError(
                f"Epoch {epoch} is not in {str(self._directory)!r} (complete epochs: {there}). "
                f"Build it: ballsbins build … --epoch {epoch}"
            )
        manifest = read_manifest(self._directory, epoch)
        manifest.require_same_run(self._manifest)
        return _Epoch(self._directory / epoch_name(epoch), manifest)

    def __repr__(self) -> str:
        """Show where, and public facts."""
        return f"BatchFiles({str(self._directory)!r}, {self._manifest.sampler!r})"


class _Epoch:
    """The files of one epoch: where each batch begins, and the row groups from a row on."""

    def __init__(self, directory: Path, manifest: Manifest) -> None:
        self.directory, self.manifest = directory, manifest
        self.offsets_path = path = directory / OFFSETS_NAME
        try:
            self.offsets: NDArray[np.int64] = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise DataError(f"{str(path)!r} cannot be read ({error}). Build the epoch again.") from None
        if self.offsets.dtype != np.int64 or self.offsets.shape != (manifest.steps + 1,):
            raise DataError(
                f"{str(path)!r} is not of {manifest.steps + 1} 64-bit integers. Build the epoch again."
            )

    def row_groups(self, start: int) -> Iterator[_RowGroup]:
        """Give the row groups from batch `start` on to the end of the epoch."""
        per_file = self.manifest.batches_per_file
        for part in range(self.manifest.part_of(start), self.manifest.num_parts):
            path = self.directory / part_name(part)
            begin, end = (
                int(self.offsets[min(step, self.manifest.steps)])
                for step in (part * per_file, (part + 1) * per_file)
            )
            with _naming(path):
                file = parquet.ParquetFile(path, memory_map=True)
            if file.metadata.num_rows != end - begin:
                raise DataError(
                    f"{str(path)!r} does not have the rows it should have. Build the epoch again."
                )
            skip = max(int(self.offsets[start]) - begin, 0)
            for group in range(file.num_row_groups):
                rows = file.metadata.row_group(group).num_rows
                if skip < rows:
                    yield _RowGroup(path, file, group, skip)
                skip = max(skip - rows, 0)


def _batches(
    epoch: _Epoch, start: int, share: tuple[int, int], columns: list[str] | None
) -> Iterator[pa.Table]:
    rank, ranks = share
    stream = _read_ahead(epoch.row_groups(start), columns)
    try:
        piece, used = _empty(epoch, columns), 0
        last = int(epoch.offsets[-1])
        for begin, end in pairwise(epoch.offsets[start:]):
            missing = int(end) - int(begin)
            if not 0 <= missing <= last - int(begin):  # or a row would be in two batches
                raise DataError(f"{str(epoch.offsets_path)!r} does not ascend. Build the epoch again.")
            taken = []
            while missing > piece.num_rows - used:
                if used < piece.num_rows:
                    taken.append(piece.slice(used))
                    missing -= piece.num_rows - used
                piece, used = next(stream), 0
            taken.append(piece.slice(used, missing))
            used += missing
            batch = taken[0] if len(taken) == 1 else arrow.concat_tables(taken)
            yield batch if ranks == 1 else batch.take(arrow.array(np.arange(rank, batch.num_rows, ranks)))
    finally:
        stream.close()


def _empty(epoch: _Epoch, columns: list[str] | None) -> pa.Table:
    """A table of no rows with the schema of the files."""
    with _naming(epoch.directory / part_name(0)):
        schema = parquet.read_schema(epoch.directory / part_name(0))
    if schema.names != [name for name, _ in epoch.manifest.columns]:
        raise DataError(
            f"The files in {str(epoch.directory)!r} have other columns than the manifest. Build the epoch again."
        )
    table = schema.empty_table()
    return table if columns is None else table.select(columns)


class _RowGroup(NamedTuple):
    """A row group of an open Parquet file, and how many of its rows are to be skipped."""

    path: Path
    file: Any
    number: int
    skip: int

    def read(self, columns: list[str] | None) -> pa.Table:
        with _naming(self.path):
            return self.file.read_row_group(self.number, columns=columns, use_threads=False).slice(self.skip)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Turn what goes wrong with a part into an error that names it."""
    try:
        yield
    except (OSError, arrow.ArrowException) as error:
        said = " ".join(str(error).split())  # Arrow says some things in several lines
        raise DataError(f"{str(path)!r} cannot be read ({said}). Build the epoch again.") from None


def _read_ahead(groups: Iterator[_RowGroup], columns: list[str] | None) -> Any:
    """Give the tables of row groups, read by a thread of their own a little before they are asked for."""
    with ThreadPoolExecutor(1, thread_name_prefix="ballsbins-read") as pool:
        waiting: deque[Future[Any]] = deque()
        try:
            for group in groups:
                waiting.append(pool.submit(group.read, columns))
                if len(waiting) > _AHEAD:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def padded_arrays(
    files: BatchFiles,
    epoch: int,
    start: int = 0,
    rank: int = 0,
    ranks: int = 1,
    columns: Sequence[str] | None = None,
) -> Iterator[dict[str, NDArray[Any]]]:
    """Give batches as NumPy arrays of one, public length, with their `weight`: what JAX compiles once for.

    The length is that of the largest batch there may be, divided among the ranks; files need not be padded. Rows of
    weight 0 hold nothing: multiply losses or clipped gradients by the weight, and divide by the public n/T.

    Args:
        files: the batch files.
        epoch: the number of the epoch, from 0.
        start: the first step to give.
        rank: the number of this process, from 0.
        ranks: the number of processes that share every batch.
        columns: the columns to read; all by default.

    Yields:
        For each step a dict from column to array.

    Raises:
        InvalidInputError: the sampler has no largest batch, or a column of the table is named `weight`.
        DataError: a batch is larger than it may be.

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
    stored = [name for name, _ in files.manifest.columns] if columns is None else list(columns)
    if files.manifest.padded_to is not None:
        stored = list(dict.fromkeys([*stored, WEIGHT_COLUMN]))
    elif WEIGHT_COLUMN in stored:
        # clipped gradients are multiplied by ours: another would exceed the clip norm
        raise InvalidInputError(
            "columns",
            WEIGHT_COLUMN,
            "left out: it would be taken for the weight that says which rows are real",
            "Name the other columns, or rename it before you build.",
        )
    batches = files.batches(epoch, start, rank, ranks, stored)
    size = -(-largest_batch(files.manifest) // ranks)
    for table in batches:
        yield padded(arrays(table), table.num_rows, size)


def largest_batch(manifest: Manifest) -> int:
    """The size that no batch of these files exceeds: a public number."""
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


def arrays(table: pa.Table) -> dict[str, NDArray[Any]]:
    """The columns of a batch; numbers without missing values are views of what was read, where it was read whole."""
    return {name: table.column(name).to_numpy() for name in table.column_names}


def padded(batch: dict[str, NDArray[Any]], rows: int, size: int) -> dict[str, NDArray[Any]]:
    """Fill every column up to `size` rows; add the weight if there is none."""
    _check.integer("size", size, 1, advice="Give the fixed size of batches.")
    if rows > size:
        raise DataError("A batch of the batch files is larger than it may be. Build them again.")
    weights = batch.get(WEIGHT_COLUMN, np.ones(rows, dtype=np.float32))
    return {name: filled(column, size) for name, column in (batch | {WEIGHT_COLUMN: weights}).items()}
