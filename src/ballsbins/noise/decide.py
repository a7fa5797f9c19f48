"""The values that float64 leaves undecided, by interval arithmetic with as many random bits as it takes.

Interval arithmetic encloses: with L levels of 64-bit words the enclosure of a value contains the real number, and
once it contains no half-integer the nearest integer is known. Another level makes it 2⁶⁴ times narrower. One level
leaves about one pair in 10⁵ of those that come here undecided, so more than twelve levels occur with a probability
below 2⁻⁶⁰⁰.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpmath.libmp import from_man_exp, mpf_floor, mpf_pi, mpf_sub, round_ceiling, round_floor, to_int
from mpmath.libmp.libmpi import mpi_cos_sin, mpi_log, mpi_mul, mpi_neg, mpi_shift, mpi_sqrt

from ballsbins.noise.kernel import SCALE_BITS

Interval = tuple[Any, Any]
_MOST_LEVELS = 12
_SPARE_BITS = 64  # of precision beyond the random bits
_MINUS_HALF = from_man_exp(-1, -1)


def decided_pair(words: Callable[[int], tuple[int, int]]) -> tuple[int, int]:
    """Return the two integers of a pair; `words(level)` gives its words w and a of level 0, 1, ….

    The strings of bits are those of level 0, then of level 1, and so on.
    """
    w = a = 0
    for level in range(_MOST_LEVELS):
        more_w, more_a = words(level)
        w, a = (w << 64) | more_w, (a << 64) | more_a
        found = [_nearest(value) for value in enclosures(w, a, 64 * (level + 1))]
        if found[0] is not None and found[1] is not None:
            return found[0], found[1]
    raise AssertionError("768 random bits do not decide a value: the keystream is broken")


def enclosures(w: int, a: int, bits: int) -> tuple[Interval, Interval]:
    """Enclose 2²⁶·R·cos φ and 2²⁶·R·sin φ for all U in [w, w + 1]·2^−bits and A in [a, a + 1]·2^−bits."""
    precision = bits + _SPARE_BITS
    uniform = from_man_exp(w, -bits), from_man_exp(w + 1, -bits)
    if w == 0:  # ln 0: any bound below that of the next level does, and decides nothing
        uniform = from_man_exp(1, -4 * bits), uniform[1]
    # R·2²⁶ = √(−ln U · 2⁵³)
    radius = mpi_sqrt(mpi_shift(mpi_neg(mpi_log(uniform, precision)), 2 * SCALE_BITS + 1), precision)
    pi = mpf_pi(precision, round_floor), mpf_pi(precision, round_ceiling)
    # φ = 2πA − π/4 = π·(8A − 1)/4
    turns = from_man_exp(8 * a - (1 << bits), -bits - 2), from_man_exp(8 * (a + 1) - (1 << bits), -bits - 2)
    cosine, sine = mpi_cos_sin(mpi_mul(turns, pi, precision), precision)
    return mpi_mul(radius, cosine, precision), mpi_mul(radius, sine, precision)


def _nearest(value: Interval) -> int | None:
    """The nearest integer of all numbers in the interval, or None if they have two."""
    # floor(x + ½) of both ends; exact, because ends have finitely many bits
    low, high = (to_int(mpf_floor(mpf_sub(end, _MINUS_HALF))) for end in value)
    return low if low == high else None
