"""Silent errors of real frameworks, each of which must end with an error here."""

from __future__ import annotations

import pytest
import torch
from opacus import PrivacyEngine
from opacus.schedulers import ExponentialGradClip, ExponentialNoise
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, default_collate

from ballsbins import BallsAndBins, Mechanism
from ballsbins.errors import InvalidInputError, RunError
from ballsbins.training.torch import make_private

pytestmark = pytest.mark.filterwarnings("ignore:Secure RNG turned off")
MECHANISM = Mechanism(BallsAndBins(20), 1.0, epochs=2)
REPLACED, OUT_OF_STEP = "batches come from elsewhere", "batches of the run were handed out"


def test_a_loader_of_ones_own_is_refused(training, weighted):
    run = training(MECHANISM, weighted(40), lr=0.1)
    before = run.vector()
    with pytest.raises(RunError, match=REPLACED):
        run.gradients(DataLoader(run.dataset, batch_size=2, shuffle=True))
    assert torch.equal(run.vector(), before)


def test_a_second_step_on_one_batch_is_refused(training, weighted):
    run = training(MECHANISM, weighted(40))
    batch = next(iter(run.loader))
    run.step(batch)
    with pytest.raises(RunError, match=REPLACED):
        run.step(batch)


def test_skipping_an_empty_batch_is_refused(training, weighted):
    run = training(MECHANISM, weighted(40))
    batches = iter(run.loader)
    run.step(next(batches))
    next(batches)
    with pytest.raises(RunError, match=f"3 {OUT_OF_STEP}, but the optimizer took 1 steps"):
        run.step(next(batches))


def test_skipping_the_last_batch_is_refused(training, weighted):
    run = training(MECHANISM, weighted(40))
    batches = iter(run.loader)
    for _ in range(19):
        run.step(next(batches))
    next(batches)
    with pytest.raises(RunError, match=f"20 {OUT_OF_STEP}, but the optimizer took 19 steps"):
        next(batches)


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_accumulating_two_batches_into_a_step_is_refused(training, weighted, mode):
    run = training(MECHANISM, weighted(40), mode=mode)
    batches = iter(run.loader)
    run.backward(next(batches))
    run.backward(next(batches))  # clears the first; frameworks leave that out, and Opacus then refuses
    with pytest.raises(RunError, match=OUT_OF_STEP):
        run.optimizer.step()


def test_a_step_after_the_end_is_refused(training, weighted):
    run = training(Mechanism(BallsAndBins(3), 1.0), weighted(40))
    for batch in run.loader:
        run.step(batch)
    with pytest.raises(RunError, match="All 3 steps"):
        run.step(batch)


@pytest.mark.parametrize("even", [True, False])
@pytest.mark.parametrize("rank", [0, 1])
def test_batches_dealt_out_by_accelerate_are_refused(training, weighted, even, rank):
    from accelerate.data_loader import prepare_data_loader

    run = training(MECHANISM, weighted(40))
    dealt = prepare_data_loader(run.loader, num_processes=2, process_index=rank, even_batches=even)
    with pytest.raises(RunError, match=OUT_OF_STEP):
        run.gradients(dealt)
    assert run.loader.as_run() is None  # at the very first step


def test_accelerate_with_one_process_deals_out_nothing(training, weighted):
    from accelerate.data_loader import prepare_data_loader

    run = training(MECHANISM, weighted(40), lr=0.1)
    plain = training(MECHANISM, weighted(40), lr=0.1)
    prepared = prepare_data_loader(run.loader)
    for _ in range(2):
        run.gradients(prepared)
        plain.gradients()
    assert run.loader.as_run() == MECHANISM
    assert torch.equal(run.vector(), plain.vector())


def test_a_foreign_loader_that_loses_batches_is_seen_at_the_next_epoch(training, weighted):
    run = training(MECHANISM, weighted(40))
    foreign = DataLoader(
        run.dataset, batch_sampler=run.loader.batch_sampler, collate_fn=run.loader.collate_fn
    )
    for position, batch in enumerate(foreign):
        if position != 19:
            run.step(batch)
    with pytest.raises(RunError, match=f"20 {OUT_OF_STEP}"):
        iter(foreign)
    with pytest.raises(RunError, match=f"20 {OUT_OF_STEP}"):
        run.loader.card(1e-5)


