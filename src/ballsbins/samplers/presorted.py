"""Balls-and-bins batches for data already in a secret, uniformly random order: draw the sizes, then cut.

The paper's section "Implementation Details" has two ways to draw the sizes. Both are here, and both are exact. Cut
the shuffled data in order into batches of these sizes: they have the same distribution as the batches of
BallsAndBins (but differ from those that `BallsAndBins.batches` gives for the unshuffled data).

The order of the data must be uniformly random, unknown to whoever sees the result, and new in every epoch (with
redraw=False: the same in every epoch). The sizes are as secret as the key: once they are known, only the guarantee of
Shuffle remains.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from ballsbins.samplers.balls_and_bins import BallsAndBins
from ballsbins.samplers.key import Key, as_key
from ballsbins.samplers.keystream import Keystream
from ballsbins.samplers.poisson import successes

_CHUNK = 1 << 20


def thrown_sizes(
    sampler: BallsAndBins, num_examples: int, key: Key | bytes | int, epoch: int = 0
) -> NDArray[np.int64]:
    """Draw the batch sizes of an epoch by throwing n balls into T bins and counting.

    Formal guarantee: the sizes are exactly multinomial, n balls in T equally likely bins. They are counted from words
    of their own, so they are independent of the bins that `sampler.batches` uses.

    Args:
        sampler: balls-and-bins.
        num_examples: n, the number of examples.
        key: the secret key, as a `Key` or 32 bytes. An integer is a seed for experiments, and not secret.
        epoch: the number of the epoch, from 0.

    Returns:
        The T sizes; as secret as the key.

    Example:
        >>> from ballsbins import BallsAndBins
        >>> int(thrown_sizes(BallsAndBins(steps=4), 100, key=1).sum())
        100
    """
    examples = sampler._check_num_examples(num_examples)
    balls = Keystream(as_key(key), *sampler._domain("thrown sizes", epoch))
    sizes = np.zeros(sampler.steps, dtype=np.int64)
    chunk = max(_CHUNK, sampler.steps)
    for start in range(0, examples, chunk):
        bins = sampler._bins(balls, start, min(start + chunk, examples))
        sizes += np.bincount(bins, minlength=sampler.steps)
    return sizes


def binomial_sizes(
    sampler: BallsAndBins, num_examples: int, key: Key | bytes | int, epoch: int = 0
) -> Iterator[int]:
    """Draw the batch sizes of an epoch one by one: b_t from Bin(n − b_1 − … − b_(t−1), 1/(T − t + 1)).

    Formal guarantee: the sizes are exactly multinomial, as those of `thrown_sizes`. The paper is concerned about
    floating-point errors in the binomial probabilities. Here a binomial is a count of exact Bernoulli trials (drawn
    by their gaps, so with work proportional to the size drawn), and no probability is ever rounded.

    Args:
        sampler: balls-and-bins.
        num_examples: n, the number of examples.
        key: the secret key, as a `Key` or 32 bytes. An integer is a seed for experiments, and not secret.
        epoch: the number of the epoch, from 0.

    Returns:
        An iterator over the T sizes; as secret as the key.

    Example:
        >>> from ballsbins import BallsAndBins
        >>> sum(binomial_sizes(BallsAndBins(steps=4), 100, key=1))
        100
    """
    left = sampler._check_num_examples(num_examples)
    keystream = Keystream(as_key(key), *sampler._domain("binomial sizes", epoch))
    return _binomial_sizes(keystream, left, sampler.steps)


def _binomial_sizes(keystream: Keystream, left: int, steps: int) -> Iterator[int]:
    for step in range(steps):
        size = left
        if step < steps - 1:
            size = sum(len(piece) for piece in successes(keystream, step, left, steps - step))
        left -= size
        yield size


def cut_in_order(sizes: Iterable[int]) -> Iterator[slice]:
    """Cut shuffled data into consecutive parts.

    Args:
        sizes: the size of each part.

    Yields:
        One slice per part, including empty ones.

    Example:
        >>> [(part.start, part.stop) for part in cut_in_order([3, 0, 2])]
        [(0, 3), (3, 3), (3, 5)]
    """
    begin = 0
    for size in sizes:
        yield slice(begin, begin + int(size))
        begin += int(size)
