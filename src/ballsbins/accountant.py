"""From a Mechanism to its privacy: which curve belongs to which sampler, and the questions asked of it.

There is one way through: Mechanism → table of samplers → curve → `search` → Bound. The table is the only place where
a sampler meets its accounting.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import numpy as np

from ballsbins.accounting.balls_and_bins.exact import ExactCurve
from ballsbins.accounting.balls_and_bins.lower_bound import BallsAndBinsLowerBound
from ballsbins.accounting.balls_and_bins.truncation import Truncated, log_overflow_probability
from ballsbins.accounting.composition import ComposedCurve
from ballsbins.accounting.curve import DIRECTIONS, Array, Between, Curve
from ballsbins.accounting.deterministic import GaussianCurve
from ballsbins.accounting.poisson import PoissonCurve
from ballsbins.accounting.search import epsilon_at
from ballsbins.accounting.shuffle import ShuffleCurve
from ballsbins.bound import Bound, Number, Quantity
from ballsbins.errors import InvalidInputError
from ballsbins.mechanism import Mechanism
from ballsbins.samplers import BallsAndBins, Deterministic, Poisson, Sampler, Shuffle

LEAST_SIGMA, LARGEST_SIGMA = 0.05, 100.0  # where the exact method is tested


def curve_of(mechanism: Mechanism) -> Curve:
    """The privacy curve of a mechanism, with the penalty of truncation if batches are truncated."""
    curve = _CURVES[type(mechanism.sampler)](mechanism)
    log_p = log_penalty(mechanism)
    return curve if log_p is None else Truncated(curve, log_p)


def log_penalty(mechanism: Mechanism) -> float | None:
    """log of p, the bound on the probability that any batch is truncated; None if none ever is.

    Fixed bins are drawn once, so a batch that fits in one epoch fits in all.
    """
    sampler = mechanism.sampler
    if not isinstance(sampler, (BallsAndBins, Poisson)) or sampler.max_batch_size is None:
        return None
    assert sampler.num_examples is not None  # the sampler sees to that
    fixed = isinstance(sampler, BallsAndBins) and not sampler.redraw
    batches = min(mechanism.total_steps, sampler.steps) if fixed else mechanism.total_steps
    return log_overflow_probability(sampler.num_examples, sampler.steps, sampler.max_batch_size, batches)


def _balls_and_bins(mechanism: Mechanism) -> Curve:
    sampler = mechanism.sampler
    assert isinstance(sampler, BallsAndBins)
    sigma, steps, epochs, last = _facts(mechanism)
    if steps == 1:
        return GaussianCurve(sigma, epochs)
    if not sampler.redraw:
        # The sum over epochs is sufficient: bins visited k times have noise σ/√k.
        kinds = [(last, sigma / np.sqrt(epochs))]
        if epochs > 1 and last < steps:
            kinds.append((steps - last, sigma / np.sqrt(epochs - 1)))
        return _one_epoch(tuple(kinds), steps)
    whole, rest = (epochs, 0) if last == steps else (epochs - 1, last)
    parts = [(_one_epoch(((steps, sigma),), steps), whole)] if whole > 0 else []
    if rest > 0:
        parts.append((_one_epoch(((rest, sigma),), steps), 1))
    if parts == [(parts[0][0], 1)]:
        return parts[0][0]
    return ComposedCurve(parts)


def _one_epoch(kinds: tuple[tuple[int, float], ...], steps: int) -> Curve:
    sigmas = [sigma for _, sigma in kinds]
    if min(sigmas) >= LEAST_SIGMA and max(sigmas) <= LARGEST_SIGMA:
        return ExactCurve(kinds, steps)
    # δ_B ≤ δ_D at the least noise; the paper's S_C bound, at the largest, is below every δ_B with less noise
    return Between(BallsAndBinsLowerBound(max(sigmas), steps), GaussianCurve(min(sigmas)))


def _deterministic(mechanism: Mechanism) -> Curve:
    # An unfinished epoch has visited the first examples as often as a finished one, and they are the worst case.
    return GaussianCurve(mechanism.noise_multiplier, mechanism.epochs)


def _poisson(mechanism: Mechanism) -> Curve:
    return PoissonCurve(mechanism.noise_multiplier, mechanism.sampler.steps, mechanism.total_steps)


def _shuffle(mechanism: Mechanism) -> Curve:
    sigma, steps, epochs, last = _facts(mechanism)
    same_bins = Mechanism(BallsAndBins(steps), sigma, epochs, mechanism.last_epoch_steps)
    whole = epochs if last == steps else epochs - 1
    return ShuffleCurve(sigma, steps, epochs, whole, _balls_and_bins(same_bins))


_CURVES: dict[type[Sampler], Callable[[Mechanism], Curve]] = {
    BallsAndBins: _balls_and_bins,
    Deterministic: _deterministic,
    Poisson: _poisson,
    Shuffle: _shuffle,
}


def _facts(mechanism: Mechanism) -> tuple[float, int, int, int]:
    """σ, T, epochs begun, steps in the last of them."""
    steps = mechanism.sampler.steps
    last = steps if mechanism.last_epoch_steps is None else mechanism.last_epoch_steps
    return mechanism.noise_multiplier, steps, mechanism.epochs, last


def delta_bound(mechanism: Mechanism, epsilon: Number, *, log: bool = False) -> Bound:
    """δ (or log δ) at ε, the larger of the two directions."""
    points = _points("epsilon", epsilon, "a finite number from -700 to 700", lambda x: np.abs(x) <= 700.0)
    curve = mechanism.curve
    log_p = log_penalty(mechanism)
    with np.errstate(over="ignore"):
        penalty = np.zeros_like(points) if log_p is None else np.exp(log_p + np.logaddexp(0.0, points))
    sides = {}
    for direction in DIRECTIONS:
        found = curve.log_delta(points, direction)
        sides[direction] = np.stack([found.lower, found.value, found.upper])
    quantity: Quantity = "log_delta" if log else "delta"
    return _bound(mechanism, curve, quantity, sides, penalty, np.shape(epsilon))


def epsilon_bound(mechanism: Mechanism, delta: Number) -> Bound:
    """ε at δ, the larger of the two directions."""
    points = _points("delta", delta, "a number in (0, 1)", lambda x: (x > 0.0) & (x < 1.0))
    curve = mechanism.curve
    sides = {
        direction: np.array([epsilon_at(curve, direction, float(np.log(point))) for point in points]).reshape(-1, 3).T
        for direction in DIRECTIONS
    }
    upper = np.maximum(*(sides[direction][2] for direction in DIRECTIONS))
    log_p = log_penalty(mechanism)
    penalty = np.zeros_like(points) if log_p is None else np.exp(log_p + np.logaddexp(0.0, upper))
    return _bound(mechanism, curve, "epsilon", sides, penalty, np.shape(delta))


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
        }
        raise InvalidInputError(name, float(wrong.flat[0]), bound, advice[name])
    return points.ravel()


def _bound(
    mechanism: Mechanism,
    curve: Curve,
    quantity: Quantity,
    sides: dict[Any, Array],
    penalty: Array,
    shape: tuple[int, ...],
) -> Bound:
    def shaped(numbers: Array) -> Number:
        return float(numbers[0]) if shape == () else numbers.reshape(shape)

    def part(rows: Array, **more: Any) -> Bound:
        if quantity == "delta":
            rows = np.exp(rows)
            # exp rounds to nearest: step outwards, so that the bounds stay bounds
            rows = np.stack([np.nextafter(rows[0], 0.0), rows[1], np.minimum(np.nextafter(rows[2], 2.0), 1.0)])
        lower, value, upper = (shaped(row) for row in rows)
        return Bound(quantity, lower, value, upper, curve.method, curve.confidence, shaped(penalty), **more)

    directions = {str(direction): part(rows) for direction, rows in sides.items()}
    worst = np.maximum(*sides.values())
    return part(worst, directions=MappingProxyType(directions), mechanism=MappingProxyType(mechanism.to_dict()))
