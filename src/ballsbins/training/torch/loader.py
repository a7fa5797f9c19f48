"""A DataLoader over the batches of a Mechanism that keeps track of the run's position."""

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
    """Collate as `collate` does; replace an empty batch with one example, the stand-in.

    An empty batch is a step of noise alone. Tensors without rows would represent it, but many models, losses and some
    of Opacus' own layers fail on them, and `collate` may not be able to make them. So the model sees the stand-in, a
    valid example with the structure of the data, and the optimizer replaces its gradient with zero.
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
    """The batch sampler: each iteration gives the batches from the next step to the end of its epoch.

    It has no `batch_size` and no `drop_last`, and is not a torch BatchSampler. Frameworks that would replace such a
    sampler, or divide its batches between processes, therefore refuse this one. `state_dict` follows torchdata's
    protocol, so the sampler also works in a StatefulDataLoader.
    """

    def __init__(self, run: GuardedRun) -> None:
        """Draw from a run."""
        self.run = run

    def __iter__(self) -> Iterator[list[int]]:
        """Begin at the next step; refuse an epoch beyond those of the mechanism."""
        return self.run.begin()

    def __len__(self) -> int:
        """Count the steps of the current epoch: T, or fewer in an unfinished last one."""
        return self.run.steps_of_epoch()

    def state_dict(self) -> dict[str, Any]:
        """The position of this sampler: after the last batch that it gave."""
        return self.run.drawn_state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the position of a saved sampler or loader."""
        self.run.load_state_dict(state)

    def __repr__(self) -> str:
        """Show the mechanism, but nothing that was drawn."""
        return f"BatchesSampler({self.run.mechanism!r})"


class BallsBinsLoader(DataLoader[Any]):
    """A DataLoader over the batches of a Mechanism. Each iteration is the next epoch, or the rest of a started one.

    Formal guarantees: the j-th batch that is trained on is the j-th batch of the mechanism, even if an iteration is
    peeked at, broken off, saved or resumed; `len` is the exact number of steps of the epoch, on every rank; no batch
    is skipped.
    """

    def __init__(
        self, dataset: Dataset[Any], run: GuardedRun, accountant: BallsBinsAccountant, **options: Any
    ) -> None:
        """Take the options of a DataLoader, except those that choose batches or their order."""
        for name in sorted(set(OURS) & set(options)):
            advice = (
                "The mechanism draws the batches; for batches of b examples make its sampler with "
                "BallsAndBins.for_batch_size(len(dataset), b)."
            )
            raise InvalidInputError(name, options[name], "left out", advice)
        collate = StandInCollate(options.pop("collate_fn", None), dataset[0])
        super().__init__(dataset, batch_sampler=BatchesSampler(run), collate_fn=collate, **options)
        self.accountant = accountant
        self._run = run

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """Begin the next epoch, or continue the one already started."""
        first = self._run.steps_taken
        return self._watched(super().__iter__(), first)

    def _watched(self, batches: Iterator[Any], position: int) -> Iterator[Any]:
        """Yield the batches, and tell the run which one the training loop is working on."""
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
        """The mechanism as far as it was run, from which the privacy follows; None before the first step."""
        return self._run.as_run()

    def leave_out(self, examples: NDArray[np.integer]) -> None:
        """Replace examples with ⊥ before the first step: they are drawn like all others, but are in no batch.

        Zero-out adjacency compares a run with such a run. Audits leave out half of their canaries in this way.
        """
        self._run.leave_out(examples)

    def card(
        self, delta: float, *, metrics: Mapping[str, Any] | None = None, not_covered: Sequence[str] = ()
    ) -> Card:
        """The card of the run so far, with its privacy statement: `card(1e-6).statement().markdown()`.

        Use `not_covered` to state what else was done with the data, such as choosing hyperparameters.
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
        """Continue from the saved position; refuse another mechanism, data set or key."""
        self._run.load_state_dict(state)
