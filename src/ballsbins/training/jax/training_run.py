"""One run of the trainer: its state, noise and checkpoints, and the checks before it continues."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ballsbins.errors import BallsBinsError, DataError, InvalidInputError, RunError
from ballsbins.mechanism import Mechanism
from ballsbins.noise import SOURCE, Domain
from ballsbins.noise.draw import NoiseAhead, require_right_noise
from ballsbins.report import Card, FloatingPoint
from ballsbins.samplers import Key
from ballsbins.training.grid import Grid
from ballsbins.training.jax import checkpoint
from ballsbins.training.jax.batches import Feed
from ballsbins.training.jax.machine_check import check_step
from ballsbins.training.jax.model import Batch, Model
from ballsbins.training.jax.noise_binding import Binding, machine_facts, new_branch, state_digest
from ballsbins.training.jax.private_step import (
    Scalars,
    State,
    Watched,
    grid_of,
    initial_state,
    plain_step,
    private_step,
)
from ballsbins.training.training_plan import TrainingPlan

CHECKPOINT, MODEL, CARD, STATEMENT = "checkpoint.npz", "model.npz", "card.json", "statement.md"
_STOPPED = (
    "The decision to stop before the planned end. If it was taken after looking at the model or the training loss, "
    "claim what was planned: that covers any such decision."
)


class DivergedError(BallsBinsError, ArithmeticError):
    """A gradient or a parameter is not finite. The message names the step and is only for the operator."""


@dataclass(frozen=True)
class StepProgress:
    """The progress of a run. `loss` is the mean loss of the step's batch: it is not private, so do not share it."""

    steps: int
    total_steps: int
    expected_batch_size: float
    loss: float


