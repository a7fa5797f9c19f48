"""With hooks too, a loss that divides by something of the batch is refused: others would change a gradient.

That holds for loops that give make_private their criterion, and for those that only call `loss.backward()`.
"""

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


def loop(loss_of, *, labels=LABELS, net=lambda: nn.Linear(4, 3), **options):
    """A loop that tells make_private nothing of its loss."""
    torch.manual_seed(0)
    net = net()
    model, optimizer, loader = make_private(
        Mechanism(BallsAndBins(4), 1.0), net, torch.optim.SGD(net.parameters(), lr=0.1),
        TensorDataset(torch.randn(40, 4), labels), max_grad_norm=1.0, key=1, **options,
    )  # fmt: skip
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss_of(model(inputs.requires_grad_()), targets)
        optimizer.step()
    return loader


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


def by_tokens(outputs, targets):
    """A mean over the labels that count, as in language models."""
    each = nn.functional.cross_entropy(outputs, targets, ignore_index=-100, reduction="none")
    (each.sum() / (targets != -100).sum()).backward()


def by_a_number(outputs, targets):
    """The same, but the recorded tensors never meet what the number was counted from."""
    each = nn.functional.cross_entropy(outputs, targets, ignore_index=-100, reduction="none")
    (each.sum() / float((targets != -100).sum())).backward()


def in_place(outputs, targets):
    outputs = outputs * 1.0
    outputs[targets == 1] = 0.0
    (outputs.square().sum() / outputs.detach().abs().sum()).backward()


WEIGHTS = torch.tensor([1.0, 2.0, 5.0])
DEPENDENT = {
    "weights": lambda o, t: nn.functional.cross_entropy(o, t, weight=WEIGHTS).backward(),
    "ignored": lambda o, t: nn.functional.cross_entropy(o, torch.where(t == 2, -100, t)).backward(),
    "tokens": lambda o, t: by_tokens(o, torch.where(t == 2, -100, t)),
    "a number": lambda o, t: by_a_number(o, torch.where(t == 2, -100, t)),
    "pairs": lambda o, t: pairs(o, t).backward(),
    "a sum": lambda o, t: nn.functional.cross_entropy(o, t, reduction="sum").backward(),
    "in place": in_place,
    "weighted backward": lambda o, t: nn.functional.cross_entropy(o, t, reduction="none").backward(
        WEIGHTS[t]
    ),
}
OWN = {
    "mean": lambda o, t: nn.functional.cross_entropy(o, t).backward(),
    "sum by hand": lambda o, t: (nn.functional.cross_entropy(o, t, reduction="sum") / len(t)).backward(),
    "picked": lambda o, t: (-o.log_softmax(1)[torch.arange(len(t)), t].mean()).backward(),
    "picked by a range": lambda o, t: (-o.log_softmax(1)[range(len(t)), t]).mean().backward(),
    "two terms": lambda o, t: (nn.functional.cross_entropy(o, t) + 0.1 * o.square().mean()).backward(),
    "in pieces": lambda o, t: sum(nn.functional.mse_loss(a, t.float()) for a in o.unbind(1)).backward(),
    "reshaped": lambda o, t: nn.functional.cross_entropy(o.view(len(t), -1, 3).flatten(0, 1), t).backward(),
    "each backward": lambda o, t: nn.functional.cross_entropy(o, t, reduction="none").backward(
        torch.full((len(t),), 1.0 / len(t))
    ),
}  # fmt: skip


@pytest.mark.parametrize("loss_of", DEPENDENT.values(), ids=DEPENDENT)
def test_a_loop_that_only_goes_backward_is_watched(loss_of):
    with pytest.raises(RunError, match="within its batch"):
        loop(loss_of)


@pytest.mark.parametrize("loss_of", OWN.values(), ids=OWN)
def test_a_loop_whose_loss_is_each_example_s_own_is_left_alone(loss_of):
    assert loop(loss_of).as_run() == Mechanism(BallsAndBins(4), 1.0)


class OwnLoss(nn.Sequential):
    def forward(self, inputs):
        return super().forward(inputs).square().mean()


class Sneaky(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value):
        ctx.save_for_backward(value)
        return value.square().mean()

    @staticmethod
    def backward(ctx, gradient):
        (value,) = ctx.saved_tensors
        return gradient * value / value.norm()


@pytest.mark.parametrize(
    ("loss_of", "net", "message"),
    [
        (lambda o, t: o.backward(), lambda: OwnLoss(nn.Linear(4, 3)), "computed inside the model"),
        (lambda o, t: Sneaky.apply(o).backward(), lambda: nn.Linear(4, 3), "Nobody could see"),
        (lambda o, t: torch.autograd.backward(o.square().mean()), lambda: nn.Linear(4, 3), "Nobody could see"),
    ],
    ids=["inside", "a function", "another backward"],
)  # fmt: skip
def test_a_loss_that_nobody_can_see_needs_the_operator_s_word(loss_of, net, message):
    with pytest.raises(RunError, match=f"{message}.*criterion=.*loss_is_per_example=True"):
        loop(loss_of, net=net)
    loader = loop(loss_of, net=net, loss_is_per_example=True)
    assert any("one value per example" in words for words in loader.card(1e-5).not_covered)


def test_a_criterion_that_is_not_used_is_noticed():
    net = nn.Linear(4, 3)
    model, optimizer, _, loader = make_private(
        Mechanism(BallsAndBins(4), 1.0), net, torch.optim.SGD(net.parameters(), lr=0.1),
        TensorDataset(torch.randn(40, 4), LABELS), max_grad_norm=1.0, key=1, criterion=nn.CrossEntropyLoss(),
    )  # fmt: skip
    inputs, targets = next(iter(loader))
    nn.functional.cross_entropy(model(inputs.requires_grad_()), targets, weight=WEIGHTS).backward()
    with pytest.raises(RunError, match="within its batch"):
        optimizer.step()
