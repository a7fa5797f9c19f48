"""Exactly uniform integers below a bound, from uniform 32-bit words.

Lemire's rule: the product word · bound has the answer in its upper 32 bits. Each answer is hit by ⌊2³²/bound⌋
or one more words; refusing a word whenever the lower 32 bits fall below 2³² mod bound leaves exactly
⌊2³²/bound⌋ words for each. A refused word is replaced by the word of the next attempt at the same place, so
no other answer moves. Refusals have probability below bound / 2³²: 0.23 % for ten million.

Words of 32 bits, since the product then fits 64 bits, which compiled array arithmetic offers; the answers are
exactly uniform at any width.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

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
