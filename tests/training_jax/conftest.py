"""A small network and small data, shared so that each step is compiled once."""

import os

import numpy as np
import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from ballsbins.data.dataset import Examples, Features
from ballsbins.samplers import BallsAndBins, Key
from ballsbins.training.jax.model import Batch, Model
from ballsbins.training.jax.trainer import InMemory
from ballsbins.training.training_plan import TrainingPlan

FEATURES = Features(("i1", "i2"), (("c1", 7), ("c2", 5)))
STEPS, EXAMPLES = 12, 240


def draw_examples(seed, count):
    """Labels that follow from one integer and one category."""
    rng = np.random.default_rng(seed)
    integers = rng.normal(size=(count, 2)).astype(np.float32)
    categories = np.stack([rng.integers(0, 7, count), rng.integers(0, 5, count)], axis=1).astype(np.int32)
    effect = np.array([-2.0, -1.0, 0.0, 0.5, 1.0, 1.5, 2.0])[categories[:, 0]]
    chance = 1.0 / (1.0 + np.exp(-(2.0 * integers[:, 0] + effect)))
    return Examples((rng.random(count) < chance).astype(np.float32), integers, categories)


@pytest.fixture(scope="session")
def model():
    return Model.for_features(FEATURES, embedding_dim=3, hidden=(8, 6))


@pytest.fixture(scope="session")
def parameters(model):
    return model.initial(Key.from_seed(3))


@pytest.fixture(scope="session")
def batch():
    """Forty rows, of which the last eight are padding; some examples share rows of the tables."""
    examples = draw_examples(5, 40)
    weights = np.ones(40, np.float32)
    weights[32:] = 0
    return Batch(examples.labels, examples.integers, examples.categories, weights)


@pytest.fixture(scope="session")
def data():
    return InMemory(FEATURES, draw_examples(1, EXAMPLES), draw_examples(2, 400))


@pytest.fixture(scope="session")
def plan():
    """Two epochs of balls-and-bins in batches of 20, never above 60."""
    sampler = BallsAndBins(STEPS, max_batch_size=60, num_examples=EXAMPLES)
    return TrainingPlan(sampler, 2, 0.7, clip_norm=0.5, learning_rate=5e-3, embedding_dim=3, hidden=(8, 6))
