"""`ballsbins audit`: does the claimed ε stand up to the best attack on the mechanism as run?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ballsbins import _check
from ballsbins.audit.canary import game_of, observations, statistics
from ballsbins.audit.low_bits import learned
from ballsbins.audit.lower_bound import Evidence, delta_at_least, epsilon_at_least
from ballsbins.bound import Bound
from ballsbins.mechanism import Mechanism

_LEAST_TRIALS = 100
_LEARN_FROM = 2  # one in so many as many runs teach the attack on low bits what to look for
_OTHER_RUNS = 2**61  # added to the seed: runs that are judged on nothing they were learned from
_GRID = 33  # values of ε at which the whole claimed curve is tested


@dataclass(frozen=True)
class Finding:
    """What the runs show, and what was claimed for the same δ."""

    shown: Evidence
    claimed: Bound

    @property
    def consistent(self) -> bool:
        """Whether the claim may be true."""
        return self.shown.epsilon <= float(self.claimed.upper)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "delta": self.shown.delta,
            "epsilon_at_least": self.shown.epsilon,
            "claimed_epsilon": self.claimed.to_dict(),
            "consistent": self.consistent,
            "direction": self.shown.direction,
            "threshold": self.shown.threshold,
            "event_at_least": self.shown.often,
            "event_on_the_other_side_at_most": self.shown.rarely,
        }


@dataclass(frozen=True)
class Audit:
    """What so many runs with the canary, and as many without, tell about a claim.

    `at_delta` is the bound on ε at the δ asked for. Small δ need very many runs; so `sharpest` tests the whole
    claimed curve, at the δ where the runs come closest to refuting it (None if they show no δ above 0 anywhere).
    `low_bits` is a bound on ε at the δ asked for, too, by what floating point gives away (`audit.low_bits`). All
    lower bounds hold at once with probability at least `confidence`. A mechanism that is what it claims to be has
    all of them below its claim.
    """

    mechanism: Mechanism
    at_delta: Finding
    sharpest: Finding | None
    low_bits: Finding
    confidence: float
    trials: int
    seed: int

    @property
    def consistent(self) -> bool:
        """Whether the claim may be true."""
        findings = (self.at_delta, self.low_bits, self.sharpest)
        return all(finding.consistent for finding in findings if finding is not None)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "mechanism": self.mechanism.to_dict(),
            "consistent": self.consistent,
            "confidence": self.confidence,
            "at_delta": self.at_delta.to_dict(),
            "sharpest": None if self.sharpest is None else self.sharpest.to_dict(),
            "low_bits": self.low_bits.to_dict(),
            "trials": self.trials,
            "seed": self.seed,
        }


def audit(
    mechanism: Mechanism,
    delta: float,
    *,
    trials: int = 100_000,
    confidence: float = 0.999,
    seed: int = 0,
    secret_noise_multiplier: float | None = None,
) -> Audit:
    """Attack the mechanism `trials` times with the canary and as often without, and compare with its claim.

    `secret_noise_multiplier` runs it with other noise than it claims: the negative control, to see that the audit
    would notice.
    """
    advice = "More runs see smaller probabilities: ε of 10 needs about a million."
    count = _check.integer("trials", trials, _LEAST_TRIALS, 10**9, advice=advice)
    sure = _check.real(
        "confidence", confidence, 0.0, 1.0, open_left=True, open_right=True,
        advice="It is the probability that the lower bounds hold.",
    )  # fmt: skip
    _check.integer("seed", seed, 0, 2**60, advice="The same seed gives the same audit.")
    sigma = mechanism.noise_multiplier
    if secret_noise_multiplier is not None:
        sigma = _check.real(
            "secret_noise_multiplier", secret_noise_multiplier, 0.0, open_left=True,
            advice="It is the noise that is really added, for the negative control.",
        )  # fmt: skip
    game_of(mechanism)  # what cannot be audited is refused first
    claim = mechanism.epsilon(delta)
    sides = [statistics(mechanism, sigma, present=there, trials=count, seed=seed) for there in (True, False)]
    error = (1.0 - sure) / 3
    at_delta = Finding(epsilon_at_least(sides[0], sides[1], float(delta), error), claim)
    grid = np.linspace(0.0, float(claim.upper), _GRID)
    claimed = np.maximum(mechanism.delta(grid).upper, float(delta))
    found = delta_at_least(sides[0], sides[1], grid, claimed, error)
    sharpest = None if found.delta <= 0.0 else Finding(found, mechanism.epsilon(found.delta))
    taught_by = [
        observations(
            mechanism, sigma, present=there, trials=max(count // _LEARN_FROM, 1), seed=seed + _OTHER_RUNS
        )
        for there in (True, False)
    ]
    score = learned(taught_by[0], taught_by[1], sigma)
    bits = [
        statistics(mechanism, sigma, present=there, trials=count, seed=seed, score=score)
        for there in (True, False)
    ]
    low_bits = Finding(epsilon_at_least(bits[0], bits[1], float(delta), error), claim)
    return Audit(mechanism, at_delta, sharpest, low_bits, sure, count, seed)
