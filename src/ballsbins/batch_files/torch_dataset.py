"""Batch files as a PyTorch data set: DataLoader(BatchDataset(files, epoch), batch_size=None)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from ballsbins.batch_files.reader import BatchFiles
from ballsbins.errors import MissingExtraError

try:
    import torch
    from torch.utils.data import IterableDataset, get_worker_info
except ImportError as missing:
    raise MissingExtraError("Reading batch files with PyTorch", "torch") from missing

if TYPE_CHECKING:
    import pyarrow as pa

Batch = dict[str, Any]


class BatchDataset(IterableDataset[Batch]):
    """The batches of one epoch from step `start` on, as dicts of tensors (text as lists), empty batches too.

    Use it with batch_size=None: a batch is a batch. It reads ahead in a thread of its own, so num_workers of 0 or 1
    is best; with more, each worker reads all files and gives its share of the steps, in order.
    """

    def __init__(
        self,
        files: BatchFiles,
        epoch: int,
        start: int = 0,
        rank: int = 0,
        ranks: int = 1,
        columns: Sequence[str] | None = None,
    ) -> None:
        """Take what `BatchFiles.batches` takes, and check it now."""
        files.batches(epoch, start, rank, ranks, columns)
        self._files, self._arguments = files, (epoch, start, rank, ranks, columns)
        self._length = files.manifest.steps - start

    def __iter__(self) -> Iterator[Batch]:
        """Give the batches in order."""
        worker = get_worker_info()
        first, stride = (0, 1) if worker is None else (worker.id, worker.num_workers)
        return (
            _tensors(table) for table in islice(self._files.batches(*self._arguments), first, None, stride)
        )

    def __len__(self) -> int:
        """Count the steps from `start` to the epoch's end."""
        return self._length


def _tensors(table: pa.Table) -> Batch:
    return {name: _tensor(table.column(name)) for name in table.column_names}


def _tensor(column: pa.ChunkedArray) -> Any:
    whole = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    values = whole.to_numpy(zero_copy_only=False)
    if values.dtype.kind not in "iufb":
        return column.to_pylist()
    return torch.from_numpy(values.copy())  # a tensor may be written to, what was read may not
