"""Opacus' optimizers, whose every noisy step is checked against the run and takes its noise from the key."""

from __future__ import annotations

from typing import Any

import torch
from opacus.optimizers.optimizer import _check_processed_flag, _mark_as_processed

from ballsbins.errors import InvalidInputError, RunError
from ballsbins.training.opacus.layers import TrainingPasses
from ballsbins.training.opacus.noise import StepNoise, digest
from ballsbins.training.opacus.run import Run

RUN = "ballsbins"  # where the state of the run is in a saved optimizer
_COARSE = (torch.bfloat16, torch.float16)


class _Guarded:
    """What is put before an Opacus optimizer class; Opacus calls `add_noise` once for each step really taken."""

    run: Run
    module: Any  # the model as Opacus wraps it
    rows: int  # of per-example gradients that were clipped and summed for the next step
    passes: TrainingPasses  # forward passes since the last call of `step`
    clipped: list[tuple[Any, int]] | None  # gradients and their versions, as ghost clipping left them
    params: list[Any]
    grad_samples: list[Any]
    noise_multiplier: float
    max_grad_norm: float
    original_optimizer: torch.optim.Optimizer
    _step_skip_queue: list[bool]
    _is_last_step_skipped: bool

    def clip_and_accumulate(self) -> None:
        """Clip and sum (with hooks), in float32 at least: autocast gives gradients of 8 bits, and norms of as few."""
        self._require_one_pass()
        for parameter in self.params:
            if parameter.grad_sample.dtype in _COARSE:
                parameter.grad_sample = parameter.grad_sample.float()
        self.rows += len(self.grad_samples[0])
        super().clip_and_accumulate()  # type: ignore[misc]

    def accumulate(self) -> None:
        """Sum what was clipped in the backward pass (ghost clipping)."""
        self._require_one_pass()
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
        super().accumulate()  # type: ignore[misc]

    def note_clipped(self) -> None:
        """Remember what ghost clipping has just left (called by its loss)."""
        known = {id(parameter) for parameter in self.module.trainable_parameters}
        if not known.issuperset(map(id, self.params)):
            raise RunError(
                "A parameter was unfrozen, or given to the optimizer, after make_private: ghost clipping does not "
                "know it and would leave its gradient unclipped. Freeze and add parameters before make_private."
            )
        self.clipped = [(parameter.grad, parameter.grad._version) for parameter in self.params]

    def is_time_to_check(self) -> bool:
        """Whether ghost clipping is to check its norms: at steps 0, 1, 2, 4, 8 and so on, at next to no cost."""
        return self.run.steps_taken & (self.run.steps_taken - 1) == 0

    def _require_one_pass(self) -> None:
        passes, self.passes.count = self.passes.count, 0
        if passes > 1:
            self.run.require_batch()  # says it better where the calls were for several batches
            raise RunError(
                f"The model was called {passes} times for one step. Opacus adds up the gradients of such calls row "
                "by row, and if an example is not in the same row of each it is clipped with others and counts "
                "twice. Call the model once: give it both inputs, and let its forward() use its layers on each. "
                "Evaluate under torch.no_grad()."
            )

    def add_noise(self) -> None:
        """Check that this step is the one the mechanism has next, then add its noise to the sums of gradients."""
        self._require_ranks_in_step()
        self.run.require_batch()
        self._require_unchanged(
            "noise_multiplier", self.noise_multiplier, self.run.mechanism.noise_multiplier
        )
        # Under ghost clipping the model keeps its own clip norm, which a scheduler of the optimizer's does not reach.
        self._require_unchanged("max_grad_norm", self.max_grad_norm, self.run.clip_norm)
        own = getattr(self.module, "max_grad_norm", self.run.clip_norm)
        self._require_unchanged("max_grad_norm of the model", own, self.run.clip_norm)
        examples, rows, self.rows = self.run.examples_of_batch(), self.rows, 0
        if rows != max(examples, 1):
            raise RunError(
                "The model has not as many rows as its batch has examples, and each row is clipped by itself. More "
                "rows: an example counts several times as much as the noise hides. Fewer: examples share a row, or "
                "these are not the examples of this step. Let collate_fn give one row for each example and leave "
                "none out, keep the batch in the first dimension, and step on each batch in turn."
            )
        if not examples:  # what was summed is the gradient of the stand-in
            for parameter in self.params:
                parameter.summed_grad = torch.zeros_like(parameter.summed_grad)
        self._require_precise()
        self._require_finite()
        scale = self.noise_multiplier * self.max_grad_norm
        sums = self._digest_of_all_ranks()
        if self.run.rank == 0:  # one noise for the sum over all ranks
            noise = StepNoise(self.run.key, self.run.identity, self.run.steps_taken, sums, scale)
            for number, parameter in enumerate(self.params):
                _check_processed_flag(parameter.summed_grad)
                parameter.grad = noise.added_to(parameter.summed_grad, number).view_as(parameter)
                _mark_as_processed(parameter.summed_grad)
        else:
            for parameter in self.params:
                _check_processed_flag(parameter.summed_grad)
                parameter.grad = parameter.summed_grad.clone().view_as(parameter)
                _mark_as_processed(parameter.summed_grad)

    def _digest_of_all_ranks(self) -> bytes:
        if not self.run.key.is_secret:
            return b""
        mine = digest(parameter.summed_grad for parameter in self.params)
        if self.run.world_size == 1:
            return mine
        found: list[bytes] = [b""] * self.run.world_size
        torch.distributed.all_gather_object(found, mine)
        return b"".join(found)

    def _require_ranks_in_step(self) -> None:
        """Refuse ranks at different steps, of which one has loaded a checkpoint perhaps and another has not."""
        if self.run.world_size == 1:
            return
        step = self.run.steps_taken
        ends = torch.tensor([step, -step], device=self.params[0].device)
        torch.distributed.all_reduce(ends, op=torch.distributed.ReduceOp.MAX)
        last, first = int(ends[0]), -int(ends[1])
        if first != last:
            raise RunError(
                f"Rank {self.run.rank} is at step {step:,}, while others are at {first:,} to {last:,}: their shares "
                "are of different batches, and examples would be seen twice or never. Load the same checkpoint on "
                "every rank, or on none."
            )

    def _require_unchanged(self, name: str, value: float, planned: float) -> None:
        if value != planned:
            raise RunError(
                f"optimizer.{name} is {value!r}, but {planned!r} is what the run was planned with. "
                "Leave it as it is, and use no scheduler for it."
            )

    def _require_precise(self) -> None:
        coarse = [parameter.dtype for parameter in self.params if parameter.dtype in _COARSE]
        if coarse:
            raise RunError(
                f"Parameters of the type {coarse[0]} round sums of gradients by more than an example may change "
                "them. Keep the model in float32; torch.autocast works with grad_sample_mode='hooks'."
            )

    def _require_finite(self) -> None:
        if all(bool(torch.isfinite(parameter.summed_grad).all()) for parameter in self.params):
            return
        step = self.run.steps_taken
        epoch, within = divmod(step, self.run.mechanism.sampler.steps)
        raise RunError(
            f"A gradient is not finite at step {step:,} (epoch {epoch}, step {within:,} of it); the model was not "
            "changed by it. Look for an overflow or a division by zero in the loss, or lower the learning rate. Do "
            "not publish that it stopped, or where: no noise hides that."
        )

    def forget_pieces(self) -> None:
        """Forget the pieces of a batch that a BatchMemoryManager was broken off in: the batch begins anew.

        Opacus would keep their sum and the signals it had queued, and count those examples twice.
        """
        self.rows = self.passes.count = 0
        self._step_skip_queue.clear()
        self._is_last_step_skipped = False
        for parameter in self.params:
            parameter.summed_grad = None

    def state_dict(self) -> dict[str, Any]:
        """The wrapped optimizer's state and the run's: frameworks save this, so that no step is ever forgotten."""
        saved: dict[str, Any] = self.original_optimizer.state_dict()
        return saved | {RUN: self.run.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load both. A state without the run's is refused: the model would go on, and its past not be counted."""
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


_classes: dict[type, type] = {}


def guard(optimizer: Any, module: Any, run: Run, passes: TrainingPasses) -> None:
    """Make an Opacus optimizer a guarded one, in place: Opacus' criterion for ghost clipping already refers to it."""
    kind = type(optimizer)
    if kind not in _classes:
        _classes[kind] = type(f"Guarded{kind.__name__}", (_Guarded, kind), {"__module__": __name__})
    optimizer.__class__ = _classes[kind]
    optimizer.run, optimizer.module, optimizer.passes = run, module, passes
    optimizer.rows, optimizer.clipped = 0, None
    run.forget_pieces = optimizer.forget_pieces
    optimizer.expected_batch_size = run.expected_batch_size / run.world_size  # Opacus averages over the ranks
