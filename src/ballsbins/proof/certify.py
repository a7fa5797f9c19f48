"""`certify` makes a certificate for a mechanism and an ε (or a δ), and `check` confirms one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

from ballsbins import _check
from ballsbins._extras import load
from ballsbins.errors import AccuracyError, InvalidInputError
from ballsbins.mechanism import Mechanism
from ballsbins.proof.certificate import DIRECTIONS, Certificate, Part, rounded, versions
from ballsbins.samplers import BallsAndBins, Deterministic, Poisson

load("flint", feature="Proving bounds", extra="certify")

from flint import arb, ctx, fmpq  # noqa: E402

from ballsbins.proof import checker  # noqa: E402
from ballsbins.proof.budget import MINUTES, within  # noqa: E402
from ballsbins.proof.composition import Composition  # noqa: E402
from ballsbins.proof.composition import Part as Repeated  # noqa: E402
from ballsbins.proof.one_epoch import Bins, Enclosure, enclose, witness_for  # noqa: E402

TOLERANCE = 1e-6  # largest relative width of an enclosure of one epoch: the checker accepts no wider one
LEAST_SIGMA, MOST_SIGMA = 0.1, 30.0  # noise of a bin, σ/√visits: the range in which the proofs were tried
MOST_POINTS = 10_000  # most lattice points per deviation that a composition may state
MOST_STEPS, LEAST_EPSILON, MOST_EPSILON = 10**10, 1e-4, 30.0
MOST_COMPOSED_EPSILON = 300.0  # for several epochs or steps; the ε of each one is far below
_MARGIN = 1 / 32  # prover and checker each stay within this fraction of the tolerance: a choice
_LEAST = Fraction(1, 10**200)  # smaller upper bounds are rounded up to this
_SMALLEST = 1e-14  # least δ for which compositions are made: a smaller δ is enclosed less tightly
_COMPOSED_DIGITS = 6  # digits of the ends of a composition, which are farther apart
# relative amounts by which the accountant's ε is raised until its δ is proved: a choice
_RAISE = (1e-9, 1e-7, 1e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 4e-3, 7e-3)
WIDTH = Fraction(1, 100)  # relative width that a composition may leave open; no wider one is returned
# bits for the probability of an overflow, and digits of the bound that includes it
_OVERFLOW_BITS, _TRUNCATED_DIGITS = 256, 8
_FINER = 2  # each further try makes the lattice of a composition this many times finer: a choice
Parts = tuple[Repeated, ...]


def certify(
    mechanism: Mechanism,
    epsilon: float | None = None,
    *,
    delta: float | None = None,
    tolerance: float = TOLERANCE,
    minutes: float = MINUTES,
) -> Certificate:
    """Prove bounds on δ at one ε, or an upper bound on ε at one δ.

    Everything is computed in ball arithmetic: each step carries a rigorous bound on its rounding, and every truncated
    integral and sum carries a proved bound on the rest (docs/proof.md). One epoch (finished or not), fixed bins and
    deterministic batches are proved to six digits, and an independent program checks the certificate before it is
    returned. Several epochs with redrawn bins and Poisson steps are composed between a pair below and a pair above,
    so that δ or ε is known to 1 %. For truncated batches the upper bound is proved.

    Args:
        mechanism: what is run. Its numbers are taken to be exactly the given doubles.
        epsilon: the ε at which δ is enclosed, from 10⁻⁴ to 30, or 300 for compositions. Give this or `delta`.
        delta: the δ for which an ε is to be proved; the certificate's `epsilon` is such an ε.
        tolerance: the largest relative width of the enclosure of δ of one epoch.
        minutes: the CPU time after which the prover gives up.

    Returns:
        The certificate: `lower` ≤ δ ≤ `upper` as decimals, both directions, and everything needed to check it.

    Raises:
        InvalidInputError: an argument is out of its range, or proofs do not cover this mechanism.
        AccuracyError: the proof takes longer than `minutes`, or δ is too small. No unproved number is ever returned.

    Example:
        >>> from ballsbins import BallsAndBins, Mechanism
        >>> mechanism = Mechanism(BallsAndBins(steps=1000), noise_multiplier=0.35)
        >>> certificate = certify(mechanism, epsilon=10.0)
        >>> certificate.lower, certificate.upper
        ('1.3312258e-6', '1.3312260e-6')
        >>> round(certify(mechanism, delta=1e-6).epsilon, 5)
        10.1687
    """
    width = _check.real("tolerance", tolerance, 1e-12, TOLERANCE, advice="Leave it out for six digits.")
    if (epsilon is None) == (delta is None):
        advice = "Give the ε at which δ is to be proved, or the δ for which an ε is."
        raise InvalidInputError("epsilon and delta", (epsilon, delta), "one number and one None", advice)
    limit = _check.real("minutes", minutes, 0.0, advice="Leave it out for ten.")
    with within(limit):
        if delta is not None:
            return _at_delta(mechanism, _check.delta(delta), width)
        most = _most_epsilon(mechanism)
        at = _check.real("epsilon", epsilon, LEAST_EPSILON, most, advice="Proofs are for this range.")
        return _at_epsilon(mechanism, at, width)


def _at_epsilon(mechanism: Mechanism, epsilon: float, width: float) -> Certificate:
    if mechanism.sampler.max_batch_size is not None:
        return _truncated(mechanism, epsilon, width)
    run = bins_of(mechanism)
    if isinstance(run, Bins):
        return _one_epoch(mechanism, run, epsilon, width)
    return _composed(mechanism, run, epsilon)


def _most_epsilon(mechanism: Mechanism) -> float:
    return MOST_EPSILON if isinstance(bins_of(mechanism), Bins) else MOST_COMPOSED_EPSILON


def _truncated(mechanism: Mechanism, epsilon: float, width: float) -> Certificate:
    """The upper bounds proved without truncation, plus what truncation may add (docs/proof.md, step 20)."""
    plain = _at_epsilon(replace(mechanism, sampler=mechanism.sampler.untruncated()), epsilon, width)
    with ctx.workprec(_OVERFLOW_BITS):
        added = fraction((overflow(mechanism) * (1 + arb(exact_fraction(epsilon)).exp())).upper())
    parts = {}
    for name, part in plain.directions.items():
        most = max(min(Fraction(part.upper) + added, Fraction(1)), _LEAST)
        parts[name] = Part("0", rounded(most, _TRUNCATED_DIGITS, 1), {**part.contour, "tolerance": width})
    return Certificate(mechanism, epsilon, parts, "truncated", None, versions())


def overflow(mechanism: Mechanism) -> arb:
    """A bound on the probability that any batch has more than max_batch_size examples."""
    n, size = mechanism.sampler.num_examples, mechanism.sampler.max_batch_size
    assert n is not None
    assert size is not None
    if n <= size:
        return arb(0)
    k, q = size + 1, arb(1) / mechanism.sampler.steps
    ratio = (n - k) * q / ((k + 1) * (1 - q))
    if not ratio < 1:
        return arb(1)
    ways = arb(n + 1).lgamma() - arb(k + 1).lgamma() - arb(n - k + 1).lgamma()
    first = (ways + k * q.log() + (n - k) * (1 - q).log()).exp()
    return (mechanism.batches_drawn * first / (1 - ratio)).min(arb(1))


def _one_epoch(mechanism: Mechanism, bins: Bins, epsilon: float, width: float) -> Certificate:
    parts = {}
    exact = exact_fraction(epsilon)
    digits = math.ceil(-math.log10(width)) + 2
    for direction in DIRECTIONS:
        found = enclose(bins, exact, direction, width * _MARGIN)
        other = witness_for(bins, exact, direction, width * _MARGIN, found)
        parts[direction] = _part(found, digits, Fraction(width * _MARGIN), other)
    made = Certificate(mechanism, epsilon, parts, "one epoch", None, versions())
    try:
        checker.check(made.to_dict())
    except ValueError as reason:
        raise AccuracyError(
            f"The proof at ε = {epsilon:g} was not confirmed along a second contour ({reason}). Ask at another ε."
        ) from None
    return made


def _composed(mechanism: Mechanism, run: Parts, epsilon: float) -> Certificate:
    """Compose on finer and finer lattices, until δ or its ε is known to 1 %."""
    composition = Composition(run, min(max(float(mechanism.delta(epsilon).value), _SMALLEST), 0.1))
    while True:
        made = _stated(mechanism, composition, epsilon)
        least, most = Fraction(made.lower), Fraction(made.upper)
        if most - least <= WIDTH * least:
            return made
        if Fraction(_stated(mechanism, composition, epsilon * (1 + float(WIDTH))).upper) <= least:
            return made
        composition = composition.finer(_FINER)


def _stated(mechanism: Mechanism, composition: Composition, epsilon: float) -> Certificate:
    parts = {}
    for direction in DIRECTIONS:
        ball = composition.delta(exact_fraction(epsilon), direction)
        parts[direction] = _part(Enclosure(ball, composition.facts), _COMPOSED_DIGITS, Fraction(0), {})
    return Certificate(mechanism, epsilon, parts, "composition", None, versions())


def _part(found: Enclosure, digits: int, spare: Fraction, other: dict[str, Any]) -> Part:
    lower, upper = fraction(found.lower) * (1 - spare), fraction(found.upper) * (1 + spare)
    most = max(min(upper, Fraction(1)), _LEAST)
    return Part(rounded(lower, digits, -1), rounded(most, digits, 1), found.contour, other)


def _at_delta(mechanism: Mechanism, delta: float, width: float) -> Certificate:
    start = float(mechanism.epsilon(delta).upper)
    _check.real("the ε of this δ", start, 0.0, _most_epsilon(mechanism), advice="Ask for another δ.")
    truncated = mechanism.sampler.max_batch_size is not None
    run = () if truncated else bins_of(mechanism)
    if truncated or isinstance(run, Bins):
        made = _raised(lambda epsilon: _at_epsilon(mechanism, epsilon, width), start, delta)
        if made is not None:
            return made
        raise AccuracyError(
            f"No ε up to {start * (1 + _RAISE[-1]):.6g} could be proved at δ = {delta:g}. Certify at a larger ε."
        )
    composition = Composition(run, max(delta, _SMALLEST))
    while True:
        made = _raised(lambda epsilon: _stated(mechanism, composition, epsilon), start, delta)  # noqa: B023
        if made is not None:
            below = _stated(mechanism, composition, made.epsilon / (1 + float(WIDTH)))
            if made.epsilon == LEAST_EPSILON or Fraction(below.lower) >= Fraction(delta):
                return made
        composition = composition.finer(_FINER)


def _raised(prove: Callable[[float], Certificate], start: float, delta: float) -> Certificate | None:
    """A certificate for the first ε, rising from the accountant's, whose δ is proved to be at most `delta`."""
    for more in _RAISE:
        epsilon = max(start * (1 + more), LEAST_EPSILON)
        made = prove(epsilon)
        if Fraction(made.upper) <= Fraction(delta):
            return replace(made, target_delta=delta)
    return None


