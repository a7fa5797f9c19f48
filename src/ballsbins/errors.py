"""Every error names the value, the bound it broke, and the next thing to do."""

from __future__ import annotations

from typing import Any


class BallsBinsError(Exception):
    """Base of all errors that this library raises on purpose."""


def _shown(value: Any) -> str:
    """What somebody can read: Python shows no integer of over 4,300 digits, and nobody wants 300 of them."""
    try:
        text = repr(value)
    except ValueError:
        return f"an integer of {value.bit_length():,} bits"
    return text if len(text) <= 300 else f"{text[:200]} … ({len(text):,} characters)"


class InvalidInputError(BallsBinsError, ValueError):
    """A value that is outside of what the quantity may be."""

    def __init__(self, name: str, value: Any, bound: str, advice: str) -> None:
        """State that `name` is `value` but must satisfy `bound`; `advice` says what to do."""
        self.name, self.value, self.bound, self.advice = name, value, bound, advice
        super().__init__(f"{name} is {_shown(value)}, but must be {bound}. {advice}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Cross a process boundary whole: a worker's error must arrive as what it is."""
        return type(self), (self.name, self.value, self.bound, self.advice)


class UnreachableTargetError(BallsBinsError, ValueError):
    """No value of the free parameter meets the stated target."""


class AccuracyError(BallsBinsError, ArithmeticError):
    """The accuracy asked for cannot be had in double precision."""


class SecretError(BallsBinsError):
    """A key that is missing, unsafe to use, or not the one that is needed. Never shows the key."""


class DataError(BallsBinsError):
    """Files that cannot be read or written, or do not hold what they should: names the file and the next step."""


class RunError(BallsBinsError, RuntimeError):
    """A training run that departs from the Mechanism that accounts for it, or that cannot go on."""


class MissingExtraError(BallsBinsError, ImportError):
    """An optional part is not installed."""

    def __init__(self, feature: str, extra: str) -> None:
        """State that `feature` needs the optional dependencies called `extra`."""
        self.feature, self.extra = feature, extra
        super().__init__(
            f"{feature} needs an optional part. Install it with: pip install 'ballsbins[{extra}]'"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Cross a process boundary whole."""
        return type(self), (self.feature, self.extra)
