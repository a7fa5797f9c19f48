"""Report progress of long work on standard error: one updating line on a terminal, occasional lines elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_FIRST = 1.5  # seconds until the first line
_NEXT = 10.0  # seconds between later lines if standard error is not a terminal


@contextmanager
def telling(line: Callable[[], str]) -> Iterator[None]:
    """While the block runs, show the text of `line` and the seconds elapsed; short work shows nothing."""
    begun, over, terminal = time.monotonic(), threading.Event(), sys.stderr.isatty()
    told = False

    def tell() -> None:
        nonlocal told
        wait = _FIRST
        while not over.wait(wait):
            told = True
            said = f"{line()}, {time.monotonic() - begun:.0f} s"
            sys.stderr.write(f"\r\x1b[2K{said}" if terminal else f"{said}\n")
            sys.stderr.flush()
            wait = 0.5 if terminal else _NEXT

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join()
        if told and terminal:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()


@contextmanager
def stages(what: str, total: int) -> Iterator[Callable[[str], None]]:
    """Show the progress of `what` while the block runs.

    Args:
        what: the name of the work.
        total: the number of stages.

    Yields:
        A function to call at the beginning of each stage, with its name.
    """
    names = list[str]()

    def line() -> str:
        return f"{what}: {max(len(names), 1)} of {total}{f', {names[-1]}' if names else ''}"

    with telling(line):
        yield names.append
