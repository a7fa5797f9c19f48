"""Small problems and a plain training loop, shared by the tests of PyTorch training."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from ballsbins.training.torch import make_private

# Opacus' own hooks make torch warn of inputs without gradients, in every training loop there is.
warnings.filterwarnings("ignore", message="Full backward hook is firing")
HOOK_WARNING = "ignore:Full backward hook is firing"


def pytest_collection_modifyitems(items):
    for item in items:
        if "training_torch" in str(item.fspath):
            item.add_marker(pytest.mark.filterwarnings(HOOK_WARNING))


class Weighted(Dataset):
    """Examples (tokens, values, label, weight): a weight of 0 makes an example nothing, as ⊥ in the paper."""

    def __init__(self, size, seed=0, scale=1.0):
        generator = torch.Generator().manual_seed(seed)
        self.tokens = torch.randint(0, 11, (size, 3), generator=generator)
        self.values = scale * torch.randn(size, 6, generator=generator)
        self.labels = torch.randint(0, 4, (size,), generator=generator)
        self.weights = torch.ones(size)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return {
            "inputs": (self.tokens[index], self.values[index]),
            "label": self.labels[index],
            "weight": self.weights[index],
        }


class Net(nn.Module):
    """Every kind of layer that Opacus has its own arithmetic for: embedding, convolution, norm, dense."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 4)
        self.conv = nn.Conv1d(1, 2, 3)
        self.norm = nn.LayerNorm(20)
        self.dense = nn.Linear(20, 4)

    def forward(self, inputs):
        tokens, values = inputs
        wide = torch.cat([self.embed(tokens).flatten(1), self.conv(values.unsqueeze(1)).flatten(1)], dim=1)
        return self.dense(torch.relu(self.norm(wide)))


class WeightedLoss(nn.Module):
    """Cross-entropy times the example's weight; with a `reduction`, which ghost clipping switches off."""

    def __init__(self, reduction="mean"):
        super().__init__()
        self.reduction = reduction

    def forward(self, logits, label, weight):
        each = nn.functional.cross_entropy(logits, label, reduction="none") * weight
        return {"none": each, "mean": each.mean(), "sum": each.sum()}[self.reduction]


class Training:
    """A model, an optimizer and a loader made private, and the loop that everybody writes."""

    def __init__(
        self,
        mechanism,
        dataset,
        *,
        mode="hooks",
        clip=1.0,
        lr=0.0,
        key=5,
        engine=None,
        **options,
    ):
        torch.manual_seed(0)
        self.net = Net()
        self.dataset, self.mechanism = dataset, mechanism
        optimizer = torch.optim.SGD(self.net.parameters(), lr=lr)
        loss = WeightedLoss(options.get("loss_reduction", "mean"))
        made = make_private(
            mechanism,
            self.net,
            optimizer,
            dataset,
            max_grad_norm=clip,
            key=key,
            grad_sample_mode=mode,
            criterion=loss if mode == "ghost" else None,
            engine=engine,
            **options,
        )
        self.model, self.optimizer, self.loader = made[0], made[1], made[-1]
        self.loss = made[2] if mode == "ghost" else loss

    def backward(self, batch):
        self.optimizer.zero_grad()
        self.loss(self.model(batch["inputs"]), batch["label"], batch["weight"]).backward()

    def step(self, batch):
        self.backward(batch)
        self.optimizer.step()

    def gradients(self, loader=None):
        """Train one epoch; gives the noisy gradient of every step, as one vector each."""
        found = []
        for batch in self.loader if loader is None else loader:
            self.step(batch)
            found.append(self.gradient())
        return found

    def gradient(self):
        return torch.cat([parameter.grad.reshape(-1) for parameter in self.net.parameters()]).double()

    def vector(self):
        return torch.cat([parameter.detach().reshape(-1) for parameter in self.net.parameters()]).clone()


@pytest.fixture
def training():
    return Training


@pytest.fixture
def weighted():
    return Weighted
