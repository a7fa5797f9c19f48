"""Train a model from data and a plan, with a privacy statement that matches what was run.

    data = Dataset.open("data")                       # or InMemory(features, train, test)
    plan = TrainingPlan.of(mechanism, clip_norm=1.0, learning_rate=1e-3)
    result = train(data, plan, key=key, directory=Path("out"), delta=1e-6)
    result.metrics["test_auc"], result.mechanism, result.card.statement().text()

`TrainingPlan(sampler, clip_norm=None)` trains without privacy; `TrainingPlan(sampler, clip_norm=1.0)` clips without
noise. An integer key is a seed, for experiments. Without a `directory` nothing is written. With one, checkpoints are
written during the run, and the same call continues a run that was killed: on the same machine it ends with exactly
the same parameters. One key file serves any number of runs: each run has a public random id and its own key, derived
from the key file and the id. With a seed everything repeats. Runs of the same shape (network, rows of a batch) share
their compiled step within a process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from ballsbins._files import write_text
from ballsbins.batch_files import BatchFiles
from ballsbins.data.dataset import Dataset, Examples, Features, area_under_curve, check_examples
from ballsbins.errors import SecretError
from ballsbins.mechanism import Mechanism
from ballsbins.report import Card
from ballsbins.samplers import Key, as_key
from ballsbins.training.jax import checkpoint
from ballsbins.training.jax.batches import Feed, FromFiles, FromMemory
from ballsbins.training.jax.model import Model, Parameters
from ballsbins.training.jax.private_step import scores
from ballsbins.training.jax.training_run import (
    CARD,
    CHECKPOINT,
    MODEL,
    STATEMENT,
    DivergedError,
    StepProgress,
    TrainingRun,
    run_id_of,
)
from ballsbins.training.training_plan import TrainingPlan

__all__ = [
    "CARD",
    "CHECKPOINT",
    "MODEL",
    "STATEMENT",
    "DivergedError",
    "InMemory",
    "Result",
    "StepProgress",
    "evaluate",
    "load_model",
    "save_model",
    "train",
]  # fmt: skip


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
        """Read a prepared data set; leave out the training part if that comes from batch files."""
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


@dataclass(frozen=True, repr=False)
class Result:
    """A trained model, its metrics, and what was run. `mechanism` is None if no noise was added."""

    plan: TrainingPlan
    model: Model
    parameters: Parameters
    steps: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    card: Card | None = None

    @property
    def mechanism(self) -> Mechanism | None:
        """The mechanism as run, with the steps actually taken."""
        return self.plan.after(self.steps)

    def __repr__(self) -> str:
        """Show what was run, and the metrics."""
        return f"Result({self.plan!r}, steps={self.steps}, metrics={dict(self.metrics)})"


def train(
    data: Dataset | InMemory,
    plan: TrainingPlan,
    *,
    key: Key | bytes | int,
    directory: Path | None = None,
    delta: float | None = None,
    batches: BatchFiles | None = None,
    stop_after: int | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    checkpoint_seconds: float = 60.0,
    progress: Callable[[StepProgress], None] | None = None,
    accept_changes: bool = False,
    allow_uncovered: bool = False,
) -> Result:
    """Run a plan on the training split, and evaluate on the others.

    Args:
        data: a prepared data set, or examples in memory.
        plan: the plan to run.
        key: a master key, from which the key of this run is derived; or a seed, for experiments.
        directory: directory for checkpoints, model, card and statement; a run that was started there is continued.
        delta: δ of the claim, strictly between 0 and 1; with it (and with noise) the result has a card.
        batches: batch files to read the training examples from. The run then has their id: `batches.manifest.run`.
        stop_after: stop early after this many steps in total; the card then states the Mechanism as run.
        should_stop: called after every step; stop early if it returns True.
        checkpoint_seconds: time between checkpoints, in seconds.
        progress: called after every step.
        accept_changes: continue, with independent noise, even if data, machine or checkpoint have changed.
        allow_uncovered: train even if floating point is not covered on this machine; the card says so.

    Returns:
        The model, its metrics, the steps taken and the card.

    Raises:
        InvalidInputError: the plan does not fit the data, or the checkpoint belongs to another plan.
        RunError: something changed since the checkpoint, or the machine fails its test.
        DivergedError: a gradient or a parameter is not finite.

    Example:
        >>> import numpy as np
        >>> from ballsbins import BallsAndBins
        >>> from ballsbins.largest_batch import limited
        >>> from ballsbins.data.dataset import Examples, Features
        >>> from ballsbins.training.jax import InMemory, TrainingPlan
        >>> random = np.random.default_rng(0)
        >>> labels = (random.random(64) < 0.5).astype(np.float32)
        >>> integers = random.normal(size=(64, 1)).astype(np.float32)
        >>> examples = Examples(labels, integers, categories=np.zeros((64, 0), np.int32))
        >>> sampler = limited(BallsAndBins(steps=4), num_examples=64)
        >>> plan = TrainingPlan(sampler, noise_multiplier=1.0, clip_norm=1.0, embedding_dim=1, hidden=(4,))
        >>> result = train(InMemory(Features(("x",), ()), examples), plan, key=1, delta=1e-5)
        >>> result.steps, result.card.mechanism == plan.mechanism
        (4, True)
    """
    secret = _run_key(as_key(key), directory, batches)
    if isinstance(data, Dataset):
        num_examples = data.num_examples("train")
        data = InMemory.of(data, with_training=batches is None)
    else:
        num_examples = len(data.train)
        check_examples(data.features, data.train, "the training split")
    if delta is not None and plan.mechanism is not None:
        plan.mechanism.epsilon(delta)  # fail now, not after the last step, if this cannot be accounted for
    shape = plan.batch_shape(num_examples)
    model = Model.for_features(data.features, embedding_dim=plan.embedding_dim, hidden=plan.hidden)
    feed: Feed
    if batches is None:
        feed = FromMemory(data.train, plan.sampler, secret, shape)
    else:
        feed = FromFiles(batches, data.features, num_examples, plan.sampler, secret, shape)
    facts = plan.facts(data.features, num_examples)
    run = TrainingRun(
        plan, model, secret, facts, feed, num_examples, directory,
        accept_changes=accept_changes, allow_uncovered=allow_uncovered,
    )  # fmt: skip
    last = plan.total_steps if stop_after is None else min(stop_after, plan.total_steps)
    run.take_steps(last, should_stop, checkpoint_seconds, progress)
    parameters = run.state.parameters
    metrics = evaluate(model, parameters, {"test": data.test, "validation": data.validation})
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
        run.save()
        save_model(directory / MODEL, model, parameters)
    card = None
    mechanism = plan.after(run.steps)
    if mechanism is not None and delta is not None:
        card = run.card(mechanism, delta, metrics, data.not_covered)
        if directory is not None:
            card.write(directory / CARD)
            write_text(directory / STATEMENT, card.statement().markdown() + "\n")
    return Result(plan, model, parameters, run.steps, metrics, card)


def _run_key(key: Key, directory: Path | None, batches: BatchFiles | None) -> Key:
    """Return the key of the continued run, of the run of the batch files, or of a new run."""
    begun = run_id_of(directory)
    built = None if batches is None else batches.manifest.run
    if begun is not None and built not in (None, begun):
        raise SecretError(
            f"The checkpoint in {str(directory)!r} is of the run {begun}, but the batch files are of the run "
            f"{built}. Continue with the files of that run, or train in another directory."
        )
    return key.for_run(begun or built)


def evaluate(model: Model, parameters: Parameters, splits: Mapping[str, Examples | None]) -> dict[str, float]:
    """Compute AUC and mean cross-entropy on every available split that has examples of both classes."""
    found: dict[str, float] = {}
    for name, examples in splits.items():
        if examples is None or not 0.0 < examples.labels.mean() < 1.0:
            continue
        logits = scores(model, parameters, examples.integers, examples.categories).astype(np.float64)
        if not np.isfinite(logits).all():
            raise DivergedError(
                "The trained model gives values that are not finite. Lower the learning rate."
            )
        found[f"{name}_auc"] = area_under_curve(examples.labels, logits)
        found[f"{name}_log_loss"] = float(np.mean(np.logaddexp(0.0, logits) - examples.labels * logits))
    return found


def save_model(path: Path, model: Model, parameters: Parameters) -> None:
    """Write a model together with its shape."""
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
