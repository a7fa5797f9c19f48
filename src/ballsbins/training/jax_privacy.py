"""Our mechanisms for users of jax_privacy: its batch selection, and the plan that its training loops expect.

    plan = execution_plan(mechanism, num_examples=n, clip_norm=1.0, key=key)
    gradient = jax.jit(plan.clipped_grad(loss))                # sum of clipped gradients / (n/T)
    state = plan.noise_addition_transform.init(parameters)
    for indices in plan.batch_selection_strategy.batch_iterator(n):
        mean = gradient(parameters, data[indices], is_padding_example=indices == -1)
        noisy, state = plan.noise_addition_transform.update(mean, state)

The event of the plan is a `MechanismDpEvent`, which `ballsbins.dp_events.MechanismAccountant` knows. The sampler
`BallsInBinsSampling` of jax_privacy keeps the same bins in all epochs; ours draws new ones unless `redraw=False`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ballsbins import validate
from ballsbins.dp_events import MechanismDpEvent
from ballsbins.errors import InvalidInputError, MissingExtraError
from ballsbins.mechanism import Mechanism
from ballsbins.samplers import Key, as_key, pad
from ballsbins.training._jax import jax, optax
from ballsbins.training.noise import normals, words_for

try:
    from jax_privacy import batch_selection, clipping
    from jax_privacy.experimental.execution_plan import DPExecutionPlan
except ImportError as missing:
    raise MissingExtraError("The plan for jax_privacy", "jax") from missing


@dataclass(frozen=True)
class MechanismBatches(batch_selection.BatchSelectionStrategy):  # type: ignore[misc]
    """The batches of all steps of a mechanism, as arrays of indices.

    Formal guarantees of `batch_iterator`: those of the mechanism's sampler, in every epoch; exactly
    `mechanism.total_steps` − `start` batches, empty ones too. Where the size of batches is fixed (the sampler has
    `max_batch_size`, or `padded_to` is given) every array has that length, filled up with −1 at the end.
    """

    mechanism: Mechanism
    key: Key = field(repr=False)
    padded_to: int | None = None
    start: int = 0

    def __post_init__(self) -> None:
        """Validate, once."""
        advice = "Give the number of steps already taken."
        validate.integer("start", self.start, 0, self.mechanism.total_steps, advice=advice)

    @property
    def size(self) -> int | None:
        """The length of every batch, padding included; None where they vary."""
        size: int | None = self.padded_to or getattr(self.mechanism.sampler, "max_batch_size", None)
        return size

    def batch_iterator(self, num_examples: int, rng: None = None) -> Iterator[NDArray[Any]]:
        """Give the batches from step `start` on. They follow from the key, so there is no generator to give."""
        if rng is not None:
            advice = "The batches follow from the key of this strategy: leave rng out."
            raise InvalidInputError("rng", "a generator", "None", advice)
        return self._batches(num_examples)

    def _batches(self, num_examples: int) -> Iterator[NDArray[Any]]:
        steps, size = self.mechanism.sampler.steps, self.size
        taken = self.start
        while taken < self.mechanism.total_steps:
            epoch, start = divmod(taken, steps)
            last = min(self.mechanism.total_steps - epoch * steps, steps)
            drawn = self.mechanism.batches(num_examples, self.key, epoch, start)
            for step in range(start, last):
                batch = drawn.at(step)
                yield batch.astype(np.int64) if size is None else pad(batch, size).indices
            taken = epoch * steps + last


def execution_plan(
    mechanism: Mechanism,
    *,
    num_examples: int,
    clip_norm: float,
    key: Key | bytes | int,
    padded_to: int | None = None,
    start: int = 0,
) -> Any:
    """Return jax_privacy's DPExecutionPlan of a mechanism: clipped gradients, batches, noise and event in one.

    Gradients are divided by the public n/T, and the noise is scaled to that. Its state holds a key of its own, as
    secret as yours: a fresh one for every plan, so that no two runs share noise, or for a seed always the same one.
    To resume without saving it, give the steps already taken as `start`: batches go on from there, with fresh noise.

    Where batches are padded, gradients without `is_padding_example` are refused: the padding would be the last
    example of the data, many times. After the last step of the mechanism the noise transform gives no numbers (NaN):
    a compiled function cannot raise, and one more step is not accounted for.
    """
    secret = as_key(key)
    advice = "It is the largest norm of one example's gradient."
    clip = validate.real("clip_norm", clip_norm, 0.0, open_left=True, advice=advice)
    count = validate.integer("num_examples", num_examples, 1, advice="Count the training examples.")
    expected = count / mechanism.sampler.steps

    batches = MechanismBatches(mechanism, secret, padded_to, start)

    def clipped_grad(*args: Any, **kwargs: Any) -> Any:
        made = clipping.clipped_grad(*args, **kwargs, l2_clip_norm=clip, normalize_by=expected)
        if made.l2_norm_bound > clip / expected * (1.0 + 1e-9):
            advice = "The noise is for gradients clipped to clip_norm: leave out rescale_to_unit_norm."
            bound = f"at most clip_norm / (n/T) = {clip / expected:g}"
            raise InvalidInputError("the sensitivity of this gradient", made.l2_norm_bound, bound, advice)
        return made if batches.size is None else replace(made, fun=_told_of_padding(made.fun))

    fresh = secrets.token_bytes(8) if secret.is_secret else secret.derive("jax_privacy noise", start)[:8]
    noise = _gaussian(mechanism.noise_multiplier * clip / expected, fresh, mechanism.total_steps - start)
    return DPExecutionPlan(clipped_grad, batches, noise, MechanismDpEvent(mechanism))


def _told_of_padding(function: Callable[..., Any]) -> Callable[..., Any]:
    def gradient(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("is_padding_example") is None:
            advice = (
                "Give is_padding_example=indices == -1: index −1 is the last example, and would count often."
            )
            raise InvalidInputError("is_padding_example", None, "given, because batches are padded", advice)
        return function(*args, **kwargs)

    return gradient


def _gaussian(deviation: float, seed: bytes, steps: int) -> optax.GradientTransformation:
    """What jax_privacy's `gaussian_privatizer` is, with noise that reaches far enough.

    `jax.random.normal` never exceeds 5.42 standard deviations in float32. An example moves a sum by 1/σ of them, so
    at σ = 0.35 it would be seen to be there with probability 5·10⁻³, whatever ε is: see `training.tail`.
    """
    words = jax.numpy.asarray(np.frombuffer(seed, np.uint32))
    root = jax.random.wrap_key_data(words, impl="threefry2x32")
    begin = (root, jax.numpy.int32(min(steps, 2**31 - 1)))

    def update(gradient: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        del params
        key, left = state
        now, later = jax.random.split(key)
        unless_over = jax.numpy.where(left > 0, 0.0, jax.numpy.nan)
        leaves, structure = jax.tree.flatten(gradient)
        noisy = []
        for number, leaf in enumerate(leaves):
            bits = jax.random.bits(jax.random.fold_in(now, number), (words_for(leaf.size),), jax.numpy.uint32)
            drawn = normals(bits, leaf.size).reshape(leaf.shape)
            noisy.append(leaf + (deviation * drawn + unless_over).astype(leaf.dtype))
        return jax.tree.unflatten(structure, noisy), (later, jax.numpy.maximum(left - 1, 0))

    return optax.GradientTransformation(lambda params: begin, update)
