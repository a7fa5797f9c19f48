"""When noise may repeat: never for two different sums, and not for two continuations of one checkpoint either.

The noise of a step is read off here as r = gradient/unit − k. Independent noises of d parameters have a correlation
of deviation 1/√d; eight of them are a false alarm in 10¹⁴ steps.
"""

from __future__ import annotations

import hashlib
import math

import pytest
import torch

from ballsbins import BallsAndBins, Mechanism
from ballsbins.errors import InvalidInputError
from ballsbins.noise import SCALE, rounded_normals
from ballsbins.samplers import Key, new_key

MECHANISM = Mechanism(BallsAndBins(6), 1.0, epochs=2)
CHANGED = 17  # the example in which the data of two continuations differ


def fingerprint(dataset):
    """What a user would write."""
    found = hashlib.sha256()
    for part in (dataset.tokens, dataset.values, dataset.labels, dataset.weights):
        found.update(part.numpy().tobytes())
    return found.hexdigest()


class Continued:
    """A run that goes on from a checkpoint for an epoch; keeps the noise and the sums of every step."""

    def __init__(self, training, dataset, key, state=None, *, bound=False, lr=0.0, steps=6):
        options = {"data_fingerprint": fingerprint(dataset)} if bound else {}
        self.run = training(MECHANISM, dataset, key=key, lr=lr, loss_reduction="sum", **options)
        if state is not None:
            self.run.optimizer.load_state_dict(state)
        for group in self.run.optimizer.param_groups:  # the state has brought its own
            group["lr"] = lr
        self.noise, self.sums = [], []
        for number, batch in enumerate(self.run.loader):
            if number == steps:
                break
            self.run.step(batch)
            sums = torch.cat([p.summed_grad.reshape(-1) for p in self.run.net.parameters()])
            unit = self.run.optimizer.grid.unit
            self.sums.append(sums)
            self.noise.append((self.run.gradient() / unit - sums) / SCALE)


def shared(one, two):
    """At which steps two continuations have the same noise, or noise that is related."""
    return [
        step
        for step, (a, b) in enumerate(zip(one.noise, two.noise, strict=True))
        if abs(float((a * b).mean())) > 8 / math.sqrt(len(a))
    ]


@pytest.fixture
def datasets(weighted):
    """The same data but for one example."""
    one, two = weighted(40), weighted(40)
    two.values[CHANGED] += 1.0
    return one, two


def checkpoint(training, dataset, key, *, bound=False):
    started = Continued(training, dataset, key, bound=bound)
    return started.run.optimizer.state_dict()


def home_of_changed(key, state):
    batches = MECHANISM.batches(40, key.for_run(state["ballsbins"]["run"]), 1)
    return next(step for step, batch in enumerate(batches) if CHANGED in batch)


def late_key(training, dataset, bound):
    """A run in which the changed example comes late enough in the second epoch to have steps before it."""
    while True:
        key = new_key()
        state = checkpoint(training, dataset, key, bound=bound)
        if home_of_changed(key, state) >= 2:
            return key, state


@pytest.mark.parametrize("bound", [False, True])
def test_continuations_of_one_checkpoint_share_no_noise(training, datasets, bound):
    one, two = datasets
    key, state = late_key(training, one, bound)
    home = home_of_changed(key, state)
    first, second = (Continued(training, data, key, state, bound=bound) for data in (one, two))
    # Up to the changed example the sums are the same (parameters do not move): the noise must differ all the same.
    assert all(torch.equal(a, b) for a, b in zip(first.sums[:home], second.sums[:home], strict=True))
    assert not torch.equal(first.sums[home], second.sums[home])
    assert shared(first, second) == []


def test_noise_from_the_sums_would_show_the_step_of_the_changed_example(training, datasets):
    """The control: noise hashed from the sums is the same until that step, and so tells a secret batch."""
    one, two = datasets
    key, state = late_key(training, one, False)
    home = home_of_changed(key, state)
    first, second = (Continued(training, data, key, state) for data in (one, two))
    for run in (first, second):
        for step, sums in enumerate(run.sums):
            tag = hashlib.sha256(sums.numpy().tobytes()).digest()
            drawn = rounded_normals(key, ("noise from sums", step, tag), len(sums))
            run.noise[step] = torch.from_numpy(drawn).double() / SCALE
    assert shared(first, second)[:home] == list(range(home))
    assert home not in shared(first, second)


