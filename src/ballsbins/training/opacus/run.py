"""The guard: one run shared by the loader and the optimizer, in which batches and steps must match one to one.

Privacy accounting is about a procedure: batch after batch of the sampler, one noisy step each. Frameworks depart from
it without a word: a sampler is replaced, every second batch goes to another process, an empty batch is skipped, two
batches are accumulated into one step. All of these show in the two counts kept here, and end with a RunError.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ballsbins.errors import InvalidInputError, RunError, SecretError
from ballsbins.mechanism import Mechanism
from ballsbins.samplers import Batches, Key
from ballsbins.training.opacus.progress import Progress

REPLACED = (
    "Iterate over the loader that make_private returned (or one built on its batch_sampler). In Lightning set "
    "Trainer(use_distributed_sampler=False); with Accelerate do not pass the loader to prepare()."
)
SKIPPED = (
    "Take exactly one optimizer step for every batch, also for an empty one (it is a step of noise alone); do not "
    "accumulate batches, and let no framework deal them out to several processes: make_private does that itself."
)


class Run(Progress):
    """A run with its data and its key: where the next batch is, and whether the next step may be taken.

    Positions count all steps of the run from 0. `identity` is public and random: noise is drawn under it, so that two
    runs that are given the same secret key by mistake do not share noise, which their difference would cancel. A key
    that is only a seed, for experiments, has a fixed identity instead, so that everything repeats.
    """

    def __init__(
        self,
        mechanism: Mechanism,
        num_examples: int,
        key: Key,
        clip_norm: float,
        *,
        rank: int,
        world_size: int,
        lookahead: int,
    ) -> None:
        """Take a validated plan.

        `lookahead` is the number of batches that a loader may draw ahead of the step: those in its workers' hands and
        one more, for which Accelerate's loaders look whether it is the last.
        """
        super().__init__(mechanism)
        self.num_examples, self.key, self.clip_norm = num_examples, key, clip_norm
        self.rank, self.world_size, self.lookahead = rank, world_size, lookahead
        self.identity = secrets.token_hex(16) if key.is_secret else "seed"
        self._drawn = 0  # position after the last batch drawn from the sampler
        self._given: int | None = (
            None  # after the last one given by our own loader; None under another loader
        )
        self._begun = 0  # position at which the current iteration began
        self._exhausted = False
        self._epoch: tuple[int, Batches] | None = None  # the batches last drawn from
        self.forget_pieces: Callable[[], None] = lambda: None  # what the optimizer must forget to begin anew
        self.normaliser = self.expected_batch_size  # what the sum of gradients is divided by
        self._batches(0)  # nothing is drawn yet, but what does not fit the data set is refused

    @property
    def expected_batch_size(self) -> float:
        """n/T: public, whatever the batches hold. The gradient is divided by this."""
        return self.num_examples / self.mechanism.sampler.steps

    def steps_of_epoch(self) -> int:
        """How many steps the epoch has that the next step belongs to; of the last one when all are taken."""
        steps = self.mechanism.sampler.steps
        epoch = min(self.steps_taken // steps, self.mechanism.epochs - 1)
        return min(steps, self.total_steps - epoch * steps)

    def begin(self) -> Iterator[list[int]]:
        """Begin to iterate over batches of indices at the next step, up to the end of its epoch."""
        self.require_no_loss()
        self.require_steps_left()
        self.forget_pieces()
        self._begun = self._drawn = self.steps_taken
        self._given, self._exhausted = None, False
        return self._draw(*divmod(self.steps_taken, self.mechanism.sampler.steps))

    def require_no_loss(self) -> None:
        """Refuse to go on after an epoch of which a loader other than ours lost batches: ours sees every batch."""
        if self._given is not None or not self._exhausted:
            return
        in_workers = self.lookahead - 1
        if self._begun < self.steps_taken < self._drawn - in_workers:
            raise self._out_of_step(self._drawn)

    def _draw(self, epoch: int, start: int) -> Iterator[list[int]]:
        steps = self.mechanism.sampler.steps
        batches = self._batches(epoch)
        for step in range(start, min(steps, self.total_steps - epoch * steps)):
            self._drawn = epoch * steps + step + 1
            yield batches.at(step).tolist()
        self._exhausted = True

    def _batches(self, epoch: int) -> Batches:
        if self._epoch is None or self._epoch[0] != epoch:
            whole = self.mechanism.batches(self.num_examples, self.key, epoch)
            share = whole if self.world_size == 1 else whole.for_rank(self.rank, self.world_size)
            self._epoch = epoch, share
        return self._epoch[1]

    def examples_of_batch(self) -> int:
        """How many examples the batch of the next step holds (on this rank): secret. If 0, a stand-in was seen."""
        epoch, step = divmod(self.steps_taken, self.mechanism.sampler.steps)
        return len(self._batches(epoch).at(step))

    def gave(self, position: int) -> None:
        """Our own loader gives the batch at a position to the training loop."""
        self._given = position + 1

    def ended(self) -> None:
        """Our own loader has no batch left: if this was training, every batch must have had its step."""
        if self._given is not None and self._begun < self.steps_taken < self._given:
            raise self._out_of_step(self._given)

    def require_batch(self) -> None:
        """Refuse a step unless its batch, and no other, was drawn for it."""
        self.require_steps_left()
        position = self._drawn if self._given is None else self._given
        if position <= self.steps_taken:
            raise RunError(
                f"Step {self.steps_taken:,} has no batch of {self.mechanism!r}: the optimizer steps, but the batches "
                f"come from elsewhere. {REPLACED}"
            )
        if position - self.steps_taken - 1 > (self.lookahead if self._given is None else 0):
            raise self._out_of_step(position)

    def _out_of_step(self, position: int) -> RunError:
        return RunError(
            f"{position:,} batches of the run were handed out, but the optimizer took {self.steps_taken:,} steps. "
            f"{SKIPPED}"
        )

    def state_dict(self, position: int | None = None) -> dict[str, Any]:
        """What to save: public facts and the key's commitment, never the key. `position` replaces the steps taken."""
        saved = super().state_dict()
        if position is not None:
            saved["steps_taken"] = position
        return saved | {
            "num_examples": self.num_examples,
            "key_commitment": self.key.commitment(),
            "run": self.identity,
        }

    def drawn_state_dict(self) -> dict[str, Any]:
        """The state after the last batch drawn: what a loader that keeps its own count of batches wants."""
        return self.state_dict(self._drawn)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to where the saved run was, with its key and its noise."""
        missing = {"num_examples", "key_commitment", "run"} - set(state)
        if missing:
            raise InvalidInputError(
                "the set of fields that this checkpoint lacks",
                sorted(missing),
                "empty",
                "Load what was saved by the loader or accountant of make_private.",
            )
        if state["num_examples"] != self.num_examples:
            raise InvalidInputError(
                "the number of examples of this checkpoint",
                state["num_examples"],
                f"{self.num_examples}, as in the data set",
                "Resume with the data set of that run.",
            )
        self.key.require(state["key_commitment"])
        super().load_state_dict(state)
        self.identity = str(state["run"])
        self._begun = self._drawn = self.steps_taken
        self._given, self._exhausted = None, False

    def __getstate__(self) -> Any:
        """Refuse to be pickled or copied: the pickle would hold the key, and a copy would count for itself."""
        raise SecretError(
            "A loader or optimizer of make_private cannot be pickled or copied, because the key would go with it. "
            "Save what its state_dict() gives."
        )
