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

# the arrays of one dtype in the order in which they are sent: the dtype, and the name and shape of each array
_Layout = list[tuple[str, list[tuple[str, tuple[int, ...]]]]]


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
        arrays_of: dict[np.dtype[Any], list[tuple[str, NDArray[Any]]]] = {}
        others = {}
        for name, value in self.items():
            values = _as_array(value)
            if values is None:
                others[name] = value
            else:
                arrays_of.setdefault(values.dtype, []).append((name, values))
        # Wide values first: then every array begins at a multiple of its own width.
        ordered = sorted(arrays_of.items(), key=lambda entry: -entry[0].itemsize)
        layout: _Layout = [
            (dtype.str, [(name, values.shape) for name, values in some]) for dtype, some in ordered
        ]
        memory = bytearray().join([values.data for _, some in ordered for _, values in some])
        return _from_one, (_handed_over(memory), layout, others, list(self))


def _as_array(value: Any) -> NDArray[Any] | None:
    """A tensor as an array; None for anything else, and for tensors that NumPy cannot show, as on a GPU."""
    if not isinstance(value, torch.Tensor):
        return None
    try:
        return np.ascontiguousarray(value.numpy()) if value.ndim else value.numpy()
    except (RuntimeError, TypeError):
        return None


def _handed_over(memory: bytearray) -> Any:
    """Send small data through the pipe to the other process, and large data in shared memory."""
    return memory if len(memory) <= _PIPED else torch.frombuffer(memory, dtype=torch.uint8)


def _from_one(memory: Any, layout: _Layout, others: dict[str, Any], names: list[str]) -> TensorBatch:
    found, begin = dict(others), 0
    whole = memory.numpy() if isinstance(memory, torch.Tensor) else np.frombuffer(memory, np.uint8)
    for dtype, columns in layout:
        sizes = [math.prod(shape) for _, shape in columns]
        end = begin + sum(sizes) * np.dtype(dtype).itemsize
        values, first = whole[begin:end].view(dtype), 0
        for (name, shape), size in zip(columns, sizes, strict=True):
            some = values[first : first + size]
            # A tensor of its own, not a view of a tensor of all: PyTorch counts changes of the latter together.
            found[name] = torch.from_numpy(some if len(shape) == 1 else some.reshape(shape))
            first += size
        begin = end
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
