"""The noise, the epochs or the steps that a target (ε, δ) allows, checked before they are returned."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ballsbins import _check
from ballsbins.accounting.curve import DIRECTIONS, REMOVE, Curve
from ballsbins.accounting.one_epoch.sketch import rough_noise
from ballsbins.accounting.search import epsilon_at, largest_log_delta, least
from ballsbins.accounting.truncated import least_max_batch_size
from ballsbins.curves import LARGEST_SIGMA, LEAST_SIGMA, SingleRuns, curve_of
from ballsbins.errors import InvalidInputError, UnreachableTargetError
from ballsbins.mechanism import LEAST_NOISE, MOST_EPOCHS, MOST_NOISE, Mechanism
from ballsbins.samplers import BallsAndBins, Sampler
from ballsbins.samplers.base import MAX_EXAMPLES, MAX_STEPS

RELATIVE = 1e-6  # to which σ is found
_SKETCHED = 3e-3  # to which it is found from a sketch, to begin with
PENALTY_SHARE = 0.01  # of δ that truncation may take with max_batch_size="auto"
# The paper's largest batches (appendix C), by data set and expected batch size.
_EXPECTED = tuple(2**power for power in range(10, 19))
PAPER_MAX_BATCH_SIZES: Mapping[str, Mapping[int, int]] = {
    "paper-pctr": dict(
        zip(_EXPECTED, (1328, 2469, 4681, 9007, 17520, 34355, 67754, 134172, 266475), strict=True)
    ),
    "paper-search": dict(
        zip(_EXPECTED, (1320, 2458, 4665, 8984, 17488, 34309, 67687, 134071, 266317), strict=True)
    ),
}
# The paper's rule where no target is stated: truncation adds at most 10⁻¹⁰ to δ, even at ε = 10.
_PAPER_EPSILON, _PAPER_DELTA = 10.0, 1e-10

MaxBatchSize = int | Literal["auto", "paper-pctr", "paper-search"]


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
    """The Mechanism with the least noise multiplier, to relative 10⁻⁶, whose upper ε at `delta` is within `epsilon`.

    With `max_batch_size="auto"` and `num_examples`, batches are truncated to the least size whose penalty takes at
    most `penalty_share` of `delta`.
    """
    epsilon, delta = _target(epsilon, delta)
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
    fixed = sampler.draws_once or not sampler.amplifies
    root = math.sqrt(epochs) if fixed else 1.0  # σ of fixed batches grows with √epochs
    # With more noise than this only δ_D is known, which may be larger than δ_B is here.
    start, stride = min(max(0.7 * root, low), high), 2.0
    if isinstance(sampler, BallsAndBins) and (epochs == 1 or fixed):
        start = root * rough_noise(sampler.steps, epsilon, math.log(delta), LEAST_SIGMA, LARGEST_SIGMA)
        start, stride = min(max(start, low), high), 1.01
    elif not fixed:
        sketched = _sketched_noise(sampler, epsilon, delta, epochs)
        start, stride = (start, stride) if sketched is None else (sketched, 1.01)

    def noise(most: float) -> float:
        near = min(start, most)
        return least(excess, low, most, start=near, relative=RELATIVE, what="noise multiplier", stride=stride)

    # with more noise than that only δ_D is known, which may be larger than δ_B is here
    exact = min(LARGEST_SIGMA * root, high) if isinstance(sampler, BallsAndBins) else high
    try:
        sigma = noise(exact)
    except UnreachableTargetError:
        if exact == high:
            raise
        sigma = noise(high)
    if _upper_epsilon(at(sigma), delta) > epsilon:
        # A composed curve is a bracket, and a bracket found for ε from δ may be a little wider than one found for δ
        # from ε: what is promised is the former, so search again, nearby, for that.
        sigma = least(
            lambda x: math.log(_upper_epsilon(at(x), delta) / epsilon),
            low, high, start=sigma * (1.0 + 1e-4), relative=RELATIVE, what="noise multiplier", stride=1.0003,
        )  # fmt: skip
    return at(sigma)


def _sketched_noise(sampler: Sampler, epsilon: float, delta: float, epochs: int) -> float | None:
    """About the noise multiplier that meets a target; None if the sampler's curve has no sketch, or none does."""

    def excess(sigma: float) -> float:
        found = Mechanism(sampler, sigma, epochs).curve.sketch(np.array([epsilon]), REMOVE)
        return math.inf if found is None else float(found[0]) - math.log(delta)

    what = "noise multiplier"
    try:
        return least(excess, LEAST_SIGMA, LARGEST_SIGMA, start=0.7, relative=_SKETCHED, what=what)
    except UnreachableTargetError:
        return None


