"""The guarantee on a real computer (hooks): exact noise on integers, and sums that one example moves by at most C(1
+ η).

Each test has a control: the arithmetic that Opacus has, in a few lines, must fail it.
"""

from __future__ import annotations

import math

import pytest
import torch
from opacus.utils.batch_memory_manager import BatchMemoryManager
from scipy import stats
from torch import nn
from torch.utils.data import TensorDataset

from ballsbins import BallsAndBins, Mechanism, new_key
from ballsbins.errors import InvalidInputError, RunError
from ballsbins.noise import SCALE, rounded_normals
from ballsbins.training.grid import Grid
from ballsbins.training.machine_check import MachineCheck
from ballsbins.training.torch import clipped_sums as clipping
from ballsbins.training.torch import make_private
from ballsbins.training.torch import private_training as private
from ballsbins.training.torch.clipped_sums import EXCESS, clipped_sum
from ballsbins.training.torch.machine_check import check_torch


def opacus_sum(sample, clip):
    """What Opacus' clip_and_accumulate computes for one parameter: everything in float32."""
    factor = (clip / (sample.reshape(len(sample), -1).norm(2, dim=-1) + 1e-6)).clamp(max=1.0)
    return torch.einsum("i,i...", factor, sample)


def grid_for(samples, clip=1.0, noise=1.0):
    """A grid for batches of these shapes."""
    return Grid(noise, clip, len(samples[0]), EXCESS, 0, sum(sample[0].numel() for sample in samples))


@pytest.fixture(params=["compiled", "torch"])
def both_ways(request, monkeypatch):
    """The loops of numba, and those for other devices."""
    if request.param == "torch":
        monkeypatch.setattr(clipping, "compiled", lambda rows: False)


def test_sums_are_those_of_exact_arithmetic(both_ways):
    """Python's own numbers, one value at a time."""
    generator = torch.Generator().manual_seed(0)
    samples = [
        torch.randn(7, 3, 2, generator=generator),
        0.01 * torch.randn(7, 5, generator=generator, dtype=torch.float64),
    ]
    grid = grid_for(samples, clip=0.5, noise=0.7)
    found = clipped_sum(samples, grid)
    for row in range(7):
        values = [value for sample in samples for value in sample[row].reshape(-1).tolist()]
        norm = math.sqrt(math.fsum(value * value for value in values))
        factor = min(1.0, grid.clip_limit / norm) / grid.unit
        for total, sample in zip(found, samples, strict=True):
            rounded = [float(round(factor * value)) for value in sample[row].reshape(-1).tolist()]
            total.sub_(torch.tensor(rounded, dtype=torch.float64).view(total.shape))
    # A product within 10⁻¹⁶ of a half-integer may be rounded either way; among these values none is.
    assert all(bool((rest == 0).all()) for rest in found)


@pytest.mark.parametrize("rows", [1, 3, 4, 66])
def test_order_and_physical_batches_change_no_bit(both_ways, rows):
    generator = torch.Generator().manual_seed(rows)
    samples = [torch.randn(rows, 9, 700, generator=generator), torch.randn(rows, 5000, generator=generator)]
    grid = grid_for(samples)
    whole = clipped_sum(samples, grid)
    order = torch.randperm(rows, generator=generator)
    shuffled = clipped_sum([sample[order] for sample in samples], grid)
    pieces = [
        clipped_sum([sample[begin : begin + 7] for sample in samples], grid) for begin in range(0, rows, 7)
    ]
    for number, total in enumerate(whole):
        assert torch.equal(total, shuffled[number])
        assert torch.equal(total, sum(piece[number] for piece in pieces))
    if rows == 66:  # float32 sums do depend on the order
        assert not torch.equal(opacus_sum(samples[0], 1.0), opacus_sum(samples[0][order], 1.0))


def crowd(rows, seed):
    """All examples add the same to one row of a table, as a popular token does; far above the clip norm."""
    generator = torch.Generator().manual_seed(seed)
    row = torch.rand(3, generator=generator) + 0.5
    sample = torch.zeros(rows, 4, 3)
    sample[:, 1] = 3.0 * row / row.norm()
    return sample, int(torch.randint(0, rows, (), generator=generator))


def moved(sums, sample, row):
    """How far a sum moves if one row is zeroed in place."""
    without = sample.clone()
    without[row] = 0.0
    return float((sums(sample).double() - sums(without).double()).norm())


def test_one_example_of_a_crowd_moves_the_sum_by_the_clip_norm_at_most(both_ways):
    largest = control = 0.0
    for seed in range(40):
        sample, row = crowd(8192, seed)
        grid = grid_for([sample])
        in_units = moved(lambda given, grid=grid: clipped_sum([given], grid)[0], sample, row)
        largest = max(largest, grid.unit * in_units)
        assert in_units <= SCALE  # noise multiplier 1: what the accountant assumes, exactly
        control = max(control, moved(lambda given: opacus_sum(given, 1.0), sample, row))
    assert 1.0 - 2e-7 < largest <= 1.0 + grid.eta < 1.0 + 1e-6
    assert control > 1.0 + 1e-4


