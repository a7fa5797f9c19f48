"""Which order statistics to sample: the paper's lists by name, and lists for a stated looseness.

Appendix B has two lists (590 orders each), appendix C four (739, 589, 609 and 549; for T = 1563 the paper says 589,
but the list it prints has 549).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from ballsbins import _check
from ballsbins.accounting.curve import Array
from ballsbins.errors import InvalidInputError

Orders = NDArray[np.int64]

_OPEN = 1e-300, 1.0 - 1e-16  # range of probabilities that have a finite quantile
_LOOSE = 1e-2  # default for how far the two bounds may be apart
_CLOSER = 0.7  # factor by which the distance of orders shrinks until they are close enough


def _list(*runs: tuple[int, int, int]) -> tuple[int, ...]:
    return tuple(k for first, last, step in runs for k in range(first, last + 1, step))


PAPER: dict[str, tuple[int, ...]] = {
    "B, T=100000": _list((1, 400, 1), (410, 1000, 10), (1100, 10_000, 100), (11_000, 50_000, 1000)),
    "B, T=1000000": _list(
        (1, 300, 1), (310, 1000, 10), (1100, 10_000, 100), (11_000, 100_000, 1000), (110_000, 500_000, 10_000)
    ),
    "C, T=36133": _list((1, 500, 1), (510, 1000, 10), (1100, 19_900, 100)),
    "C, T=4517": _list((1, 500, 1), (510, 1000, 10), (1050, 2950, 50)),
    "C, T=12497": _list((1, 500, 1), (510, 1000, 10), (1100, 6900, 100)),
    "C, T=1563": _list((1, 500, 1), (510, 990, 10)),
}


def checked(orders: Sequence[int] | str, draws: int) -> Orders:
    """Return a list of orders, given by name or as numbers: increasing, from 1, at most `draws` (the paper's R)."""
    if isinstance(orders, str):
        if orders not in PAPER:
            raise InvalidInputError("orders", orders, f"one of {sorted(PAPER)}", "Or give a list of orders.")
        orders = PAPER[orders]
    k = np.asarray(orders)
    advice = 'Give increasing integers such as [1, 2, 3, 5, 10], or "auto".'
    if k.ndim != 1 or k.size == 0 or not np.issubdtype(k.dtype, np.integer):
        raise InvalidInputError("orders", orders, "a list of integers", advice)
    if k[0] != 1:
        raise InvalidInputError(
            "the first of the orders", int(k[0]), "1, or the sum has no upper bound", advice
        )
    wrong = np.flatnonzero(np.diff(k) <= 0)
    if wrong.size:
        pair = (int(k[wrong[0]]), int(k[wrong[0] + 1]))
        raise InvalidInputError("orders", pair, "increasing", advice)
    if k[-1] > draws:
        raise InvalidInputError(
            "the last of the orders", int(k[-1]), f"at most {draws}, the number of draws", advice
        )
    return k.astype(np.int64)


def spaced(draws: int, ratio: float) -> Orders:
    """Orders 1, 2, 3, … and then each about `ratio` times the one before, up to `draws`."""
    k, found = 1, []
    while k < draws:
        found.append(k)
        k = max(k + 1, math.floor(k * ratio))
    return np.array([*found, draws], dtype=np.int64)


def looseness(orders: Orders, draws: int, sigma: float) -> float:
    """The distance of the two bounds on Σ e^{x/σ²} at the median order statistics, in units of the sum's mean."""
    s = 1.0 / sigma
    x: Array = -ndtri(np.clip((orders - 0.5) / draws, *_OPEN))
    with np.errstate(over="ignore"):
        z = np.minimum(np.exp(s * x - 0.5 * s * s), draws / np.maximum(orders, 1))  # k·y^(k) ≤ the whole sum
    upper = float(z @ np.diff(np.append(orders, draws + 1)))
    lower = float(z @ np.diff(np.append(0, orders)))
    return (upper - lower) / draws


def automatic(draws: int, sigma: float, loose: float = _LOOSE) -> Orders:
    """The coarsest evenly growing list whose `looseness` is at most `loose`."""
    _check.integer("draws", draws, 1, advice="There must be something to order.")
    _check.real("looseness", loose, 0.0, open_left=True, advice="1e-2 is coarse, 1e-4 fine.")
    ratio = 2.0
    while True:
        k = spaced(draws, ratio)
        if k.size == draws or looseness(k, draws, sigma) <= loose:
            return k
        ratio = 1.0 + _CLOSER * (ratio - 1.0)
