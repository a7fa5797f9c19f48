"""Our mechanisms for users of jax_privacy: a batch selection strategy, and the plan that its training loops expect.

    plan = execution_plan(mechanism, num_examples=n, clip_norm=1.0, key=key)
    gradient = jax.jit(plan.clipped_grad(loss))                # sum of clipped gradients / (n/T)
    state = plan.noise_addition_transform.init(parameters)
    for indices in plan.batch_selection_strategy.batch_iterator(n):
        mean = gradient(parameters, data[indices], is_padding_example=indices == -1)
        noisy, state = plan.noise_addition_transform.update(mean, state)

The noise is exact (`ballsbins.noise`): integers, drawn on the host from the run's key and added there to the
gradient in units of a grid. A compiled function gets it through an ordered host callback, so the state of the
transform holds only the step number: no key and no generator. A state that was used before gives NaN, never the same
noise twice. Clipping and sums are jax_privacy's own, in float32, and the sums are divided before noise is added. The
guarantee for floating point does not cover them, and `plan_card` says so.

The event of the plan is a `MechanismDpEvent`, which `ballsbins.dp_events.MechanismAccountant` can account for. The
sampler `BallsInBinsSampling` of jax_privacy keeps the same bins in all epochs; ours draws new ones unless
`redraw=False`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib import import_module, metadata
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ballsbins import _check
from ballsbins.dp_events import MechanismDpEvent
from ballsbins.errors import BallsBinsError, InvalidInputError, MissingExtraError
from ballsbins.mechanism import Mechanism
from ballsbins.noise import SOURCE, rounded_normals
from ballsbins.noise.draw import default_executor, require_right_noise
from ballsbins.report import Card, FloatingPoint
from ballsbins.samplers import Key, as_key, pad
from ballsbins.samplers.key import SEED_RUN
from ballsbins.training.grid import Grid
from ballsbins.training.jax.machine_check import device_name

# Version 2.2 of jax_privacy moved this module to the top level.
PLACES = ("jax_privacy.execution_plan", "jax_privacy.experimental.execution_plan")

try:
    import jax
    import optax
    from dp_accounting import NeighboringRelation
    from jax.experimental import io_callback
    from jax_privacy import batch_selection, clipping
except ImportError as missing:
    raise MissingExtraError("The plan for jax_privacy", "jax") from missing


def _plan_class(modules: Sequence[str] = PLACES) -> Any:
    """Find DPExecutionPlan in the installed version of jax_privacy."""
    for name in modules:
        if find_spec(name) is not None:
            return import_module(name).DPExecutionPlan
    raise BallsBinsError(
        f"jax_privacy {metadata.version('jax_privacy')} has its DPExecutionPlan in none of {', '.join(modules)}. "
        "Install a version that has it: pip install 'jax_privacy>=2.0,<3'."
    )


DPExecutionPlan = _plan_class()


@dataclass(frozen=True)
class MechanismBatches(batch_selection.BatchSelectionStrategy):  # type: ignore[misc]
    """The batches of all steps of a mechanism, as arrays of indices.

    Formal guarantees of `batch_iterator`: those of the mechanism's sampler, in every epoch; exactly
    `mechanism.total_steps` − `start` batches, including empty ones. If the batch size is fixed (the sampler has
    `max_batch_size`, or `padded_to` is given), every array has that length, filled up with −1 at the end.
    """

    mechanism: Mechanism
    key: Key = field(repr=False)
    padded_to: int | None = None
    start: int = 0

    def __post_init__(self) -> None:
        """Validate, once."""
        advice = "Give the number of steps already taken."
        _check.integer("start", self.start, 0, self.mechanism.total_steps, advice=advice)

    @property
    def run(self) -> str | None:
        """The public id of the run; save it to resume the run."""
        return self.key.run

    @property
    def size(self) -> int | None:
        """The length of every batch, including padding; None if lengths vary."""
        size: int | None = self.padded_to or self.mechanism.sampler.max_batch_size
        return size

    def batch_iterator(self, num_examples: int, rng: None = None) -> Iterator[NDArray[Any]]:
        """Iterate over the batches from step `start` on. They follow from the key, so `rng` must be None."""
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
    """Make jax_privacy's DPExecutionPlan for a mechanism: clipped gradients, batches, noise and event in one.

    Gradients are divided by the public n/T, and the noise is scaled accordingly. The state of the noise is the step
    number. Every plan draws its own noise, so no two plans share it; with a seed, everything repeats. To resume, give
    `key=key.for_run(run)`, where `run` is `plan.batch_selection_strategy.run` of the stopped run, and pass the number
    of steps already taken as `start`: batches continue from there, with fresh noise.

    If batches are padded, gradients without `is_padding_example` are refused, because index −1 would repeat the last
    example of the data many times. After the last step of the mechanism, and for a state that was used before, the
    noise transform returns NaN, because a compiled function cannot raise an error.

    Args:
        mechanism: sampler, noise multiplier and epochs.
        num_examples: n, the number of training examples.
        clip_norm: C, the largest norm of one example's gradient, above 0.
        key: a master key, from which the key of a new run is derived; an integer is a seed for experiments.
        padded_to: fill every batch up to this length with −1; by default the sampler's `max_batch_size`.
        start: the number of steps already taken.

    Returns:
        The DPExecutionPlan.

    Raises:
        InvalidInputError: an argument is out of its range.
        RunError: this machine computes wrong noise.

    Example:
        >>> from ballsbins import BallsAndBins, Mechanism
        >>> mechanism = Mechanism(BallsAndBins(steps=4), noise_multiplier=1.0)
        >>> plan = execution_plan(mechanism, num_examples=64, clip_norm=1.0, key=1)
        >>> sum(len(batch) for batch in plan.batch_selection_strategy.batch_iterator(64))
        64
    """
    require_right_noise()
    secret = as_key(key).for_run()
    advice = "It is the largest norm of one example's gradient."
    clip = _check.real("clip_norm", clip_norm, 0.0, open_left=True, advice=advice)
    count = _check.integer("num_examples", num_examples, 1, advice="Count the training examples.")
    expected = count / mechanism.sampler.steps

    batches = MechanismBatches(mechanism, secret, padded_to, start)

    def clipped_grad(*args: Any, **kwargs: Any) -> Any:
        made = clipping.clipped_grad(*args, **kwargs, l2_clip_norm=clip, normalize_by=expected)
        if made.l2_norm_bound > clip / expected * (1.0 + 1e-9):
            advice = "The noise is for gradients clipped to clip_norm: leave out rescale_to_unit_norm."
            bound = f"at most clip_norm / (n/T) = {clip / expected:g}"
            raise InvalidInputError("the sensitivity of this gradient", made.l2_norm_bound, bound, advice)
        if batches.size is None:
            return made
        function = fields(made)[0].name  # its name differs between versions
        return replace(made, **{function: _told_of_padding(getattr(made, function))})

    noise = _exact_noise(
        mechanism, clip, expected, min(count, Grid.most_rows(mechanism.noise_multiplier)), batches
    )
    # Later versions ask for the adjacency: ours is zero-out, which dp_accounting calls REPLACE_SPECIAL.
    named = {each.name for each in fields(DPExecutionPlan)} & {"neighboring_relation"}
    rest = dict.fromkeys(named, NeighboringRelation.REPLACE_SPECIAL)
    return DPExecutionPlan(clipped_grad, batches, noise, MechanismDpEvent(mechanism), **rest)


def plan_card(
    plan: Any,
    delta: float,
    steps_taken: int,
    *,
    num_examples: int,
    clip_norm: float,
    metrics: Mapping[str, Any] | None = None,
    not_covered: Sequence[str] = (),
) -> Card:
    """Make the card of a run with a plan of `execution_plan`, after `steps_taken` steps in total.

    Args:
        plan: the execution plan.
        delta: δ of the claim, strictly between 0 and 1.
        steps_taken: the total number of steps of the run, including those before `start`.
        num_examples: as given to `execution_plan`.
        clip_norm: as given to `execution_plan`.
        metrics: free JSON.
        not_covered: one sentence for each further use of the data.

    Returns:
        The card, with the claim for the steps taken.

    Example:
        >>> from ballsbins import BallsAndBins, Mechanism
        >>> from ballsbins.training.jax_privacy import execution_plan
        >>> mechanism = Mechanism(BallsAndBins(steps=4), noise_multiplier=1.0)
        >>> plan = execution_plan(mechanism, num_examples=64, clip_norm=1.0, key=1)
        >>> plan_card(plan, 1e-5, 3, num_examples=64, clip_norm=1.0).mechanism.last_epoch_steps
        3
    """
    batches: MechanismBatches = plan.batch_selection_strategy
    run, planned = batches.mechanism.after(steps_taken), batches.mechanism
    reason = (
        "jax_privacy clips and sums in float32 and divides before the noise is added, without an error bound"
    )
    return Card(
        run,
        delta,
        clip_norm=clip_norm,
        num_examples=num_examples,
        planned=None if run == planned else planned,
        metrics=dict(metrics or {}),
        not_covered=tuple(not_covered),
        key_commitment=batches.key.commitment(),
        key_secret=batches.key.is_secret,
        run=batches.run,
        noise=SOURCE,
        floating_point=FloatingPoint(device_name(), None, (reason,)),
        normaliser=num_examples / planned.sampler.steps,
    )


def _told_of_padding(function: Callable[..., Any]) -> Callable[..., Any]:
    def gradient(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("is_padding_example") is None:
            advice = (
                "Give is_padding_example=indices == -1: index −1 is the last example, and would count often."
            )
            raise InvalidInputError("is_padding_example", None, "given, because batches are padded", advice)
        return function(*args, **kwargs)

    return gradient


class _Host:
    """The callback's own data: the run's key, a nonce, and the next step. None of it is in the transform's state."""

    def __init__(self, grid: Grid, key: Key, expected: float, first: int, steps: int) -> None:
        self._grid, self._key, self._expected = grid, key, expected
        self._next, self._steps = first, steps
        # Every plan gets a fresh nonce, so two plans of one run, as after a crash, never share noise. A seed repeats.
        self._nonce = secrets.token_hex(16) if key.is_secret else f"{SEED_RUN} {first}"

    def add(self, step: Any, *gradients: Any) -> list[NDArray[Any]]:
        """Add the noise of a step; return NaN if the step already had its noise or is beyond the mechanism's last."""
        number, leaves = int(step), [np.asarray(leaf) for leaf in gradients]
        if not self._next <= number < self._steps:
            return [np.full_like(leaf, np.nan) for leaf in leaves]
        self._next = number + 1
        # A callback must not call JAX, so the XLA executor cannot be used here.
        drawn = rounded_normals(
            self._key,
            ("jax_privacy noise", self._nonce, number),
            sum(leaf.size for leaf in leaves),
            executor="numba" if default_executor() == "numba" else "numpy",
        )
        unit, begin, noisy = self._grid.unit / self._expected, 0, []
        for leaf in leaves:
            integers = np.rint(np.multiply(leaf, 1.0 / unit, dtype=np.float64))
            integers += drawn[begin : begin + leaf.size].reshape(leaf.shape)
            noisy.append((integers * unit).astype(leaf.dtype))
            begin += leaf.size
        return noisy


