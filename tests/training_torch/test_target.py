"""make_private with a sampler and a target, and what people bring from other libraries."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from ballsbins import BallsAndBins, InvalidInputError, Mechanism, calibrate
from ballsbins.training.torch import make_private

DATA = TensorDataset(torch.randn(64, 3), torch.randn(64, 1))
TARGET = {"epsilon": 3.0, "delta": 1e-5, "epochs": 2}


def private(first, data=DATA, **more):
    model = torch.nn.Linear(3, 1)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    return make_private(first, model, sgd, data, max_grad_norm=1.0, key=1, **more)


def test_a_sampler_and_a_target_are_a_mechanism():
    sampler = BallsAndBins.for_batch_size(num_examples=64, batch_size=16)
    *_, loader = private(sampler, **TARGET)
    assert loader.mechanism == calibrate(sampler, **TARGET)


@pytest.mark.parametrize(
    ("first", "more", "words"),
    [
        (BallsAndBins(4), {"epsilon": 3.0}, "delta must be given with a sampler"),
        (BallsAndBins(4), {}, "epsilon must be given with a sampler"),
        (Mechanism(BallsAndBins(4), 1.0), TARGET, "epsilon is 3.0, but must be left out with a Mechanism"),
        (1.1, {}, "mechanism is 1.1, but must be a Mechanism"),
        (
            Mechanism(BallsAndBins(4), 1.0),
            {"noise_multiplier": 1.0},
            "Mechanism\\(sampler, noise_multiplier=…",
        ),
        (Mechanism(BallsAndBins(4), 1.0), {"poisson_sampling": False}, "The mechanism names the sampler"),
        (Mechanism(BallsAndBins(4), 1.0), {"data": DataLoader(DATA, batch_size=16)}, "Give loader.dataset"),
    ],
)
def test_what_is_not_right_is_told_with_what_is(first, more, words):
    with pytest.raises(InvalidInputError, match=words):
        private(first, **more)
