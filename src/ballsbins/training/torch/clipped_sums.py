"""Hooks: sum clipped per-example gradients as integers in units of the grid, add integer noise, and release.

The sum does not depend on the order of the examples. Opacus gives the gradient of every example. Each gradient is
clipped and rounded to the grid *separately*, and the integers are added exactly:

    k = Σᵢ rint(factorᵢ·gᵢ/unit),   factorᵢ = min(1, limit/‖gᵢ‖)

So an example moves k by at most ‖rint(v)‖ ≤ ‖v‖ + ½·√d, with v its clipped gradient in units and d the number of
parameters, and the order of rows, physical batches and ranks changes no bit (steps 3 to 5 of docs/floating_point.md):

* *Norms* are sums of squares in float64. Squares of float32 values are exact there and neither under- nor overflow,
  and all terms are at least 0. So the relative error, in any order, is below the margin by which `Grid.clip_limit`
  is less than C.
* *Products* factor·g in float64 round at most four times: the quotient limit/‖g‖, its division by the unit, the
  product itself, and the unit. `EXCESS` covers these roundings.
* *Sums* are integers below 2⁵¹ (`Grid` refuses larger ones), which float64 and int64 hold exactly.

If the norm of one example is not finite, the whole batch counts as not finite, and the caller stops.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ballsbins.training.grid import UNIT_ROUNDOFF, Grid

_SMALL = 1 << 17  # with fewer values, starting a second thread costs more than it saves


def compiled(values: torch.Tensor) -> bool:
    """Whether the loops of `compiled_loops` can be used: values are in main memory, and numba is installed."""
    return values.device.type == "cpu" and _has_numba()


@cache
def _has_numba() -> bool:
    return find_spec("numba") is not None


def threads_for(count: int) -> int:
    """The number of threads for a loop over `count` values."""
    return torch.get_num_threads() if count > _SMALL else 1


def in_threads(job: Callable[[int], Any], begins: range) -> None:
    """Run the job for every begin, in parallel if there are several."""
    if len(begins) <= 1:
        for begin in begins:
            job(begin)
    else:
        for _ in _pool(os.getpid()).map(job, begins):
            pass


@cache
def _pool(process: int) -> ThreadPoolExecutor:
    """The threads of this process; a forked process makes its own."""
    return ThreadPoolExecutor(thread_name_prefix="sums")


EXCESS = 8.0 * UNIT_ROUNDOFF
COARSE = (torch.bfloat16, torch.float16)
_COLUMNS = 4096  # columns of a sum at a time, so that their int64 totals stay in the L1 cache
_PIECE = 1 << 19  # float64 values at a time without numba, to limit memory


def clipped_sum(
    samples: Sequence[torch.Tensor], grid: Grid, limits: Sequence[float] | None = None
) -> list[torch.Tensor] | None:
    """Sum the clipped gradients of all rows, in units of the grid.

    Args:
        samples: for every parameter, the gradients of all examples, [rows, *shape of the parameter].
        grid: the grid of the run.
        limits: norms to which each parameter is clipped separately; `grid.clip_norm` is the root of the sum of
            their squares. If None, all parameters together are clipped to `grid.clip_norm`.

    Returns:
        The sum for every parameter: integers, as float64. None if the norm of a row is not finite.
    """
    flat = [_rows(sample) for sample in samples]
    squares = torch.stack([row_squares(sample).cpu() for sample in flat])
    if not bool(torch.isfinite(squares).all()):
        return None
    if limits is None:
        each = [_factors(squares.sum(dim=0), grid.clip_limit)] * len(flat)
    else:
        each = [
            _factors(row, limit * (grid.clip_limit / grid.clip_norm))
            for row, limit in zip(squares, limits, strict=True)
        ]
    return [
        _rounded_sum(values, factors / grid.unit).view(sample.shape[1:])
        for values, sample, factors in zip(flat, samples, each, strict=True)
    ]


def _factors(squares: torch.Tensor, limit: float) -> torch.Tensor:
    norms = squares.sqrt()
    return torch.where(norms > limit, limit / norms, 1.0)


def _rows(sample: torch.Tensor) -> torch.Tensor:
    """One example per row. Autocast gives 16-bit values; widening them is exact."""
    wide = sample.float() if sample.dtype in COARSE else sample
    return wide.detach().reshape(len(sample), -1)


def row_squares(sample: torch.Tensor) -> torch.Tensor:
    """Squared norm of every example's gradient, in float64, where squares of float32 values are exact."""
    rows = _rows(sample)
    found = torch.zeros(len(rows), dtype=torch.float64, device=rows.device)
    if compiled(rows):
        from ballsbins.training.torch.compiled_loops import add_squares

        values, squares = rows.contiguous().numpy(), found.numpy()
        share = -(-len(rows) // threads_for(rows.numel())) or 1
        in_threads(
            lambda begin: add_squares(values[begin : begin + share], squares[begin : begin + share]),
            range(0, len(rows), share),
        )
        return found
    for begin, end in _pieces(rows):
        found += rows[:, begin:end].double().square().sum(dim=1)
    return found


def _rounded_sum(rows: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    width = rows.shape[1]
    if compiled(rows):
        from ballsbins.training.torch.compiled_loops import add_rounded, start_of_sum

        values, scale = rows.contiguous().numpy(), factors.numpy()
        total = np.full(width, start_of_sum(len(rows)), np.int64)
        threads = threads_for(rows.numel())

        def add(first: int) -> None:
            # Threads take nearby blocks in turn: distant columns of rows whose length is a power of two would
            # compete for the same places in the cache.
            for begin in range(first, width, _COLUMNS * threads):
                add_rounded(values, scale, total, begin, min(begin + _COLUMNS, width))

        in_threads(add, range(0, min(width, _COLUMNS * threads), _COLUMNS))
        return torch.from_numpy(total).double()
    found = torch.zeros(width, dtype=torch.float64, device=rows.device)
    scale_there = factors.to(rows.device)[:, None]
    for begin, end in _pieces(rows):
        found[begin:end] = (rows[:, begin:end].double() * scale_there).round_().sum(dim=0)
    return found


def _pieces(rows: torch.Tensor) -> list[tuple[int, int]]:
    """Split the columns into pieces, so that float64 copies stay small."""
    width = rows.shape[1]
    step = max(1, _PIECE // max(1, len(rows)))
    return [(begin, min(begin + step, width)) for begin in range(0, width, step)]


def on_grid(gradient: torch.Tensor, unit: float) -> torch.Tensor | None:
    """Round a sum of gradients to units of the grid: integers, as float64. None if it is not finite."""
    flat = gradient.detach().reshape(-1)
    if compiled(flat):
        from ballsbins.training.torch.compiled_loops import round_to_grid

        found = torch.empty(flat.shape, dtype=torch.float64)
        finite = round_to_grid(flat.numpy(), 1.0 / unit, found.numpy())
    else:
        found = (flat.double() / unit).round_()
        finite = bool(torch.isfinite(found).all())
    return found.view(gradient.shape) if finite else None


_RELEASED_AT_ONCE = 1 << 16  # values at a time, so that they stay in the processor's cache in float64


def write_gradients(parameters: Sequence[Any], noise: NDArray[np.int32], unit: float) -> None:
    """Set `grad` of every parameter to unit·(k + r), rounded to its type; k is `summed_grad`, integers as float64.

    k + r is exact. The product and everything after it are post-processing.
    """
    begin = 0
    for parameter in parameters:
        sums = parameter.summed_grad.reshape(-1)
        drawn = noise[begin : begin + sums.numel()]
        begin += sums.numel()
        gradient = parameter.grad
        # Reuse the memory of the backward pass's gradient: allocating new memory costs more than writing the values.
        if gradient is None or not _fits(gradient, parameter):
            gradient = torch.empty_like(parameter, memory_format=torch.contiguous_format, requires_grad=False)
        _release(sums, drawn, unit, gradient.detach().view(-1))
        parameter.grad = gradient


def _fits(gradient: torch.Tensor, parameter: torch.Tensor) -> bool:
    return gradient.layout == torch.strided and gradient.dtype == parameter.dtype and gradient.is_contiguous()


def _release(sums: torch.Tensor, drawn: NDArray[np.int32], unit: float, out: torch.Tensor) -> None:
    count = sums.numel()
    if compiled(sums):
        from ballsbins.training.torch.compiled_loops import release

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
    for first in range(0, count, _RELEASED_AT_ONCE):
        piece = slice(first, first + _RELEASED_AT_ONCE)
        out[piece] = (sums[piece] + r[piece]).mul_(unit)
