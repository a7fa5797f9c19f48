"""Batch files for PyTorch: an iterable dataset for DataLoader(dataset, batch_size=None)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from ballsbins.batch_files.reader import BatchFiles, arrays
from ballsbins.errors import MissingExtraError

try:
    import torch
    from torch.utils.data import IterableDataset, get_worker_info
except ImportError as missing:
    raise MissingExtraError("Reading batch files with PyTorch", "torch") from missing

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PIPED = 1 << 20  # bytes
_ALIGNED = 64  # bytes: alignment of the tensors of a batch within their shared memory


class TensorBatch(dict[str, Any]):
    """The tensors of a batch by name, which a DataLoader worker sends in one piece.

    PyTorch sends each tensor in a separate block of shared memory. For dozens of small tensors that takes far longer
    than reading them, so all tensors share one block.
    """

    def __copy__(self) -> TensorBatch:
        """Keep this class: DataLoader copies a dict before it sends it."""
        return TensorBatch(self)

    def __reduce__(self) -> Any:
        """Put all tensors into one block; other values, such as text, are sent unchanged."""
        layout, arrays_of, others, end = [], [], {}, 0
        for name, value in self.items():
            if not isinstance(value, torch.Tensor) or value.device.type != "cpu" or value.requires_grad:
                others[name] = value
                continue
            values = np.ascontiguousarray(value.numpy())
            layout.append((name, end, str(value.dtype).removeprefix("torch."), values.shape))
            arrays_of.append(values)
            end += -(-values.nbytes // _ALIGNED) * _ALIGNED
        memory = np.empty(end, np.uint8)
        for (_, begin, _, _), values in zip(layout, arrays_of, strict=True):
            memory[begin : begin + values.nbytes] = values.reshape(-1).view(np.uint8)
        return _from_one, (_handed_over(memory), layout, others, list(self))


def _handed_over(memory: NDArray[np.uint8]) -> Any:
    """Send small data through the pipe to the other process, and large data in shared memory."""
    return bytearray(memory) if memory.nbytes <= _PIPED else torch.from_numpy(memory)


def _from_one(
    memory: Any, layout: list[tuple[str, int, str, tuple[int, ...]]], others: Any, names: list[str]
) -> TensorBatch:
    found = dict(others)
    buffer = memory.numpy() if isinstance(memory, torch.Tensor) else memory
    for name, begin, dtype, shape in layout:
        kind, count = getattr(torch, dtype), math.prod(shape)
        if not count:  # frombuffer does not accept empty data
            found[name] = torch.empty(shape, dtype=kind)
            continue
        values = torch.frombuffer(buffer, dtype=kind, count=count, offset=begin)
        found[name] = values if len(shape) == 1 else values.view(shape)
    return TensorBatch((name, found[name]) for name in names)


class BatchDataset(IterableDataset[TensorBatch]):
    """The batches of one epoch from step `start` on, as dicts of tensors (text as lists), including empty batches.

    Use it with batch_size=None, because each item is already a batch. `batch_files.columns` describes the tensors,
    which are the same in every batch. Reading is cheap beside training, so `num_workers=0` is best for most loops.
    More workers do not read faster: each of them reads all files and gives its share of the steps, in order. To
    divide the reading among training processes, build with --world-size.
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
        """Take the arguments of `BatchFiles.batches`, and check them now."""
        files.batches(epoch, start, rank, ranks, columns)
        self._files, self._arguments = files, (epoch, start, rank, ranks, columns)
        self._length = files.manifest.steps - start

    def __iter__(self) -> Iterator[TensorBatch]:
        """Give the batches in order."""
        worker = get_worker_info()
        first, stride = (0, 1) if worker is None else (worker.id, worker.num_workers)
        batches = islice(arrays(self._files, *self._arguments, writable=True), first, None, stride)
        return (_tensors(batch) for batch, _ in batches)

    def __len__(self) -> int:
        """The number of steps from `start` to the end of the epoch."""
        return self._length


def _tensors(batch: dict[str, NDArray[Any]]) -> TensorBatch:
    return TensorBatch((name, _tensor(values)) for name, values in batch.items())


def _tensor(values: NDArray[Any]) -> Any:
    if values.dtype.kind == "O":
        return values.tolist()
    return torch.from_numpy(values)
