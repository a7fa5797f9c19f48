"""Splitting off jumps: where the out-of-the-money value v(k) of a run has a body near 0 and a bump far right of it.

With many steps or little noise the bump is that of single large jumps, and no tilt e^{(c−1)k} isolates the body. So v
may be split by a smooth step χ: M = M_body + J, with J the transform of (1−χ)·v (`moments`, `saddles`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr

from ballsbins.accounting.curve import Array

_INVISIBLE = 42.0  # logs below which a part of a sum does not show
_BEGINS = 8.5  # standard deviations at which Φ is 1 to all digits


@dataclass(frozen=True)
class Split:
    """A smooth step down from 1 to 0 around the loss `at`; at 0, where v has its kink, it is 1 to all digits.

    A jump to more than `until` changes nothing: what happens beyond is in the value v there.
    """

    at: float
    width: float
    until: float = math.inf

    @classmethod
    def at_valley(cls, at: float, until: float, depth: float = 0.0) -> Split:
        """As wide as it may be: what is left of v at 0 must not show beside v at the valley, lower by e^{−depth}."""
        return cls(at, at / math.sqrt(_INVISIBLE + depth), until)

    @classmethod
    def beyond(cls, until: float) -> Split:
        """A step that begins there and leaves nothing beyond some five times as much."""
        return cls(3 * until, until / 3, until)

    def log_body(self, k: Array) -> Array:
        """Log χ(k)."""
        return np.asarray(log_ndtr((self.at - k) * (math.sqrt(2.0) / self.width)))

    def log_jump(self, k: Array) -> Array:
        """Log 1 − χ(k)."""
        return np.asarray(log_ndtr((k - self.at) * (math.sqrt(2.0) / self.width)))

    def log_local_jump(self, k: Array) -> Array:
        """The same, cut off smoothly some way beyond `until`."""
        jump = self.log_jump(k)
        if math.isinf(self.until):
            return jump
        return np.asarray(jump + log_ndtr((self.until - k) * (math.sqrt(2.0) / self.width) + _BEGINS))


def lowest_before_bump(loss: Array, tilted: Array) -> float | None:
    """Where the logarithm `tilted` is lowest between its first peak and a later rise by more than 1, if any."""
    falling = np.flatnonzero(np.diff(tilted) < 0.0)
    if not falling.size:
        return None
    loss, tilted = loss[falling[0] :], tilted[falling[0] :]
    rise = tilted - np.minimum.accumulate(tilted)
    if not (rise > 1.0).any():
        return None
    return float(loss[int(np.argmin(tilted[: int(np.argmax(rise)) + 1]))])
