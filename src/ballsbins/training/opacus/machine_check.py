"""Two properties of a machine that no proof about arithmetic can give, tested bit for bit in PyTorch.

*Row-locality*: at a fixed batch shape, the gradient of an example depends on that example and the parameters only,
not on what stands in the other rows. The other rows are filled with something else, and the gradient of the row that
stayed must keep all its bits.

*Reproducibility*: the same pass, taken twice, gives the same bits.

How a user calls the model is not known before training, and training is not to be disturbed. So what is tested is a
small network of the usual layers, and dense layers of the sizes that the model has: matrix products are where a
library chooses its loops by shape.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from opacus import GradSampleModule
from torch import nn

from ballsbins.training.machine import MachineCheck

_ROWS = 64
_MOST_ROWS = 1024
_WATCHED_ROWS = 3
_LARGEST = 1 << 24  # values of per-example gradients in the test: wider layers are tested with fewer rows


class _Usual(nn.Module):
    """The usual layers, each with its own way to per-example gradients."""

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
      device: where sums are computed, such as "cpu".
      rows: the number of examples of a batch.
      layers: (inputs, outputs) of dense layers to test besides the usual ones.

    Example:
      >>> check_torch().failures
      ()
    """
    return _check(device, max(2, min(rows, _MOST_ROWS)), layers, torch.get_num_threads())


@cache
def _check(device: str, rows: int, layers: frozenset[tuple[int, int]], threads: int) -> MachineCheck:
    """Threads are part of what is tested, though they are not named again."""
    generator = torch.Generator().manual_seed(0)
    found = [_check_usual(device, rows, generator)]
    found += [_check_dense(device, rows, shape, generator) for shape in sorted(layers)]
    return MachineCheck(device, all(local for local, _ in found), all(same for _, same in found))


def _check_usual(device: str, rows: int, generator: torch.Generator) -> tuple[bool, bool]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = _Usual()

    def drawn(scale: float) -> list[torch.Tensor]:
        tokens = torch.randint(0, 50, (rows, 3), generator=generator)
        return [tokens, scale * torch.randn(rows, 1, 7, 7, generator=generator)]

    return _compare(model, device, drawn(1.0), drawn(1e3), generator)


def _check_dense(
    device: str, rows: int, shape: tuple[int, int], generator: torch.Generator
) -> tuple[bool, bool]:
    inputs, outputs = shape
    rows = max(2, min(rows, _LARGEST // (inputs * outputs)))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        # A second layer, so that the signals of the first come from a matrix product as well.
        model = nn.Sequential(nn.Linear(inputs, outputs), nn.Tanh(), nn.Linear(outputs, min(outputs, 16)))
    first, other = (scale * torch.randn(rows, inputs, generator=generator) for scale in (1.0, 1e3))
    return _compare(model, device, [first], [other], generator)


def _compare(
    model: nn.Module,
    device: str,
    given: list[torch.Tensor],
    others: list[torch.Tensor],
    generator: torch.Generator,
) -> tuple[bool, bool]:
    """Whether gradients of rows depend on their own row only, and whether all of them repeat."""
    private = GradSampleModule(model.to(device), loss_reduction="sum")

    def gradients(inputs: list[torch.Tensor]) -> list[Any]:
        private.zero_grad()
        with torch.enable_grad():
            output = private(*(part.to(device) for part in inputs))
            (output.sin() * output).sum().backward()
        return [parameter.grad_sample for parameter in private.parameters()]

    before = gradients(given)
    reproducible = all(map(torch.equal, before, gradients(given)))
    row_local = True
    rows = len(given[0])
    for row in torch.randperm(rows, generator=generator)[:_WATCHED_ROWS].tolist():
        mixed = [other.clone() for other in others]
        for mine, part in zip(given, mixed, strict=True):
            part[row] = mine[row]
        after = gradients(mixed)
        row_local &= all(torch.equal(a[row], b[row]) for a, b in zip(before, after, strict=True))
    private.remove_hooks()
    return row_local, reproducible