def check(certificate: Certificate, *, minutes: float = MINUTES) -> str:
    """Confirm a certificate: one epoch by the independent checker, a composition by computing it again.

    Args:
        certificate: what `certify` returned, perhaps on another machine.
        minutes: the CPU time after which the check of a composition gives up.

    Returns:
        How it was confirmed, in words.

    Raises:
        InvalidInputError: the stated bounds were not confirmed.
        AccuracyError: the composition takes longer than `minutes`.

    Example:
        >>> from ballsbins import BallsAndBins, Mechanism
        >>> check(certify(Mechanism(BallsAndBins(steps=100), noise_multiplier=1.0), epsilon=1.0))
        'by an independent program, along another contour'
    """
    saved = certificate.to_dict()
    try:
        if saved["method"] != "one epoch":
            with within(_check.real("minutes", minutes, 0.0, advice="Leave it out for ten.")):
                _compute_again(certificate)
            return "by computing it again"
        checker.check(saved)
    except AccuracyError:  # not enough time to tell
        raise
    except (ValueError, ArithmeticError, KeyError, TypeError) as reason:
        raise InvalidInputError(
            "the certificate", certificate.upper, f"confirmed, but: {reason}", "Certify the mechanism again."
        ) from None
    return "by an independent program, along another contour"


