"""Add integer noise to integer sums, exactly, and write what is released into the gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ballsbins.training.opacus.threads import compiled, in_threads, threads_for

_PIECE = 1 << 16  # values at a time: in float64 they stay in the processor's cache


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
