"""Which loops are compiled, and how they are shared out among threads."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch

_SMALL = 1 << 17  # values below which a second thread costs more than it does


def compiled(values: torch.Tensor) -> bool:
    """Whether the loops of `rounding` can be used: values are in main memory, and numba is installed."""
    return values.device.type == "cpu" and _has_numba()


@cache
def _has_numba() -> bool:
    return find_spec("numba") is not None


def threads_for(count: int) -> int:
    """The number of threads for a loop over so many values."""
    return torch.get_num_threads() if count > _SMALL else 1


def in_threads(job: Callable[[int], Any], begins: range) -> None:
    """Do the job for every begin, at the same time if there are several."""
    if len(begins) <= 1:
        for begin in begins:
            job(begin)
    else:
        for _ in _pool(os.getpid()).map(job, begins):
            pass


@cache
def _pool(process: int) -> ThreadPoolExecutor:
    """The threads of this process; one that was forked from it makes its own."""
    return ThreadPoolExecutor(thread_name_prefix="sums")
