"""Batches whose sizes differ by at most one: the examples in the given order, or in a random order, cut evenly.

These are the paper's algorithms "Deterministic Batch Generator" and "Shuffle Batch Generator".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ballsbins.samplers.base import Draw, Sampler, check_epoch, even_cuts, index_dtype
from ballsbins.samplers.key import Key, as_key
from ballsbins.samplers.keystream import Keystream
from ballsbins.samplers.physical import IndexArray


@dataclass(frozen=True, repr=False)
class Deterministic(Sampler, type_name="deterministic"):
    """Cut the examples, in the given order, into `steps` batches: the same in every epoch and for every key.

    Formal guarantees:

    * each example is in exactly one batch;
    * the batches are consecutive ranges, and their sizes differ by at most one (the paper requires n = b·T, which
      makes them equal);
    * nothing is random: the order of the data is assumed to be known to everybody.

    Args:
        steps: T, the number of batches in one epoch.

    Example:
        >>> [batch.tolist() for batch in Deterministic(steps=3).batches(num_examples=7, key=1)]
        [[0, 1, 2], [3, 4], [5, 6]]
    """

    is_random = False
    random_sizes = False
    amplifies = False
    name = "deterministic"
    batching = "the same batches in the same order in every epoch, as DataLoader(shuffle=False) has them"
    draws_once = True

    def _least_memory(self, num_examples: int) -> int:
        return 4 * (num_examples // self.steps)  # memory of one batch

    def _draw(self, num_examples: int, key: Key, epoch: int) -> Draw:
        cut, dtype = even_cuts(num_examples, self.steps), index_dtype(num_examples)

        def batch(step: int) -> IndexArray:
            part = cut(step)
            return np.arange(part.start, part.stop, dtype=dtype)

        return batch


@dataclass(frozen=True, repr=False)
class Shuffle(Sampler, type_name="shuffle"):
    """Put the examples in a uniformly random order, new in every epoch, and cut it into `steps` batches.

    Formal guarantees, for a secret key and a keystream that is indistinguishable from random:

    * each example is in exactly one batch of every epoch;
    * the sizes of the batches differ by at most one, and are public: the first n mod T batches have one extra
    example; * every order of the examples is exactly equally likely, and the orders of different epochs are
      independent (examples are ordered by a sequence of independent uniform words, read as far as needed).

    Args:
        steps: T, the number of batches in one epoch.

    Example:
        >>> batches = Shuffle(steps=3).batches(num_examples=7, key=1)
        >>> [len(batch) for batch in batches], sorted(index for batch in batches for index in batch.tolist())
        ([3, 2, 2], [0, 1, 2, 3, 4, 5, 6])
    """

    random_sizes = False
    amplifies = False  # no upper bound below that of deterministic batches is known
    name = "shuffle"
    batching = "a new random order cut into batches, as DataLoader(shuffle=True) and poisson_sampling=False have them"

    def order(self, num_examples: int, key: Key | bytes | int, epoch: int = 0) -> IndexArray:
        """Draw the random order of an epoch; the batches are its consecutive parts.

        Args:
            num_examples: n, the number of examples in the data set.
            key: the secret key, as a `Key` or 32 bytes. An integer is a seed for experiments, and not secret.
            epoch: the number of the epoch, from 0.

        Returns:
            The n indices in their order: 4 bytes each up to 2³² − 1 examples, 8 above.
        """
        examples, number = self._check_num_examples(num_examples), check_epoch(epoch)
        self._check_memory(examples)
        return random_order(self.keystream(key, number), examples, packed=examples < 2**32)

    def keystream(self, key: Key | bytes | int, epoch: int) -> Keystream:
        """Give the words that order the examples of an epoch: stream 0 first, ties by stream 1, and so on.

        Args:
            key: the secret key, as a `Key` or 32 bytes. An integer is a seed for experiments, and not secret.
            epoch: the number of the epoch, from 0.

        Returns:
            The keystream that determines this sampler's order in this epoch.
        """
        return Keystream(as_key(key), self.type_name, self.steps, "order", check_epoch(epoch))

    def _least_memory(self, num_examples: int) -> int:
        return 12 * num_examples  # word and index to sort, and the result

    def _draw(self, num_examples: int, key: Key, epoch: int) -> Draw:
        order, cut = self.order(num_examples, key, epoch), even_cuts(num_examples, self.steps)
        return lambda step: order[cut(step)]


def random_order(keystream: Keystream, num_examples: int, *, packed: bool) -> IndexArray:
    """Sort the indices by their word in stream 0, ties by their word in stream 1, and so on.

    `packed` sorts word and index together as one 64-bit number, in place. This is faster and takes half the memory,
    but an index must then fit into 32 bits. Both give the same order.
    """
    dtype: type[np.uint32 | np.int64] = index_dtype(num_examples)
    words = keystream.words32(0, 0, num_examples)
    if packed:
        both = words.astype(np.uint64)
        del words
        both <<= np.uint64(32)
        both |= np.arange(num_examples, dtype=np.uint32)
        both.sort()
        order: IndexArray = both.astype(dtype)  # keeps the lower half
        both >>= np.uint64(32)
        tied = both[1:] == both[:-1]
        del both
    else:
        order = np.argsort(words, kind="stable").astype(dtype, copy=False)
        words = words[order]
        tied = words[1:] == words[:-1]
    break_ties(keystream, order, tied)
    return order


def break_ties(keystream: Keystream, order: IndexArray, tied: NDArray[np.bool_]) -> None:
    """Sort each run of tied places in `order` by further words; tied[j] means that j and j + 1 are tied."""
    places, runs = _tied_runs(tied)
    stream = 0
    while len(places):
        stream += 1
        words = keystream.words32_at(stream, order[places])
        rank = np.lexsort((words, runs))  # each run stays in its place
        order[places] = order[places][rank]
        words = words[rank]
        among, new_runs = _tied_runs((words[1:] == words[:-1]) & (runs[1:] == runs[:-1]))
        places, runs = places[among], new_runs


def _tied_runs(tied: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the places that are tied to the one before or after, and the run number of each."""
    left = np.flatnonzero(tied)
    places = np.union1d(left, left + 1)
    if not len(places):
        return places, places
    joined = (np.diff(places) == 1) & tied[places[:-1]]
    return places, np.concatenate(([0], np.cumsum(~joined)))
