"""The noise of the next step, drawn by a thread while the model computes, and added to integers exactly."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ballsbins.noise import Domain, rounded_normals
from ballsbins.samplers import Key
from ballsbins.training.opacus.threads import compiled, in_threads, threads_for

_PIECE = 1 << 16  # values at a time: in float64 they stay in the processor's cache


class StepNoise:
    """round(2²⁶·N(0, 1)) for every parameter, one vector for a step, in one room that all steps use.

    The noise does not depend on the data, so the next step's can be drawn as soon as this step's was added.
    """

    def __init__(self) -> None:
        """Take no memory yet: how many parameters there are is known at the first step."""
        self._room: NDArray[np.int32] = np.empty(0, np.int32)
        self._wanted: tuple[Key, Domain, int] | None = None
        self._drawn: Future[NDArray[np.int32]] | None = None
        self._thread: ThreadPoolExecutor | None = None

    def begin(self, key: Key, domain: Domain, count: int) -> None:
        """Begin to draw. What was drawn before must have been used; if it is for something else it is forgotten."""
        if self._wanted == (key, domain, count):
            return
        if self._drawn is not None:
            self._drawn.result()  # the room is in use
        if len(self._room) < count:
            self._room = np.empty(count, np.int32)
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="noise")
        self._wanted = key, domain, count
        self._drawn = self._thread.submit(rounded_normals, key, domain, count, out=self._room)

    def of(self, key: Key, domain: Domain, count: int) -> NDArray[np.int32]:
        """Return the noise of a step, to be read before the next call of `begin`."""
        self.begin(key, domain, count)
        assert self._drawn is not None
        values = self._drawn.result()
        self._wanted = self._drawn = None  # it is used once
        return values


def write_gradients(parameters: Sequence[Any], noise: NDArray[np.int32], unit: float) -> None:
    """Set `grad` of every parameter to unit·(k + r), rounded to its type; k is `summed_grad`, integers as float64.

    k + r is exact. The product and all that follows is post-processing.
    """
    begin = 0
    for parameter in parameters:
        sums = parameter.summed_grad.reshape(-1)
        drawn = noise[begin : begin + sums.numel()]
        begin += sums.numel()
        gradient = parameter.grad
        # What the backward pass left there is not needed, and new memory costs more than what is put in it.
        if gradient is None or not _fits(gradient, parameter):
            gradient = torch.empty_like(parameter, memory_format=torch.contiguous_format, requires_grad=False)
        _release(sums, drawn, unit, gradient.detach().view(-1))
        parameter.grad = gradient


def _fits(gradient: torch.Tensor, parameter: torch.Tensor) -> bool:
    return gradient.layout == torch.strided and gradient.dtype == parameter.dtype and gradient.is_contiguous()


def _release(sums: torch.Tensor, drawn: NDArray[np.int32], unit: float, out: torch.Tensor) -> None:
    count = sums.numel()
    if compiled(sums):
        from ballsbins.training.opacus.rounding import release

        share = -(-count // threads_for(count)) or 1
        k, values = sums.numpy(), out.numpy()
        in_threads(
            lambda first: release(
                k[first : first + share], drawn[first : first + share], unit, values[first : first + share]
            ),
            range(0, count, share),
        )
        return
    r = torch.from_numpy(drawn).to(sums.device)
    for first in range(0, count, _PIECE):
        piece = slice(first, first + _PIECE)
        out[piece] = (sums[piece] + r[piece]).mul_(unit)
