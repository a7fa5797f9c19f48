"""Two processes train the model of one: each has its share of every batch, and both add the same noise once."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ballsbins import BallsAndBins, Mechanism

HERE = Path(__file__).parent
MECHANISM = Mechanism(BallsAndBins(10), 1.0)  # of 18 examples: many shares are empty
MODES = ["hooks", "ghost"]

WORKER = """
import importlib.util, sys, warnings
warnings.simplefilter("ignore")
import torch
torch.set_num_threads(1)
spec = importlib.util.spec_from_file_location("tiny", {conftest!r})
tiny = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tiny)
from ballsbins import BallsAndBins, Mechanism

seen = {{}}
for mode in {modes}:
    trainer = tiny.make_trainer(
        sys.argv[1], "bert", scale=1.0, mechanism=Mechanism(BallsAndBins(10), 1.0), grad_sample_mode=mode,
        learning_rate=0.3, per_device_train_batch_size=1, ddp_backend="gloo", save_strategy="steps", save_steps=4,
        max_steps=8 if mode == "hooks" else 10,
    )
    trainer.train()
    rows = trainer._private.loader._run._batches(0)
    seen[mode] = {{
        "vector": torch.cat([value.detach().reshape(-1) for value in trainer.model.parameters()]),
        "steps": trainer.state.global_step,
        "run": trainer.as_run().total_steps,
        "uncovered": list(trainer.card(1e-2).floating_point.not_covered),
        "shares": [share.tolist() for share in rows],
    }}
torch.save(seen, sys.argv[1] + "/rank" + str(trainer.args.process_index))
torch.distributed.destroy_process_group()
"""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What each of two processes saw."""
    folder = tmp_path_factory.mktemp("ranks")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    code = WORKER.format(conftest=str(HERE / "conftest.py"), modes=MODES)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ
            | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
            | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)},
        )
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=300)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], "\n".join(outputs)
    return folder, [torch.load(folder / f"rank{rank}", weights_only=True) for rank in range(2)]


@pytest.mark.slow  # starts two processes, each of which imports transformers
@pytest.mark.parametrize("mode", MODES)
def test_two_ranks_train_the_model_of_one(tiny, tmp_path, ranks, mode):
    one, two = (rank[mode] for rank in ranks[1])
    steps = 8 if mode == "hooks" else 10
    assert (one["steps"], one["run"]) == (two["steps"], two["run"]) == (steps, steps)
    assert torch.equal(one["vector"], two["vector"])
    empty = 0
    for batch, first, second in zip(MECHANISM.batches(18, 5), one["shares"], two["shares"], strict=True):
        assert sorted(first + second) == sorted(batch.tolist())
        empty += not first or not second
    assert empty > 2
    assert one["uncovered"] == two["uncovered"]
    alone = tiny.make_trainer(
        tmp_path, "bert", scale=1.0, mechanism=MECHANISM, grad_sample_mode=mode, learning_rate=0.3, max_steps=steps,
    )  # fmt: skip
    before = torch.cat([value.detach().reshape(-1) for value in alone.model.parameters()])
    alone.train()
    found = torch.cat([value.detach().reshape(-1) for value in alone.model.parameters()])
    assert torch.allclose(found, one["vector"], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(found, before, rtol=1e-4, atol=1e-2)


@pytest.mark.slow
def test_one_process_goes_on_where_two_stopped(tiny, tmp_path, ranks):
    folder, seen = ranks
    resumed = tiny.make_trainer(
        tmp_path, "bert", scale=1.0, mechanism=MECHANISM, learning_rate=0.3, max_steps=10, grad_sample_mode="ghost",
    )  # fmt: skip
    resumed.train(resume_from_checkpoint=str(folder / "checkpoint-8"))
    found = torch.cat([value.detach().reshape(-1) for value in resumed.model.parameters()])
    assert torch.allclose(found, seen[0]["ghost"]["vector"], rtol=1e-4, atol=1e-5)