def test_breaking_off_while_workers_hold_the_rest_is_no_loss(training, weighted):
    """What workers hold is drawn but not given; drawn by hand here, as a loader with two workers does."""
    run = training(MECHANISM, weighted(40), num_workers=2)
    drawn = iter(run.loader.batch_sampler)
    ahead = [next(drawn) for _ in range(4)]
    for _ in range(17):
        ahead.append(next(drawn, None))
        run.step(run.loader.collate_fn([run.dataset[index] for index in ahead.pop(0)]))
    assert sum(1 for _ in run.loader.batch_sampler) == 3


def test_lightning_cannot_replace_the_sampler(training, weighted):
    from lightning.pytorch.utilities.data import _update_dataloader
    from torch.utils.data import DistributedSampler

    run = training(MECHANISM, weighted(40))
    other = DistributedSampler(run.dataset, num_replicas=2, rank=0)
    with pytest.raises(TypeError, match="use_distributed_sampler=False"):  # Lightning's own words
        _update_dataloader(run.loader, other)


def test_a_loader_cannot_be_given_another_sampler(training, weighted):
    run = training(MECHANISM, weighted(40))
    with pytest.raises(ValueError, match="batch_sampler"):
        run.loader.batch_sampler = [[0, 1]]


def test_schedulers_of_noise_and_clip_norm_are_refused(training, weighted):
    for scheduler, name in ((ExponentialNoise, "noise_multiplier"), (ExponentialGradClip, "max_grad_norm")):
        run = training(MECHANISM, weighted(40))
        schedule = scheduler(run.optimizer, gamma=0.9)
        batches = iter(run.loader)
        run.step(next(batches))
        schedule.step()
        with pytest.raises(RunError, match=f"optimizer.{name} is 0.9, but 1.0 is"):
            run.step(next(batches))


ROWS = {
    "twice": lambda examples: default_collate([example for example in examples for _ in range(2)]),
    "fewer": lambda examples: default_collate(examples[1:] or examples),
}


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
@pytest.mark.parametrize("rows", ROWS)
def test_other_rows_than_examples_are_refused(training, weighted, mode, rows):
    """Each row is clipped by itself: two rows of one example move the sum by twice the clip norm, and so may one
    example that shares a row with another.
    """
    run = training(Mechanism(BallsAndBins(4), 1.0), weighted(40), mode=mode, collate_fn=ROWS[rows])
    with pytest.raises(RunError, match="not as many rows as its batch has examples"):
        run.step(next(iter(run.loader)))


def test_examples_of_another_step_are_seen_by_their_number(training, weighted):
    """A loader with workers that loses a batch in the middle: what follows is not what the mechanism has next."""
    run = training(MECHANISM, weighted(400), num_workers=1)
    drawn = iter(run.loader.batch_sampler)
    batches = [default_collate([run.dataset[index] for index in next(drawn)]) for _ in range(3)]
    run.step(batches[0])
    with pytest.raises(RunError, match="not the examples of this step"):
        run.step(batches[2])


def test_another_clip_norm_in_the_model_is_refused(training, weighted):
    run = training(MECHANISM, weighted(40), mode="ghost")
    run.model.max_grad_norm = 100.0
    with pytest.raises(RunError, match=r"max_grad_norm of the model is 100.0, but 1.0 is"):
        run.step(next(iter(run.loader)))


def test_poisson_accounting_of_these_batches_is_refused(training, weighted):
    with pytest.raises(InvalidInputError, match="'prv', but must be 'ballsbins'"):
        training(MECHANISM, weighted(40), engine=PrivacyEngine())


def test_our_accountant_of_poisson_batches_is_refused(training, weighted):
    """Opacus' own make_private draws Poisson batches; nothing of ours may answer for them."""
    engine = PrivacyEngine(accountant="ballsbins")
    model = nn.Linear(1, 1)
    data = TensorDataset(torch.ones(20, 1))
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(data, batch_size=5),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    (batch,) = next(iter(loader))
    optimizer.zero_grad()
    model(batch).sum().backward()
    with pytest.raises(RunError, match="was not told which mechanism"):
        optimizer.step()


