"""With hooks too, a loss that divides by something of the batch is refused: others would change a gradient."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from ballsbins import BallsAndBins, Mechanism
from ballsbins.errors import RunError
from ballsbins.training.torch import make_private

LABELS = torch.arange(40) % 3


def train(criterion, labels=LABELS, **options):
    torch.manual_seed(0)
    net = nn.Linear(4, 3)
    model, optimizer, criterion, loader = make_private(
        Mechanism(BallsAndBins(4), 1.0), net, torch.optim.SGD(net.parameters(), lr=0.1),
        TensorDataset(torch.randn(40, 4), labels), max_grad_norm=1.0, key=1, criterion=criterion, **options,
    )  # fmt: skip
    for inputs, targets in loader:
        optimizer.zero_grad()
        criterion(model(inputs.requires_grad_()), targets).backward()
        optimizer.step()
    return loader.as_run()


def pairs(outputs, targets):
    return (outputs - outputs.roll(1, 0)).square().mean()


IGNORED = torch.where(torch.arange(40) % 4 == 3, -100, LABELS)


@pytest.mark.parametrize(
    ("criterion", "labels", "options"),
    [
        (nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 5.0])), LABELS, {}),
        (nn.CrossEntropyLoss(ignore_index=-100), IGNORED, {}),
        (pairs, LABELS, {}),
        (nn.CrossEntropyLoss(reduction="sum"), LABELS, {}),  # but the mean is stated
        (nn.CrossEntropyLoss(), LABELS, {"loss_reduction": "sum"}),
    ],
    ids=["weights", "ignored", "pairs", "a sum", "a mean"],
)
def test_a_loss_that_depends_on_other_examples_is_refused(criterion, labels, options):
    with pytest.raises(RunError, match="within its batch"):
        train(criterion, labels, **options)


@pytest.mark.parametrize(
    ("criterion", "labels", "options"),
    [
        (nn.CrossEntropyLoss(), LABELS, {}),
        (nn.functional.cross_entropy, LABELS, {}),
        (nn.CrossEntropyLoss(label_smoothing=0.1), LABELS, {}),
        (nn.CrossEntropyLoss(ignore_index=-100, reduction="sum"), IGNORED, {"loss_reduction": "sum"}),
    ],
    ids=["mean", "function", "smooth", "sum"],
)
def test_a_loss_of_each_example_is_left_alone(criterion, labels, options):
    assert train(criterion, labels, **options) == Mechanism(BallsAndBins(4), 1.0)
