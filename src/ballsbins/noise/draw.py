"""Draw the integers: keystream, kernel, and a decision for values the kernel left open; in pieces, on all cores.

**Repair.** Interval arithmetic decides the values that float64 leaves undecided, with as many random bits as needed.
With L levels of 64-bit words, the enclosure of a value contains the real number. Once it contains no half-integer,
the nearest integer is known. Another level makes the enclosure 2⁶⁴ times narrower. One level leaves about one pair in
10⁵ of those that come here undecided, so more than twelve levels occur with a probability below 2⁻⁶⁰⁰.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from importlib.util import find_spec
from typing import Any, Literal, get_args

import numpy as np
from mpmath.libmp import from_man_exp, mpf_floor, mpf_pi, mpf_sub, round_ceiling, round_floor, to_int
from mpmath.libmp.libmpi import mpi_cos_sin, mpi_log, mpi_mul, mpi_neg, mpi_shift, mpi_sqrt
from numpy.typing import NDArray

from ballsbins import _check
from ballsbins.errors import InvalidInputError, RunError
from ballsbins.noise.kernel import HALF, SCALE_BITS, with_numpy, with_xla
from ballsbins.samplers.key import Key
from ballsbins.samplers.keystream import Keystream

Domain = tuple[str | int | bytes, ...]
Executor = Literal["numba", "xla", "numpy"]
# Fills r from the words of whole blocks, and returns the numbers of the undecided pairs.
Fill = Callable[[NDArray[np.int64], NDArray[np.int32]], NDArray[np.int64]]

BLOCK = 2 * HALF
_PIECE = 16 * BLOCK  # values at a time: their words, 1 MiB, stay in the processor's cache


def rounded_normals(
    key: Key,
    domain: Domain,
    count: int,
    *,
    out: NDArray[np.int32] | None = None,
    executor: Executor | None = None,
    threads: int | None = None,
) -> NDArray[np.int32]:
    """Return the first `count` values of a domain: independent integers, each exactly round(2²⁶·N(0, 1)).

    Formal guarantees, taking AES-256 and HMAC-SHA256 to be pseudorandom:

    * values at different (key, domain, index) are independent; value number i is the same whatever `count`;
    * each has exactly the distribution of 2²⁶ times a standard normal variable, rounded to the nearest integer;
    * a value depends on nothing else: not on the executor, the number of threads or the platform.

    Args:
        key: the secret key.
        domain: what the values are for, such as ("training noise", step). No two uses may share a domain.
        count: how many values to draw.
        out: an array for at least `count` values; new memory by default.
        executor: what computes the values. By default numba if it is installed, else JAX if it is, else NumPy.
        threads: how many pieces are computed at the same time; by default one for each core.

    Returns:
        int32[count]; a view of `out` if that is given.

    Raises:
        InvalidInputError: `count` is negative, or `out` is too small or of another type.

    Example:
        >>> from ballsbins import Key
        >>> rounded_normals(Key(bytes(32)), ("example",), 3, executor="numpy").dtype
        dtype('int32')
    """
    size = _check.integer("count", count, 0, advice="State how many values to draw.")
    room = np.empty(size, np.int32) if out is None else out
    if room.dtype != np.int32 or room.ndim != 1 or len(room) < size or not room.flags.c_contiguous:
        advice = f"Give room as np.empty({size}, np.int32)."
        raise InvalidInputError("out", f"{room.dtype}{room.shape}", f"int32 of at least ({size},)", advice)
    stream = Keystream(key, "rounded normals", *domain)
    fill = _fill(executor or default_executor())
    begins = range(0, size, _PIECE)
    workers = min(len(begins), threads or os.cpu_count() or 1)
    if workers <= 1:
        for begin in begins:
            _draw(stream, fill, begin, room[begin : min(begin + _PIECE, size)])
        return room[:size]
    with ThreadPoolExecutor(workers) as pool:
        jobs = [
            pool.submit(_draw, stream, fill, begin, room[begin : min(begin + _PIECE, size)])
            for begin in begins
        ]
        for job in jobs:
            job.result()
    return room[:size]


@cache
def default_executor() -> Executor:
    """The default executor: the fastest one that is installed."""
    return "numba" if find_spec("numba") else "xla" if find_spec("jax") else "numpy"


def _draw(stream: Keystream, fill: Fill, begin: int, room: NDArray[np.int32]) -> None:
    """Draw the values begin … begin + len(room) − 1; `begin` is the first of a block."""
    blocks = -(-len(room) // BLOCK)
    words = stream.words64(0, begin, blocks * BLOCK).view(np.int64)
    values = room if len(room) == blocks * BLOCK else np.empty(blocks * BLOCK, np.int32)
    for pair in fill(words, values).tolist():
        block, place = divmod(pair, HALF)
        pair_at = np.array([0, HALF]) + block * BLOCK + place
        values[pair_at] = decided_pair(_levels(stream, begin + pair_at))
    if values is not room:
        room[:] = values[: len(room)]


def _levels(stream: Keystream, places: NDArray[np.int64]) -> Callable[[int], tuple[int, int]]:
    """The words of a pair: they are at the same two indices of every stream, and stream L holds level L."""

    def words(level: int) -> tuple[int, int]:
        w, a = stream.words64_at(level, places)
        return int(w), int(a)

    return words


def _with_numpy(words: NDArray[np.int64], out: NDArray[np.int32]) -> NDArray[np.int64]:
    found = []
    halves, rooms = words.reshape(-1, 2, HALF), out.reshape(-1, 2, HALF)
    for block in range(len(halves)):
        one, two, undecided = with_numpy(halves[block, 0], halves[block, 1])
        rooms[block, 0], rooms[block, 1] = one, two
        found.append(np.flatnonzero(undecided) + block * HALF)
    return np.concatenate(found)


@cache
def _fill(executor: Executor) -> Fill:
    if executor == "numpy":
        return _with_numpy
    if executor == "numba":
        from ballsbins.noise.numba_kernel import fill

        return fill
    if executor == "xla":
        return with_xla()
    raise InvalidInputError("executor", executor, "numba, xla or numpy", "Leave it out for the fastest.")


Interval = tuple[Any, Any]
_MOST_LEVELS = 12
_SPARE_BITS = 64  # bits of precision beyond the random bits
_MINUS_HALF = from_man_exp(-1, -1)


def decided_pair(words: Callable[[int], tuple[int, int]]) -> tuple[int, int]:
    """Return the two integers of a pair; `words(level)` gives its words w and a of level 0, 1, ….

    The bit strings consist of the words of level 0, then of level 1, and so on.
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
    if w == 0:  # avoid ln 0: any value below the next level's bound is valid, and decides nothing
        uniform = from_man_exp(1, -4 * bits), uniform[1]
    # R·2²⁶ = √(−ln U · 2⁵³)
    radius = mpi_sqrt(mpi_shift(mpi_neg(mpi_log(uniform, precision)), 2 * SCALE_BITS + 1), precision)
    pi = mpf_pi(precision, round_floor), mpf_pi(precision, round_ceiling)
    # φ = 2πA − π/4 = π·(8A − 1)/4
    turns = from_man_exp(8 * a - (1 << bits), -bits - 2), from_man_exp(8 * (a + 1) - (1 << bits), -bits - 2)
    cosine, sine = mpi_cos_sin(mpi_mul(turns, pi, precision), precision)
    return mpi_mul(radius, cosine, precision), mpi_mul(radius, sine, precision)


