"""A pair in which the example takes part only with some probability: ((1−w)·P₀ + w·P, P₀) from (P, P₀).

After t of T steps of an epoch the example's bin has come up with probability w = t/T; if not, nothing was seen of it.
With S the likelihood ratio of (P, P₀), that of the diluted pair is 1 − w + w·S, so with K = e^ε and
K′ = 1 + (K − 1)/w

    E[(1 − w + wS − K)₊] = w·E[(S − K′)₊]        (remove, ε ≥ 0)
    E[(K − 1 + w − wS)₊] = w·E[(K′ − S)₊]        (add: e^ε times this at K = e^{−ε}; 0 if K′ ≤ 0).

Both are increasing functions of the curve of (P, P₀), so bounds on that curve give bounds on this one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ballsbins.accounting.curve import ADD, REMOVE, Array, Curve, Direction, Interval, U

# B16 of docs/derivation.md.
_ROUNDING = 16 * U  # of log K′, of the value, relative to what they are made of
_STRIKE = 8 * U  # of K′ itself, for `add`
_LARGE = 30.0  # ε from which expm1 may grow too large: log K′ comes from ε + log T/t instead


@dataclass(frozen=True)
class Diluted(Curve):
    """`curve`, of which the example takes part with probability `part` / `whole`."""

    curve: Curve
    part: int
    whole: int

    def __post_init__(self) -> None:
        """Be known by what is diluted."""
        for name in ("kind", "method", "confidence"):
            object.__setattr__(self, name, getattr(self.curve, name))

    def at(self, epsilon: Array, direction: Direction) -> Interval:
        """Bounds on log δ(ε), with K′ rounded to the safe side of each."""
        lower, upper = self._remove(epsilon) if direction == REMOVE else self._add(epsilon)
        upper = np.minimum(upper, 0.0)
        return Interval(lower, np.where(np.isfinite(lower), 0.5 * (lower + upper), upper), upper)

    def _remove(self, epsilon: Array) -> tuple[Array, Array]:
        stretch = self.whole / self.part
        near = np.log1p(np.expm1(np.minimum(epsilon, _LARGE)) * stretch)
        far = epsilon + math.log(stretch) + np.log1p((1 / stretch - 1) * np.exp(-np.maximum(epsilon, _LARGE)))
        inner = np.where(epsilon <= _LARGE, near, far)  # log K′, to a few roundings
        error = _ROUNDING * (1 + math.log(stretch))
        lower = self.curve.log_delta(inner * (1 + _ROUNDING), REMOVE).lower - math.log(stretch) - error
        upper = self.curve.log_delta(inner * (1 - _ROUNDING), REMOVE).upper - math.log(stretch) + error
        return lower, upper

    def _add(self, epsilon: Array) -> tuple[Array, Array]:
        stretch = self.whole / self.part
        # K′ = 1 − (1 − e^{−ε})/w = (e^{−ε} − 1 + w)/w: the first has more digits where ε is small, else the second
        near = epsilon < math.log(2.0)
        minus = np.where(near, np.expm1(-epsilon), np.exp(-epsilon)) * stretch
        plus = np.where(near, 1.0, -(self.whole - self.part) / self.part)
        slack = _STRIKE * (np.abs(minus) + np.abs(plus))
        bounds = []
        for sign in (-1.0, 1.0):
            strike = plus + minus + sign * slack
            bound = np.full(epsilon.shape, -np.inf)
            some = strike > 0.0
            if some.any():
                inner = -np.log(strike[some])
                found = self.curve.log_delta(inner, ADD)
                size = 1 + math.log(stretch) + epsilon[some] + np.abs(inner)
                value = (found.lower if sign < 0 else found.upper) + epsilon[some] - inner - math.log(stretch)
                bound[some] = value + sign * _ROUNDING * size
            bounds.append(bound)
        return bounds[0], bounds[1]
