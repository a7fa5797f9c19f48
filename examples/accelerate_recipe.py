"""Balls-and-bins batches with Hugging Face Accelerate, on one process or several.

One rule: do not pass the loader, the model or the optimizer to `prepare`. Accelerate would deal whole batches out to
the processes; make_private already gives every process its share of every batch. Accelerate still launches the
processes, names the device and gathers metrics.

Needs `pip install '.[torch]' accelerate`. For one process run: python examples/accelerate_recipe.py
For two: torchrun --standalone --nproc-per-node 2 examples/accelerate_recipe.py
"""

from __future__ import annotations

import warnings

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from torch import nn
from torch.utils.data import TensorDataset

from ballsbins import BallsAndBins, Mechanism, new_key
from ballsbins.report.numbers import up
from ballsbins.training.torch import make_private

warnings.filterwarnings("ignore", message="Full backward hook is firing")
accelerator = Accelerator(cpu=True)
(key,) = broadcast_object_list([new_key()])  # all processes need the same; a key file does as well

torch.manual_seed(0)
features = torch.randn(2000, 20)
data = TensorDataset(features, (features[:, 0] > 0).long())
model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 2)).to(accelerator.device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
if accelerator.num_processes > 1:
    model = DifferentiallyPrivateDistributedDataParallel(model)
mechanism = Mechanism(BallsAndBins(steps=25), noise_multiplier=1.0, epochs=2)
model, optimizer, loader = make_private(mechanism, model, optimizer, data, max_grad_norm=1.0, key=key)

for _ in range(mechanism.epochs):
    for inputs, targets in loader:
        optimizer.zero_grad()
        outputs = model(inputs.to(accelerator.device))
        nn.functional.cross_entropy(outputs, targets.to(accelerator.device)).backward()
        optimizer.step()

steps = accelerator.gather(torch.tensor([len(loader.accountant)])).tolist()
accelerator.print(f"steps on each process: {steps}")
accelerator.print(f"ε ≤ {up(loader.accountant.get_epsilon(1e-5))} at δ = 1e-05 for {loader.as_run()}")