@dataclass
class TrainingRun:
    """The state of a run and everything that it needs for its next step.

    `continued` lists each time that the run continued although something had changed: the step and the changes. From
    that step on, the noise is independent of the earlier noise (`noise_binding`).
    """

    plan: TrainingPlan
    model: Model
    key: Key  # the key of this run: `Key.for_run`
    facts: dict[str, Any]
    feed: Feed
    num_examples: int
    directory: Path | None
    accept_changes: bool = False
    allow_uncovered: bool = False
    steps: int = 0
    branch: str = ""
    continued: list[dict[str, Any]] = field(default_factory=list)
    # why floating point is not covered, in any step so far
    uncovered: list[str] = field(default_factory=list)
    devices: list[str] = field(default_factory=list)  # where steps were taken
    grid: Grid | None = None
    _saved: int = -1
    _epoch_begin: str = ""  # `state_digest` at the beginning of the current epoch
    _binding: Binding | None = None

    def __post_init__(self) -> None:
        """Begin, or continue from a checkpoint."""
        plan = self.plan
        self._noise = NoiseAhead(rooms=2, wait=jax.block_until_ready)
        self.expected = self.num_examples / plan.sampler.steps
        self._rates = np.asarray(
            optax.cosine_decay_schedule(plan.learning_rate, plan.total_steps)(np.arange(plan.total_steps)),
            np.float32,
        )
        if plan.noise_multiplier > 0.0:
            assert plan.clip_norm is not None
            rows = plan.batch_shape(self.num_examples)
            self.grid = grid_of(self.model, plan.noise_multiplier, plan.clip_norm, rows)
        path = None if self.directory is None else self.directory / CHECKPOINT
        if path is not None and path.exists():
            self.state = self._resume(path)
        else:
            self.state = initial_state(self.model.initial(self.key))

    def _resume(self, path: Path) -> State:
        header, arrays = checkpoint.load(path)
        checkpoint.require_same(header["run"], self.facts, path)
        self.key.require(header["key_commitment"])
        header.pop("schema")
        _require_fields(header, self.plan.total_steps, path)
        seals = header.pop("seals")
        self.steps = self._saved = header["steps"]
        self.branch, self.continued = header["branch"], header["continued"]
        self.uncovered, self.devices = header["uncovered"], header["devices"]
        self._epoch_begin = header["epoch_begin"]
        over = self.steps == self.plan.total_steps
        changes = self._sealing().changes(seals, header, arrays, over=over)
        if changes and not self.accept_changes:
            raise RunError(
                f"Since the checkpoint at step {self.steps:,} of {str(path)!r} something has changed: "
                f"{'; '.join(changes)}. Going on is a second release on the same batches, with noise of its own. "
                "Put back what changed to continue bit for bit; or, if no later model of this run was or will be "
                "shown to anybody, go on with --accept-changes (accept_changes=True). The card will say so."
            )
        if changes:
            self._take_branch(changes)
        checkpoint.clean(path.parent)
        structure = jax.tree.structure(jax.eval_shape(lambda: initial_state(self.model.zeros())))
        state: State = jax.tree.unflatten(structure, [jnp.asarray(array) for array in arrays])
        return state

    def _take_branch(self, because: list[str]) -> None:
        self.branch, self._binding = new_branch(), None
        self.continued.append({"step": self.steps, "because": because})

    def _bound(self) -> Binding:
        """The binding of the next step's epoch."""
        if self._binding is None:
            epoch = self.steps // self.plan.sampler.steps
            self._binding = Binding(
                self.key,
                self.facts,
                self.feed.data_tag(epoch),
                self._epoch_begin,
                machine_facts(),
                self.branch,
            )
        return self._binding

    def _sealing(self) -> Binding:
        """The binding that seals a checkpoint. Between two epochs that are read from files there is no data to seal:
        the files of the next epoch may not exist yet, and its noise will be bound to whatever they hold.
        """
        between = self.steps % self.plan.sampler.steps == 0
        over = self.steps == self.plan.total_steps
        if over or (between and not self.feed.same_in_all_epochs):
            return Binding(self.key, self.facts, b"", self._epoch_begin, machine_facts(), self.branch)
        return self._bound()

    def prepare(self) -> None:
        """Test the machine and make the directory, before the first step."""
        if self.grid is not None:
            require_right_noise()
            machine = check_step(self.model, self.state.parameters, self.grid.rows)
            if machine.failures and not self.allow_uncovered:
                raise RunError(
                    f"Floating point is not covered on this machine: {'; '.join(machine.failures)}. Train on "
                    "another machine (ballsbins check-machine tests one), or go on with --allow-uncovered "
                    "(allow_uncovered=True): the card will say that floating point is not covered."
                )
            self.uncovered = list(dict.fromkeys((*self.uncovered, *machine.failures)))
            self.devices = list(dict.fromkeys((*self.devices, machine.device)))
            if not machine.reproducible and self.key.is_secret:
                self._take_branch(["sums of this machine are not bit-reproducible"])
        if self.directory is not None:
            try:
                self.directory.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise DataError(
                    f"{str(self.directory)!r} cannot be made ({error.strerror}). Choose another place."
                ) from None
            # The claim of an earlier stop would be too small for checkpoints of later steps.
            for name in (CARD, STATEMENT):
                (self.directory / name).unlink(missing_ok=True)

    def save(self) -> None:
        """Write a checkpoint, unless this step already has one."""
        if self.directory is None or self._saved == self.steps:
            return
        header = {
            "run": self.facts,
            "run_id": self.key.run,
            "key_commitment": self.key.commitment(),
            "steps": self.steps,
            "epoch_begin": self._epoch_begin,
            "branch": self.branch,
            "continued": self.continued,
            "uncovered": self.uncovered,
            "devices": self.devices,
            "machine": dict(machine_facts()),
        }
        arrays = self._arrays()
        if self.steps % self.plan.sampler.steps == 0:  # a resumed run begins the next epoch from here
            header["epoch_begin"] = self._epoch_begin = state_digest(arrays)
            self._binding = None
        seals = self._sealing().seals(header, arrays)
        checkpoint.save(self.directory / CHECKPOINT, header | {"seals": seals}, arrays)
        self._saved = self.steps

    def _arrays(self) -> list[Any]:
        return [np.asarray(leaf) for leaf in jax.tree.leaves(self.state)]

    def take_steps(
        self,
        last: int,
        should_stop: Callable[[], bool],
        checkpoint_seconds: float,
        progress: Callable[[StepProgress], None] | None,
    ) -> None:
        """Take steps until `last` are done; check each one step late, while the next one is already running."""
        if last <= self.steps:
            return
        self.prepare()
        due = time.monotonic() + checkpoint_seconds
        pending: Watched | None = None
        for batch, domain in islice(self._batches(), last - self.steps):
            watched = self._step(batch, domain)
            if pending is not None:
                self._look(pending, self.steps, progress)
            self.steps += 1
            pending = watched
            if self.directory is not None and time.monotonic() >= due and self.steps < last:
                self._look(pending, self.steps, None)  # never save values that are not finite
                self.save()
                due = time.monotonic() + checkpoint_seconds
            if should_stop():
                break
        if pending is not None:
            self._look(pending, self.steps, progress)

    def _batches(self) -> Iterator[tuple[Batch, Domain | None]]:
        """The batches from the next step on, each with the domain of its epoch's noise."""
        steps = self.plan.sampler.steps
        first, start = divmod(self.steps, steps)
        for epoch in range(first, self.plan.epochs):
            begin = start if epoch == first else 0
            domain = None
            if self.grid is not None:
                if begin == 0 and self.key.is_secret:
                    self._epoch_begin = state_digest(self._arrays())
                self._binding = None
                domain = self._bound().noise_domain()
            for batch in self.feed.batches(epoch, begin):
                yield batch, domain

    def _step(self, batch: Batch, domain: Domain | None) -> Watched:
        plan = self.plan
        scalars = Scalars(
            self._rates[self.steps],
            np.float64(0.0 if plan.clip_norm is None else plan.clip_norm),
            None if self.grid is None else np.float64(self.grid.unit),
            np.float64(self.expected),
        )
        if plan.clip_norm is None:
            self.state, watched = plain_step(self.model, self.state, batch, scalars)
            return Watched(*watched)
        if domain is None:
            self.state, watched = private_step(self.model, self.state, batch, None, scalars)
            return Watched(*watched)
        count = self.model.num_parameters
        noise = self._noise.of(self.key, (*domain, self.steps), count)
        self.state, watched = private_step(self.model, self.state, batch, noise, scalars)
        self._noise.read_by(watched)
        if (
            self.steps + 1
        ) % plan.sampler.steps:  # the next epoch's noise is bound to the final state of this one
            self._noise.begin(self.key, (*domain, self.steps + 1), count)
        return Watched(*watched)

    def _look(self, watched: Watched, steps: int, progress: Callable[[StepProgress], None] | None) -> None:
        if not bool(watched.finite):
            raise DivergedError(
                f"A gradient or a parameter at step {steps:,} of {self.plan.total_steps:,} is not finite: training "
                "stopped. The last checkpoint is whole. Lower the learning rate, or look for extreme values in the "
                "data. Do not publish that it stopped, or where: no noise hides that."
            )
        if progress is not None:
            progress(StepProgress(steps, self.plan.total_steps, self.expected, float(watched.loss)))

    def card(
        self, mechanism: Mechanism, delta: float, metrics: Mapping[str, float], more: tuple[str, ...]
    ) -> Card:
        """Make the card: what was run, what may be claimed, and what the claim does not cover."""
        plan, model = self.plan, self.model
        early = self.steps < plan.total_steps
        changes = tuple(
            f"The run went on at step {each['step']:,} with independent noise after a change "
            f"({'; '.join(each['because'])}): models of later steps that were released before it"
            for each in self.continued
        )
        return Card(
            mechanism,
            delta,
            clip_norm=plan.clip_norm,
            num_examples=self.num_examples,
            planned=plan.mechanism if early else None,
            metrics=dict(metrics),
            not_covered=(*more, *((_STOPPED,) if early else ()), *changes),
            key_commitment=self.key.commitment(),
            key_secret=self.key.is_secret,
            run=self.key.run,
            noise=SOURCE,
            floating_point=self._floating_point(),
            normaliser=self.expected,
            details={
                "optimizer": "Adam, cosine decay",
                "learning_rate": plan.learning_rate,
                "embedding_dim": plan.embedding_dim,
                "hidden": list(plan.hidden),
                "parameters": model.num_parameters,
            },
        )

    def _floating_point(self) -> FloatingPoint:
        """What is covered on all machines that took a step."""
        assert self.grid is not None
        reasons = tuple(self.uncovered)
        return FloatingPoint(", ".join(self.devices), None if reasons else self.grid.eta, reasons)


