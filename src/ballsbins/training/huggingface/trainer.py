"""`PrivateTrainer`: a `transformers.Trainer` whose steps are those of a Mechanism.

Trainer keeps its loop, its arguments, its callbacks and its checkpoints. Everything that affects privacy is replaced:
the batches (`get_train_dataloader`), the loss (`training_step`), the gradients (`make_private` wraps model and
optimizer, and nothing goes through Accelerate's `prepare`) and the position to resume from (`_init_training_state`:
the run knows its next step, so Trainer skips nothing).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ballsbins.errors import InvalidInputError
from ballsbins.mechanism import Mechanism
from ballsbins.report import Card
from ballsbins.samplers import Key
from ballsbins.training.huggingface import refusals
from ballsbins.training.huggingface.batches import Shapes
from ballsbins.training.huggingface.loop import PrivateLoop, TrueEpoch
from ballsbins.training.huggingface.losses import kind_of, loss_for, loss_from
from ballsbins.training.huggingface.plan import columns_of, mechanism_for, not_covered_by, rows_of, unit_of


class PrivateTrainer(PrivateLoop):
    """Train a transformers model, with or without PEFT, with differential privacy.

    It takes all arguments of `transformers.Trainer`, and those below. `args.max_grad_norm` is the norm C to clip each
    example's gradient to. One step has `per_device_train_batch_size · gradient_accumulation_steps · processes`
    examples on average; the first factor limits how many are in memory at a time. `compute_loss_func(outputs,
    labels, num_items_in_batch)` must return one loss for each example; `num_items_in_batch` is always None.

    Args:
        args: arguments of Trainer, by position or name.
        mechanism: the mechanism to run. Or leave it out and state a target (`epsilon`, `delta`): the noise then
            follows from the target, from `num_train_epochs` or `max_steps`, and from the batch size of `args`.
        epsilon: the ε to stay within.
        delta: the δ at which ε holds; also the default of `card`.
        key: a master key (`Key.from_file`), from which every run derives its own key; an integer is a seed for
            experiments.
        grad_sample_mode: "hooks", which covers floating point, or "ghost", which needs less memory.
        privacy_unit: what a row is: "row", "packed row" or "document". Required for language models.
        document_ids: for "document", the document of each row.
        ledger: a file to which every step is written before it is taken.
        lost_steps: what became of steps that are in the ledger but not in the checkpoint.
        data_fingerprint: any text that identifies your data; a resumed run then repeats bit for bit.
        allow_uncovered: continue although the test of the machine failed. The card then says so.
        options: arguments of Trainer, by name.

    Raises:
        InvalidInputError: an argument of Trainer or of this class is not usable; the error names the change to make.

    Example:
        >>> import tempfile, torch
        >>> from transformers import BertConfig, BertForSequenceClassification, TrainingArguments
        >>> config = BertConfig(vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        ...                     intermediate_size=8, max_position_embeddings=8)
        >>> rows = [{"input_ids": [2, 3 + i % 9], "labels": i % 2} for i in range(12)]
        >>> args = TrainingArguments(tempfile.mkdtemp(), num_train_epochs=1, per_device_train_batch_size=4,
        ...                          use_cpu=True, report_to=[], disable_tqdm=True, save_strategy="no")
        >>> trainer = PrivateTrainer(BertForSequenceClassification(config), args, train_dataset=rows,
        ...                          epsilon=8.0, delta=1e-2, key=1)
        >>> output = trainer.train()
        {...}
        >>> trainer.as_run() == trainer.mechanism
        True
    """

    def __init__(
        self,
        *args: Any,
        mechanism: Mechanism | None = None,
        epsilon: float | None = None,
        delta: float | None = None,
        key: Key | bytes | int,
        grad_sample_mode: str = "hooks",
        privacy_unit: str | None = None,
        document_ids: Sequence[Any] | None = None,
        ledger: str | os.PathLike[str] | None = None,
        lost_steps: str | None = None,
        data_fingerprint: str | None = None,
        allow_uncovered: bool = False,
        **options: Any,
    ) -> None:
        """Make a trainer; nothing is drawn before `train`."""
        super().__init__(*args, **options)
        model = self._plain_model()
        kind = kind_of(model)
        refusals.refuse_arguments(self.args, grad_sample_mode, kind, self.accelerator.mixed_precision)
        refusals.refuse_checkpointing(self.model, self.args, grad_sample_mode)
        refusals.refuse_collator(self.data_collator)
        if grad_sample_mode == "ghost":
            refusals.refuse_tied(self.model)
        rows = rows_of(self.train_dataset)
        columns = columns_of(self.train_dataset)
        self.privacy_unit = unit_of(privacy_unit, kind, columns, document_ids, rows)
        self.mechanism = mechanism_for(self.args, rows, mechanism, epsilon, delta)
        self.delta, self.grad_sample_mode = delta, grad_sample_mode
        if self.compute_loss_func is not None:
            self._loss = loss_from(self.compute_loss_func)
        else:
            self._loss = loss_for(model, self.args.label_smoothing_factor)
        self.label_smoother = None  # smoothing is part of the loss above; evaluation shows the plain loss
        self._options = {
            "max_grad_norm": self.args.max_grad_norm,
            "key": key,
            "grad_sample_mode": grad_sample_mode,
            "ledger": ledger,
            "lost_steps": lost_steps,
            "data_fingerprint": data_fingerprint,
            "allow_uncovered": allow_uncovered,
        }
        self._shapes = Shapes()
        self.callback_handler.callbacks.insert(0, TrueEpoch(self.mechanism.sampler.steps))

    def _plain_model(self) -> Any:
        model = self.model
        return model.get_base_model() if hasattr(model, "get_base_model") else model

    def card(
        self,
        delta: float | None = None,
        *,
        metrics: Mapping[str, Any] | None = None,
        not_covered: Sequence[str] = (),
    ) -> Card:
        """Make the card of the run so far: `card().statement().markdown()` is the text to publish.

        Args:
            delta: the δ at which ε is claimed; by default the δ of the target.
            metrics: the quality of the model, on data that was not used for training.
            not_covered: what else was done with the data, such as choosing hyperparameters.

        Returns:
            The card, with the unit of privacy among its details.

        Raises:
            InvalidInputError: no δ is known.
            RunError: no step was taken.
        """
        delta = self.delta if delta is None else delta
        if delta is None:
            raise InvalidInputError("delta", None, "stated", "An ε means nothing without its δ.")
        loader = self._made.loader
        card = loader.card(
            delta, metrics=metrics, not_covered=(*not_covered, *not_covered_by(self.privacy_unit))
        )
        details = {
            **card.details,
            "privacy_unit": self.privacy_unit,
            "grad_sample_mode": self.grad_sample_mode,
        }
        return replace(card, details=details)
