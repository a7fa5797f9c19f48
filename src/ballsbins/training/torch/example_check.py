"""Is an example's gradient its own? Compare it alone and within its batch.

DP-SGD clips what one example adds to the sum. That bounds its influence only if the gradient of an example depends on
that example alone. A loss that divides by something of the batch (its tokens, the weights of its classes), a model in
which examples meet, and padding that a model does not mask out all break this, and run without an error.

The gradient of one example is computed twice by plain autograd, without dropout: from the example's own loss within
its batch, and from a batch of that example alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ballsbins.errors import RunError

# Gradients of float32 networks differ by some 1e-6 of their norm when a batch has another shape; a loss that divides
# by the batch differs by a factor of about its size.
TOLERANCE = 1e-3
_NOTHING = 1e-7  # norms below this are rounding


def gradient_of(loss: torch.Tensor, parameters: Sequence[torch.Tensor]) -> torch.Tensor:
    """The gradient of one loss as a vector, in float64; its graph is kept."""
    parts = torch.autograd.grad(loss, list(parameters), retain_graph=True, allow_unused=True)
    return torch.cat(
        [
            torch.zeros(parameter.numel(), dtype=torch.float64, device=parameter.device)
            if part is None
            else part.detach().double().reshape(-1)
            for parameter, part in zip(parameters, parts, strict=True)
        ]
    )


def require_own_gradient(within: torch.Tensor, alone: torch.Tensor) -> None:
    """Refuse a gradient that an example has within its batch but not alone.

    Args:
        within: the gradient of an example's loss, computed in its batch.
        alone: the same of a batch that has no other example.

    Raises:
        RunError: they differ by more than float32 can explain.

    Example:
        >>> require_own_gradient(torch.ones(2), torch.ones(2))
        >>> require_own_gradient(torch.ones(2), 2 * torch.ones(2))
        Traceback (most recent call last):
        ...
        ballsbins.errors.RunError: An example's gradient has norm 1.41421 within its batch and 2.82843 alone...
    """
    apart, larger = float((within - alone).norm()), max(float(within.norm()), float(alone.norm()))
    if not apart <= TOLERANCE * larger + _NOTHING:
        raise RunError(
            f"An example's gradient has norm {float(within.norm()):.6g} within its batch and "
            f"{float(alone.norm()):.6g} alone, and they differ by {apart:.3g}: other examples change it, and no "
            "noise hides that. The loss must be one value for each example, which divides by nothing of the batch "
            "(tokens, class weights, num_items_in_batch), and the model must not mix examples or see their padding "
            "(give attention_mask and position_ids where the padding is on the left)."
        )


class WatchedLoss:
    """A criterion of the user's, in hooks mode: it is what it was, and sometimes one example is looked at alone."""

    def __init__(self, criterion: Any, loss_reduction: str, is_time: Callable[[], bool]) -> None:
        """Watch a criterion that takes outputs and targets with one row for each example."""
        self._criterion, self._reduction, self._is_time = criterion, loss_reduction, is_time

    def __call__(self, outputs: torch.Tensor, *targets: Any, **options: Any) -> Any:
        """Compute the loss."""
        if torch.is_grad_enabled() and outputs.requires_grad and len(outputs) > 1 and self._is_time():
            self._look(outputs.detach(), targets, options)
        return self._criterion(outputs, *targets, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._criterion, name)

    def _look(self, outputs: torch.Tensor, targets: Sequence[Any], options: dict[str, Any]) -> None:
        """Compare what the loss sends back to the first row, within its batch and alone."""
        rows = len(outputs)

        def first(value: Any) -> Any:
            is_rows = isinstance(value, torch.Tensor) and value.dim() > 0 and len(value) == rows
            return value[:1] if is_rows else value

        alone = outputs[:1].clone().requires_grad_()
        within = outputs.clone().requires_grad_()
        one = self._criterion(alone, *map(first, targets), **{k: first(v) for k, v in options.items()})
        every = self._criterion(within, *targets, **options)
        factor = float(rows) if self._reduction == "mean" else 1.0
        require_own_gradient(
            factor * gradient_of(every, [within])[: alone.numel()], gradient_of(one, [alone])
        )
