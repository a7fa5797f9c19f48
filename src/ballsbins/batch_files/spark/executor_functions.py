"""Functions that executors compute from the key: bins, truncation words and shuffled places, column to column.

The key comes as a broadcast variable. The functions below hold only the variable's number, so neither a plan nor an
event log contains the key. All are pure functions of (key, epoch, identity): a retry, a lost executor or a different
partitioning gives every row the same answer.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql.functions import arrow_udf  # type: ignore[attr-defined]

from ballsbins.samplers import Key, Shuffle
from ballsbins.samplers.even_batches import break_ties
from ballsbins.samplers.keystream import Keystream

_CHUNK = 1 << 20
_PREFIX = 20  # leading bits of the first word, used to locate boundaries
_SIGN = np.uint64(1 << 63)  # Spark's integers are signed: flipping the highest bit keeps the order


@dataclass(frozen=True)
class Drawn:
    """The broadcast data: a sampler, its key and the epoch; for shuffle also where the parts begin."""

    sampler: Any
    key: Key
    epoch: int
    num_examples: int
    boundaries: tuple[tuple[int, int], ...] = ()


def bin_function(drawn: Any) -> Any:
    """The DataFrame function from identities (positions or bytes) to balls-and-bins batches."""

    def ballsbins_bin(identities: pa.Array) -> pa.Array:
        secret = drawn.value
        bins = secret.sampler.bins_of(secret.key, secret.epoch, _named(identities))
        return pa.array(bins.astype(np.int32))

    return arrow_udf(ballsbins_bin, returnType="int")


def truncation_function(drawn: Any) -> Any:
    """The function from (batch, identity) of rows in batch order to truncation words: the smallest B are kept."""

    def ballsbins_word(batches: pa.Array, identities: pa.Array) -> pa.Array:
        secret = drawn.value
        steps, names = batches.to_numpy(), _named(identities)
        words = np.empty(len(steps), dtype=np.uint64)
        changes = np.flatnonzero(steps[1:] != steps[:-1]) + 1
        for run in np.split(np.arange(len(steps)), changes):
            if len(run):
                span = slice(run[0], run[-1] + 1)
                step = int(steps[run[0]])
                words[span] = secret.sampler.truncation_words(secret.key, secret.epoch, step, names[span])
        return pa.array(words.view(np.int64))

    return arrow_udf(ballsbins_word, returnType="bigint")


def poisson_function(drawn: Any) -> Any:
    """The function from steps to Poisson batches, as lists of positions, which are already truncated."""

    def ballsbins_batch(steps: pa.Array) -> pa.Array:
        secret = drawn.value
        batches = secret.sampler.batches(secret.num_examples, secret.key, secret.epoch)
        return pa.array(
            [batches.at(step).astype(np.int64) for step in steps.to_pylist()], pa.list_(pa.int64())
        )

    return arrow_udf(ballsbins_batch, returnType="array<bigint>")


def shuffle_function(drawn: Any) -> Any:
    """The function from positions to a row's part and its place in the shuffled order, as 128 random bits.

    The in-memory order breaks ties of 32-bit words by an endless sequence of further words. Four words leave a tie
    between any two of n rows with probability n²/2¹²⁹.
    """

    def ballsbins_place(positions: pa.Array) -> pa.Array:
        secret = drawn.value
        high, low = _places(secret.sampler.keystream(secret.key, secret.epoch), positions.to_numpy())
        parts = _parts(secret.boundaries, high, low)
        columns = {"part": parts.astype(np.int32), "high": _signed(high), "low": _signed(low)}
        return pa.StructArray.from_arrays(map(pa.array, columns.values()), names=list(columns))

    return arrow_udf(ballsbins_place, returnType="struct<part:int,high:bigint,low:bigint>")


def shuffled_boundaries(
    sampler: Shuffle, key: Key, epoch: int, num_examples: int, ranks: NDArray[np.int64]
) -> tuple[tuple[int, int], ...]:
    """The places of the rows that have these ranks in the shuffled order.

    It makes two passes over the words of all positions, in constant memory except for the rows that share the upper
    20 bits with one of the answers: n · len(ranks) / 2²⁰ of them.
    """
    keystream = sampler.keystream(key, epoch)
    shift = np.uint32(32 - _PREFIX)
    counts = np.zeros(1 << _PREFIX, dtype=np.int64)
    for start in range(0, num_examples, _CHUNK):
        words = keystream.words32(0, start, min(_CHUNK, num_examples - start))
        counts += np.bincount(words >> shift, minlength=len(counts))
    ends = np.cumsum(counts)
    prefixes = np.searchsorted(ends, ranks, side="right")
    wanted = np.zeros(len(counts), dtype=np.bool_)
    wanted[prefixes] = True
    gathered = []
    for start in range(0, num_examples, _CHUNK):
        words = keystream.words32(0, start, min(_CHUNK, num_examples - start))
        gathered.append(start + np.flatnonzero(wanted[words >> shift]))
    if not len(ranks):
        return ()
    order = np.concatenate(gathered)
    words = keystream.words32_at(0, order)
    by_word = np.argsort(words, kind="stable")
    order, words = order[by_word], words[by_word]
    break_ties(keystream, order, words[1:] == words[:-1])
    # number of gathered rows minus number of all rows, up to the end of each prefix
    before = np.cumsum(np.where(wanted, counts, 0)) - ends
    high, low = _places(keystream, order[ranks + before[prefixes]])
    return tuple(zip(high.tolist(), low.tolist(), strict=True))


def _named(identities: pa.Array) -> Any:
    """Positions as an array, bytes as a list. A row without bytes gets arbitrary ones; the writer reports it."""
    if pa.types.is_integer(identities.type):
        return identities.to_numpy()
    return [name or b"" for name in identities.to_pylist()]


def _places(
    keystream: Keystream, positions: NDArray[np.integer]
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    words = [keystream.words32_at(stream, positions).astype(np.uint64) for stream in range(4)]
    half = np.uint64(32)
    return words[0] << half | words[1], words[2] << half | words[3]


def _parts(
    boundaries: tuple[tuple[int, int], ...], high: NDArray[np.uint64], low: NDArray[np.uint64]
) -> NDArray[np.int64]:
    """For each place, the number of boundaries at or before it."""
    first = np.array([boundary[0] for boundary in boundaries], dtype=np.uint64)
    parts = np.searchsorted(first, high, side="right")
    # places whose high half equals that of a boundary
    for row in np.flatnonzero(parts != np.searchsorted(first, high, side="left")):
        parts[row] = bisect_right(boundaries, (int(high[row]), int(low[row])))
    return parts


def _signed(words: NDArray[np.uint64]) -> NDArray[np.int64]:
    return (words ^ _SIGN).view(np.int64)
