"""One example of a batch, alone: its gradient must be the one that it has within the batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from ballsbins.errors import RunError
from ballsbins.training.torch.example_check import gradient_of, require_own_gradient


def require_own_gradients(
    model: Any, batch: Mapping[str, Any], losses_of: Callable[[Mapping[str, Any]], torch.Tensor]
) -> None:
    """Refuse a model or a loss in which other examples change the gradient of the first one.

    Dropout is off meanwhile: its masks depend on the shape of a batch.

    Args:
        model: the model, whose hooks are disabled.
        batch: what a collator gave.
        losses_of: computes one loss for each example of such a batch.

    Raises:
        RunError: the gradients differ, or there is not one loss for each example.
    """
    rows = max((len(value) for value in batch.values() if isinstance(value, torch.Tensor)), default=0)
    if rows < 2:
        return
    parameters = [value for value in model.parameters() if value.requires_grad]
    model.eval()
    try:
        found = []
        for part, expected in ((batch, rows), (alone(batch, 0, rows), 1)):
            losses = losses_of(part)
            if len(losses) != expected:
                raise RunError(
                    "The loss does not give as many values as the batch has rows: it must give one for each example. "
                    "Sum or average what belongs to one example."
                )
            found.append(gradient_of(losses[0], parameters))
        require_own_gradient(*found)
    finally:
        model.train()


def alone(batch: Mapping[str, Any], row: int, rows: int) -> dict[str, Any]:
    """One row of a batch, without the padding that it has for the sake of others."""
    mask = batch.get("attention_mask")
    kept = None
    if isinstance(mask, torch.Tensor) and mask.dim() == 2 and bool(mask[row].any()):
        kept = mask[row].nonzero()[:, 0]
    found = {}
    for name, value in batch.items():
        if not isinstance(value, torch.Tensor) or value.dim() == 0 or len(value) != rows:
            found[name] = value
            continue
        own = value[row : row + 1]
        if kept is not None and own.dim() >= 2 and mask is not None and own.shape[1] == mask.shape[1]:
            own = own[:, int(kept[0]) : int(kept[-1]) + 1]
        found[name] = own.contiguous()
    return found
