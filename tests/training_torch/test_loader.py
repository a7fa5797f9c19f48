"""The loader: the mechanism's batches and no others, an exact length, any structure, exact resumption."""

from __future__ import annotations

import io
import pickle
import subprocess
import sys
from collections import namedtuple

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from ballsbins import BallsAndBins, Deterministic, Mechanism, Poisson, Shuffle
from ballsbins.errors import InvalidInputError, RunError, SecretError
from ballsbins.samplers import Key, new_key
from ballsbins.training.torch import make_private

Point = namedtuple("Point", ["x", "y"])  # what default_collate knows


class Indexed(Dataset):
    """Every example is its index, in a structure of one's choice."""

    def __init__(self, size, form=lambda index: torch.tensor([float(index)])):
        self.size, self.form = size, form

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return self.form(index)


def private(mechanism, dataset, **options):
    """A loader, and a function that takes a step with as many rows as the next batch has."""
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    options = {"max_grad_norm": 1.0, "key": 3} | options
    model, optimizer, loader = make_private(mechanism, model, optimizer, dataset, **options)

    def step():
        optimizer.zero_grad()
        model(torch.ones(max(loader._run.examples_of_batch(), 1), 1)).mean().backward()
        optimizer.step()

    return loader, step


def indices_of(batch):
    return [int(value) for value in batch.flatten()]


def expected(mechanism, size, epoch=0, stand_in=0):
    """Batches as lists; an empty one shows as its stand-in, example 0."""
    return [batch.tolist() or [stand_in] for batch in mechanism.batches(size, 3, epoch)]


@pytest.mark.parametrize("sampler", [BallsAndBins(20), Poisson(20), Shuffle(20), Deterministic(20)])
def test_it_gives_the_batches_of_the_mechanism_epoch_by_epoch(sampler):
    mechanism = Mechanism(sampler, 1.0, epochs=2)
    loader, step = private(mechanism, Indexed(30))
    assert isinstance(loader, DataLoader)
    for epoch in range(2):
        assert len(loader) == 20
        seen = []
        for batch in loader:
            seen.append(indices_of(batch))
            step()
        assert seen == expected(mechanism, 30, epoch)
    with pytest.raises(RunError, match=r"All 40 steps .* more epochs"):
        iter(loader)
    assert len(loader) == 20


def test_fixed_bins_repeat():
    mechanism = Mechanism(BallsAndBins(5, redraw=False), 1.0, epochs=2)
    loader, step = private(mechanism, Indexed(30))
    epochs = []
    for _ in range(2):
        epochs.append([])
        for batch in loader:
            epochs[-1].append(indices_of(batch))
            step()
    assert epochs[0] == epochs[1]


def test_an_unfinished_last_epoch_stops():
    mechanism = Mechanism(BallsAndBins(20), 1.0, epochs=2, last_epoch_steps=7)
    loader, step = private(mechanism, Indexed(30))
    lengths = []
    for _ in range(2):
        stated = len(loader)
        lengths.append((stated, len([step() for _ in loader])))
    assert lengths == [(20, 20), (7, 7)]
    assert loader.as_run() == mechanism
    with pytest.raises(RunError, match="All 27 steps"):
        iter(loader)


def test_peeking_and_breaking_off_lose_no_batch():
    mechanism = Mechanism(BallsAndBins(20), 1.0)
    loader, step = private(mechanism, Indexed(30))
    next(iter(loader))
    list(loader)  # as somebody does to count examples
    seen = []
    for batch in loader:
        seen.append(indices_of(batch))
        step()
        if len(seen) == 8:
            break
    for batch in loader:
        seen.append(indices_of(batch))
        step()
    assert seen == expected(mechanism, 30)
    assert loader.as_run() == mechanism


def test_truncated_batches_are_truncated():
    mechanism = Mechanism(BallsAndBins(5, max_batch_size=6, num_examples=40), 1.0)
    loader, _ = private(mechanism, Indexed(40))
    assert max(len(batch) for batch in loader) == 6
    assert [indices_of(batch) for batch in loader] == expected(mechanism, 40)


def collate_as_strings(examples):
    return {"text": [str(int(example[0])) for example in examples], "size": len(examples)}


