"""The total privacy cost of several runs on one data set."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ballsbins import accountant
from ballsbins.accounting.bounds_only import Between, OrBounds
from ballsbins.accounting.curve import Curve
from ballsbins.accounting.epochs.composition import ComposedCurve
from ballsbins.accounting.epochs.curve import ProductCurve
from ballsbins.accounting.epochs.moments import Moments
from ballsbins.accounting.gaussian import GaussianCurve
from ballsbins.accounting.truncated import Truncated
from ballsbins.bound import Bound, Number
from ballsbins.curves import LARGEST_SIGMA, LEAST_SIGMA, SingleRuns
from ballsbins.errors import InvalidInputError
from ballsbins.mechanism import Mechanism
from ballsbins.samplers import BallsAndBins, Poisson

_Single = tuple[tuple[int, float], int]  # (bins visited, noise multiplier), steps: the keys of `SingleRuns`


@dataclass(frozen=True, init=False)
class Total:
    """Several runs on the same data, each with its own batches and noise: for example, tuning runs and the final one.

    The answers hold for everything that all runs publish together. A run may depend on what earlier runs published
    (for example, in its learning rate), but the noise, the batches and the length of every run must not.

    Args:
        mechanisms: the runs; a Mechanism listed twice counts as two runs.

    Raises:
        InvalidInputError: there is no run, or something that is not a Mechanism.

    Example:
        >>> from ballsbins import BallsAndBins, Mechanism, Total
        >>> tuning = Mechanism(BallsAndBins(steps=100), noise_multiplier=2.0)
        >>> final = Mechanism(BallsAndBins(steps=1000), noise_multiplier=1.0, epochs=3)
        >>> bound = Total([tuning, tuning, final]).epsilon(delta=1e-6)
        >>> bound.kind, f"{bound.upper:.4f}", final.epsilon(delta=1e-6).upper < bound.upper
        ('exact', '0.4205', True)
    """

    mechanisms: tuple[Mechanism, ...]

    def __init__(self, mechanisms: Iterable[Mechanism]) -> None:
        """Take the runs."""
        runs = tuple(mechanisms) if isinstance(mechanisms, Iterable) else (mechanisms,)
        if not runs or not all(isinstance(run, Mechanism) for run in runs):
            advice = "Give what was run, each training once."
            raise InvalidInputError("mechanisms", list(runs), "a list of Mechanisms, one or more", advice)
        object.__setattr__(self, "mechanisms", runs)

    @cached_property
    def curve(self) -> Curve:
        """The privacy curve of all runs together: exact if each run's curve is, otherwise a bracket or bounds."""
        untruncated = self._untruncated()
        cut = [run.curve for run in self.mechanisms if isinstance(run.curve, Truncated)]
        if not cut:
            return untruncated
        # union bound over the runs
        log_p, log_drop = (
            float(np.logaddexp.reduce([getattr(curve, name) for curve in cut]))
            for name in ("log_p", "log_drop")
        )
        return Truncated(untruncated, min(log_p, 0.0), min(log_drop, 0.0))

    def _untruncated(self) -> Curve:
        curves = [run.curve.untruncated for run in self.mechanisms]
        if len(curves) == 1:
            return curves[0]
        bracket = ComposedCurve([part for curve in curves for part in curve.above.parts])
        if any(curve.kind == "bounds" for curve in curves):
            return Between(curves, bracket)  # the runs together cost at least as much as each alone
        factors: Counter[_Single] = Counter()
        for run in self.mechanisms:
            found = _singles(run)
            if found is None:
                return bracket
            for single, times in found:
                factors[single] += times
        singles = SingleRuns()

        def moments() -> list[tuple[Moments, int]]:
            return [(singles.moments(*single), times) for single, times in factors.items()]

        # each step, or each epoch, costs at most a Gaussian mechanism; for these, 1/σ² adds up
        noises = [times / bins[1] ** 2 for (bins, _), times in factors.items()]
        return OrBounds(
            ProductCurve(moments, bracket), Between(curves, GaussianCurve(1.0 / math.sqrt(sum(noises))))
        )

    def delta(self, epsilon: Number) -> Bound:
        """Compute δ of all runs together.

        Args:
            epsilon: one number or an array, from −700 to 700.

        Returns:
            Bounds on δ, of the shape of `epsilon`.
        """
        return accountant.delta_bound(self, epsilon)

    def epsilon(self, delta: Number) -> Bound:
        """Compute ε of all runs together.

        Args:
            delta: one number or an array, strictly between 0 and 1.

        Returns:
            Bounds on ε, of the shape of `delta`.
        """
        return accountant.epsilon_bound(self, delta)

    def true_positive_rate(self, false_positive_rate: Number) -> Bound:
        """Bound how well anyone can tell from all runs whether an example was used; see `Mechanism`.

        Args:
            false_positive_rate: the share of absent examples that the test calls present, in [0, 1].

        Returns:
            Bounds on the share of present examples that the best test calls present.
        """
        return accountant.true_positive_rate_bound(self, false_positive_rate)

    def to_dict(self) -> dict[str, Any]:
        """Return the runs as plain data.

        Returns:
            A dictionary whose entry "runs" is a list of `Mechanism.to_dict` results.
        """
        return {"runs": [run.to_dict() for run in self.mechanisms]}


def _singles(run: Mechanism) -> list[tuple[_Single, int]] | None:
    """Return the single epochs or steps that make up a run, and how often each runs; None if there are none."""
    sampler, sigma, steps = run.sampler, run.noise_multiplier, run.sampler.steps
    if steps == 1 or not LEAST_SIGMA <= sigma <= LARGEST_SIGMA:
        return None
    if isinstance(sampler, Poisson):
        return [(((1, sigma), steps), run.total_steps)]
    if not isinstance(sampler, BallsAndBins):
        return None
    if sampler.draws_once:
        pooled = run.noise_of_bins
        return None if len(pooled) > 1 or pooled[0][1] < LEAST_SIGMA else [((pooled[0], steps), 1)]
    whole = [(((steps, sigma), steps), run.finished_epochs)] if run.finished_epochs else []
    rest = run.last_epoch_steps
    return whole + ([] if rest is None else [(((rest, sigma), steps), 1)])
