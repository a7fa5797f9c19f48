"""`certify`: from a mechanism and an ε (or a δ) to a certificate; and back, checking one."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

from ballsbins import _check
from ballsbins._extras import load
from ballsbins.errors import AccuracyError, InvalidInputError
from ballsbins.mechanism import Mechanism
from ballsbins.proof.certificate import DIRECTIONS, Certificate, Part, rounded, versions
from ballsbins.samplers import BallsAndBins, Deterministic

load("flint", feature="Proving bounds", extra="certify")

from flint import arb, fmpq  # noqa: E402

from ballsbins.proof import checker  # noqa: E402
from ballsbins.proof.one_epoch import Bins, enclose  # noqa: E402
from ballsbins.proof.witness import witness_for  # noqa: E402

TOLERANCE = 1e-6  # relative width of an enclosure of one epoch, unless another is asked for
LEAST_SIGMA, MOST_SIGMA = 0.1, 30.0  # of a bin, σ/√visits: where the proofs were tried
MOST_STEPS, LEAST_EPSILON, MOST_EPSILON = 10**10, 1e-4, 30.0
_MARGIN = 1 / 32  # of the tolerance, that the prover and the checker each stay within: a choice
_LEAST = Fraction(1, 10**200)  # an upper bound that is smaller is rounded up to this
_RAISE = (
    1e-9,
    1e-7,
    1e-5,
    1e-3,
)  # by which the accountant's ε is raised, relative, until its δ is proved: a choice


def certify(
    mechanism: Mechanism,
    epsilon: float | None = None,
    *,
    delta: float | None = None,
    tolerance: float = TOLERANCE,
) -> Certificate:
    """Prove bounds on δ at one ε, or an upper bound on ε at one δ.

    Everything is computed in ball arithmetic: each step carries a rigorous bound on its rounding, and every integral
    and sum that is cut off carries a proved bound on the rest (docs/proof.md). One epoch, also an unfinished one,
    fixed bins and deterministic batches are proved to six digits, and the certificate is checked by an independent
    program before it is returned.

    Args:
        mechanism: what is run. Numbers are taken as the doubles that they are.
        epsilon: the ε at which δ is enclosed, from 10⁻⁴ to 30. Give this or `delta`.
        delta: the δ for which an ε is to be proved: the certificate's `epsilon` is such an ε.
        tolerance: the largest relative width of the enclosure of δ of one epoch.

    Returns:
        The certificate: `lower` ≤ δ ≤ `upper` as decimals, both directions, and what is needed to check it.

    Raises:
        InvalidInputError: an argument is out of its range, or the mechanism is one that cannot be proved about.
        AccuracyError: the proof would take too long, or δ is too small. No unproved number is ever returned.

    Example:
        >>> from ballsbins import BallsAndBins, Mechanism
        >>> mechanism = Mechanism(BallsAndBins(steps=1000), noise_multiplier=0.35)
        >>> certificate = certify(mechanism, epsilon=10.0)
        >>> certificate.lower, certificate.upper
        ('1.3312258e-6', '1.3312260e-6')
        >>> certify(mechanism, delta=1e-6).epsilon
        10.168697144061...
    """
    width = _check.real("tolerance", tolerance, 1e-12, 0.1, advice="Leave it out for six digits.")
    if (epsilon is None) == (delta is None):
        advice = "Give the ε at which δ is to be proved, or the δ for which an ε is."
        raise InvalidInputError("epsilon and delta", (epsilon, delta), "one number and one None", advice)
    if delta is not None:
        return _at_delta(mechanism, _check.delta(delta), width)
    at = _check.real("epsilon", epsilon, LEAST_EPSILON, MOST_EPSILON, advice="Proofs are for this range.")
    return _at_epsilon(mechanism, at, width, None)


def _at_epsilon(mechanism: Mechanism, epsilon: float, width: float, target: float | None) -> Certificate:
    bins = bins_of(mechanism)
    parts = {}
    exact = exact_fraction(epsilon)
    digits = math.ceil(-math.log10(width)) + 2
    for direction in DIRECTIONS:
        found = enclose(bins, exact, direction, width * _MARGIN)
        lower, upper = fraction(found.lower), fraction(found.upper)
        spare = Fraction(width * _MARGIN)
        parts[direction] = Part(
            rounded(lower * (1 - spare), digits, -1),
            rounded(max(min(upper * (1 + spare), Fraction(1)), _LEAST), digits, 1),
            found.contour,
            witness_for(bins, exact, direction, width * _MARGIN, found),
        )
    made = Certificate(mechanism, epsilon, parts, "one epoch", target, versions())
    try:
        checker.check(made.to_dict())
    except ValueError as reason:
        raise AccuracyError(
            f"The proof at ε = {epsilon:g} was not confirmed along a second contour ({reason}). Ask at another ε."
        ) from None
    return made


def _at_delta(mechanism: Mechanism, delta: float, width: float) -> Certificate:
    bins_of(mechanism)
    start = float(mechanism.epsilon(delta).upper)
    last: Certificate | None = None
    for more in _RAISE:
        epsilon = max(start * (1 + more), LEAST_EPSILON)
        _check.real("the ε of this δ", epsilon, LEAST_EPSILON, MOST_EPSILON, advice="Ask for another δ.")
        last = _at_epsilon(mechanism, epsilon, width, None)
        if Fraction(last.upper) <= Fraction(delta):
            return replace(last, target_delta=delta)
    assert last is not None
    raise AccuracyError(
        f"No ε up to {last.epsilon:.6g} could be proved at δ = {delta:g}: there δ is at most {last.upper}. "
        "Certify at a larger ε."
    )


def check(certificate: Certificate) -> str:
    """Confirm a certificate: one epoch by the independent checker, a composition by computing it again.

    Args:
        certificate: what `certify` made, perhaps on another machine.

    Returns:
        How it was confirmed, in words.

    Raises:
        InvalidInputError: what it states was not confirmed.

    Example:
        >>> from ballsbins import BallsAndBins, Mechanism
        >>> check(certify(Mechanism(BallsAndBins(steps=100), noise_multiplier=1.0), epsilon=1.0))
        'by an independent program, along another contour'
    """
    saved = certificate.to_dict()
    try:
        checker.check(saved)
    except (ValueError, ArithmeticError, KeyError, TypeError) as reason:
        raise InvalidInputError(
            "the certificate", certificate.upper, f"confirmed, but: {reason}", "Certify the mechanism again."
        ) from None
    return "by an independent program, along another contour"


def bins_of(mechanism: Mechanism) -> Bins:
    """The bins of one epoch that are as private as the mechanism, or an error that says why there are none."""
    sampler, epochs = mechanism.sampler, mechanism.epochs
    sigma2 = exact_fraction(mechanism.noise_multiplier) ** 2
    if sampler.max_batch_size is not None:
        advice = "Certify the run without truncation, and state the penalty of Mechanism.delta beside it."
        raise InvalidInputError("max_batch_size", sampler.max_batch_size, "None", advice)
    if isinstance(sampler, Deterministic):
        groups, steps = [(1, sigma2 / epochs)], 1
    elif isinstance(sampler, BallsAndBins) and (epochs == 1 or not sampler.redraw):
        last, steps = mechanism.steps_in_last_epoch, sampler.steps
        groups = [(last, sigma2 / epochs)]
        if epochs > 1 and last < steps:
            groups.append((steps - last, sigma2 / (epochs - 1)))
    else:
        raise InvalidInputError(
            "mechanism", mechanism, "one epoch of balls-and-bins, fixed bins, or deterministic batches",
            "Bounds for this one are not proved yet: use Mechanism.delta.",
        )  # fmt: skip
    for _, variance in groups:
        advice = "Proofs are for a noise multiplier, divided by √visits where bins are fixed, in this range."
        name = "the noise of a bin"
        _check.real(
            name, math.sqrt(int(variance.p) / int(variance.q)), LEAST_SIGMA, MOST_SIGMA, advice=advice
        )
    _check.integer("steps", steps, 1, MOST_STEPS, advice="Proofs are for this range.")
    return Bins(tuple(groups), steps)


def exact_fraction(x: float) -> fmpq:
    """A double as the binary fraction that it is."""
    return fmpq(*Fraction(x).as_integer_ratio())


def fraction(x: arb) -> Fraction:
    """An exact ball (an end of an enclosure) as a fraction."""
    mantissa, exponent = x.man_exp()
    return Fraction(int(mantissa)) * Fraction(2) ** int(exponent)
