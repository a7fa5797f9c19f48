"""Trainer's loop, with the batches, the loss and the gradients of a private run instead of its own.

Two of the methods overridden here are internals of `transformers.Trainer`: `_init_training_state` (the run knows its
next step, so nothing is skipped) and `_prepare_for_training` (nothing goes through Accelerate's `prepare`). Two more
keep gradients out of logs: `_clip_grad_norm` and `_get_grad_norm`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from torch import nn
from transformers import Trainer, TrainerCallback
from transformers.pytorch_utils import Conv1D

from ballsbins.errors import InvalidInputError, RunError
from ballsbins.mechanism import Mechanism
from ballsbins.training.huggingface.batches import OneRowPerExample, Piece, Pieces, Shapes, drawn_from
from ballsbins.training.huggingface.losses import ExampleLosses, Loss
from ballsbins.training.huggingface.plan import require_not_packed
from ballsbins.training.torch import BallsBinsLoader, make_private
from ballsbins.training.torch.example_check import require_own_gradients
from ballsbins.training.torch.ghost_clipping import linear_norms

NOT_PRIVATE = "_not_private"  # suffix for names of logged values without noise
_PADDED = "rows are padded to the longest of their batch, so that one example decides the shape of others"


@dataclass
class _Private:
    """The objects that `make_private` returned for one run."""

    model: Any
    optimizer: Any
    criterion: Any  # in ghost mode
    loader: BallsBinsLoader
    lookups: OneRowPerExample


class PrivateLoop(Trainer):
    """The overridden methods of Trainer; `PrivateTrainer` fills in the plan."""

    model: Any
    optimizer: Any
    mechanism: Mechanism
    privacy_unit: str
    grad_sample_mode: str
    _loss: Loss
    _options: dict[str, Any]  # options of make_private
    _shapes: Shapes
    _private: _Private | None = None

    @property
    def _made(self) -> _Private:
        if self._private is None:
            raise RunError("Nothing was trained yet. Call train() first.")
        return self._private

    def as_run(self) -> Mechanism | None:
        """Return the mechanism as far as it was run, from which the privacy follows.

        Returns:
            The mechanism with the steps actually taken; None before the first one.
        """
        return None if self._private is None else self._private.loader.as_run()

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train once, as Trainer does; afterwards the model has no hooks left.

        Args:
            args: arguments of `Trainer.train`, by position.
            kwargs: arguments of `Trainer.train`, such as `resume_from_checkpoint`.

        Returns:
            The result of `Trainer.train`.
        """
        try:
            # token ids have no gradients, and Opacus' hooks make torch warn about it
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="Full backward hook is firing")
                return super().train(*args, **kwargs)
        finally:
            if self._private is not None:
                self._private.model.remove_hooks()
                self._private.lookups.remove()

    # The inputs of Trainer's loop.

    def get_train_dataloader(self) -> Any:
        """Begin the run and return its batches in pieces.

        Returns:
            An iterable for Trainer's loop. It cannot be prepared or skipped, nor divided between processes.

        Raises:
            RunError: this trainer has already taken steps.
        """
        if self.as_run() is not None:
            raise RunError(
                "This trainer has trained already. To go on from a checkpoint after a stop, or to begin another run, "
                "make a new PrivateTrainer; another run on the same data costs privacy of its own."
            )
        if self._private is None:
            self._private = self._make_private()
        args = self.args
        return Pieces(
            self._private.loader, args.gradient_accumulation_steps, args.per_device_train_batch_size
        )

    def _make_private(self) -> _Private:
        self.model.train()  # Opacus requires training mode
        optimizer = self.create_optimizer()
        dataset, self._collate = self._columns_removed(self.train_dataset)
        lookups = OneRowPerExample(self.model)
        several = self.args.world_size > 1
        workers: dict[str, Any] = {"num_workers": self.args.dataloader_num_workers}
        if workers["num_workers"]:
            workers["prefetch_factor"] = self.args.dataloader_prefetch_factor
            workers["persistent_workers"] = self.args.dataloader_persistent_workers
            workers["multiprocessing_context"] = self.args.dataloader_multiprocessing_context
        ghost = self.grad_sample_mode == "ghost"
        made = make_private(
            self.mechanism,
            DifferentiallyPrivateDistributedDataParallel(self.model) if several else self.model,
            optimizer,
            dataset,
            criterion=ExampleLosses(self._loss) if ghost else None,
            collate_fn=list,
            **self._options,
            **workers,
        )
        if ghost:
            made[0].NORM_SAMPLERS[Conv1D] = linear_norms
        made[1].passes.watch = None  # `_check_one_example` checks both the model and the loss
        return _Private(made[0], made[1], made[2] if ghost else None, made[-1], lookups)

    def _columns_removed(self, dataset: Any) -> tuple[Any, Any]:
        """Remove columns that the model does not take from the data set or from examples, as Trainer does."""
        if hasattr(dataset, "remove_columns"):
            return self._remove_unused_columns(dataset, description="training"), self.data_collator
        return dataset, self._get_collator_with_removed_columns(self.data_collator, description="training")

    def _init_training_state(self, *args: Any, **kwargs: Any) -> tuple[int, int]:
        """Begin at the run's position, so that Trainer skips no batches."""
        epochs, _ = super()._init_training_state(*args, **kwargs)
        return epochs, 0

    def _prepare_for_training(
        self, max_steps: int, train_dataloader: Any, resume_from_checkpoint: Any
    ) -> tuple[Any, Any]:
        """Hand the private model and optimizer to the loop; nothing goes through Accelerate."""
        made = self._made
        self.optimizer, self.model_wrapped = made.optimizer, made.model
        self.create_scheduler(num_training_steps=max_steps)
        if resume_from_checkpoint is not None:
            self._resume(Path(resume_from_checkpoint), max_steps)
        handler = self.callback_handler
        handler.model, handler.optimizer, handler.lr_scheduler = self.model, self.optimizer, self.lr_scheduler
        handler.train_dataloader = train_dataloader
        return made.model, train_dataloader

    def _resume(self, checkpoint: Path, max_steps: int) -> None:
        missing = [name for name in ("optimizer.pt", "scheduler.pt", "trainer_state.json")
                   if not (checkpoint / name).is_file()]  # fmt: skip
        if missing:
            raise InvalidInputError(
                "the set of files that this checkpoint lacks", missing, "empty",
                "Without them nobody knows how many steps were taken. Save checkpoints with save_only_model=False.",
            )  # fmt: skip
        self._load_optimizer_and_scheduler(str(checkpoint))
        taken = self._made.loader._run.steps_taken
        if taken != self.state.global_step:
            raise RunError(
                f"The optimizer of this checkpoint is of step {taken:,}, but Trainer's state is of step "
                f"{self.state.global_step:,}: files of two checkpoints were mixed. Resume from a whole one."
            )
        if taken >= max_steps:
            raise RunError(
                f"The run of this checkpoint is over: it has taken {taken:,} of {max_steps:,} steps. To train "
                "longer, begin with a mechanism of more epochs: a longer run costs more privacy."
            )

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], None]:
        """Take the pieces of a batch; do not count tokens, because nothing may be divided by their number.

        Args:
            epoch_iterator: iterator over pieces.
            num_batches: the number of pieces in a batch.
            device: not used.

        Returns:
            The pieces, and None instead of a number of tokens.
        """
        return list(islice(epoch_iterator, num_batches)), None

    # One step.

    def training_step(
        self, model: nn.Module, inputs: Any, num_items_in_batch: torch.Tensor | int | None = None
    ) -> torch.Tensor:
        """Clip and sum the gradients of a piece of a batch; Trainer takes the step after its last piece.

        Args:
            model: the model as wrapped by `make_private`.
            inputs: a piece.
            num_items_in_batch: not used.

        Returns:
            The contribution of this piece to the batch's mean loss; not private.
        """
        piece: Piece = inputs
        run = self._made.loader._run
        model.train()
        total = torch.zeros((), device=self.args.device)
        for number, examples in piece.chunks:
            with drawn_from(run.key, "model", run.steps_taken, number, run.rank):
                batch = self._prepare_inputs(self._collate(examples))
                require_not_packed(self.privacy_unit, batch)
                self._shapes.see(batch)
                if number == 0 and self._made.optimizer.is_time_to_check():
                    self._check_one_example(batch)
                self.optimizer.zero_grad()
                total += self._backward(model, batch) / piece.examples
            self.optimizer.signal_skip_step(do_skip=number < piece.last)
            if number < piece.last:
                self.optimizer.step()
        if piece.final and self._shapes.differ(self.args.device, run.world_size):
            run.leave_uncovered(_PADDED)
        return total

    def _backward(self, model: Any, batch: dict[str, Any]) -> torch.Tensor:
        """Run the forward and backward passes; return the sum of the losses."""
        inputs, labels = self._split(batch)
        with self.accelerator.autocast():
            outputs = model(**inputs)
        if self._made.criterion is None:
            losses: Any = self._loss(outputs, labels)
            losses.mean().backward()
            return losses.detach().sum()  # type: ignore[no-any-return]
        checked = self._made.criterion(outputs, labels)
        checked.backward()
        return checked.loss_per_sample.detach().sum()  # type: ignore[no-any-return]

    def _split(self, batch: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """Separate inputs and labels: with labels, the model would compute its own loss."""
        inputs = {name: value for name, value in batch.items() if name not in self.label_names}
        labels = {name: batch[name] for name in self.label_names if name in batch}
        if not labels:
            raise InvalidInputError(
                "the set of columns",
                sorted(batch),
                f"with {', '.join(self.label_names)}",
                "A loss needs labels.",
            )
        return inputs, labels

    def _check_one_example(self, batch: dict[str, Any]) -> None:
        """Compare one example's gradient within its batch and alone."""
        # With bfloat16, Accelerate replaces `forward` for evaluation; compare gradients in full precision.
        forward = getattr(self.model, "_original_forward", self.model)

        def losses_of(part: Mapping[str, Any]) -> torch.Tensor:
            inputs, labels = self._split(part)
            return self._loss(forward(**inputs), labels)

        self._made.model.disable_hooks()
        try:
            require_own_gradients(self.model, batch, losses_of)
        finally:
            self._made.model.enable_hooks()

    # Logging.

    def _clip_grad_norm(self, model: nn.Module) -> None:
        """Do nothing: each example is clipped already, and the norm of gradients without noise must stay secret."""

    def _get_grad_norm(self, model: nn.Module, grad_norm: float | None = None) -> None:
        """Return no norm, because Trainer would log it."""

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log with names that show which values come from training data and have no noise.

        Args:
            logs: names and values.
            start_time: the start time of the training.
        """
        for name in ("loss", "train_loss"):
            if name in logs:
                logs[f"{name}{NOT_PRIVATE}"] = logs.pop(name)
        logs.pop("grad_norm", None)
        super().log(logs, start_time)

    def floating_point_ops(self, inputs: Any) -> int:
        """Count none, because their number reveals the sizes of batches, which are secret.

        Args:
            inputs: not used.

        Returns:
            Zero.
        """
        return 0

    def hyperparameter_search(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse, because every trial is a run on the same data.

        Args:
            args: not used.
            kwargs: not used.

        Returns:
            Nothing.

        Raises:
            RunError: always.
        """
        raise RunError(
            "Every trial of a search is a run on the same data and costs privacy of its own, which no card of one "
            "run states. Choose hyperparameters on public data, or use one PrivateTrainer for each and add up costs."
        )


class TrueEpoch(TrainerCallback):
    """Count epochs by the steps taken, even in an epoch that was resumed in the middle."""

    def __init__(self, steps: int) -> None:
        """Take the number of steps per epoch."""
        self._steps = steps

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Correct Trainer's count."""
        state.epoch = state.global_step / self._steps
