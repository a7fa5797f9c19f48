"""The loss is one value for each example, or the run is refused: other examples must not change a gradient."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional
from transformers import Trainer

from ballsbins import BallsAndBins, Mechanism
from ballsbins.errors import RunError
from ballsbins.training.torch import example_check

CLIP = 5.0  # little is clipped: at a small norm everything is, and the error does not show
ROWS = 25


def rows_with_a_long_one():
    """Examples with one label each, and one with many."""
    generator = torch.Generator().manual_seed(1)
    rows = []
    for number in range(ROWS):
        ids = torch.randint(3, 17, (15,), generator=generator).tolist()
        ids[:2] = [3, 4]
        rows.append({"input_ids": ids, "labels": ids if number == 0 else [-100, ids[1]] + [-100] * 13})
    return rows


def of_tokens(outputs, labels):
    return functional.cross_entropy(
        outputs.logits[:, :-1].transpose(1, 2), labels[:, 1:], ignore_index=-100, reduction="none"
    )


def batch_loss(outputs, labels, num_items_in_batch=None):
    """What transformers does: every loss divided by the tokens of the whole batch."""
    return len(labels) * of_tokens(outputs, labels).sum(1) / labels[:, 1:].ne(-100).sum()


def own_loss(outputs, labels, num_items_in_batch=None):
    return of_tokens(outputs, labels).sum(1) / labels[:, 1:].ne(-100).sum(1).clamp(min=1)


def moved_by_the_long_example(tiny, folder, loss, mode="hooks"):
    """How far the sum of one batch moves when the labels of the long example are taken away, in units of C."""
    found = []
    for rows in (rows_with_a_long_one(), rows_with_a_long_one()):
        if found:
            rows[0]["labels"] = [-100] * 15
        seen = tiny.Gradients()
        tiny.make_trainer(
            folder, "gpt2 untied", scale=1.0, train_dataset=rows, mechanism=Mechanism(BallsAndBins(1), tiny.TINY),
            compute_loss_func=loss, max_grad_norm=CLIP, per_device_train_batch_size=ROWS, callbacks=[seen],
            gradient_accumulation_steps=1, grad_sample_mode=mode,
        ).train()  # fmt: skip
        found.append(seen.found[0] * ROWS)
    return float((found[0] - found[1]).norm()) / CLIP


def test_a_loss_that_divides_by_the_batch_breaks_the_bound_without_the_check(tiny, tmp_path, monkeypatch):
    """The control: the sum moves by several C. Trainer's own loss and `num_items_in_batch` do the same."""
    monkeypatch.setattr(example_check, "TOLERANCE", 1e9)
    assert moved_by_the_long_example(tiny, tmp_path, batch_loss) > 3.0


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_a_loss_that_divides_by_the_batch_is_refused(tiny, tmp_path, mode):
    with pytest.raises(RunError, match=r"within its batch differs .* alone.*divides by nothing of the batch"):
        moved_by_the_long_example(tiny, tmp_path, batch_loss, mode)


@pytest.mark.parametrize("loss", [None, own_loss], ids=["ours", "given"])
def test_an_example_moves_the_sum_by_at_most_the_clip_norm(tiny, tmp_path, loss):
    assert 0.01 < moved_by_the_long_example(tiny, tmp_path, loss) <= 1.0 + 1e-4


def test_a_scalar_loss_is_refused(tiny, tmp_path):
    def scalar(outputs, labels, num_items_in_batch=None):
        return of_tokens(outputs, labels).mean()

    trainer = tiny.make_trainer(tmp_path, "llama untied", compute_loss_func=scalar)
    with pytest.raises(RunError, match="one loss for each example"):
        trainer.train()


def test_one_loss_for_each_token_is_refused(tiny, tmp_path):
    def every_token(outputs, labels, num_items_in_batch=None):
        return of_tokens(outputs, labels).reshape(-1)

    trainer = tiny.make_trainer(tmp_path, "llama untied", compute_loss_func=every_token)
    with pytest.raises(RunError, match="one for each example"):
        trainer.train()


def test_padding_that_the_model_sees_is_refused(tiny, tmp_path):
    """On the left without position_ids: the positions of a row then depend on the longest of its batch."""

    def on_the_left(rows):
        batch = tiny.Pad()(rows)
        padding = (1 - batch["attention_mask"]).sum(1).tolist()
        return {
            name: torch.stack([row.roll(shift) for row, shift in zip(value, padding, strict=True)])
            for name, value in batch.items()
        }

    trainer = tiny.make_trainer(
        tmp_path, "gpt2 untied", data_collator=on_the_left, per_device_train_batch_size=18
    )
    with pytest.raises(RunError, match="position_ids where the padding is on the left"):
        trainer.train()


def test_trainer_itself_divides_by_the_tokens_of_the_batch(tiny, tmp_path):
    """Why the loss is ours: the loss of a long example shrinks when others have more tokens."""
    model = tiny.make_model("gpt2 untied", scale=1.0)
    rows = rows_with_a_long_one()[1:3]
    trainer = Trainer(model, tiny.arguments(tmp_path), train_dataset=rows, data_collator=tiny.Pad())
    many = trainer._get_num_items_in_batch([tiny.Pad()(rows_with_a_long_one()[:2])], torch.device("cpu"))
    few = trainer._get_num_items_in_batch([tiny.Pad()(rows)], torch.device("cpu"))
    assert int(few) == 2
    assert int(many) == 16
