"""Poisson subsampling: every example joins every batch with probability q = 1/T, independently.

Proposition P-dominating of the paper: one step is the pair ((1−q)·N(0, σ²) + q·N(1, σ²), N(0, σ²)), n steps
its n-fold product. The likelihood ratio of one step is S = 1 − q + qZ with Z that of the Gaussian pair, so
with K = e^ε and K′ = (K − 1 + q)/q = 1 + expm1(ε)/q

    E(S − K)₊ = q·E(Z − K′)₊ = q·δ_G(log K′)              (remove, ε ≥ 0)
    E(K − S)₊ = q·E(K′ − Z)₊ = q·K′·δ_G(−log K′)          (add: e^ε times this at K = e^{−ε}; 0 if K′ ≤ 0)

where δ_G is the Gaussian closed form (gaussian.py). Both options are out of the money, so nothing cancels. The
module `composition` computes the product: an upper and a lower bound of the same quality, for any number of steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

from ballsbins.accounting.curve import ADD, ANSWER, REMOVE, Array, Curve, Direction, Interval, U
from ballsbins.accounting.epochs.composition import Accuracy, ComposedCurve
from ballsbins.accounting.epochs.survey import FLAT
from ballsbins.accounting.gaussian import log_hockey_stick

# B1, B16: docs/derivation.md.
_STRIKE = 8 * U  # rounding of K′ − 1 (B16)
_LOG_STRIKE, _PART = 2 * U, 4  # rounding of log K′, relative to its size and four units (B16)
_LARGE = 30.0  # from this ε on, expm1 may grow too large: log K′ comes from ε + log T instead
# how much less accuracy in ε is enough for a direction that does not decide, or what error of log δ; any is if log δ
# is larger than the last number, since such a δ means no privacy
_LESS, _ROUGHLY, _LARGE_DELTA = 10.0, 0.1, math.log(0.1)
_EDGE = 16 * U  # rounding of −n·log(1 − q), and of 1 − e^{ε−edge} (B1)
_POWER = 128 * U  # rounding of n·log Φ: scipy's log_ndtr is off by a few tens of roundings (B16)
_LEAST_GAP = 1e-300  # least distance from the edge, to avoid 0/0
_THRESHOLDS = 65  # number of C to try; each gives a valid bound, so more can only improve the best
_FARTHEST, _DOUBLE = 10.0, 36.0  # deviations: beyond, events are too rare to matter; Φ(−36) is still a double
# B35: how far above ε losses must lie, and minus the log of how rarely they may not; a bound on log δ that follows
_DISTANCE, _NEARLY_ONE = 32.0, -1e-13
_TILTS = 0.5 ** np.arange(1, 9)  # t of the same: the more jumps are certain, the smaller the best one
_POWER_POINTS = 4001  # points of the integral of S^{1−t}: even for σ = 0.05 it has more than twelve digits
# Beyond this fraction of the largest loss, step ε back by these factors.
_LAST, _BACK = 0.9, (0.9, 0.8, 0.7, 0.5)


@dataclass(frozen=True)
class PoissonStepCurve(Curve):
    """The privacy curve of one step of T = `steps`, in closed form."""

    noise_multiplier: float
    steps: int

    kind = "closed form"
    method = "closed form"

    def at(self, epsilon: Array, direction: Direction) -> Interval:
        """Return bounds on log δ(ε)."""
        lower, upper = self._remove(epsilon) if direction == REMOVE else self._add(epsilon)
        upper = np.minimum(upper, 0.0)
        return Interval(lower, np.where(np.isfinite(lower), 0.5 * (lower + upper), upper), upper)

    def _remove(self, epsilon: Array) -> tuple[Array, Array]:
        q, s = 1 / self.steps, 1 / self.noise_multiplier
        near = np.minimum(epsilon, _LARGE)
        far = epsilon + math.log(self.steps) + np.log1p(-(1 - q) * np.exp(-np.maximum(epsilon, _LARGE)))
        inner = np.where(epsilon <= _LARGE, np.log1p(np.expm1(near) * self.steps), far)  # log K′
        value, error = log_hockey_stick(inner, s)
        error = error + _LOG_STRIKE * (_PART + 2 * inner) * _steepness(inner, s)
        error = error + ANSWER * (1 + math.log(self.steps))
        value = value - math.log(self.steps)
        return value - error, value + error

    def _add(self, epsilon: Array) -> tuple[Array, Array]:
        s = 1 / self.noise_multiplier
        shift = np.expm1(-epsilon) * self.steps
        ratio = 1 + shift  # K′
        slack = _STRIKE * np.abs(shift) + 2 * U
        bounds = []
        for sign in (-1, 1):
            inside = ratio + sign * slack > 0
            inner = -np.log(np.where(inside, ratio + sign * slack, 1.0))
            value, error = log_hockey_stick(np.maximum(inner, 0.0), s)
            error = (
                error
                + _LOG_STRIKE * (_PART + inner) * _steepness(inner, s)
                + ANSWER * (1 + math.log(self.steps) + epsilon)
            )
            bounds.append(
                np.where(inside, epsilon - inner - math.log(self.steps) + value + sign * error, -np.inf)
            )
        return bounds[0], bounds[1]


def _steepness(epsilon: Array, s: float) -> Array:
    """Return more than −dlog δ_G/dε = R(x+s)/(R(x) − R(x+s)), which grows like x/s."""
    return 2 + (2 + 2 * np.abs(epsilon / s - 0.5 * s)) / s


@dataclass(frozen=True)
class PoissonMaximumCurve(Curve):
    """Closed-form bounds for all of `taken` steps, for ε ≥ 0. Lower, from the events that no step reaches C:

        Q(max < C) = Φ(C/σ)^n,       P(max < C) = [(1−q)·Φ(C/σ) + q·Φ((C−1)/σ)]^n ,

    δ ≥ Q(max < C) − e^ε P(max < C) for `add`, P(max ≥ C) − e^ε Q(max ≥ C) for `remove`, at any C. Upper, for `add`:
    1 − e^ε(1−q)^n, because P ≥ (1−q)^n·Q. With little noise, it is obvious which batches contained an example, and
    these bounds are nearly the truth.
    """

    noise_multiplier: float
    steps: int
    taken: int

    kind = "closed form"
    method = "closed form"

    @property
    def most(self) -> float:
        """The largest loss of `add`, −n·log(1−q), or slightly more: beyond it, δ is 0."""
        return -self.taken * math.log1p(-1 / self.steps) * (1 + _EDGE)

    def slope(self, epsilon: Array) -> Array:
        """Return −dlog δ/dε of the upper bound of `add`, at least FLAT."""
        x = np.minimum(epsilon - self.most, -_LEAST_GAP)
        return np.maximum(np.exp(x) / -np.expm1(x), FLAT)

    def at(self, epsilon: Array, direction: Direction) -> Interval:
        """Return the bounds at the best of several C, rounded outwards."""
        sigma = self.noise_multiplier
        largest = min(1.0 + _FARTHEST * sigma, _DOUBLE * sigma)
        C = np.linspace(0.0, largest, _THRESHOLDS)[:, None]
        one = log_ndtr(C / sigma)
        log_q = self.taken * one
        log_p = self.taken * (one + np.log1p(np.expm1(log_ndtr((C - 1.0) / sigma) - one) / self.steps))
        # both are sums of negative terms, so rounding is relative; it is applied conservatively
        log_q, log_p = log_q * (1 + _POWER), log_p * (1 - _POWER)
        with np.errstate(divide="ignore"):
            if direction == REMOVE:
                larger = np.log(-np.expm1(log_p)) - ANSWER
                smaller = np.log(-np.expm1(log_q)) + epsilon + ANSWER
            else:
                larger, smaller = log_q, log_p + epsilon
            gap = np.minimum(smaller - larger + ANSWER * np.abs(epsilon), 0.0)
            lower = np.max(np.where(np.isneginf(larger), -np.inf, larger + np.log(-np.expm1(gap))), axis=0)
        lower -= ANSWER * (1 + np.abs(np.where(np.isfinite(lower), lower, 0.0)))
        upper = np.zeros_like(lower)
        if direction == ADD:
            with np.errstate(divide="ignore"):
                upper = np.log(-np.expm1(np.minimum(epsilon - self.most, 0.0))) + _EDGE
        upper = np.minimum(upper, 0.0)
        return Interval(np.minimum(lower, upper), upper, upper)


class PoissonCurve(ComposedCurve):
    """The privacy curve after `taken` ≥ 2 steps (T·E of them after E epochs), each with q = 1/`steps` < 1."""

    def __init__(
        self, noise_multiplier: float, steps: int, taken: int, accuracy: Accuracy | None = None
    ) -> None:
        """Compose the steps; the loss of a step is at least log(1 − q), and with many steps mostly close to it."""
        edge = -math.log1p(-1 / steps)
        self._s, self._q, self._taken = 1 / noise_multiplier, 1 / steps, taken
        self._maximum = PoissonMaximumCurve(noise_multiplier, steps, taken)
        step = PoissonStepCurve(noise_multiplier, steps)
        super().__init__([(step, taken)], accuracy, edge=edge, around=self._maximum)

    def at(self, epsilon: Array, direction: Direction) -> Interval:
        """Return bounds by composition; for `add`, also use the closed-form bounds from the maximum."""
        if direction == REMOVE:
            sure = self._nearly_one(epsilon)
            rows = np.stack([np.full(epsilon.shape, _NEARLY_ONE), *np.zeros((2, epsilon.size))])
            if not sure.all():
                found = super().at(epsilon[~sure], direction)
                rows[:, ~sure] = found.lower, found.value, found.upper
            return Interval(*rows)
        closed = self._maximum.at(epsilon, direction)
        lower, value, upper = closed.lower, closed.upper.copy(), closed.upper.copy()
        with np.errstate(invalid="ignore"):  # where both are −∞, δ is 0
            gap, close = upper - lower, self._maximum.slope(epsilon) * self.accuracy.at(epsilon)
            # composing may take minutes, so less is enough where `remove` is shown to decide, or to leave no privacy
            remove = np.where(self._nearly_one(epsilon), 0.0, self._maximum.at(epsilon, REMOVE).lower)
            decided = remove >= np.minimum(upper, _LARGE_DELTA)
            enough = np.where(lower > _LARGE_DELTA, np.inf, np.maximum(_LESS * close, _ROUGHLY))
            rest = gap > np.where(decided, enough, close)
        if rest.any():
            found = self._composed(epsilon[rest])
            upper[rest] = np.minimum(upper[rest], found.upper)
            lower[rest] = np.minimum(np.maximum(lower[rest], found.lower), upper[rest])
            value[rest] = np.clip(found.value, lower[rest], upper[rest])
        return Interval(lower, value, upper)

    def _nearly_one(self, epsilon: Array) -> NDArray[np.bool_]:
        """Whether it is easy to see that δ(ε) of `remove` is nearly 1."""
        bounds = self._log_powers + np.outer(epsilon + _DISTANCE, _TILTS)
        return np.asarray(bounds.min(axis=1) < -_DISTANCE)

    @cached_property
    def _log_powers(self) -> Array:
        """Log E X^{1−t} of the product X of all steps for every tilt t: where δ is nearly 1, it shows this (B35).

        P(log X < ε + d) ≤ E X^{1−t}·e^{t(ε+d)} by Markov's inequality, and δ(ε) ≥ (1 − e^{−d})·P(log X ≥ ε + d).
        For one step and a = 1 − t, E S^a = 1 − E[1 + a(S − 1) − S^a], the mean of a positive number.
        """
        g, s = np.linspace(-_FARTHEST, _FARTHEST + self._s, _POWER_POINTS), self._s
        excess = self._q * np.expm1(s * g - 0.5 * s * s)  # S − 1
        density = np.exp(-0.5 * g * g) * (g[1] - g[0]) / math.sqrt(2.0 * math.pi)
        a = 1.0 - _TILTS[:, None]
        power = np.expm1(a * np.log1p(excess))
        below = a * excess - power - _STRIKE * (np.abs(a * excess) + np.abs(power))
        return np.asarray(self._taken * np.log1p(-np.maximum(below, 0.0) @ density))

    def _composed(self, epsilon: Array) -> Interval:
        """Return `add` by composition. Near the largest loss this has no upper bound; δ falls, so use a smaller ε."""
        found = super().at(epsilon, ADD)
        lower, value, upper = (np.array(row) for row in (found.lower, found.value, found.upper))
        for k in np.flatnonzero((epsilon > _LAST * self._maximum.most) & (upper == 0.0)):
            for share in _BACK:
                upper[k] = min(upper[k], super().at(share * epsilon[k : k + 1], ADD).upper[0])
                if upper[k] < 0.0:
                    break
            value[k] = min(value[k], upper[k])
        return Interval(lower, value, upper)
