"""Watch a model in training: layers that mix examples, and how often the model is called for a step.

`watch_layers` refuses layers that Opacus overlooks: those that mix examples, or that change without noise.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from ballsbins.errors import InvalidInputError, RunError
from ballsbins.training.torch.traced_loss import LossWatch, tensors_in

_TABLES = (nn.Embedding, nn.EmbeddingBag)


def watch_layers(model: nn.Module) -> None:
    """Refuse tables that a lookup changes, and make batch norms raise an error when they compute batch statistics.

    Opacus checks only layers with parameters to train. A batch norm without any still mixes the examples of a batch
    and keeps their means; frozen with `eval()`, it does neither. In-place activations would overwrite values that
    Opacus' hooks need, and torch forbids this, so they are switched to separate memory.
    """
    for name, layer in model.named_modules():
        if getattr(layer, "inplace", False) is True:
            layer.inplace = False
        if isinstance(layer, _TABLES):
            for option in ("max_norm", "scale_grad_by_freq"):
                _require_off(f"{option} of the layer {name!r}", getattr(layer, option))
        elif isinstance(layer, _BatchNorm) or (isinstance(layer, _NormBase) and layer.track_running_stats):
            layer.register_forward_pre_hook(_refuse_norm_of_batch)


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


@dataclass(eq=False)
class _Pass:
    """One forward pass of the model in training."""

    is_public: bool
    rows: int | None = None
    went_backward: bool = False

    def note(self, gradient: torch.Tensor) -> None:
        """Note that gradients came back through this pass."""
        self.went_backward = True


class TrainingPasses:
    """The forward passes of a model in training: how often it was called for a step, and with how many rows.

    A pass on examples is private, and a step has exactly one. Passes on data that does not depend on examples, such
    as the output of a GAN's generator for random numbers, are public if the user says so (`public`). Their gradients
    are added to those of the examples row by row, and clipped together with them. This is correct if there is one
    public row for each example: leaving out an example then removes one public row and changes no other. So all
    passes that went backward together must have the same number of rows. A pass whose gradients were cleared does
    not count.
    """

    def __init__(self, batch_dimension: int) -> None:
        """Start without any pass."""
        self.watch: LossWatch | None = None
        self.handles: list[Any] = []  # handles of the counting hooks
        self._passes: list[_Pass] = []  # since the last step
        self._public = False
        self._dimension = batch_dimension

    def __reduce__(self) -> Any:
        """Give a copy of the model its own count; users copy models, and functorch copies layers."""
        return TrainingPasses, (self._dimension,)

    @contextmanager
    def public(self) -> Iterator[None]:
        """Count the passes inside as public."""
        before, self._public = self._public, True
        try:
            yield
        finally:
            self._public = before

    def before(self, model: nn.Module, inputs: Any) -> None:
        """Count a forward pass of the inner model, which the user may call without its wrapper."""
        if model.training and torch.is_grad_enabled():
            self._passes.append(_Pass(self._public))

    def after(self, model: nn.Module, args: Any, kwargs: Any, outputs: Any) -> Any:
        """Watch the loss, and note when gradients come back."""
        if not (model.training and torch.is_grad_enabled() and self._passes):
            return outputs
        latest = self._passes[-1]
        given = [each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor)]
        latest.rows = next(
            (each.shape[self._dimension] for each in given if each.dim() > self._dimension), None
        )
        for each in tensors_in(outputs):
            each.register_hook(latest.note)  # type: ignore[no-untyped-call]
        return outputs if self.watch is None else self.watch.traced(outputs)

    def forget_gradients(self) -> None:
        """Forget the passes that went backward, because their gradients were cleared."""
        self._passes = [each for each in self._passes if not each.went_backward]
        if self.watch is not None:
            self.watch.forget_losses()

    def take(self) -> tuple[int, bool]:
        """Begin the next step.

        Returns:
            The number of private passes, and whether all passes that went backward had the same number of rows.
        """
        taken, self._passes = self._passes, []
        rows = {each.rows for each in taken if each.went_backward and each.rows is not None}
        return sum(not each.is_public for each in taken), len(rows) <= 1
