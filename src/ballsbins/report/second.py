"""A second opinion on δ that shares no code with the accountant's own method.

Balls-and-bins: Monte Carlo, the paper's own method. An unfinished epoch lies between the run without it and the run
that finishes it, so two estimates bracket it. Poisson and deterministic batches: dp_accounting. Shuffle: none.
"""

from __future__ import annotations

import math
from dataclasses import replace
from types import MappingProxyType

from ballsbins.accounting.balls_and_bins.truncation import Truncated
from ballsbins.accounting.monte_carlo import MonteCarlo
from ballsbins.bound import Bound
from ballsbins.mechanism import Mechanism
from ballsbins.samplers import BallsAndBins, Deterministic, Poisson

_INTERVAL = 1e-4  # of dp_accounting's grid of losses
_ALL_SAMPLES = 40_000  # epochs share them: each costs as much as the others
_LEAST_SAMPLES = 2_000


def second_opinion(mechanism: Mechanism, epsilon: float, method: MonteCarlo) -> Bound | None:
    """Bounds on δ at ε by another method than `mechanism.delta(epsilon)`; None where nobody knows one.

    What truncation may add and take, binomial tails, comes from the accountant and moves the two ends apart.
    """
    sampler = mechanism.sampler
    if isinstance(sampler, (BallsAndBins, Poisson)) and sampler.max_batch_size is not None:
        whole = replace(mechanism, sampler=replace(sampler, max_batch_size=None, num_examples=None))
        found = second_opinion(whole, epsilon, method)
        assert isinstance(mechanism.curve, Truncated)
        lost = math.exp(min(mechanism.curve.log_drop + max(epsilon, 0.0), 0.0))
        return None if found is None else _truncated(found, float(mechanism.delta(epsilon).penalty), lost)
    match sampler:
        case BallsAndBins():
            return _sampled(mechanism, epsilon, method)
        case Poisson() | Deterministic():
            return _dp_accounting(mechanism, epsilon)
    return None


def _truncated(bound: Bound, penalty: float, lost: float) -> Bound:
    parts = {name: _truncated(part, penalty, lost) for name, part in bound.directions.items()}
    lower, upper = max(float(bound.lower) - lost, 0.0), min(float(bound.upper) + penalty, 1.0)
    directions = MappingProxyType(parts)
    return replace(bound, lower=lower, value=upper, upper=upper, penalty=penalty, directions=directions)


def usual_samples(mechanism: Mechanism) -> int:
    """As many samples as take seconds."""
    sampler = mechanism.sampler
    epochs = 1 if isinstance(sampler, BallsAndBins) and not sampler.redraw else mechanism.epochs
    return max(_LEAST_SAMPLES, _ALL_SAMPLES // epochs)


def _sampled(mechanism: Mechanism, epsilon: float, method: MonteCarlo) -> Bound:
    if mechanism.last_epoch_steps is None:
        return mechanism.delta(epsilon, method)
    sampler, sigma, begun = mechanism.sampler, mechanism.noise_multiplier, mechanism.epochs
    # either of the two estimates may fail, each with probability β at most
    above = Mechanism(sampler, sigma, begun).delta(epsilon, method)
    lower = 0.0
    if begun > 1:
        lower = float(Mechanism(sampler, sigma, begun - 1).delta(epsilon, method).lower)
    upper = float(above.upper)
    confidence = 1.0 - 2.0 * method.error_probability
    words = f"{above.method}, of the epochs finished and of those begun"
    return Bound("delta", lower, upper, upper, "sampled", words, confidence)


def _dp_accounting(mechanism: Mechanism, epsilon: float) -> Bound:
    from dp_accounting.pld import privacy_loss_distribution

    sampler, sigma = mechanism.sampler, mechanism.noise_multiplier
    if isinstance(sampler, Poisson):
        rate, times = 1.0 / sampler.steps, mechanism.total_steps
    else:  # each example is seen once an epoch
        rate, times = 1.0, mechanism.epochs

    def delta(*, pessimistic: bool) -> float:
        loss = privacy_loss_distribution.from_gaussian_mechanism(
            sigma,
            sampling_prob=rate,
            pessimistic_estimate=pessimistic,
            value_discretization_interval=_INTERVAL,
            use_connect_dots=pessimistic,  # it knows no optimistic kind
        )
        return float(loss.self_compose(times).get_delta_for_epsilon(epsilon))

    lower, upper = delta(pessimistic=False), delta(pessimistic=True)
    # the lower end is loose: over many steps it falls to 0
    return Bound("delta", min(lower, upper), upper, upper, "bracket", "dp_accounting")
