"""Check single values and saved fields; every object runs these checks once, at construction."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ballsbins.errors import InvalidInputError


def one_of(name: str, value: Any, known: Collection[str], *, advice: str) -> str:
    """Return `value`, which must be one of the strings in `known`."""
    if not isinstance(value, str) or value not in known:
        raise InvalidInputError(name, value, f"one of {', '.join(known)}", advice)
    return value


def instance(name: str, value: Any, kind: type, *, bound: str, advice: str) -> None:
    """Raise an error unless `value` is of type `kind`, which `bound` describes in words."""
    if not isinstance(value, kind):
        raise InvalidInputError(name, value, bound, advice)


def reals(
    name: str, value: Any, bound: str, allowed: Callable[[NDArray[np.float64]], Any], *, advice: str
) -> NDArray[np.float64]:
    """Return a number, or an array of any shape, as floats; refuse text, bools and values that are not allowed."""
    try:
        given = np.asarray(value)
        whole = given.dtype == object and all(type(part) is int for part in given.ravel())
        if given.dtype.kind not in "iuf" and not whole:
            raise TypeError
        found = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):  # ragged lists, text, complex numbers, 10**400
        raise InvalidInputError(name, value, bound, advice) from None
    wrong = found[~(np.isfinite(found) & np.asarray(allowed(found)))]
    if wrong.size:
        raise InvalidInputError(name, float(wrong.flat[0]), bound, advice)
    return found


def mapping(name: str, value: Any, *, advice: str) -> Mapping[str, Any]:
    """Return `value`, which must be a mapping from names to fields."""
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
    """Return the fields of a saved object, which must be exactly those in `wanted`."""
    if set(saved) != set(wanted):
        found = sorted(map(str, saved))
        raise InvalidInputError(f"the set of fields of {what}", found, f"{sorted(wanted)}", advice)
    return dict(saved)


def delta(value: Any, *, advice: str = "Usually below 1 / number of examples.") -> float:
    """Return `value` as a δ: a probability strictly between 0 and 1."""
    return real("delta", value, 0.0, 1.0, open_left=True, open_right=True, advice=advice)


def integer(name: str, value: Any, minimum: int, maximum: int | None = None, *, advice: str) -> int:
    """Return `value` as a Python int within [minimum, maximum]; refuse floats (even 3.0) and bools."""
    bound = f"an integer of at least {minimum:,}"
    if maximum is not None:
        bound = f"an integer from {minimum:,} to {maximum:,}"
    if isinstance(value, (bool, np.bool_)):
        raise InvalidInputError(name, value, bound, advice)
    try:
        number = operator.index(value)
    except TypeError:  # floats, text, arrays of several numbers
        raise InvalidInputError(name, value, bound, advice) from None
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
    """Return `value` as a float in the stated interval; refuse NaN, infinity, text and bools."""
    left, right = "(" if open_left else "[", ")" if open_right or math.isinf(maximum) else "]"
    bound = f"a number in {left}{minimum:g}, {maximum:g}{right}"
    if isinstance(value, (bool, np.bool_, str, bytes)) or not hasattr(value, "__float__"):
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
