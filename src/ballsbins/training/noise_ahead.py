"""The noise of one step after the other, drawn by a thread one step ahead: it does not depend on the data."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ballsbins.noise import Domain, rounded_normals
from ballsbins.samplers import Key
from ballsbins.training._jax import jax

_ALIGNMENT = 64  # bytes: from such an address XLA takes an array as it is; any other it copies


class NoiseAhead:
    """round(2²⁶·N(0, 1)) for every parameter and step of a run, in two rooms that take turns.

    New memory for every step costs more than what is in it: with 85 million parameters it is a third of a gigabyte,
    of which the system clears every page. XLA reads a room in place, so one is filled again only when the step that
    used it is done; meanwhile the other serves the next step.
    """

    def __init__(self, key: Key, domain: Domain, count: int, steps: int) -> None:
        """Draw `count` values for each of the steps 0 … steps − 1, from the domain (*domain, step)."""
        self._key, self._domain, self._count, self._steps = key, domain, count, steps
        self._rooms = (_aligned(count), _aligned(count))
        self._readers: list[Any] = [None, None]
        self._drawn: dict[int, Future[NDArray[np.int32]]] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="noise")

    def of(self, step: int) -> NDArray[np.int32]:
        """Return the noise of a step, to be read until the step after the next asks, and begin to draw the next."""
        self._begin(step)
        values = self._drawn.pop(step).result()
        if step + 1 < self._steps:
            self._begin(step + 1)
        return values

    def read_by(self, step: int, results: Any) -> None:
        """Tell what is computed from the noise of a step: it stays until that is ready."""
        self._readers[step % 2] = results

    def _begin(self, step: int) -> None:
        if step not in self._drawn:
            self._drawn[step] = self._thread.submit(self._draw, step)

    def _draw(self, step: int) -> NDArray[np.int32]:
        jax.block_until_ready(self._readers[step % 2])  # type: ignore[no-untyped-call]
        return rounded_normals(self._key, (*self._domain, step), self._count, out=self._rooms[step % 2])


def _aligned(count: int) -> NDArray[np.int32]:
    room = np.empty(4 * count + _ALIGNMENT, np.uint8)
    skipped = -room.ctypes.data % _ALIGNMENT
    return room[skipped : skipped + 4 * count].view(np.int32)
