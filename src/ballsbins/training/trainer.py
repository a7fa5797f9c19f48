"""From data and a plan to a trained model whose privacy statement matches what was run.

    data = Dataset.open("data")                       # or InMemory(features, train, test)
    plan = Plan.of(mechanism, clip_norm=1.0, learning_rate=1e-3)
    result = train(data, plan, key=key, directory=Path("out"), delta=1e-6)
    result.metrics["test_auc"], result.mechanism, result.card.statement().text()

`Plan(sampler, clip_norm=None)` trains without privacy, `Plan(sampler, clip_norm=1.0)` clips without noise. An integer
as the key is a seed, for experiments. Nothing is written without a `directory`. With one, checkpoints are written as
the run goes, and the same call continues a run that was killed: it ends with the very same parameters on the same
machine. Another run with the same secret key has noise of its own, or the difference of two models would have none;
only with a seed does everything repeat. Runs of one shape (network, rows of a batch) share their compiled step within
a process.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ballsbins.engines import BatchFiles
from ballsbins.errors import BallsBinsError, DataError
from ballsbins.mechanism import Mechanism
from ballsbins.report import Card
from ballsbins.report.card import write_atomically
from ballsbins.samplers import Key, as_key
from ballsbins.training import checkpoint
from ballsbins.training._jax import jax, jnp, optax
from ballsbins.training.auc import area_under_curve
from ballsbins.training.dataset import Dataset, Examples, Features, check_examples
from ballsbins.training.feed import Feed, FromFiles, FromMemory
from ballsbins.training.model import Batch, Model, Parameters
from ballsbins.training.noise import SOURCE, RunWords
from ballsbins.training.plan import Plan, digest
from ballsbins.training.step import (
    Scalars,
    State,
    Watched,
    initial_state,
    noise_words,
    plain_step,
    private_step,
    scores,
)
from ballsbins.training.tail import tail_not_covered

CHECKPOINT, MODEL, CARD, STATEMENT = "checkpoint.npz", "model.npz", "card.json", "statement.md"
_STOPPED = (
    "The decision to stop before the planned end. If it was taken after looking at the model or the training loss, "
    "claim what was planned: that covers any such decision."
)


class DivergedError(BallsBinsError, ArithmeticError):
    """A gradient or a parameter is not a number. Names the step, for the operator alone."""


@dataclass(frozen=True)
class InMemory:
    """A data set without files."""

    features: Features
    train: Examples
    test: Examples | None = None
    validation: Examples | None = None
    not_covered: tuple[str, ...] = ()

    @staticmethod
    def of(dataset: Dataset, *, with_training: bool = True) -> InMemory:
        """Read a prepared data set; without its training part if that comes from batch files."""
        empty = Examples(
            np.empty(0, np.float32),
            np.empty((0, len(dataset.features.integers)), np.float32),
            np.empty((0, len(dataset.features.categories)), np.int32),
        )
        return InMemory(
            dataset.features,
            dataset.examples("train") if with_training else empty,
            dataset.examples("test") if "test" in dataset.sizes else None,
            dataset.examples("validation") if "validation" in dataset.sizes else None,
            tuple(dataset.not_covered),
        )


@dataclass(frozen=True)
class Progress:
    """Where a run is. `loss` is the mean loss of the step's batch: not private, so show it to nobody else."""

    steps: int
    total_steps: int
    expected_batch_size: float
    loss: float


@dataclass(frozen=True, repr=False)
class Result:
    """A trained model, how good it is, and what was run. `mechanism` is None where no noise was added."""

    plan: Plan
    model: Model
    parameters: Parameters
    steps: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    card: Card | None = None

    @property
    def mechanism(self) -> Mechanism | None:
        """What was run, with the steps really taken."""
        return self.plan.after(self.steps)

    def __repr__(self) -> str:
        """Show what was run and how good it is."""
        return f"Result({self.plan!r}, steps={self.steps}, metrics={dict(self.metrics)})"


