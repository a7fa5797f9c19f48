"""The paper's algorithm "Balls-and-Bins Sampler": every example goes to one uniformly random batch.

**Bins** are exactly uniform integers below a bound, made from uniform 32-bit words. By Lemire's rule, the upper 32
bits of the product word · bound are the answer. Each answer comes from ⌊2³²/bound⌋ words or one more. Refusing a word
whenever the lower 32 bits fall below 2³² mod bound leaves exactly ⌊2³²/bound⌋ words for each answer. A refused word
is replaced by the word of the next attempt at the same place, so no other answer changes. A word is refused with
probability below bound / 2³²: 0.23 % for ten million.

Words have 32 bits so that the product fits 64 bits, which compiled array arithmetic offers. The answers are exactly
uniform at any width.

**Grouping** the numbers 0 … n − 1 by their bins is a counting sort in compiled code, with little memory. Sorting by
bin is the main cost of an epoch. Transposing a sparse matrix with one entry per row is exactly a stable counting
sort, and SciPy has it compiled. It writes to scattered places of its result. So it runs on chunks that fit the
processor's cache, and each chunk is then copied bin by bin into the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ballsbins import _check
from ballsbins.errors import InvalidInputError
from ballsbins.samplers.base import MAX_EXAMPLES, Draw, check_epoch, index_dtype
from ballsbins.samplers.key import Key, as_key
from ballsbins.samplers.keystream import KeyedHash, Keystream, check_identities
from ballsbins.samplers.physical import IndexArray
from ballsbins.samplers.truncation import TruncatingSampler


@dataclass(frozen=True, repr=False)
class BallsAndBins(TruncatingSampler, type_name="balls_and_bins"):
    """Put every example into one of `steps` batches, independently and uniformly.

    With `redraw` every epoch draws new bins (the paper). Without it, all epochs use the same bins and so the same
    batches, which costs far more privacy: at σ = 1, T = 1000, 10 epochs and δ = 10⁻⁶ it is ε ≈ 12.5 instead of 0.54.

    Formal guarantees, for a secret key and a keystream that is indistinguishable from random:

    * in every epoch each example is in exactly one batch (at most one with `max_batch_size`);
    * each example's bin is exactly uniform on the steps, and independent of the bins of all other examples
      and, with `redraw`, of all other epochs;
    * so the size of each batch before truncation is distributed as Bin(n, 1/T), and given the sizes the
      batches are a uniformly random partition;
    * the bin of an example is a pure function of the key, the epoch, `steps`, `redraw` and the example's identity. It
      does not depend on the number of examples, on earlier draws, or on the machine.

    Args:
        steps: T, the number of batches in one epoch.
        redraw: whether every epoch draws new bins.
        max_batch_size: the size to which larger batches are truncated; None for no limit.
        num_examples: the number of examples for which truncation is accounted; needed with `max_batch_size`.

    Example:
        >>> batches = BallsAndBins(steps=3).batches(num_examples=7, key=1)
        >>> sorted(index for batch in batches for index in batch.tolist())
        [0, 1, 2, 3, 4, 5, 6]
        >>> BallsAndBins(steps=3, redraw=False).name
        'balls-and-bins (fixed bins)'
    """

    redraw: bool = True

    @property
    def name(self) -> str:
        """The name to show to people; it marks fixed bins."""
        return "balls-and-bins" if self.redraw else "balls-and-bins (fixed bins)"

    @property
    def batching(self) -> str:
        """How its batches are drawn, in words."""
        when = "drawn anew in every epoch" if self.redraw else "the same in every epoch"
        return f"every example in one random batch, {when}; not what DataLoader(shuffle=True) gives"

    @property
    def draws_once(self) -> bool:
        """Whether the bins are fixed."""
        return not self.redraw

    def __post_init__(self) -> None:
        """Validate the fields."""
        super().__post_init__()
        if not isinstance(self.redraw, bool):
            advice = "True draws new bins each epoch, False keeps them."
            raise InvalidInputError("redraw", self.redraw, "True or False", advice)

    def bins(self, key: Key | bytes | int, epoch: int, start: int, stop: int) -> NDArray[np.uint32]:
        """Draw the bins of a range of examples, in time proportional to its length.

        Args:
            key: the secret key, as a `Key` or 32 bytes. An integer is a seed for experiments, and not secret.
            epoch: the number of the epoch, from 0.
            start: the first example of the range.
            stop: the end of the range, exclusive.

        Returns:
            The bins of the examples start … stop − 1, from 0 to steps − 1.

        Raises:
            InvalidInputError: the range or the epoch is not valid.
        """
        advice = "Give the range of examples as 0 <= start <= stop."
        last = _check.integer("stop", stop, 0, MAX_EXAMPLES, advice=advice)
        first = _check.integer("start", start, 0, last, advice=advice)
        return self._bins(self._keystream(key, epoch), first, last)

    def bins_of(
        self, key: Key | bytes | int, epoch: int, identities: NDArray[np.integer] | Sequence[bytes]
    ) -> NDArray[np.uint32]:
        """Draw the bins of any examples.

        An index and bytes always name different examples, whatever the bytes are: use one kind for one data set.

        Args:
            key: the secret key, as a `Key` or 32 bytes. An integer is a seed for experiments, and not secret.
            epoch: the number of the epoch, from 0.
            identities: an array of indices, or a sequence of bytes that are unique in the data set.

        Returns:
            The bin of each, from 0 to steps − 1.
        """
        checked = check_identities(identities, MAX_EXAMPLES)
        if isinstance(checked, np.ndarray):
            return self._bins_at(self._keystream(key, epoch), checked)
        return self._bins_of_bytes(key, epoch, checked)

    def bin_of(self, key: Key | bytes | int, epoch: int, identity: int | bytes) -> int:
        """Draw the bin of one example, in constant time.

        Args:
            key: the secret key, as a `Key` or 32 bytes. An integer is a seed for experiments, and not secret.
            epoch: the number of the epoch, from 0.
            identity: the index of the example, or the bytes that name it.

        Returns:
            The bin, from 0 to steps − 1.

        Raises:
            InvalidInputError: `identity` is neither an index nor bytes.
        """
        if isinstance(identity, bytes):
            return int(self._bins_of_bytes(key, epoch, [identity])[0])
        advice = "Name the example by its index, or by bytes that no other example has."
        index = _check.integer("identity", identity, 0, MAX_EXAMPLES - 1, advice=advice)
        return int(self.bins(key, epoch, index, index + 1)[0])

    def _epoch_domain(self, epoch: int) -> int | str:
        self._check_drawn_steps()
        number = check_epoch(epoch)
        return "every" if self.draws_once else number

    def _keystream(self, key: Key | bytes | int, epoch: int) -> Keystream:
        return Keystream(as_key(key), *self._domain("bins", epoch))

    def _bins(self, keystream: Keystream, start: int, stop: int) -> NDArray[np.uint32]:
        words = keystream.words32(0, start, stop - start)
        return uniform_below(
            self.steps, words, lambda attempt, places: keystream.words32_at(attempt, start + places)
        )

    def _bins_at(self, keystream: Keystream, indices: NDArray[np.integer]) -> NDArray[np.uint32]:
        words = keystream.words32_at(0, indices)
        return uniform_below(
            self.steps, words, lambda attempt, places: keystream.words32_at(attempt, indices[places])
        )

    def _bins_of_bytes(
        self, key: Key | bytes | int, epoch: int, identities: Sequence[bytes]
    ) -> NDArray[np.uint32]:
        hashed = KeyedHash(as_key(key), *self._domain("bins of bytes", epoch))
        words = hashed.words(identities)

        def redraw(attempt: int, places: NDArray[np.int64]) -> NDArray[np.uint32]:
            salt, column = divmod(attempt, 4)
            more = hashed.words([identities[place] for place in places], salt) if salt else words[places]
            return more[:, column]

        return uniform_below(self.steps, words[:, 0], redraw)

    def _least_memory(self, num_examples: int) -> int:
        # an index and a bin for each example, and the beginning of each batch
        return 6 * num_examples + 8 * self.steps

    def _draw(self, num_examples: int, key: Key, epoch: int) -> Draw:
        keystream = self._keystream(key, epoch)
        grouped = group_by_bin(
            lambda start, stop: self._bins(keystream, start, stop), num_examples, self.steps
        )
        order, offsets = grouped.order, grouped.offsets

        def batch(step: int) -> IndexArray:
            return order[offsets[step] : offsets[step + 1]]

        return self._truncated(batch, key, epoch)


Redraw = Callable[[int, NDArray[np.int64]], NDArray[np.uint32]]


def uniform_below(bound: int, words: NDArray[np.uint32], redraw: Redraw) -> NDArray[np.uint32]:
    """Map each word to an integer in [0, bound), exactly uniformly.

    `redraw(attempt, places)` gives the words of attempt 1, 2, … at the places in `words` that were refused.
    """
    answers, refused = _multiply_high(bound, words)
    attempt = 0
    while len(refused):
        attempt += 1
        answers[refused], again = _multiply_high(bound, redraw(attempt, refused))
        refused = refused[again]
    return answers


def _multiply_high(bound: int, words: NDArray[np.uint32]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Return the answers, and the places whose word is refused."""
    product = np.multiply(words, np.uint64(bound), dtype=np.uint64)
    low = product.astype(np.uint32)  # keeps the lower half
    product >>= np.uint64(32)
    return product.astype(np.uint32), np.flatnonzero(low < np.uint32(2**32 % bound))


