"""Find the noise, the epochs or the steps that meet a target (ε, δ); each result is checked before it is returned."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ballsbins import _check
from ballsbins.accounting.curve import DIRECTIONS, REMOVE, Curve
from ballsbins.accounting.one_epoch.sketch import rough_noise
from ballsbins.accounting.search import LARGEST_EPSILON, epsilon_at, largest_log_delta, least
from ballsbins.curves import LARGEST_SIGMA, LEAST_SIGMA, SingleRuns, curve_of
from ballsbins.errors import InvalidInputError, UnreachableTargetError
from ballsbins.largest_batch import PENALTY_SHARE, with_max_batch_size
from ballsbins.mechanism import (
    LEAST_NOISE,
    MOST_EPOCHS,
    MOST_NOISE,
    Mechanism,
    check_epochs,
    check_sampler,
)
from ballsbins.samplers import BallsAndBins, Sampler
from ballsbins.samplers.base import MAX_STEPS

RELATIVE = 1e-6  # relative accuracy of σ
_USUAL_NOISE = 0.7  # σ at which to start the search if nothing is known
_CLOSE = 1.01  # a rough guess of σ is right to within this factor
# raise σ by this, relative, if the bracket of ε from δ is a little wider than that of δ from ε
_NEARBY = 1e-4
_MOST_USUAL_STEPS = 1e5  # a proposed batch size makes at most this many steps per epoch
_LEAST_SLOPE = 1.0  # ignore a smaller estimate of −d log δ/d log σ
_SKETCHED = 3e-3  # relative accuracy of the first σ, found from a sketch of the curve


def calibrate(
    sampler: Sampler,
    *,
    epsilon: float,
    delta: float,
    epochs: int = 1,
    max_batch_size: Literal["auto"] | None = None,
    num_examples: int | None = None,
    penalty_share: float = PENALTY_SHARE,
) -> Mechanism:
    """Find the least noise that keeps a run within a target (ε, δ).

    With `max_batch_size="auto"` and `num_examples`, batches are truncated to the least size whose penalty takes at
    most `penalty_share` of `delta`.

    Args:
        sampler: how batches are drawn.
        epsilon: the ε to stay within, above 0 and at most 700.
        delta: the δ at which ε is meant, strictly between 0 and 1.
        epochs: the number of passes over the data.
        max_batch_size: "auto" to choose a maximum batch size; None to leave the sampler as it is.
        num_examples: n, the number of examples; needed for "auto".
        penalty_share: the share of δ that truncation may take, strictly between 0 and 1.

    Returns:
        The Mechanism with the least noise multiplier, to relative 10⁻⁶, whose upper bound on ε is within the target.

    Raises:
        InvalidInputError: an argument is out of its range.
        UnreachableTargetError: no noise multiplier up to 10⁶ meets the target.

    Example:
        >>> from ballsbins import BallsAndBins
        >>> mechanism = calibrate(BallsAndBins(steps=1000), epsilon=8.0, delta=1e-6)
        >>> f"{mechanism.noise_multiplier:.4f}", float(mechanism.epsilon(delta=1e-6).upper) <= 8.0
        ('0.3901', True)
    """
    epsilon, delta = _target(epsilon, delta)
    check_sampler(sampler)
    epochs = check_epochs(epochs)
    if max_batch_size is not None:
        sampler = with_max_batch_size(
            sampler, max_batch_size, num_examples, epsilon, delta, epochs, penalty_share
        )

    known: dict[float, Mechanism] = {}

    def at(sigma: float) -> Mechanism:
        if sigma not in known:
            known[sigma] = Mechanism(sampler, sigma, epochs)
        return known[sigma]

    def excess(sigma: float) -> float:
        return _excess(at(sigma).curve, epsilon, delta)

    low, high = LEAST_NOISE, MOST_NOISE
    bins = isinstance(sampler, BallsAndBins)
    fixed = sampler.draws_once or not sampler.amplifies
    root = math.sqrt(epochs) if fixed else 1.0  # σ of fixed batches grows with √epochs
    start, stride, slope = min(max(_USUAL_NOISE * root, low), high), 2.0, None
    if bins and (epochs == 1 or fixed):
        start = root * rough_noise(sampler.steps, epsilon, math.log(delta), LEAST_SIGMA, LARGEST_SIGMA)
        start, stride = min(max(start, low), high), _CLOSE
    elif not fixed:
        sketched = _sketched_noise(sampler, epsilon, delta, epochs)
        if sketched is not None:
            (start, slope), stride = sketched, _CLOSE

    def noise(most: float) -> float:
        near = min(start, most)
        what = "noise multiplier"
        return least(excess, low, most, start=near, relative=RELATIVE, what=what, stride=stride, slope=slope)

    # With more noise than this, the only known upper bound is δ of deterministic batches, which may miss the target.
    exact = min(LARGEST_SIGMA * root, high) if bins else high
    try:
        sigma = noise(exact)
    except UnreachableTargetError:
        _check_penalty(at(high), epsilon, delta)
        if exact == high:
            raise
        sigma = noise(high)
    if _upper_epsilon(at(sigma), delta) > epsilon:
        # A composed curve is a bracket, and its bracket of ε from δ may be a little wider than that of δ from ε.
        # `calibrate` promises the former, so search again for that, nearby.
        sigma = least(
            lambda x: math.log(_upper_epsilon(at(x), delta) / epsilon),
            low,
            high,
            start=sigma * (1.0 + _NEARBY),
            relative=RELATIVE,
            what="noise multiplier",
            stride=1.0 + 3.0 * _NEARBY,
        )
    return at(sigma)


def _check_penalty(mechanism: Mechanism, epsilon: float, delta: float) -> None:
    """Raise an error if the penalty of truncation, which noise cannot lower, is above δ on its own."""
    sampler = mechanism.sampler
    if sampler.max_batch_size is None or float(mechanism.delta(epsilon).penalty) <= delta:
        return
    assert sampler.num_examples is not None
    chosen = with_max_batch_size(
        sampler, "auto", sampler.num_examples, epsilon, delta, mechanism.epochs, PENALTY_SHARE
    )
    raise UnreachableTargetError(
        f"max_batch_size={sampler.max_batch_size} truncates batches so often that no noise has "
        f"epsilon <= {epsilon:g} at delta={delta:g}. "
        f"Use max_batch_size={chosen.max_batch_size} or more, or a larger delta."
    )


def least_noise_of(epsilon_of: Callable[[float], float], epsilon: float, *, start: float) -> float:
    """Return the least noise multiplier at which `epsilon_of` is at most ε.

    `epsilon_of` decreases with the noise multiplier; it may be another accountant, for example.
    """

    def excess(sigma: float) -> float:
        found = epsilon_of(sigma)
        return math.log(found / epsilon) if found > 0.0 else -math.inf

    return least(excess, LEAST_NOISE, MOST_NOISE, start=start, relative=RELATIVE, what="noise multiplier")


def _sketched_noise(
    sampler: Sampler, epsilon: float, delta: float, epochs: int
) -> tuple[float, float | None] | None:
    """Estimate the noise multiplier σ that meets a target, and −d log δ/d log σ.

    None if the sampler's curve has no sketch, or no noise meets the target.
    """

    def excess(sigma: float) -> float:
        found = Mechanism(sampler, sigma, epochs).curve.sketch(np.array([epsilon]), REMOVE)
        return math.inf if found is None else float(found[0]) - math.log(delta)

    what = "noise multiplier"
    try:
        sigma = least(excess, LEAST_SIGMA, LARGEST_SIGMA, start=_USUAL_NOISE, relative=_SKETCHED, what=what)
    except UnreachableTargetError:
        return None
    slope = (excess(sigma) - excess(_CLOSE * sigma)) / math.log(_CLOSE)
    return sigma, slope if _LEAST_SLOPE < slope < math.inf else None


def most_epochs(sampler: Sampler, noise_multiplier: float, *, epsilon: float, delta: float) -> Mechanism:
    """Find the most passes over the data that a given noise allows.

    Args:
        sampler: how batches are drawn.
        noise_multiplier: σ, the standard deviation of the noise divided by the clip norm.
        epsilon: the ε to stay within, above 0 and at most 700.
        delta: the δ at which ε is meant, strictly between 0 and 1.

    Returns:
        The Mechanism with the most epochs whose upper bound on ε is within the target. If it has 10⁹ epochs, the
        maximum for a Mechanism, even more might meet the target.

    Raises:
        UnreachableTargetError: not even one epoch meets the target.

    Example:
        >>> from ballsbins import BallsAndBins
        >>> most_epochs(BallsAndBins(steps=100, redraw=False), 5.0, epsilon=1.0, delta=1e-6).epochs
        27
    """
    epsilon, delta = _target(epsilon, delta)

    singles = SingleRuns()

    def curve(epochs: int) -> Curve:
        return curve_of(Mechanism(sampler, noise_multiplier, epochs), singles=singles)

    def meets(epochs: int) -> bool:
        return _excess(curve(epochs), epsilon, delta) <= 0.0

    def seems_to(epochs: int) -> bool:
        found = curve(epochs).sketch(np.array([epsilon]), REMOVE)
        return found is not None and bool(found[0] <= math.log(delta))

    if not meets(1):
        raise UnreachableTargetError(
            f"not even one epoch at noise_multiplier={noise_multiplier:g} has epsilon <= {epsilon:g} "
            f"at delta={delta:g}. Use more noise (calibrate finds how much), more steps, or a larger target."
        )
    near = _last_true(seems_to, MOST_EPOCHS)
    return Mechanism(sampler, noise_multiplier, _last_true(meets, MOST_EPOCHS, near))


def least_steps(
    sampler: Sampler, noise_multiplier: float, *, epsilon: float, delta: float, epochs: int = 1
) -> Mechanism:
    """Find the largest batches, and so the fewest steps per epoch, that meet a target at a given noise.

    Args:
        sampler: how batches are drawn; only its number of steps is replaced.
        noise_multiplier: σ, the standard deviation of the noise divided by the clip norm.
        epsilon: the ε to stay within, above 0 and at most 700.
        delta: the δ at which ε is meant, strictly between 0 and 1.
        epochs: the number of passes over the data.

    Returns:
        The Mechanism with the fewest steps per epoch that meets the target.

    Raises:
        InvalidInputError: for Shuffle and Deterministic, whose upper bound does not depend on the number of steps.
        UnreachableTargetError: not even 10¹² steps per epoch meet the target.

    Example:
        >>> from ballsbins import BallsAndBins
        >>> least_steps(BallsAndBins(steps=1), 0.5, epsilon=4.0, delta=1e-6).sampler.steps
        1114
    """
    epsilon, delta = _target(epsilon, delta)
    check_sampler(sampler)
    if not sampler.amplifies:
        advice = "Their upper bound does not depend on the number of steps."
        raise InvalidInputError("sampler", sampler, "BallsAndBins or Poisson", advice)

    def misses(steps: int) -> bool:
        mechanism = Mechanism(replace(sampler, steps=steps), noise_multiplier, epochs)
        return _excess(mechanism.curve, epsilon, delta) > 0.0

    if misses(MAX_STEPS):
        raise UnreachableTargetError(
            f"even {MAX_STEPS:,} steps per epoch at noise_multiplier={noise_multiplier:g} miss "
            f"epsilon <= {epsilon:g} at delta={delta:g}. Use more noise or a larger target."
        )
    steps = 1 if not misses(1) else 1 + _last_true(misses, MAX_STEPS)
    return Mechanism(replace(sampler, steps=steps), noise_multiplier, epochs)


@dataclass(frozen=True)
class CalibratedBatchSize:
    """One choice of batch size, with the noise that it needs."""

    batch_size: int
    mechanism: Mechanism

    @property
    def noise_per_example(self) -> float:
        """σ / batch size: the noise on the average gradient, in units of the clip norm. Smaller is better."""
        return self.mechanism.noise_multiplier / self.batch_size


def plan(
    num_examples: int,
    *,
    epsilon: float,
    delta: float,
    epochs: int = 1,
    batch_sizes: Sequence[int] | None = None,
    sampler: Callable[[int], Sampler] = BallsAndBins,
) -> list[CalibratedBatchSize]:
    """Find the noise that each batch size needs, for a data set and a target.

    Args:
        num_examples: n, the number of examples in the data set.
        epsilon: the ε to stay within, above 0 and at most 700.
        delta: the δ at which ε is meant, strictly between 0 and 1.
        epochs: the number of passes over the data.
        batch_sizes: expected batch sizes, from 1 to n; by default up to eight powers of 2.
        sampler: a function from a number of steps to a sampler.

    Returns:
        One row per batch size, with its calibrated Mechanism.

    Raises:
        InvalidInputError: an argument is out of its range.
        UnreachableTargetError: no noise multiplier up to 10⁶ meets the target.

    Example:
        >>> rows = plan(60_000, epsilon=8.0, delta=1e-6, batch_sizes=[60, 600])
        >>> [(row.batch_size, row.mechanism.sampler.steps) for row in rows]
        [(60, 1000), (600, 100)]
    """
    n = _check.integer("num_examples", num_examples, 1, advice="Give the number of examples in the data set.")
    sizes = batch_sizes if batch_sizes is not None else _usual_sizes(n)
    if isinstance(sizes, (str, bytes)) or not isinstance(sizes, Iterable) or not list(sizes):
        advice = "Give a list of batch sizes; leave it out for up to eight powers of 2."
        raise InvalidInputError("batch_sizes", batch_sizes, "a list of integers, one or more", advice)
    if not callable(sampler):
        advice = "Give BallsAndBins itself, or a function from a number of steps to a sampler."
        raise InvalidInputError("sampler", sampler, "something that makes a sampler", advice)
    rows = []
    for size in sizes:
        b = _check.integer(
            "batch size", size, 1, n, advice="It is the expected number of examples in a batch."
        )
        rows.append(
            CalibratedBatchSize(
                b, calibrate(sampler(-(-n // b)), epsilon=epsilon, delta=delta, epochs=epochs)
            )
        )
    return rows


def _usual_sizes(num_examples: int) -> list[int]:
    """Return at most eight powers of 2 that make between 8 and 100,000 steps per epoch."""
    sizes = [2**k for k in range(4, 40) if 8 <= num_examples / 2**k <= _MOST_USUAL_STEPS]
    return sizes[-8:] or [num_examples]


def _target(epsilon: float, delta: float) -> tuple[float, float]:
    return (
        _check.real(
            "epsilon",
            epsilon,
            0.0,
            LARGEST_EPSILON,
            open_left=True,
            advice="State the privacy loss to stay within.",
        ),
        _check.delta(delta),
    )


def _excess(curve: Curve, epsilon: float, delta: float) -> float:
    """Upper log δ(ε) − log δ: the target is met where this is ≤ 0 (upper ε(δ) ≤ ε is the same statement)."""
    # only the upper bound matters here, and lower bounds are expensive
    return float(largest_log_delta(curve.above, np.array([epsilon]))[0]) - math.log(delta)


def _upper_epsilon(mechanism: Mechanism, delta: float) -> float:
    above = mechanism.curve.above
    if above is not mechanism.curve:
        return max(float(epsilon_at(above, way, np.log([delta]))[2, 0]) for way in DIRECTIONS)
    return float(mechanism.epsilon(delta).upper)


def _last_true(holds: Callable[[int], bool], limit: int, near: int = 1) -> int:
    """Return the largest number up to `limit` at which `holds` is true.

    The condition is true at 1 and, once false, stays false. The search starts at `near` and doubles its steps.
    """
    good, bad = (near, limit + 1) if near == 1 or holds(near) else (1, near)
    step = max(1, near // 512)
    while bad > limit and good + step <= limit:
        good, bad = (good + step, bad) if holds(good + step) else (good, good + step)
        step *= 2
    while good == 1 and bad - step > 1:
        good, bad = (bad - step, bad) if holds(bad - step) else (good, bad - step)
        step *= 2
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if holds(middle) else (good, middle)
    return good
