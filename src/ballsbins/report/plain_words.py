"""Explain a guarantee to readers who do not know what ε is: what the best attacker can do, in numbers.

The attacker knows the model, every step of the training, and all examples but one, and guesses whether that one was
used. All numbers are upper bounds, computed from the whole privacy curve and not from one point (ε, δ) of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from functools import lru_cache

from ballsbins.errors import BallsBinsError
from ballsbins.mechanism import Mechanism
from ballsbins.report.numbers import count, down, near, stated
from ballsbins.total import Total

FALSE_ALARMS = 0.01  # the fraction of absent examples that the attacker may call present
RARELY = 1e-3  # how often belief may rise beyond the stated level
# a share above the first is shown by what is missing from 1, if that is at least the second
_NEARLY_ALL, _LEAST_MISSING = (
    0.99,
    1e-6,
)


@dataclass(frozen=True)
class Attack:
    """The most that any attacker can achieve.

    Attributes:
        true_positive_rate: the fraction of present examples found, while at most `FALSE_ALARMS` of the absent ones
            are called present.
        right: how often a guess is right if the example was used with probability one half.
        belief: a limit on the attacker's probability that the example was used, which was one half before. It is
            exceeded in at most a fraction `RARELY` of all trainings.
    """

    true_positive_rate: float
    right: float
    belief: float


@lru_cache(maxsize=64)
def best_attack(mechanism: Mechanism | Total) -> Attack | None:
    """Bounds on what the best attacker achieves; None if the accountant has no answer.

    * A guess with even odds is right with probability (1 + TV)/2, and the total variation distance TV is δ at ε = 0.
    * The posterior odds are e^L, with L the privacy loss, so belief exceeds 1/(1 + e^−ε) with probability P(L > ε).
      For ε′ < ε that is at most δ(ε′)/(1 − e^{ε′ − ε}), because δ(ε′) = E[(1 − e^{ε′ − L})₊]; with ε = ε′ + log 2
      that is 2·δ(ε′). It holds in both directions: for examples that were used, and for those that were not.
    """
    try:
        rate = float(mechanism.true_positive_rate(FALSE_ALARMS).upper)
        right = 0.5 * (1.0 + float(mechanism.delta(0.0).upper))
        epsilon = float(mechanism.epsilon(RARELY / 2.0).upper) + math.log(2.0)
    except (BallsBinsError, ArithmeticError):
        return None
    return Attack(min(rate, 1.0), min(right, 1.0), 1.0 / (1.0 + math.exp(-epsilon)))


def percent(share: float) -> str:
    """A share in percent, rounded up: to a tenth, or, near 100 %, to two digits of its distance from 100 %."""
    missing = 1.0 - share
    if share <= _NEARLY_ALL:
        tenths = (1000 * Decimal(repr(share))).to_integral_value(ROUND_CEILING)
        return f"{(tenths / 10).normalize():f} %"
    if missing < _LEAST_MISSING:
        return "100 %"
    return f"{(100 - 100 * Decimal(down(missing, 2))).normalize():f} %"


def in_plain_words(mechanism: Mechanism | Total, delta: float, num_examples: int | None) -> str:
    """The guarantee for everybody, in one paragraph."""
    attack = best_attack(mechanism)
    who = (
        "Suppose an attacker sees every step of the training and knows all examples but one, and wants to find out "
        "whether that one was used."
    )
    if attack is None:
        return f"{who} How well the attacker does is not known for this run."
    said = [
        who,
        f"Without the model a guess is right half of the time; with it, at most {percent(attack.right)} of the time.",
        f"If the attacker may wrongly suspect {percent(FALSE_ALARMS)} of the examples that were not used, it finds "
        f"at most {percent(attack.true_positive_rate)} of those that were.",
        f"In all but at most 1 of {round(1.0 / RARELY):,} trainings, its belief that the example was used, if it was "
        f"50 % before, ends at most at {percent(attack.belief)}.",
    ]
    if attack.right > _NEARLY_ALL:
        said.append("This protects nobody.")
    if num_examples:
        share = near(100.0 * delta * num_examples, 2)
        said.append(
            f"δ = {stated(delta)} is {share} % of 1/n, which is the δ of a program that publishes one of the "
            f"{count(num_examples, 'example')}, picked at random, whole."
        )
    return " ".join(said)