def _compute_again(certificate: Certificate) -> None:
    """Raise ValueError unless the same computation gives an enclosure that is at least as tight."""
    contour, mechanism = certificate.directions[DIRECTIONS[0]].contour, certificate.mechanism
    if mechanism.sampler.max_batch_size is not None:
        width = _check.real(
            "tolerance", contour.get("tolerance"), 1e-12, TOLERANCE, advice="Certify it again."
        )
        again = _truncated(mechanism, certificate.epsilon, width)
    else:
        run = bins_of(mechanism)
        if isinstance(run, Bins):
            raise ValueError("this mechanism is not a composition")
        points = _check.integer("points", contour.get("points"), 1, MOST_POINTS, advice="Certify it again.")
        composition = Composition(run, _check.delta(contour.get("smallest")), points)
        again = _stated(mechanism, composition, certificate.epsilon)
    for name, part in again.directions.items():
        stated = certificate.directions[name]
        if Fraction(stated.lower) > Fraction(part.lower) or Fraction(stated.upper) < Fraction(part.upper):
            raise ValueError(f"{name}: δ is in [{part.lower}, {part.upper}]")
    target = certificate.target_delta
    if target is not None and Fraction(certificate.upper) > Fraction(target):
        raise ValueError("δ is not below the target that the certificate is for")


