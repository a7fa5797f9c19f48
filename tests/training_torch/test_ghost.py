"""Ghost clipping: whatever its norms do not cover would be summed up unclipped, and is refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from ballsbins import BallsAndBins, Mechanism
from ballsbins.errors import RunError
from ballsbins.training.torch import make_private

MECHANISM = Mechanism(BallsAndBins(4), 1.0)


class Private:
    """A model of logits for two classes of 40 examples, made private with ghost clipping."""

    def __init__(self, model, criterion=None, data=None):
        torch.manual_seed(0)
        data = torch.randn(40, 4) if data is None else data
        criterion = nn.CrossEntropyLoss() if criterion is None else criterion
        self.model, self.optimizer, self.criterion, self.loader = make_private(
            MECHANISM,
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            TensorDataset(data, torch.arange(40) % 2),
            max_grad_norm=1.0,
            key=1,
            grad_sample_mode="ghost",
            criterion=criterion,
        )

    def train(self, loss):
        for inputs, targets in self.loader:
            self.optimizer.zero_grad()
            loss(inputs, targets).backward()
            self.optimizer.step()

    def usual(self, inputs, targets):
        return self.criterion(self.model(inputs), targets)


def test_losses_in_a_column_are_refused():
    """A column times the row of factors is a square: every loss would get the factors of all examples."""
    run = Private(nn.Linear(4, 1), nn.BCEWithLogitsLoss())
    with pytest.raises(RunError, match=r"losses of shape \(batch, 1\)"):
        run.train(lambda inputs, targets: run.criterion(run.model(inputs), targets[:, None].float()))
    run = Private(nn.Linear(4, 1), nn.BCEWithLogitsLoss())
    run.train(lambda inputs, targets: run.criterion(run.model(inputs).squeeze(1), targets.float()))


class Tied(nn.Module):
    """Uses its table once by its layer, which Opacus sees, and once as a matrix, which it does not."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(2, 8)

    def forward(self, tokens):
        return self.table(tokens).mean(1) @ self.table.weight.T


def test_a_weight_used_beside_its_layer_is_refused():
    run = Private(Tied(), data=torch.randint(2, (40, 3), generator=torch.Generator().manual_seed(1)))
    with pytest.raises(RunError, match=r"but Opacus found .* outside of its layer's own call"):
        run.train(run.usual)


class Centred(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, inputs):
        logits = self.layer(inputs)
        return logits - 3.0 * logits.sum(0)


def test_a_model_that_mixes_examples_is_seen():
    run = Private(Centred())
    with pytest.raises(RunError, match="examples meet in the model or the loss"):
        run.train(run.usual)


def test_norms_are_checked_again_later():
    """Some models change while they train; the check comes at steps 0, 1, 2, 4 and so on."""
    model = Tied()
    run = Private(model, data=torch.randint(2, (40, 3), generator=torch.Generator().manual_seed(1)))
    own, model.forward = model.forward, lambda tokens: model.table(tokens).mean(1)[:, :2]

    def loss(inputs, targets):
        if run.loader.as_run() is not None and run.loader.as_run().total_steps == 2:
            model.forward = own
        return run.usual(inputs, targets)

    with pytest.raises(RunError, match="but Opacus found"):
        run.train(loss)
    assert run.loader.as_run().total_steps == 2


@pytest.mark.parametrize("first", [0, 2])
def test_a_loss_that_was_not_made_private_is_refused(first):
    """From the second step on there are norms of an earlier batch, which must not be taken for those of this one."""
    run = Private(nn.Linear(4, 2))

    def loss(inputs, targets):
        taken = run.loader.as_run()
        if (0 if taken is None else taken.total_steps) < first:
            return run.usual(inputs, targets)
        return functional.cross_entropy(run.model(inputs), targets, reduction="sum")

    with pytest.raises(RunError, match="not, or not alone, those that ghost clipping left"):
        run.train(loss)
    assert (run.loader.as_run() is None) if first == 0 else run.loader.as_run().total_steps == first


def test_a_gradient_added_to_the_clipped_ones_is_refused():
    run = Private(nn.Linear(4, 2))
    inputs, targets = next(iter(run.loader))
    run.usual(inputs, targets).backward()
    (100.0 * run.model._module.weight * inputs[0]).sum().backward()
    with pytest.raises(RunError, match="not, or not alone"):
        run.optimizer.step()


def test_parameters_that_come_later_are_refused():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    run = Private(model)
    batches = iter(run.loader)
    run.usual(*next(batches)).backward()
    run.optimizer.step()
    model[0].requires_grad_(True)
    with pytest.raises(RunError, match="unfrozen, or given to the optimizer, after make_private"):
        run.usual(*next(batches)).backward()


class Sometimes(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.calls = nn.Linear(4, 4), nn.Linear(4, 2), 0
        self.between = nn.Linear(4, 4)

    def forward(self, inputs):
        self.calls += 1
        hidden = self.first(inputs)
        return self.second(self.between(hidden) if self.calls == 1 else hidden)


def test_a_layer_left_out_keeps_no_norms_of_another_batch():
    run = Private(Sometimes())
    with pytest.raises(RunError, match="not called in this step"):
        run.train(run.usual)


def test_arithmetic_on_losses_keeps_the_checks():
    run = Private(nn.Linear(4, 1), nn.BCEWithLogitsLoss())

    def loss(inputs, targets):
        whole = run.criterion(run.model(inputs), targets[:, None].float())
        return 0.5 * whole + whole / 2 - 1.0

    with pytest.raises(RunError, match="losses of shape"):
        run.train(loss)
    other = Private(nn.Linear(4, 2))
    other.train(lambda inputs, targets: -(-1.0 * other.usual(inputs, targets)))
    assert other.loader.as_run() == MECHANISM
