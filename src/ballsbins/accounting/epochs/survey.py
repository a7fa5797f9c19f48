"""A first, cheap look at a privacy curve: how far it reaches, where it is steep, how large its products will be.

The module also has the cumulants of sums of discrete losses, and the tilt that moves their mean to a given place.

**Jumps.** The out-of-the-money value v(k) of a run may have a body near 0 and a bump far to the right of it. With
many steps or little noise, single large jumps cause the bump, and no tilt e^{(c−1)k} isolates the body. So a run can
be split by a smooth step χ: M = M_body + J, in one of two ways.

* At a valley, v is split: J is the transform of (1−χ)·v. What is cut through is small, so nothing cancels.
* Where losses are dense, their law is split: M_body(u) = E[χ(S)·S^u]. Body and jumps are measures then, and
  |M_body(c + iy)| ≤ M_body(c), |J(c + iy)| ≤ J(c): the size of a part at real c bounds all that it contributes.
  There, χ·v would belong to a law with negative densities, whose n-th power has no such bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import log_ndtr

from ballsbins.accounting.curve import ADD, DIRECTIONS, REMOVE, Array, Curve, Direction
from ballsbins.accounting.epochs.polygons import hull

# No bound depends on these numbers: they only place lattices, whose error is known (B34 of docs/derivation.md).
# least slope of log δ assumed when accuracy in ε is converted to log δ: on a flatter curve ε has little meaning
FLAT = 1e-5
_RATIO = 1.15  # ratio of the geometric grid
_SMALLEST = 0.02  # the grid begins at this fraction of δ(0) = ½E|S−1|
_LEAST_LOG = -100.0  # least log δ(0) used to choose where the grid begins
_EXTENDED, _FARTHEST = 4.0, 1e5  # by how much the grid is extended at a time, and the ε at which it ends
_DENSE = 300  # cells may grow to ε/_DENSE,
_STEEP = 0.1  # but only until log δ changes by this much over one cell
_LEAST_SLOPE = 1e-9  # avoids division by 0
# fraction of n·h²: the polygon above adds h²/6 to a variance and the one below takes h²/8
VARIANCE_SHARE = 0.3
_LARGEST_ALLOWED = 50.0  # logarithm of a limit that is practically infinite
_LEAST, _LOWEST = 1e-300, -1e300  # replace 0, to avoid division by it, and −∞
_MOST_NEWTON = 200  # most steps, Newton's or halvings
# stop the search for θ at these errors: in deviations of the mean; relative to ε; relative width of θ
_CLOSE, _ROUNDED, _BRACKET = 1e-6, 1e-15, 1e-12

_INVISIBLE = 42.0  # a term this far below the others, in logs, does not change a sum in double precision
_BEGINS = 8.5  # standard deviations at which Φ is 1 to all digits


class Survey:
    """A first look at one factor: log δ in both directions on a geometric grid, as far out as needed."""

    def __init__(self, log_delta: Callable[[Array, Direction], Array]) -> None:
        """Take `log_delta`, a function of some ε ≥ 0: an upper bound or an approximation, as the caller needs."""
        self._log_delta = log_delta
        self.epsilon = np.array([0.0])
        self.log_delta: dict[Direction, Array] = {way: log_delta(self.epsilon, way) for way in DIRECTIONS}
        self._sizes: list[int] = []  # numbers of points at first and after every extension
        self._extend(1.0)

    @classmethod
    def above(cls, curve: Curve) -> Survey:
        """Survey the upper bounds of a curve."""
        return cls(lambda epsilon, direction: curve.log_delta(epsilon, direction).upper)

    def _extend(self, far: float) -> None:
        smallest = _SMALLEST * math.exp(max(float(self.log_delta[REMOVE][0]), _LEAST_LOG))
        start = max(self.epsilon[-1] * _RATIO, smallest)
        new = start * _RATIO ** np.arange(1 + math.ceil(math.log(far / start) / math.log(_RATIO)))
        self.epsilon = np.concatenate([self.epsilon, new])
        for direction in DIRECTIONS:
            more = self._log_delta(new, direction)
            self.log_delta[direction] = np.concatenate([self.log_delta[direction], more])
        self._sizes.append(self.epsilon.size)

    def reach(self, direction: Direction, floor: float) -> float:
        """An ε beyond which log δ is below `floor`."""
        while self.log_delta[direction][-1] > floor and self.epsilon[-1] < _FARTHEST:
            self._extend(_EXTENDED * self.epsilon[-1])
        below = np.flatnonzero(self.log_delta[direction] <= floor)
        return float(self.epsilon[below[0] if below.size else -1])

    def depth(self, floor: float) -> int:
        """How many points are laid to see both directions as far out as `floor`, whatever was laid before."""
        far = max(self.reach(direction, floor) for direction in DIRECTIONS)
        return next(size for size in self._sizes if self.epsilon[size - 1] >= far)

    def spacing(self, finer: float) -> Callable[[float], float]:
        """How wide cells may be at ε: proportional to ε, but such that δ changes little over one cell."""
        limits = {}
        for direction in DIRECTIONS:
            with np.errstate(invalid="ignore", divide="ignore"):
                steep = np.abs(np.diff(self.log_delta[direction]) / np.diff(self.epsilon))
            steep = np.where(np.isfinite(steep), steep, np.inf)
            limits[direction] = np.minimum(
                self.epsilon[1:] / _DENSE, _STEEP / np.maximum(steep, _LEAST_SLOPE)
            )

        def at(epsilon: float) -> float:
            k = int(np.searchsorted(self.epsilon, abs(epsilon))) - 1
            limit = limits[REMOVE if epsilon > 0 else ADD]
            return finer * float(limit[max(0, min(k, limit.size - 1))])

        return at

    def atoms(self, count: int, direction: Direction, depth: int) -> Atoms:
        """A coarse pair above the curve, from the first `depth` points."""
        known, add, remove = (x[:depth] for x in (self.epsilon, self.log_delta[ADD], self.log_delta[REMOVE]))
        epsilon = np.concatenate([-known[:0:-1], known])
        on, log_p = hull(epsilon, None, np.concatenate([(add - known)[:0:-1], remove]))
        epsilon = epsilon[on]
        if direction == ADD:
            epsilon, log_p = -epsilon[::-1], (log_p - epsilon)[::-1]
        return Atoms(epsilon, log_p, count)


def spread_allowed(epsilon: float, accuracy: float, mean: float, variance: float) -> float:
    """The largest n·h² allowed where δ is large, as if the loss were Gaussian; 0.3 of it adds to the variance.

    For a Gaussian of variance s², dδ/ds² = φ(a)/2s with a = s/2 − ε/s, and −dδ/dε = e^ε Φ(a − s). Far below the
    mean neither matters.
    """
    s = math.sqrt(variance)
    shifted = epsilon - mean + 0.5 * variance  # the ε of a Gaussian with that mean
    a = 0.5 * s - shifted / s
    log_slope = min(0.0, shifted + float(log_ndtr(a - s)))
    log_allowed = math.log(max(math.exp(log_slope), FLAT) * accuracy) + math.log(2 * s) + 0.5 * a * a
    return min(
        math.exp(min(log_allowed, _LARGEST_ALLOWED)) * math.sqrt(2 * math.pi) / VARIANCE_SHARE, variance
    )


_LUMPS = 2048  # this many atoms are enough to find θ


@dataclass(frozen=True)
class Atoms:
    """Losses and log masses of one factor, and how often it occurs."""

    epsilon: Array
    log_p: Array
    count: int

    def lumped(self) -> Atoms:
        """At most _LUMPS atoms with nearly the same moments: enough to find θ."""
        n = self.log_p.size
        if n <= _LUMPS:
            return self
        size = -(-n // _LUMPS)
        pad = -n % size
        log_p = np.concatenate([self.log_p, np.full(pad, -np.inf)]).reshape(-1, size)
        epsilon = np.concatenate([self.epsilon, np.zeros(pad)]).reshape(-1, size)
        w = np.maximum(log_p.max(axis=1, keepdims=True), _LOWEST)
        p = np.exp(log_p - w)
        total = p.sum(axis=1)
        full = total > 0
        return Atoms(
            (p * epsilon).sum(axis=1)[full] / total[full], np.log(total[full]) + w[full, 0], self.count
        )

    def log_moment(self, theta: float) -> float:
        """Log Σ p e^{θε} of one occurrence."""
        x = self.log_p + theta * self.epsilon
        w = float(x.max())
        return w + math.log(float(np.exp(x - w).sum()))

    def moments(self, theta: float) -> tuple[float, float, float]:
        """Log Σ p e^{θε}, tilted mean and tilted variance of one occurrence."""
        x = self.log_p + theta * self.epsilon
        w = float(x.max())
        p = np.exp(x - w)
        total = float(p.sum())
        mean = float(p @ self.epsilon) / total
        variance = float(p @ (self.epsilon - mean) ** 2) / total
        return w + math.log(total), mean, variance


@dataclass(frozen=True)
class Cumulants:
    """κ(θ), its derivatives, and the θ that puts the mean at ε."""

    atoms: Sequence[Atoms]

    def at(self, theta: float) -> tuple[float, float, float]:
        """κ, κ′, κ″ of the sum of all losses."""
        each = [(a.count, a.moments(theta)) for a in self.atoms]
        kappa, mean, variance = (sum(n * m[k] for n, m in each) for k in range(3))
        return kappa, mean, variance

    def solve(self, epsilon: float, largest: float) -> float:
        """The θ in [0, largest] with κ′(θ) = ε to 10⁻⁶ standard deviations, else the nearer end."""
        low, high = 0.0, math.inf
        _, mean, variance = self.at(0.0)
        if mean >= epsilon:
            return 0.0
        theta = min((epsilon - mean) / max(variance, _LEAST), largest)
        for _ in range(_MOST_NEWTON):
            _, mean, variance = self.at(theta)
            if abs(mean - epsilon) <= _CLOSE * math.sqrt(variance) + _ROUNDED * abs(epsilon):
                break
            if mean < epsilon:
                if theta >= largest:
                    break
                low = theta
            else:
                high = theta
            newton = theta + (epsilon - mean) / max(variance, _LEAST)
            if not low < newton < high:
                newton = 2 * theta if math.isinf(high) else 0.5 * (low + high)
            theta = min(newton, largest, 4 * theta if math.isinf(high) else math.inf)
            if high - low <= _BRACKET * low:
                return low
        return theta


@dataclass(frozen=True)
class Split:
    """A smooth step down from 1 to 0 around the loss `at`; at 0, where v has its kink, it is 1 to all digits.

    A jump beyond `until` needs no separate treatment: the value v there already contains what happens beyond.
    """

    at: float
    width: float
    until: float = math.inf
    law: bool = False  # whether it splits the law of the loss instead of v

    @classmethod
    def at_valley(cls, at: float, until: float, depth: float = 0.0) -> Split:
        """The widest step at a valley: what it leaves of v at 0 must not show beside v there, lower by e^{−depth}."""
        return cls(at, at / math.sqrt(_INVISIBLE + depth), until)

    @classmethod
    def among_losses(cls, at: float, until: float) -> Split:
        """A split of the law, where losses are dense."""
        return replace(cls.at_valley(at, until), law=True)

    @classmethod
    def beyond(cls, until: float) -> Split:
        """A step that begins at `until` and leaves nothing beyond about three times `until`."""
        return cls(2 * until, until / 6, until)

    def edges(self, k: Array) -> tuple[Array, Array]:
        """Return χ′(k) and χ″(k)."""
        rate = math.sqrt(2.0) / self.width
        z = (self.at - k) * rate
        slope = -rate / math.sqrt(2.0 * math.pi) * np.exp(-0.5 * z * z)
        return slope, rate * z * slope

    def log_body(self, k: Array) -> Array:
        """Log χ(k)."""
        return np.asarray(log_ndtr((self.at - k) * (math.sqrt(2.0) / self.width)))

    def log_jump(self, k: Array) -> Array:
        """Log 1 − χ(k)."""
        return np.asarray(log_ndtr((k - self.at) * (math.sqrt(2.0) / self.width)))

    def log_local_jump(self, k: Array) -> Array:
        """Log 1 − χ(k), cut off smoothly some way beyond `until`."""
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
