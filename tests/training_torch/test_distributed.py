"""Two real processes: as many steps on each, disjoint shares whose union is the batch, and one process's model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ballsbins import BallsAndBins, Mechanism
from ballsbins.errors import InvalidInputError
from ballsbins.training.torch import make_private

HERE = Path(__file__).parent
STEPS, EPOCHS, EXAMPLES = 12, 2, 30  # many shares are empty

WORKER = """
import importlib.util, sys, warnings
warnings.simplefilter("ignore")
import torch
import torch.distributed as dist
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel as DPDDP
spec = importlib.util.spec_from_file_location("problems", {conftest!r})
problems = importlib.util.module_from_spec(spec)
spec.loader.exec_module(problems)
from ballsbins import BallsAndBins, Key, Mechanism, new_key
from ballsbins.errors import InvalidInputError, RunError
from ballsbins.training.torch import make_private

rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method="file://" + folder + "/store", rank=rank, world_size=2)


def train(mode):
    torch.manual_seed(rank)  # DPDDP gives all ranks the model of rank 0, which the test knows
    net, dataset, loss = problems.Net(), problems.Weighted({examples}), problems.WeightedLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.3)
    made = make_private(
        Mechanism(BallsAndBins({steps}), 1.0, epochs={epochs}), DPDDP(net), optimizer, dataset,
        max_grad_norm=1.0, key=5, grad_sample_mode=mode, criterion=loss if mode == "ghost" else None,
    )
    model, optimizer, loader = made[0], made[1], made[-1]
    loss = made[2] if mode == "ghost" else loss
    shares, lengths = [], []
    for epoch in range({epochs}):
        lengths.append(len(loader))
        for batch in loader:
            optimizer.zero_grad()
            loss(model(batch["inputs"]), batch["label"], batch["weight"]).backward()
            optimizer.step()
        shares.append([share.tolist() for share in loader._run._batches(epoch)])
    vector = torch.cat([parameter.detach().reshape(-1) for parameter in net.parameters()])
    return {{"lengths": lengths, "history": loader.accountant.history, "shares": shares, "vector": vector}}

refused = ""
try:
    net = problems.Net()
    make_private(
        Mechanism(BallsAndBins({steps}), 1.0), DPDDP(net), torch.optim.SGD(net.parameters(), lr=0.3),
        problems.Weighted({examples}), max_grad_norm=1.0, key=new_key(),
    )
except InvalidInputError as error:
    refused = str(error)


def behind():  # only rank 0 loads a checkpoint
    net, dataset, loss = problems.Net(), problems.Weighted(60), problems.WeightedLoss()
    model, optimizer, loader = make_private(
        Mechanism(BallsAndBins(6), 1.0), DPDDP(net), torch.optim.SGD(net.parameters(), lr=0.3), dataset,
        max_grad_norm=1.0, key=5,
    )
    if rank == 0:
        loader.load_state_dict(loader.state_dict() | {{"steps_taken": 3}})
    batch = next(iter(loader))
    loss(model(batch["inputs"]), batch["label"], batch["weight"]).backward()
    try:
        optimizer.step()
    except RunError as error:
        return str(error)


class Table(torch.nn.Module):  # its arithmetic does not depend on the shape of a batch
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(11, 40)

    def forward(self, inputs):
        return self.table(inputs[0][:, 0])


def train_table(key, fingerprint=None, folder=None, state=None):
    torch.manual_seed(0)
    net = Table()
    model, optimizer, loader = make_private(
        Mechanism(BallsAndBins(6), 1.0, epochs=2), DPDDP(net), torch.optim.SGD(net.parameters(), lr=0.3),
        problems.Weighted(60), max_grad_norm=1.0, key=key, loss_reduction="sum", data_fingerprint=fingerprint,
        ledger=None if folder is None else folder + "/ledger",
        lost_steps=None if state is None else "accounted",
    )
    if state is not None:
        optimizer.load_state_dict(state)
    states = []
    for batch in loader:
        optimizer.zero_grad()
        torch.tanh(model(batch["inputs"])).sum().backward()
        optimizer.step()
        states.append(optimizer.state_dict())
    run = loader.as_run()
    return {{"vector": net.table.weight.detach().clone(), "state": states[2], "run": loader.state_dict()["run"],
             "noise": loader.state_dict()["last_noise"], "accounted": run.noise_multiplier,
             "steps": run.total_steps}}


master = Key(bytes(range(32)))  # every rank draws a run of its own and takes that of rank 0
secret = train_table(master, folder=folder)
lost = train_table(master, folder=folder, state=secret["state"])
torch.set_num_threads(1 + rank)  # ranks on machines that differ, which noise is bound to: rank 0 decides for all
bound = train_table(master, "60 examples")
torch.set_num_threads(1)
seen = {{"table": train_table(5), "secret": secret, "lost": lost, "bound": bound}}
refused_run = ""
try:
    train_table(master.for_run(str(rank) * 32))
