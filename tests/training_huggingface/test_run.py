"""Batches, logs, checkpoints, resuming and the card of a run in `PrivateTrainer`."""

from __future__ import annotations

import json
import random

import pytest
import torch
from transformers import BertForSequenceClassification

from ballsbins import BallsAndBins, Key, Mechanism, new_key
from ballsbins.errors import InvalidInputError, RunError, SecretError
from ballsbins.report import Card
from ballsbins.training.huggingface.batches import Pieces

STEPS, EPOCHS = 4, 2
MECHANISM = Mechanism(BallsAndBins(STEPS), 0.5, epochs=EPOCHS)
SAVING = {
    "num_train_epochs": EPOCHS, "learning_rate": 0.1, "save_strategy": "steps", "save_steps": 1, "dropout": 0.1,
    "logging_strategy": "steps", "logging_steps": 1, "mechanism": MECHANISM,
}  # fmt: skip


def vector(model):
    return torch.cat([value.detach().reshape(-1) for value in model.parameters()])


@pytest.fixture(scope="module")
def whole(tiny, tmp_path_factory):
    """A run of two epochs under dropout that was never stopped, with a checkpoint at every step."""
    folder = tmp_path_factory.mktemp("whole")
    trainer = tiny.make_trainer(folder, **SAVING)
    trainer.train()
    return trainer, folder


def test_the_run_is_the_mechanism(whole):
    trainer, _ = whole
    assert trainer.as_run() == MECHANISM
    assert trainer.state.global_step == STEPS * EPOCHS
    assert trainer.accelerator._dataloaders == []
    assert trainer.accelerator._models == []
    assert trainer.accelerator._optimizers == []


def test_no_gradient_norm_is_logged_and_losses_are_marked(whole):
    trainer, folder = whole
    logged = trainer.state.log_history
    names = {name for line in logged for name in line}
    assert "loss_not_private" in names
    assert "train_loss_not_private" in names
    assert not names & {"loss", "train_loss", "grad_norm"}
    saved = json.loads((folder / "checkpoint-8" / "trainer_state.json").read_text())
    assert "grad_norm" not in json.dumps(saved)
    assert saved["total_flos"] == 0.0  # it would tell the sizes of batches
    assert [line["epoch"] for line in logged[:8]] == [0.25 * step for step in range(1, 9)]


def test_what_checkpoints_hold_of_generators_does_not_depend_on_batches(whole):
    """Dropout draws by the size of a batch. Generators of the process are those of a run on other batches."""
    _, folder = whole
    states = [
        torch.load(folder / f"checkpoint-{step}" / "rng_state.pth", weights_only=False) for step in (1, 3, 4)
    ]
    assert all(torch.equal(states[0]["cpu"], state["cpu"]) for state in states)
    assert all(states[0]["python"] == state["python"] for state in states)


@pytest.mark.parametrize("stop", [2, 4, 5])
def test_a_resumed_run_goes_on_at_its_step(tiny, whole, tmp_path, stop):
    """Under a plain seed it is the same bit for bit, in the middle of an epoch and under dropout."""
    trainer, folder = whole
    random.seed(stop)
    resumed = tiny.make_trainer(tmp_path, **SAVING | {"save_strategy": "no"})
    torch.manual_seed(stop)  # what the process drew before must not matter
    resumed.train(resume_from_checkpoint=str(folder / f"checkpoint-{stop}"))
    assert torch.equal(vector(resumed.model), vector(trainer.model))
    assert resumed.as_run() == MECHANISM
    assert [line["epoch"] for line in resumed.state.log_history[:8]] == [0.25 * step for step in range(1, 9)]
    lines = [line for line in resumed.state.log_history if "loss_not_private" in line]
    assert lines == [line for line in trainer.state.log_history if "loss_not_private" in line]


