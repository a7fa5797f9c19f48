"""Schedules that the accounting covers: the clip norm by the step, and the noise by the run; the rest is refused."""

import math

import pytest
import torch
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from opacus.schedulers import ExponentialGradClip, ExponentialNoise
from torch import nn
from torch.utils.data import TensorDataset

from ballsbins import BallsAndBins, InvalidInputError, Mechanism, Poisson, Total
from ballsbins.errors import RunError
from ballsbins.noise import SCALE
from ballsbins.training.torch import make_private

STEPS, EXAMPLES, SIGMA = 4, 24, 1.0


def data():
    generator = torch.Generator().manual_seed(1)
    inputs = 30.0 * torch.randn(EXAMPLES, 6, generator=generator)
    return TensorDataset(inputs, torch.randint(0, 3, (EXAMPLES,), generator=generator))


def private(max_grad_norm, mechanism=None, model=None, optimizer=None, **options):
    torch.manual_seed(0)
    model = nn.Linear(6, 3) if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) if optimizer is None else optimizer
    mechanism = Mechanism(BallsAndBins(STEPS), SIGMA) if mechanism is None else mechanism
    return make_private(mechanism, model, optimizer, data(), max_grad_norm=max_grad_norm, key=1, **options)


def train(model, optimizer, loader, watch=lambda: None):
    for _ in range(loader.mechanism.epochs):
        for inputs, targets in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            watch()
            optimizer.step()


def released(schedule):
    """The clipped sums before the noise, the noise, and the rows of all steps."""
    model, optimizer, loader = private(schedule)
    found = []
    add_noise = type(optimizer).add_noise

    def keep():
        unit, rows = optimizer.grid.unit, optimizer.rows
        sums = torch.cat([parameter.summed_grad.reshape(-1) for parameter in optimizer.params]) * unit
        add_noise(optimizer)
        noisy = torch.cat([parameter.grad.reshape(-1) for parameter in optimizer.params]).double()
        found.append((sums, noisy - sums, unit, rows))

    optimizer.add_noise = keep
    train(model, optimizer, loader)
    return found, loader


def test_sums_and_noise_follow_the_clip_norm():
    schedule = lambda step: 0.5 / 2**step  # noqa: E731
    changing, loader = released(schedule)
    steady, _ = released(0.5)
    for step, ((sums, noise, unit, rows), (_, usual, *_)) in enumerate(zip(changing, steady, strict=True)):
        clip = schedule(step)
        assert unit == pytest.approx(SIGMA * clip / SCALE, rel=1e-6)
        assert float(sums.norm()) <= rows * clip
        assert float(sums.norm()) > 0.2 * clip  # gradients are far above the clip norm
        # The same key draws the same numbers, in units of σ·C.
        assert torch.allclose(noise / clip, usual / 0.5, rtol=1e-3, atol=1e-5)
    card = loader.card(1e-5)
    assert card.claim == Mechanism(BallsAndBins(STEPS), SIGMA).epsilon(1e-5)
    assert card.clip_norm is None
    assert "from 0.5 at the first step to 0.0625 at the last" in card.statement().markdown()


@pytest.mark.parametrize("sampler", [BallsAndBins(STEPS), Poisson(STEPS)], ids=["balls-and-bins", "Poisson"])
def test_noise_may_change_between_runs_on_one_model(sampler):
    model, optimizer, runs = None, None, []
    for sigma, epochs in ((1.0, 1), (0.8, 2)):
        model, optimizer, loader = private(1.0, Mechanism(sampler, sigma, epochs=epochs), model, optimizer)
        before = [parameter.detach().clone() for parameter in model.parameters()]
        train(model, optimizer, loader)
        assert not any(map(torch.equal, before, model.parameters()))  # it is the one model that learns
        runs.append(loader)
    assert (
        len(optimizer.original_optimizer.state) == 2
    )  # momentum was kept: the optimizer is the one from before
    assert len(model._module._forward_pre_hooks) == 1
    total = Total([loader.as_run() for loader in runs])
    found = total.epsilon(1e-5).upper
    assert found > max(run.epsilon(1e-5).upper for run in total.mechanisms)
    if isinstance(sampler, Poisson):
        other = PLDAccountant(value_discretization_interval=1e-3)
        for run in total.mechanisms:
            step = dp_event.PoissonSampledDpEvent(1 / STEPS, dp_event.GaussianDpEvent(run.noise_multiplier))
            other.compose(step, run.total_steps)
        assert found == pytest.approx(other.get_epsilon(1e-5), rel=2e-3)
    else:
        # between the same with all noise of the one kind, and with all of the other
        least, most = (Mechanism(sampler, sigma, epochs=3).epsilon(1e-5).upper for sigma in (1.0, 0.8))
        assert least < found < most
        # an epoch of T steps is dominated by one Gaussian mechanism of the same noise
        assert found < Mechanism(BallsAndBins(1), 1 / math.sqrt(1 + 2 / 0.8**2)).epsilon(1e-5).upper


def test_the_rest_is_refused():
    made = private(1.0)
    noise = ExponentialNoise(made[1], gamma=0.9)
    with pytest.raises(RunError, match=r"noise_multiplier is 0.9.*make_private again.*Total"):
        train(*made, watch=noise.step)
    made = private(1.0)
    clip = ExponentialGradClip(made[1], gamma=0.9)
    with pytest.raises(RunError, match=r"max_grad_norm is 0.9.*a function of the number of the step"):
        train(*made, watch=clip.step)
    with pytest.raises(InvalidInputError, match=r"max_grad_norm\(2\) is 0.0, but must be a number in"):
        private(lambda step: 2.0 - step)
    with pytest.raises(InvalidInputError, match=r"a schedule.*hooks"):
        private(lambda step: 1.0 / (1 + step), grad_sample_mode="ghost", criterion=nn.CrossEntropyLoss())
    with pytest.raises(InvalidInputError, match=r"no other run trains.*that make_private returned"):
        private(1.0, model=made[0]._module)
