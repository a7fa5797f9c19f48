"""Lookups of tables that have one row for each example, as Opacus needs them.

BERT, DistilBERT and GPT-2 look their positions up once for the whole batch, with indices of shape (1, T), and rely on
broadcasting; others expand a row without copying it. Opacus then finds one gradient for all examples, or none. Before
such a lookup the indices are made (B, T) and contiguous here. The outputs are the same, and the model is not changed:
everything is done by hooks, which `OneRowPerExample.remove` takes off.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ballsbins.errors import RunError


class OneRowPerExample:
    """Hooks on a model and on its tables to train."""

    def __init__(self, model: nn.Module) -> None:
        """Put the hooks on."""
        self._rows = 0
        self._handles = [model.register_forward_pre_hook(self._count, with_kwargs=True)]
        for name, layer in model.named_modules():
            if isinstance(layer, nn.Embedding) and layer.weight.requires_grad:
                self._handles.append(layer.register_forward_pre_hook(self._expander(name)))

    def remove(self) -> None:
        """Take the hooks off."""
        for handle in self._handles:
            handle.remove()

    def _count(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
        self._rows = max((len(value) for value in tensors if value.dim()), default=0)

    def _expander(self, name: str) -> Any:
        def expand(layer: nn.Module, args: Any) -> Any:
            if not args or not torch.is_grad_enabled() or not layer.training:
                return None
            ids = args[0]
            broadcast = ids.dim() > 1 and len(ids) == 1
            if not broadcast and len(ids) != self._rows:
                raise RunError(
                    f"The table {name!r} is looked up with indices of shape {tuple(ids.shape)}, which do not have "
                    "one row for each example of the batch, so the gradient of one example cannot be told from those "
                    f"of others. Freeze it: model.get_submodule({name!r}).requires_grad_(False)."
                )
            return ids.expand(self._rows, *ids.shape[1:]).contiguous(), *args[1:]

        return expand
