"""A run of training before it starts: its batches, noise, clip norm, learning rate and network, all public."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from ballsbins import _check
from ballsbins.calibration import PENALTY_SHARE, with_max_batch_size
from ballsbins.data.dataset import Features
from ballsbins.errors import InvalidInputError
from ballsbins.mechanism import Mechanism
from ballsbins.samplers import Sampler

# The paper's largest batches (appendix C), by data set and expected batch size.
_EXPECTED = tuple(2**power for power in range(10, 19))
PAPER_MAX_BATCH_SIZES: Mapping[str, Mapping[int, int]] = {
    "paper-pctr": dict(
        zip(_EXPECTED, (1328, 2469, 4681, 9007, 17520, 34355, 67754, 134172, 266475), strict=True)
    ),
    "paper-search": dict(
        zip(_EXPECTED, (1320, 2458, 4665, 8984, 17488, 34309, 67687, 134071, 266317), strict=True)
    ),
}
# The paper's rule where no target is stated: truncation adds at most 10⁻¹⁰ to δ, even at ε = 10.
_PAPER_EPSILON, _PAPER_DELTA = 10.0, 1e-10

MaxBatchSize = int | Literal["auto", "paper-pctr", "paper-search"]


@dataclass(frozen=True)
class TrainingPlan:
    """What is to be run. Without noise (`noise_multiplier` 0) it is not private, and without `clip_norm` plain SGD.

    Batches of balls-and-bins and Poisson vary in size, so their sampler needs `max_batch_size`: see `limited`. The
    learning rate falls along a cosine from `learning_rate` to 0 over all steps.
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
            advice = "Noise protects nobody whose gradient is not clipped: state clip_norm."
            raise InvalidInputError("clip_norm", None, "given where noise_multiplier is", advice)
        if self.sampler.random_sizes and self.sampler.max_batch_size is None:
            advice = (
                "Batches have one shape while training. Build batch files with --max-batch-size auto; in Python, "
                "ballsbins.training.training_plan.limited(sampler, n) finds it."
            )
            raise InvalidInputError("max_batch_size of the sampler", None, "given", advice)
        for name, value in (
            ("noise_multiplier", sigma), ("epochs", epochs), ("learning_rate", rate), ("clip_norm", clip),
            ("hidden", tuple(self.hidden)),
        ):  # fmt: skip
            object.__setattr__(self, name, value)

    @staticmethod
    def of(mechanism: Mechanism, *, clip_norm: float, **rest: Any) -> TrainingPlan:
        """The plan to run a mechanism: `rest` is the learning rate and the widths of the network."""
        if mechanism.last_epoch_steps is not None:
            advice = (
                "TrainingPlan whole epochs; `train(…, stop_after=…)` stops early, and says so in the card."
            )
            raise InvalidInputError("last_epoch_steps", mechanism.last_epoch_steps, "None in a plan", advice)
        return TrainingPlan(
            mechanism.sampler, mechanism.epochs, mechanism.noise_multiplier, clip_norm=clip_norm, **rest
        )

    @property
    def mechanism(self) -> Mechanism | None:
        """What this plan runs; None without noise, where no ε can be stated."""
        return self.after(self.total_steps)

    @property
    def total_steps(self) -> int:
        """All steps, over all epochs."""
        return self.epochs * self.sampler.steps

    def after(self, steps: int) -> Mechanism | None:
        """What has been run after so many steps; None before the first, and without noise."""
        if self.noise_multiplier == 0.0 or steps == 0:
            return None
        return Mechanism(self.sampler, self.noise_multiplier).after(steps)

    def batch_shape(self, num_examples: int) -> int:
        """The number of rows of every batch, padding included: public."""
        steps = self.sampler.steps
        advice = "Every step should have an example to expect: use fewer steps, that is larger batches."
        _check.integer("the number of training examples", num_examples, steps, advice=advice)
        largest = self.sampler.largest_batch(num_examples)
        assert largest is not None  # as checked above
        return min(largest, num_examples)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        return plain | {"sampler": self.sampler.to_dict(), "hidden": list(self.hidden)}

    def facts(self, features: Features, num_examples: int) -> dict[str, Any]:
        """All public facts that decide what is computed, apart from the data. No hash of the data is among them: it
        would be a release of the data without noise.
        """
        return {
            "plan": self.to_dict(),
            "num_examples": num_examples,
            "integers": list(features.integers),
            "categories": [list(pair) for pair in features.categories],
        }


def digest(facts: Mapping[str, Any]) -> bytes:
    """Tell runs apart by their public facts."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True, allow_nan=False).encode()).digest()


def limited(
    sampler: Sampler,
    num_examples: int,
    max_batch_size: MaxBatchSize = "auto",
    *,
    epochs: int = 1,
    epsilon: float | None = None,
    delta: float | None = None,
    batch_size: int | None = None,
) -> Sampler:
    """The sampler with its largest batch size; those of Shuffle and Deterministic have one size and stay as they are.

    "auto" takes the least size whose penalty is at most a hundredth of `delta` at `epsilon`, or without those the
    paper's rule: at most 10⁻¹⁰ at ε = 10. "paper-pctr" and "paper-search" look `batch_size` up in the paper's tables.
    """
    if not sampler.random_sizes:
        if max_batch_size != "auto":
            advice = "Batches of Shuffle and Deterministic have one size already."
            raise InvalidInputError("max_batch_size", max_batch_size, '"auto" for this sampler', advice)
        return sampler
    if max_batch_size == "auto":
        at, share = (epsilon, PENALTY_SHARE) if epsilon is not None else (_PAPER_EPSILON, 0.5)
        target = delta if epsilon is not None and delta is not None else _PAPER_DELTA / share
        return with_max_batch_size(sampler, "auto", num_examples, at, target, epochs, share)
    if isinstance(max_batch_size, str):
        max_batch_size = _of_the_paper(max_batch_size, batch_size)
    return sampler.truncated_to(max_batch_size, num_examples)


def _of_the_paper(name: str, batch_size: int | None) -> int:
    if name not in PAPER_MAX_BATCH_SIZES:
        bound = f"a number, auto, {' or '.join(PAPER_MAX_BATCH_SIZES)}"
        raise InvalidInputError("max_batch_size", name, bound, "auto costs next to nothing in privacy.")
    table = PAPER_MAX_BATCH_SIZES[name]
    if batch_size is None or batch_size not in table:
        bound = f"one of {', '.join(map(str, table))} for the table {name}"
        raise InvalidInputError("batch_size", batch_size, bound, "Use max_batch_size auto for any other.")
    return table[batch_size]
