"""What a step does to the model is what DP-SGD says: clip each example, sum, add noise of σC, divide by n/T."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

from ballsbins import BallsAndBins, Mechanism, Poisson
from ballsbins.samplers import Key, new_key

TINY = 2e-6  # a noise multiplier that leaves the gradient to be seen, and the sums of 50 examples below 2⁵¹ units
MODES = ["hooks", "ghost"]


def reference_sum(net, dataset, indices, clip):
    """The summed clipped gradient, one example at a time, by plain autograd."""
    total = torch.zeros(sum(parameter.numel() for parameter in net.parameters()), dtype=torch.float64)
    for index in indices:
        example = dataset[int(index)]
        tokens, values = example["inputs"]
        logits = net((tokens.unsqueeze(0), values.unsqueeze(0)))
        label = example["label"].unsqueeze(0)
        loss = example["weight"] * torch.nn.functional.cross_entropy(logits, label)
        parts = torch.autograd.grad(loss, list(net.parameters()))
        flat = torch.cat([part.reshape(-1) for part in parts]).double()
        total += flat * min(1.0, clip / float(flat.norm()))
    return total


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "sampler",
    [
        BallsAndBins(7),
        BallsAndBins(40),  # most batches are small, many empty
        BallsAndBins(7, max_batch_size=5, num_examples=50),
        Poisson(7),
    ],
    ids=["bins", "many empty", "truncated", "poisson"],
)
def test_gradient_is_the_reference_sum_over_n_by_t(training, weighted, mode, sampler):
    mechanism, dataset, clip = Mechanism(sampler, TINY), weighted(50), 0.7
    run = training(mechanism, dataset, mode=mode, clip=clip)
    batches = list(mechanism.batches(50, 5))
    found = run.gradients()
    assert len(found) == sampler.steps == len(batches)
    if sampler.steps == 40:
        assert any(len(batch) == 0 for batch in batches)
    run.model.disable_hooks()
    clipped = 0
    for gradient, batch in zip(found, batches, strict=True):
        expected = reference_sum(run.net, dataset, batch, clip)
        # int(n/T) in place of n/T, as Opacus has it, would be wrong by a fiftieth
        assert torch.allclose(gradient * (50 / sampler.steps), expected, rtol=1e-4, atol=1.5e-5)
        clipped += len(batch) > 0 and float(expected.norm()) > 0
    assert clipped > 0


@pytest.mark.parametrize("mode", MODES)
def test_of_a_summed_loss_nothing_is_divided(training, weighted, mode):
    mechanism, dataset = Mechanism(BallsAndBins(7), TINY), weighted(50)
    run = training(mechanism, dataset, mode=mode, clip=0.7, loss_reduction="sum")
    found = run.gradients()
    assert run.loader.card(1e-5).normaliser == 1.0
    run.model.disable_hooks()
    for gradient, batch in zip(found, mechanism.batches(50, 5), strict=True):
        assert torch.allclose(gradient, reference_sum(run.net, dataset, batch, 0.7), rtol=1e-4, atol=1.5e-5)


@pytest.mark.parametrize("mode", MODES)
def test_an_example_changes_one_step_an_epoch_by_at_most_the_clip_norm(training, weighted, mode):
    mechanism, clip = Mechanism(BallsAndBins(6), TINY, epochs=2), 0.5
    dataset = weighted(40, scale=30.0)  # gradients far above the clip norm
    without = weighted(40, scale=30.0)
    without.weights[17] = 0.0
    runs = [training(mechanism, data, mode=mode, clip=clip) for data in (dataset, without)]
    sums = [[g * (40 / 6) for _ in range(2) for g in run.gradients()] for run in runs]
    changes = [float((a - b).norm()) for a, b in zip(*sums, strict=True)]
    changed = [step for step, change in enumerate(changes) if change > 1e-3]
    homes = [
        step + 6 * epoch
        for epoch in range(2)
        for step, batch in enumerate(mechanism.batches(40, 5, epoch))
        if 17 in batch
    ]
    assert changed == homes
    assert all(0.9 * clip < changes[step] <= clip * (1 + 1e-5) for step in changed)


def test_without_clipping_the_change_would_be_larger(training, weighted):
    """The negative control of the test above: its data does need clipping."""
    dataset = weighted(40, scale=30.0)
    run = training(Mechanism(BallsAndBins(6), TINY), dataset)
    run.model.disable_hooks()
    assert reference_sum(run.net, dataset, [17], math.inf).norm() > 2.0


def noise_of(training, weighted, mode, noise_multiplier, clip=0.5, key=5, steps=400):
    """Values of noise / (stated σ·C): all weights are 0, so that gradients are noise alone."""
    dataset = weighted(steps)
    dataset.weights[:] = 0.0
    run = training(Mechanism(BallsAndBins(steps), noise_multiplier), dataset, mode=mode, clip=clip, key=key)
    return torch.stack(run.gradients()) * (len(dataset) / steps) / (noise_multiplier * clip)


def looks_standard(values):
    """Two-sided tests of scale and shape; together a false alarm in about 10⁶ keys."""
    flat = values.reshape(-1).numpy()
    statistic = float((flat**2).sum())
    low, high = stats.chi2.ppf([2e-7, 1 - 2e-7], len(flat))
    return low < statistic < high and stats.kstest(flat, "norm").pvalue > 5e-7


@pytest.mark.parametrize("mode", MODES)
def test_noise_is_normal_with_deviation_sigma_times_clip(training, weighted, mode):
    values = noise_of(training, weighted, mode, 0.8)
    assert values.numel() > 50_000
    assert looks_standard(values)
    assert not looks_standard(values * 1.03)  # the test sees three per cent, on both sides
    assert not looks_standard(values * 0.97)


def test_noise_of_steps_and_parameters_is_independent(training, weighted):
    values = noise_of(training, weighted, "hooks", 0.8)
    later = (values[1:] * values[:-1]).sum() / math.sqrt(values[1:].numel())
    beside = (values[:, 1:] * values[:, :-1]).sum() / math.sqrt(values[:, 1:].numel())
    assert abs(float(later)) < 5.5
    assert abs(float(beside)) < 5.5
    assert len(values[0].float().unique()) > values.shape[1] - 3  # layers of one size share no noise either
    repeated = torch.cat([values[:1]] * 400)  # the same noise at every step would be seen
    assert float((repeated[1:] * repeated[:-1]).sum()) / math.sqrt(repeated[1:].numel()) > 5.5


def test_a_seed_repeats_noise_and_a_secret_key_never_does(training, weighted):
    seeded = [noise_of(training, weighted, "hooks", 0.8, key=9, steps=20) for _ in range(2)]
    assert torch.equal(*seeded)
    secret = new_key()
    one, two = (noise_of(training, weighted, "hooks", 0.8, key=secret, steps=20) for _ in range(2))
    # Independent values have a covariance of deviation 1/√count: seven of them are a false alarm in 4·10¹¹ keys.
    assert abs((one * two).mean()) < 7 / math.sqrt(one.numel()) < 0.2
    assert (seeded[0] * seeded[1]).mean() > 0.8


def test_every_run_of_a_master_key_has_batches_of_its_own(training, weighted):
    master = Key(bytes(range(32)))
    mechanism = Mechanism(BallsAndBins(10), 1.0)
    one, two = (training(mechanism, weighted(30), key=master) for _ in range(2))
    for run in (one, two):
        key = master.for_run(run.loader.state_dict()["run"])
        assert list(run.loader.batch_sampler) == [batch.tolist() for batch in mechanism.batches(30, key)]
    assert list(one.loader.batch_sampler) != list(two.loader.batch_sampler)
    own = master.for_run()  # a key that belongs to a run keeps that run
    drawn = [list(training(mechanism, weighted(30), key=own).loader.batch_sampler) for _ in range(2)]
    assert drawn[0] == drawn[1] == [batch.tolist() for batch in mechanism.batches(30, own)]


@pytest.mark.parametrize("mode", MODES)
def test_physical_batches_give_the_same_gradient(training, weighted, mode):
    from opacus.utils.batch_memory_manager import BatchMemoryManager

    mechanism, dataset = Mechanism(BallsAndBins(8), 0.5), weighted(40)
    whole = training(mechanism, dataset, mode=mode, lr=0.1)
    whole.gradients()
    parts = training(mechanism, dataset, mode=mode, lr=0.1)
    with BatchMemoryManager(
        data_loader=parts.loader, max_physical_batch_size=2, optimizer=parts.optimizer
    ) as loader:
        pieces = 0
        for batch in loader:
            assert len(batch["label"]) <= 2
            parts.step(batch)
            pieces += 1
    assert pieces > 8
    assert parts.loader.as_run() == mechanism
    # Sums are exact in any order (test_floating_point); the model's own float32 depends on the shape of a batch.
    assert torch.allclose(whole.vector(), parts.vector(), rtol=1e-5, atol=1e-6)
