"""Collating empty batches: a stand-in takes the place of no example, and its gradient is thrown away."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.data import default_collate

Collate = Callable[[list[Any]], Any]


class StandInCollate:
    """Collate as `collate` does, and an empty batch as if it held one example, the stand-in.

    An empty batch is a step of noise alone. Tensors without rows would say so, but many models, losses and some of
    Opacus' own layers fail on them, and `collate` need not know how to make them. So the model sees the stand-in, a
    valid example in whatever structure the data has, and the optimizer puts zero in place of its gradient.
    """

    def __init__(self, collate: Collate | None, stand_in: Any) -> None:
        """Keep one example of the data set to stand in."""
        self.collate: Collate = default_collate if collate is None else collate
        self._stand_in = stand_in

    def __call__(self, examples: list[Any]) -> Any:
        """Collate a batch."""
        return self.collate(examples if examples else [self._stand_in])
