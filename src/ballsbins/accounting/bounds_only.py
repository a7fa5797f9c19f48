"""Curves that are known only by lower and upper bounds, and exact curves that may fail and then use bounds.

Each bound holds by itself, so each is searched by itself (`search.epsilon_at`). The lower bounds are expensive, most
of all far above their own root, where only the upper bound matters.

**Shuffling** is such a case.

Lower bound, the larger of two:
- the pair that x ↦ max_t x_t induces on the pair of proposition S-dominated (means 2 and 1), i.e. the paper's
  S_C bound with C optimised; several epochs by composing that pair, rounded so that it stays dominated
  (`lower_bound`, `composition`);
- δ_B, which is no larger by proposition B-vs-S-and-D, over as many epochs.
Upper bound: that of Deterministic, which covers any fixed assignment of examples to batches (the same proposition).

The two may be far apart. `value` is the upper bound: with shuffled batches, nothing smaller is guaranteed.

**An unfinished epoch** dilutes a pair (P, P₀) to ((1−w)·P₀ + w·P, P₀): after t of T steps, the example's bin has come
up with probability w = t/T; if it has not, the output shows nothing of the example. If S is the likelihood ratio of
(P, P₀), that of the diluted pair is 1 − w + w·S, so with K = e^ε and K′ = 1 + (K − 1)/w

    E[(1 − w + wS − K)₊] = w·E[(S − K′)₊]        (remove, ε ≥ 0)
    E[(K − 1 + w − wS)₊] = w·E[(K′ − S)₊]        (add: e^ε times this at K = e^{−ε}; 0 if K′ ≤ 0).

Both are increasing functions of the curve of (P, P₀), so bounds on that curve give bounds on this one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ballsbins.accounting.curve import ADD, REMOVE, Array, Curve, Direction, Interval, U
from ballsbins.accounting.epochs.composition import Accuracy, ComposedCurve
from ballsbins.accounting.gaussian import GaussianCurve
from ballsbins.accounting.one_epoch.lower_bound import MaximumCurve
from ballsbins.errors import AccuracyError

# B16 of docs/derivation.md.
_ROUNDING = 16 * U  # rounding of log K′ and of the value, relative to their terms
_STRIKE = 8 * U  # rounding of K′ itself, for `add`
_LARGE = 30.0  # from this ε on, expm1 may grow too large: log K′ comes from ε + log T/t instead
_SPLITS = 3  # how often a vector is halved to separate points with an answer from those without
_LEAST_COMPOSED = 0.05  # with less noise, a single epoch already gives everything away
_STEP_BACK = 0.3  # if a lower bound fails, it is not tried again beyond this fraction of the median ε


def below_epochs(one: Curve, sigma: float, epochs: int, accuracy: Accuracy | None = None) -> list[Curve]:
    """Return lower bounds for several epochs from one for a single epoch: the curve itself, and it composed."""
    if epochs == 1 or sigma < _LEAST_COMPOSED:
        return [one]
    return [one, ComposedCurve([(one, epochs)], accuracy)]


class Between(Curve):
    """Bounds from the largest of several lower curves to one upper curve; the value is the upper bound."""

    kind = "bounds"

    def __init__(self, below: Sequence[Curve], above: Curve, method: str = "bounds") -> None:
        """Take the curves; where a lower curve fails, it is ignored."""
        self._below, self._above, self.method = [_AsFarAsKnown(curve) for curve in below], above, method
        self.confidence = min(curve.confidence for curve in (*below, above))

    @property
    def above(self) -> Curve:
        """The upper curve."""
        return self._above

    @property
    def below(self) -> Sequence[Curve]:
        """The lower curves."""
        return self._below

    def at(self, epsilon: Array, direction: Direction) -> Interval:
        """Bounds on log δ(ε)."""
        upper = self._above.at(epsilon, direction).upper
        lower = np.max([curve.at(epsilon, direction).lower for curve in self._below], axis=0)
        return Interval(np.minimum(lower, upper), upper, upper)


class OrBounds(Curve):
    """A curve that is capped by a cheap upper bound, and replaced by bounds where it raises `AccuracyError`."""

    def __init__(self, curve: Curve, bounds: Between, deep: float = -np.inf) -> None:
        """Take a curve and closed-form `bounds` on the same δ. Where they prove log δ < `deep`, they replace it."""
        self.curve, self.bounds, self._deep = curve, bounds, deep
        self.kind, self.method, self.confidence = curve.kind, curve.method, curve.confidence
        self.fallback = curve.fallback

    @property
    def scale(self) -> float:
        """That of the curve."""
        return self.curve.scale

    @property
    def parts(self) -> list[tuple[Curve, int]]:
        """The parts of the curve, if it has several; a single part keeps its bounds."""
        parts = self.curve.parts
        return [(self, 1)] if parts == [(self.curve, 1)] else parts

    def sketch(self, epsilon: Array, direction: Direction) -> Array | None:
        """That of the curve."""
        return self.curve.sketch(epsilon, direction)

    def rough_epsilon(self, log_deltas: Array, direction: Direction) -> Array | None:
        """That of the curve."""
        return self.curve.rough_epsilon(log_deltas, direction)

    def stretch(self, epsilon: float, direction: Direction) -> tuple[float, float]:
        """That of the curve."""
        return self.curve.stretch(epsilon, direction)

    def log_upper(self, epsilon: Array, direction: Direction, enough: Array | None = None) -> Array | None:
        """That of the curve."""
        return self.curve.log_upper(epsilon, direction, enough)

    def at(self, epsilon: Array, direction: Direction) -> Interval:
        """Return the curve's bounds on log δ(ε) where it has any, and the fallback bounds elsewhere."""
        above = self.bounds.above.at(epsilon, direction).upper
        rows = np.full((3, epsilon.size), np.nan)
        order = np.argsort(epsilon, kind="stable")
        self._answer(order[above[order] >= self._deep], epsilon, direction, rows, _SPLITS)
        missing = np.isnan(rows[2])
        if missing.any():
            rows[:, missing] = self.bounds.at(epsilon[missing], direction).rows
        return Interval(*np.minimum(rows, above))

    def _answer(
        self, at: NDArray[np.intp], epsilon: Array, direction: Direction, rows: Array, splits: int
    ) -> None:
        """Fill in the curve's answers; if it fails for all points together, try them in parts."""
        if not at.size:
            return
        try:
            found = self.curve.at(epsilon[at], direction)
        except AccuracyError:
            if splits > 0 and at.size > 1:
                for half in np.array_split(at, 2):
                    self._answer(half, epsilon, direction, rows, splits - 1)
        else:
            rows[:, at] = found.rows


