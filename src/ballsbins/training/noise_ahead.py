"""The noise of the next step, drawn by a thread while the model computes: it does not depend on the data."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ballsbins.noise import Domain, rounded_normals
from ballsbins.samplers import Key

_ALIGNMENT = 64  # bytes: from such an address XLA takes an array as it is; any other it copies


class NoiseAhead:
    """round(2²⁶·N(0, 1)) for every parameter, one vector for a step, in rooms that take turns.

    New memory for every step costs more than what is in it: with 85 million parameters it is a third of a gigabyte,
    of which the system clears every page. Whoever has read the noise when `of` is called again needs one room. XLA
    reads in place and later than it is told to: with two rooms one is filled again only when the step that read it is
    done, and meanwhile the other serves the next step.
    """

    def __init__(self, rooms: int = 1, wait: Callable[[Any], Any] = lambda results: None) -> None:
        """Take no memory yet. `wait` returns when what was given to `read_by` is computed."""
        self._rooms: list[NDArray[np.int32]] = [np.empty(0, np.int32)] * rooms
        self._readers: list[Any] = [None] * rooms
        self._wait = wait
        self._turn = 0  # the room that is filled, or that was given last
        self._wanted: tuple[Key, Domain, int] | None = None
        self._drawn: Future[NDArray[np.int32]] | None = None
        self._thread: ThreadPoolExecutor | None = None

    def begin(self, key: Key, domain: Domain, count: int) -> None:
        """Begin to draw. If what is being drawn is for something else, it is forgotten."""
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
        """Return the noise of a step: to be read before the next `begin`, or named by `read_by` before it."""
        self.begin(key, domain, count)
        assert self._drawn is not None
        values = self._drawn.result()
        self._wanted = self._drawn = None  # it is used once
        return values

    def read_by(self, results: Any) -> None:
        """Tell what is computed from the noise that was given last: it stays until that is ready."""
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