_DRAWN = 1 << 18  # bins drawn at once: their 64-bit temporaries stay in the cache
_SORTED = 1 << 20  # examples sorted at once
_PER_BIN = 16  # but at least this many per bin, otherwise visiting all the bins costs more than the examples


@dataclass(frozen=True)
class Grouped:
    """Members of bin t: order[offsets[t] : offsets[t + 1]], ascending."""

    order: IndexArray
    offsets: NDArray[np.int64]


def group_by_bin(
    bins: Callable[[int, int], NDArray[np.uint32]], num_examples: int, num_bins: int, chunk: int = _SORTED
) -> Grouped:
    """Group the examples by bin; `bins(start, stop)` gives the bins of a range of them.

    Memory besides the result: 2 or 4 bytes per example for the bins, and up to 22 bytes per example of one chunk (10
    if one chunk holds all), which is at most a third of all if there are several.
    """
    narrow: type[np.uint16 | np.int32] = np.uint16 if num_bins <= 2**16 else np.int32
    stored = np.empty(num_examples, dtype=narrow)
    for start in range(0, num_examples, _DRAWN):
        stop = min(start + _DRAWN, num_examples)
        stored[start:stop] = bins(start, stop)

    pieces = -(-num_examples // min(max(chunk, _PER_BIN * num_bins), 2**30))
    if pieces <= 1:
        return Grouped(*_sort(stored, num_bins))

    size = -(-num_examples // (pieces + 1))  # one more piece, so that a chunk is at most a third of all
    offsets = np.zeros(num_bins + 1, dtype=np.int64)
    for start in range(0, num_examples, size):
        offsets[1:] += np.bincount(stored[start : start + size], minlength=num_bins)
    np.cumsum(offsets, out=offsets)

    dtype = index_dtype(num_examples)
    grouped = np.empty(num_examples, dtype=dtype)
    free = offsets[:-1].copy()  # where the next member of each bin goes
    for start in range(0, num_examples, size):
        order, begins = _sort(stored[start : start + size], num_bins)
        counts = np.diff(begins)
        places = np.repeat(free - begins[:-1], counts)
        places += np.arange(len(order))
        grouped[places] = order + dtype(start)
        free += counts
    return Grouped(grouped, offsets)


def _sort(bins: NDArray[np.integer], num_bins: int) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Return the places of `bins` ordered by bin and then by place, and where each bin begins."""
    from scipy.sparse import csr_array

    rows = len(bins)
    entries = np.zeros(rows, dtype=np.int8)
    one_each = np.arange(rows + 1, dtype=np.int32)
    matrix = csr_array((entries, bins.astype(np.int32, copy=False), one_each), shape=(rows, num_bins)).tocsc()
    return matrix.indices.view(np.uint32), matrix.indptr.astype(np.int64)