class _AsFarAsKnown(Curve):
    """A lower curve that gives only δ ≥ 0 where it fails and beyond, because each attempt takes seconds."""

    def __init__(self, curve: Curve) -> None:
        self._curve = curve
        self._reach: dict[Direction, float] = {}
        self.kind, self.method, self.confidence = curve.kind, curve.method, curve.confidence

    @property
    def scale(self) -> float:
        return self._curve.scale

    def at(self, epsilon: Array, direction: Direction) -> Interval:
        """Return the curve's own bounds; −∞ where it has none, which is valid only as a lower bound."""
        rows = np.full((3, epsilon.size), -np.inf)
        here = np.flatnonzero(epsilon < self._reach.get(direction, np.inf))
        while here.size:
            try:
                rows[:, here] = self._curve.at(epsilon[here], direction).rows
            except AccuracyError:
                self._reach[direction] = _STEP_BACK * float(np.median(epsilon[here]))
                here = here[epsilon[here] < self._reach[direction]]
                continue
            break
        return Interval(*rows)


class ShuffleCurve(Between):
    """Bounds on the privacy curve of `epochs` shuffled epochs, the first `whole` of them with all `steps`.

    `balls_and_bins` is the curve of balls-and-bins with the same noise, steps and epochs.
    """

    def __init__(
        self,
        noise_multiplier: float,
        steps: int,
        epochs: int,
        whole: int,
        balls_and_bins: Curve,
        accuracy: Accuracy | None = None,
    ) -> None:
        """An unfinished last epoch counts for the upper bound and for balls-and-bins, not for S_C."""
        below = [balls_and_bins]
        if whole > 0:
            one = MaximumCurve(noise_multiplier, steps, 2.0, 1.0)
            below += below_epochs(one, noise_multiplier, whole, accuracy)
        super().__init__(below, GaussianCurve(noise_multiplier, epochs))


@dataclass(frozen=True)
class Diluted(Curve):
    """`curve`, in which the example takes part only with probability `part` / `whole`."""

    curve: Curve
    part: int
    whole: int

    def __post_init__(self) -> None:
        """Copy kind, method and confidence from the diluted curve."""
        for name in ("kind", "method", "confidence"):
            object.__setattr__(self, name, getattr(self.curve, name))

    def at(self, epsilon: Array, direction: Direction) -> Interval:
        """Return bounds on log δ(ε), with K′ rounded to the safe side of each."""
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
        # K′ = 1 − (1 − e^{−ε})/w = (e^{−ε} − 1 + w)/w: the first form has more digits if ε is small, else the second
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
