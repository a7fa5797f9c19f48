"""Privacy curves as privacy loss distributions of dp_accounting, to compose with other mechanisms.

The masses are those of the pairs above (pessimistic) and below (optimistic) the curve (`polygons`): a provable
bound with second-order error, unlike rounding losses up or down. First the curve's bounds are moved apart by a
relative 10⁻¹¹, more than the rounding of the masses, because dp_accounting does not account for rounding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ballsbins.accounting.curve import ADD, REMOVE, Curve
from ballsbins.accounting.epochs.polygons import Pair, TooCoarse, bracket, choose_points
from ballsbins.accounting.epochs.survey import Survey
from ballsbins.errors import AccuracyError

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

TAIL = -50.0  # log δ where the distribution ends; the mass beyond goes to infinity, or is left out
INTERVAL = 1e-4  # spacing of losses, the default of dp_accounting
_MARGIN = 1e-11  # the curve's bounds move apart by this, relative: more than the rounding of masses (B29)
_MOST_POINTS = 20_000_000  # dp_accounting holds every point in memory
_FINER = 0.3  # relative to the usual width of cells: every point is held anyway, so fine cells cost nothing
_TOO_WIDE = 0.1  # if the interval exceeds this fraction of the typical loss, its width caused the failure
_ADVISED = 500  # the advised interval has this many points over all losses


def privacy_loss_distribution(
    curve: Curve, h: float = INTERVAL, *, pessimistic: bool = True
) -> PrivacyLossDistribution:
    """Both directions as a distribution of dp_accounting."""
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    pair = _pairs(curve, h)[1 if pessimistic else 0]
    return PrivacyLossDistribution(
        _dense(pair, REMOVE, pessimistic=pessimistic), _dense(pair, ADD, pessimistic=pessimistic)
    )


def _pairs(curve: Curve, h: float) -> tuple[Pair, Pair]:
    survey = Survey.above(curve)
    far = survey.reach(ADD, TAIL), survey.reach(REMOVE, TAIL)
    if sum(far) / h > _MOST_POINTS:
        raise AccuracyError(
            f"interval={h:g} needs {sum(far) / h:,.0f} points for losses up to {max(far):.0f}, more than "
            f"{_MOST_POINTS:,}. Use a larger interval."
        )
    try:
        return bracket(curve, h, choose_points(h, far, survey.spacing(_FINER)), _MARGIN)
    except (TooCoarse, AccuracyError):
        typical = float(np.exp(survey.log_delta[REMOVE][0]))  # δ(0) = ½E|S − 1|
        if h > _TOO_WIDE * typical:
            raise AccuracyError(
                f"interval={h:g} is too wide: typical losses are about {typical:.1e}. Use a smaller interval."
            ) from None
        raise AccuracyError(
            f"interval={h:g} is too narrow: losses reach {max(far):.0f}, and from one point to the next δ changes by "
            f"less than rounding. Use a larger interval, such as {sum(far) / _ADVISED:.1g}."
        ) from None


def _dense(pair: Pair, direction: str, *, pessimistic: bool) -> Any:
    from dp_accounting.pld.pld_pmf import DensePLDPmf

    if direction == ADD:
        pair = pair.swapped
    probabilities = np.zeros(int(pair.index[-1] - pair.index[0]) + 1)
    probabilities[pair.index - pair.index[0]] = np.exp(pair.log_p)
    infinity = float(np.exp(pair.log_p_infinity)) if pessimistic else 0.0
    return DensePLDPmf(pair.h, int(pair.index[0]), probabilities, infinity, pessimistic)
