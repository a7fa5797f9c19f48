"""Check that an example's gradient does not depend on other examples: compare it alone and within its batch.

DP-SGD clips what one example adds to the sum. That bounds its influence only if the gradient of an example depends on
that example alone. Three things break this without any error: a loss that divides by a property of the batch (its
tokens, the weights of its classes), a model that mixes examples, and padding that a model does not mask out.

The gradient of one example is computed twice by plain autograd, without dropout: from the example's own loss within
its batch, and from a batch of that example alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ballsbins.errors import RunError

# Gradients of float32 networks change by about 1e-6 of their norm when the batch has another shape; a loss that
# divides by the batch differs by a factor of about the batch size.
TOLERANCE = 1e-3
_NOTHING = 1e-7  # norms below this are rounding errors


def gradient_of(loss: torch.Tensor, parameters: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the gradient of one loss as a float64 vector; keep its graph."""
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
    """Refuse a gradient that differs between an example within its batch and the example alone.

    Args:
        within: the gradient of an example's loss, computed in its batch.
        alone: the gradient of the same loss, computed in a batch with no other example.

    Raises:
        RunError: they differ by more than float32 can explain.

    Example:
        >>> require_own_gradient(torch.ones(2), torch.ones(2))
        >>> require_own_gradient(torch.ones(2), 2 * torch.ones(2))
        Traceback (most recent call last):
        ...
        ballsbins.errors.RunError: An example's gradient within its batch differs from the one that it has alone...
    """
    apart, larger = float((within - alone).norm()), max(float(within.norm()), float(alone.norm()))
    if not apart <= TOLERANCE * larger + _NOTHING:
        raise RunError(  # without figures: they come from one example, and their ratio may be the secret batch size
            "An example's gradient within its batch differs from the one that it has alone: other examples change "
            "it, and no noise hides that. The loss must be the mean of one value for each example (the sum, with "
            "loss_reduction='sum'), which divides by nothing of the batch (tokens, class weights, "
            "num_items_in_batch), and the model must not mix examples or see their padding (give attention_mask and "
            "position_ids where the padding is on the left)."
        )


def require_own_gradients(
    model: Any, batch: Mapping[str, Any], losses_of: Callable[[Mapping[str, Any]], torch.Tensor]
) -> None:
    """Refuse a model or a loss in which other examples change the gradient of the first one.

    Dropout is switched off during the check, because its masks depend on the shape of a batch.

    Args:
        model: the model, with its hooks disabled.
        batch: the output of a collator.
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
    """Return one row of a batch, without the padding that longer rows required."""
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


class WatchedLoss:
    """The user's criterion, in hooks mode: it computes the same loss, and at some steps checks one example alone."""

    def __init__(
        self, criterion: Any, loss_reduction: str, is_due: Callable[[], bool], saw: Callable[[], None]
    ) -> None:
        """Watch a criterion that takes outputs and targets with one row for each example."""
        self._criterion, self._reduction, self._is_due, self._saw = criterion, loss_reduction, is_due, saw

    def __call__(self, outputs: torch.Tensor, *targets: Any, **options: Any) -> Any:
        """Compute the loss."""
        if torch.is_grad_enabled() and outputs.requires_grad and len(outputs) > 1 and self._is_due():
            self._look(outputs.detach(), targets, options)
            self._saw()
        return self._criterion(outputs, *targets, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._criterion, name)

    def _look(self, outputs: torch.Tensor, targets: Sequence[Any], options: dict[str, Any]) -> None:
        """Compare the gradient that the loss sends back to the first row, within its batch and alone."""
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
