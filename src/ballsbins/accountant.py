"""Answer questions about a Mechanism: `search` turns its curve into a Bound.

Every question takes the same route: Mechanism → table of curves (`curves`) → curve → `search` → Bound.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ballsbins import _check
from ballsbins.accounting.curve import ADD, DIRECTIONS, REMOVE, Array, Curve, Direction, Kind
from ballsbins.accounting.one_epoch.renyi import MOST_ORDER, renyi_divergence
from ballsbins.accounting.search import LARGEST_EPSILON, BothDirections, largest_log_delta
from ballsbins.accounting.tradeoff import true_positive_rate
from ballsbins.accounting.truncated import least_max_batch_size
from ballsbins.bound import Bound, Directions, Number, Quantity
from ballsbins.curves import curve_of, log_penalty, untruncated_curves
from ballsbins.errors import InvalidInputError, UnreachableTargetError
from ballsbins.mechanism import Mechanism
from ballsbins.samplers import BallsAndBins, Shuffle

if TYPE_CHECKING:
    from ballsbins.accounting.monte_carlo import MonteCarlo

# If the bounds are farther apart than this, relative to ε or log δ, the kind of the answer is only "bounds".
_CLOSE = 5e-3
_LEAST_UNIT = 0.1  # an ε below this is judged as if it were this large
# search for ε with truncation this far beyond ε without it
_BEYOND = np.append(0.0, np.geomspace(1e-4, 20.0, 12))
# then so far between the neighbours of the best one, again and again while p is nearly allowed (in logs)
_BETWEEN, _NEARLY, _MOST_TIMES = np.array([0.2, 0.4, 0.6, 0.8]), 0.2, 4
_LEAST_ALLOWED = 1e-300  # a positive probability that is still a double
_EXACT = 1e-5  # the answer for several epochs is called exact if its bounds are closer than this


class Run(Protocol):
    """The subject of a question: one Mechanism, or several runs together."""

    @property
    def curve(self) -> Curve:
        """The privacy curve."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        ...


def delta_bound(
    mechanism: Run, epsilon: Number, method: str | MonteCarlo = "auto", *, log: bool = False
) -> Bound:
    """Return δ (or log δ) at ε: the larger of the two directions."""
    points = _points(
        "epsilon", epsilon, "a finite number from -700 to 700", lambda x: np.abs(x) <= LARGEST_EPSILON
    )
    curve = _curve(mechanism, method)
    found = {direction: curve.with_penalty(points, direction) for direction in DIRECTIONS}
    sides = {direction: interval.rows for direction, (interval, _) in found.items()}

    def penalty(way: Direction | None) -> Array:
        if way is not None:
            return found[way][1]
        return np.where(sides[REMOVE][2] < sides[ADD][2], found[ADD][1], found[REMOVE][1])

    return _bound(mechanism, curve, "log_delta" if log else "delta", sides, np.shape(epsilon), penalty)


def epsilon_bound(mechanism: Run, delta: Number, method: str | MonteCarlo = "auto") -> Bound:
    """Return ε at δ: the larger of the two directions."""
    points = _points("delta", delta, "a number in (0, 1)", lambda x: (x > 0.0) & (x < 1.0))
    curve = _curve(mechanism, method)
    if curve.pointwise:
        advice = "State the grid of ε to answer for together: MonteCarlo(epsilons=(…))."
        raise InvalidInputError("epsilons", None, "given to search for ε by Monte Carlo", advice)
    if curve.untruncated is not curve:
        for point in points:
            _check_truncation(mechanism, curve, float(point))
    sides = BothDirections(curve, np.log(points))

    def penalty(way: Direction | None) -> Array:
        return curve.penalty_share((sides.worst if way is None else sides[way])[2], np.log(points))

    return _bound(mechanism, curve, "epsilon", sides, np.shape(delta), penalty, sides.worst)


def _curve(mechanism: Run, method: str | MonteCarlo) -> Curve:
    if isinstance(method, str) and method == "auto":
        return mechanism.curve
    assert isinstance(mechanism, Mechanism)  # several runs together support only "auto"
    return curve_of(mechanism, method)


