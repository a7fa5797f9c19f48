"""Options of Opacus that work here: the sums are those of per-example autograd. Those that do not are refused."""

import math
import warnings

import pytest
import torch
from opacus.layers import DPLSTM
from torch import nn
from torch.utils.data import TensorDataset

from ballsbins import BallsAndBins, InvalidInputError, Mechanism
from ballsbins.errors import RunError
from ballsbins.training.torch import make_private, ranks

STEPS, EXAMPLES, CLIP = 4, 24, 0.5
MECHANISM = Mechanism(BallsAndBins(STEPS), noise_multiplier=1.0)


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def images():
    generator = torch.Generator().manual_seed(1)
    inputs = 3.0 * torch.randn(EXAMPLES, 6, generator=generator)
    return TensorDataset(inputs, torch.randint(0, 3, (EXAMPLES,), generator=generator))


def private(model, data, **options):
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    return make_private(MECHANISM, model, sgd, data, **{"max_grad_norm": CLIP, "key": 1} | options)


def sums_of(model, optimizer, inputs, targets):
    """What is released before the noise, in units of the loss."""
    found = []

    def keep():
        found.extend(parameter.summed_grad * optimizer.grid.unit for parameter in optimizer.params)
        return type(optimizer).add_noise(optimizer)

    optimizer.add_noise = keep
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nn.functional.cross_entropy(model(inputs), targets).backward()
    optimizer.step()
    return found


def gradients(model, inputs, targets, dimension=0):
    """Each example's own, by plain autograd."""
    rows = []
    for place in range(len(targets)):
        one = inputs.narrow(dimension, place, 1)
        loss = nn.functional.cross_entropy(model(one), targets[place : place + 1])
        rows.append(torch.autograd.grad(loss, list(model.parameters())))
    return rows


def test_a_call_that_is_written_for_opacus_is_answered_with_ours():
    model, loader = net(), torch.utils.data.DataLoader(images(), batch_size=6, shuffle=True)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    theirs = {"module": model, "optimizer": sgd, "data_loader": loader, "max_grad_norm": CLIP}
    with pytest.raises(InvalidInputError) as by_name:
        make_private(**theirs, noise_multiplier=1.1)
    with pytest.raises(InvalidInputError) as by_place:
        make_private(model, sgd, loader, noise_multiplier=1.1, max_grad_norm=CLIP)
    with pytest.raises(InvalidInputError) as with_target:
        make_private(**theirs, target_epsilon=3, target_delta=1e-5, epochs=2)
    call = "make_private(Mechanism(sampler, noise_multiplier=1.1, epochs=…), model, optimizer, data_loader.dataset, "
    for said in (by_name, by_place):
        assert "BallsAndBins.for_batch_size(len(data_loader.dataset), 6)" in str(said.value)
        assert f"{call}max_grad_norm=0.5, key=" in str(said.value)
    assert (
        "make_private(sampler, model, optimizer, data_loader.dataset, epsilon=3, delta=1e-05, epochs=2,"
        in str(with_target.value)
    )


