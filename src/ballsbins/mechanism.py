"""The central object: the description of a run. It draws the batches and computes their privacy."""

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
    from ballsbins.bound import Adjacency, Bound, Number
    from ballsbins.report import Statement
    from ballsbins.samplers import Batches, Key

SCHEMA = 1  # version of what `to_dict` writes; a saved Mechanism must still mean the same next year
# Less noise gives no privacy and more noise leaves nothing to learn; far beyond these, arithmetic in doubles fails.
LEAST_NOISE, MOST_NOISE = 1e-9, 1e6
MOST_EPOCHS = 10**9


def check_epochs(epochs: Any) -> int:
    """Return the number of passes over the data, or raise an error if it is not valid."""
    return _check.integer("epochs", epochs, 1, MOST_EPOCHS, advice="State how often the data is passed.")


def check_sampler(sampler: Any) -> None:
    """Raise an error unless the argument is a sampler."""
    advice = "Use one of BallsAndBins, Poisson, Shuffle and Deterministic, such as BallsAndBins(steps=1000)."
    _check.instance("sampler", sampler, Sampler, bound="a sampler", advice=advice)


def check_run(name: str, run: Any) -> None:
    """Raise an error unless the argument is a Mechanism."""
    advice = "State what is run, such as Mechanism(BallsAndBins(steps=1000), noise_multiplier=1.0)."
    _check.instance(name, run, Mechanism, bound="a Mechanism", advice=advice)


