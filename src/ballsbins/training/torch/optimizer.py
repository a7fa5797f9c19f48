"""Opacus optimizers in which every noisy step is checked against the run and takes its noise from the key.

`summed_grad` of every parameter holds the sum of clipped gradients in units of the run's grid: integers, as float64.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from opacus.optimizers.optimizer import _check_processed_flag, _mark_as_processed

from ballsbins.errors import InvalidInputError, RunError
from ballsbins.noise.draw import NoiseAhead
from ballsbins.training.grid import Grid
from ballsbins.training.torch.clipped_sums import COARSE, clipped_sum, on_grid, write_gradients
from ballsbins.training.torch.guarded_run import GuardedRun
from ballsbins.training.torch.watched_model import TrainingPasses

RUN = "ballsbins"  # the name of the run's state in a saved optimizer
_OTHER_NOISE = (
    "Leave it as it is, and use no scheduler for it. For other noise in later epochs end this run with its last "
    "epoch and give its model and optimizer to make_private again, with the next Mechanism; Total adds up both."
)
_OTHER_CLIP = (
    "Leave it as it is, and use no scheduler for it. For a schedule give make_private(max_grad_norm=…) a function of "
    "the number of the step."
)
_PUBLIC_DATA = (
    "That the inputs of public passes depended on no example of the data set: by the word of the operator"
)


class _Guarded:
    """Mixed in before an Opacus optimizer class; Opacus calls `add_noise` once for each step really taken."""

    run: GuardedRun
    steady_grid: Grid  # of the first step; clip norms may change it
    noise: NoiseAhead
    module: Any  # the model as Opacus wraps it
    rows: int  # the number of per-example gradients clipped and summed for the next step
    finite: bool  # whether all of them were finite
    passes: TrainingPasses  # forward passes since the last call of `step`
    takes_public_passes: bool
    clipped: list[tuple[Any, int]] | None  # gradients and their versions, as ghost clipping left them
    params: list[Any]
    grad_samples: list[Any]
    noise_multiplier: float
    max_grad_norm: float
    original_optimizer: torch.optim.Optimizer
    _step_skip_queue: list[bool]
    _is_last_step_skipped: bool

    @property
    def grid(self) -> Grid:
        """The grid of the next step: its unit is proportional to the clip norm."""
        norm = self.run.clip_norms.at(self.run.steps_taken)
        if norm != self.steady_grid.clip_norm:
            self.steady_grid = replace(self.steady_grid, clip_norm=norm)
        return self.steady_grid

    def clip_and_accumulate(self) -> None:
        """Clip every example's gradient, round it to the grid and add it to the sum (with hooks)."""
        self._require_one_pass()
        parameters, samples = self.params, self.grad_samples
        require_precise(parameters)
        for parameter in parameters:
            _check_processed_flag(parameter.grad_sample)
            _mark_as_processed(parameter.grad_sample)
        if self.passes.watch is not None:
            self.passes.watch.require(len(samples[0]))
        self.rows += len(samples[0])
        self._add(clipped_sum(samples, self.grid, self.run.clip_norms.limits) or [None] * len(parameters))

    def accumulate(self) -> None:
        """Round the gradients clipped in the backward pass to the grid and add them up (ghost clipping)."""
        self._require_one_pass()
        require_precise(self.params)
        clipped, self.clipped = self.clipped, None
        found = [(parameter.grad, parameter.grad._version) for parameter in self.params if clipped]
        if clipped is None or any(
            a is not b or was != now for (a, was), (b, now) in zip(clipped, found, strict=True)
        ):
            raise RunError(
                "The gradients are not, or not alone, those that ghost clipping left: what another loss adds is not "
                "clipped. Call backward once for each batch, on the loss of the criterion that make_private "
                "returned; add up several such losses first; change no gradient before the step."
            )
        self.rows += len(self.module.per_sample_gradient_norms)
        sums = [on_grid(parameter.grad, self.grid.unit) for parameter in self.params]
        self._add(sums)

    def _add(self, sums: Sequence[torch.Tensor | None]) -> None:
        """Add integers to the sums of earlier physical batches; exact in any order. None: refuse the step."""
        for parameter, found in zip(self.params, sums, strict=True):
            self.finite &= found is not None
            if found is None or parameter.summed_grad is None:
                parameter.summed_grad = (
                    torch.zeros_like(parameter, dtype=torch.float64) if found is None else found
                )
            else:
                parameter.summed_grad += found

    def note_clipped(self) -> None:
        """Remember the gradients that ghost clipping has just left (called by its loss)."""
        known = {id(parameter) for parameter in self.module.trainable_parameters}
        if not known.issuperset(map(id, self.params)):
            raise RunError(
                "A parameter was unfrozen, or given to the optimizer, after make_private: ghost clipping does not "
                "know it and would leave its gradient unclipped. Freeze and add parameters before make_private."
            )
        self.clipped = [(parameter.grad, parameter.grad._version) for parameter in self.params]

    def is_time_to_check(self) -> bool:
        """Whether to check norms or the loss at this step: at 0, 1, 2, 4, 8 and so on, which costs almost nothing."""
        return self.run.steps_taken & (self.run.steps_taken - 1) == 0

    def _require_one_pass(self) -> None:
        passes, have_equal_rows = self.passes.take()
        if passes > 1:
            self.run.require_batch()  # gives a clearer error if the calls were for several batches
            raise RunError(
                f"The model was called {passes} times for one step. Opacus adds up the gradients of such calls row "
                "by row, and if an example is not in the same row of each it is clipped with others and counts "
                "twice. Call the model once: give it both inputs, and let its forward() use its layers on each. "
                "Call it inside `with optimizer.public_pass():` on data that depends on no example, such as what a "
                "GAN generates from random numbers. Evaluate under torch.no_grad()."
            )
        if not have_equal_rows:
            raise RunError(
                "The passes of this step had different numbers of rows. Every example needs one row of public data: "
                "draw as many as the batch has examples, torch.randn(len(batch), …); otherwise leaving one example "
                "out would change with what others are clipped."
            )

    @contextmanager
    def public_pass(self) -> Iterator[None]:
        """Within this context, call the model on data that depends on no example, as for the discriminator of a GAN.

        You vouch for this, and the card says so: such data comes only from random numbers and released parameters.
        It must have as many rows as the batch. The contribution of row i to the gradient is clipped together with
        the i-th example, to C as usual. Add both losses of the step and call backward once on the sum. Work between
        steps, such as training the generator, must not depend on the size of the batch, which is secret; call
        `zero_grad` after it.

        Raises:
            RunError: the mode is "ghost" or "ew", which allow only one call for each step.
        """
        if not self.takes_public_passes:
            raise RunError(
                "public_pass works with grad_sample_mode='hooks' and 'functorch', which add up the gradients of "
                "several calls for each example; the mode of this run does not. Choose one of these in make_private."
            )
        with self.passes.public():
            yield
        self.run.vouch(_PUBLIC_DATA)

    def zero_grad(self, set_to_none: bool = False) -> None:
        """Clear gradients, and forget which losses they came from."""
        self.passes.forget_gradients()
        super().zero_grad(set_to_none)  # type: ignore[misc]

    def add_noise(self) -> None:
        """Check that this step is the next one of the mechanism, then add its noise to the sums of gradients."""
        examples = self._require_ranks_in_step()
        self.run.require_batch()
        planned = self.run.mechanism.noise_multiplier
        self._require_unchanged("noise_multiplier", self.noise_multiplier, planned, _OTHER_NOISE)
        # Under ghost clipping the model keeps its own clip norm, which a scheduler of the optimizer does not change.
        clip = self.run.clip_norms.at(0)
        self._require_unchanged("max_grad_norm", self.max_grad_norm, clip, _OTHER_CLIP)
        own = getattr(self.module, "max_grad_norm", clip)
        self._require_unchanged("max_grad_norm of the model", own, clip, _OTHER_CLIP)
        self._require_rows(examples)
        parameters = self.params
        require_precise(parameters)
        for parameter in parameters:
            _check_processed_flag(parameter.summed_grad)
            _mark_as_processed(parameter.summed_grad)
            if not self.run.examples_of_batch():  # the sum is the gradient of the stand-in
                parameter.summed_grad.zero_()
            if self.run.world_size > 1:
                torch.distributed.all_reduce(parameter.summed_grad)  # integers: exact in any order
        count = sum(parameter.numel() for parameter in parameters)
        if count != self.grid.dense + self.grid.scattered:
            raise RunError(
                f"The optimizer has {count:,} parameters to train, but {self.grid.dense + self.grid.scattered:,} "
                "when make_private was called, for which its noise was planned. Freeze and add parameters before "
                "that."
            )
        device = parameters[0].device.type
        self.run.devices.add(device)
        sums = [parameter.summed_grad for parameter in parameters]
        domain = self.run.noise_domain(parameters, sums, device)
        if self.run.world_size > 1:  # machines may differ in what the noise is bound to; rank 0 decides
            shared = [domain]
            torch.distributed.broadcast_object_list(shared, src=0)
            domain = shared[0]
        self.run.record(domain)
        # Each rank adds the same noise once to the sum over all ranks, so parameters stay equal bit for bit.
        write_gradients(parameters, self.noise.of(self.run.key, domain, count), self.grid.unit)
        after = self.run.next_domain()
        if after is not None:
            self.noise.begin(self.run.key, after, count)

    def reduce_gradients(self) -> None:
        """Do nothing: the integers were already summed over the ranks before the noise was added."""

    def _require_ranks_in_step(self) -> int:
        """Count the examples of the step on all ranks; refuse ranks at different steps or in different runs."""
        run = self.run
        finite, self.finite = self.finite, True
        examples = run.examples_of_batch() if run.steps_taken < run.total_steps else 0
        # The gradient of an empty batch's stand-in is not used, so it need not be finite.
        broken = int(not finite and examples > 0)
        name = int.from_bytes(hashlib.sha256(str(run.key.run).encode()).digest()[:7], "little")
        mine = torch.tensor([run.steps_taken, name, broken, examples, run.repeats, run.repeated_to])
        if run.world_size > 1:
            mine = mine.to(self.params[0].device)
            found = [torch.empty_like(mine) for _ in range(run.world_size)]
            torch.distributed.all_gather(found, mine)
        else:
            found = [mine]
        steps, names, brokens, counts, repeats, repeated = torch.stack(found).T.tolist()
        if min(steps) != max(steps) or len(set(names)) > 1:
            raise RunError(
                f"Rank {run.rank} is at step {run.steps_taken:,} of run {run.key.run}, while others are at "
                f"{min(steps):,} to {max(steps):,}, or of another run: their shares are of different batches, and "
                "examples would be seen twice or never. Load the same checkpoint on every rank, or on none."
            )
        run.count_repeats(max(repeats), max(repeated))  # only rank 0 reads the ledger
        if any(brokens):
            self._refuse_not_finite()
        return int(sum(counts))

    def _require_rows(self, examples: int) -> None:
        """Refuse a number of rows that differs from the batch, or that exceeds what the grid was planned for."""
        mine, rows, self.rows = self.run.examples_of_batch(), self.rows, 0
        if rows != max(mine, 1):
            raise RunError(
                "The model has not as many rows as its batch has examples, and each row is clipped by itself. More "
                "rows: an example counts several times as much as the noise hides. Fewer: examples share a row, or "
                "these are not the examples of this step. Let collate_fn give one row for each example and leave "
                "none out, keep the batch in the first dimension, and step on each batch in turn."
            )
        if examples > self.grid.rows:
            raise RunError(
                f"A batch has more examples than the {self.grid.rows:,} whose sum cannot overflow in units of the "
                "grid. Take more steps per epoch, or a sampler with max_batch_size."
            )

    def _require_unchanged(self, name: str, value: float, planned: float, advice: str) -> None:
        if value != planned:
            raise RunError(
                f"optimizer.{name} is {value!r}, but {planned!r} is what the run was planned with. {advice}"
            )

    def _refuse_not_finite(self) -> None:
        step = self.run.steps_taken
        epoch, within = divmod(step, self.run.mechanism.sampler.steps)
        raise RunError(
            f"A gradient is not finite at step {step:,} (epoch {epoch}, step {within:,} of it); the model was not "
            "changed by it. Look for an overflow or a division by zero in the loss, or lower the learning rate. Do "
            "not publish that it stopped, or where: no noise hides that."
        )

    def forget_pieces(self) -> None:
        """Forget the pieces of a batch that a BatchMemoryManager left unfinished: the batch starts again.

        Opacus would keep their sum and its queued signals, and count those examples twice.
        """
        self.passes.take()
        self.passes.forget_gradients()
        self.rows, self.finite = 0, True
        self._step_skip_queue.clear()
        self._is_last_step_skipped = False
        for parameter in self.params:
            parameter.summed_grad = None

    def state_dict(self) -> dict[str, Any]:
        """The states of the wrapped optimizer and of the run: frameworks save both, so no step is ever forgotten."""
        saved: dict[str, Any] = self.original_optimizer.state_dict()
        return saved | {RUN: self.run.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load both states. Refuse one without the run: training would continue without counting past steps."""
        if RUN not in state_dict:
            raise InvalidInputError(
                "the set of fields of this optimizer state",
                sorted(state_dict),
                f"with {RUN!r}",
                "Load what an optimizer of make_private saved; load other states before make_private is called.",
            )
        self.run.load_state_dict(state_dict[RUN])
        self.original_optimizer.load_state_dict(
            {name: value for name, value in state_dict.items() if name != RUN}
        )


def require_precise(parameters: list[Any]) -> None:
    """Refuse 16-bit parameters: they round sums of gradients too coarsely."""
    for parameter in parameters:
        if parameter.dtype in COARSE:
            raise RunError(
                f"Parameters of the type {parameter.dtype} round sums of gradients by more than an example may "
                "change them. Keep the model in float32; torch.autocast works with grad_sample_mode='hooks'."
            )


_classes: dict[type, type] = {}


def guard(optimizer: Any, module: Any, run: GuardedRun, grid: Grid, passes: TrainingPasses) -> None:
    """Turn an Opacus optimizer into a guarded one, in place, because Opacus' ghost criterion already refers to it."""
    kind = type(optimizer)
    if kind not in _classes:
        _classes[kind] = type(f"Guarded{kind.__name__}", (_Guarded, kind), {"__module__": __name__})
    optimizer.__class__ = _classes[kind]
    optimizer.run, optimizer.module, optimizer.passes = run, module, passes
    optimizer.steady_grid, optimizer.noise = grid, NoiseAhead()
    optimizer.rows, optimizer.finite, optimizer.clipped = 0, True, None
    run.forget_pieces = optimizer.forget_pieces
    optimizer.expected_batch_size = run.expected_batch_size  # size of the whole batch, on every rank
