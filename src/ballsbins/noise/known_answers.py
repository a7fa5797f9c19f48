"""Known answers of the noise: what must come out on every machine, by whatever executor."""

from __future__ import annotations

import hashlib
from importlib.util import find_spec
from typing import get_args

from ballsbins.noise.draw import Executor, rounded_normals
from ballsbins.samplers.key import Key

_COUNT = 1 << 20
_DIGEST = "a9a52345a6e9efab2cd270f8b4e98f63e58e1cbbfaa997f66a098687f059f974"


def installed() -> list[Executor]:
    """The executors that can be used here."""
    needs = {"numba": "numba", "xla": "jax", "numpy": "numpy"}
    return [name for name in get_args(Executor) if find_spec(needs[name])]


def right(executor: Executor) -> bool:
    """Whether an executor gives the integers that were frozen: a million of them, a few undecided ones included."""
    drawn = rounded_normals(Key.from_seed(2026), ("known answers",), _COUNT, executor=executor)
    return hashlib.sha256(drawn.astype("<i4").tobytes()).hexdigest() == _DIGEST
