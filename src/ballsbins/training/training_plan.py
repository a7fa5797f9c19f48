"""The public plan of a training run: its batches, noise, clip norm, learning rate and network."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from ballsbins import _check
from ballsbins.data.dataset import Features
from ballsbins.errors import InvalidInputError
from ballsbins.mechanism import Mechanism
from ballsbins.samplers import Sampler


@dataclass(frozen=True)
class TrainingPlan:
    """The public plan of a run: batches, noise, clip norm, learning rate and network.

    A plan without noise (`noise_multiplier` 0) is not private, and one without `clip_norm` neither clips nor adds
    noise. The learning rate falls along a cosine from `learning_rate` to 0 over all steps.

    Args:
        sampler: how batches are drawn. Batches of balls-and-bins and Poisson vary in size, so their sampler needs
            `max_batch_size`: `largest_batch.limited` finds it.
        epochs: number of passes over the data.
        noise_multiplier: σ, the standard deviation of the noise divided by the clip norm; 0 means no privacy.
        clip_norm: C, the largest norm of one example's gradient; required with noise.
        learning_rate: Adam's learning rate at the first step.
        embedding_dim: the length of a category's embedding vector.
        hidden: the widths of the hidden layers.

    Example:
        >>> from ballsbins import Shuffle
        >>> TrainingPlan(Shuffle(steps=10), epochs=3, noise_multiplier=1.0, clip_norm=1.0).total_steps
        30
    """

    sampler: Sampler
    epochs: int = 1
    noise_multiplier: float = 0.0
    clip_norm: float | None = None
    learning_rate: float = 1e-3
    embedding_dim: int = 48
    hidden: tuple[int, ...] = (598, 598, 598)

    def __post_init__(self) -> None:
        """Validate, once."""
        if not isinstance(self.sampler, Sampler):
            advice = "Use one such as BallsAndBins(steps=1000)."
            raise InvalidInputError("sampler", self.sampler, "a sampler", advice)
        advice = "It is the standard deviation of the noise divided by the clip norm; 0 is without privacy."
        sigma = _check.real("noise_multiplier", self.noise_multiplier, 0.0, advice=advice)
        advice = "State how often the data is passed."
        epochs = _check.integer("epochs", self.epochs, 1, 10**9, advice=advice)
        advice = "The paper tries 0.0001 to 0.01."
        rate = _check.real("learning_rate", self.learning_rate, 0.0, open_left=True, advice=advice)
        clip = self.clip_norm
        if clip is not None:
            advice = "It is the largest norm of one example's gradient; the paper tries 1 to 1000."
            clip = _check.real("clip_norm", clip, 0.0, open_left=True, advice=advice)
        elif sigma > 0.0:
            advice = "Noise protects nobody whose gradient is not clipped."
            raise InvalidInputError("clip_norm", None, "given with noise", advice)
        if self.sampler.random_sizes and self.sampler.max_batch_size is None:
            advice = (
                "Batches have one shape while training. Build batch files with --max-batch-size auto; in Python, "
                "ballsbins.largest_batch.limited(sampler, n) finds it."
            )
            raise InvalidInputError("max_batch_size of the sampler", None, "given", advice)
        for name, value in (
            ("noise_multiplier", sigma), ("epochs", epochs), ("learning_rate", rate), ("clip_norm", clip),
            ("hidden", tuple(self.hidden)),
        ):  # fmt: skip
            object.__setattr__(self, name, value)

    @staticmethod
    def of(mechanism: Mechanism, *, clip_norm: float, **rest: Any) -> TrainingPlan:
        """Make the plan to run a mechanism.

        Args:
            mechanism: the mechanism to run, with whole epochs only.
            clip_norm: C, the largest norm of one example's gradient.
            rest: the learning rate and the widths of the network.

        Returns:
            The plan.

        Raises:
            InvalidInputError: the mechanism's last epoch is unfinished, or an argument is out of its range.
        """
        if mechanism.last_epoch_steps is not None:
            advice = "Plan whole epochs; `train(…, stop_after=…)` stops early, and says so in the card."
            raise InvalidInputError("last_epoch_steps", mechanism.last_epoch_steps, "None in a plan", advice)
        return TrainingPlan(
            mechanism.sampler, mechanism.epochs, mechanism.noise_multiplier, clip_norm=clip_norm, **rest
        )

    @property
    def mechanism(self) -> Mechanism | None:
        """The mechanism of this plan; None without noise, because then no ε can be stated."""
        return self.after(self.total_steps)

    @property
    def total_steps(self) -> int:
        """The number of steps over all epochs."""
        return self.epochs * self.sampler.steps

    def after(self, steps: int) -> Mechanism | None:
        """Return the mechanism as run after a number of steps.

        Args:
            steps: the number of steps taken, over all epochs.

        Returns:
            The mechanism that accounts for these steps; None before the first step, and without noise.
        """
        if self.noise_multiplier == 0.0 or steps == 0:
            return None
        return Mechanism(self.sampler, self.noise_multiplier).after(steps)

    def batch_shape(self, num_examples: int) -> int:
        """Return the public number of rows of every batch, including padding.

        Args:
            num_examples: n, the number of training examples, at least one per step.

        Returns:
            The number of rows.

        Raises:
            InvalidInputError: there are fewer examples than steps.
        """
        steps = self.sampler.steps
        advice = "Every step should have an example to expect: use fewer steps, that is larger batches."
        _check.integer("the number of training examples", num_examples, steps, advice=advice)
        largest = self.sampler.largest_batch(num_examples)
        assert largest is not None  # as checked above
        return min(largest, num_examples)

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain data.

        Returns:
            Fields ready for JSON.
        """
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        return plain | {"sampler": self.sampler.to_dict(), "hidden": list(self.hidden)}

    def facts(self, features: Features, num_examples: int) -> dict[str, Any]:
        """Collect all public facts that determine the computation, apart from the data.

        They contain no hash of the data, because that would release information about the data without noise.

        Args:
            features: the names of the features.
            num_examples: n, the number of training examples.

        Returns:
            Fields ready for JSON.
        """
        return {
            "plan": self.to_dict(),
            "num_examples": num_examples,
            "integers": list(features.integers),
            "categories": [list(pair) for pair in features.categories],
        }


def digest(facts: Mapping[str, Any]) -> bytes:
    """Hash the public facts of a run, to distinguish runs."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True, allow_nan=False).encode()).digest()