def test_another_accountant_hooked_in_place_of_ours_is_seen(training, weighted):
    run = training(MECHANISM, weighted(40))
    run.optimizer.attach_step_hook(lambda optimizer: None)
    batches = iter(run.loader)
    run.step(next(batches))
    with pytest.raises(RunError, match=OUT_OF_STEP):
        run.step(next(batches))


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_a_broken_off_memory_manager_counts_no_example_twice(training, weighted, mode):
    mechanism, dataset = Mechanism(BallsAndBins(4), 1.0), weighted(40)
    whole = training(mechanism, dataset, mode=mode, lr=0.3)
    whole.gradients()
    run = training(mechanism, dataset, mode=mode, lr=0.3)

    def pieces():
        return BatchMemoryManager(
            data_loader=run.loader, max_physical_batch_size=2, optimizer=run.optimizer
        ).__enter__()

    def step(batch):
        """Some call zero_grad last: then nothing else clears what was summed."""
        run.loss(run.model(batch["inputs"]), batch["label"], batch["weight"]).backward()
        run.optimizer.step()
        run.optimizer.zero_grad()

    broken = iter(pieces())
    while run.loader.as_run() is None:
        step(next(broken))
    step(next(broken))  # the first piece of the second batch is summed, and there it ends
    next(broken)
    assert run.loader.as_run().total_steps == 1
    for batch in pieces():
        step(batch)
    assert torch.allclose(whole.vector(), run.vector(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_stops_with_its_step(training, weighted, mode, value):
    dataset = weighted(40)
    place = next(step for step, batch in enumerate(MECHANISM.batches(40, 5)) if 7 in batch)
    dataset.values[7, 0] = value
    run = training(MECHANISM, dataset, mode=mode, lr=0.1)
    with pytest.raises(RunError, match=rf"not finite at step {place} \(epoch 0, step {place} of it\)"):
        run.gradients()
    assert torch.isfinite(run.vector()).all()
    assert (run.loader.as_run() or MECHANISM).total_steps == place or place == 0


def test_two_calls_of_the_model_for_one_step_are_refused(training, weighted):
    """Opacus adds the second call's gradients to the first's, row by row: here to those of other examples."""
    run = training(MECHANISM, weighted(40))
    batch = next(iter(run.loader))
    tokens, values = batch["inputs"]
    logits = run.model((tokens, values)) + run.model((tokens.flip(0), values.flip(0))).flip(0)
    run.optimizer.zero_grad()  # where many loops have it
    run.loss(logits, batch["label"], batch["weight"]).backward()
    with pytest.raises(RunError, match="called 2 times for one step"):
        run.optimizer.step()


def test_evaluation_between_two_steps_is_no_second_call(training, weighted):
    run = training(Mechanism(BallsAndBins(4), 1.0), weighted(40))
    for batch in run.loader:
        with torch.no_grad():
            run.model(batch["inputs"])
        run.model.eval()
        run.model(batch["inputs"])
        run.model.train()
        run.step(batch)
    assert run.loader.as_run() == run.mechanism


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))

    def forward(self, x):
        return self.layers(x)


def call(model=None, dataset=None, mechanism=MECHANISM, **options):
    model = nn.Linear(2, 1) if model is None else model
    dataset = TensorDataset(torch.ones(40, 2)) if dataset is None else dataset
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return make_private(mechanism, model, optimizer, dataset, **{"max_grad_norm": 1.0, "key": 1} | options)


class Stream(IterableDataset):
    def __iter__(self):
        return iter([torch.ones(2)])


def test_bad_input_is_named():
    call()
    with pytest.raises(InvalidInputError, match="BatchNorm"):
        call(Normed())
    with pytest.raises(InvalidInputError, match=r"is 19, but must be an integer of at least 20.*fewer steps"):
        call(dataset=TensorDataset(torch.ones(19, 2)))
    with pytest.raises(InvalidInputError, match="Stream"):
        call(dataset=Stream())
    with pytest.raises(InvalidInputError, match="grad_sample_mode is 'none'"):
        call(grad_sample_mode="none")
    with pytest.raises(InvalidInputError, match="criterion must be given"):
        call(grad_sample_mode="ghost")
    for bad in (0.0, -1.0, float("nan"), float("inf"), "1"):
        with pytest.raises(InvalidInputError, match="max_grad_norm"):
            call(max_grad_norm=bad)
    with pytest.raises(InvalidInputError, match="num_examples"):
        call(mechanism=Mechanism(BallsAndBins(20, max_batch_size=9, num_examples=41), 1.0))
