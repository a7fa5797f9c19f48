"""How long a proof may take: a limit on CPU time, which long loops check."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ballsbins.errors import AccuracyError

MINUTES = 10.0  # of CPU time, unless another limit is given

_limit: ContextVar[tuple[float, float] | None] = ContextVar("limit", default=None)  # end, minutes


@contextmanager
def within(minutes: float) -> Iterator[None]:
    """Limit the CPU time of the code inside: `spend` raises an error once the limit is passed."""
    token = _limit.set((time.process_time() + 60 * minutes, minutes))
    try:
        yield
    finally:
        _limit.reset(token)


def spend() -> None:
    """Raise AccuracyError if the time is up."""
    limit = _limit.get()
    if limit is not None and time.process_time() > limit[0]:
        raise AccuracyError(
            f"The proof was not finished within {limit[1]:g} minutes of CPU time. Allow more minutes, or use the "
            "exact accountant, whose error is an estimate."
        )
