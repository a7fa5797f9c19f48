"""Known answers of the noise: what must come out on every machine, by whatever executor."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.util import find_spec
from typing import get_args

from ballsbins.errors import RunError
from ballsbins.noise.draw import Executor, default_executor, rounded_normals
from ballsbins.samplers.key import Key

_COUNT = 1 << 20
_DIGEST = "a9a52345a6e9efab2cd270f8b4e98f63e58e1cbbfaa997f66a098687f059f974"


def installed() -> list[Executor]:
    """The executors that can be used here."""
    needs = {"numba": "numba", "xla": "jax", "numpy": "numpy"}
    return [name for name in get_args(Executor) if find_spec(needs[name])]


@cache
def require_right_noise() -> None:
    """Raise unless the executor that draws the noise gives the frozen integers; tested once in a process."""
    executor = default_executor()
    if not right(executor):
        raise RunError(
            f"The noise that {executor} computes here is wrong: it does not give the known integers. Something "
            "changes the arithmetic of float64, such as fast-math flags of the compiler (XLA_FLAGS): take them away. "
            "ballsbins check-machine tests all executors."
        )


def right(executor: Executor) -> bool:
    """Whether an executor gives the integers that were frozen: a million of them, a few undecided ones included."""
    drawn = rounded_normals(Key.from_seed(2026), ("known answers",), _COUNT, executor=executor)
    return hashlib.sha256(drawn.astype("<i4").tobytes()).hexdigest() == _DIGEST