@pytest.mark.parametrize("name", ["mechanism", "model", "optimizer", "dataset", "max_grad_norm", "key"])
def test_an_argument_that_is_missing_is_named(name):
    model = net()
    whole = {"mechanism": MECHANISM, "model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}
    whole |= {"dataset": images(), "max_grad_norm": CLIP, "key": 1}
    with pytest.raises(InvalidInputError, match=f"^{name} must be given"):
        make_private(**{other: value for other, value in whole.items() if other != name})


@pytest.mark.parametrize("mode", ["hooks", "functorch", "ew"])
@pytest.mark.parametrize("limits", [None, [0.1, 0.2, 0.05, 0.3]], ids=["flat", "per layer"])
def test_sums_are_those_of_clipped_examples(mode, limits):
    model, optimizer, loader = private(
        net(), images(), grad_sample_mode=mode, **({} if limits is None else {"max_grad_norm": limits})
    )
    inputs, targets = next(iter(loader))
    expected = [torch.zeros(parameter.shape) for parameter in net().parameters()]
    for row in gradients(net(), inputs, targets):
        whole = math.sqrt(sum(float(part.square().sum()) for part in row))
        for number, part in enumerate(row):
            length, limit = (whole, CLIP) if limits is None else (float(part.norm()), limits[number])
            expected[number] += part * min(1.0, limit / length)
    for found, wanted in zip(sums_of(model, optimizer, inputs, targets), expected, strict=True):
        assert torch.allclose(found.float(), wanted, rtol=1e-4, atol=1e-6)
    if limits is not None:
        assert loader.card(1e-5).clip_norm == pytest.approx(math.hypot(*limits))


class TimeFirst(nn.Module):
    """Inputs of shape (time, batch, features)."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.lstm, self.last = DPLSTM(4, 5), nn.Linear(5, 3)

    def forward(self, sequences):
        return self.last(self.lstm(sequences)[0])[-1]


def test_batches_along_the_second_dimension():
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(
        torch.randn(EXAMPLES, 7, 4, generator=generator), torch.zeros(EXAMPLES, dtype=torch.long)
    )

    def collate(rows):
        return torch.stack([row[0] for row in rows], dim=1), torch.stack([row[1] for row in rows])

    model, optimizer, loader = private(TimeFirst(), data, batch_first=False, collate_fn=collate)
    inputs, targets = next(iter(loader))
    found = torch.cat([part.reshape(-1) for part in sums_of(model, optimizer, inputs, targets)]).float()
    expected = torch.zeros_like(found)
    for row in gradients(TimeFirst(), inputs, targets, dimension=1):
        flat = torch.cat([part.reshape(-1) for part in row])
        expected += flat * min(1.0, CLIP / float(flat.norm()))
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", ["hooks", "functorch", "ew", "ghost"])
def test_accumulation_is_refused_in_our_words(mode):
    criterion = nn.CrossEntropyLoss()
    made = private(
        net(), images(), grad_sample_mode=mode, **({"criterion": criterion} if mode == "ghost" else {})
    )
    model, optimizer, loader = made[0], made[1], made[-1]
    batches = iter(loader)

    def accumulate():
        for _ in range(2):
            inputs, targets = next(batches)
            (made[2] if mode == "ghost" else criterion)(model(inputs), targets).backward()
        optimizer.step()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(RunError, match="Take exactly one optimizer step") as refused:
            accumulate()
    assert "Poisson" not in str(refused.value)


def test_what_cannot_be_right_is_refused(monkeypatch):
    with pytest.raises(InvalidInputError, match=r"the number of norms in max_grad_norm is 2, but must be 4"):
        private(net(), images(), max_grad_norm=[0.1, 0.2])
    with pytest.raises(InvalidInputError, match=r"one number for grad_sample_mode='ghost'.*hooks"):
        private(
            net(),
            images(),
            max_grad_norm=[0.1] * 4,
            grad_sample_mode="ghost",
            criterion=nn.CrossEntropyLoss(),
        )

    class Sharded(nn.Sequential):
        pass

    monkeypatch.setattr(ranks, "FSDPModule", Sharded)
    with pytest.raises(InvalidInputError, match=r"FSDP gives every process a share.*DifferentiallyPrivate"):
        private(Sharded(nn.Linear(6, 3)), images())


@pytest.mark.parametrize(
    ("name", "value", "advice"),
    [
        ("clipping", "per_layer", "max_grad_norm as a list"),
        ("clipping", "adaptive", "costs privacy"),
        ("poisson_sampling", True, "Mechanism"),
        ("target_epsilon", 8.0, "epsilon=…, delta=…, epochs=…"),
        ("secure_mode", True, "follow from the key"),
    ],
)
def test_options_of_opacus_that_are_not_ours_name_the_change_to_make(name, value, advice):
    with pytest.raises(InvalidInputError, match=f"{name} is .*{advice}"):
        private(net(), images(), **{name: value})
