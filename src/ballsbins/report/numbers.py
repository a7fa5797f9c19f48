"""Numbers and runs in readable form. Bounds are rounded conservatively."""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal

import numpy as np

from ballsbins.bound import Bound
from ballsbins.mechanism import Mechanism


def up(value: float, digits: int = 6) -> str:
    """A number rounded up to `digits` significant digits: for upper bounds."""
    return "1e-300" if 0.0 < value < 1e-300 else _rounded(value, digits, ROUND_CEILING)


def down(value: float, digits: int = 6) -> str:
    """A number rounded down: for lower bounds."""
    return _rounded(value, digits, ROUND_FLOOR)


def near(value: float, digits: int = 6) -> str:
    """A number rounded to nearest: for best values only."""
    return _rounded(value, digits, ROUND_HALF_EVEN)


def stated(value: float) -> str:
    """A number that somebody chose, such as δ: as it was written, or rounded up if that is long."""
    return _rounded(value, 6, ROUND_CEILING)


def confidence(value: float) -> str:
    """A confidence, written as its distance from 1: to six digits, 0.9999999 would look like certainty."""
    return f"confidence 1 − {near(1.0 - value, 4)}"


def how(bound: Bound) -> str:
    """How the numbers were obtained, and what truncation cost."""
    sure = "" if bound.confidence == 1.0 else f", {confidence(bound.confidence)}"
    penalty = float(np.max(np.asarray(bound.penalty)))
    cost = "" if penalty == 0.0 else f"; truncation adds {up(penalty, 3)} to δ, included"
    return f"{bound.method}{sure}{cost}"


def _rounded(value: float, digits: int, rounding: str) -> str:
    """Show short numbers as they are written (1.3, although the double of that name is slightly larger).

    No decimal that is shorter than `repr` lies between `repr` and the double, so rounding from `repr` never errs to
    the wrong side.
    """
    if not np.isfinite(value):
        return "∞" if value > 0 else "−∞"
    return _written(Decimal(repr(float(value))).normalize(Context(prec=digits, rounding=rounding)))


def _written(number: Decimal) -> str:
    number = number.normalize()
    if number == 0:
        return "0"
    if 1e-3 <= abs(float(number)) < 1e6:
        return f"{number:f}"
    return f"{number:e}".replace("e-0", "e-").replace("e+0", "e+")


def count(number: int, singular: str) -> str:
    """1 epoch, 2 epochs, 1,000 steps."""
    return f"{number:,} {singular}" + ("" if number == 1 else "s")


def length_of(mechanism: Mechanism) -> str:
    """The length of the run: whole epochs, or how far it came in the last one."""
    steps, last = mechanism.sampler.steps, mechanism.last_epoch_steps
    if last is None:
        return f"{count(mechanism.epochs, 'epoch')} of {count(steps, 'step')}"
    if mechanism.epochs == 1:
        return f"{last:,} of the {count(steps, 'step')} of one epoch"
    whole = count(mechanism.epochs - 1, "whole epoch")
    return f"{whole} of {count(steps, 'step')} and {count(last, 'step')} of the next"


def too_large_delta(delta: float, num_examples: int | None) -> str | None:
    """What is wrong with a δ of 1/n or more, if n is known; None if nothing is wrong."""
    if num_examples is None or num_examples < 1 or delta * num_examples < 1.0:
        return None
    return (
        f"WARNING: δ = {stated(delta)} is not below 1/n = {near(1.0 / num_examples, 3)} for n = {num_examples:,} "
        "examples: a program that publishes one example picked at random, whole, has such a δ and ε = 0. Ask for a δ "
        "well below 1/n."
    )


def batches_of(mechanism: Mechanism) -> str:
    """The common name of its batches: balls-and-bins batches, shuffled batches."""
    return f"{mechanism.sampler.name.replace('shuffle', 'shuffled')} batches"


def describe(mechanism: Mechanism, derived: str | None = None) -> str:
    """The run in one line of public facts."""
    return f"{mechanism.sampler.name}, {length_and_noise(mechanism, derived)}"


def length_and_noise(mechanism: Mechanism, derived: str | None = None) -> str:
    """The run in one line of public facts, without the way its batches are drawn."""
    sampler = mechanism.sampler
    limit = sampler.max_batch_size
    cut = "" if limit is None else f", batches truncated to {limit:,}"
    why = "" if derived is None else f" ({derived})"
    last = mechanism.last_epoch_steps
    early = "" if last is None else f", the last stopped after {count(last, 'step')}"
    sigma = f"{mechanism.noise_multiplier:.10g}"
    return (
        f"σ = {sigma}, {count(sampler.steps, 'step')} per epoch{why}, "
        f"{count(mechanism.epochs, 'epoch')}{early}{cut}"
    )
