"""How sharp `ballsbins verify` is: the factor within which exact δ and Monte Carlo were compared, and CPU seconds.

Each row is one run of the command's own comparison at its own number of samples, both directions, at the ε of that δ:
an exact δ wrong by more than the factor shown would have been found out. b/δ is the range of a contribution over the
mean. At the ε where `remove` has that δ, `add` may be far below; it has a row of its own where it has that δ itself.
`--small` takes seconds and runs two settings.
"""

import math
import sys
import time

from ballsbins import BallsAndBins, Mechanism, MonteCarlo
from ballsbins.accounting.monte_carlo.pairs import log_range
from ballsbins.cli.verify import compared, usual_samples
from ballsbins.curves import curve_of

SMALL = "--small" in sys.argv[1:]
SETTINGS = [
    (0.05, 10, 1), (0.05, 1000, 1), (0.1, 1000, 1), (0.5, 10**6, 1), (1.0, 100, 1), (1.0, 1000, 1), (1.0, 10**6, 1),
    (10.0, 1000, 1), (10.0, 10**6, 1), (0.3, 1000, 5), (1.0, 1000, 50), (10.0, 100, 50),
]  # fmt: skip
WITHIN, SECONDS = 0.1, 60.0


def row(mechanism, delta, way, samples):
    """One comparison at the ε where that direction has that δ: both directions are drawn, as `verify` does."""
    epsilon = float(mechanism.epsilon(delta).directions[way].value)
    exact, method = mechanism.delta(epsilon), MonteCarlo(samples, 1e-6)
    begun = time.process_time()
    sampled = mechanism.delta(epsilon, method)
    took = time.process_time() - begun
    sampler = curve_of(mechanism, method).sampler_for(epsilon, way)
    ratio = math.exp(log_range(sampler.log_weight, sampler.tilt, epsilon)) / delta
    checks = {check.direction: check for check in compared(epsilon, exact, sampled)}
    return epsilon, ratio, took, {name: (c.factor, c.verdict(WITHIN)) for name, c in checks.items()}


if __name__ == "__main__":
    print(
        "       σ       T  epochs      δ  direction           ε  samples    b/δ  factor remove     add   CPU s"
    )
    worst, longest, bad = 1.0, 0.0, []
    for sigma, steps, epochs in [SETTINGS[2], SETTINGS[5]] if SMALL else SETTINGS:
        mechanism = Mechanism(BallsAndBins(steps), sigma, epochs)
        samples = usual_samples(mechanism)
        for delta in (1e-6,) if SMALL else (1e-6, 1e-9):
            for way in ("remove", "add"):
                epsilon, ratio, took, found = row(mechanism, delta, way, samples)
                (one, _), (two, _) = found["remove"], found["add"]
                print(
                    f"{sigma:8g} {steps:7d} {epochs:7d} {delta:6.0e}  {way:9} {epsilon:11.6g} {samples:8d} "
                    f"{ratio:6.2f}  {one:13.3f} {two:7.3f} {took:7.1f}",
                    flush=True,
                )
                worst, longest = max(worst, found[way][0]), max(longest, took)
                bad += [(sigma, steps, epochs, delta, way)] if found[way][1] != "agree" else []
    print(f"worst factor {worst:.3f} (goal {1 + WITHIN}), longest {longest:.1f} CPU s (goal {SECONDS:.0f})")
    print(f"not within {WITHIN:.0%}: {bad or 'none'}")
