"""How far the noise reaches, and what that costs.

Noise made by Box and Muller's transform from u ≥ 2⁻⁶⁵ comes in pairs of length at most R = √(−2 log 2⁻⁶⁵) ≈ 9.49
standard deviations. An example moves the sum of its step by at most 1/σ standard deviations. So a pair longer than R
proves that the example was there, at any ε. For noise z and a shift v with |v| ≤ 1/σ

    Pr[|z + v| > R]  ≤  Pr[|z| > R − 1/σ]  =  exp(−(R − 1/σ)²/2) ,

once for every step that has the example: in expectation as many as epochs, for every sampler. Within R the densities
are those of the Gaussian up to one common factor. So this is all that the limit adds to δ. At σ = 0.3 it is 6·10⁻⁹ an
epoch; if u had 32 bits it would be 3·10⁻³, far above any δ that is claimed.
"""

from __future__ import annotations

import math

from ballsbins.mechanism import Mechanism
from ballsbins.report.words import up

REACH = math.sqrt(2.0 * 65.0 * math.log(2.0))  # in standard deviations
_SHARE = 0.01  # of δ; what is below is not worth a sentence


def missing_from_delta(mechanism: Mechanism) -> float:
    """What the limited reach of the noise adds to δ, at most."""
    left = max(REACH - 1.0 / mechanism.noise_multiplier, 0.0)
    return min(1.0, mechanism.epochs * math.exp(-0.5 * left * left))


def tail_not_covered(mechanism: Mechanism, delta: float) -> tuple[str, ...]:
    """The sentence for the statement of a run, where the noise is so small that its reach matters at this δ."""
    missing = missing_from_delta(mechanism)
    if missing <= _SHARE * delta:
        return ()
    sigma, cost = f"{mechanism.noise_multiplier:g}", up(missing, 2)
    return (
        f"The reach of the noise: it never exceeds {REACH:.2f} standard deviations, which at the noise multiplier "
        f"{sigma} adds up to {cost} to δ; more noise makes that vanish",
    )
