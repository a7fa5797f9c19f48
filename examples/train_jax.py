"""Train a logistic regression with jax_privacy and optax on balls-and-bins batches, within ε ≤ 2 at δ = 10⁻⁵.

Needs `pip install '.[jax]'`. Runs in a few seconds: python examples/train_jax.py
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ballsbins import BallsAndBins, calibrate, new_key
from ballsbins.report.numbers import up
from ballsbins.training.jax_privacy import execution_plan

rng = np.random.default_rng(0)
x = rng.normal(size=(10_000, 5)).astype(np.float32)
y = (x @ np.array([2.0, -1.0, 0.5, 0.0, 1.0]) + rng.logistic(size=len(x)) > 0).astype(np.float32)

n = len(x)
mechanism = calibrate(BallsAndBins(steps=50), epsilon=2.0, delta=1e-5, max_batch_size="auto", num_examples=n)
plan = execution_plan(mechanism, num_examples=n, clip_norm=1.0, key=new_key())


def loss(w: jax.Array, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
    features, labels = batch
    return optax.sigmoid_binary_cross_entropy(features @ w, labels).mean()


gradient = jax.jit(plan.clipped_grad(loss))  # every batch has one shape: this compiles once
w, optimizer = jnp.zeros(5), optax.adam(0.1)
noise, state = plan.noise_addition_transform.init(w), optimizer.init(w)
for indices in plan.batch_selection_strategy.batch_iterator(n):
    mean = gradient(w, (x[indices], y[indices]), is_padding_example=indices == -1)
    noisy, noise = plan.noise_addition_transform.update(mean, noise)
    updates, state = optimizer.update(noisy, state)
    w = optax.apply_updates(w, updates)

accuracy = float(((x @ w > 0) == (y > 0)).mean())
print(f"accuracy on the training data {accuracy:.3f}, ε ≤ {up(mechanism.epsilon(1e-5).upper)} at δ = 1e-5")