def _nearest(value: Interval) -> int | None:
    """The nearest integer of all numbers in the interval, or None if they do not share one."""
    # floor(x + ½) of both ends; exact, because ends have finitely many bits
    low, high = (to_int(mpf_floor(mpf_sub(end, _MINUS_HALF))) for end in value)
    return low if low == high else None


_COUNT = 1 << 20
_DIGEST = "a9a52345a6e9efab2cd270f8b4e98f63e58e1cbbfaa997f66a098687f059f974"


def installed() -> list[Executor]:
    """The executors available on this machine."""
    needs = {"numba": "numba", "xla": "jax", "numpy": "numpy"}
    return [name for name in get_args(Executor) if find_spec(needs[name])]


@cache
def require_right_noise() -> None:
    """Raise unless the executor that draws the noise gives the frozen integers; tested once per process."""
    executor = default_executor()
    if not right(executor):
        raise RunError(
            f"The noise that {executor} computes here is wrong: it does not give the known integers. Something "
            "changes the arithmetic of float64, such as fast-math flags of the compiler (XLA_FLAGS): take them away. "
            "ballsbins check-machine tests all executors."
        )


def right(executor: Executor) -> bool:
    """Whether an executor gives the frozen integers: a million of them, including a few undecided ones."""
    drawn = rounded_normals(Key.from_seed(2026), ("known answers",), _COUNT, executor=executor)
    return hashlib.sha256(drawn.astype("<i4").tobytes()).hexdigest() == _DIGEST


