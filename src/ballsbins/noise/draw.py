"""Draw the integers: keystream, kernel, and the decision of what the kernel left open; in pieces, on all cores."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.util import find_spec
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ballsbins import _check
from ballsbins.errors import InvalidInputError
from ballsbins.noise.decide import decided_pair
from ballsbins.noise.kernel import HALF, with_numpy
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
      count: how many.
      out: room for them, at least `count` values; new memory by default.
      executor: who computes. By default numba if it is installed, else JAX if it is, else NumPy.
      threads: how many pieces are computed at the same time; by default one for each core.

    Returns:
      int32[count]; a view of `out` if that is given.

    Raises:
      InvalidInputError: `count` is negative, or `out` is too small or of another type.

    Example:
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
    """Who computes unless told: the fastest that is installed."""
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
    """The words of a pair: they stand at the same two indices of every stream, and stream L is level L."""

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
        from ballsbins.noise.with_numba import fill

        return fill
    if executor == "xla":
        from ballsbins.noise.with_xla import fill as fill_xla

        return fill_xla
    raise InvalidInputError("executor", executor, "numba, xla or numpy", "Leave it out for the fastest.")
