"""Tiny models from configurations, data and trainers, shared by the tests of training with Hugging Face."""

from __future__ import annotations

import copy
import gc
import sys

import pytest
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    RobertaConfig,
    RobertaForSequenceClassification,
    TrainerCallback,
    TrainingArguments,
)

from ballsbins import BallsAndBins, Mechanism
from ballsbins.training.huggingface import PrivateTrainer

VOCABULARY, LONGEST = 17, 7
TINY = 2e-6  # a noise multiplier that leaves the gradient to be seen


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    """Tiny matrices are slower on two threads; and Trainer collects garbage, of which imports leave much to walk."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
    torch.set_num_threads(threads)


def _bert(kind, model, dropout, **more):
    return lambda: model(
        kind(
            vocab_size=VOCABULARY, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=12,
            max_position_embeddings=16, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout,
            num_labels=3, **more,
        )
    )  # fmt: skip


def _gpt2(tied, dropout):
    return lambda: GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY, n_embd=8, n_layer=1, n_head=2, n_positions=16, tie_word_embeddings=tied,
            resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout, bos_token_id=1, eos_token_id=2,
        )
    )  # fmt: skip


def _llama(tied):
    return lambda: LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=8, intermediate_size=12, num_hidden_layers=1, num_attention_heads=2,
            num_key_value_heads=1, max_position_embeddings=16, tie_word_embeddings=tied,
        )
    )  # fmt: skip


def models(dropout=0.0):
    """Name → (how to make the model, the layers that LoRA adapts)."""
    distil = {
        "vocab_size": VOCABULARY,
        "dim": 8,
        "n_layers": 1,
        "n_heads": 2,
        "hidden_dim": 12,
        "num_labels": 3,
    }
    off = {"dropout": dropout, "attention_dropout": dropout, "seq_classif_dropout": dropout}
    return {
        "bert": (_bert(BertConfig, BertForSequenceClassification, dropout), ["query", "value"]),
        "distilbert": (
            lambda: DistilBertForSequenceClassification(
                DistilBertConfig(max_position_embeddings=16, **distil, **off)
            ),
            ["q_lin", "v_lin"],
        ),
        "roberta": (
            _bert(RobertaConfig, RobertaForSequenceClassification, dropout, pad_token_id=1),
            ["query", "value"],
        ),
        "gpt2 tied": (_gpt2(True, dropout), ["c_attn"]),
        "gpt2 untied": (_gpt2(False, dropout), ["c_attn"]),
        "llama tied": (_llama(True), ["q_proj", "v_proj"]),
        "llama untied": (_llama(False), ["q_proj", "v_proj"]),
    }


def make_model(name, lora=False, dropout=0.0, scale=3.0):
    """A model with weights large enough for gradients above and below the clip norm."""
    torch.manual_seed(0)
    make, targets = models(dropout)[name]
    model = make()
    if lora:
        from peft import LoraConfig, get_peft_model

        task = "SEQ_CLS" if is_classifier(name) else "CAUSAL_LM"
        model = get_peft_model(
            model,
            LoraConfig(r=2, target_modules=targets, lora_dropout=dropout, task_type=task, init_lora_weights=False,
                       fan_in_fan_out=name.startswith("gpt2")),
        )  # fmt: skip
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(scale)
    return model


def is_classifier(name):
    return "bert" in name


def make_rows(name, count, seed=0, fixed=False):
    """Rows of different lengths, as a list of dictionaries that Trainer's own collators pad."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for _ in range(count):
        length = LONGEST if fixed else int(torch.randint(2, LONGEST + 1, (1,), generator=generator))
        ids = torch.randint(3, VOCABULARY, (length,), generator=generator).tolist()
        label = int(torch.randint(0, 3, (1,), generator=generator)) if is_classifier(name) else ids
        rows.append({"input_ids": ids, "labels": label})
    return rows


class Pad:
    """Pad on the right, to the longest row of the batch or to a fixed length."""

    def __init__(self, length=None):
        self.length = length

    def __call__(self, rows):
        longest = self.length or max(len(row["input_ids"]) for row in rows)

        def padded(values, filler):
            return values + [filler] * (longest - len(values))

        batch = {
            "input_ids": torch.tensor([padded(row["input_ids"], 1) for row in rows]),
            "attention_mask": torch.tensor([padded([1] * len(row["input_ids"]), 0) for row in rows]),
        }
        labels = [row["labels"] for row in rows]
        if isinstance(labels[0], list):
            labels = [padded(each, -100) for each in labels]
        batch["labels"] = torch.tensor(labels)
        return batch


class Gradients(TrainerCallback):
    """Keeps the released gradient of every step, as one vector each."""

    def __init__(self):
        self.found = []

    def on_optimizer_step(self, args, state, control, model=None, **kwargs):
        self.found.append(
            torch.cat(
                [value.grad.reshape(-1) for value in model.parameters() if value.requires_grad]
            ).double()
        )


def arguments(folder, **options):
    given = {
        "num_train_epochs": 1, "per_device_train_batch_size": 3, "gradient_accumulation_steps": 2,
        "max_grad_norm": 1.0,
        "use_cpu": True, "report_to": [], "disable_tqdm": True, "save_strategy": "no", "logging_strategy": "no",
        "optim": "sgd", "learning_rate": 0.0, "lr_scheduler_type": "constant",
    } | options  # fmt: skip
    return TrainingArguments(str(folder), **given)


def make_trainer(
    folder, name="bert", *, rows=18, lora=False, dropout=0.0, model=None, mechanism=None, train_dataset=None,
    data_collator=None, fixed=False, scale=3.0, **options,
):  # fmt: skip
    """A trainer of a tiny model; options go to PrivateTrainer where it knows them, and else to TrainingArguments."""
    own = ("key", "grad_sample_mode", "privacy_unit", "document_ids", "ledger", "lost_steps", "data_fingerprint",
           "epsilon", "delta", "compute_loss_func", "callbacks", "eval_dataset")  # fmt: skip
    mine = {"key": 5} | {word: options.pop(word) for word in own if word in options}
    if "epsilon" not in mine:
        mine["mechanism"] = mechanism or Mechanism(BallsAndBins(3), TINY)
    if not is_classifier(name):
        mine.setdefault("privacy_unit", "row")
    return PrivateTrainer(
        make_model(name, lora, dropout, scale) if model is None else model,
        arguments(folder, **options),
        train_dataset=make_rows(name, rows, fixed=fixed) if train_dataset is None else train_dataset,
        data_collator=data_collator or Pad(),
        **mine,
    )


def reference_sum(model, rows, indices, clip):
    """The sum of clipped gradients: one example at a time, by plain autograd, of the model's own loss."""
    trained = [value for value in model.parameters() if value.requires_grad]
    total = torch.zeros(sum(value.numel() for value in trained), dtype=torch.float64)
    norms = []
    for index in indices:
        loss = model(**Pad()([rows[int(index)]])).loss
        parts = torch.autograd.grad(loss, trained)
        flat = torch.cat([part.reshape(-1) for part in parts]).double()
        norms.append(float(flat.norm()))
        total += flat * min(1.0, clip / norms[-1])
    return total, norms


@pytest.fixture(scope="session")
def tiny():
    """The helpers of this file, for tests that pytest imports one by one."""
    return sys.modules[__name__]


def plain_copy(model):
    """The model as it is, in evaluation mode, for a reference that shares no hooks with it."""
    return copy.deepcopy(model).eval()