_ALIGNMENT = 64  # bytes: XLA uses an array at such an address in place, and copies any other


class NoiseAhead:
    """round(2²⁶·N(0, 1)) for every parameter, one vector per step, in buffers (rooms) that take turns.

    New memory for every step costs more than filling it: with 85 million parameters it is a third of a gigabyte, and
    the system clears every page. One room is enough if the reader is done with the noise when `of` is called again.
    XLA reads in place, and later than the call that tells it to. With two rooms, a room is refilled only after the
    step that read it is done, and meanwhile the other room serves the next step.
    """

    def __init__(self, rooms: int = 1, wait: Callable[[Any], Any] = lambda results: None) -> None:
        """Allocate no memory yet. `wait` must return when the results given to `read_by` are computed."""
        self._rooms: list[NDArray[np.int32]] = [np.empty(0, np.int32)] * rooms
        self._readers: list[Any] = [None] * rooms
        self._wait = wait
        self._turn = 0  # the room that is being filled, or that was returned last
        self._wanted: tuple[Key, Domain, int] | None = None
        self._drawn: Future[NDArray[np.int32]] | None = None
        self._thread: ThreadPoolExecutor | None = None

    def begin(self, key: Key, domain: Domain, count: int) -> None:
        """Begin to draw in the background. Noise being drawn for something else is discarded."""
        if self._wanted == (key, domain, count):
            return
        if self._drawn is not None:
            self._drawn.result()  # the room is in use
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="noise")
        self._wanted = key, domain, count
        self._turn = (self._turn + 1) % len(self._rooms)
        self._drawn = self._thread.submit(self._draw, self._turn, key, domain, count)

    def of(self, key: Key, domain: Domain, count: int) -> NDArray[np.int32]:
        """Return the noise of a step. Before the next `begin`, read it or name its reader with `read_by`."""
        self.begin(key, domain, count)
        assert self._drawn is not None
        values = self._drawn.result()
        self._wanted = self._drawn = None  # noise is used only once
        return values

    def wait(self) -> None:
        """Wait until nothing is being drawn."""
        if self._drawn is not None:
            self._drawn.result()

    def read_by(self, results: Any) -> None:
        """Name the results computed from the noise returned last: it is kept until they are ready."""
        self._readers[self._turn] = results

    def _draw(self, turn: int, key: Key, domain: Domain, count: int) -> NDArray[np.int32]:
        self._wait(self._readers[turn])
        if len(self._rooms[turn]) < count:
            self._rooms[turn] = _aligned(count)
        return rounded_normals(key, domain, count, out=self._rooms[turn])


def _aligned(count: int) -> NDArray[np.int32]:
    room = np.empty(4 * count + _ALIGNMENT, np.uint8)
    skipped = -room.ctypes.data % _ALIGNMENT
    return room[skipped : skipped + 4 * count].view(np.int32)
