"""An answer of the accountant: an interval, how it was obtained, and both directions of the comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ballsbins.accounting.curve import Kind

Number = float | NDArray[np.float64]
Quantity = Literal["epsilon", "delta", "log_delta", "true_positive_rate"]
# Which two data sets an answer compares: one example zeroed out, added or removed, or replaced by another.
Adjacency = Literal["zero-out", "add-or-remove", "replace-one"]
ZERO_OUT: Adjacency = "zero-out"


@dataclass(frozen=True, eq=False)
class Bound:
    """An answer of the accountant: lower ≤ truth ≤ upper, and a best `value` in between.

    The numbers are floats if the question was one number, and arrays of the question's shape otherwise.

    Attributes:
        quantity: what the numbers are: "epsilon", "delta", "log_delta" (natural logarithm) or "true_positive_rate".
        lower: what the truth is at least. Its numerical error is included.
        value: the best single number; the upper one where no better is known.
        upper: what the truth is at most, its numerical error included; ∞ where no upper bound is known. This is the
            number to report.
        kind: what the answer is: a "closed form", "exact", a "bracket" (composed by polygons and FFT), "sampled",
            "bounds" (lower and upper differ by more than 0.5 % of ε, or of log δ: no more is known than the two) or
            an "upper bound", or "proved" (ball arithmetic: `certify`).
            The kind of an array is that of its weakest point.
        method: how they were obtained, in words for a reader, such as "exact; bounds at some points" of an array.
            Programs ask for `kind`.
        confidence: 1.0 unless a Monte Carlo method was used: the probability that the interval holds.
        penalty: the part of δ lost to truncating batches, already included. Of a δ it is the upper bound minus the
            one without truncation; of an ε, the part of the δ asked for that truncation takes.
        directions: the same for "remove" (the example is there or zeroed out) and "add" (the reverse); the bound
            itself is the larger of the two.
        mechanism: what was asked about, as of `Mechanism.to_dict`.
        adjacency: which data sets are compared: "zero-out" unless another was asked for.

    Two bounds are equal if all their numbers and facts are.

    Example:
        >>> from ballsbins import BallsAndBins, Mechanism
        >>> bound = Mechanism(BallsAndBins(steps=1000), noise_multiplier=0.35).epsilon(delta=1e-6)
        >>> bound.kind, round(bound.upper, 6)
        ('exact', 10.168696)
        >>> bound.lower <= bound.value <= bound.upper
        True
    """

    quantity: Quantity
    lower: Number
    value: Number
    upper: Number
    kind: Kind
    method: str
    confidence: float = 1.0
    penalty: Number = 0.0
    directions: Mapping[str, Bound] = field(default_factory=lambda: MappingProxyType({}))
    mechanism: Mapping[str, Any] | None = None
    adjacency: Adjacency = ZERO_OUT

    def __eq__(self, other: object) -> bool:
        """Whether the other bound has the same numbers, shapes and facts."""
        if not isinstance(other, Bound):
            return NotImplemented
        return np.shape(self.upper) == np.shape(other.upper) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        """The same for equal bounds."""
        return hash((self.quantity, self.kind, str(_plain(self.lower)), str(_plain(self.upper))))

    @property
    def error(self) -> Number:
        """Half the distance of the two bounds."""
        with np.errstate(invalid="ignore"):
            return 0.5 * (self.upper - self.lower)

    def to_dict(self) -> dict[str, Any]:
        """The answer as plain data for JSON, the same for the same question on every run.

        Returns:
            The fields as floats (nested lists of them for arrays) and texts; infinities as "inf", which JSON lacks.
        """
        plain: dict[str, Any] = {
            "quantity": self.quantity,
            "lower": _plain(self.lower),
            "value": _plain(self.value),
            "upper": _plain(self.upper),
            "kind": self.kind,
            "method": self.method,
            "confidence": self.confidence,
        }
        if np.any(np.asarray(self.penalty) > 0.0):
            plain["penalty"] = _plain(self.penalty)
        if self.directions:
            plain["directions"] = {name: part.to_dict() for name, part in self.directions.items()}
        if self.adjacency != ZERO_OUT:
            plain["adjacency"] = self.adjacency
        if self.mechanism is not None:
            plain["mechanism"] = dict(self.mechanism)
        return plain

    def __repr__(self) -> str:
        """Show the interval and the method."""
        name = self.quantity
        confidence = "" if self.confidence == 1.0 else f", confidence={self.confidence:g}"
        return (
            f"Bound({name}: {_show(self.lower)} ≤ {_show(self.value)} ≤ {_show(self.upper)}, "
            f"method={self.method!r}{confidence})"
        )


class Directions(Mapping[str, Bound]):
    """The bound in each direction, computed when it is asked for the first time."""

    def __init__(self, parts: Mapping[str, Callable[[], Bound]]) -> None:
        """Give for every direction how its bound is computed."""
        self._parts, self._known = dict(parts), dict[str, Bound]()

    def __getitem__(self, name: str) -> Bound:
        if name not in self._known:
            self._known[name] = self._parts[name]()
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def __repr__(self) -> str:
        """As that of a dictionary."""
        return repr(dict(self))


def _plain(number: Number) -> Any:
    """A float, or nested lists of floats; infinities as strings, because JSON has none."""
    if np.ndim(number) > 0:
        return [_plain(float(part)) for part in np.asarray(number).ravel()]
    value = float(number)
    return value if np.isfinite(value) else str(value)


def _show(number: Number) -> str:
    return (
        f"{float(number):.10g}" if np.ndim(number) == 0 else np.array2string(np.asarray(number), precision=6)
    )
