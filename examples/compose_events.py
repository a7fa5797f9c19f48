"""Training is one event among others: compose it with a private mean and a private histogram.

The total is computed by dp_accounting, which is installed with `pip install .`.
"""

from __future__ import annotations

from dp_accounting import GaussianDpEvent, LaplaceDpEvent

from ballsbins import BallsAndBins, Mechanism, Total
from ballsbins.dp_events import MechanismAccountant, MechanismDpEvent
from ballsbins.report.numbers import up

DELTA = 1e-6
training = Mechanism(BallsAndBins.for_batch_size(60_000, 256), noise_multiplier=1.0, epochs=10)
events = {
    "training": MechanismDpEvent(training),
    "mean of a feature": GaussianDpEvent(noise_multiplier=20.0),
    "histogram of labels": LaplaceDpEvent(noise_multiplier=10.0),
}

total = MechanismAccountant(value_discretization_interval=1e-3)
for name, event in events.items():
    alone = MechanismAccountant(value_discretization_interval=1e-3).compose(event)
    total.compose(event)
    print(
        f"{name:20} alone: ε ≤ {up(alone.get_epsilon(DELTA), 4):6}  so far: ε ≤ {up(total.get_epsilon(DELTA), 4)}"
    )

# Several trainings compose exactly, without dp_accounting's grid of losses.
print(f"two trainings: ε ≤ {up(Total([training, training]).epsilon(DELTA).upper, 4)}")