@pytest.mark.parametrize("bound", [False, True])
def test_the_same_data_repeats_with_a_fingerprint_only(training, datasets, bound):
    one, _ = datasets
    key = new_key()
    state = checkpoint(training, one, key, bound=bound)
    first, second = (Continued(training, one, key, state, bound=bound, lr=0.2) for _ in range(2))
    assert shared(first, second) == (list(range(6)) if bound else [])
    assert torch.equal(first.run.vector(), second.run.vector()) == bound


def test_a_fingerprint_does_not_bind_the_noise_of_another_state(training, datasets):
    """Two learning rates from one checkpoint: the first step repeats, and after it the parameters differ."""
    one, _ = datasets
    key = new_key()
    state = checkpoint(training, one, key, bound=True)
    first, second = (Continued(training, one, key, state, bound=True, lr=lr) for lr in (0.1, 0.2))
    assert shared(first, second) == [0]
    assert torch.equal(first.noise[0], second.noise[0])


def test_sums_that_do_not_repeat_get_noise_of_their_own(training, weighted):
    """Something changed that no fingerprint covers: here the data all the same, under one fingerprint."""
    one, two = weighted(40), weighted(40)
    two.values[:] += 0.001
    key = new_key()
    runs = []
    for data in (one, two):
        run = training(
            MECHANISM, data, key=key.for_run("0" * 32), loss_reduction="sum", data_fingerprint="v1"
        )
        run.step(next(iter(run.loader)))
        sums = torch.cat([p.summed_grad.reshape(-1) for p in run.net.parameters()])
        runs.append(run.gradient() / run.optimizer.grid.unit - sums)
    assert abs(float((runs[0] * runs[1]).mean())) / SCALE**2 < 8 / math.sqrt(len(runs[0]))


def test_threads_are_part_of_what_noise_is_bound_to(training, weighted):
    key, before = new_key().for_run(), torch.get_num_threads()
    found = []
    try:
        for threads in (1, 1, 2):
            torch.set_num_threads(threads)
            run = training(MECHANISM, weighted(40), key=key, data_fingerprint="v1")
            run.step(next(iter(run.loader)))
            found.append(run.gradient())
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert not torch.allclose(found[0], found[2], atol=0.1)


def test_a_seed_repeats_whatever_the_data(training, datasets):
    one, two = datasets
    first, second = (Continued(training, data, 7, bound=True) for data in (one, two))
    assert shared(first, second) == list(range(6))


def test_processes_and_runs_of_one_key_share_no_noise(training, weighted):
    key = Key(bytes(range(32)))
    dataset = weighted(40)
    one, two = (Continued(training, dataset, key) for _ in range(2))  # two runs
    assert shared(one, two) == []
    own = key.for_run()
    one, two = (Continued(training, dataset, own) for _ in range(2))  # one run, begun twice
    assert all(map(torch.equal, one.sums, two.sums))
    assert shared(one, two) == []


def interrupt():
    raise KeyboardInterrupt


def test_a_step_that_is_interrupted_after_its_noise_gets_fresh_noise(training, weighted):
    """Its noisy gradient may have been looked at; with dropout the sums of the second attempt are others."""
    noises = []
    for key in (new_key(), 5):
        run = training(MECHANISM, weighted(40), key=key, loss_reduction="sum")
        own, run.optimizer.scale_grad = run.optimizer.scale_grad, interrupt
        batch = next(iter(run.loader))
        with pytest.raises(KeyboardInterrupt):
            run.step(batch)
        first = run.gradient()
        run.optimizer.scale_grad = own
        run.step(batch)
        noises.append(float((first - run.gradient()).abs().max()))
    assert noises[0] > 0.1
    assert noises[1] == 0.0  # a seed repeats


def test_nothing_of_the_fingerprint_is_stored(training, weighted):
    run = training(MECHANISM, weighted(40), key=new_key(), data_fingerprint="what only we know")
    run.step(next(iter(run.loader)))
    assert "only we know" not in repr(run.optimizer.state_dict())
    assert hashlib.sha256(b"what only we know").hexdigest()[:8] not in repr(run.optimizer.state_dict())


@pytest.mark.parametrize("bad", ["", 5, b"bytes"])
def test_a_fingerprint_that_is_not_text_is_refused(training, weighted, bad):
    with pytest.raises(InvalidInputError, match="data_fingerprint"):
        training(MECHANISM, weighted(40), data_fingerprint=bad)
