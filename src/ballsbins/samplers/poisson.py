"""The paper's algorithm "Poisson Batch Generator": every example is in every batch with probability 1/T.

The trials are drawn by the gaps between successes, which is exact and fast. The number of failures before a success
is k with probability (1 − p)^k · p, p = 1/T. By inversion: for U uniform on (0, 1),

    k = ⌊log U / log(1 − p)⌋ ,   since   k ≥ j  ⟺  U ≤ (1 − p)^j .

Floating point alone would shift each of the roughly T relevant thresholds by a relative error of about 2⁻⁵³: a total
variation of T · 2⁻⁵² per gap, which is not negligible over an epoch of ten million steps. So U is treated as a real
number, and the keystream gives as many of its bits as needed. In double precision, 64 bits decide the answer unless
the quotient lies within `_MARGIN · T` of an integer or U is below 2⁻¹⁶. Those few cases (one in 65,000) are decided
by 64 further bits at a time, in decimal arithmetic with a rigorous margin. The answers are therefore distributed
exactly, and are the same on every platform.

The margin. With w the first 64 bits, 2⁴⁸ ≤ w, the double-precision u = w · 2⁻⁶⁴ has a relative error below
2⁻⁵³ + 2⁻⁴⁸ with respect to U, so log u has an absolute error of as much. Assume that `numpy.log` errs by at most 4
units in the last place (0.61 was the worst of 300,000 values against 200 bits), 1/log1p(−1/T) by 4 (2.02 was the
worst of 3,000 values of T) and the product by 1, each a relative 2⁻⁵²: with |log u| < 11.1 that adds 11.1 · 9 · 2⁻⁵².
Divided by |log(1 − p)| ≥ 1/T, the error of the quotient is below 2⁻⁴⁵ · T. The margin is twice that. The accuracy of
`numpy.log` everywhere is measured, not proved; everything else is proved.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal, localcontext

import numpy as np
from numpy.typing import NDArray

from ballsbins.samplers.base import Draw, index_dtype
from ballsbins.samplers.key import Key
from ballsbins.samplers.keystream import Keystream
from ballsbins.samplers.physical import IndexArray
from ballsbins.samplers.truncation import TruncatingSampler


@dataclass(frozen=True, repr=False)
class Poisson(TruncatingSampler, type_name="poisson"):
    """Put every example into every one of `steps` batches with probability 1/`steps`, independently.

    Formal guarantees, for a secret key and a keystream that is indistinguishable from random:

    * each example is in each batch with probability exactly 1/T, independently of all other examples, steps
      and epochs (no floating-point error: see above); so before truncation the sizes of the batches
      are independent and distributed as Bin(n, 1/T);
    * an example may be in several batches of an epoch, or in none;
    * a batch is a pure function of the key, the epoch, the step, `steps` and the number of examples, and
      costs work and memory proportional to its expected size.

    Args:
        steps: T, the number of batches in one epoch; 1/T is the sampling probability.
        max_batch_size: the size to which larger batches are truncated; None for no limit.
        num_examples: the number of examples for which truncation is accounted; needed with `max_batch_size`.

    Example:
        >>> batches = Poisson(steps=4).batches(num_examples=100, key=1)
        >>> len(batches), sum(len(batch) for batch in batches) == 100  # not every example is drawn exactly once
        (4, False)
    """

    partitions = False
    name = "Poisson"
    batching = "a coin tossed for every example and every batch, as Opacus' own loader does it"

    def _least_memory(self, num_examples: int) -> int:
        return 8 * (num_examples // self.steps)  # memory of one batch

    def _draw(self, num_examples: int, key: Key, epoch: int) -> Draw:
        keystream = Keystream(key, *self._domain("gaps", epoch))
        dtype = index_dtype(num_examples)

        def batch(step: int) -> IndexArray:
            pieces = list(successes(keystream, step, num_examples, self.steps))
            return np.concatenate(pieces).astype(dtype) if pieces else np.empty(0, dtype=dtype)

        return self._truncated(batch, key, epoch)


_MARGIN = 2.0**-44
_SMALLEST = 1 << 48  # smaller words have too few leading bits for double precision
_CHUNK = 1 << 16  # gaps drawn at once: their temporaries fit into the processor's cache


def successes(keystream: Keystream, step: int, num_trials: int, one_in: int) -> Iterator[NDArray[np.int64]]:
    """Give, in ascending pieces, the trials among 0 … num_trials − 1 that succeed with probability 1/one_in.

    Work and memory are proportional to the number of successes, not of trials (memory at most one chunk). Gap number
    j uses word j of stream `step`, and further words from streams step + 2³²·attempt at the same place.
    """
    if one_in == 1:
        for start in range(0, num_trials, _CHUNK):
            yield np.arange(start, min(start + _CHUNK, num_trials), dtype=np.int64)
        return
    last, used = -1, 0
    while True:
        expected = (num_trials - 1 - last) / one_in
        # enough, except about once in 10⁹ times
        count = min(int(expected + 6 * math.sqrt(expected)) + 16, _CHUNK)
        trials = gaps(keystream, step, used, count, one_in=one_in, ceiling=num_trials)
        trials += 1
        np.cumsum(trials, out=trials)
        trials += last
        inside = int(trials.searchsorted(num_trials))
        yield trials[:inside]
        if inside < count:
            return
        last, used = int(trials[-1]), used + count


def gaps(
    keystream: Keystream, step: int, start: int, count: int, *, one_in: int, ceiling: int
) -> NDArray[np.int64]:
    """Return gaps number start … start + count − 1; in the far tail, gaps are capped at `ceiling`."""
    words = keystream.words64(step, start, count)
    quotients = np.maximum(words, np.uint64(1)).astype(np.float64)
    quotients *= 2.0**-64
    np.log(quotients, out=quotients)
    quotients *= 1 / math.log1p(-1 / one_in)
    answers = quotients.astype(np.int64)
    quotients -= np.rint(quotients)
    np.abs(quotients, out=quotients)
    margin = _MARGIN * one_in
    if quotients.min() <= margin or words.min() < _SMALLEST:
        for place in np.flatnonzero((quotients <= margin) | (words < np.uint64(_SMALLEST))):
            further = _FurtherWords(keystream, step, start + int(place))
            answers[place] = min(exact_gap(int(words[place]), further, one_in), ceiling)
    return answers


@dataclass(frozen=True)
class _FurtherWords:
    """The words that follow the first one at a place, taken from one stream per attempt."""

    keystream: Keystream
    step: int
    place: int

    def __call__(self, attempt: int) -> int:
        return int(self.keystream.words64(self.step + (attempt << 32), self.place, 1)[0])


def exact_gap(word: int, further: Callable[[int], int], one_in: int) -> int:
    """Return ⌊log U / log(1 − 1/one_in)⌋ for U with the binary digits of word, further(1), further(2), …

    After each further word, U is known to lie in [digits, digits + 1) / 2^bits. The precision leaves 30 decimal
    digits between the tolerance and the rounding of a few operations, magnified by at most one_in · bits.
    """
    digits, bits, attempt = word, 64, 0
    while True:
        attempt += 1
        digits, bits = digits << 64 | further(attempt), bits + 64
        if digits == 0:
            continue
        with localcontext() as context:
            context.prec = bits + 60
            tolerance = Decimal(10) ** (30 - context.prec)
            unit, per_failure = Decimal(2) ** bits, (Decimal(one_in - 1) / one_in).ln()
            least = (Decimal(digits + 1) / unit).ln() / per_failure - tolerance
            most = (Decimal(digits) / unit).ln() / per_failure + tolerance
            low = max(int(least.to_integral_value(ROUND_FLOOR)), 0)
            high = int(most.to_integral_value(ROUND_FLOOR))
        if low == high:
            return low
