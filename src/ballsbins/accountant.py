"""From a Mechanism to its privacy: which curve belongs to which sampler, and the questions asked of it.

There is one way through: Mechanism → table of samplers → curve → `search` → Bound. The table is the only place where
a sampler meets its accounting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from ballsbins.accounting.balls_and_bins.exact import ExactCurve
from ballsbins.accounting.balls_and_bins.lower_bound import BallsAndBinsLowerBound
from ballsbins.accounting.balls_and_bins.renyi import RenyiCurve, renyi_divergence
from ballsbins.accounting.balls_and_bins.truncation import (
    Truncated,
    least_max_batch_size,
    log_drop_probability,
    log_overflow_probability,
)
from ballsbins.accounting.between import Between, OrBounds, below_epochs
from ballsbins.accounting.composition import ComposedCurve
from ballsbins.accounting.curve import ADD, DIRECTIONS, REMOVE, Array, Curve, Direction, Kind
from ballsbins.accounting.deterministic import GaussianCurve
from ballsbins.accounting.diluted import Diluted
from ballsbins.accounting.moments import CurveMoments, Moments
from ballsbins.accounting.poisson import PoissonCurve, PoissonStepCurve
from ballsbins.accounting.poisson_moments import StepMoments
from ballsbins.accounting.product import ProductCurve
from ballsbins.accounting.search import BothDirections, epsilon_at
from ballsbins.accounting.shuffle import ShuffleCurve
from ballsbins.accounting.tradeoff import true_positive_rate
from ballsbins.bound import Bound, Directions, Number, Quantity
from ballsbins.errors import InvalidInputError, UnreachableTargetError
from ballsbins.mechanism import Mechanism
from ballsbins.samplers import BallsAndBins, Deterministic, Poisson, Sampler, Shuffle

LEAST_SIGMA, LARGEST_SIGMA = 0.05, 1e4  # where the exact method is tested
_MUCH_NOISE = 100.0  # above, the exact method has too many nodes at δ far below the doubles: there are bounds
# An answer whose bounds are farther apart than this, relative to ε or log δ, is called no more than bounds.
_CLOSE = 5e-3
_EXACT = 1e-5  # and one of several epochs whose bounds are closer than this is exact


METHODS = ("auto", "renyi", "lower-bound")


class Method(Protocol):
    """A method of accounting as an object, such as `ballsbins.accounting.monte_carlo.MonteCarlo`."""

    def curve(self, mechanism: Mechanism) -> Curve:
        """The privacy curve of a mechanism, truncation left aside."""
        ...


def curve_of(mechanism: Mechanism, method: str | Method = "auto") -> Curve:
    """The privacy curve of a mechanism, with the penalty of truncation if batches are truncated.

    "auto" is the best method for the sampler. For balls-and-bins there are also "renyi" (an upper bound, for
    comparison) and "lower-bound" (the paper's S_C bound), and any object with a method `curve`.
    """
    if not isinstance(method, str):
        curve = method.curve(mechanism)
    elif method == "auto":
        curve = _CURVES[type(mechanism.sampler)](mechanism)
    else:
        curve = _other_method(mechanism, method)
    log_p = log_penalty(mechanism)
    return curve if log_p is None else Truncated(curve, log_p, _of_overflow(log_drop_probability, mechanism))


def _other_method(mechanism: Mechanism, method: str) -> Curve:
    if method not in METHODS:
        raise InvalidInputError(
            "method", method, f"one of {', '.join(METHODS)}", "Leave it out for the best one."
        )
    sampler = mechanism.sampler
    if not isinstance(sampler, BallsAndBins) or not mechanism.finished:
        raise InvalidInputError(
            "method",
            method,
            '"auto" for this mechanism',
            "Other methods are for whole epochs of balls-and-bins.",
        )
    sigma, epochs = mechanism.independent_epochs
    if method == "renyi":
        return RenyiCurve(sigma, sampler.steps, epochs)
    method = "lower bound S_C; upper bound of deterministic batches"
    below = below_epochs(BallsAndBinsLowerBound(sigma, sampler.steps), sigma, epochs)
    return Between(below, GaussianCurve(sigma, epochs), method)


def untruncated_curves(mechanism: Mechanism) -> list[tuple[Curve, int]]:
    """Curves of independent parts of the run with how often each is run, truncation left aside."""
    curve = _CURVES[type(mechanism.sampler)](mechanism)
    whole = curve.curve if isinstance(curve, OrBounds) else curve
    return whole.parts if isinstance(whole, ProductCurve) else [(curve, 1)]


def log_penalty(mechanism: Mechanism) -> float | None:
    """Logarithm of p, the bound on the probability that any batch is truncated; None if none ever is.

    Fixed bins are drawn once, so a batch that fits in one epoch fits in all.
    """
    if mechanism.sampler.max_batch_size is None:
        return None
    return _of_overflow(log_overflow_probability, mechanism)


def _of_overflow(log_probability: Callable[[int, int, int, int], float], mechanism: Mechanism) -> float:
    sampler = mechanism.sampler
    assert sampler.num_examples is not None  # the sampler sees to that
    assert sampler.max_batch_size is not None
    return log_probability(
        sampler.num_examples, sampler.steps, sampler.max_batch_size, mechanism.batches_drawn
    )


def _balls_and_bins(mechanism: Mechanism) -> Curve:
    sigma, steps, epochs = mechanism.noise_multiplier, mechanism.sampler.steps, mechanism.epochs
    if steps == 1:
        return GaussianCurve(sigma, epochs)
    if mechanism.sampler.draws_once or epochs == 1:
        return _one_epoch(mechanism.noise_of_bins, steps)
    whole, rest = mechanism.finished_epochs, mechanism.last_epoch_steps or 0
    one: Curve = BallsAndBinsLowerBound(sigma, steps)
    if not LEAST_SIGMA <= sigma <= LARGEST_SIGMA:
        # no exact curve to compose: the whole epochs are below the truth, deterministic batches above it
        return Between(below_epochs(one, sigma, whole), GaussianCurve(sigma, epochs))
    parts: list[tuple[Curve, int]] = [(ExactCurve(((steps, sigma),), steps), whole)]
    if rest > 0:
        parts.append((ExactCurve(((rest, sigma),), steps), 1))

    def moments() -> list[tuple[Moments, int]]:
        single: list[tuple[Moments, int]] = [(CurveMoments(parts[0][0]), whole)]
        if rest > 0:  # one step of T is a step of Poisson sampling, with nodes of its own
            single.append((StepMoments(sigma, steps) if rest == 1 else CurveMoments(parts[1][0]), 1))
        return single

    exact = ProductCurve(moments, ComposedCurve(parts))
    return OrBounds(exact, Between([one], GaussianCurve(sigma, epochs)))


def _one_epoch(kinds: tuple[tuple[int, float], ...], steps: int) -> Curve:
    sigmas = [sigma for _, sigma in kinds]
    if min(sigmas) < LEAST_SIGMA or max(sigmas) > LARGEST_SIGMA:
        return _one_epoch_between(kinds, steps)
    exact = ExactCurve(kinds, steps)
    if max(sigmas) <= _MUCH_NOISE:
        return exact
    return OrBounds(exact, _one_epoch_between(kinds, steps), deep=-800.0)


def _one_epoch_between(kinds: tuple[tuple[int, float], ...], steps: int) -> Between:
    """What holds without the exact method: δ_B ≤ δ_D with the least noise, and the paper's S_C bound from below.

    S_C holds for the bins of one kind, the others not looked at, and for all of them with the most noise of any.
    """
    below: list[Curve] = [_diluted(BallsAndBinsLowerBound(sigma, bins), bins, steps) for bins, sigma in kinds]
    visited, sigmas = sum(bins for bins, _ in kinds), [sigma for _, sigma in kinds]
    if len(kinds) > 1:
        below.append(_diluted(BallsAndBinsLowerBound(max(sigmas), visited), visited, steps))
    return Between(below, _diluted(GaussianCurve(min(sigmas)), visited, steps))


def _diluted(curve: Curve, visited: int, steps: int) -> Curve:
    return curve if visited == steps else Diluted(curve, visited, steps)


def _deterministic(mechanism: Mechanism) -> Curve:
    # An unfinished epoch has visited the first examples as often as a finished one, and they are the worst case.
    return GaussianCurve(mechanism.noise_multiplier, mechanism.epochs)


def _poisson(mechanism: Mechanism) -> Curve:
    sigma, steps = mechanism.noise_multiplier, mechanism.sampler.steps
    # one step is below the truth, the example in every batch above it
    bounds = Between([PoissonStepCurve(sigma, steps)], GaussianCurve(sigma, mechanism.total_steps))
    if sigma < LEAST_SIGMA:
        return bounds
    taken = mechanism.total_steps
    if steps == 1:
        return GaussianCurve(sigma, taken)
    if taken == 1:
        return PoissonStepCurve(sigma, steps)
    exact = ProductCurve(lambda: [(StepMoments(sigma, steps), taken)], PoissonCurve(sigma, steps, taken))
    return OrBounds(exact, bounds)


def _shuffle(mechanism: Mechanism) -> Curve:
    return ShuffleCurve(
        mechanism.noise_multiplier,
        mechanism.sampler.steps,
        mechanism.epochs,
        mechanism.finished_epochs,
        _balls_and_bins(mechanism.under(BallsAndBins)),
    )


_CURVES: dict[type[Sampler], Callable[[Mechanism], Curve]] = {
    BallsAndBins: _balls_and_bins,
    Deterministic: _deterministic,
    Poisson: _poisson,
    Shuffle: _shuffle,
}


def delta_bound(
    mechanism: Mechanism, epsilon: Number, method: str | Method = "auto", *, log: bool = False
) -> Bound:
    """δ (or log δ) at ε, the larger of the two directions."""
    points = _points("epsilon", epsilon, "a finite number from -700 to 700", lambda x: np.abs(x) <= 700.0)
    curve = mechanism.curve if method == "auto" else curve_of(mechanism, method)
    sides, penalties = {}, {}
    for direction in DIRECTIONS:
        if isinstance(curve, Truncated):
            found, penalties[direction] = curve.with_penalty(points, direction)
        else:
            found = curve.log_delta(points, direction)
        sides[direction] = np.stack([found.lower, found.value, found.upper])
    return _bound(mechanism, curve, "log_delta" if log else "delta", sides, np.shape(epsilon), penalties)


def epsilon_bound(mechanism: Mechanism, delta: Number, method: str | Method = "auto") -> Bound:
    """ε at δ, the larger of the two directions."""
    points = _points("delta", delta, "a number in (0, 1)", lambda x: (x > 0.0) & (x < 1.0))
    curve = mechanism.curve if method == "auto" else curve_of(mechanism, method)
    if getattr(curve.curve if isinstance(curve, Truncated) else curve, "pointwise", False):
        advice = "State the grid of ε to answer for together: MonteCarlo(epsilons=(…))."
        raise InvalidInputError("epsilons", None, "given to search for ε by Monte Carlo", advice)
    if isinstance(curve, Truncated):
        for point in points:
            _check_truncation(mechanism, curve, float(point))
    sides = BothDirections(curve, np.log(points))
    if not isinstance(curve, Truncated):
        return _bound(mechanism, curve, "epsilon", sides, np.shape(delta), worst=sides.worst)
    penalties = {way: curve.share(sides[way][2], np.log(points)) for way in DIRECTIONS}
    return _bound(mechanism, curve, "epsilon", sides, np.shape(delta), penalties)


def _check_truncation(mechanism: Mechanism, curve: Truncated, delta: float) -> None:
    """Refuse a δ that the penalty of truncation alone exceeds, and name the least size that would do.

    δ(ε) + (1 + e^ε)·p ≤ δ has a solution if and only if p ≤ max_ε (δ − δ(ε)) / (1 + e^ε).
    """
    target = np.log([delta])
    start = max(float(epsilon_at(curve.curve, direction, target)[2, 0]) for direction in DIRECTIONS)
    if np.isinf(start):  # without truncation no ε is known to be enough either: the answer says so
        return
    epsilon = np.minimum(start + np.append(0.0, np.geomspace(1e-4, 20.0, 80)), 700.0)
    used = np.max(
        [np.exp(curve.curve.log_delta(epsilon, direction).upper) for direction in DIRECTIONS], axis=0
    )
    allowed = float(np.max((delta - used) / (1.0 + np.exp(epsilon))))
    if allowed > 0.0 and np.log(allowed) >= curve.log_p:
        return
    sampler = mechanism.sampler
    assert sampler.num_examples is not None
    size = least_max_batch_size(
        sampler.num_examples, sampler.steps, mechanism.batches_drawn, float(np.log(max(allowed, 1e-300)))
    )
    raise UnreachableTargetError(
        f"max_batch_size={sampler.max_batch_size} truncates batches so often that no epsilon has delta={delta:g}. "
        f"Use max_batch_size={size} or more, or a larger delta."
    )


def true_positive_rate_bound(mechanism: Mechanism, false_positive_rate: Number) -> Bound:
    """The best true-positive rate of any membership test, the larger of the two directions."""
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
    """The run as a PrivacyLossDistribution of dp_accounting."""
    from ballsbins.accounting.export import privacy_loss_distribution

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
    """Upper bounds on the Rényi divergences of the whole run, by direction."""
    sampler = mechanism.sampler
    if not isinstance(sampler, BallsAndBins) or not mechanism.finished or log_penalty(mechanism) is not None:
        advice = "Rényi divergences are computed for whole epochs of balls-and-bins without truncation."
        raise InvalidInputError(
            "mechanism", mechanism, "whole epochs of BallsAndBins without max_batch_size", advice
        )
    sigma, epochs = mechanism.independent_epochs
    return {
        direction: epochs * renyi_divergence(sigma, sampler.steps, orders, direction)
        for direction in DIRECTIONS
    }


def _points(name: str, given: Number, bound: str, allowed: Callable[[Array], Any]) -> Array:
    try:
        points = np.atleast_1d(np.asarray(given, dtype=np.float64))
    except (TypeError, ValueError):
        raise InvalidInputError(name, given, bound, "Give a number or an array of numbers.") from None
    wrong = points[~(np.isfinite(points) & np.asarray(allowed(points)))]
    if wrong.size:
        advice = {
            "delta": "It is a probability; common choices are below 1 / number of examples.",
            "epsilon": "Privacy losses beyond that mean nothing.",
            "false_positive_rate": "It is the share of absent examples that the test calls present.",
        }
        raise InvalidInputError(name, float(wrong.flat[0]), bound, advice[name])
    return points.ravel()


def _bound(
    mechanism: Mechanism,
    curve: Curve,
    quantity: Quantity,
    sides: Mapping[Direction, Array],
    shape: tuple[int, ...],
    penalties: Mapping[Direction, Array] = MappingProxyType({}),
    worst: Array | None = None,
) -> Bound:
    """The larger of two directions, of which `sides` has lower, value and upper, with its part of the penalty.

    `worst` is the larger one if it is known already (and there is no penalty): `sides` may then be asked later.
    """

    def shaped(numbers: Array) -> Number:
        return float(numbers[0]) if shape == () else numbers.reshape(shape)

    def part(rows: Array, penalty: Array, **more: Any) -> Bound:
        kind, method = curve.kind, curve.method
        if curve is mechanism.curve:
            kind, method = _said(curve, quantity, rows)
        if quantity == "delta":
            rows = np.exp(rows)
            # exp rounds to nearest: step outwards, so that the bounds stay bounds
            rows = np.stack(
                [np.nextafter(rows[0], 0.0), rows[1], np.minimum(np.nextafter(rows[2], 2.0), 1.0)]
            )
        lower, value, upper = (shaped(row) for row in rows)
        return Bound(quantity, lower, value, upper, kind, method, curve.confidence, shaped(penalty), **more)

    if worst is None:
        remove, add = (sides[direction] for direction in DIRECTIONS)
        worst, second = np.maximum(remove, add), remove[2] < add[2]
    else:
        second = np.zeros(worst.shape[1], dtype=bool)
    none = np.zeros(worst.shape[1])
    lost = {direction: penalties.get(direction, none) for direction in DIRECTIONS}
    later = {str(way): partial(lambda way: part(sides[way], lost[way]), way) for way in DIRECTIONS}
    return part(
        worst,
        np.where(second, lost[ADD], lost[REMOVE]),
        directions=Directions(later),
        mechanism=MappingProxyType(mechanism.to_dict()),
    )


def _said(curve: Curve, quantity: Quantity, rows: Array) -> tuple[Kind, str]:
    """Kind and method; "bounds" where the ends are so far apart that no more is known than the two.

    Several epochs are called exact only where they are: the bracket that answers elsewhere is wider by far.
    """
    lower, _, upper = rows
    unit = {
        "log_delta": 1.0 + np.abs(upper),
        "delta": 1.0 + np.abs(upper),  # here logarithms, too
        "epsilon": np.maximum(upper, 0.1),
        "true_positive_rate": upper,
    }[quantity]
    with np.errstate(invalid="ignore"):  # ∞ − ∞ where both are: that is known
        apart, loose = upper - lower > _CLOSE * unit, upper - lower > _EXACT * unit
    kind, method = curve.kind, curve.method
    if isinstance(curve, OrBounds) and isinstance(curve.curve, ProductCurve) and loose.any():
        kind, method = "bracket", ProductCurve.fallback
    if not apart.any():
        return kind, method
    # the kind of an array is that of its weakest point
    return "bounds", "bounds" if apart.all() or kind == "bounds" else f"{method}; bounds at some points"