def _require_fields(header: Mapping[str, Any], total_steps: int, path: Path) -> None:
    """Refuse a header that was not written by a run of ours, before anything is read from it."""
    kinds = {
        "branch": str, "continued": list, "uncovered": list, "devices": list, "epoch_begin": str, "machine": dict,
        "seals": dict, "steps": int, "key_commitment": str,
    }  # fmt: skip
    wrong = [name for name, kind in kinds.items() if not isinstance(header.get(name), kind)]
    seals = header.get("seals")
    if isinstance(seals, dict) and not all(
        isinstance(seals.get(name), str) for name in ("nonce", "state", "data")
    ):
        wrong = ["seals"]
    if not wrong and not 0 <= header["steps"] <= total_steps:
        wrong = ["steps"]
    if wrong:
        raise DataError(
            f"The checkpoint {str(path)!r} has no valid {' and '.join(wrong)}: it was edited or damaged. Restore it, "
            "or train in another directory."
        )


def run_id_of(directory: Path | None) -> str | None:
    """Return the id of the run whose checkpoint is in a directory; None if there is none to continue."""
    path = None if directory is None else directory / CHECKPOINT
    if path is None or not path.exists():
        return None
    run_id = checkpoint.load_header(path).get("run_id")
    if not isinstance(run_id, str):
        advice = "Was the checkpoint edited? Restore it, or train in another directory."
        raise InvalidInputError(f"run_id of {str(path)!r}", run_id, "text", advice)
    return run_id