except InvalidInputError as error:
    refused_run = str(error)
seen |= {{"behind": behind(), "refused_run": refused_run}} | {{mode: train(mode) for mode in ("hooks", "ghost")}}
torch.save(seen | {{"refused": refused}}, folder + "/rank" + str(rank))
dist.barrier()
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What the two processes saw, for each mode."""
    folder = tmp_path_factory.mktemp("ranks")
    code = WORKER.format(conftest=str(HERE / "conftest.py"), examples=EXAMPLES, steps=STEPS, epochs=EPOCHS)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(rank), str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=240)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], "\n".join(outputs)
    return [torch.load(folder / f"rank{rank}", weights_only=True) for rank in range(2)]


@pytest.mark.slow  # starts two processes, each of which imports torch
@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_two_ranks_in_lockstep_train_the_model_of_one(training, weighted, ranks, mode):
    one, two = (rank[mode] for rank in ranks)
    mechanism = Mechanism(BallsAndBins(STEPS), 1.0, epochs=EPOCHS)
    assert one["lengths"] == two["lengths"] == [STEPS] * EPOCHS
    assert one["history"] == two["history"] == [(1.0, 1 / STEPS, STEPS * EPOCHS)]
    empty = 0
    for epoch in range(EPOCHS):
        batches = mechanism.batches(EXAMPLES, 5, epoch)
        for batch, first, second in zip(batches, one["shares"][epoch], two["shares"][epoch], strict=True):
            assert set(first).isdisjoint(second)
            assert sorted(first + second) == sorted(batch.tolist())
            empty += not first or not second
    assert empty > 0

    assert torch.equal(one["vector"], two["vector"])
    alone = training(mechanism, weighted(EXAMPLES), mode=mode, lr=0.3)
    for _ in range(EPOCHS):
        alone.gradients()
    assert torch.allclose(alone.vector(), one["vector"], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_ranks_with_keys_of_their_own_are_refused(ranks):
    """An example would be in two steps of the epoch, or in none, and the claim would be wrong."""
    for number, rank in enumerate(ranks):
        assert f"the key's commitment on rank {number}" in rank["refused"]
        assert "the same on all ranks" in rank["refused"]


@pytest.mark.slow
def test_ranks_at_different_steps_are_refused(ranks):
    """A checkpoint that only one of them has loaded would let examples be seen twice."""
    for number, rank in enumerate(ranks):
        assert f"Rank {number} is at step {3 * (1 - number)} of run seed" in rank["behind"]
        assert "others are at 0 to 3" in rank["behind"]


class Table(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(11, 40)

    def forward(self, inputs):
        return self.table(inputs[0][:, 0])


@pytest.mark.slow
def test_two_ranks_equal_one_process_bit_for_bit(weighted, ranks):
    """Integers are summed over the ranks, and the same noise is added once. (A mean divides by what a rank has.)"""
    torch.manual_seed(0)
    net = Table()
    model, optimizer, loader = make_private(
        Mechanism(BallsAndBins(6), 1.0, epochs=2), net, torch.optim.SGD(net.parameters(), lr=0.3), weighted(60),
        max_grad_norm=1.0, key=5, loss_reduction="sum",
    )  # fmt: skip
    for batch in loader:
        optimizer.zero_grad()
        torch.tanh(model(batch["inputs"])).sum().backward()
        optimizer.step()
    for rank in ranks:
        assert torch.equal(rank["table"]["vector"], net.table.weight.detach())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["secret", "bound", "lost"])
def test_ranks_share_one_run_and_its_noise(ranks, kind):
    one, two = (rank[kind] for rank in ranks)
    assert (one["run"], one["noise"]) == (two["run"], two["noise"])
    assert torch.equal(one["vector"], two["vector"])
    assert (one["accounted"], one["steps"]) == (two["accounted"], two["steps"])
    # three of the six steps were taken twice, which rank 0 reads in the ledger
    assert one["accounted"] == (pytest.approx(0.5**0.5, rel=1e-12) if kind == "lost" else 1.0)


@pytest.mark.slow
def test_ranks_with_keys_of_two_runs_are_refused(ranks):
    for number, rank in enumerate(ranks):
        assert f"the run of the key on rank {number}" in rank["refused_run"]


def test_a_model_that_is_not_wrapped_is_refused_where_several_train(
    training, weighted, tmp_path, monkeypatch
):
    """Each of the processes would release its own noisy sum of the same batches."""
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        training(Mechanism(BallsAndBins(5), 1.0), weighted(20))  # one process is no several
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
        with pytest.raises(InvalidInputError, match="wrapped for the 2 processes"):
            training(Mechanism(BallsAndBins(5), 1.0), weighted(20))
    finally:
        monkeypatch.undo()
        torch.distributed.destroy_process_group()
