"""Ghost clipping, checked: the norms that Opacus clips by must be those of the examples' gradients.

Ghost clipping never has the gradient of one example. It takes norms layer by layer in a first backward pass, scales
each example's loss, and lets a second pass sum up whatever autograd finds. So what the norms miss is summed up
unclipped: a weight that is used beside its layer (`h @ embedding.weight.T`), a second loss, losses in a column, which
are multiplied with a row of factors. Each of these is refused here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping, DPTensorFastGradientClipping

from ballsbins.errors import RunError

_TOLERANCE = 1e-3  # of a norm, in float32


class CheckedLoss(DPLossFastGradientClipping):  # type: ignore[misc]
    """Opacus' criterion, whose losses are checked when they go backward."""

    def __call__(self, *args: Any, **kwargs: Any) -> CheckedLosses:
        """Compute the losses of the batch."""
        return _checked(super().__call__(*args, **kwargs))


class CheckedLosses(DPTensorFastGradientClipping):  # type: ignore[misc]
    """The losses of a batch, one for each example."""

    def backward(self) -> None:
        """Clip by norms of this very pass that cover all of the gradient."""
        each, module = self.loss_per_sample, self.module
        if each.dim() != 1:
            raise RunError(
                f"The criterion gives losses of shape {tuple(each.shape)}, but must give one for each example: "
                "Opacus would multiply every loss with the clipping factors of all examples. For logits of one "
                "column use criterion(model(inputs).squeeze(1), targets); sum or average what belongs to one example."
            )
        for parameter in module.trainable_parameters:
            # of the last batch, if a layer is not used in this one
            parameter.__dict__.pop("_norm_sample", None)
        watched = self._norm_of_one() if self.optimizer.is_time_to_check() else None
        try:
            super().backward()
        except AttributeError as error:
            if "_norm_sample" not in str(error):
                raise
            raise RunError(
                "A layer with parameters to train was not called in this step, so its norms are unknown. Use every "
                "layer in every step, freeze it before make_private, or use grad_sample_mode='hooks'."
            ) from None
        norms = module.per_sample_gradient_norms
        if watched is not None:
            place, norm = watched
            if norm > float(norms[place]) * (1.0 + _TOLERANCE) + 1e-6:
                raise RunError(
                    f"An example's gradient has norm {norm:.6g}, but Opacus found {float(norms[place]):.6g} to clip "
                    "by: the model uses a weight outside of its layer's own call (such as h @ embedding.weight.T), "
                    "or examples meet in the model or the loss. Use grad_sample_mode='hooks' for the former."
                )
        self.optimizer.note_clipped()

    def _norm_of_one(self) -> tuple[int, float]:
        """The norm of the whole gradient of the example with the largest loss, by plain autograd."""
        each, module = self.loss_per_sample, self.module
        place = int(each.detach().argmax())
        module.disable_hooks()
        parts = torch.autograd.grad(
            each[place], module.trainable_parameters, retain_graph=True, allow_unused=True
        )
        module.enable_hooks()
        squares = [float(part.double().square().sum()) for part in parts if part is not None]
        return place, sum(squares) ** 0.5


def _checked(losses: Any) -> CheckedLosses:
    losses.__class__ = CheckedLosses
    return losses  # type: ignore[no-any-return]


def _keeps_checks(name: str) -> Callable[..., CheckedLosses]:
    def operation(self: CheckedLosses, *others: Any) -> CheckedLosses:
        return _checked(getattr(DPTensorFastGradientClipping, name)(self, *others))

    return operation


for _name in ("truediv", "mul", "rmul", "add", "radd", "sub", "rsub", "neg"):
    setattr(CheckedLosses, f"__{_name}__", _keeps_checks(f"__{_name}__"))
