"""What would break the guarantee is refused, with the change to make."""

from __future__ import annotations

from importlib import metadata

import pytest
import torch
from accelerate import skip_first_batches
from transformers import DataCollatorWithFlattening

from ballsbins import BallsAndBins, Mechanism
from ballsbins.errors import InvalidInputError, RunError
from ballsbins.training.huggingface import refusals, require_versions


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"bf16": True, "grad_sample_mode": "ghost"}, "bf16 is True.*hooks"),
        ({"torch_compile": True}, "torch_compile is True.*leave it out"),
        ({"auto_find_batch_size": True}, "auto_find_batch_size is True.*per_device_train_batch_size"),
        (
            {"label_smoothing_factor": 0.1, "name": "llama untied"},
            "label_smoothing_factor is 0.1.*language models",
        ),
        (
            {"label_smoothing_factor": 0.1, "name": "gpt2 untied"},
            "label_smoothing_factor is 0.1.*language models",
        ),
        ({"ignore_data_skip": True}, "ignore_data_skip is True.*by itself"),
        ({"num_train_epochs": 2}, r"num_train_epochs=2 is 6, but must be at most 3.*num_train_epochs=1"),
        ({"max_steps": 4}, "max_steps=4 is 4, but must be at most 3"),
        ({"neftune_noise_alpha": 5.0}, "neftune_noise_alpha is 5.0"),
        ({"train_sampling_strategy": "group_by_length"}, "train_sampling_strategy is 'group_by_length'"),
        ({"dataloader_drop_last": True}, "dataloader_drop_last is True"),
        ({"include_num_input_tokens_seen": True}, "include_num_input_tokens_seen is 'all'.*secret"),
        ({"optim": "lomo"}, "optim is 'lomo'.*adamw_torch"),
        (
            {"optim": "galore_adamw_layerwise", "optim_target_modules": ["x"]},
            "optim is 'galore_adamw_layerwise'",
        ),
        ({"max_grad_norm": 0.0}, "max_grad_norm is 0.0"),
        (
            {"gradient_checkpointing": True, "grad_sample_mode": "ghost"},
            "gradient_checkpointing is True.*hooks",
        ),
        ({"gradient_checkpointing": True}, "use_reentrant of gradient_checkpointing_kwargs is None.*True"),
        ({"data_collator": DataCollatorWithFlattening()}, "data_collator is 'DataCollatorWithFlattening'"),
        ({"epsilon": 1.0, "delta": None}, "delta is None"),
        ({"grad_sample_mode": "functorch"}, "grad_sample_mode is 'functorch'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_options_are_refused(tiny, tmp_path, options, said):
    with pytest.raises(InvalidInputError, match=said):
        tiny.make_trainer(tmp_path, **({"name": "bert"} | options)).train()


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("fp16", True, "fp16 is True.*float32"),
        ("fsdp", "full_shard", "fsdp is 'full_shard'.*torchrun"),
        ("deepspeed", {"stage": 2}, "deepspeed is.*torchrun"),
        ("use_liger_kernel", True, "use_liger_kernel is True"),
        ("_n_gpu", 2, "n_gpu is 2.*torchrun"),
        ("parallelism_config", object(), "parallelism_config"),
    ],
)
def test_options_for_machines_that_are_not_here_are_refused(tiny, tmp_path, option, value, said):
    """TrainingArguments would not take them on a CPU, so they are put in afterwards."""
    args = tiny.arguments(tmp_path)
    args.__dict__[option] = value
    if option == "_n_gpu":
        args._setup_devices  # noqa: B018
        args._n_gpu = 2
    with pytest.raises(InvalidInputError, match=said):
        refusals.refuse_arguments(args, "hooks", "ForSequenceClassification", "no")


def test_float16_by_accelerate_alone_is_refused(tiny, tmp_path):
    with pytest.raises(InvalidInputError, match="fp16 is True"):
        refusals.refuse_arguments(tiny.arguments(tmp_path), "hooks", None, "fp16")


def test_gradients_in_the_logs_of_others_are_refused(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_WATCH", "all")
    with pytest.raises(InvalidInputError, match=r"WANDB_WATCH is 'all'.*before the noise"):
        tiny.make_trainer(tmp_path)


def test_a_mechanism_and_a_target_are_not_both_given(tiny, tmp_path):
    with pytest.raises(InvalidInputError, match="not both"):
        tiny.PrivateTrainer(
            tiny.make_model("bert"), tiny.arguments(tmp_path), train_dataset=tiny.make_rows("bert", 18),
            mechanism=Mechanism(BallsAndBins(3), 1.0), epsilon=1.0, delta=1e-2, key=1,
        )  # fmt: skip


def test_trainers_own_skipping_is_refused(tiny, tmp_path):
    loader = tiny.make_trainer(tmp_path).get_train_dataloader()
    with pytest.raises(RunError, match="cannot be skipped"):
        skip_first_batches(loader, 2)


def test_a_search_of_hyperparameters_is_refused(tiny, tmp_path):
    with pytest.raises(RunError, match="costs privacy of its own"):
        tiny.make_trainer(tmp_path).hyperparameter_search()


def test_other_versions_are_refused(monkeypatch):
    real = metadata.version
    require_versions()
    for name, other in (("transformers", "5.23.0"), ("accelerate", "2.0.1"), ("peft", "0.20.0")):
        monkeypatch.setattr(
            metadata, "version", lambda asked, n=name, o=other: o if asked == n else real(asked)
        )
        with pytest.raises(InvalidInputError, match=f"the version of {name} is '{other}'.*pip install"):
            require_versions()


@pytest.mark.parametrize(
    ("name", "lora"), [("bert", False), ("llama untied", True)], ids=["all layers", "LoRA in float32"]
)
def test_ghost_mode_under_autocast_is_refused(tiny, tmp_path, monkeypatch, name, lora):
    """Layer norms have float32 norms beside bfloat16 ones; stacked, all of them would look like float32."""
    trainer = tiny.make_trainer(tmp_path, name, lora=lora, grad_sample_mode="ghost")
    monkeypatch.setattr(trainer.accelerator, "autocast", lambda: torch.autocast("cpu", torch.bfloat16))
    with pytest.raises(RunError, match=r"bfloat16.*hooks"):
        trainer.train()


def test_norms_of_every_parameter_must_be_precise(tiny, tmp_path, monkeypatch):
    """Also if autocast is begun inside the model, where only a part of the layers has signals of 16 bits."""
    model = tiny.make_model("bert")
    for name, value in model.named_parameters():
        value.requires_grad_("LayerNorm" in name or "classifier" in name)
    head, inside = model.classifier, model.bert.encoder.forward

    def in_16_bits(*args, **kwargs):
        with torch.autocast("cpu", torch.bfloat16):
            return inside(*args, **kwargs)

    model.bert.encoder.forward = in_16_bits
    trainer = tiny.make_trainer(tmp_path, "bert", model=model, grad_sample_mode="ghost")
    assert head.weight.dtype == torch.float32
    with pytest.raises(RunError, match="bfloat16"):
        trainer.train()


def test_a_frozen_model_of_16_bits_is_refused_in_ghost_mode(tiny, tmp_path):
    model = tiny.make_model("llama untied", lora=True)
    for value in model.parameters():
        if not value.requires_grad:
            value.data = value.data.bfloat16()
    with pytest.raises(RunError, match=r"frozen parameter .* torch.bfloat16.*hooks"):
        tiny.make_trainer(tmp_path, "llama untied", model=model, grad_sample_mode="ghost").train()