def with_max_batch_size(
    sampler: Sampler,
    max_batch_size: str,
    num_examples: int | None,
    epsilon: float,
    delta: float,
    epochs: int,
    penalty_share: float,
) -> Sampler:
    """The sampler, truncated to the least size whose penalty at `epsilon` takes at most that share of `delta`."""
    if max_batch_size != "auto":
        advice = (
            "Give a number of your own to the sampler: BallsAndBins(…, max_batch_size=…, num_examples=…)."
        )
        raise InvalidInputError("max_batch_size", max_batch_size, '"auto" or None', advice)
    if not sampler.random_sizes:
        advice = "Batches of Shuffle and Deterministic have one size already."
        raise InvalidInputError("max_batch_size", max_batch_size, f"None for {sampler!r}", advice)
    examples = _check.integer(
        "num_examples",
        num_examples,
        1,
        MAX_EXAMPLES,
        advice='max_batch_size="auto" needs the number of examples.',
    )
    share = _check.real(
        "penalty_share",
        penalty_share,
        0.0,
        1.0,
        open_left=True,
        open_right=True,
        advice="A hundredth is usual.",
    )
    batches = sampler.steps * (1 if sampler.draws_once else epochs)
    log_p = math.log(share * delta) - float(np.logaddexp(0.0, epsilon))
    size = least_max_batch_size(examples, sampler.steps, batches, log_p)
    return sampler.truncated_to(size, examples)


def limited(
    sampler: Sampler,
    num_examples: int,
    max_batch_size: MaxBatchSize = "auto",
    *,
    epochs: int = 1,
    epsilon: float | None = None,
    delta: float | None = None,
    batch_size: int | None = None,
) -> Sampler:
    """The sampler with its largest batch size; those of Shuffle and Deterministic have one size and stay as they are.

    "auto" takes the least size whose penalty is at most a hundredth of `delta` at `epsilon`, or without those the
    paper's rule: at most 10⁻¹⁰ at ε = 10. "paper-pctr" and "paper-search" look `batch_size` up in the paper's tables.
    """
    if not sampler.random_sizes:
        if max_batch_size != "auto":
            advice = "Batches of Shuffle and Deterministic have one size already."
            raise InvalidInputError("max_batch_size", max_batch_size, '"auto" for this sampler', advice)
        return sampler
    if max_batch_size == "auto":
        at, share = (epsilon, PENALTY_SHARE) if epsilon is not None else (_PAPER_EPSILON, 0.5)
        target = delta if epsilon is not None and delta is not None else _PAPER_DELTA / share
        return with_max_batch_size(sampler, "auto", num_examples, at, target, epochs, share)
    if isinstance(max_batch_size, str):
        max_batch_size = _of_the_paper(max_batch_size, batch_size)
    return sampler.truncated_to(max_batch_size, num_examples)


def _of_the_paper(name: str, batch_size: int | None) -> int:
    if name not in PAPER_MAX_BATCH_SIZES:
        bound = f"a number, auto, {' or '.join(PAPER_MAX_BATCH_SIZES)}"
        raise InvalidInputError("max_batch_size", name, bound, "auto costs next to nothing in privacy.")
    table = PAPER_MAX_BATCH_SIZES[name]
    if batch_size is None or batch_size not in table:
        bound = f"one of {', '.join(map(str, table))} for the table {name}"
        raise InvalidInputError("batch_size", batch_size, bound, "Use max_batch_size auto for any other.")
    return table[batch_size]


