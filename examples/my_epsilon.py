"""What ε do I have? The same run under each way to draw batches, and the least noise for a target.

Needs `pip install .` and nothing else.
"""

from __future__ import annotations

from ballsbins import BallsAndBins, Deterministic, Mechanism, Poisson, Shuffle, calibrate
from ballsbins.report.numbers import down, stated, up

EXAMPLES, BATCH_SIZE, EPOCHS, SIGMA, DELTA = 60_000, 256, 10, 1.0, 1e-6

print(f"σ = {SIGMA}, {EXAMPLES:,} examples in batches of {BATCH_SIZE}, {EPOCHS} epochs, δ = {stated(DELTA)}")
for kind, loader in (
    (Shuffle, "DataLoader(shuffle=True)"),
    (Deterministic, "DataLoader(shuffle=False)"),
    (Poisson, "Opacus' own loader"),
    (BallsAndBins, "the loader of this library"),
):
    mechanism = Mechanism(kind.for_batch_size(EXAMPLES, BATCH_SIZE), SIGMA, epochs=EPOCHS)
    bound = mechanism.epsilon(DELTA)
    print(f"  {loader:26} {down(bound.lower):>7} ≤ ε ≤ {up(bound.upper):>7}   ({bound.kind})")

# What the run has spent so far, and what an attacker could do with it.
stopped = mechanism.after(steps=1000)
print(f"\nstopped after 1,000 of {mechanism.total_steps:,} steps: ε ≤ {up(stopped.epsilon(DELTA).upper)}")
found = mechanism.true_positive_rate(0.01).upper
print(
    f"an attacker who suspects 1 % of all absent examples finds at most {up(100 * found, 3)} % of those used"
)

# The other way round: how much noise does a target need?
target = calibrate(BallsAndBins.for_batch_size(EXAMPLES, BATCH_SIZE), epsilon=2.0, delta=DELTA, epochs=EPOCHS)
print(f"\nε ≤ 2 needs σ = {up(target.noise_multiplier)} with balls-and-bins batches,")
shuffled = calibrate(Shuffle.for_batch_size(EXAMPLES, BATCH_SIZE), epsilon=2.0, delta=DELTA, epochs=EPOCHS)
print(f"        and σ = {up(shuffled.noise_multiplier)} with shuffled ones, as far as anybody can prove")
