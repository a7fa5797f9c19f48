"""Recompute the claim of a card, with the accountant and with a second method, and say whether they agree.

A claim "ε ≤ u at δ" agrees if the accountant proves ε ≤ u and the second method does not contradict it. A tight claim
lies within the error of any Monte Carlo estimate, so an estimate can refute it, but hardly prove it.

The second method shares no code with the accountant. For balls-and-bins it is Monte Carlo, the paper's own method. An
unfinished epoch lies between the run without it and the run that finishes it, so two estimates bracket it. For
Poisson and deterministic batches it is dp_accounting. Shuffle has none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal

from ballsbins.accounting.monte_carlo import MonteCarlo
from ballsbins.accounting.truncated import Truncated
from ballsbins.bound import Bound
from ballsbins.errors import AccuracyError, InvalidInputError, UnreachableTargetError
from ballsbins.mechanism import Mechanism
from ballsbins.report.card import Card
from ballsbins.report.numbers import describe, down, stated, up
from ballsbins.samplers import BallsAndBins, Deterministic, Poisson

Verdict = Literal["agrees", "too small", "not proved", "no opinion"]
_DIGITS = 1e-6  # relative tolerance: claims are published to six digits, and machines differ in the last bits
_LARGEST = 700.0  # larger privacy losses mean nothing in practice
_INTERVAL = 1e-4  # spacing of dp_accounting's grid of losses
_ALL_SAMPLES = 40_000  # total, shared among the epochs, each of which costs the same
_LEAST_SAMPLES = 2_000


@dataclass(frozen=True)
class Check:
    """The result of checking a claim. `epsilon` is recomputed at the card's δ; both δ are at the claimed ε.

    A field is None if there is nothing to compare: ε is too large to compute a δ, or there is no second method.
    """

    card: Card
    epsilon: Bound | None
    delta: Bound | None
    second: Bound | None
    verdict: Verdict
    second_verdict: Verdict
    findings: tuple[str, ...]

    @property
    def agrees(self) -> bool:
        """Whether the claim can be trusted."""
        return not self.findings

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        parts = {"epsilon": self.epsilon, "delta_at_claim": self.delta, "second_delta_at_claim": self.second}
        numbers = {name: None if part is None else part.to_dict() for name, part in parts.items()}
        for part in numbers.values():
            if part is not None:
                part.pop("mechanism", None)
        return {
            "agrees": self.agrees,
            "claim": self.card.claim.to_dict(),
            "delta": self.card.delta,
            "mechanism": self.card.mechanism.to_dict(),
            "verdict": self.verdict,
            "second_verdict": self.second_verdict,
            "findings": list(self.findings),
            **numbers,
        }


def check(card: Card, method: MonteCarlo) -> Check:
    """Recompute what the card claims; `method` is used if Monte Carlo is the second method."""
    mechanism, delta = card.mechanism, card.delta
    claimed = float(card.claim.upper)
    findings = []
    try:
        epsilon = mechanism.epsilon(delta)
    except UnreachableTargetError as error:
        epsilon = None
        findings.append(f"no ε can be claimed at δ = {stated(delta)}: {error}")
    verdict: Verdict = "not proved"
    if epsilon is not None:
        verdict, said = _judge(claimed, epsilon, delta)
        findings += said
        findings += _directions(card.claim, epsilon)
    at_claim = second = None
    if claimed <= _LARGEST:
        with suppress(AccuracyError):  # no composed curve this far out; that does not refute the claim
            at_claim = mechanism.delta(claimed)
        second = second_opinion(mechanism, claimed, method)
    second_verdict: Verdict = "no opinion"
    if second is not None:
        second_verdict = "agrees"
        if float(second.lower) > delta:
            second_verdict = "too small"
            findings.append(
                f"by {second.method}, δ at ε = {up(claimed)} is at least {down(float(second.lower))}, more than the "
                f"{stated(delta)} claimed"
            )
        findings += [] if at_claim is None else _disjoint(at_claim, second)
    return Check(card, epsilon, at_claim, second, verdict, second_verdict, tuple(findings))


def shared_runs(cards: Sequence[tuple[str, Card]]) -> list[str]:
    """One sentence for every run that appears on several of these (name, card) pairs."""
    names: dict[tuple[str | None, str], list[str]] = {}
    for name, card in cards:
        if card.run is not None:
            names.setdefault((card.key_commitment, card.run), []).append(name)
    return [
        f"{' and '.join(same)} are of the same run ({run}): their batches are the same, and together they cost far "
        "more than either claims. Nothing here accounts for both. Every training has a run of its own unless it "
        "reads the same batch files or repeats a seed"
        for (_, run), same in names.items()
        if len(same) > 1
    ]


def refuse_false(card: Card) -> None:
    """Raise if the accountant does not confirm what the card claims: we must not repeat a false claim."""
    try:
        found = card.mechanism.epsilon(card.delta)
    except AccuracyError:  # nothing is known against the claim, which states its own method
        return
    run = describe(card.mechanism)
    advice = "Nothing is stated for it: ballsbins check shows what is true of the card."
    pairs = {"": (card.claim, found)} | {
        f" in the direction {name}": (part, found.directions[name])
        for name, part in card.claim.directions.items()
    }
    for where, (claim, true) in pairs.items():
        # A claim that holds only with some probability need not be proved, but must not be false.
        least = float(true.upper if claim.confidence == 1.0 else true.lower)
        if float(claim.upper) * (1.0 + _DIGITS) < least:
            bound = f"at least {up(least)}, which is what is proved at δ = {stated(card.delta)}"
            raise InvalidInputError(f"the claim for {run}{where}", float(claim.upper), bound, advice)
        if float(claim.lower) > float(true.upper) * (1.0 + _DIGITS):
            bound = f"at most {up(float(true.upper))}, which is proved to be enough; 0 where it is not known"
            raise InvalidInputError(
                f"the lower end of the claim for {run}{where}", float(claim.lower), bound, advice
            )


def _judge(claimed: float, found: Bound, delta: float) -> tuple[Verdict, list[str]]:
    low, high = float(found.lower), float(found.upper)
    if high <= claimed * (1.0 + _DIGITS):
        return "agrees", []
    if low > claimed:
        times = f", {low / claimed:.3g} times as much" if low >= 1.05 * claimed > 0.0 else ""
        return "too small", [
            f"the claim ε ≤ {up(claimed)} is TOO SMALL: at δ = {stated(delta)} ε is at least {down(low)}{times}"
        ]
    return "not proved", [
        f"the claim ε ≤ {up(claimed)} is not proved: at δ = {stated(delta)} ε is at least {down(low)}, and at most "
        f"{up(high)} is what can be stated"
    ]


def _directions(claim: Bound, found: Bound) -> list[str]:
    """Claims about a single direction must hold too."""
    said = []
    for name, part in claim.directions.items():
        low, claimed = float(found.directions[name].lower), float(part.upper)
        if low > claimed * (1.0 + _DIGITS):
            said.append(
                f"the claim ε ≤ {up(claimed)} for the direction {name} is too small: ε is at least {down(low)}"
            )
    return said


def _disjoint(one: Bound, two: Bound) -> list[str]:
    """Report two methods whose intervals do not overlap: one of them is wrong, and neither can be relied on."""
    pairs = {"δ": (one, two)} | {
        f"δ ({name})": (part, two.directions[name])
        for name, part in one.directions.items()
        if name in two.directions
    }
    return [
        f"the two methods contradict each other on {name}: {down(float(a.lower))} … {up(float(a.upper))} and "
        f"{down(float(b.lower))} … {up(float(b.upper))}; do not rely on either, and report it"
        for name, (a, b) in pairs.items()
        if float(a.lower) > float(b.upper) or float(b.lower) > float(a.upper)
    ]


def second_opinion(mechanism: Mechanism, epsilon: float, method: MonteCarlo) -> Bound | None:
    """Bounds on δ at ε by a method other than `mechanism.delta(epsilon)`; None if no other method is known.

    The effect of truncation, which is given by binomial tails, comes from the accountant and widens the interval.
    """
    sampler = mechanism.sampler
    if sampler.max_batch_size is not None:
        found = second_opinion(mechanism.under(sampler.untruncated()), epsilon, method)
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
    """A number of samples that takes seconds."""
    _, epochs = mechanism.independent_epochs
    return max(_LEAST_SAMPLES, _ALL_SAMPLES // epochs)


def _sampled(mechanism: Mechanism, epsilon: float, method: MonteCarlo) -> Bound:
    if mechanism.last_epoch_steps is None:
        return mechanism.delta(epsilon, method)
    # either of the two estimates may fail, each with probability at most β
    above = replace(mechanism, last_epoch_steps=None).delta(epsilon, method)
    lower = 0.0
    if mechanism.epochs > 1:
        finished = replace(mechanism, epochs=mechanism.finished_epochs, last_epoch_steps=None)
        lower = float(finished.delta(epsilon, method).lower)
    upper = float(above.upper)
    confidence = 1.0 - 2.0 * method.error_probability
    words = f"{above.method}, of the epochs finished and of those begun"
    return Bound("delta", lower, upper, upper, "sampled", words, confidence)


def _dp_accounting(mechanism: Mechanism, epsilon: float) -> Bound:
    from dp_accounting.pld import privacy_loss_distribution

    sampler, sigma = mechanism.sampler, mechanism.noise_multiplier
    if isinstance(sampler, Poisson):
        rate, times = 1.0 / sampler.steps, mechanism.total_steps
    else:  # each example is seen once per epoch
        rate, times = 1.0, mechanism.epochs

    def delta(*, pessimistic: bool) -> float:
        loss = privacy_loss_distribution.from_gaussian_mechanism(
            sigma,
            sampling_prob=rate,
            pessimistic_estimate=pessimistic,
            value_discretization_interval=_INTERVAL,
            use_connect_dots=pessimistic,  # dp_accounting has no optimistic estimate for it
        )
        return float(loss.self_compose(times).get_delta_for_epsilon(epsilon))

    lower, upper = delta(pessimistic=False), delta(pessimistic=True)
    # the lower end is loose: over many steps it falls to 0
    return Bound("delta", min(lower, upper), upper, upper, "bracket", "dp_accounting")