def most_epochs(sampler: Sampler, noise_multiplier: float, *, epsilon: float, delta: float) -> Mechanism:
    """The Mechanism with the most epochs whose upper ε at `delta` is within `epsilon`.

    With `MOST_EPOCHS` of them, the most that a Mechanism can have, more might do, too.
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
    """The Mechanism with the fewest steps an epoch, so the largest batches, that meets the target.

    The steps of `sampler` are replaced; all else of it stays.
    """
    epsilon, delta = _target(epsilon, delta)
    if not sampler.amplifies:
        advice = "Their upper bound does not depend on the number of steps."
        raise InvalidInputError("sampler", sampler, "BallsAndBins or Poisson", advice)

    def misses(steps: int) -> bool:
        mechanism = Mechanism(replace(sampler, steps=steps), noise_multiplier, epochs)
        return _excess(mechanism.curve, epsilon, delta) > 0.0

    if misses(MAX_STEPS):
        raise UnreachableTargetError(
            f"even {MAX_STEPS:,} steps an epoch at noise_multiplier={noise_multiplier:g} miss "
            f"epsilon <= {epsilon:g} at delta={delta:g}. Use more noise or a larger target."
        )
    steps = 1 if not misses(1) else 1 + _last_true(misses, MAX_STEPS)
    return Mechanism(replace(sampler, steps=steps), noise_multiplier, epochs)


@dataclass(frozen=True)
class PlanRow:
    """One choice of batch size: what it costs in noise."""

    batch_size: int
    mechanism: Mechanism

    @property
    def noise_per_example(self) -> float:
        """σ / batch size: the noise on the average gradient, in clip norms. Smaller trains better."""
        return self.mechanism.noise_multiplier / self.batch_size


def plan(
    num_examples: int,
    *,
    epsilon: float,
    delta: float,
    epochs: int = 1,
    batch_sizes: Sequence[int] | None = None,
    sampler: Callable[[int], Sampler] = BallsAndBins,
) -> list[PlanRow]:
    """For a data set and a target, the calibrated Mechanism of every batch size (powers of 2 if none are given)."""
    n = _check.integer("num_examples", num_examples, 1, advice="Give the number of examples in the data set.")
    sizes = batch_sizes if batch_sizes is not None else _usual_sizes(n)
    rows = []
    for size in sizes:
        b = _check.integer(
            "batch size", size, 1, n, advice="It is the expected number of examples in a batch."
        )
        rows.append(PlanRow(b, calibrate(sampler(-(-n // b)), epsilon=epsilon, delta=delta, epochs=epochs)))
    return rows


def _usual_sizes(num_examples: int) -> list[int]:
    """Powers of 2 that make between 8 and 100,000 steps an epoch, at most eight of them."""
    sizes = [2**k for k in range(4, 40) if 8 <= num_examples / 2**k <= 1e5]
    return sizes[-8:] or [num_examples]


def _target(epsilon: float, delta: float) -> tuple[float, float]:
    return (
        _check.real(
            "epsilon", epsilon, 0.0, 700.0, open_left=True, advice="State the privacy loss to stay within."
        ),
        _check.delta(delta),
    )


def _excess(curve: Curve, epsilon: float, delta: float) -> float:
    """Upper log δ(ε) − log δ: the target is met where this is ≤ 0 (upper ε(δ) ≤ ε is the same statement)."""
    # only what is above counts, and curves below are costly
    return float(largest_log_delta(curve.above, np.array([epsilon]))[0]) - math.log(delta)


def _upper_epsilon(mechanism: Mechanism, delta: float) -> float:
    above = mechanism.curve.above
    if above is not mechanism.curve:
        return max(float(epsilon_at(above, way, np.log([delta]))[2, 0]) for way in DIRECTIONS)
    return float(mechanism.epsilon(delta).upper)


def _last_true(holds: Callable[[int], bool], limit: int, near: int = 1) -> int:
    """The largest number up to `limit` at which a condition that holds at 1, and then no more, still holds.

    It is looked for around `near`, in steps that double.
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
