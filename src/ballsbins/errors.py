"""Errors of this library. Each message names the value, the bound it violates, and what to do next."""

from __future__ import annotations

from typing import Any


class BallsBinsError(Exception):
    """Base class of all errors that this library raises on purpose.

    Example:
        >>> from ballsbins import BallsAndBins
        >>> try:
        ...     BallsAndBins(steps=0)
        ... except BallsBinsError as error:
        ...     print(type(error).__name__)
        InvalidInputError
    """


def _shown(value: Any) -> str:
    """Show a value in a readable length; Python refuses to show integers of more than 4,300 digits."""
    try:
        text = repr(value)
    except ValueError:
        return f"an integer of {value.bit_length():,} bits"
    return text if len(text) <= 300 else f"{text[:200]} … ({len(text):,} characters)"


class InvalidInputError(BallsBinsError, ValueError):
    """A value is outside its allowed range.

    Attributes:
        name: the name of the argument, option or field.
        value: what was given.
        bound: what it must be, in words that follow "must be".
        advice: what to do next, as a sentence.

    Example:
        >>> from ballsbins import BallsAndBins
        >>> BallsAndBins(steps=0)
        Traceback (most recent call last):
        ...
        ballsbins.errors.InvalidInputError: steps is 0, but must be an integer from 1 to 1,000,000,000,000. ...
    """

    def __init__(self, name: str, value: Any, bound: str, advice: str) -> None:
        """State that `name` is `value` but must satisfy `bound`; `advice` says what to do."""
        self.name, self.value, self.bound, self.advice = name, value, bound, advice
        missing = value is None and bound.startswith("given")
        flag = value is True and name.startswith("--")  # an option without a value: it is there or not
        super().__init__(
            f"{name}{'' if missing or flag else f' is {_shown(value)}, but'} must be {bound}. {advice}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Support pickling, so that an error raised in a worker process arrives complete."""
        return type(self), (self.name, self.value, self.bound, self.advice)


class UnreachableTargetError(BallsBinsError, ValueError):
    """No value of the free parameter meets the stated target.

    Example:
        >>> from ballsbins import BallsAndBins, most_epochs
        >>> most_epochs(BallsAndBins(1000), noise_multiplier=0.3, epsilon=0.1, delta=1e-6)
        Traceback (most recent call last):
        ...
        ballsbins.errors.UnreachableTargetError: not even one epoch at noise_multiplier=0.3 has epsilon <= 0.1 ...
    """


class AccuracyError(BallsBinsError, ArithmeticError):
    """The requested accuracy cannot be reached in double precision.

    Example:
        >>> issubclass(AccuracyError, ArithmeticError)
        True
    """


class SecretError(BallsBinsError):
    """A key is missing, unsafe to use, or the wrong one. The message never shows the key.

    Example:
        >>> from ballsbins import Key
        >>> Key(b"too short")
        Traceback (most recent call last):
        ...
        ballsbins.errors.SecretError: This key has 9 bytes, but must have exactly 32. ...
    """


class DataError(BallsBinsError):
    """A file cannot be read or written, or its content is not as expected. The message names the file and next step.

    Example:
        >>> from ballsbins.batch_files import BatchFiles
        >>> BatchFiles.open("nowhere")
        Traceback (most recent call last):
        ...
        ballsbins.errors.DataError: 'nowhere' cannot be read: it does not exist. ...
    """


class RunError(BallsBinsError, RuntimeError):
    """A training run deviates from the Mechanism that accounts for it, or cannot continue.

    Example:
        >>> issubclass(RunError, RuntimeError)
        True
    """


class MissingExtraError(BallsBinsError, ImportError):
    """An optional part is not installed.

    Attributes:
        feature: what was asked for.
        extra: the name of the extra that installs it.

    Example:
        >>> print(MissingExtraError("Drawing pictures", "plots"))
        Drawing pictures needs an optional part. Install it with: pip install 'ballsbins[plots]'
    """

    def __init__(self, feature: str, extra: str) -> None:
        """State that `feature` needs the optional dependencies called `extra`."""
        self.feature, self.extra = feature, extra
        super().__init__(
            f"{feature} needs an optional part. Install it with: pip install 'ballsbins[{extra}]'"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Support pickling, so that the error can pass between processes."""
        return type(self), (self.feature, self.extra)
