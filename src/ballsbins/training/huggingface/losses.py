"""One loss for each example, computed only from the model's outputs and the labels.

The losses inside Hugging Face models are means over the *tokens of the whole batch* (also with `num_items_in_batch`).
A long example then shrinks the gradients of all others, and clipping does not notice. Here each example's loss is the
mean over its own tokens, so it equals the model's loss for a batch of that example alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from ballsbins.errors import InvalidInputError, RunError

IGNORED = -100  # the label of a token without a loss, as in transformers
LANGUAGE_MODELS = ("ForCausalLM", "ForMaskedLM")
Labels = Mapping[str, torch.Tensor]
Loss = Callable[[Any, Labels], torch.Tensor]


def kind_of(model: Any) -> str | None:
    """Return transformers' name for the loss that a model trains with; None if it is unknown."""
    if model.__class__.__name__ in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
        return "ForCausalLM"
    return getattr(model, "loss_type", None)


def loss_for(model: Any, label_smoothing: float = 0.0) -> Loss:
    """Choose the loss of a model.

    Args:
        model: a model of transformers, not wrapped.
        label_smoothing: label smoothing of classifiers.

    Returns:
        A function of the model's outputs and the labels of a batch that gives one loss for each example.

    Raises:
        InvalidInputError: no loss is known for this model; `compute_loss_func` must be given.
    """
    kind = kind_of(model)
    config = getattr(model, "config", None)
    if getattr(config, "is_encoder_decoder", False) or kind is None or kind not in _LOSSES:
        raise InvalidInputError(
            "model",
            type(model).__name__,
            f"one whose loss is known ({', '.join(sorted(_LOSSES))}; no encoder-decoder)",
            "Give compute_loss_func, a function of (outputs, labels) that returns one loss for each example.",
        )
    return lambda outputs, labels: _LOSSES[kind](outputs, labels, config, label_smoothing)


def loss_from(compute_loss_func: Callable[..., Any]) -> Loss:
    """Use the user's loss, which must give one value for each example."""

    def loss(outputs: Any, labels: Labels) -> torch.Tensor:
        each = compute_loss_func(outputs, labels.get("labels"), num_items_in_batch=None)
        if not isinstance(each, torch.Tensor) or each.dim() != 1:
            shape = tuple(each.shape) if isinstance(each, torch.Tensor) else type(each).__name__
            raise RunError(
                f"compute_loss_func gives {shape}, but must give a tensor with one loss for each example: a mean "
                "over the batch hides what it divides by. Use reduction='none', and sum or average what belongs to "
                "one example."
            )
        return each

    return loss


def _of_tokens(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    each: torch.Tensor = functional.cross_entropy(
        logits.float().transpose(1, 2), labels, ignore_index=IGNORED, reduction="none"
    )
    return each.sum(dim=1) / labels.ne(IGNORED).sum(dim=1).clamp(min=1)


def _tokens(outputs: Any, labels: Labels, config: Any, smoothing: float) -> torch.Tensor:
    return _of_tokens(outputs["logits"], labels["labels"])


def _next_tokens(outputs: Any, labels: Labels, config: Any, smoothing: float) -> torch.Tensor:
    return _of_tokens(outputs["logits"][:, :-1], labels["labels"][:, 1:])


def _classes(outputs: Any, labels: Labels, config: Any, smoothing: float) -> torch.Tensor:
    logits, wanted = outputs["logits"].float(), labels["labels"]
    problem = config.problem_type
    if problem is None:
        whole = wanted.dtype in (torch.long, torch.int)
        several = "single_label_classification" if whole else "multi_label_classification"
        problem = "regression" if config.num_labels == 1 else several
    if problem == "single_label_classification":
        return functional.cross_entropy(
            logits, wanted.reshape(-1), reduction="none", label_smoothing=smoothing
        )
    wanted = wanted.reshape(logits.shape).float()
    if problem == "regression":
        return (logits - wanted).square().flatten(1).mean(dim=1)  # type: ignore[no-any-return]
    return (
        functional.binary_cross_entropy_with_logits(logits, wanted, reduction="none").flatten(1).mean(dim=1)
    )


def _spans(outputs: Any, labels: Labels, config: Any, smoothing: float) -> torch.Tensor:
    length = outputs["start_logits"].shape[1]  # positions beyond the input have no loss
    found = [
        functional.cross_entropy(
            outputs[f"{end}_logits"].float(),
            labels[f"{end}_positions"].reshape(-1).clamp(0, length),
            ignore_index=length,
            reduction="none",
        )
        for end in ("start", "end")
    ]
    return (found[0] + found[1]) / 2.0


_LOSSES: dict[str, Callable[[Any, Labels, Any, float], torch.Tensor]] = {
    "ForCausalLM": _next_tokens,
    "ForMaskedLM": _tokens,
    "ForTokenClassification": _tokens,
    "ForSequenceClassification": _classes,
    "ForImageClassification": _classes,
    "ForQuestionAnswering": _spans,
}


class ExampleLosses:
    """The loss as a criterion for Opacus' ghost clipping, which sets its `reduction`."""

    def __init__(self, loss: Loss) -> None:
        """Wrap a loss."""
        self.reduction = "mean"
        self._loss = loss

    def __call__(self, outputs: Any, labels: Labels) -> torch.Tensor:
        """Return one loss for each example with any reduction, because the caller takes the mean."""
        return self._loss(outputs, labels)