@pytest.mark.parametrize(
    ("form", "collate", "check"),
    [
        (lambda i: torch.full((2, 3), float(i)), None, lambda b: b.shape == (1, 2, 3)),
        (lambda i: (torch.zeros(3), i), None, lambda b: b[0].shape == (1, 3) and b[1].tolist() == [0]),
        (lambda i: {"x": torch.zeros(2), "name": str(i)}, None, lambda b: b["name"] == ["0"]),
        (lambda i: {"in": (torch.zeros(1), {"deep": i})}, None, lambda b: b["in"][1]["deep"].tolist() == [0]),
        (lambda i: Point(torch.zeros(2), i), None, lambda b: b.x.shape == (1, 2)),
        (lambda i: [float(i)], collate_as_strings, lambda b: b == {"text": ["0"], "size": 1}),
    ],
    ids=["tensor", "tuple", "dict", "nested", "named tuple", "own collate"],
)
def test_empty_batches_have_the_structure_of_others(form, collate, check):
    mechanism = Mechanism(BallsAndBins(30), 1.0)
    empty = [step for step, batch in enumerate(mechanism.batches(30, 3)) if len(batch) == 0]
    assert len(empty) > 5
    loader, step = private(mechanism, Indexed(30, form), collate_fn=collate)
    seen = 0
    for position, batch in enumerate(loader):
        if position in empty:
            assert check(batch)
            seen += 1
        step()
    assert seen == len(empty)


def test_the_first_batch_may_be_empty():
    mechanism = Mechanism(BallsAndBins(40), 1.0)
    key = next(seed for seed in range(100) if len(mechanism.batches(40, seed)[0]) == 0)
    loader, _ = private(mechanism, Indexed(40), key=key)
    assert next(iter(loader)).shape == (1, 1)


@pytest.mark.slow  # starts four processes
@pytest.mark.parametrize("persistent", [False, True])
def test_workers_change_nothing(persistent):
    mechanism = Mechanism(BallsAndBins(20), 1.0, epochs=2)
    loader, step = private(
        mechanism, TensorDataset(torch.arange(30.0)), num_workers=2, persistent_workers=persistent
    )
    for epoch in range(2):
        seen = []
        for (batch,) in loader:
            seen.append(indices_of(batch))
            step()  # the sampler is ahead of the step, and no step is refused
        assert seen == expected(mechanism, 30, epoch)


def test_a_subset_is_a_data_set():
    mechanism = Mechanism(BallsAndBins(4), 1.0)
    loader, _ = private(mechanism, Subset(Indexed(100), range(50, 90)))
    assert sorted(i for batch in loader for i in indices_of(batch)) == list(range(50, 90))