def test_norms_whose_squares_underflow_are_found(both_ways):
    """Values of 2·10⁻²³: in float32 all squares are 0, and so is the norm."""
    sample = torch.full((1, 1_000_000), 2e-23)
    clip = 6e-21
    grid = grid_for([sample], clip=clip, noise=1e4)  # so that the unit is not too small for float32
    (only,) = clipped_sum([sample], grid)
    assert 0.9 * clip < grid.unit * float(only.norm()) <= clip * (1 + grid.eta)
    assert float((sample[0] ** 2).sum().sqrt()) == 0.0
    assert float(sample[0].double().norm()) > 3 * clip  # without clipping


def test_a_norm_that_is_not_finite_is_told(both_ways):
    sample = torch.ones(5, 3)
    grid = grid_for([sample])
    assert clipped_sum([sample], grid) is not None
    for bad in (float("nan"), float("inf"), -float("inf")):
        broken = sample.clone()
        broken[2, 1] = bad
        assert clipped_sum([broken], grid) is None


class Table(nn.Module):
    """One table, whose gradient is a fixed row for every example: no arithmetic that depends on a batch's shape."""

    def __init__(self, width):
        super().__init__()
        self.table = nn.Embedding(2, width)
        self.pull = torch.rand(width, generator=torch.Generator().manual_seed(3)) + 0.5

    def forward(self, tokens):
        return (self.table(tokens) * self.pull).sum(dim=1)


def train_table(width, *, noise, lr=0.0, examples=60, steps=3, physical=None):
    """Train; gives the noisy gradients of all steps, [steps, 2, width]. Row 0 is looked up by all, row 1 by none."""
    torch.manual_seed(0)
    model = Table(width)
    data = TensorDataset(torch.zeros(examples, dtype=torch.int64))
    net, optimizer, loader = make_private(
        Mechanism(BallsAndBins(steps), noise), model, torch.optim.SGD(model.parameters(), lr=lr), data,
        max_grad_norm=1.0, key=11, loss_reduction="sum",
    )  # fmt: skip
    found = []

    def step(tokens):
        optimizer.zero_grad()
        net(tokens).sum().backward()
        optimizer.step()

    if physical is None:
        for (tokens,) in loader:
            step(tokens)
            found.append(model.table.weight.grad.clone())
        return torch.stack(found), optimizer, model
    with BatchMemoryManager(
        data_loader=loader, max_physical_batch_size=physical, optimizer=optimizer
    ) as pieces:
        for (tokens,) in pieces:
            step(tokens)
    return model.table.weight.detach(), optimizer, model


def trailing_zeros(values, bits=4):
    """Among small values, how many end in so many zero bits: [found, of how many]."""
    small = values[(values.abs() < 2.0**-6) & (values != 0)]
    ends = small.view(torch.int32) % 2**bits == 0
    return int(ends.sum()), len(small)


def shows(touched, untouched):
    """Whether the last bits tell rows that were looked up from others; a false alarm in 10⁶ runs."""
    table = [[hits, count - hits] for hits, count in (trailing_zeros(touched), trailing_zeros(untouched))]
    return stats.fisher_exact(table).pvalue < 1e-6


def test_last_bits_do_not_show_which_rows_were_looked_up():
    """Float32 noise of size 1 that is added to a sum of size 1 leaves multiples of 2⁻²⁴ where both cancel."""
    width, noise = 60_000, 0.1
    gradients, optimizer, _ = train_table(width, noise=noise)
    touched, untouched = gradients[:, 0].reshape(-1) / noise, gradients[:, 1].reshape(-1) / noise
    assert trailing_zeros(touched)[1] > 1_000
    assert not shows(gradients[:, 0].reshape(-1), gradients[:, 1].reshape(-1))
    generator = torch.Generator().manual_seed(1)
    sums = torch.zeros(3, 2, width)
    sums[:, 0] = (gradients[:, 0].mean(dim=0) - gradients[:, 1].mean(dim=0)).float()
    control = sums + torch.normal(0.0, noise, sums.shape, generator=generator)
    assert shows(control[:, 0].reshape(-1), control[:, 1].reshape(-1))
    # The integers themselves: every gradient is unit·(k + r), and r is that of the key.
    grid, run = optimizer.grid, optimizer.run
    r = rounded_normals(run.key, ("opacus noise", "seed", 2), 2 * width).astype(float)
    expected = ((torch.from_numpy(r) + optimizer.params[0].summed_grad.reshape(-1)) * grid.unit).float()
    assert torch.equal(gradients[2].reshape(-1), expected)
    assert bool((optimizer.params[0].summed_grad[1] == 0).all())
    assert not torch.allclose(touched.mean(), untouched.mean(), atol=0.01)