def train(
    data: Dataset | InMemory,
    plan: Plan,
    *,
    key: Key | bytes | int,
    directory: Path | None = None,
    delta: float | None = None,
    batches: BatchFiles | None = None,
    stop_after: int | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    checkpoint_seconds: float = 60.0,
    progress: Callable[[Progress], None] | None = None,
) -> Result:
    """Run a plan on the training split, and evaluate on the others.

    With `delta` (and noise) the result has a card, written to `directory` with the statement. `batches` reads the
    training examples from an engine's files. The run stops early after `stop_after` steps in all, or when
    `should_stop()` is true after a step; the card then states the Mechanism as run.
    """
    secret = as_key(key)
    if isinstance(data, Dataset):
        num_examples = data.num_examples("train")
        data = InMemory.of(data, with_training=batches is None)
    else:
        num_examples = len(data.train)
        check_examples(data.features, data.train, "the training split")
    if delta is not None and plan.mechanism is not None:
        plan.mechanism.epsilon(delta)  # what cannot be accounted for fails now, not after the last step
    shape = plan.batch_shape(num_examples)
    model = Model.for_features(data.features, embedding_dim=plan.embedding_dim, hidden=plan.hidden)
    feed: Feed
    if batches is None:
        feed = FromMemory(data.train, plan.sampler, secret, shape)
    else:
        feed = FromFiles(batches, data.features, num_examples, plan.sampler, secret, shape)
    facts = plan.facts(data.features, num_examples)
    run = _Run(plan, model, secret, facts, num_examples, directory)
    last = plan.total_steps if stop_after is None else min(stop_after, plan.total_steps)
    run.take_steps(feed, last, should_stop, checkpoint_seconds, progress)
    parameters = run.state.parameters
    metrics = evaluate(model, parameters, {"test": data.test, "validation": data.validation})
    if directory is not None:
        run.save()
        save_model(directory / MODEL, model, parameters)
    card = None
    mechanism = plan.after(run.steps)
    if mechanism is not None and delta is not None:
        card = run.card(mechanism, delta, metrics, data.not_covered)
        if directory is not None:
            card.write(directory / CARD)
            write_atomically(directory / STATEMENT, card.statement().markdown() + "\n")
    return Result(plan, model, parameters, run.steps, metrics, card)


class _Run:
    """The state of a run and what it needs for its next step.

    `_identity` is public and random: noise is drawn under it. Two runs with the same secret key and plan, on data
    that differ in one example, would otherwise share their noise, and the difference of their models would be that
    example's doing alone. A run that is continued keeps its identity. A seed has a fixed one: everything repeats.
    """

    def __init__(
        self,
        plan: Plan,
        model: Model,
        key: Key,
        facts: dict[str, Any],
        num_examples: int,
        directory: Path | None,
    ) -> None:
        self.plan, self.model, self.key = plan, model, key
        self.expected = num_examples / plan.sampler.steps
        self.num_examples = num_examples
        self._facts, self._directory, self._saved = facts, directory, -1
        self._identity = secrets.token_hex(16) if key.is_secret else "seed"
        self._rates = np.asarray(
            optax.cosine_decay_schedule(plan.learning_rate, plan.total_steps)(np.arange(plan.total_steps)),
            np.float32,
        )
        self.state, self.steps = self._begin()
        self._noise: RunWords | None = None
        if plan.noise_multiplier > 0.0:
            run = digest(facts | {"identity": self._identity})
            self._noise = RunWords(key, run, noise_words(model))

    def _begin(self) -> tuple[State, int]:
        path = None if self._directory is None else self._directory / CHECKPOINT
        if path is None or not path.exists():
            if self._directory is not None:
                _make(self._directory)
            return initial_state(self.model.initial(self.key)), 0
        header, arrays = checkpoint.load(path)
        checkpoint.require_same(header["run"], self._facts, path)
        self.key.require(header["key_commitment"])
        checkpoint.clean(path.parent)
        structure = jax.tree.structure(jax.eval_shape(lambda: initial_state(self.model.zeros())))
        state: State = jax.tree.unflatten(structure, [jnp.asarray(array) for array in arrays])
        self._saved, self._identity = header["steps"], header["identity"]
        return state, header["steps"]

    def save(self) -> None:
        """Write a checkpoint, unless this step has one already."""
        if self._directory is None or self._saved == self.steps:
            return
        header = {
            "run": self._facts,
            "identity": self._identity,
            "key_commitment": self.key.commitment(),
            "steps": self.steps,
        }
        arrays = [np.asarray(leaf) for leaf in jax.tree.leaves(self.state)]
        checkpoint.save(self._directory / CHECKPOINT, header, arrays)
        self._saved = self.steps

    def take_steps(
        self,
        feed: Feed,
        last: int,
        should_stop: Callable[[], bool],
        checkpoint_seconds: float,
        progress: Callable[[Progress], None] | None,
    ) -> None:
        """Step until `last` steps have been taken, watching one step behind so that the next is on its way."""
        if last > self.steps:
            self._withdraw()
        due = time.monotonic() + checkpoint_seconds
        pending: Watched | None = None
        for batch in islice(self._batches(feed), max(last - self.steps, 0)):
            watched = self._step(batch)
            if pending is not None:
                self._look(pending, self.steps, progress)
            self.steps += 1
            pending = watched
            if self._directory is not None and time.monotonic() >= due and self.steps < last:
                self._look(pending, self.steps, None)  # never save what is not a number
                self.save()
                due = time.monotonic() + checkpoint_seconds
            if should_stop():
                break
        if pending is not None:
            self._look(pending, self.steps, progress)

    def _withdraw(self) -> None:
        """Remove what an earlier stop has claimed: it would be too little beside checkpoints of later steps."""
        if self._directory is not None:
            for name in (CARD, STATEMENT):
                (self._directory / name).unlink(missing_ok=True)

    def _batches(self, feed: Feed) -> Iterator[Batch]:
        steps = self.plan.sampler.steps
        first, start = divmod(self.steps, steps)
        for epoch in range(first, self.plan.epochs):
            yield from feed.batches(epoch, start if epoch == first else 0)

    def _step(self, batch: Batch) -> Watched:
        plan = self.plan
        clip = 0.0 if plan.clip_norm is None else plan.clip_norm
        scalars = Scalars(
            self._rates[self.steps],
            np.float32(clip),
            np.float32(plan.noise_multiplier * clip),
            np.float32(self.expected),
        )
        if plan.clip_norm is None:
            self.state, watched = plain_step(self.model, self.state, batch, scalars)
            return Watched(*watched)
        words = None if self._noise is None else self._noise.of(self.steps)
        self.state, watched = private_step(self.model, self.state, batch, words, scalars)
        if self._noise is not None:
            self._noise.read_by(self.steps, watched)
        return Watched(*watched)

    def _look(self, watched: Watched, steps: int, progress: Callable[[Progress], None] | None) -> None:
        if not bool(watched.finite):
            raise DivergedError(
                f"A gradient or a parameter at step {steps:,} of {self.plan.total_steps:,} is not a number: training "
                "stopped. The last checkpoint is whole. Lower the learning rate, or look for extreme values in the "
                "data. Do not publish that it stopped, or where: no noise hides that."
            )
        if progress is not None:
            progress(Progress(steps, self.plan.total_steps, self.expected, float(watched.loss)))

    def card(
        self, mechanism: Mechanism, delta: float, metrics: Mapping[str, float], more: tuple[str, ...]
    ) -> Card:
        """What was run, what may be claimed, and what that does not cover."""
        plan = self.plan
        early = self.steps < plan.total_steps
        model = self.model
        return Card(
            mechanism,
            delta,
            clip_norm=plan.clip_norm,
            num_examples=self.num_examples,
            planned=plan.mechanism if early else None,
            metrics=dict(metrics),
            not_covered=(*more, *((_STOPPED,) if early else ()), *tail_not_covered(mechanism, delta)),
            key_commitment=self.key.commitment(),
            key_secret=self.key.is_secret,
            noise=SOURCE,
            normaliser=self.expected,
            details={
                "optimizer": "Adam, cosine decay",
                "learning_rate": plan.learning_rate,
                "embedding_dim": plan.embedding_dim,
                "hidden": list(plan.hidden),
                "parameters": model.num_parameters,
            },
        )


