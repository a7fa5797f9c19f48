"""Differentially private training with balls-and-bins batches, and its exact privacy.

from ballsbins import BallsAndBins, calibrate, new_key

mechanism = calibrate(BallsAndBins(steps=1000), epsilon=8.0, delta=1e-6)
for batch in mechanism.batches(num_examples=60_000, key=new_key()):
    ...  # clip, sum, add noise of mechanism.noise_multiplier, step
print(mechanism.epsilon(delta=1e-6))
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

from ballsbins.bound import Bound
from ballsbins.errors import (
    AccuracyError,
    BallsBinsError,
    DataError,
    InvalidInputError,
    MissingExtraError,
    RunError,
    SecretError,
    UnreachableTargetError,
)
from ballsbins.mechanism import Mechanism
from ballsbins.samplers import BallsAndBins, Deterministic, Key, Poisson, Sampler, Shuffle, new_key

if TYPE_CHECKING:
    from collections.abc import Callable

    from ballsbins.accounting.monte_carlo import MonteCarlo
    from ballsbins.calibration import calibrate, least_steps, most_epochs, plan
    from ballsbins.proof.certify import certify
    from ballsbins.total import Total

__version__ = "0.2.0"

__all__ = [
    "AccuracyError",
    "BallsAndBins",
    "BallsBinsError",
    "Bound",
    "DataError",
    "Deterministic",
    "InvalidInputError",
    "Key",
    "Mechanism",
    "MissingExtraError",
    "MonteCarlo",
    "Poisson",
    "RunError",
    "Sampler",
    "SecretError",
    "Shuffle",
    "Total",
    "UnreachableTargetError",
    "calibrate",
    "certify",
    "least_steps",
    "most_epochs",
    "new_key",
    "plan",
]

# Imported on first use: these need scipy, which is slow to import.
_LATER = {
    "MonteCarlo": "ballsbins.accounting.monte_carlo",
    "Total": "ballsbins.total",
    "calibrate": "ballsbins.calibration",
    "plan": "ballsbins.calibration",
    "certify": "ballsbins.proof.certify",
    "least_steps": "ballsbins.calibration",
    "most_epochs": "ballsbins.calibration",
}


def _refusing(feature: str, extra: str) -> Callable[..., NoReturn]:
    """Return a function that asks for a missing extra when it is called: `from ballsbins import *` needs none."""

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise MissingExtraError(feature, extra)

    return refuse


def __getattr__(name: str) -> Any:
    if name in _LATER:
        try:
            return getattr(import_module(_LATER[name]), name)
        except MissingExtraError as missing:
            return _refusing(missing.feature, missing.extra)
    raise AttributeError(f"module 'ballsbins' has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the names that are imported on first use, too, so that completion offers them."""
    return sorted({*globals(), *__all__})