@dataclass(frozen=True, repr=False)
class Mechanism:
    """A run of DP-SGD, past or planned: batches from a sampler, and Gaussian noise.

    The same object draws the batches and computes their privacy, so sampler and accounting cannot disagree.
    Adjacency is zero-out: either an example is present, or its gradient is zero. The number of examples is public.

    Args:
        sampler: how batches are drawn.
        noise_multiplier: σ, the standard deviation of the noise divided by the clip norm, from 10⁻⁹ to 10⁶.
        epochs: the number of passes over the data, counting an unfinished last one; at least 1.
        last_epoch_steps: if the last epoch stopped early, the number of its steps that were taken, from 1 to the
            sampler's steps; None if it was finished.

    Raises:
        InvalidInputError: an argument is out of its range.

    Example:
        >>> from ballsbins import BallsAndBins
        >>> mechanism = Mechanism(BallsAndBins(steps=1000), noise_multiplier=0.5)
        >>> bound = mechanism.epsilon(delta=1e-6)
        >>> bound.method, f"{bound.upper:.6f}"
        ('exact', '4.106016')
        >>> mechanism.after(250)
        Mechanism(BallsAndBins(steps=1000, redraw=True), noise_multiplier=0.5, last_epoch_steps=250)
    """

    sampler: Sampler
    noise_multiplier: float
    epochs: int = 1
    last_epoch_steps: int | None = None

    def __post_init__(self) -> None:
        """Validate the fields once, at construction."""
        check_sampler(self.sampler)
        sigma = _check.real(
            "noise_multiplier",
            self.noise_multiplier,
            LEAST_NOISE,
            MOST_NOISE,
            advice="It is the standard deviation of the noise divided by the clip norm.",
        )
        epochs = check_epochs(self.epochs)
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
        """Whether the last epoch ran to its end."""
        return self.last_epoch_steps is None

    @property
    def finished_epochs(self) -> int:
        """The number of epochs that ran to their end."""
        return self.epochs if self.finished else self.epochs - 1

    @property
    def steps_in_last_epoch(self) -> int:
        """The number of steps taken in the last epoch, whether it was finished or not."""
        return self.sampler.steps if self.last_epoch_steps is None else self.last_epoch_steps

    @property
    def total_steps(self) -> int:
        """The number of steps taken over all epochs."""
        return (self.epochs - 1) * self.sampler.steps + self.steps_in_last_epoch

    @property
    def batches_drawn(self) -> int:
        """The number of batches drawn. A sampler that draws once for all epochs draws at most T of them."""
        return min(self.total_steps, self.sampler.steps) if self.sampler.draws_once else self.total_steps

    @property
    def independent_epochs(self) -> tuple[float, int]:
        """Noise multiplier and number of independent whole epochs that are as private as the epochs of this run.

        An unfinished last epoch counts as a whole one. If batches are drawn once, E epochs with noise σ are as
        private as one epoch with noise σ/√E.
        """
        if self.sampler.draws_once:
            return pooled_noise(self.noise_multiplier, self.epochs), 1
        return self.noise_multiplier, self.epochs

    @property
    def noise_of_bins(self) -> tuple[tuple[int, float], ...]:
        """Groups of bins visited equally often: their number and their noise σ/√visits, if batches are drawn once.

        The first entry is for the bins visited in the last epoch. A second one follows if other bins were visited.
        """
        last, before = self.steps_in_last_epoch, self.epochs - 1
        pooled = [(last, pooled_noise(self.noise_multiplier, self.epochs))]
        if before > 0 and last < self.sampler.steps:
            pooled.append((self.sampler.steps - last, pooled_noise(self.noise_multiplier, before)))
        return tuple(pooled)

    def after(self, steps: int) -> Mechanism:
        """Return the mechanism as it ran up to a given step, which may differ from the planned number.

        If that step is inside an epoch, `last_epoch_steps` is set; the privacy of the unfinished epoch is exact.

        Args:
            steps: the number of steps taken over all epochs, at least 1.

        Returns:
            The mechanism that describes exactly those steps.

        Raises:
            InvalidInputError: `steps` is below 1.
        """
        advice = "Before the first step nothing was run, and nothing is to be accounted for."
        taken = _check.integer("steps_taken", steps, 1, advice=advice)
        whole, rest = divmod(taken, self.sampler.steps)
        return replace(self, epochs=whole + (rest > 0), last_epoch_steps=rest or None)

    def under(self, sampler: Sampler | type[Sampler]) -> Mechanism:
        """Return the same run, at equal noise, with the batches of another sampler.

        Args:
            sampler: a sampler with the same number of steps; or a sampler type, which stands for a sampler of that
                type with the same number of steps and no truncation.

        Returns:
            The mechanism with that sampler.

        Raises:
            InvalidInputError: the other sampler has a different number of steps.
        """
        other = sampler
        if isinstance(other, type) and issubclass(other, Sampler):
            other = other(self.sampler.steps)
        check_sampler(other)
        if other.steps != self.sampler.steps:
            advice = "A run is compared with one of as many steps per epoch."
            raise InvalidInputError(
                "steps of the other sampler", other.steps, f"{self.sampler.steps}", advice
            )
        return replace(self, sampler=other)

    def batches(self, num_examples: int, key: Key | bytes | int, epoch: int = 0, start: int = 0) -> Batches:
        """Draw the batches of one epoch; see `Sampler.batches`.

        An epoch outside this mechanism is refused, so the accounting always covers what is run. If the last epoch is
        unfinished, the caller must stop after `last_epoch_steps`.

        Args:
            num_examples: n, the number of examples in the data set.
            key: the secret key, or its 32 bytes. An integer is a seed for experiments, and is not secret.
            epoch: the number of the epoch, from 0 to `epochs` − 1.
            start: the first step to return.

        Returns:
            The batches from step `start` on, as arrays of example indices.

        Raises:
            InvalidInputError: an argument is out of its range.
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
        """The privacy curve, computed by the best method for the sampler."""
        from ballsbins.curves import curve_of

        return curve_of(self)

    def delta(
        self, epsilon: Number, method: str | MonteCarlo = "auto", *, adjacency: Adjacency = "zero-out"
    ) -> Bound:
        """Compute δ at one ε, or at several.

        Args:
            epsilon: one number or an array, from −700 to 700; privacy loss distributions also need negative ones.
            method: "auto", the best method for the sampler; for whole epochs of balls-and-bins also "renyi" or
                "lower-bound", bounds to compare with; or a `MonteCarlo`.
            adjacency: which data sets are compared. "zero-out": one example is there, or its gradient is 0.
                "add-or-remove": the same numbers, for samplers with random batch sizes, if the number of steps and
                all other constants were not computed from the exact number of examples. "replace-one": one example
                is replaced by another; bounds, with the method "auto" only.

        Returns:
            Bounds on δ, of the shape of `epsilon`.
        """
        from ballsbins.adjacency import delta_bound

        return delta_bound(self, epsilon, method, adjacency)

    def log_delta(self, epsilon: Number, method: str | MonteCarlo = "auto") -> Bound:
        """Compute the natural logarithm of δ, which stays finite where δ itself underflows in double precision.

        Args:
            epsilon: one number or an array, from −700 to 700.
            method: "auto", the best method for the sampler; for whole epochs of balls-and-bins also "renyi" or
                "lower-bound", bounds to compare with; or a `MonteCarlo`.

        Returns:
            Bounds on log δ, of the shape of `epsilon`.
        """
        from ballsbins.accountant import delta_bound

        return delta_bound(self, epsilon, method, log=True)

    def epsilon(
        self, delta: Number, method: str | MonteCarlo = "auto", *, adjacency: Adjacency = "zero-out"
    ) -> Bound:
        """Compute ε at one δ, or at several.

        Args:
            delta: one number or an array, strictly between 0 and 1.
            method: "auto", the best method for the sampler; for whole epochs of balls-and-bins also "renyi" or
                "lower-bound", bounds to compare with; or a `MonteCarlo`.
            adjacency: which data sets are compared. "zero-out": one example is there, or its gradient is 0.
                "add-or-remove": the same numbers, for samplers with random batch sizes, if the number of steps and
                all other constants were not computed from the exact number of examples. "replace-one": one example
                is replaced by another; bounds, with the method "auto" only.

        Returns:
            Bounds on ε, of the shape of `delta`.
        """
        from ballsbins.adjacency import epsilon_bound

        return epsilon_bound(self, delta, method, adjacency)

    def true_positive_rate(self, false_positive_rate: Number) -> Bound:
        """Bound how well anyone can tell if an example was used: the trade-off curve of the best membership test.

        Args:
            false_positive_rate: the share of absent examples that the test calls present; a number or an array in
                [0, 1].

        Returns:
            Bounds on the share of present examples that the best test calls present.
        """
        from ballsbins.accountant import true_positive_rate_bound

        return true_positive_rate_bound(self, false_positive_rate)

    def renyi(self, orders: Sequence[float]) -> dict[str, NDArray[np.float64]]:
        """Compute upper bounds on the Rényi divergences of the whole run.

        Args:
            orders: numbers α > 1.

        Returns:
            For each of "remove" and "add", an array with one divergence per order.
        """
        from ballsbins.accountant import renyi

        return renyi(self, orders)

    def pld(self, *, pessimistic: bool = True, interval: float = 1e-4) -> PrivacyLossDistribution:
        """Export the run as a PrivacyLossDistribution of dp_accounting, to compose with others.

        Args:
            pessimistic: True rounds losses up, which gives an upper bound on ε; False rounds them down.
            interval: the distance between neighbouring losses on the grid.

        Returns:
            The distribution, as an object of dp_accounting.
        """
        from ballsbins.accountant import loss_distribution

        return loss_distribution(self, interval, pessimistic=pessimistic)

    def statement(
        self, delta: float, *, clip_norm: float | None = None, num_examples: int | None = None
    ) -> Statement:
        """Write the privacy statement to publish.

        Args:
            delta: the δ at which ε is stated, strictly between 0 and 1.
            clip_norm: C, the norm to which gradients are clipped, if it is to be stated.
            num_examples: n, the number of examples, if it is to be stated.

        Returns:
            The statement: `.text()`, `.markdown()` and `.to_dict()`.
        """
        from ballsbins.report import Card

        return Card(self, delta, clip_norm=clip_norm, num_examples=num_examples).statement()

    def to_dict(self) -> dict[str, Any]:
        """Return the mechanism as plain data, with its schema number.

        Returns:
            A dictionary that can be written as JSON.
        """
        return {
            "schema": SCHEMA,
            "sampler": self.sampler.to_dict(),
            "noise_multiplier": self.noise_multiplier,
            "epochs": self.epochs,
            "last_epoch_steps": self.last_epoch_steps,
        }

    @staticmethod
    def from_dict(saved: Mapping[str, Any]) -> Mechanism:
        """Build the mechanism that `to_dict` wrote.

        Args:
            saved: the result of `to_dict`, with all of its fields and no others.

        Returns:
            The mechanism.

        Raises:
            InvalidInputError: the schema number differs, or a field is missing, unknown or out of its range.
        """
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
        """Show the call that builds this mechanism, without arguments that have their default values."""
        epochs = "" if self.epochs == 1 else f", epochs={self.epochs}"
        last = "" if self.last_epoch_steps is None else f", last_epoch_steps={self.last_epoch_steps}"
        return f"Mechanism({self.sampler!r}, noise_multiplier={self.noise_multiplier!r}{epochs}{last})"
