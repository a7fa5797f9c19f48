"""Audit one run of the JAX trainer with canaries, each with its own row in a table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from ballsbins.audit.one_run import OneRunAudit, Seen, check_settings, judge, toss
from ballsbins.data.dataset import Examples, Features
from ballsbins.largest_batch import limited
from ballsbins.mechanism import Mechanism
from ballsbins.samplers import Key, Sampler, as_key
from ballsbins.training.jax import InMemory, TrainingPlan
from ballsbins.training.jax.batches import FromMemory, padded
from ballsbins.training.jax.model import Batch, Model, Parameters
from ballsbins.training.jax.private_step import clipped_sum, initial_state
from ballsbins.training.jax.training_run import TrainingRun

EXAMPLE_CLIP_NORM = 0.1  # well below the norms of gradients, so that clipping is tested
_CATEGORY = "canary"
_ADAM_DECAY = 0.9  # decay of the first moment: optax's default, which the trainer uses
_UNCLIPPED = 1e4  # multiple of the clip norm: above all gradients of an audit, but sums do not overflow
_LARGER = 16.0  # factor on the weights of canary rows, so that most of a canary's gradient is in its own row


def audit_jax_training(
    mechanism: Mechanism,
    delta: float,
    data: InMemory,
    *,
    clip_norm: float,
    canaries: int = 1000,
    confidence: float = 0.99,
    seed: int = 0,
    secret_noise_multiplier: float | None = None,
    secret_clip_norm: float | None = None,
    **network: Any,
) -> OneRunAudit:
    """Train once on data with canaries, with the real batches, sums and noise, and guess which of them were in.

    The audit adds a category to the data, in which every canary has a value that no other example has. The canary's
    row of the table then gets noise in every step. If the canary was in, the row also gets its gradient in the steps
    of its batches. The auditor sees the noisy gradients of all steps, as the guarantee allows.

    Args:
        mechanism: the claimed mechanism, with whole epochs only. If batches vary in size, a largest batch is chosen,
            as for training.
        delta: δ at which its ε is tested.
        data: the examples to train on besides the canaries.
        clip_norm: C. Choose it well below the norm of gradients; otherwise the audit cannot see if the run clips.
        canaries: the number of canaries.
        confidence: the probability that the ε shown is a lower bound.
        seed: the same seed gives the same audit: coins, batches and noise.
        secret_noise_multiplier: the noise multiplier actually used, if it differs from the claim, as a negative
            control; 0 for no noise.
        secret_clip_norm: the norm to which gradients are actually clipped, with noise as if it were C, as a negative
            control; `inf` for no clipping.
        network: learning rate, embedding_dim and hidden, as for `TrainingPlan`.

    Returns:
        What the run shows, and what is claimed.

    Raises:
        InvalidInputError: an argument is out of its range.

    Example:
        >>> import numpy as np
        >>> from ballsbins import BallsAndBins, Mechanism
        >>> from ballsbins.data.dataset import Examples, Features
        >>> from ballsbins.training.jax import InMemory
        >>> examples = Examples(np.ones(40, np.float32), np.zeros((40, 1), np.float32), np.zeros((40, 0), np.int32))
        >>> data = InMemory(Features(("x",), ()), examples)
        >>> mechanism = Mechanism(BallsAndBins(steps=8), noise_multiplier=0.8)
        >>> found = audit_jax_training(
        ...     mechanism, 1e-5, data, clip_norm=0.1, canaries=100, embedding_dim=4, hidden=(4,)
        ... )
        >>> found.consistent, found.canaries
        (True, 100)
    """
    check_settings(canaries, confidence, delta)
    examples, features = _with_canaries(data, canaries)
    total, key = len(examples), as_key(seed).for_run()
    sampler = mechanism.sampler
    if sampler.random_sizes and sampler.max_batch_size is None:
        claim = float(mechanism.epsilon(delta).upper)
        sampler = limited(sampler, total, epochs=mechanism.epochs, epsilon=claim, delta=delta)
    claimed = replace(mechanism, sampler=sampler)
    plan = TrainingPlan.of(claimed, clip_norm=clip_norm, **network)
    noise = plan.noise_multiplier if secret_noise_multiplier is None else secret_noise_multiplier
    clip = clip_norm if secret_clip_norm is None else min(secret_clip_norm, _UNCLIPPED * clip_norm)
    really = replace(plan, noise_multiplier=noise * clip_norm / clip, clip_norm=clip)
    model = Model.for_features(features, embedding_dim=plan.embedding_dim, hidden=plan.hidden)
    present = toss(canaries, seed)
    absent = len(data.train) + np.flatnonzero(~present)
    feed = _WithoutSome(examples, sampler, key, plan.batch_shape(total), absent)
    run = TrainingRun(really, model, key, really.facts(features, total), feed, total, None)
    run.state = initial_state(_prepared(run.state.parameters, model))
    watch = _Auditor(run, _batch(examples.take(np.arange(len(data.train), total))), clip_norm)
    run.take_steps(really.total_steps, watch, float("inf"), None)
    return judge(claimed, delta, watch.seen(), present, confidence)


def audit_example(
    mechanism: Mechanism, delta: float, *, canaries: int, seed: int, **rest: Any
) -> OneRunAudit:
    """Audit the trainer on a small network and random data, as `ballsbins audit-training` does."""
    random, count = np.random.default_rng(0), max(canaries, mechanism.sampler.steps)
    examples = Examples(
        (random.random(count) < 0.5).astype(np.float32),
        random.normal(size=(count, 2)).astype(np.float32),
        random.integers(0, 10, (count, 2)).astype(np.int32),
    )
    data = InMemory(Features(("x", "y"), (("a", 10), ("b", 10))), examples)
    return audit_jax_training(
        mechanism, delta, data, clip_norm=EXAMPLE_CLIP_NORM, canaries=canaries, seed=seed,
        embedding_dim=16, hidden=(16,), **rest,
    )  # fmt: skip


class _WithoutSome(FromMemory):
    """Batches in which some examples are ⊥: they are drawn like all others, but add nothing."""

    def __init__(
        self, examples: Examples, sampler: Sampler, key: Key, shape: int, absent: NDArray[np.int64]
    ) -> None:
        super().__init__(examples, sampler, key, shape)
        self._absent = absent

    def batches(self, epoch: int, start: int) -> Iterator[Batch]:
        for indices in self._sampler.batches(len(self._examples), self._key, epoch, start):
            there = indices[~np.isin(indices, self._absent)]
            yield padded(self._examples.take(there), self._shape)


class _Auditor:
    """Observes the state of a run after every step."""

    def __init__(self, run: TrainingRun, canaries: Batch, clip_norm: float) -> None:
        self._run, self._canaries, self._clip_norm = run, canaries, clip_norm
        self._rows = np.asarray(canaries.categories[:, -1] + run.model.offsets[-1])
        self._moment = np.zeros((len(self._rows), run.model.embedding_dim))
        self._expected = self._clipped()
        self._projected: list[Any] = []
        self._heights: list[Any] = []
        self._norms: list[Any] = []

    def __call__(self) -> bool:
        """Record the observations of a step. Return False, so that the run does not stop."""
        state, plan = self._run.state, self._run.plan
        moment = np.asarray(state.optimizer.mu.table[self._rows], np.float64)
        released = (moment - _ADAM_DECAY * self._moment) / (1.0 - _ADAM_DECAY) * self._run.expected
        clipped, unclipped = self._expected
        lengths = np.linalg.norm(clipped, axis=1)
        direction = clipped / np.maximum(lengths, 1e-30)[:, None]
        self._projected.append((released * direction).sum(axis=1) / self._clip_norm)
        self._heights.append(lengths / self._clip_norm)
        self._norms.append(np.linalg.norm(unclipped, axis=1) / np.maximum(lengths, 1e-30))
        self._moment = moment
        if self._run.steps + 1 < plan.total_steps:
            self._expected = self._clipped()
        return False

    def _clipped(self) -> tuple[Any, Any]:
        """Compute what every canary adds to its row, clipped and unclipped, with the sums of training."""
        parameters: Parameters = self._run.state.parameters
        with jax.enable_x64(True):
            found = [
                np.asarray(
                    _table_sum(self._run.model, parameters, self._canaries, jnp.float64(norm))[self._rows]
                )
                for norm in (self._clip_norm, _UNCLIPPED * self._clip_norm)
            ]
        return found[0], found[1]

    def seen(self) -> Seen:
        """Return the observations by canary, epoch and step."""
        shape = (len(self._rows), self._run.plan.epochs, -1)
        return Seen(
            *(np.stack(part, axis=1).reshape(shape) for part in (self._projected, self._heights, self._norms))
        )


@jax.jit(static_argnums=0)
def _table_sum(model: Model, parameters: Parameters, batch: Batch, clip_norm: Any) -> Any:
    return clipped_sum(model, parameters, batch, clip_norm).table.dense(model.num_rows)


def _prepared(parameters: Parameters, model: Model) -> Parameters:
    """Return initial parameters for which most of a canary's gradient is in its own row.

    The rows of canaries are 0, and the weights that multiply them are larger than usual. These parameters do not
    depend on the data, and the guarantee holds for any such parameters.
    """
    rows = slice(int(model.offsets[-1]), model.num_rows)
    inputs = slice(model.embedded - model.embedding_dim, model.embedded)
    first, *rest = parameters.layers
    larger = first._replace(weight=first.weight.at[inputs].multiply(_LARGER))
    return Parameters(parameters.table.at[rows].set(0.0), (larger, *rest))


def _with_canaries(data: InMemory, canaries: int) -> tuple[Examples, Features]:
    """Append the canaries to the examples: their inputs are zeros, except for a unique value in a new category."""
    train, features = data.train, data.features
    more = Examples(
        np.ones(canaries, np.float32),
        np.zeros((canaries, len(features.integers)), np.float32),
        np.zeros((canaries, len(features.categories)), np.int32),
    )
    own = np.concatenate([np.zeros(len(train), np.int32), 1 + np.arange(canaries, dtype=np.int32)])
    examples = Examples(
        np.concatenate([train.labels, more.labels]),
        np.concatenate([train.integers, more.integers]),
        np.concatenate([np.concatenate([train.categories, more.categories]), own[:, None]], axis=1),
    )
    return examples, Features(features.integers, (*features.categories, (_CATEGORY, canaries + 1)))


def _batch(examples: Examples) -> Batch:
    return padded(examples, len(examples))
