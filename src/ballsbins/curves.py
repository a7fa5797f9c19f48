"""Map each sampler to its privacy curve. The table in this file is the only link between samplers and accounting."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ballsbins import _check
from ballsbins.accounting.bounds_only import Between, Diluted, OrBounds, ShuffleCurve, below_epochs
from ballsbins.accounting.curve import Curve
from ballsbins.accounting.epochs.composition import ComposedCurve
from ballsbins.accounting.epochs.curve import ProductCurve
from ballsbins.accounting.epochs.curve_moments import CurveMoments
from ballsbins.accounting.epochs.moments import Moments
from ballsbins.accounting.epochs.poisson_moments import StepMoments
from ballsbins.accounting.gaussian import GaussianCurve
from ballsbins.accounting.one_epoch.curve import ExactCurve
from ballsbins.accounting.one_epoch.lower_bound import BallsAndBinsLowerBound
from ballsbins.accounting.one_epoch.renyi import RenyiCurve
from ballsbins.accounting.poisson import PoissonCurve, PoissonStepCurve
from ballsbins.accounting.truncated import (
    Truncated,
    log_drop_probability,
    log_overflow_probability,
)
from ballsbins.errors import InvalidInputError
from ballsbins.mechanism import Mechanism
from ballsbins.samplers import BallsAndBins, Deterministic, Poisson, Sampler, Shuffle

if TYPE_CHECKING:
    from ballsbins.accounting.monte_carlo import MonteCarlo

LEAST_SIGMA, LARGEST_SIGMA = 0.05, 1e4  # the range of σ in which the exact method is tested
_MUCH_NOISE = 100.0  # above this σ, the exact method needs too many nodes for δ far below the smallest double
_DEEP = -800.0  # with that much noise, return only bounds where log δ is below this
# Several runs: return only bounds where log δ is below this. Below e^−1300 the bracket cannot tell δ from 0.
_DEEPEST = -1600.0
METHODS = ("auto", "renyi", "lower-bound")


class SingleRuns:
    """A cache of curves and moments of single runs, for mechanisms that differ only in how often they repeat them."""

    def __init__(self) -> None:
        self._curves: dict[tuple[tuple[int, float], int], ExactCurve] = {}
        self._moments: dict[tuple[tuple[int, float], int], Moments] = {}

    def curve(self, bins: tuple[int, float], steps: int) -> ExactCurve:
        """Return the curve of one epoch of `steps` steps, or of its first steps.

        `bins` is the number of bins visited and their noise multiplier.
        """
        if (bins, steps) not in self._curves:
            self._curves[bins, steps] = ExactCurve((bins,), steps)
        return self._curves[bins, steps]

    def moments(self, bins: tuple[int, float], steps: int) -> Moments:
        """Return the moments of the same run; a single one of T steps is a step of Poisson sampling."""
        if (bins, steps) not in self._moments:
            if bins[0] == 1:
                made: Moments = StepMoments(bins[1], steps)
            else:
                curve = self.curve(bins, steps)
                made = CurveMoments(curve, curve.sketch)
            self._moments[bins, steps] = made
        return self._moments[bins, steps]


def curve_of(
    mechanism: Mechanism, method: str | MonteCarlo = "auto", singles: SingleRuns | None = None
) -> Curve:
    """Return the privacy curve of a mechanism, including the penalty if batches are truncated.

    "auto" is the best method for the sampler. Balls-and-bins also offers "renyi" (an upper bound, for comparison),
    "lower-bound" (the paper's S_C bound), and Monte Carlo. Mechanisms with the same `singles` share the curves and
    moments that they have in common.
    """
    if not isinstance(method, str):
        from ballsbins.accounting.monte_carlo import MonteCarlo

        bound = f"one of {', '.join(METHODS)}, or a MonteCarlo"
        _check.instance("method", method, MonteCarlo, bound=bound, advice="Leave it out for the best one.")
        curve = _sampled(mechanism, method)
    elif method == "auto":
        curve = _CURVES[type(mechanism.sampler)](mechanism, singles or SingleRuns())
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


def _sampled(mechanism: Mechanism, settings: MonteCarlo) -> Curve:
    from ballsbins.accounting.monte_carlo.method import LEAST_SIGMA as LEAST_SAMPLED
    from ballsbins.accounting.monte_carlo.method import MonteCarloCurve

    sampler, taken = mechanism.sampler, mechanism.last_epoch_steps
    if not isinstance(sampler, BallsAndBins):
        raise InvalidInputError(
            "method", "Monte Carlo", '"auto" for this mechanism', "Monte Carlo is for balls-and-bins."
        )
    if taken is not None and settings.sampler not in ("plain", "order-statistics"):
        advice = 'Use MonteCarlo(sampler="plain"), or count whole epochs.'
        raise InvalidInputError(
            "sampler", settings.sampler, "plain or order-statistics for an unfinished epoch", advice
        )
    sigma, steps = mechanism.noise_multiplier, sampler.steps
    least, epochs = mechanism.independent_epochs
    if least < LEAST_SAMPLED:
        pooled = "noise_multiplier/√epochs, the bins being fixed,"
        name = pooled if sampler.draws_once else "noise_multiplier"
        advice = 'There is next to no privacy below; leave out the method for "auto".'
        raise InvalidInputError(name, least, f"at least {LEAST_SAMPLED} for Monte Carlo", advice)
    if taken is None:
        return MonteCarloCurve(settings, least, steps, epochs)
    if sampler.draws_once:
        return MonteCarloCurve(settings, sigma, steps, 0, mechanism.noise_of_bins)
    return MonteCarloCurve(settings, sigma, steps, epochs - 1, ((taken, sigma),))


def untruncated_curves(mechanism: Mechanism) -> list[tuple[Curve, int]]:
    """Return the curves of the independent parts of a run, and how often each part runs; truncation is ignored."""
    return _CURVES[type(mechanism.sampler)](mechanism, SingleRuns()).parts


def log_penalty(mechanism: Mechanism) -> float | None:
    """Return log p, where p bounds the probability that any batch is truncated; None if the sampler never truncates.

    Fixed bins are drawn once, so a batch that fits in one epoch fits in all epochs.
    """
    if mechanism.sampler.max_batch_size is None:
        return None
    return _of_overflow(log_overflow_probability, mechanism)


def _of_overflow(log_probability: Callable[[int, int, int, int], float], mechanism: Mechanism) -> float:
    sampler = mechanism.sampler
    assert sampler.num_examples is not None  # the sampler has checked this
    assert sampler.max_batch_size is not None
    return log_probability(
        sampler.num_examples, sampler.steps, sampler.max_batch_size, mechanism.batches_drawn
    )


def _balls_and_bins(mechanism: Mechanism, singles: SingleRuns) -> Curve:
    sigma, steps, epochs = mechanism.noise_multiplier, mechanism.sampler.steps, mechanism.epochs
    if steps == 1:
        return GaussianCurve(sigma, epochs)
    if mechanism.sampler.draws_once or epochs == 1:
        return _one_epoch(mechanism.noise_of_bins, steps)
    whole, rest = mechanism.finished_epochs, mechanism.last_epoch_steps or 0
    one: Curve = BallsAndBinsLowerBound(sigma, steps)
    if not LEAST_SIGMA <= sigma <= LARGEST_SIGMA:
        # There is no exact curve to compose: the whole epochs bound δ from below, deterministic batches from above.
        return Between(below_epochs(one, sigma, whole), GaussianCurve(sigma, epochs))
    runs = [((steps, sigma), whole)] + [((rest, sigma), 1)] * (rest > 0)

    def moments() -> list[tuple[Moments, int]]:
        return [(singles.moments(bins, steps), count) for bins, count in runs]

    bracket = ComposedCurve([(singles.curve(bins, steps), count) for bins, count in runs])
    exact = ProductCurve(moments, bracket)
    return OrBounds(exact, Between([one], GaussianCurve(sigma, epochs)), deep=_DEEPEST)


def _one_epoch(kinds: tuple[tuple[int, float], ...], steps: int) -> Curve:
    sigmas = [sigma for _, sigma in kinds]
    if min(sigmas) < LEAST_SIGMA or max(sigmas) > LARGEST_SIGMA:
        return _one_epoch_between(kinds, steps)
    exact = ExactCurve(kinds, steps)
    if max(sigmas) <= _MUCH_NOISE:
        return exact
    return OrBounds(exact, _one_epoch_between(kinds, steps), deep=_DEEP)


def _one_epoch_between(kinds: tuple[tuple[int, float], ...], steps: int) -> Between:
    """Bounds that do not need the exact method: δ_B ≤ δ_D with the least noise, and the paper's S_C from below.

    S_C holds for the bins of one kind, ignoring the others, and for all bins with the largest noise of any kind.
    """
    below: list[Curve] = [_diluted(BallsAndBinsLowerBound(sigma, bins), bins, steps) for bins, sigma in kinds]
    visited, sigmas = sum(bins for bins, _ in kinds), [sigma for _, sigma in kinds]
    if len(kinds) > 1:
        below.append(_diluted(BallsAndBinsLowerBound(max(sigmas), visited), visited, steps))
    return Between(below, _diluted(GaussianCurve(min(sigmas)), visited, steps))


def _diluted(curve: Curve, visited: int, steps: int) -> Curve:
    return curve if visited == steps else Diluted(curve, visited, steps)


def _deterministic(mechanism: Mechanism, singles: SingleRuns) -> Curve:
    # An unfinished epoch visits its first examples as often as a finished one does, and they are the worst case.
    return GaussianCurve(mechanism.noise_multiplier, mechanism.epochs)


def _poisson(mechanism: Mechanism, singles: SingleRuns) -> Curve:
    sigma, steps = mechanism.noise_multiplier, mechanism.sampler.steps
    # Lower bound: one step alone. Upper bound: the example is in every batch.
    bounds = Between([PoissonStepCurve(sigma, steps)], GaussianCurve(sigma, mechanism.total_steps))
    if sigma < LEAST_SIGMA:
        return bounds
    taken = mechanism.total_steps
    if steps == 1:
        return GaussianCurve(sigma, taken)
    if taken == 1:
        return PoissonStepCurve(sigma, steps)

    def moments() -> list[tuple[Moments, int]]:
        return [(singles.moments((1, sigma), steps), taken)]

    exact = ProductCurve(moments, PoissonCurve(sigma, steps, taken))
    return OrBounds(exact, bounds, deep=_DEEPEST)


def _shuffle(mechanism: Mechanism, singles: SingleRuns) -> Curve:
    return ShuffleCurve(
        mechanism.noise_multiplier,
        mechanism.sampler.steps,
        mechanism.epochs,
        mechanism.finished_epochs,
        _balls_and_bins(mechanism.under(BallsAndBins), singles),
    )


_CURVES: dict[type[Sampler], Callable[[Mechanism, SingleRuns], Curve]] = {
    BallsAndBins: _balls_and_bins,
    Deterministic: _deterministic,
    Poisson: _poisson,
    Shuffle: _shuffle,
}
