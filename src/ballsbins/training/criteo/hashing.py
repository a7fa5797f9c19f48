"""From a category's text to a bucket, without a look at the data.

Multilinear hashing: for a text of bytes s₁ … s_k the hash is the upper half of m₀ + Σ mᵢ·(sᵢ + 1) mod 2⁶⁴, with
multipliers drawn by SHAKE-256 from a public salt and the feature's name. Over a random salt two different texts fall
into the same of M buckets with probability at most 1/M + 2⁻³², whatever the texts are (strong universality; adding
one to every byte makes texts of different lengths differ). The same salt gives the same buckets on every machine and
in every version: Python's own `hash` does neither.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

MISSING_ID = 0  # the first bucket is for missing values alone
_HALF = np.uint64(32)


def bucket_ids(texts: Any, buckets: int, *, salt: str, feature: str) -> NDArray[np.int32]:
    """Ids from 1 to buckets − 1 of a pyarrow string array without nulls."""
    hashes = text_hashes(texts, salt=salt, feature=feature)
    # Multiply and shift in place of a remainder: no division, and every bucket's share differs by at most 2⁻³².
    return (((hashes * np.uint64(buckets - 1)) >> _HALF) + np.uint64(1)).astype(np.int32)


def text_hashes(texts: Any, *, salt: str, feature: str) -> NDArray[np.uint64]:
    """A 32-bit hash of every text."""
    count = len(texts)
    offsets = np.frombuffer(texts.buffers()[1], np.int32, count + 1, 4 * texts.offset).astype(np.int64)
    if count == 0 or offsets[-1] == offsets[0]:
        first = _multipliers(salt, feature, 1)[0]
        return np.full(count, first >> _HALF, np.uint64)
    raw = np.frombuffer(texts.buffers()[2], np.uint8)[offsets[0] : offsets[-1]]
    offsets -= offsets[0]
    lengths = np.diff(offsets)
    multipliers = _multipliers(salt, feature, _power_of_two(int(lengths.max()) + 1))
    places = np.arange(len(raw)) - np.repeat(offsets[:-1], lengths)
    terms = multipliers[places + 1] * (raw.astype(np.uint64) + np.uint64(1))  # wraps: arithmetic modulo 2⁶⁴
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(terms, dtype=np.uint64)])
    totals = sums[offsets[1:]] - sums[offsets[:-1]] + multipliers[0]
    hashes: NDArray[np.uint64] = totals >> _HALF
    return hashes


@lru_cache(maxsize=256)
def _multipliers(salt: str, feature: str, count: int) -> NDArray[np.uint64]:
    """The first `count` multipliers; a longer draw begins with the same ones."""
    name = f"ballsbins/category-hash/1/{len(salt)}/{salt}/{feature}".encode()
    drawn = np.frombuffer(hashlib.shake_256(name).digest(8 * count), "<u8").astype(np.uint64)
    drawn.flags.writeable = False
    return drawn


def _power_of_two(number: int) -> int:
    """At least `number`, so that few different lengths are drawn and kept."""
    return 1 << (number - 1).bit_length()
