"""Checks of single values and of saved fields, used once at every construction."""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Mapping
from typing import Any

from ballsbins.errors import InvalidInputError


def mapping(name: str, value: Any, *, advice: str) -> Mapping[str, Any]:
    """Return `value`, which must have fields by name."""
    if not isinstance(value, Mapping):
        raise InvalidInputError(name, value, "an object with fields by name", advice)
    return value


def fields(
    what: str,
    saved: Mapping[str, Any],
    wanted: Collection[str],
    *,
    advice: str = "Nothing is guessed: add what is missing and remove what is unknown.",
) -> dict[str, Any]:
    """Return the fields of a saved object, which must be exactly those that are wanted."""
    if set(saved) != set(wanted):
        found = sorted(map(str, saved))
        raise InvalidInputError(f"the set of fields of {what}", found, f"{sorted(wanted)}", advice)
    return dict(saved)


def delta(value: Any, *, advice: str = "Usually below 1 / number of examples.") -> float:
    """Return `value` as a δ: a probability strictly between 0 and 1."""
    return real("delta", value, 0.0, 1.0, open_left=True, open_right=True, advice=advice)


def integer(name: str, value: Any, minimum: int, maximum: int | None = None, *, advice: str) -> int:
    """Return `value` as a Python int within [minimum, maximum]; a float or bool is refused, even 3.0."""
    bound = f"an integer of at least {minimum:,}"
    if maximum is not None:
        bound = f"an integer from {minimum:,} to {maximum:,}"
    try:
        number = operator.index(value)
    except TypeError:  # floats, text, arrays of several numbers, and NumPy's own bool
        raise InvalidInputError(name, value, bound, advice) from None
    if isinstance(value, bool):
        raise InvalidInputError(name, value, bound, advice)
    if number < minimum or (maximum is not None and number > maximum):
        raise InvalidInputError(name, number, bound, advice)
    return number


def real(
    name: str,
    value: Any,
    minimum: float,
    maximum: float = math.inf,
    *,
    advice: str,
    open_left: bool = False,
    open_right: bool = False,
) -> float:
    """Return `value` as a float in the stated interval; NaN, infinity, text and bool are refused."""
    left, right = "(" if open_left else "[", ")" if open_right or math.isinf(maximum) else "]"
    bound = f"a number in {left}{minimum:g}, {maximum:g}{right}"
    if isinstance(value, (bool, str, bytes)) or not hasattr(value, "__float__"):
        raise InvalidInputError(name, value, bound, advice)
    try:
        number = float(value)
    except (OverflowError, TypeError, ValueError):  # 10**400, or an array of several numbers
        raise InvalidInputError(name, value, bound, advice) from None
    inside = (number > minimum if open_left else number >= minimum) and (
        number < maximum if open_right else number <= maximum
    )
    if not math.isfinite(number) or not inside:
        raise InvalidInputError(name, number, bound, advice)
    return number
