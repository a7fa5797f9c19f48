"""The guard: the loader and the optimizer share one run, in which batches and steps must match one to one.

Privacy accounting holds for one procedure: take the sampler's batches in order, with one noisy step for each.
Frameworks silently depart from it: they replace a sampler, send every second batch to another process, skip an empty
batch, or accumulate two batches into one step. The two counts kept here detect all of these and raise a RunError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ballsbins.errors import InvalidInputError, RunError, SecretError
from ballsbins.mechanism import Mechanism
from ballsbins.noise import Domain
from ballsbins.report import FloatingPoint
from ballsbins.samplers import Batches, Key
from ballsbins.training.grid import Grid
from ballsbins.training.machine_check import MachineCheck
from ballsbins.training.torch.accountant import StepCount, mechanism_of
from ballsbins.training.torch.clip_norms import ClipNorms
from ballsbins.training.torch.ledger import Ledger
from ballsbins.training.torch.noise_binding import Replay, fresh_nonce, mark_of, nonce_domain

REPLACED = (
    "Iterate over the loader that make_private returned (or one built on its batch_sampler). In Lightning set "
    "Trainer(use_distributed_sampler=False); with Accelerate do not pass the loader to prepare()."
)
SKIPPED = (
    "Take exactly one optimizer step for every batch, also for an empty one (it is a step of noise alone); do not "
    "accumulate batches, and let no framework deal them out to several processes: make_private does that itself."
)


_GHOST = "ghost clipping sums gradients in float32 by a second backward pass, which has no error bound"
_TESTED = "on the usual layers and on dense layers of the model's sizes; of the model itself both are assumed"
_NO_LEDGER = (
    "Steps that a killed process took after the checkpoint from which the run was resumed: no ledger was kept, so "
    "they are not counted"
)


class GuardedRun(StepCount):
    """A run with its data and its key. It knows the next batch and whether the next step may be taken.

    Positions count all steps of the run from 0. `key` is the run's own key, derived from the master key and a public
    random id (`Key.for_run`); a checkpoint carries the id, and loading it derives the key again. `noise_binding`
    decides the domain under which noise is drawn.
    """

    def __init__(
        self,
        mechanism: Mechanism,
        num_examples: int,
        key: Key,
        clip_norms: ClipNorms,
        *,
        rank: int,
        world_size: int,
        lookahead: int,
    ) -> None:
        """Take a validated plan.

        `lookahead` is the number of batches that a loader may draw ahead of the step: those held by its workers, and
        one more that Accelerate's loaders draw to find out whether a batch is the last.
        """
        super().__init__(mechanism)
        self.num_examples, self.clip_norms = num_examples, clip_norms
        self.rank, self.world_size, self.lookahead = rank, world_size, lookahead
        self._master = key
        self.key = key.for_run()
        self.nonce = fresh_nonce(key)
        self.replay: Replay | None = None
        self.ledger: Ledger | None = None
        self.resumed = False
        self.grid: Grid | None = None  # set when the model is known
        self.machine: MachineCheck | None = None  # None under ghost clipping
        self.devices: set[str] = set()  # where sums were computed
        self._uncovered: list[str] = []  # why sums of this or earlier processes are not covered
        self._vouched: list[str] = []  # statements of the operator that cannot be checked
        self._noised = -1  # the last step for which noise was drawn
        self._last_noise: str | None = ""  # public: identifies the noise of the last step
        self._drawn = 0  # position after the last batch drawn from the sampler
        # after the last one given by our own loader; None under another loader
        self._given: int | None = None
        self._begun = 0  # position at which the current iteration began
        self._exhausted = False
        self._epoch: tuple[int, Batches] | None = None  # the batches last drawn from
        self._absent: NDArray[np.int64] | None = None
        self.forget_pieces: Callable[[], None] = lambda: None  # clears the optimizer's unfinished batch
        self.normaliser = self.expected_batch_size  # what the sum of gradients is divided by
        self._batches(0)  # draws nothing yet, but refuses a mechanism that does not fit the data set

    @property
    def expected_batch_size(self) -> float:
        """n/T, by which the gradient is divided. It is public because it does not depend on the batches."""
        return self.num_examples / self.mechanism.sampler.steps

    def steps_of_epoch(self) -> int:
        """The number of steps in the epoch of the next step; in the last epoch once all steps are taken."""
        steps = self.mechanism.sampler.steps
        epoch = min(self.steps_taken // steps, self.mechanism.epochs - 1)
        return min(steps, self.total_steps - epoch * steps)

    def begin(self) -> Iterator[list[int]]:
        """Iterate over batches of indices from the next step to the end of its epoch."""
        self.require_no_loss()
        self.require_steps_left()
        self.forget_pieces()
        self._begun = self._drawn = self.steps_taken
        self._given, self._exhausted = None, False
        return self._draw(*divmod(self.steps_taken, self.mechanism.sampler.steps))

    def require_no_loss(self) -> None:
        """Refuse to go on after an epoch in which another loader than ours lost batches; ours sees every batch."""
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
            yield self._there(batches.at(step)).tolist()
        self._exhausted = True

    @property
    def given_run(self) -> str | None:
        """The run that the given key belongs to; None for a master key."""
        return self._master.run

    def fingerprint_code(self, fingerprint: str) -> str:
        """A code that distinguishes the fingerprints of ranks without revealing them."""
        return self._master.derive("data fingerprint of ranks", fingerprint)[:8].hex()

    def share_with(self, run: str, nonce: str) -> None:
        """Adopt the run of rank 0: its key and its noise."""
        self.key, self.nonce = self._master.for_run(run), nonce
        self._epoch = None

    def _batches(self, epoch: int) -> Batches:
        if self._epoch is None or self._epoch[0] != epoch:
            whole = self.mechanism.batches(self.num_examples, self.key, epoch)
            share = whole if self.world_size == 1 else whole.for_rank(self.rank, self.world_size)
            self._epoch = epoch, share
        return self._epoch[1]

    def examples_of_batch(self) -> int:
        """The secret number of examples in the next step's batch (on this rank). If 0, the model saw a stand-in."""
        epoch, step = divmod(self.steps_taken, self.mechanism.sampler.steps)
        return len(self._there(self._batches(epoch).at(step)))

    def leave_out(self, examples: NDArray[np.integer]) -> None:
        """Replace examples with ⊥: they are drawn like all others, but are in no batch."""
        if self.steps_taken:
            raise RunError(
                f"{self.steps_taken:,} steps were taken with these examples: leave them out before the first."
            )
        self._absent = np.asarray(examples, np.int64)

    def _there(self, batch: NDArray[Any]) -> NDArray[Any]:
        return batch if self._absent is None else batch[~np.isin(batch, self._absent)]

    def gave(self, position: int) -> None:
        """Note that our own loader gave the batch at a position to the training loop."""
        self._given = position + 1

    def ended(self) -> None:
        """Note that our own loader has no batch left: if this was training, every batch must have had its step."""
        if self._given is not None and self._begun < self.steps_taken < self._given:
            raise self._out_of_step(self._given)

    def require_batch(self) -> None:
        """Refuse a step unless exactly its own batch was drawn for it."""
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

    @property
    def _replays(self) -> bool:
        """Whether noise repeats if everything else repeats; under a plain seed it always does."""
        return self.replay is not None and self.key.is_secret

    def noise_domain(self, parameters: list[Any], sums: list[Any], device: str) -> Domain:
        """The domain of the next step's noise, from the parameters before the step and the sums it is added to."""
        # noise was drawn before an interruption, and sums may not repeat
        if self.steps_taken <= self._noised:
            if self.world_size > 1:
                raise RunError(
                    f"Step {self.steps_taken:,} was interrupted and cannot be taken again by several processes, "
                    "because they would no longer agree on its noise. Start anew from the last checkpoint."
                )
            self.nonce = fresh_nonce(self.key)
        self._noised = self.steps_taken
        if self.replay is None or not self._replays:
            return nonce_domain(self.nonce, self.steps_taken)
        return self.replay.domain(self.key, self.steps_taken, parameters, sums, device)

    def next_domain(self) -> Domain | None:
        """The domain of the noise for the step after the next one, if it is already known."""
        later = self.steps_taken + 1
        return None if self._replays or later >= self.total_steps else nonce_domain(self.nonce, later)

    def record(self, domain: Domain) -> None:
        """Write the next step to the ledger before its noisy gradient exists."""
        noise = mark_of(self.key, domain) if self._replays else self.nonce
        if self.ledger is not None and self.rank == 0:
            assert self.key.run is not None
            self.ledger.take(self.key.run, self.steps_taken, noise)
            self.count_repeats(self.ledger.repeats, self.ledger.repeated_to)
        self._last_noise = noise

    def leave_uncovered(self, reason: str) -> None:
        """State on the card that floating point is not covered, with the reason."""
        if reason not in self._uncovered:
            self._uncovered.append(reason)

    def floating_point(self) -> FloatingPoint:
        """What is known about the run's floating point, over all of its processes."""
        assert self.grid is not None
        others_first = sorted(self.devices, key=lambda name: (name == "cpu", name))
        device = "+".join(others_first) or "cpu"
        here: tuple[str, ...] = (_GHOST,)
        if self.machine is not None:
            here = replace(self.machine, device=device).failures
        reasons = tuple(dict.fromkeys((*self._uncovered, *here)))
        return FloatingPoint(device, None if reasons else self.grid.eta, reasons, _TESTED)

    def vouch(self, words: str) -> None:
        """Put a statement of the operator that cannot be checked on the card."""
        if words not in self._vouched:
            self._vouched.append(words)

    def not_covered(self) -> tuple[str, ...]:
        """The operator's statements and what resuming leaves open, for the card."""
        return (*self._vouched, *self._left_open())

    def _left_open(self) -> tuple[str, ...]:
        if not self.resumed:
            return ()
        if self.ledger is None:
            return (_NO_LEDGER,)
        return tuple(
            f"Steps {begin:,} to {end - 1:,} as a stopped process took them before the run went back to step "
            f"{begin:,}: by the word of the operator nothing of them was or will be shown"
            for begin, end in self.ledger.unpublished
        )

    def state_dict(self, position: int | None = None) -> dict[str, Any]:
        """What to save: public facts and the key's commitment, never the key. `position` replaces the steps taken."""
        saved = super().state_dict()
        noise: str | None = self._last_noise
        if position is not None and position != self.steps_taken:
            saved["steps_taken"] = position
            noise = None if self._replays else self.nonce  # the noise of steps still to be taken
        return saved | {
            "num_examples": self.num_examples,
            "key_commitment": self.key.commitment(),
            "run": self.key.run,
            "last_noise": noise,
            "devices": sorted(self.devices),
            "uncovered": list(self.floating_point().not_covered) if self.steps_taken else [],
            "vouched": list(self._vouched),
        }

    def drawn_state_dict(self) -> dict[str, Any]:
        """The state after the last batch drawn, for a loader that keeps its own count of batches."""
        return self.state_dict(self._drawn)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the saved position with its key; draw this process's own noise, unless the run replays."""
        mechanism_of(state)  # refuses another schema, whose fields may mean something else
        missing = {"num_examples", "key_commitment", "run", "last_noise", "devices", "uncovered"} - set(state)
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
        self._master.require(state["key_commitment"])
        key = self._master.for_run(state["run"])
        if self.steps_taken and key.run != self.key.run:
            raise RunError(
                f"This run, {self.key.run}, has taken {self.steps_taken:,} steps, and the checkpoint is of run "
                f"{key.run}. Load it after a new make_private."
            )
        before = self.steps_taken
        super().load_state_dict(state)
        try:
            if self.ledger is not None and self.rank == 0:
                self.ledger.resume(
                    str(state["run"]), self.steps_taken, state["last_noise"], replays=self._replays
                )
                self.count_repeats(self.ledger.repeats, self.ledger.repeated_to)
        except RunError:
            self.steps_taken = before
            raise
        self.key, self.resumed = key, True
        if self.replay is not None:
            self.replay.begin()
        self._last_noise = state["last_noise"]
        self.devices |= set(map(str, state["devices"]))
        self._uncovered = list(dict.fromkeys((*self._uncovered, *map(str, state["uncovered"]))))
        for words in state.get("vouched", ()):
            self.vouch(str(words))
        self._epoch = None
        self._begun = self._drawn = self.steps_taken
        self._given, self._exhausted = None, False

    def __getstate__(self) -> Any:
        """Refuse to be pickled or copied: the pickle would hold the key, and a copy would count separately."""
        raise SecretError(
            "A loader or optimizer of make_private cannot be pickled or copied, because the key would go with it. "
            "Save what its state_dict() gives."
        )
