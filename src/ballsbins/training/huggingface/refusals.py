"""Options of `transformers` that do not work with private training, each with the change to make."""

from __future__ import annotations

import os
from typing import Any

from torch import nn
from transformers import DataCollatorWithFlattening
from transformers.training_args import OptimizerNames

from ballsbins.errors import InvalidInputError
from ballsbins.training.huggingface.losses import LANGUAGE_MODELS

_UNCLIPPED = ("lomo", "adalomo")  # and "…_layerwise": they step inside the backward pass


def refuse_arguments(args: Any, mode: str, kind: str | None, precision: str) -> None:
    """Refuse options of TrainingArguments under which the guarantee would not hold.

    Args:
        args: TrainingArguments.
        mode: "hooks" or "ghost".
        kind: the loss of the model, by transformers' name.
        precision: Accelerate's mixed precision, "no" for none.

    Raises:
        InvalidInputError: an option is not usable; the error names it and the change to make.
    """
    ours = "Leave it out: the mechanism draws the batches."
    watched = os.environ.get("WANDB_WATCH")
    optimizer = str(getattr(args.optim, "value", args.optim))
    wrong: list[tuple[str, Any, bool, str, str]] = [
        ("fp16", True, args.fp16 or precision == "fp16", "False",
         "Float16 needs a loss scale, which changes the norms to clip by: train in float32, or bf16=True with "
         "grad_sample_mode='hooks'."),
        ("bf16", True, mode == "ghost" and (args.bf16 or precision == "bf16"), "False in ghost mode",
         "Norms from bfloat16 are wrong by up to a hundredth: use grad_sample_mode='hooks', which clips in float64, "
         "or leave bf16 out."),
        ("torch_compile", True, args.torch_compile, "False",
         "A compiled model does not call the hooks that find the gradient of each example: leave it out."),
        ("fsdp", args.fsdp, bool(args.fsdp), "left out",
         "It splits parameters over processes, so that no process has the norm of an example's gradient: use plain "
         "data parallelism (torchrun), with LoRA or ghost mode if memory is short."),
        ("deepspeed", "…", bool(args.deepspeed), "left out",
         "It steps on gradients of its own, which are not noisy: use plain data parallelism (torchrun)."),
        ("auto_find_batch_size", True, args.auto_find_batch_size, "False",
         "It starts a step anew after an error, on the same batch: set per_device_train_batch_size to what fits in "
         "memory; it does not change the privacy."),
        ("label_smoothing_factor", args.label_smoothing_factor,
         args.label_smoothing_factor != 0 and kind in LANGUAGE_MODELS, "0 for language models",
         "transformers divides it by the tokens of the whole batch: leave it out, or give a compute_loss_func that "
         "returns one loss for each example."),
        ("use_liger_kernel", True, args.use_liger_kernel, "False",
         "Its fused layers have no gradients of single examples: leave it out."),
        ("neftune_noise_alpha", args.neftune_noise_alpha, args.neftune_noise_alpha is not None, "left out",
         "It scales noise by the length of the longest example of the batch, so that one example changes others."),
        ("optim", optimizer, optimizer in _UNCLIPPED or optimizer.endswith("_layerwise"), "another optimizer",
         f"It steps in the backward pass, before anything is clipped; take {OptimizerNames.ADAMW_TORCH.value!r}."),
        ("train_sampling_strategy", args.train_sampling_strategy, args.train_sampling_strategy != "random",
         "'random'", ours),
        ("dataloader_drop_last", True, args.dataloader_drop_last, "False", ours),
        ("ignore_data_skip", True, args.ignore_data_skip, "False",
         "A resumed run goes on at the batch of its next step by itself, and skips nothing: leave it out."),
        ("include_num_input_tokens_seen", args.include_num_input_tokens_seen,
         args.include_num_input_tokens_seen != "no", "'no'", "It logs sizes of batches, which are secret."),
        ("parallelism_config", "…", args.parallelism_config is not None, "left out",
         "Use plain data parallelism: every process must have the whole model."),
        ("n_gpu", args.n_gpu, args.n_gpu > 1, "at most 1 for each process",
         "Start one process for each GPU: torchrun --nproc-per-node N script.py."),
        ("WANDB_WATCH", watched, watched in ("gradients", "all"), "unset",
         "It logs gradients as they are before the noise: unset the environment variable."),
    ]  # fmt: skip
    if mode not in ("hooks", "ghost"):
        raise InvalidInputError("grad_sample_mode", mode, "'hooks' or 'ghost'", "Choose one of these.")
    for name, value, is_wrong, bound, advice in wrong:
        if is_wrong:
            raise InvalidInputError(name, value, bound, advice)


def refuse_checkpointing(model: Any, args: Any, mode: str) -> None:
    """Refuse gradient checkpointing if hooks would see layers twice.

    With `use_reentrant=True` the first call of a layer runs without gradients, and hooks see only the second.
    """
    if not (args.gradient_checkpointing or getattr(model, "is_gradient_checkpointing", False)):
        return
    if mode == "ghost":
        raise InvalidInputError(
            "gradient_checkpointing",
            True,
            "False in ghost mode",
            "Layers are called again in each of its two backward passes: use grad_sample_mode='hooks', or leave it "
            "out (ghost mode saves memory as well).",
        )
    chosen = (args.gradient_checkpointing_kwargs or {}).get("use_reentrant")
    if args.gradient_checkpointing and chosen is not True:
        raise InvalidInputError(
            "use_reentrant of gradient_checkpointing_kwargs",
            chosen,
            "True",
            "Otherwise layers are seen twice in one step. Set gradient_checkpointing_kwargs={'use_reentrant': True}.",
        )


def refuse_tied(model: nn.Module) -> None:
    """Refuse trainable weights that two layers share, in ghost mode.

    The norm of a sum of two gradients does not follow from their norms.
    """
    owners: dict[int, list[str]] = {}
    for name, layer in model.named_modules():
        for own, parameter in layer.named_parameters(recurse=False):
            if parameter.requires_grad:
                owners.setdefault(id(parameter), []).append(f"{name}.{own}")
    for names in owners.values():
        if len(names) > 1:
            raise InvalidInputError(
                "the set of tied weights to train",
                names,
                "empty in ghost mode",
                "The norm of their gradient does not follow from those of the two layers. Use "
                "grad_sample_mode='hooks'; or untie them (config.tie_word_embeddings = False before the model is "
                "made); or freeze them (LoRA does).",
            )


def refuse_collator(collator: Any) -> None:
    """Refuse a collator that puts a whole batch into one row."""
    if isinstance(collator, DataCollatorWithFlattening):
        raise InvalidInputError(
            "data_collator",
            type(collator).__name__,
            "one that gives one row for each example",
            "It puts a whole batch into one row, so that no example can be clipped by itself: use "
            "DataCollatorWithPadding, or DataCollatorForLanguageModeling.",
        )
