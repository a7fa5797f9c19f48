"""The examples run as a user runs them, and the recipes hold where it is hard: resuming in the middle of an epoch."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from ballsbins import BallsAndBins, Mechanism
from ballsbins.errors import RunError
from ballsbins.training.torch import make_private

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def run_example(capsys):
    """Run an example as a script, in this process: torch is imported once."""

    def run(name):
        with torch.random.fork_rng(devices=[]):
            runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return run


@pytest.mark.slow
def test_ghost_clipping_in_pieces_and_resumed(run_example):
    text = run_example("opacus_ghost_resume.py")
    assert "resumed after 20 steps" in text
    assert "bit for bit the same" in text


@pytest.mark.slow
def test_lightning(run_example):
    text = run_example("lightning_recipe.py")
    two, three = (float(x) for x in re.findall(r"ε ≤ ([\d.]+)", text))
    assert two < three  # the resumed run knows of the two epochs before it
    assert "epochs=3)" in text


@pytest.mark.slow
def test_accelerate_on_two_processes():
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    done = subprocess.run(
        [sys.executable, *launcher, str(EXAMPLES / "accelerate_recipe.py")],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    text = done.stdout
    assert "steps on each process: [50, 50]" in text


def lightning_run(folder, *, save_every=None, resume=None, accumulate=1, epochs=2):
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            net = nn.Linear(3, 2)
            data = TensorDataset(torch.randn(60, 3), torch.randint(0, 2, (60,)))
            self.net, self.private_optimizer, self.loader = make_private(
                Mechanism(BallsAndBins(20), 1.0, epochs=2),
                net,
                torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.5),
                data,
                max_grad_norm=1.0,
                key=4,
            )

        def training_step(self, batch, _):
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            return self.private_optimizer

    module = Module()
    trainer = lightning.Trainer(
        max_epochs=epochs,
        accumulate_grad_batches=accumulate,
        use_distributed_sampler=False,
        accelerator="cpu",
        default_root_dir=folder,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=save_every is not None,
        callbacks=[]
        if save_every is None
        else [
            lightning.pytorch.callbacks.ModelCheckpoint(
                folder, filename="{step}", every_n_train_steps=save_every, save_top_k=-1
            )
        ],
    )
    trainer.fit(module, module.loader, ckpt_path=resume)
    return module


@pytest.mark.filterwarnings("ignore::Warning")  # Lightning has many opinions
@pytest.mark.parametrize("stop", [7, 20, 27])
def test_lightning_resumes_at_the_step_where_it_stopped(tmp_path, stop):
    whole = lightning_run(tmp_path, save_every=stop)
    assert whole.loader.as_run() == Mechanism(BallsAndBins(20), 1.0, epochs=2)
    resumed = lightning_run(tmp_path, resume=tmp_path / f"step={stop}.ckpt")
    assert resumed.loader.as_run() == whole.loader.as_run()
    for one, other in zip(whole.net.parameters(), resumed.net.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.filterwarnings("ignore::Warning")
def test_lightning_that_accumulates_batches_is_refused(tmp_path):
    with pytest.raises((RunError, ValueError), match=r"handed out|accumulat"):
        lightning_run(tmp_path, accumulate=2)


@pytest.mark.filterwarnings("ignore::Warning")
def test_lightning_for_an_epoch_too_many_is_refused(tmp_path):
    with pytest.raises(RunError, match="All 40 steps"):
        lightning_run(tmp_path, epochs=3)
