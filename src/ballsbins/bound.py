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
# How the two compared data sets differ: one example is zeroed out, added or removed, or replaced by another.
Adjacency = Literal["zero-out", "add-or-remove", "replace-one"]
ZERO_OUT: Adjacency = "zero-out"


@dataclass(frozen=True, eq=False)
class Bound:
    """An answer of the accountant: lower ≤ truth ≤ upper, and a best `value` in between.

    The numbers are floats if the question was one number, and arrays of the question's shape otherwise.

    Attributes:
        quantity: what the numbers are: "epsilon", "delta", "log_delta" (natural logarithm) or "true_positive_rate".
        lower: a lower bound on the truth, with numerical error included.
        value: the best single number; equal to the upper bound where nothing better is known.
        upper: an upper bound on the truth, with numerical error included; ∞ where no upper bound is known. This is
            the number to report.
        kind: what kind of answer this is: a "closed form", "exact", a "bracket" (composed by polygons and FFT),
            "sampled", "bounds" (lower and upper differ by more than 0.5 % of ε, or of log δ, and nothing better is
            known), an "upper bound", or "proved" (ball arithmetic: `certify`).
            The kind of an array is that of its weakest point.
        method: how the numbers were obtained, in words for people, such as "exact; bounds at some points" for an
            array. Programs should use `kind`.
        confidence: 1.0 unless a Monte Carlo method was used: the probability that the interval holds.
        penalty: the part of δ lost to truncating batches, already included. For a δ, it is the upper bound minus the
            upper bound without truncation. For an ε, it is the part of the given δ that truncation uses up.
        directions: the same for "remove" (the example is there or zeroed out) and "add" (the reverse); the bound
            itself is the larger of the two.
        mechanism: the run in question, as written by `Mechanism.to_dict`.
        adjacency: which data sets are compared: "zero-out" unless another was asked for.

    Two bounds are equal if all their fields are equal.

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
        """Whether the other bound has the same numbers, shapes and other fields."""
        if not isinstance(other, Bound):
            return NotImplemented
        return np.shape(self.upper) == np.shape(other.upper) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        """Return a hash that is the same for equal bounds."""
        return hash((self.quantity, self.kind, str(_plain(self.lower)), str(_plain(self.upper))))

    @property
    def error(self) -> Number:
        """Half the distance between the two bounds."""
        with np.errstate(invalid="ignore"):
            return 0.5 * (self.upper - self.lower)

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as plain data for JSON; the same question gives the same data every time.

        Returns:
            The fields as floats (nested lists of floats for arrays) and strings. Infinities become "inf", because
            JSON has no infinity.
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

    def __float__(self) -> float:
        """Refuse: which end is meant depends on the use, and the lower one must not be reported by accident."""
        raise TypeError(f"A Bound has two ends: take .upper to report {self.quantity}, or .lower.")

    def __format__(self, spec: str) -> str:
        """Show the bound as `str` does; a number format belongs to one of its ends."""
        return f"{float(self):{spec}}" if spec else str(self)


class Directions(Mapping[str, Bound]):
    """The bound in each direction, computed on first access."""

    def __init__(self, parts: Mapping[str, Callable[[], Bound]]) -> None:
        """Take, for each direction, a function that computes its bound."""
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
        """Show the bounds as a dictionary would."""
        return repr(dict(self))


def _plain(number: Number) -> Any:
    """Convert to a float, or to nested lists of floats; infinities become strings, because JSON has none."""
    if np.ndim(number) > 0:
        return [_plain(part) for part in np.asarray(number)]
    value = float(number)
    return value if np.isfinite(value) else str(value)


def _show(number: Number) -> str:
    return (
        f"{float(number):.10g}" if np.ndim(number) == 0 else np.array2string(np.asarray(number), precision=6)
    )