def test_dropout_is_drawn_anew_at_every_step(tiny, tmp_path):
    """The control of the test above: without dropout, and with another key, the run is another."""
    runs = [
        tiny.make_trainer(tmp_path, **SAVING | {"save_strategy": "no", "dropout": rate})
        for rate in (0.0, 0.1)
    ]
    for run in runs:
        run.train()
    assert not torch.equal(vector(runs[0].model), vector(runs[1].model))


def test_another_key_is_refused(tiny, whole, tmp_path):
    trainer = tiny.make_trainer(tmp_path, key=6, **SAVING)
    with pytest.raises(SecretError, match="commitment"):
        trainer.train(resume_from_checkpoint=str(whole[1] / "checkpoint-2"))


def test_a_run_that_is_over_is_refused(tiny, whole, tmp_path):
    trainer = tiny.make_trainer(tmp_path, **SAVING)
    with pytest.raises(RunError, match="run of this checkpoint is over: it has taken 8 of 8 steps"):
        trainer.train(resume_from_checkpoint=str(whole[1] / "checkpoint-8"))
    with pytest.raises(RunError, match="has trained already"):
        whole[0].train()


def test_files_of_two_checkpoints_are_refused(tiny, whole, tmp_path):
    mixed = tmp_path / "checkpoint-3"
    mixed.mkdir()
    for file in (whole[1] / "checkpoint-3").iterdir():
        (mixed / file.name).write_bytes(file.read_bytes())
    (mixed / "optimizer.pt").write_bytes((whole[1] / "checkpoint-2" / "optimizer.pt").read_bytes())
    with pytest.raises(RunError, match="of step 2, but Trainer's state is of step 3"):
        tiny.make_trainer(tmp_path, **SAVING).train(resume_from_checkpoint=str(mixed))
    (mixed / "optimizer.pt").unlink()
    with pytest.raises(InvalidInputError, match=r"lacks is \['optimizer.pt'\].*save_only_model"):
        tiny.make_trainer(tmp_path, **SAVING).train(resume_from_checkpoint=str(mixed))


def test_a_killed_run_is_known_by_its_ledger(tiny, tmp_path):
    """With a secret key the noise is fresh, and lost steps must be accounted for."""
    key, options = new_key(), SAVING | {"ledger": tmp_path / "run.ledger"}
    tiny.make_trainer(tmp_path, key=key, **options).train()
    place = str(tmp_path / "checkpoint-5")
    with pytest.raises(RunError, match="3 of them are lost"):
        tiny.make_trainer(tmp_path, key=key, **options).train(resume_from_checkpoint=place)
    again = tiny.make_trainer(tmp_path, key=key, lost_steps="accounted", **options)
    again.train(resume_from_checkpoint=place)
    assert again.as_run().noise_multiplier == pytest.approx(0.5 / 2**0.5)


def test_the_model_stays_itself(tiny, whole, tmp_path):
    """Checkpoints load with from_pretrained; after training the model has no hooks, and can be trained again."""
    trainer, folder = whole
    assert type(trainer.model) is BertForSequenceClassification
    for place in (folder / "checkpoint-8", tmp_path / "saved"):
        if place.name == "saved":
            trainer.save_model(str(place))
        loaded = BertForSequenceClassification.from_pretrained(place)
        assert torch.equal(vector(loaded), vector(trainer.model))
    assert not any(layer._backward_hooks for layer in trainer.model.modules())
    tiny.make_trainer(tmp_path, model=trainer.model).train()


def test_adapters_load_with_peft(tiny, tmp_path):
    from peft import PeftModel

    trainer = tiny.make_trainer(tmp_path, "llama tied", lora=True, learning_rate=0.5)
    before = vector(trainer.model).clone()
    trainer.train()
    trainer.save_model(str(tmp_path / "adapter"))
    assert not torch.equal(before, vector(trainer.model))
    base = tiny.make_model("llama tied", lora=True).unload()
    loaded = PeftModel.from_pretrained(base, tmp_path / "adapter")
    tokens = torch.tensor([[3, 4, 5]])
    assert torch.allclose(loaded.eval()(tokens).logits, trainer.model.eval()(tokens).logits, rtol=1e-5)