def _make(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"{str(directory)!r} cannot be made ({error.strerror}). Choose another place."
        ) from None


def evaluate(model: Model, parameters: Parameters, splits: Mapping[str, Examples | None]) -> dict[str, float]:
    """AUC and mean cross-entropy on every split that is there and has examples of both classes."""
    found: dict[str, float] = {}
    for name, examples in splits.items():
        if examples is None or not 0.0 < examples.labels.mean() < 1.0:
            continue
        logits = scores(model, parameters, examples.integers, examples.categories).astype(np.float64)
        if not np.isfinite(logits).all():
            raise DivergedError(
                "The trained model gives values that are no numbers. Lower the learning rate."
            )
        found[f"{name}_auc"] = area_under_curve(examples.labels, logits)
        found[f"{name}_log_loss"] = float(np.mean(np.logaddexp(0.0, logits) - examples.labels * logits))
    return found


def save_model(path: Path, model: Model, parameters: Parameters) -> None:
    """Write a model with its shape."""
    shape = {
        "num_integers": model.num_integers,
        "buckets": list(model.buckets),
        "embedding_dim": model.embedding_dim,
        "hidden": list(model.hidden),
    }
    checkpoint.save(path, {"model": shape}, [np.asarray(leaf) for leaf in jax.tree.leaves(parameters)])


def load_model(path: Path) -> tuple[Model, Parameters]:
    """Read a model that `save_model` wrote."""
    header, arrays = checkpoint.load(path)
    shape = header["model"]
    model = Model(
        shape["num_integers"], tuple(shape["buckets"]), shape["embedding_dim"], tuple(shape["hidden"])
    )
    structure = jax.tree.structure(jax.eval_shape(model.zeros))
    parameters: Parameters = jax.tree.unflatten(structure, [jnp.asarray(array) for array in arrays])
    return model, parameters
