"""How far a long piece of work is, on standard error: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_FIRST = 1.5  # seconds until the first line
_NEXT = 10.0  # and between those that follow


@contextmanager
def stages(what: str, total: int) -> Iterator[Callable[[str], None]]:
    """Tell people how far `what` is while the block runs; short work says nothing.

    Args:
        what: the name of the work.
        total: how many stages it has.

    Yields:
        A function to call at the beginning of each stage, with its name.
    """
    begun, names = time.monotonic(), list[str]()

    def line() -> str:
        name = f", {names[-1]}" if names else ""
        return f"{what}: {max(len(names), 1)} of {total}{name}, {time.monotonic() - begun:.0f} s"

    over = threading.Event()
    terminal = sys.stderr.isatty()

    def tell() -> None:
        wait = _FIRST
        while not over.wait(wait):
            sys.stderr.write(f"\r\x1b[2K{line()}" if terminal else f"{line()}\n")
            sys.stderr.flush()
            wait = 0.5 if terminal else _NEXT

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield names.append
    finally:
        over.set()
        teller.join()
        if terminal:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()