def plain_copy(state):
    """What torch.save and the safe torch.load make of a state."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("stop", [0, 1, 13, 20, 26, 39])
@pytest.mark.parametrize("key", ["seed", "secret"])
def test_resuming_gives_the_rest(training, weighted, stop, key):
    """A seed always repeats; under a secret key a run repeats if its data has a fingerprint."""
    mechanism, dataset = Mechanism(BallsAndBins(20), 1.0, epochs=2), weighted(30)
    options = {"key": 7} if key == "seed" else {"key": new_key(), "data_fingerprint": "thirty examples"}

    def train(run, until):
        while run.loader._run.steps_taken < until:
            for batch in run.loader:
                run.step(batch)
                if run.loader._run.steps_taken == until:
                    break

    first = training(mechanism, dataset, lr=0.3, **options)
    train(first, stop)
    state, weights = plain_copy(first.loader.state_dict()), plain_copy(first.net.state_dict())
    train(first, 40)  # never stopped
    second = training(mechanism, dataset, lr=0.3, **options)
    second.net.load_state_dict(weights)
    second.loader.load_state_dict(state)
    assert len(second.loader) == 20
    train(second, 40)
    assert torch.equal(first.vector(), second.vector())
    assert second.loader.as_run() == mechanism


def test_a_state_between_batch_and_step_repeats_the_batch():
    mechanism = Mechanism(BallsAndBins(20), 1.0)
    loader, step = private(mechanism, Indexed(30))
    batches = iter(loader)
    for _ in range(4):
        next(batches)
        step()
    pending = next(batches)
    other, _ = private(mechanism, Indexed(30))
    other.load_state_dict(loader.state_dict())
    assert torch.equal(next(iter(other)), pending)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata calls it
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_it_works_inside_a_stateful_data_loader(workers):
    mechanism = Mechanism(BallsAndBins(20), 1.0, epochs=2)

    def stateful():
        loader, step = private(mechanism, TensorDataset(torch.arange(30.0)), num_workers=workers)
        return (
            StatefulDataLoader(
                loader.dataset,
                batch_sampler=loader.batch_sampler,
                collate_fn=loader.collate_fn,
                num_workers=workers,
            ),
            step,
            loader,
        )

    outer, step, _ = stateful()
    seen = []
    for position, (batch,) in enumerate(outer):
        seen.append(indices_of(batch))
        step()
        if position == 6:
            break
    saved = plain_copy(outer.state_dict())
    del outer
    other, step, loader = stateful()
    other.load_state_dict(saved)
    for _ in range(2):
        for (batch,) in other:
            seen.append(indices_of(batch))
            step()
    assert seen == expected(mechanism, 30) + expected(mechanism, 30, 1)
    assert loader.as_run() == mechanism


def test_states_of_something_else_are_refused():
    mechanism = Mechanism(BallsAndBins(20), 1.0)
    loader, step = private(mechanism, Indexed(30))
    for _ in loader:
        step()
    state = loader.state_dict()

    def load(mechanism=mechanism, size=30, **options):
        private(mechanism, Indexed(size), **options)[0].load_state_dict(state)

    load()
    load(Mechanism(BallsAndBins(20), 1.0, epochs=3))  # the same run, to be continued
    for other in (
        Mechanism(BallsAndBins(20), 1.1),
        Mechanism(BallsAndBins(10), 1.0),
        Mechanism(BallsAndBins(20, redraw=False), 1.0),
        Mechanism(Poisson(20), 1.0),
    ):
        with pytest.raises(InvalidInputError, match="the mechanism of this checkpoint"):
            load(other)
    with pytest.raises(InvalidInputError, match=r"steps_taken of this checkpoint is 20.* to 5"):
        load(Mechanism(BallsAndBins(20), 1.0, last_epoch_steps=5))
    with pytest.raises(InvalidInputError, match="number of examples of this checkpoint is 30"):
        load(size=31)
    with pytest.raises(SecretError, match="Resume with the key of that run"):
        load(key=4)
    with pytest.raises(InvalidInputError, match=r"schema of this checkpoint is 1, but must be 2.*not safe"):
        private(mechanism, Indexed(30))[0].load_state_dict(state | {"schema": 1})
    with pytest.raises(InvalidInputError, match=r"schema of this checkpoint is 3.*later version"):
        private(mechanism, Indexed(30))[0].load_state_dict(state | {"schema": 3})
    with pytest.raises(InvalidInputError, match="key_commitment"):
        private(mechanism, Indexed(30))[0].load_state_dict({"schema": 2, "planned": mechanism.to_dict()})


def test_a_checkpoint_continues_its_own_run():
    mechanism, master = Mechanism(BallsAndBins(20), 1.0), new_key()
    loader, step = private(mechanism, Indexed(30), key=master)
    batches = iter(loader)
    next(batches)
    step()
    state = plain_copy(loader.state_dict())
    other, _ = private(mechanism, Indexed(30), key=master)
    assert other.state_dict()["run"] != state["run"]
    other.load_state_dict(state)
    assert other.state_dict() == state
    assert torch.equal(next(iter(other)), next(batches))
    with pytest.raises(SecretError, match="belongs to the run"):
        private(mechanism, Indexed(30), key=master.for_run())[0].load_state_dict(state)
    private(mechanism, Indexed(30), key=master.for_run(state["run"]))[0].load_state_dict(state)
    busy, step = private(mechanism, Indexed(30), key=master)
    next(iter(busy))
    step()
    with pytest.raises(RunError, match="the checkpoint is of run"):
        busy.load_state_dict(state)


def test_no_secret_leaves():
    master, mechanism = Key(bytes(range(32))), Mechanism(BallsAndBins(5), 1.0)
    # of a run whose first batch has a size that is shown nowhere else
    runs = (master.for_run(f"{number:032x}") for number in range(99))
    secret = next(key for key in runs if len(mechanism.batches(30, key)[0]) in (6, 7, 8))
    loader, _ = private(mechanism, TensorDataset(torch.ones(30, 1)), key=secret)
    next(iter(loader))
    for text in (
        repr(loader.state_dict()),
        repr(loader.batch_sampler.state_dict()),
        repr(loader.batch_sampler),
    ):
        assert "0001020304" not in text
        assert "\\x01\\x02" not in text
    sizes = [len(batch) for batch in mechanism.batches(30, loader._run.key)]
    assert str(sizes[0]) not in repr(loader.batch_sampler)
    for thing in (loader, loader.batch_sampler):
        with pytest.raises(SecretError, match="cannot be pickled"):
            pickle.dumps(thing)


@pytest.mark.parametrize(
    "option", ["batch_size", "shuffle", "sampler", "batch_sampler", "drop_last", "in_order"]
)
def test_options_that_choose_batches_are_refused(option):
    with pytest.raises(InvalidInputError, match=f"^{option} is 1, but must be left out"):
        private(Mechanism(BallsAndBins(5), 1.0), Indexed(30), **{option: 1})


def test_an_unknown_option_is_refused():
    with pytest.raises(TypeError, match="num_wrokers"):
        private(Mechanism(BallsAndBins(5), 1.0), Indexed(30), num_wrokers=1)


def test_without_opacus_the_pip_command_is_named():
    code = "import sys; sys.modules['opacus'] = None; import ballsbins.training.torch"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install 'ballsbins[torch]'" in done.stderr
