"""What a method of accounting offers: bounds on log δ for a vector of ε, and how to ask for them.

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
# What an answer is: a "closed form"; "exact" (evaluated to rounding error); a "bracket" (composed by polygons and
# FFT); "sampled" (Monte Carlo: it holds with a stated confidence); "bounds" (a lower and an upper one that may be far
# apart); an "upper bound" with nothing but the trivial one below it; "proved" (ball arithmetic, docs/proof.md).
Kind = Literal["closed form", "exact", "bracket", "sampled", "bounds", "upper bound", "proved"]

REMOVE: Direction = "remove"  # D(P‖Q): the example is there under P and zeroed out under Q
ADD: Direction = "add"  # D(Q‖P)
DIRECTIONS: tuple[Direction, Direction] = (REMOVE, ADD)


U = 2.0**-53  # unit roundoff of doubles: the relative error of one rounding
SEVERAL = (
    8  # roundings: more than a sum of two logarithms, and what led to it, has (B1 of docs/derivation.md)
)
ANSWER = SEVERAL * U  # the rounding of an answer itself


@dataclass(frozen=True, slots=True)
class Interval:
    """Arrays of one shape with lower ≤ truth ≤ upper, and a best guess `value` in between."""

    lower: Array
    value: Array
    upper: Array

    @classmethod
    def around(cls, value: Array, error: Array) -> Interval:
        """From a value of log δ and a bound on its absolute error."""
        return cls(value - error, value, np.minimum(value + error, 0.0))

    @property
    def rows(self) -> Array:
        """Lower, value and upper as the rows of one array."""
        return np.stack([self.lower, self.value, self.upper])


class Curve(ABC):
    """The privacy curve δ(ε) of one mechanism, by one method: all that a method of accounting offers.

    A method must have `kind`, `method` and `at`. What else is here has a default, and a better answer where a method
    knows one.
    """

    kind: Kind  # what the answers are: programs ask this
    method: str  # how they are obtained, in a few words for a reader
    confidence: float = 1.0  # probability that the interval holds: less than 1 for Monte Carlo only
    pointwise: bool = False  # whether every answer alone has that confidence, and not all together
    fallback: tuple[Kind, str] | None = (
        None  # kind and method of answers whose bounds are not close, if not the same
    )
    log_p: float = -math.inf  # log of the probability that truncation of a batch changes anything

    @abstractmethod
    def at(self, epsilon: Array, direction: Direction) -> Interval:
        """Bounds on log D_{e^ε} in one direction for a 1-d array of ε ≥ 0. Never NaN; lower may be −∞."""

    def log_delta(self, epsilon: Array, direction: Direction) -> Interval:
        """The same for ε of any sign: D_{e^ε}(P‖Q) = 1 − e^ε + e^ε·D_{e^−ε}(Q‖P), which is used where ε < 0."""
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
        """An ε of the size that matters, to start a search at."""
        return 1.0

    @property
    def parts(self) -> list[tuple[Curve, int]]:
        """Curves of the independent parts of the run, with how often each is run."""
        return [(self, 1)]

    @property
    def above(self) -> Curve:
        """The curve whose upper bounds are the upper bounds of this one: another one if only bounds are known."""
        return self

    @property
    def below(self) -> Sequence[Curve]:
        """Curves whose lower bounds, the largest at each ε, are the lower bounds of this one."""
        return [self]

    @property
    def untruncated(self) -> Curve:
        """The curve of batches of any size."""
        return self

    def with_penalty(self, epsilon: Array, direction: Direction) -> tuple[Interval, Array]:
        """`log_delta`, and the part of the upper δ(ε) that is due to the truncation of batches."""
        return self.log_delta(epsilon, direction), np.zeros(np.shape(epsilon))

    def penalty_share(self, epsilon: Array, log_delta: Array) -> Array:
        """The part of δ = e^{log_delta} that truncation takes at the ε found for it."""
        return np.zeros(np.shape(epsilon))

    def sketch(self, epsilon: Array, direction: Direction) -> Array | None:
        """About log δ(ε), ε ≥ 0, next to free and no bound; None if the method has no such thing."""
        return None

    def rough_epsilon(self, log_deltas: Array, direction: Direction) -> Array | None:
        """About where δ(ε) = e^{log_deltas}: where a search may start; None if the method has no such thing."""
        return None

    def stretch(self, epsilon: float) -> tuple[float, float]:
        """The ε around one that are answered by the same piece of work: best asked together."""
        return 0.0, math.inf

    def log_upper(self, epsilon: Array, direction: Direction, enough: Array | None = None) -> Array | None:
        """A cheap upper bound on log δ(ε), ε ≥ 0, that need not be sharp; None if the method has no such thing.

        Where it is at most `enough`, no better one is looked for.
        """
        return None


def other(direction: Direction) -> Direction:
    """The opposite direction."""
    return ADD if direction == REMOVE else REMOVE