def test_a_target_gives_the_noise(tiny, tmp_path):
    """The batch size is that of Trainer's arguments: 3 examples times 2 substeps, of 20 examples."""
    trainer = tiny.make_trainer(tmp_path, rows=20, epsilon=2.0, delta=1e-2, num_train_epochs=1.5)
    assert trainer.mechanism.sampler == BallsAndBins(4)
    assert (trainer.mechanism.epochs, trainer.mechanism.total_steps) == (2, 6)
    trainer.train()
    assert trainer.as_run() == trainer.mechanism
    card = trainer.card()
    assert 1.5 < card.claim.upper <= 2.0
    card.write(tmp_path / "card.json")
    assert Card.read(tmp_path / "card.json").details["privacy_unit"] == "row"


def test_the_card_says_if_shapes_depend_on_the_examples(tiny, tmp_path):
    free, fixed = (
        tiny.make_trainer(tmp_path, data_collator=tiny.Pad(length), key=Key(bytes(range(32))))
        for length in (None, 7)
    )
    free.train()
    fixed.train()
    assert "padded to the longest" in " ".join(free.card(1e-2).floating_point.not_covered)
    assert fixed.card(1e-2).floating_point.not_covered == ()


def test_nothing_to_state_before_training(tiny, tmp_path):
    with pytest.raises(RunError, match="Call train"):
        tiny.make_trainer(tmp_path).card(1e-2)
    assert tiny.make_trainer(tmp_path).as_run() is None


def test_evaluation_and_bfloat16_in_hooks_mode(tiny, tmp_path):
    trainer = tiny.make_trainer(
        tmp_path,
        bf16=True,
        eval_dataset=tiny.make_rows("bert", 6, seed=2),
        eval_strategy="steps",
        eval_steps=1,
    )
    trainer.train()
    assert trainer.as_run() == trainer.mechanism
    assert sum("eval_loss" in line for line in trainer.state.log_history) == 3


def test_pieces_hold_every_example_once(tiny, tmp_path):
    """Whatever the size of the batch, in chunks that fit in memory, the last of which is known."""
    trainer = tiny.make_trainer(tmp_path, rows=40, mechanism=Mechanism(BallsAndBins(2), 1.0))
    loader = trainer.get_train_dataloader()
    assert isinstance(loader, Pieces)
    assert len(loader) == 4
    first = next(iter(loader))
    again = iter(loader)
    pieces = [next(again), next(again)]
    chunks = [chunk for piece in pieces for chunk in piece.chunks]
    assert first.examples == sum(len(examples) for _, examples in chunks) == pieces[0].examples
    assert [number for number, _ in chunks] == list(range(pieces[0].last + 1))
    assert all(1 <= len(examples) <= 3 for _, examples in chunks)
    assert [piece.final for piece in pieces] == [False, True]


def test_data_sets_tokenizers_and_workers(tiny, tmp_path):
    """As people have them: a datasets.Dataset with a column too many, a tokenizer that pads, a worker."""
    import datasets
    from tokenizers import Tokenizer, models
    from transformers import DataCollatorWithPadding, PreTrainedTokenizerFast

    words = {f"w{number}": number for number in range(tiny.VOCABULARY)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="w0")),
        pad_token="w1",
        model_max_length=16,
    )
    rows = tiny.make_rows("bert", 18)
    data = datasets.Dataset.from_list([row | {"text": "not an argument of the model"} for row in rows])
    vectors = []
    for options in ({}, {"dataloader_num_workers": 1, "train_dataset": data}):
        trainer = tiny.make_trainer(
            tmp_path, learning_rate=0.1, mechanism=Mechanism(BallsAndBins(3), 0.5),
            data_collator=DataCollatorWithPadding(tokenizer) if options else None,
            **{"train_dataset": rows} | options,
        )  # fmt: skip
        trainer.train()
        vectors.append(vector(trainer.model))
    assert torch.allclose(*vectors, rtol=1e-5, atol=1e-6)
