"""The clipped sum of every supported model, in each mode, is that of per-example autograd, computed independently."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
)

from ballsbins import BallsAndBins, Mechanism
from ballsbins.errors import InvalidInputError, RunError
from ballsbins.training.huggingface import batches, losses

NAMES = ["bert", "distilbert", "roberta", "gpt2 tied", "gpt2 untied", "llama tied", "llama untied"]
CASES = [(name, lora, mode) for name in NAMES for lora in (False, True) for mode in ("hooks", "ghost")
         if lora or mode == "hooks" or "untied" in name or "tied" not in name]  # fmt: skip


def train(tiny, folder, name, *, lora=False, clip=None, **options):
    """Train one epoch at learning rate 0; gives the released sums, the references, and the norms of all examples."""
    model = tiny.make_model(name, lora)
    plain, rows = tiny.plain_copy(model), tiny.make_rows(name, 18)
    everything = tiny.reference_sum(plain, rows, range(18), 1.0)[1]
    clip = sorted(everything)[9] if clip is None else clip  # half of the examples are clipped
    seen = tiny.Gradients()
    trainer = tiny.make_trainer(
        folder, name, model=model, train_dataset=rows, max_grad_norm=clip, callbacks=[seen], **options
    )
    trainer.train()
    mechanism = trainer.mechanism
    sums = [gradient * (18 / mechanism.sampler.steps) for gradient in seen.found]
    expected = [tiny.reference_sum(plain, rows, batch, clip)[0] for batch in mechanism.batches(18, 5)]
    return sums, expected, clip


def agree(sums, expected, clip):
    assert len(sums) == len(expected)
    return all(torch.allclose(a, b, rtol=1e-4, atol=2e-5 * clip) for a, b in zip(sums, expected, strict=True))


@pytest.mark.parametrize(("name", "lora", "mode"), CASES, ids=[" ".join(map(str, case)) for case in CASES])
def test_the_clipped_sum_is_that_of_each_example_alone(tiny, tmp_path, name, lora, mode):
    sums, expected, clip = train(tiny, tmp_path, name, lora=lora, grad_sample_mode=mode)
    assert all(float(total.norm()) > 0.5 * clip for total in expected)
    assert agree(sums, expected, clip)


@pytest.mark.parametrize("name", ["gpt2 tied", "llama tied"])
def test_tied_weights_in_ghost_mode_get_an_answer(tiny, tmp_path, name):
    with pytest.raises(InvalidInputError, match=r"tied weights.*hooks.*untie.*freeze"):
        tiny.make_trainer(tmp_path, name, grad_sample_mode="ghost")
    model = tiny.make_model(name)
    model.get_input_embeddings().requires_grad_(False)
    tiny.make_trainer(tmp_path, name, model=model, grad_sample_mode="ghost").train()


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
@pytest.mark.parametrize("name", ["bert", "distilbert", "gpt2 untied"])
def test_lookups_as_the_models_make_them_are_not_what_opacus_needs(tiny, tmp_path, monkeypatch, name, mode):
    """The control of `OneRowPerExample`: positions of shape (1, T) are looked up for the whole batch."""
    monkeypatch.setattr(batches.OneRowPerExample, "_expander", lambda self, name: lambda layer, args: None)
    try:
        sums, expected, clip = train(tiny, tmp_path, name, grad_sample_mode=mode)
    except (RuntimeError, IndexError, ValueError):
        return
    assert not agree(sums, expected, clip)


def test_a_table_looked_up_for_no_example_is_refused(tiny, tmp_path):
    """Such as the distances of relative positions."""

    class OddForSequenceClassification(BertForSequenceClassification):
        def __init__(self, config):
            super().__init__(config)
            self.distances = torch.nn.Embedding(40, 1)

        def forward(self, input_ids, attention_mask=None, labels=None):
            found = super().forward(input_ids=input_ids, attention_mask=attention_mask)
            found.logits = found.logits + self.distances(torch.arange(31)[:, None].expand(31, 2)).mean()
            return found

    config = tiny.make_model("bert").config
    trainer = tiny.make_trainer(tmp_path, "bert", model=OddForSequenceClassification(config))
    with pytest.raises(RunError, match=r"'distances' .*\(31, 2\).*requires_grad_\(False\)"):
        trainer.train()


@pytest.mark.parametrize("micro", [(1, 1), (2, 3), (18, 1), (1, 7)])
def test_microbatches_change_nothing(tiny, tmp_path, micro):
    """They are pieces of one logical batch, whose mean size is n/T whatever they are."""
    size, pieces = micro
    sums, expected, clip = train(
        tiny, tmp_path, "bert", per_device_train_batch_size=size, gradient_accumulation_steps=pieces
    )
    assert agree(sums, expected, clip)


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_empty_batches_step(tiny, tmp_path, mode):
    mechanism = Mechanism(BallsAndBins(18), tiny.TINY)
    assert sum(len(batch) == 0 for batch in mechanism.batches(18, 5)) >= 3
    sums, expected, clip = train(tiny, tmp_path, "bert", mechanism=mechanism, grad_sample_mode=mode)
    assert agree(sums, expected, clip)


def test_reentrant_checkpointing_is_exact_in_hooks_mode(tiny, tmp_path):
    options = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}}
    sums, expected, clip = train(tiny, tmp_path, "llama tied", **options)
    assert agree(sums, expected, clip)


def heads(name):
    config = BertConfig(vocab_size=17, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, num_labels=3,
                        intermediate_size=12, max_position_embeddings=16)  # fmt: skip
    tokens = torch.tensor([[3, 4, 5, 6], [7, 8, 9, 1]])
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])
    labels = {
        "masked": {"labels": torch.tensor([[3, -100, 5, 6], [-100, 8, -100, -100]])},
        "tokens": {"labels": torch.tensor([[0, 1, 2, 0], [1, 1, 0, -100]])},
        "classes": {"labels": torch.tensor([2, 0])},
        "several": {"labels": torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]])},
        "number": {"labels": torch.tensor([0.3, -2.0])},
        "spans": {"start_positions": torch.tensor([1, 9]), "end_positions": torch.tensor([2, 2])},
    }[name]
    config.num_labels = {"number": 1, "spans": 2}.get(name, 3)
    kind = {
        "masked": BertForMaskedLM,
        "tokens": BertForTokenClassification,
        "spans": BertForQuestionAnswering,
    }
    torch.manual_seed(0)
    model = kind.get(name, BertForSequenceClassification)(config).eval()
    return model, {"input_ids": tokens, "attention_mask": mask}, labels


@pytest.mark.parametrize("name", ["masked", "tokens", "classes", "several", "number", "spans"])
def test_losses_are_those_of_the_model_for_one_example(name):
    model, inputs, labels = heads(name)
    each = losses.loss_for(model)(model(**inputs), labels)
    for row in range(2):
        alone = {word: value[row : row + 1] for word, value in (inputs | labels).items()}
        if (
            name == "spans" and row == 1
        ):  # a start beyond the input has no loss; the model's mean over none is NaN
            assert torch.isfinite(each[1])
            continue
        assert torch.allclose(model(**alone).loss, each[row], rtol=1e-5)


def test_a_model_without_a_known_loss_is_asked_for_one():
    with pytest.raises(InvalidInputError, match="compute_loss_func"):
        losses.loss_for(torch.nn.Linear(2, 2))
