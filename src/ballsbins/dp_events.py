"""Balls-and-bins for users of dp_accounting: an event, and an accountant that knows it.

    from dp_accounting import GaussianDpEvent, calibrate_dp_mechanism
    from ballsbins.dp_events import MechanismAccountant, MechanismDpEvent

    accountant = MechanismAccountant()
    accountant.compose(MechanismDpEvent(mechanism)).compose(GaussianDpEvent(20.0))
    accountant.get_epsilon(1e-6)

Adjacency is zero-out, dp_accounting's REPLACE_SPECIAL. Every ε is an upper bound. The accountant composes on
dp_accounting's own grid; for balls-and-bins training alone, `Mechanism.epsilon` is tighter and gives a lower bound.
"""

from __future__ import annotations

import math
from typing import Any

import attrs
import dp_accounting
import numpy as np
from dp_accounting.pld import PLDAccountant
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from scipy.optimize import brentq

from ballsbins.accounting.epochs.loss_distribution import privacy_loss_distribution
from ballsbins.curves import log_penalty, untruncated_curves
from ballsbins.mechanism import Mechanism
from ballsbins.samplers import Shuffle

_Details = dp_accounting.PrivacyAccountant.CompositionErrorDetails
_SPECIAL = dp_accounting.NeighboringRelation.REPLACE_SPECIAL


@attrs.frozen
class MechanismDpEvent(dp_accounting.DpEvent):  # type: ignore[misc]
    """One whole run of a Mechanism, as an event of dp_accounting.

    Attributes:
        mechanism: what was run.

    Example:
        >>> from ballsbins import BallsAndBins, Mechanism
        >>> MechanismDpEvent(Mechanism(BallsAndBins(steps=1000), noise_multiplier=0.5)).mechanism.total_steps
        1000
    """

    mechanism: Mechanism


class MechanismAccountant(PLDAccountant):  # type: ignore[misc]
    """dp_accounting's accountant of privacy loss distributions, extended to compose runs of a Mechanism.

    The penalty of truncated batches is kept separately and added to δ, because p·(1 + e^ε) is not a privacy loss
    distribution.

    Args:
        value_discretization_interval: the distance between neighbouring losses on dp_accounting's grid.

    Example:
        >>> from dp_accounting import GaussianDpEvent
        >>> from ballsbins import BallsAndBins, Mechanism
        >>> from ballsbins.dp_events import MechanismDpEvent
        >>> accountant = MechanismAccountant(1e-3)
        >>> run = MechanismDpEvent(Mechanism(BallsAndBins(steps=100), noise_multiplier=1.0))
        >>> composed = accountant.compose(run).compose(GaussianDpEvent(20.0))
        >>> f"{accountant.get_epsilon(1e-6):.2f}"
        '0.87'
    """

    def __init__(self, value_discretization_interval: float = 1e-4) -> None:
        """Start with nothing composed; the interval is dp_accounting's grid of losses."""
        super().__init__(_SPECIAL, value_discretization_interval)
        self._pld: PrivacyLossDistribution  # made by dp_accounting
        self._log_penalty = -math.inf

    def _maybe_compose(self, event: Any, count: int, do_compose: bool) -> Any:
        if not isinstance(event, MechanismDpEvent):
            return super()._maybe_compose(event, count, do_compose)
        if isinstance(event.mechanism.sampler, Shuffle):
            why = "Shuffled batches have no known privacy loss distribution; Deterministic is an upper bound."
            return _Details(invalid_event=event, error_message=why)
        if do_compose:
            for curve, times in untruncated_curves(event.mechanism):
                one = privacy_loss_distribution(curve, self._value_discretization_interval)
                self._pld = self._pld.compose(one.self_compose(times * count))
            log_p = log_penalty(event.mechanism)
            if log_p is not None:
                self._log_penalty = float(np.logaddexp(self._log_penalty, math.log(count) + log_p))
        return None

    def get_delta(self, target_epsilon: float) -> float:
        """Return an upper bound on δ, including the penalty of truncated batches.

        Args:
            target_epsilon: ε.

        Returns:
            An upper bound on δ at ε.
        """
        penalty = math.exp(min(self._log_penalty + float(np.logaddexp(0.0, target_epsilon)), 0.0))
        return float(min(super().get_delta(target_epsilon) + penalty, 1.0))

    def get_epsilon(self, target_delta: float) -> float:
        """Return an upper bound on ε.

        Args:
            target_delta: δ, strictly between 0 and 1.

        Returns:
            An upper bound on ε at δ; infinite if truncation alone costs more than δ.
        """
        if self._log_penalty == -math.inf:
            return float(super().get_epsilon(target_delta))
        low = float(super().get_epsilon(target_delta))
        if not math.isfinite(low) or self.get_delta(low) <= target_delta:
            return low
        # δ(ε) falls and the penalty rises: find the first ε at which their sum meets the target
        grid = low + np.geomspace(1e-6, 60.0, 400)
        meets = [epsilon for epsilon in grid if self.get_delta(float(epsilon)) <= target_delta]
        if not meets:
            return math.inf
        right = float(meets[0])
        left = max(float(grid[grid < right].max(initial=low)), low)
        root = float(brentq(lambda e: self.get_delta(e) - target_delta, left, right, xtol=1e-10))
        return root if self.get_delta(root) <= target_delta else right
