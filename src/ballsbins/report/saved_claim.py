"""A claimed ε read back from JSON: all that a Bound needs, nothing more, and in order."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, get_args

from ballsbins import _check
from ballsbins.accounting.curve import Kind
from ballsbins.bound import Bound
from ballsbins.errors import InvalidInputError

_NUMBERS = ("lower", "value", "upper")
_WANTED = {"quantity", *_NUMBERS, "kind", "method", "confidence"}
_OPTIONAL = {"penalty", "directions"}


def claim_from_dict(saved: Any, *, part: str = "claim") -> Bound:
    """The bound on ε that `Bound.to_dict` wrote."""
    if not isinstance(saved, Mapping):
        advice = "Write it as Bound.to_dict does."
        raise InvalidInputError(f"the card's {part}", saved, "a JSON object", advice)
    missing, unknown = sorted(_WANTED - set(saved)), sorted(map(str, set(saved) - _WANTED - _OPTIONAL))
    for kind, names in (("missing", missing), ("unknown", unknown)):
        if names:
            advice = "Nothing is guessed: a claim has the fields that Bound.to_dict writes."
            raise InvalidInputError(f"the set of {kind} fields of the {part}", names, "empty", advice)
    if saved["quantity"] != "epsilon":
        advice = "A card claims an ε at its δ."
        raise InvalidInputError(f"the quantity of the {part}", saved["quantity"], '"epsilon"', advice)
    if saved["kind"] not in get_args(Kind):
        advice = "It says what the answer is."
        bound = f"one of {', '.join(get_args(Kind))}"
        raise InvalidInputError(f"the kind of the {part}", saved["kind"], bound, advice)
    if not is_line(saved["method"]):
        advice = "It says how the number was obtained."
        raise InvalidInputError(f"the method of the {part}", saved["method"], "one line of text", advice)
    lower, value, upper = (_number(f"{name} of the {part}", saved[name]) for name in _NUMBERS)
    if not lower <= value <= upper:
        advice = "A bound is lower ≤ value ≤ upper; the card was edited or damaged."
        raise InvalidInputError(
            f"lower, value, upper of the {part}", [lower, value, upper], "in increasing order", advice
        )
    confidence = _check.real(
        f"confidence of the {part}",
        saved["confidence"],
        0.0,
        1.0,
        open_left=True,
        advice="It is the probability that the bound holds: 1 unless it is from Monte Carlo.",
    )
    penalty = _check.real(
        f"penalty of the {part}",
        saved.get("penalty", 0.0),
        0.0,
        1.0,
        advice="It is the part of δ that truncation costs.",
    )
    directions = saved.get("directions", {})
    if not isinstance(directions, Mapping) or not set(directions) <= {"remove", "add"}:
        advice = "They are remove and add."
        raise InvalidInputError(f"the directions of the {part}", directions, "a JSON object", advice)
    parts = {name: claim_from_dict(given, part=f"{part} ({name})") for name, given in directions.items()}
    return Bound(
        "epsilon",
        lower,
        value,
        upper,
        saved["kind"],
        saved["method"],
        confidence,
        penalty,
        directions=MappingProxyType(parts),
    )


def is_line(text: Any) -> bool:
    """Whether it is text that may be shown as it is: it can neither begin a paragraph nor command a terminal."""
    return isinstance(text, str) and text.isprintable()


def _number(name: str, value: Any) -> float:
    if value == "inf":  # how Bound.to_dict writes it, because JSON has no infinity
        return float("inf")
    return _check.real(name, value, 0.0, advice="Was the card edited or damaged?")