def _check_truncation(mechanism: Run, curve: Curve, delta: float) -> None:
    """Raise an error if truncation leaves no ε for this δ; the error names the least batch size that would work.

    δ(ε) + (1 + e^ε)·p ≤ δ has a solution if and only if p ≤ max_ε (δ − δ(ε)) / (1 + e^ε).
    """
    target = np.log([delta])
    start = float(BothDirections(curve.untruncated, target).worst[2, 0])
    if np.isinf(start):  # even without truncation no ε is known to be large enough: the answer will be ∞
        return
    untruncated = curve.untruncated.above
    tried, allowed = np.empty(0), np.empty(0)

    def within(beyond: Array) -> bool:
        """Look at some more points; return whether p is allowed at one of them."""
        nonlocal tried, allowed
        epsilon = np.minimum(start + beyond, LARGEST_EPSILON)
        share = (delta - np.exp(largest_log_delta(untruncated, epsilon))) / (1.0 + np.exp(epsilon))
        tried, allowed = np.append(tried, beyond), np.append(allowed, share)
        return share.max() > 0.0 and bool(np.log(share.max()) >= curve.log_p)

    for beyond in _BEYOND:
        if within(np.array([beyond])):
            return
        if delta / (1.0 + np.exp(min(start + beyond, LARGEST_EPSILON))) <= allowed.max():
            break  # no ε farther out can allow a larger p, and δ(ε) is hard to compute there
    for times in range(_MOST_TIMES):
        order = np.argsort(tried)
        best = int(allowed[order].argmax())
        left, right = tried[order[max(best - 1, 0)]], tried[order[min(best + 1, tried.size - 1)]]
        if within(left + (right - left) * _BETWEEN):
            return
        if times > 0 and np.log(max(allowed.max(), _LEAST_ALLOWED)) + _NEARLY < curve.log_p:
            break
    if not isinstance(mechanism, Mechanism):
        raise UnreachableTargetError(
            f"these runs truncate batches so often that no epsilon has delta={delta:g}. Ask for a larger delta."
        )
    sampler = mechanism.sampler
    assert sampler.num_examples is not None
    size = least_max_batch_size(
        sampler.num_examples,
        sampler.steps,
        mechanism.batches_drawn,
        float(np.log(max(allowed.max(), _LEAST_ALLOWED))),
    )
    raise UnreachableTargetError(
        f"max_batch_size={sampler.max_batch_size} truncates batches so often that no epsilon has delta={delta:g}. "
        f"Use max_batch_size={size} or more, or a larger delta."
    )


def true_positive_rate_bound(mechanism: Run, false_positive_rate: Number) -> Bound:
    """Return the best true-positive rate of any membership test: the larger of the two directions."""
    rates = _points(
        "false_positive_rate", false_positive_rate, "a number in [0, 1]", lambda x: (x >= 0.0) & (x <= 1.0)
    )
    curve = mechanism.curve
    sides = {
        direction: np.array([true_positive_rate(curve, direction, float(rate)) for rate in rates])
        .reshape(-1, 3)
        .T
        for direction in DIRECTIONS
    }
    return _bound(mechanism, curve, "true_positive_rate", sides, np.shape(false_positive_rate))


def loss_distribution(mechanism: Mechanism, interval: float, *, pessimistic: bool) -> Any:
    """Return the run as a PrivacyLossDistribution of dp_accounting."""
    from ballsbins.accounting.epochs.loss_distribution import privacy_loss_distribution

    advice = "It is the distance of two losses on the grid of dp_accounting, such as 1e-4."
    interval = _check.real("interval", interval, 0.0, LARGEST_EPSILON, open_left=True, advice=advice)
    advice = "True rounds losses up, for an upper bound on ε; False rounds them down."
    _check.instance("pessimistic", pessimistic, bool, bound="True or False", advice=advice)
    if log_penalty(mechanism) is not None:
        advice = "Use Mechanism.epsilon, or ballsbins.dp_events.MechanismAccountant, which carry its penalty aside."
        raise InvalidInputError("max_batch_size", mechanism.sampler.max_batch_size, "None", advice)
    if isinstance(mechanism.sampler, Shuffle):
        advice = "Deterministic batches are an upper bound."
        raise InvalidInputError("sampler", mechanism.sampler, "one whose privacy curve is known", advice)
    total = None
    for curve, count in untruncated_curves(mechanism):
        part = privacy_loss_distribution(curve, interval, pessimistic=pessimistic).self_compose(count)
        total = part if total is None else total.compose(part)
    return total