def bins_of(mechanism: Mechanism) -> Bins | Parts:
    """The bins of one epoch or the parts of a composition, as private as the mechanism without truncation."""
    sampler, epochs, rest = mechanism.sampler, mechanism.epochs, mechanism.last_epoch_steps
    sigma2, steps = exact_fraction(mechanism.noise_multiplier) ** 2, sampler.steps
    _check.integer("steps", steps, 1, MOST_STEPS, advice="Proofs are for this range.")
    last = steps if rest is None else rest
    one = Bins(((1, sigma2),), steps)
    composed: list[Repeated] = []
    match sampler:
        case Deterministic():
            groups, steps = [(1, sigma2 / epochs)], 1
        case Poisson():
            groups = [(1, sigma2)]
            composed = [Repeated(one, mechanism.total_steps)] if mechanism.total_steps > 1 else []
        case BallsAndBins() if epochs == 1 or not sampler.redraw:
            groups = [(last, sigma2 / epochs)]
            if epochs > 1 and last < steps:
                groups.append((steps - last, sigma2 / (epochs - 1)))
        case BallsAndBins():
            groups = [(steps, sigma2)]
            composed = [Repeated(Bins(((steps, sigma2),), steps), mechanism.finished_epochs)]
            if rest is not None:
                composed.append(Repeated(Bins(((rest, sigma2),), steps), 1))
        case _:
            raise InvalidInputError(
                "sampler", sampler, "balls-and-bins, Poisson or deterministic batches",
                "For shuffled batches only bounds are known, and they are far apart.",
            )  # fmt: skip
    for _, variance in groups:
        advice = "Proofs are for a noise multiplier, divided by √visits where bins are fixed, in this range."
        sigma = math.sqrt(int(variance.p) / int(variance.q))
        _check.real("the noise of a bin", sigma, LEAST_SIGMA, MOST_SIGMA, advice=advice)
    if steps == 1 and composed:  # every batch has every example: a Gaussian mechanism
        return Bins(((1, sigma2 / mechanism.total_steps),), 1)
    return tuple(composed) or Bins(tuple(groups), steps)


def exact_fraction(x: float) -> fmpq:
    """A double as the exact binary fraction."""
    return fmpq(*Fraction(x).as_integer_ratio())


def fraction(x: arb) -> Fraction:
    """An exact ball (an end of an enclosure) as a fraction."""
    mantissa, exponent = x.man_exp()
    return Fraction(int(mantissa)) * Fraction(2) ** int(exponent)
