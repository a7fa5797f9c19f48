"""Batches of batch files as dicts of NumPy arrays of one shape: what JAX compiles once for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ballsbins import _check
from ballsbins.engines.manifest import WEIGHT_COLUMN, Manifest
from ballsbins.engines.reader import BatchFiles
from ballsbins.errors import DataError, InvalidInputError

if TYPE_CHECKING:
    import pyarrow as pa


def padded_arrays(
    files: BatchFiles,
    epoch: int,
    start: int = 0,
    rank: int = 0,
    ranks: int = 1,
    columns: Sequence[str] | None = None,
) -> Iterator[dict[str, NDArray[Any]]]:
    """Give the batches from step `start` on as arrays of one, public length, with their `weight`.

    The length is that of the largest batch there may be, divided among the ranks; files need not be padded. Rows of
    weight 0 hold nothing: multiply losses or clipped gradients by the weight, and divide by the public n/T.
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
    return {name: _filled(column, size) for name, column in (batch | {WEIGHT_COLUMN: weights}).items()}


def _filled(column: NDArray[Any], size: int) -> NDArray[Any]:
    if len(column) == size:
        return column
    whole = np.zeros((size, *column.shape[1:]), dtype=column.dtype)
    whole[: len(column)] = column
    return whole
