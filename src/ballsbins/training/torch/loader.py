"""A DataLoader over the batches of a Mechanism, that knows where the run is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset, Sampler, default_collate

from ballsbins.errors import InvalidInputError, RunError
from ballsbins.mechanism import Mechanism
from ballsbins.noise import SOURCE
from ballsbins.report import Card
from ballsbins.training.torch.accountant import BallsBinsAccountant
from ballsbins.training.torch.guarded_run import GuardedRun

Collate = Callable[[list[Any]], Any]


class StandInCollate:
    """Collate as `collate` does, and an empty batch as if it held one example, the stand-in.

    An empty batch is a step of noise alone. Tensors without rows would say so, but many models, losses and some of
    Opacus' own layers fail on them, and `collate` need not know how to make them. So the model sees the stand-in, a
    valid example in whatever structure the data has, and the optimizer puts zero in place of its gradient.
    """

    def __init__(self, collate: Collate | None, stand_in: Any) -> None:
        """Keep one example of the data set to stand in."""
        self.collate: Collate = default_collate if collate is None else collate
        self._stand_in = stand_in

    def __call__(self, examples: list[Any]) -> Any:
        """Collate a batch."""
        return self.collate(examples if examples else [self._stand_in])


OURS = ("batch_size", "shuffle", "sampler", "batch_sampler", "drop_last", "in_order")


class BatchesSampler(Sampler[list[int]]):
    """The batch sampler: gives, at every iteration, the batches from the next step to the end of its epoch.

    It has no `batch_size` and no `drop_last`, and is not a torch BatchSampler: frameworks that would replace or
    deal out such a sampler refuse this one. `state_dict` is torchdata's protocol, so it also works in a
    StatefulDataLoader.
    """

    def __init__(self, run: GuardedRun) -> None:
        """Draw from a run."""
        self.run = run

    def __iter__(self) -> Iterator[list[int]]:
        """Begin at the next step; an epoch more than the mechanism has is refused."""
        return self.run.begin()

    def __len__(self) -> int:
        """Count the steps of the current epoch: T, or fewer in an unfinished last one."""
        return self.run.steps_of_epoch()

    def state_dict(self) -> dict[str, Any]:
        """Where this sampler is: after the last batch that it gave."""
        return self.run.drawn_state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to where a saved sampler or loader was."""
        self.run.load_state_dict(state)

    def __repr__(self) -> str:
        """Show the mechanism, nothing that is drawn."""
        return f"BatchesSampler({self.run.mechanism!r})"


class BallsBinsLoader(DataLoader[Any]):
    """A DataLoader over the batches of a Mechanism. Every iteration is the next epoch, or the rest of one begun.

    Formal guarantees: the j-th batch that is trained on is the j-th batch of the mechanism, whatever is peeked at,
    broken off, saved or resumed; `len` is the exact number of steps of the epoch, on every rank; no batch is skipped.
    """

    def __init__(
        self, dataset: Dataset[Any], run: GuardedRun, accountant: BallsBinsAccountant, **options: Any
    ) -> None:
        """Take the options of a DataLoader, but those that choose batches or their order."""
        wrong = sorted(set(OURS) & set(options))
        if wrong:
            raise InvalidInputError(
                "the set of loader options",
                wrong,
                f"without {', '.join(OURS)}",
                "The mechanism draws the batches.",
            )
        collate = StandInCollate(options.pop("collate_fn", None), dataset[0])
        super().__init__(dataset, batch_sampler=BatchesSampler(run), collate_fn=collate, **options)
        self.accountant = accountant
        self._run = run

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """Begin the next epoch, or go on with the one that was begun."""
        first = self._run.steps_taken
        return self._watched(super().__iter__(), first)

    def _watched(self, batches: Iterator[Any], position: int) -> Iterator[Any]:
        """Give the batches, and tell the run which one the training loop has in hand."""
        for batch in batches:
            self._run.gave(position)
            position += 1
            yield batch
        self._run.ended()

    @property
    def mechanism(self) -> Mechanism:
        """The mechanism as planned."""
        return self._run.mechanism

    def as_run(self) -> Mechanism | None:
        """The mechanism as far as it was run, which answers for its privacy; None before the first step."""
        return self._run.as_run()

    def leave_out(self, examples: NDArray[np.integer]) -> None:
        """Put ⊥ in the place of examples, before the first step: they are drawn as all others, and in no batch.

        That is what zero-out adjacency compares with. Audits do it to half of their canaries.
        """
        self._run.leave_out(examples)

    def card(
        self, delta: float, *, metrics: Mapping[str, Any] | None = None, not_covered: Sequence[str] = ()
    ) -> Card:
        """The card of the run so far, with its privacy statement: `card(1e-6).statement().markdown()`.

        Say in `not_covered` what else was done with the data, such as choosing hyperparameters.
        """
        run, mechanism = self._run, self.as_run()
        run.require_no_loss()
        if mechanism is None:
            raise RunError("No step was taken, so there is nothing to state. Train first.")
        details: dict[str, Any] = {}
        if run.repeats:
            times = 1 + run.repeats
            details["repeated_steps"] = (
                f"Steps of this run were taken up to {times} times, because a process was stopped after its last "
                f"checkpoint. Each has noise of {run.mechanism.noise_multiplier!r} times the clip norm. The claim "
                f"counts all of them: it is that of a run with the noise multiplier divided by √{times}."
            )
        if run.clip_norms.single is None:
            details["clip_norms"] = run.clip_norms.in_words()
        return Card(
            mechanism,
            delta,
            clip_norm=run.clip_norms.single,
            num_examples=run.num_examples,
            planned=None if mechanism == run.accounted else run.accounted,
            metrics=dict(metrics or {}),
            not_covered=(*not_covered, *run.not_covered()),
            key_commitment=run.key.commitment(),
            key_secret=run.key.is_secret,
            run=run.key.run,
            noise=SOURCE,
            floating_point=run.floating_point(),
            normaliser=run.normaliser,
            details=details,
        )

    def state_dict(self) -> dict[str, Any]:
        """What to save beside model and optimizer: public facts, the position and the key's commitment."""
        return self._run.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to where the saved run was; another mechanism, data set or key is refused."""
        self._run.load_state_dict(state)