@pytest.mark.parametrize("physical", [1, 7])
def test_physical_batches_train_the_same_model_bit_for_bit(physical):
    """A model whose own arithmetic does not depend on the shape of a batch: the rest is exact."""
    gradients, _, whole = train_table(500, noise=1.0, lr=0.1)
    pieces, _, _ = train_table(500, noise=1.0, lr=0.1, physical=physical)
    assert torch.equal(whole.table.weight.detach(), pieces)
    assert len(gradients) == 3


def test_parameters_of_both_precisions_train_together(training, weighted):
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 3), nn.Linear(3, 2).double()

        def forward(self, inputs):
            return self.second(torch.relu(self.first(inputs)).double())

    model = Mixed()
    net, optimizer, loader = make_private(
        Mechanism(BallsAndBins(3), 1.0), model, torch.optim.SGD(model.parameters(), lr=0.1),
        TensorDataset(torch.ones(30, 4)), max_grad_norm=1.0, key=1,
    )  # fmt: skip
    for (inputs,) in loader:
        optimizer.zero_grad()
        net(inputs).mean().backward()
        optimizer.step()
    assert model.first.weight.grad.dtype == torch.float32
    assert model.second.weight.grad.dtype == torch.float64
    assert loader.card(1e-5).floating_point.covered


def test_sums_that_could_overflow_are_refused(training, weighted):
    with pytest.raises(
        InvalidInputError, match=r"rows · 2²⁶/σ is .*or integers overflow.*examples, or more noise"
    ):
        training(Mechanism(BallsAndBins(2), 1e-6), weighted(100))
    training(Mechanism(BallsAndBins(100), 1e-5), weighted(400))  # a batch of 335 examples would overflow
    run = training(Mechanism(BallsAndBins(2, max_batch_size=30, num_examples=100), 1e-6), weighted(100))
    assert run.optimizer.grid.rows == 30


def test_a_batch_beyond_the_grid_stops(training, weighted):
    run = training(Mechanism(BallsAndBins(2), 1.0), weighted(100))
    run.optimizer.steady_grid = Grid(1.0, 1.0, 3, EXCESS, 0, run.optimizer.grid.scattered)
    with pytest.raises(RunError, match="more examples than the 3 whose sum cannot overflow"):
        run.step(next(iter(run.loader)))


def test_this_machine_passes_its_test():
    found = check_torch(rows=40, layers=frozenset({(20, 4), (130, 70)}))
    assert found == MachineCheck("cpu", row_local=True, reproducible=True)


def test_a_machine_that_lets_rows_meet_is_seen(monkeypatch):
    """The control of the test above: a dense layer in which every row feels the others."""
    own = nn.functional.linear

    def leaky(inputs, weight, bias=None):
        return own(inputs, weight, bias) + 1e-6 * inputs.sum()

    monkeypatch.setattr(nn.functional, "linear", leaky)
    found = check_torch(rows=41, layers=frozenset({(20, 4)}))
    assert not found.row_local
    assert found.reproducible


def test_a_machine_that_fails_is_refused_or_named_on_the_card(training, weighted, monkeypatch):
    failed = MachineCheck("cpu", row_local=False, reproducible=True)
    monkeypatch.setattr(private, "check_torch", lambda *facts: failed)
    with pytest.raises(RunError, match=r"depends on the other rows.*allow_uncovered=True"):
        training(Mechanism(BallsAndBins(4), 1.0), weighted(40))
    run = training(Mechanism(BallsAndBins(4), 1.0), weighted(40), allow_uncovered=True)
    run.gradients()
    found = run.loader.card(1e-5).floating_point
    assert not found.covered
    assert "other rows of the batch" in found.not_covered[0]


def test_other_devices_are_not_claimed(training, weighted):
    run = training(Mechanism(BallsAndBins(4), 1.0), weighted(40))
    run.gradients()
    run.loader._run.devices.add("cuda")
    found = run.loader.card(1e-5).floating_point
    assert not found.covered
    assert "cuda" in found.not_covered[0]


def test_what_was_not_covered_once_stays_so(training, weighted):
    """Nine steps with ghost clipping are not covered by a last one with hooks."""
    mechanism, dataset, key = Mechanism(BallsAndBins(10), 1.0), weighted(30), new_key()
    first = training(mechanism, dataset, key=key, mode="ghost")
    for number, batch in enumerate(first.loader):
        first.step(batch)
        if number == 8:
            break
    second = training(mechanism, dataset, key=key)
    assert second.loader._run.floating_point().covered
    second.loader.load_state_dict(first.loader.state_dict())
    second.step(next(iter(second.loader)))
    card = second.loader.card(1e-5)
    assert not card.floating_point.covered
    assert "ghost clipping" in card.floating_point.not_covered[0]


def test_the_statement_says_what_was_tested_and_what_is_assumed_of_the_model(training, weighted):
    run = training(Mechanism(BallsAndBins(4), 1.0), weighted(30))
    run.step(next(iter(run.loader)))
    text = " ".join(run.loader.card(1e-5).statement().text().split())
    assert "on dense layers of the model's sizes; of the model itself both are assumed" in text
