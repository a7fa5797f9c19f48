"""Layers that let examples meet, or that change without noise: what Opacus lets pass is refused here."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from ballsbins import BallsAndBins, Mechanism
from ballsbins.errors import InvalidInputError, RunError
from ballsbins.training.torch import make_private

MECHANISM = Mechanism(BallsAndBins(3), 1.0)


def train(model, *, mode="hooks", autocast=False, clip=1.0, mechanism=MECHANISM, key=1, rows=None):
    """Train an epoch; gives the noisy sums of gradients, one vector for each step."""
    rows = torch.randn(30, 4, generator=torch.Generator().manual_seed(0)) if rows is None else rows
    loss = nn.MSELoss() if mode == "ghost" else None
    made = make_private(
        mechanism,
        model,
        torch.optim.SGD(model.parameters(), lr=0.0),
        TensorDataset(rows, 9.0 * torch.ones(len(rows))),
        max_grad_norm=clip,
        key=key,
        grad_sample_mode=mode,
        criterion=loss,
    )
    private, optimizer, loader = made[0], made[1], made[-1]
    criterion = made[2] if mode == "ghost" else nn.MSELoss()
    found = []
    for inputs, targets in loader:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            loss = criterion(private(inputs)[:, 0].float(), targets)
        loss.backward()
        optimizer.step()
        gradients = [
            parameter.grad.reshape(-1) for parameter in model.parameters() if parameter.requires_grad
        ]
        found.append(torch.cat(gradients).double() * len(rows) / mechanism.sampler.steps)
    return found


NORMS = {
    "nothing to train": lambda: nn.BatchNorm1d(4, affine=False),
    "no statistics": lambda: nn.BatchNorm1d(4, affine=False, track_running_stats=False),
    "frozen": lambda: nn.BatchNorm1d(4).requires_grad_(False),
    "instances": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 4)), nn.InstanceNorm1d(1, track_running_stats=True), nn.Flatten()
    ),
}


@pytest.mark.parametrize("name", NORMS)
def test_statistics_of_a_batch_are_refused_without_parameters_too(name):
    model = nn.Sequential(nn.Linear(4, 4), NORMS[name](), nn.Linear(4, 1))
    with pytest.raises(RunError, match="Norm1d computes means over the batch"):
        train(model)


def test_a_norm_that_is_frozen_for_good_trains():
    class Backbone(nn.Sequential):
        def train(self, mode=True):
            return super().train(False)

    frozen = Backbone(nn.Linear(4, 4), nn.BatchNorm1d(4)).requires_grad_(False).eval()
    assert len(train(nn.Sequential(frozen, nn.Linear(4, 1)))) == 3


@pytest.mark.parametrize("option", [{"max_norm": 1.0}, {"scale_grad_by_freq": True}])
@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_tables_that_lookups_change_are_refused(option, kind):
    with pytest.raises(InvalidInputError, match=f"{next(iter(option))} of the layer '0'"):
        train(nn.Sequential(kind(9, 4, **option), nn.Linear(4, 1)))


def test_a_model_can_be_copied_and_pickled_with_what_watches_it():
    model = nn.Linear(4, 1)
    train(model)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other.weight, model.weight)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_parameters_of_few_bits_are_refused(dtype):
    class Cast(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 1).to(dtype)

        def forward(self, inputs):
            return self.layer(inputs.to(dtype))

    for mode in ("hooks", "ghost"):
        with pytest.raises(RunError, match="round sums of gradients"):
            train(Cast(), mode=mode)


def test_parameters_that_are_cast_later_are_refused():
    """make_private sees float32; somebody casts the model after it."""
    model = nn.Linear(4, 1)
    private, optimizer, loader = make_private(
        MECHANISM, model, torch.optim.SGD(model.parameters(), lr=0.1), TensorDataset(torch.ones(30, 4)),
        max_grad_norm=1.0, key=1,
    )  # fmt: skip
    model.to(torch.bfloat16)
    (inputs,) = next(iter(loader))
    private(inputs.to(torch.bfloat16)).sum().backward()
    with pytest.raises(RunError, match="round sums of gradients"):
        optimizer.step()


def test_under_autocast_hooks_clip_within_the_clip_norm():
    """One example: its sum is the clipped gradient. In 8 bits its norm would be wrong by up to a half per cent."""
    silent = Mechanism(BallsAndBins(1), 1e-7)
    worst = 0.0
    for seed in range(200):
        rows = torch.randn(1, 4, generator=torch.Generator().manual_seed(seed))
        torch.manual_seed(seed)
        (only,) = train(nn.Linear(4, 1), autocast=True, mechanism=silent, rows=rows)
        worst = max(worst, float(only.norm()))
    assert 0.999 < worst <= 1.0 + 1e-6


def test_under_autocast_ghost_clipping_is_refused():
    with pytest.raises(RunError, match=r"norms to clip by would be of the type torch\.bfloat16"):
        train(nn.Linear(4, 1), mode="ghost", autocast=True)
