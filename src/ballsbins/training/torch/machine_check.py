"""Test bit for bit, in PyTorch, two properties of a machine that no proof about arithmetic can establish.

*Row-locality*: at a fixed batch shape, the gradient of an example depends only on that example and the parameters,
not on the content of the other rows. The test replaces the other rows; the gradient of the unchanged row must keep
all its bits.

*Reproducibility*: the same pass, taken twice, gives the same bits.

We do not know before training how a user calls the model, and the test must not disturb training. So it uses a small
network of the usual layers, and dense layers of the same sizes as the model's, because libraries choose the loops of
matrix products by shape.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from opacus import GradSampleModule
from torch import nn

from ballsbins.training.machine_check import MachineCheck

_ROWS = 64
_MOST_ROWS = 8192
_WATCHED_ROWS = 3
_MULTIPLICATIONS = 1 << 28  # limit for one pass of the test, to keep it short: wider layers get fewer rows


class _Usual(nn.Module):
    """The usual layers, each with its own way of computing per-example gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 8)
        self.conv = nn.Conv2d(1, 4, 3)
        self.norm = nn.LayerNorm(68)
        self.dense, self.last = nn.Linear(68, 96), nn.Linear(96, 5)

    def forward(self, tokens: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
        wide = torch.cat([self.embed(tokens).sum(1), self.conv(images).flatten(1)[:, :60]], dim=1)
        return self.last(torch.relu(self.dense(self.norm(wide))))  # type: ignore[no-any-return]


def check_torch(
    device: str = "cpu", rows: int = _ROWS, layers: frozenset[tuple[int, int]] = frozenset()
) -> MachineCheck:
    """Test PyTorch on this machine; takes well under a second for small layers.

    Args:
        device: the device that computes sums, such as "cpu".
        rows: the number of examples in a batch.
        layers: (inputs, outputs) of dense layers to test in addition to the usual ones.

    Example:
        >>> check_torch().failures
        ()
    """
    return _check(device, max(2, min(rows, _MOST_ROWS)), layers, torch.get_num_threads())


@cache
def _check(device: str, rows: int, layers: frozenset[tuple[int, int]], threads: int) -> MachineCheck:
    """Run the test. `threads` is only part of the cache key: the result may depend on the number of threads."""
    generator = torch.Generator().manual_seed(0)
    found = [_check_usual(device, min(rows, _ROWS), generator)]
    found += [_check_dense(device, rows, shape, generator) for shape in sorted(layers)]
    return MachineCheck(device, all(local for local, _ in found), all(same for _, same in found))


def _check_usual(device: str, rows: int, generator: torch.Generator) -> tuple[bool, bool]:
    """Test the per-example gradients of a small network, computed by Opacus' hooks."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = GradSampleModule(_Usual().to(device), loss_reduction="sum")

    def drawn(scale: float) -> list[torch.Tensor]:
        tokens = torch.randint(0, 50, (rows, 3), generator=generator)
        return [tokens, scale * torch.randn(rows, 1, 7, 7, generator=generator)]

    def gradients(inputs: list[torch.Tensor]) -> list[Any]:
        model.zero_grad()
        output = model(*(part.to(device) for part in inputs))
        (output.sin() * output).sum().backward()
        return [parameter.grad_sample for parameter in model.parameters()]

    return _compare(gradients, drawn(1.0), drawn(1e3), generator)


def _check_dense(
    device: str, rows: int, shape: tuple[int, int], generator: torch.Generator
) -> tuple[bool, bool]:
    """Test what a dense layer passes forward and backward; per-example gradients are products of such rows."""
    inputs, outputs = shape
    rows = max(2, min(rows, _MULTIPLICATIONS // (inputs * outputs)))
    weight = torch.randn(outputs, inputs, generator=generator).to(device)
    first, other = (scale * torch.randn(rows, inputs, generator=generator) for scale in (1.0, 1e3))

    def passes(given: list[torch.Tensor]) -> list[Any]:
        activations = given[0].to(device).detach().clone().requires_grad_()
        output = nn.functional.linear(activations, weight)
        return [output.detach(), *torch.autograd.grad((output.sin() * output).sum(), activations)]

    return _compare(passes, [first], [other], generator)


def _compare(
    rows_of: Callable[[list[torch.Tensor]], list[Any]],
    given: list[torch.Tensor],
    others: list[torch.Tensor],
    generator: torch.Generator,
) -> tuple[bool, bool]:
    """Whether the result for a row depends only on that row, and whether all results repeat."""
    with torch.enable_grad(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        before = rows_of(given)
        reproducible = all(map(torch.equal, before, rows_of(given)))
        row_local = True
        for row in torch.randperm(len(given[0]), generator=generator)[:_WATCHED_ROWS].tolist():
            mixed = [other.clone() for other in others]
            for mine, part in zip(given, mixed, strict=True):
                part[row] = mine[row]
            after = rows_of(mixed)
            row_local &= all(torch.equal(a[row], b[row]) for a, b in zip(before, after, strict=True))
    return row_local, reproducible