def renyi(mechanism: Mechanism, orders: Sequence[float]) -> dict[str, Array]:
    """Return upper bounds on the Rényi divergences of the whole run, by direction."""
    sampler = mechanism.sampler
    if not isinstance(sampler, BallsAndBins) or not mechanism.finished or log_penalty(mechanism) is not None:
        advice = "Rényi divergences are computed for whole epochs of balls-and-bins without truncation."
        raise InvalidInputError(
            "mechanism", mechanism, "whole epochs of BallsAndBins without max_batch_size", advice
        )
    sigma, epochs = mechanism.independent_epochs
    bound, advice = (
        f"numbers in (1, {MOST_ORDER}], one or more",
        "Give a list of orders; common ones are 2 to 256.",
    )
    alphas = _check.reals("orders", orders, bound, lambda x: (x > 1.0) & (x <= MOST_ORDER), advice=advice)
    if alphas.ndim != 1 or not alphas.size:
        raise InvalidInputError("orders", orders, bound, advice)
    orders = alphas.tolist()
    return {
        direction: epochs * renyi_divergence(sigma, sampler.steps, orders, direction)
        for direction in DIRECTIONS
    }


def _points(name: str, given: Number, bound: str, allowed: Callable[[Array], Any]) -> Array:
    advice = {
        "delta": "It is a probability; common choices are below 1 / number of examples.",
        "epsilon": "Privacy losses beyond that mean nothing.",
        "false_positive_rate": "It is the share of absent examples that the test calls present.",
    }
    return _check.reals(name, given, bound, allowed, advice=advice[name]).ravel()


def _bound(
    mechanism: Run,
    curve: Curve,
    quantity: Quantity,
    sides: Mapping[Direction, Array],
    shape: tuple[int, ...],
    penalty: Callable[[Direction | None], Array] | None = None,
    worst: Array | None = None,
) -> Bound:
    """Build the Bound of the larger direction, with its share of the penalty.

    `sides` has lower, value and upper of each direction. `worst` is the larger direction if that is already known;
    `sides` is then evaluated only on demand. `penalty` is what truncation uses up in a direction, or in the larger.
    """

    def shaped(numbers: Array) -> Number:
        return float(numbers[0]) if shape == () else numbers.reshape(shape)

    def part(rows: Array, way: Direction | None, **more: Any) -> Bound:
        kind, method = curve.kind, curve.method
        if curve is mechanism.curve:
            kind, method = _said(curve, quantity, rows)
        if quantity == "delta":
            rows = np.exp(rows)
            # exp rounds to nearest, so step outwards to keep the bounds valid
            rows = np.stack(
                [np.nextafter(rows[0], 0.0), rows[1], np.minimum(np.nextafter(rows[2], 2.0), 1.0)]
            )
        lower, value, upper = (shaped(row) for row in rows)
        lost = shaped(np.zeros(rows.shape[1]) if penalty is None else penalty(way))
        return Bound(quantity, lower, value, upper, kind, method, curve.confidence, lost, **more)

    if worst is None:
        worst = np.maximum(sides[REMOVE], sides[ADD])
    later = {str(way): partial(lambda way: part(sides[way], way), way) for way in DIRECTIONS}
    return part(worst, None, directions=Directions(later), mechanism=MappingProxyType(mechanism.to_dict()))


def _said(curve: Curve, quantity: Quantity, rows: Array) -> tuple[Kind, str]:
    """Return kind and method; the kind is "bounds" if the two ends are too far apart to say more.

    Several epochs are called exact only where they are: elsewhere the answer comes from a much wider bracket.
    """
    lower, _, upper = rows
    unit = {
        "log_delta": 1.0 + np.abs(upper),
        "delta": 1.0 + np.abs(upper),  # these rows are logarithms, too
        "epsilon": np.maximum(upper, _LEAST_UNIT),
        "true_positive_rate": upper,
    }[quantity]
    with np.errstate(invalid="ignore"):  # ∞ − ∞ if both ends are infinite: then the answer is known
        apart, loose = upper - lower > _CLOSE * unit, upper - lower > _EXACT * unit
    kind, method = curve.kind, curve.method
    if curve.fallback is not None and loose.any():
        kind, method = curve.fallback
    if not apart.any():
        return kind, method
    # the kind of an array is that of its weakest point
    return "bounds", "bounds" if apart.all() or kind == "bounds" else f"{method}; bounds at some points"
