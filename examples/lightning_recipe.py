"""Balls-and-bins batches in Lightning: the module trains itself, Lightning checkpoints and resumes.

Two rules. Make things private before the Trainer sees them, and pass the loader to `fit` as it is:
Trainer(use_distributed_sampler=False), no accumulate_grad_batches, no gradient_clip_val.

Needs `pip install '.[torch]' lightning`. Run: python examples/lightning_recipe.py
"""

from __future__ import annotations

import logging
import tempfile
import warnings

import lightning
import torch
from torch import nn
from torch.utils.data import TensorDataset

from ballsbins import BallsAndBins, Key, Mechanism, new_key
from ballsbins.report.numbers import up
from ballsbins.training.torch import make_private

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Classifier(lightning.LightningModule):
    """A network whose optimizer is private; nothing else is special."""

    def __init__(self, mechanism: Mechanism, dataset: TensorDataset, key: Key) -> None:
        super().__init__()
        net = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 2))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
        self.net, self.private_optimizer, self.loader = make_private(
            mechanism, net, optimizer, dataset, max_grad_norm=1.0, key=key
        )

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        """Give the loss; Lightning does zero_grad, backward and step."""
        inputs, targets = batch
        return nn.functional.cross_entropy(self.net(inputs), targets)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Hand over the optimizer of make_private, not a new one."""
        return self.private_optimizer


def trainer(folder: str, epochs: int) -> lightning.Trainer:
    """A plain Trainer, but for the sampler, which must stay what it is."""
    return lightning.Trainer(
        max_epochs=epochs,
        use_distributed_sampler=False,
        accelerator="cpu",
        default_root_dir=folder,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


torch.manual_seed(0)
features = torch.randn(2000, 20)
data = TensorDataset(features, (features[:, 0] > 0).long())
mechanism, key = Mechanism(BallsAndBins(steps=25), noise_multiplier=1.0, epochs=3), new_key()

with tempfile.TemporaryDirectory() as folder:
    module = Classifier(mechanism, data, key)
    first = trainer(folder, 2)
    first.fit(module, module.loader)
    first.save_checkpoint(f"{folder}/two_epochs.ckpt")  # the loader's position goes with it, the key does not
    print(f"after 2 epochs: ε ≤ {up(module.loader.accountant.get_epsilon(1e-5))}")

    resumed = Classifier(mechanism, data, key)
    trainer(folder, 3).fit(resumed, resumed.loader, ckpt_path=f"{folder}/two_epochs.ckpt")
    print(
        f"after 3 epochs: ε ≤ {up(resumed.loader.accountant.get_epsilon(1e-5))}; run: {resumed.loader.as_run()}"
    )
