"""What is known to be true of a run whose privacy was reported as that of Poisson sampling."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ballsbins.bound import Bound
from ballsbins.mechanism import Mechanism
from ballsbins.samplers import BallsAndBins, Deterministic, Poisson, Shuffle


@dataclass(frozen=True)
class Findings:
    """The ε of one run, by how its batches may have been drawn. Everything else about the run is the same."""

    noise_multiplier: float
    steps: int
    epochs: int
    last_epoch_steps: int | None
    delta: float
    poisson: Bound
    shuffle: Bound
    deterministic: Bound
    balls_and_bins: Bound

    @property
    def report_is_false_if_shuffled(self) -> bool:
        """Whether it is proved that shuffled batches have a larger ε than Poisson accounting claims at most."""
        return float(self.shuffle.lower) > float(self.poisson.upper)

    @property
    def factor(self) -> float:
        """How many times the claim the ε of shuffled batches is, at least; infinitely many where 0 is claimed."""
        claim = float(self.poisson.upper)
        return float(self.shuffle.lower) / claim if claim > 0 else math.inf

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "run": {
                "noise_multiplier": self.noise_multiplier,
                "steps": self.steps,
                "epochs": self.epochs,
                "last_epoch_steps": self.last_epoch_steps,
            },
            "delta": self.delta,
            "epsilon": {
                "poisson": self.poisson.to_dict(),
                "shuffle": self.shuffle.to_dict(),
                "deterministic": self.deterministic.to_dict(),
                "balls_and_bins": self.balls_and_bins.to_dict(),
            },
            "report_is_false_if_shuffled": self.report_is_false_if_shuffled,
        }


def audit_run(
    noise_multiplier: float, steps: int, epochs: int, delta: float, last_epoch_steps: int | None = None
) -> Findings:
    """Account for the run under each way to batch."""
    mechanisms = [
        Mechanism(sampler, noise_multiplier, epochs, last_epoch_steps)
        for sampler in (Poisson(steps), Shuffle(steps), Deterministic(steps), BallsAndBins(steps))
    ]
    first = mechanisms[0]
    return Findings(
        first.noise_multiplier,
        first.sampler.steps,
        first.epochs,
        first.last_epoch_steps,
        delta,
        *(mechanism.epsilon(delta) for mechanism in mechanisms),
    )
