"""Ghost clipping, physical batches that fit in memory, and a run that is stopped and resumed bit for bit.

A resumed run has fresh noise unless `data_fingerprint` vouches that the data is the same. The ledger knows of every
step that was taken, so that a step of a killed process is either repeated bit for bit or accounted for.

Needs `pip install '.[torch]'`. Runs in a few seconds: python examples/opacus_ghost_resume.py
"""

from __future__ import annotations

import hashlib
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from opacus import PrivacyEngine
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.utils.data import TensorDataset

from ballsbins import BallsAndBins, Key, Mechanism, new_key
from ballsbins.report.numbers import up
from ballsbins.training.torch import BallsBinsLoader, make_private

warnings.filterwarnings("ignore", message="Full backward hook is firing")
warnings.filterwarnings("ignore", message="Secure RNG turned off")  # the noise comes from the key
folder = Path(tempfile.mkdtemp())
new_key().save(
    folder / "run.key"
)  # mode 0600; in earnest: ballsbins key run.key; one key file serves many runs
mechanism = Mechanism(BallsAndBins(steps=20), noise_multiplier=1.0, epochs=3)
generator = torch.Generator().manual_seed(0)
data = TensorDataset(
    torch.randn(2000, 20, generator=generator), torch.randint(0, 2, (2000,), generator=generator)
)
fingerprint = hashlib.sha256(b"".join(part.numpy().tobytes() for part in data.tensors)).hexdigest()


def begin() -> tuple[Any, ...]:
    """Everything that a process sets up; the engine saves and loads Opacus checkpoints."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))
    engine = PrivacyEngine(accountant="ballsbins")
    made = make_private(
        mechanism,
        net,
        torch.optim.Adam(net.parameters(), lr=1e-3),
        data,
        max_grad_norm=1.0,
        key=Key.from_file(folder / "run.key"),
        grad_sample_mode="ghost",
        criterion=nn.CrossEntropyLoss(),
        engine=engine,
        data_fingerprint=fingerprint,
        ledger=folder / "run.ledger",
    )
    return engine, *made


def train_one_epoch(model: nn.Module, optimizer: Any, criterion: Any, loader: BallsBinsLoader) -> None:
    """One iteration of the loader is one epoch; no more than 32 examples are in memory at a time."""
    with BatchMemoryManager(data_loader=loader, max_physical_batch_size=32, optimizer=optimizer) as pieces:
        for inputs, targets in pieces:
            optimizer.zero_grad()
            criterion(model(inputs), targets).backward()
            optimizer.step()


engine, model, optimizer, criterion, loader = begin()
train_one_epoch(model, optimizer, criterion, loader)
engine.save_checkpoint(path=folder / "checkpoint.pt", module=model, optimizer=optimizer)
for _ in range(2):  # the process is killed after these, and their checkpoint is lost
    train_one_epoch(model, optimizer, criterion, loader)

other_engine, other, optimizer, criterion, loader = begin()  # another process, later
other_engine.load_checkpoint(path=folder / "checkpoint.pt", module=other, optimizer=optimizer)
print(f"resumed after {len(other_engine.accountant)} steps, ε ≤ {up(other_engine.get_epsilon(1e-5))}")
for _ in range(2):
    train_one_epoch(other, optimizer, criterion, loader)

same = all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
print(f"the resumed model is {'bit for bit the same' if same else 'NOT the same'}")
print(f"ε ≤ {up(other_engine.get_epsilon(1e-5))} at δ = 1e-05 for {loader.as_run()}")
