"""The interface of every accounting method: bounds on log δ for a vector of ε.

Everything else (ε from δ, σ from (ε, δ), tables, plots) is derived from this once, in `search` and above.
Values are natural logarithms, because δ = 10⁻³⁰⁰ is a legitimate question and −∞ (δ = 0) a legitimate answer.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Direction = Literal["remove", "add"]
# The kind of an answer: a "closed form"; "exact" (evaluated to rounding error); a "bracket" (composed by polygons and
# FFT); "sampled" (Monte Carlo: it holds with a stated confidence); "bounds" (a lower and an upper bound that may be
# far apart); an "upper bound" (the lower bound is trivial); "proved" (ball arithmetic, docs/proof.md).
Kind = Literal["closed form", "exact", "bracket", "sampled", "bounds", "upper bound", "proved"]

REMOVE: Direction = "remove"  # D(P‖Q): the example is there under P and zeroed out under Q
ADD: Direction = "add"  # D(Q‖P)
DIRECTIONS: tuple[Direction, Direction] = (REMOVE, ADD)


U = 2.0**-53  # unit roundoff of doubles: the relative error of one rounding
# Number of roundings: more than a sum of two logarithms and its terms can have (B1 of docs/derivation.md).
SEVERAL = 8
ANSWER = SEVERAL * U  # the rounding of an answer itself


@dataclass(frozen=True, slots=True)
class Interval:
    """Arrays of one shape with lower ≤ truth ≤ upper, and a best guess `value` in between."""

    lower: Array
    value: Array
    upper: Array

    @classmethod
    def around(cls, value: Array, error: Array) -> Interval:
        """Build an interval from a value of log δ and a bound on its absolute error."""
        return cls(value - error, value, np.minimum(value + error, 0.0))

    @property
    def rows(self) -> Array:
        """Lower, value and upper as the rows of one array."""
        return np.stack([self.lower, self.value, self.upper])


class Curve(ABC):
    """The privacy curve δ(ε) of one mechanism, computed by one method.

    A method must define `kind`, `method` and `at`. Everything else has a default, which a method overrides if it can
    do better.
    """

    kind: Kind  # the kind of the answers, for programs
    method: str  # how the answers are obtained, in a few words for people
    confidence: float = 1.0  # probability that the interval holds: below 1 only for Monte Carlo
    pointwise: bool = False  # whether that confidence holds for each answer alone, not for all together
    # kind and method of answers whose bounds are not close, if they differ
    fallback: tuple[Kind, str] | None = None
    log_p: float = -math.inf  # log of the probability that truncating a batch changes anything

    @abstractmethod
    def at(self, epsilon: Array, direction: Direction) -> Interval:
        """Return bounds on log D_{e^ε} in one direction for a 1-d array of ε ≥ 0. Never NaN; lower may be −∞."""

    def log_delta(self, epsilon: Array, direction: Direction) -> Interval:
        """Return the same for ε of any sign; for ε < 0, use D_{e^ε}(P‖Q) = 1 − e^ε + e^ε·D_{e^−ε}(Q‖P)."""
        epsilon = np.asarray(epsilon, dtype=np.float64)
        negative = epsilon < 0.0
        if not negative.any():
            return self.at(epsilon, direction)
        rows = np.empty((3, epsilon.size))
        if not negative.all():
            rows[:, ~negative] = self.at(epsilon[~negative], direction).rows
        below = epsilon[negative]
        out_of_the_money = self.at(-below, other(direction)).rows
        total = np.logaddexp(np.log(-np.expm1(below)), below + out_of_the_money)
        away = ANSWER * (1.0 + np.abs(total))  # to the safe side
        total = np.minimum(total + np.array([[-1.0], [0.0], [1.0]]) * away, 0.0)
        total[1] = np.where(out_of_the_money[1] == out_of_the_money[2], total[2], total[1])
        rows[:, negative] = total
        return Interval(*rows)

    @property
    def scale(self) -> float:
        """An ε of typical size, at which to start a search."""
        return 1.0

    @property
    def parts(self) -> list[tuple[Curve, int]]:
        """Curves of the independent parts of the run, and how often each part runs."""
        return [(self, 1)]

    @property
    def above(self) -> Curve:
        """The curve that provides the upper bounds of this one: a different curve if only bounds are known."""
        return self

    @property
    def below(self) -> Sequence[Curve]:
        """Curves that provide the lower bounds of this one: the largest of theirs at each ε."""
        return [self]

    @property
    def untruncated(self) -> Curve:
        """The curve of the same run without truncation of batches."""
        return self

    def with_penalty(self, epsilon: Array, direction: Direction) -> tuple[Interval, Array]:
        """Return `log_delta`, and the part of the upper δ(ε) that is due to truncating batches."""
        return self.log_delta(epsilon, direction), np.zeros(np.shape(epsilon))

    def penalty_share(self, epsilon: Array, log_delta: Array) -> Array:
        """Return the part of δ = e^{log_delta} that truncation uses up at the ε found for it."""
        return np.zeros(np.shape(epsilon))

    def sketch(self, epsilon: Array, direction: Direction) -> Array | None:
        """Estimate log δ(ε), ε ≥ 0, at almost no cost; this is not a bound. None if the method has no estimate."""
        return None

    def rough_epsilon(self, log_deltas: Array, direction: Direction) -> Array | None:
        """Estimate where δ(ε) = e^{log_deltas}, to start a search; None if the method has no estimate."""
        return None

    def stretch(self, epsilon: float, direction: Direction) -> tuple[float, float]:
        """Return the range of ε around one that the same computation answers; ask for these together."""
        return 0.0, math.inf

    def log_upper(self, epsilon: Array, direction: Direction, enough: Array | None = None) -> Array | None:
        """Return a cheap upper bound on log δ(ε), ε ≥ 0, that need not be sharp; None if the method has none.

        If a bound is at most `enough`, no better one is searched for.
        """
        return None


def other(direction: Direction) -> Direction:
    """Return the opposite direction."""
    return ADD if direction == REMOVE else REMOVE