def require_precise(leaves: Sequence[Any], what: str) -> None:
    """Refuse types with fewer than 32 bits: they round gradients too coarsely."""
    for leaf in leaves:
        if leaf.dtype not in (np.float32, np.float64):
            raise InvalidInputError(
                f"the type of {what}", str(leaf.dtype), "float32 or float64",
                "Fewer bits round gradients and their norms by more than an example may change them: keep parameters "
                "in float32, and convert them to 16 bits inside the loss.",
            )  # fmt: skip


def _exact_noise(
    mechanism: Mechanism, clip: float, expected: float, rows: int, batches: MechanismBatches
) -> optax.GradientTransformation:
    hosts: dict[int, _Host] = {}

    def host_for(size: int) -> _Host:
        """Return one host for all traces of the update, because it remembers which steps had their noise."""
        if size not in hosts:
            if hosts:
                advice = "A plan is for one model: make another plan for another."
                raise InvalidInputError(
                    "the number of gradient entries", size, f"{next(iter(hosts))}", advice
                )
            # The grid covers the rounding of sums to the grid, but not the sums themselves.
            grid = Grid(mechanism.noise_multiplier, clip, rows, 0.0, size)
            hosts[size] = _Host(grid, batches.key, expected, batches.start, mechanism.total_steps)
        return hosts[size]

    def init(parameters: Any) -> Any:
        require_precise(jax.tree.leaves(parameters), "a parameter")
        return jax.numpy.int32(batches.start)

    def update(gradient: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        del params
        leaves, structure = jax.tree.flatten(gradient)
        require_precise(leaves, "a gradient")
        host = host_for(sum(leaf.size for leaf in leaves))
        shapes = [jax.eval_shape(lambda leaf=leaf: leaf) for leaf in leaves]
        noisy = io_callback(host.add, shapes, state, *leaves, ordered=True)
        return jax.tree.unflatten(structure, noisy), state + 1

    return optax.GradientTransformation(init, update)
