"""Every error names the value, the bound it broke, and the next thing to do."""

from __future__ import annotations

from typing import Any


class BallsBinsError(Exception):
    """Base of all errors that this library raises on purpose.

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
    """A value that is outside of what the quantity may be.

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
        super().__init__(f"{name}{'' if missing else f' is {_shown(value)}, but'} must be {bound}. {advice}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Cross a process boundary whole: a worker's error must arrive as what it is."""
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
    """The accuracy asked for cannot be had in double precision.

    Example:
        >>> issubclass(AccuracyError, ArithmeticError)
        True
    """


class SecretError(BallsBinsError):
    """A key that is missing, unsafe to use, or not the one that is needed. Never shows the key.

    Example:
        >>> from ballsbins import Key
        >>> Key(b"too short")
        Traceback (most recent call last):
        ...
        ballsbins.errors.SecretError: This key has 9 bytes, but must have exactly 32. ...
    """


class DataError(BallsBinsError):
    """Files that cannot be read or written, or that do not hold what they should. Names the file and the next step.

    Example:
        >>> from ballsbins.batch_files import BatchFiles
        >>> BatchFiles.open("nowhere")
        Traceback (most recent call last):
        ...
        ballsbins.errors.DataError: 'nowhere' cannot be read: it does not exist. ...
    """


class RunError(BallsBinsError, RuntimeError):
    """A training run that departs from the Mechanism that accounts for it, or that cannot go on.

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
        """Cross a process boundary whole."""
        return type(self), (self.feature, self.extra)
