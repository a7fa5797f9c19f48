"""What a method of accounting must offer: for a vector of ε, a lower and an upper bound on log δ.

Everything else (ε from δ, σ from (ε, δ), tables, plots) is derived from this once, in `search` and above.
Values are natural logarithms, because δ = 10⁻³⁰⁰ is a legitimate question and −∞ (δ = 0) a legitimate answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Direction = Literal["remove", "add"]
# What an answer is: a "closed form"; "exact" (evaluated to rounding error); a "bracket" (composed by polygons and
# FFT); "sampled" (Monte Carlo: it holds with a stated confidence); "bounds" (a lower and an upper one that may be far
# apart); an "upper bound" with nothing but the trivial one below it.
Kind = Literal["closed form", "exact", "bracket", "sampled", "bounds", "upper bound"]

REMOVE: Direction = "remove"  # D(P‖Q): the example is there under P and zeroed out under Q
ADD: Direction = "add"  # D(Q‖P)
DIRECTIONS: tuple[Direction, Direction] = (REMOVE, ADD)


@dataclass(frozen=True, slots=True)
class Interval:
    """Arrays of one shape with lower ≤ truth ≤ upper, and a best guess `value` in between."""

    lower: Array
    value: Array
    upper: Array


class Curve(Protocol):
    """The privacy curve δ(ε) of one mechanism, by one method."""

    @property
    def method(self) -> str:
        """How the numbers are obtained, in a few words for a reader: "exact", "closed form", …"""
        ...

    @property
    def kind(self) -> Kind:
        """What the answers are: programs ask this, `method` is for readers."""
        ...

    @property
    def confidence(self) -> float:
        """Probability that the interval holds: 1.0 unless it is a Monte Carlo method."""
        ...

    def log_delta(self, epsilon: Array, direction: Direction) -> Interval:
        """Bounds on log D_{e^ε} in one direction for a 1-d array of ε of any sign. Never NaN; lower may be −∞."""
        ...
