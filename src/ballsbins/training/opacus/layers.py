"""What a model must not do, and Opacus does not see: let examples meet, or change without noise."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from ballsbins.errors import InvalidInputError, RunError

_TABLES = (nn.Embedding, nn.EmbeddingBag)


def watch_layers(model: nn.Module) -> TrainingPasses:
    """Refuse tables that are changed by being looked up, and have norms of batches refused as soon as they compute.

    Opacus looks only at layers with parameters to train. A batch norm without any still mixes the examples of a batch
    and keeps their means; frozen for good, with `eval()`, it does neither.
    """
    for name, layer in model.named_modules():
        if isinstance(layer, _TABLES):
            for option in ("max_norm", "scale_grad_by_freq"):
                _require_off(f"{option} of the layer {name!r}", getattr(layer, option))
        elif isinstance(layer, _BatchNorm) or (isinstance(layer, _NormBase) and layer.track_running_stats):
            layer.register_forward_pre_hook(_refuse_norm_of_batch)
    passes = TrainingPasses()
    model.register_forward_pre_hook(passes)
    return passes


class TrainingPasses:
    """Counts how often a model is called to be trained; a copy of the model counts for itself."""

    def __init__(self) -> None:
        """Start at none."""
        self.count = 0

    def __call__(self, model: nn.Module, inputs: Any) -> None:
        """Before a forward pass."""
        self.count += model.training and torch.is_grad_enabled()


def _require_off(name: str, value: Any) -> None:
    if value:
        raise InvalidInputError(
            name,
            value,
            "left out",
            "A lookup then changes the table, or an example scales the gradients of others: no noise hides that.",
        )


def _refuse_norm_of_batch(layer: nn.Module, inputs: Any) -> None:
    if layer.training or layer.running_mean is None:
        raise RunError(
            f"{type(layer).__name__} computes means over the batch: examples are mixed, and one moves the gradients "
            "of all others. Replace it (ModuleValidator.fix(model), GroupNorm, LayerNorm), or keep it frozen: eval() "
            "on this layer after every model.train()."
        )
