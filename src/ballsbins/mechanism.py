"""The one noun: what was, or will be, run. It builds the batches and answers for their privacy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ballsbins import _check
from ballsbins.errors import InvalidInputError
from ballsbins.samplers import Sampler, pooled_noise

if TYPE_CHECKING:
    import numpy as np
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
    from numpy.typing import NDArray

    from ballsbins.accounting.curve import Curve
    from ballsbins.accounting.monte_carlo import MonteCarlo
    from ballsbins.bound import Bound, Number
    from ballsbins.report import Statement
    from ballsbins.samplers import Batches, Key

SCHEMA = 1  # of `to_dict`; a saved Mechanism must mean the same next year
# Less noise protects nobody, more teaches nothing, and far beyond them arithmetic in doubles fails.
LEAST_NOISE, MOST_NOISE = 1e-9, 1e6
MOST_EPOCHS = 10**9


@dataclass(frozen=True, repr=False)
class Mechanism:
    """DP-SGD with batches from `sampler` and Gaussian noise of `noise_multiplier` times the clip norm.

    `epochs` counts the passes over the data that were begun. If the last one stopped early, `last_epoch_steps` is the
    number of its steps that were taken; otherwise it is None.
    """

    sampler: Sampler
    noise_multiplier: float
    epochs: int = 1
    last_epoch_steps: int | None = None

    def __post_init__(self) -> None:
        """Validate, once."""
        if not isinstance(self.sampler, Sampler):
            raise InvalidInputError(
                "sampler",
                self.sampler,
                "a sampler",
                "Use one of BallsAndBins, Poisson, Shuffle and Deterministic, such as BallsAndBins(steps=1000).",
            )
        sigma = _check.real(
            "noise_multiplier",
            self.noise_multiplier,
            LEAST_NOISE,
            MOST_NOISE,
            advice="It is the standard deviation of the noise divided by the clip norm.",
        )
        epochs = _check.integer(
            "epochs", self.epochs, 1, MOST_EPOCHS, advice="State how often the data is passed."
        )
        object.__setattr__(self, "noise_multiplier", sigma)
        object.__setattr__(self, "epochs", epochs)
        if self.last_epoch_steps is not None:
            last = _check.integer(
                "last_epoch_steps",
                self.last_epoch_steps,
                1,
                self.sampler.steps,
                advice="State the steps taken in the last, unfinished epoch; if none were, count one epoch less.",
            )
            object.__setattr__(self, "last_epoch_steps", None if last == self.sampler.steps else last)

    @property
    def finished(self) -> bool:
        """Whether the last epoch was run to its end."""
        return self.last_epoch_steps is None

    @property
    def finished_epochs(self) -> int:
        """The number of epochs that were run to their end."""
        return self.epochs if self.finished else self.epochs - 1

    @property
    def steps_in_last_epoch(self) -> int:
        """The number of steps taken in the last epoch, whether it was finished or not."""
        return self.sampler.steps if self.last_epoch_steps is None else self.last_epoch_steps

    @property
    def total_steps(self) -> int:
        """All steps taken, over all epochs."""
        return (self.epochs - 1) * self.sampler.steps + self.steps_in_last_epoch

    @property
    def batches_drawn(self) -> int:
        """The number of batches that were drawn; a sampler that draws once for all epochs draws no more than T."""
        return min(self.total_steps, self.sampler.steps) if self.sampler.draws_once else self.total_steps

    @property
    def independent_epochs(self) -> tuple[float, int]:
        """Noise multiplier and number of whole epochs, drawn independently, that are as private as the epochs begun.

        Where batches are drawn once, E epochs with noise σ are as private as one with noise σ/√E.
        """
        if self.sampler.draws_once:
            return pooled_noise(self.noise_multiplier, self.epochs), 1
        return self.noise_multiplier, self.epochs

    @property
    def noise_of_bins(self) -> tuple[tuple[int, float], ...]:
        """For batches that are drawn once: the number of bins visited equally often, with the noise σ/√visits.

        One entry for the bins visited in the last epoch, one for the others if there are any that were visited.
        """
        last, before = self.steps_in_last_epoch, self.epochs - 1
        pooled = [(last, pooled_noise(self.noise_multiplier, self.epochs))]
        if before > 0 and last < self.sampler.steps:
            pooled.append((self.sampler.steps - last, pooled_noise(self.noise_multiplier, before)))
        return tuple(pooled)

    def after(self, steps: int) -> Mechanism:
        """The mechanism as run after `steps` steps in all, whatever number was planned."""
        advice = "Before the first step nothing was run, and nothing is to be accounted for."
        taken = _check.integer("steps_taken", steps, 1, advice=advice)
        whole, rest = divmod(taken, self.sampler.steps)
        return replace(self, epochs=whole + (rest > 0), last_epoch_steps=rest or None)

    def under(self, sampler: Sampler | type[Sampler]) -> Mechanism:
        """The same run, at equal noise, with the batches of another sampler: a type stands for one of equal steps."""
        other = sampler(self.sampler.steps) if isinstance(sampler, type) else sampler
        if other.steps != self.sampler.steps:
            advice = "A run is compared with one of as many steps per epoch."
            raise InvalidInputError(
                "steps of the other sampler", other.steps, f"{self.sampler.steps}", advice
            )
        return replace(self, sampler=other)

    def batches(self, num_examples: int, key: Key | bytes | int, epoch: int = 0, start: int = 0) -> Batches:
        """Give the batches of one epoch, from step `start` on; see `Sampler.batches`.

        An epoch that this mechanism does not have is refused, so that what is run is what is accounted for; in an
        unfinished last epoch it is up to the caller to stop after `last_epoch_steps`.
        """
        number = _check.integer(
            "epoch",
            epoch,
            0,
            self.epochs - 1,
            advice="Epochs count from 0; a longer run needs a Mechanism with more epochs, and costs more privacy.",
        )
        return self.sampler.batches(num_examples, key, number, start)

    @cached_property
    def curve(self) -> Curve:
        """The privacy curve, by the method that fits the sampler."""
        from ballsbins.curves import curve_of

        return curve_of(self)

    def delta(self, epsilon: Number, method: str | MonteCarlo = "auto") -> Bound:
        """δ at one ε or an array of them; ε may be negative (the curve of a privacy loss distribution)."""
        from ballsbins.accountant import delta_bound

        return delta_bound(self, epsilon, method)

    def log_delta(self, epsilon: Number, method: str | MonteCarlo = "auto") -> Bound:
        """Natural logarithm of δ, which is a number where δ itself is below the doubles."""
        from ballsbins.accountant import delta_bound

        return delta_bound(self, epsilon, method, log=True)

    def epsilon(self, delta: Number, method: str | MonteCarlo = "auto") -> Bound:
        """ε at one δ or an array of them.

        `method` is "auto" or, for whole epochs of balls-and-bins, "renyi" or "lower-bound": bounds to compare with.
        """
        from ballsbins.accountant import epsilon_bound

        return epsilon_bound(self, delta, method)

    def true_positive_rate(self, false_positive_rate: Number) -> Bound:
        """How well anybody can tell whether an example was used: the trade-off curve of the best membership test."""
        from ballsbins.accountant import true_positive_rate_bound

        return true_positive_rate_bound(self, false_positive_rate)

    def renyi(self, orders: Sequence[float]) -> dict[str, NDArray[np.float64]]:
        """Upper bounds on the Rényi divergences of the whole run at orders α > 1, by direction."""
        from ballsbins.accountant import renyi

        return renyi(self, orders)

    def pld(self, *, pessimistic: bool = True, interval: float = 1e-4) -> PrivacyLossDistribution:
        """The run as a PrivacyLossDistribution of dp_accounting, to compose with others.

        Rounded up (an upper bound on ε) or, with pessimistic=False, down. `interval` is the grid of losses.
        """
        from ballsbins.accountant import loss_distribution

        return loss_distribution(self, interval, pessimistic=pessimistic)

    def statement(
        self, delta: float, *, clip_norm: float | None = None, num_examples: int | None = None
    ) -> Statement:
        """The privacy statement to publish: `.text()`, `.markdown()` and `.to_dict()`."""
        from ballsbins.report import Card

        return Card(self, delta, clip_norm=clip_norm, num_examples=num_examples).statement()

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, with the number of its schema."""
        return {
            "schema": SCHEMA,
            "sampler": self.sampler.to_dict(),
            "noise_multiplier": self.noise_multiplier,
            "epochs": self.epochs,
            "last_epoch_steps": self.last_epoch_steps,
        }

    @staticmethod
    def from_dict(saved: Mapping[str, Any]) -> Mechanism:
        """Build the mechanism that `to_dict` wrote; unknown or missing fields are errors."""
        schema = _check.mapping("a saved Mechanism", saved, advice="Give what to_dict wrote.").get("schema")
        if schema != SCHEMA:
            raise InvalidInputError(
                "schema", schema, f"{SCHEMA}", "Update ballsbins if this was saved by a later version."
            )
        wanted = {"schema", "sampler", "noise_multiplier", "epochs", "last_epoch_steps"}
        _check.fields("a saved Mechanism", saved, wanted)
        return Mechanism(
            Sampler.from_dict(saved["sampler"]),
            saved["noise_multiplier"],
            saved["epochs"],
            saved["last_epoch_steps"],
        )

    def __repr__(self) -> str:
        """Show the call that builds this mechanism, without what was left out."""
        epochs = "" if self.epochs == 1 else f", epochs={self.epochs}"
        last = "" if self.last_epoch_steps is None else f", last_epoch_steps={self.last_epoch_steps}"
        return f"Mechanism({self.sampler!r}, noise_multiplier={self.noise_multiplier!r}{epochs}{last})"
