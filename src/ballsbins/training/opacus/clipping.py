"""Hooks: the sum of clipped per-example gradients as integers in units of the grid, whatever order they come in.

Opacus gives the gradient of every example. Each one is clipped and rounded to the grid *by itself*, and the integers
are added exactly:

    k = Σᵢ rint(factorᵢ·gᵢ/unit),   factorᵢ = min(1, limit/‖gᵢ‖)

So an example moves k by at most ‖rint(v)‖ ≤ ‖v‖ + ½·√d, with v its clipped gradient in units and d the number of
parameters, and the order of rows, physical batches and ranks changes no bit (steps 3 to 5 of docs/floating_point.md):

* *Norms* are sums of squares in float64. Squares of float32 values are exact there and neither under- nor overflow,
  and all terms are at least 0. So the relative error, whatever the order, is below the margin by which
  `Grid.clip_limit` is less than C.
* *Products* factor·g in float64 round at most four times: the quotient limit/‖g‖, that by the unit, the product
  itself, and the unit. `EXCESS` covers that.
* *Sums* are integers below 2⁵¹ (`Grid` refuses larger ones), which float64 and int64 hold exactly.

An example whose norm is not a finite number makes the whole batch not finite, and the caller stops.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ballsbins.training.grid import UNIT_ROUNDOFF, Grid
from ballsbins.training.opacus.threads import compiled, in_threads, threads_for

EXCESS = 8.0 * UNIT_ROUNDOFF
COARSE = (torch.bfloat16, torch.float16)
_COLUMNS = 4096  # of a sum at a time: its int64 totals stay in the processor's first cache
_PIECE = 1 << 19  # values at a time, in float64, without numba


def clipped_sum(samples: Sequence[torch.Tensor], grid: Grid) -> list[torch.Tensor] | None:
    """Sum the clipped gradients of all rows, in units of the grid.

    Args:
      samples: for every parameter the gradients of all examples, [rows, *shape of the parameter].
      grid: of the run.

    Returns:
      For every parameter its sum: integers, as float64. None if the norm of a row is not finite.
    """
    flat = [_rows(sample) for sample in samples]
    squares = torch.zeros(len(flat[0]), dtype=torch.float64)
    for sample in flat:
        squares += _squares(sample)
    if not bool(torch.isfinite(squares).all()):
        return None
    norms = squares.sqrt()
    factors = torch.where(norms > grid.clip_limit, grid.clip_limit / norms, 1.0) / grid.unit
    return [
        _rounded_sum(values, factors).view(sample.shape[1:])
        for values, sample in zip(flat, samples, strict=True)
    ]


def _rows(sample: torch.Tensor) -> torch.Tensor:
    """One example a row. Autocast gives 16 bits; widening them is exact."""
    wide = sample.float() if sample.dtype in COARSE else sample
    return wide.detach().reshape(len(sample), -1)


def _squares(rows: torch.Tensor) -> torch.Tensor:
    found = torch.zeros(len(rows), dtype=torch.float64, device=rows.device)
    if compiled(rows):
        from ballsbins.training.opacus.rounding import add_squares

        values, squares = rows.contiguous().numpy(), found.numpy()
        share = -(-len(rows) // threads_for(rows.numel())) or 1
        in_threads(
            lambda begin: add_squares(values[begin : begin + share], squares[begin : begin + share]),
            range(0, len(rows), share),
        )
        return found
    for begin, end in _pieces(rows):
        found += rows[:, begin:end].double().square().sum(dim=1)
    return found.cpu()


def _rounded_sum(rows: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    width = rows.shape[1]
    if compiled(rows):
        from ballsbins.training.opacus.rounding import add_rounded, start_of_sum

        values, scale = rows.contiguous().numpy(), factors.numpy()
        total = np.full(width, start_of_sum(len(rows)), np.int64)
        threads = threads_for(rows.numel())

        def add(first: int) -> None:
            # Threads take turns: far columns of rows whose length is a power of two would share places in the cache.
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
    """Columns to take at a time, so that float64 copies stay small."""
    width = rows.shape[1]
    step = max(1, _PIECE // max(1, len(rows)))
    return [(begin, min(begin + step, width)) for begin in range(0, width, step)]
