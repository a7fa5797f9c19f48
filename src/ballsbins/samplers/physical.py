"""Turn batches as drawn into batches as computed: truncate, pad, split, and divide among ranks.

No error here states the size of a batch: realised sizes are as secret as the key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ballsbins import _check
from ballsbins.errors import InvalidInputError

IndexArray = NDArray[np.uint32 | np.int64]


@dataclass(frozen=True)
class PaddedBatch:
    """A batch of a fixed, public size. Where `weights` is 0, the index is −1 and there is no example.

    For index −1, read any row (−1 is the last row, which is convenient) and multiply its loss or its clipped gradient
    by the weight. The mean of a padded batch divides by the public n/T, never by the sum of weights.
    """

    indices: NDArray[np.int64]
    weights: NDArray[np.float32]

    def __repr__(self) -> str:
        """Show the public size only: the number of real examples is secret."""
        return f"PaddedBatch(size={len(self.indices)})"


def truncate(batch: IndexArray, words: NDArray[np.uint64], max_batch_size: int) -> IndexArray:
    """Keep the `max_batch_size` examples with the smallest words, ties by place, in the given order.

    Formal guarantee: for independent uniform words a batch of b examples loses a uniformly random subset, up to a
    total variation of b²/2⁶⁵ caused by ties. Whether an example stays depends on its batch alone.

    Args:
        batch: the indices of the examples.
        words: one 64-bit word for each, from `truncation_words`.
        max_batch_size: the largest batch, from 1.

    Returns:
        At most `max_batch_size` of the indices.

    Raises:
        InvalidInputError: the number of words differs from the number of examples.

    Example:
        >>> import numpy as np
        >>> truncate(np.arange(4), np.array([7, 1, 9, 3], dtype=np.uint64), 2).tolist()
        [1, 3]
    """
    limit = _check.integer("max_batch_size", max_batch_size, 1, advice="Give the largest batch that fits.")
    if len(words) != len(batch):
        raise InvalidInputError(
            "words",
            "an array of another length",
            "one word for each example",
            "Use Sampler.truncation_words.",
        )
    if len(batch) <= limit:
        return batch
    kept = np.argsort(words, kind="stable")[:limit]  # stable: equal words keep the order of their places
    kept.sort()
    return batch[kept]


def pad(batch: IndexArray, size: int) -> PaddedBatch:
    """Fill a batch up to exactly `size` with index −1 and weight 0. The real examples come first.

    Args:
        batch: the indices of the examples.
        size: the fixed size, usually the sampler's `max_batch_size`.

    Returns:
        Indices and weights, each of length `size`.

    Raises:
        InvalidInputError: the batch is larger than `size`.

    Example:
        >>> import numpy as np
        >>> padded = pad(np.array([4, 2]), 3)
        >>> padded.indices.tolist(), padded.weights.tolist()
        ([4, 2, -1], [1.0, 1.0, 0.0])
    """
    length = _check.integer("size", size, 1, advice="Give the fixed batch size, usually max_batch_size.")
    if len(batch) > length:
        raise InvalidInputError(
            "size",
            length,
            "at least the size of every batch",
            "Truncate first: give the sampler max_batch_size (and the accounting its cost), then pad to it.",
        )
    return PaddedBatch(filled(batch.astype(np.int64), length, -1), weights_of(len(batch), length))


def filled(rows: NDArray[Any], size: int, value: Any = 0) -> NDArray[Any]:
    """Fill an array up to `size` rows with a constant, never with a copy of an example.

    If padding were a copy, the bits of other rows could depend on an example that is not in the batch.
    """
    if len(rows) == size:
        return rows
    return np.concatenate([rows, np.full((size - len(rows), *rows.shape[1:]), value, rows.dtype)])


def weights_of(count: int, size: int) -> NDArray[np.float32]:
    """Return the weights of a padded batch: 1 for its `count` examples, which come first, and 0 for the rest."""
    return (np.arange(size) < count).astype(np.float32)


def split(batch: IndexArray, microbatch_size: int) -> list[IndexArray]:
    """Cut a batch into pieces, to accumulate gradients before one noisy step.

    An empty batch gives one empty piece, so that every step has a last piece, at which the noise is added.

    Args:
        batch: the indices of the examples.
        microbatch_size: the largest piece, from 1.

    Returns:
        The pieces, in order.

    Raises:
        InvalidInputError: `microbatch_size` is below 1.

    Example:
        >>> import numpy as np
        >>> [piece.tolist() for piece in split(np.arange(5), 2)]
        [[0, 1], [2, 3], [4]]
    """
    size = _check.integer("microbatch_size", microbatch_size, 1, advice="Give the size that fits in memory.")
    return [batch[begin : begin + size] for begin in range(0, max(len(batch), 1), size)]


def split_padded(batch: PaddedBatch, microbatch_size: int) -> list[PaddedBatch]:
    """Cut a padded batch into pieces of equal size.

    So the number and shape of the pieces are public, whatever the batch holds.

    Args:
        batch: the padded batch.
        microbatch_size: the size of a piece, which must divide the size of the batch.

    Returns:
        The pieces, in order.

    Raises:
        InvalidInputError: `microbatch_size` does not divide the size of the batch.

    Example:
        >>> import numpy as np
        >>> from ballsbins.samplers import pad
        >>> len(split_padded(pad(np.arange(5), 6), 2))
        3
    """
    advice = f"Choose a divisor of the padded size {len(batch.indices)}, or pad to a multiple of it."
    size = _check.integer("microbatch_size", microbatch_size, 1, advice=advice)
    if len(batch.indices) % size:
        raise InvalidInputError("microbatch_size", size, f"a divisor of {len(batch.indices)}", advice)
    return [
        PaddedBatch(batch.indices[begin : begin + size], batch.weights[begin : begin + size])
        for begin in range(0, len(batch.indices), size)
    ]


def rank_slice(batch: IndexArray, rank: int, world_size: int) -> IndexArray:
    """Give one rank's share of a batch for data-parallel training: every world_size-th example.

    Formal guarantee: the shares of all ranks are disjoint, their union is the batch, and their sizes differ by at
    most one. A share may be empty; the rank must still take its step.

    Args:
        batch: the indices of the examples.
        rank: the number of this process, from 0.
        world_size: the number of processes that train.

    Returns:
        The rank's indices.

    Example:
        >>> import numpy as np
        >>> rank_slice(np.arange(5), rank=1, world_size=2).tolist()
        [1, 3]
    """
    first, stride = check_rank(rank, world_size)
    return batch[first::stride]


def check_rank(rank: int, world_size: int) -> tuple[int, int]:
    """Return both as plain integers if 0 ≤ rank < world_size."""
    ranks = _check.integer("world_size", world_size, 1, advice="Give the number of processes that train.")
    advice = f"Ranks count from 0 to world_size − 1 = {ranks - 1}."
    return _check.integer("rank", rank, 0, ranks - 1, advice=advice), ranks
