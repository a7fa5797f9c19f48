"""Which law to draw from, so that no contribution to δ at one ε exceeds a few times δ.

`remove`, K = e^ε, X = S₁⋯S_E the product over epochs, δ = E_Q(X − K)₊. Two things make X large: many coordinates that
are all a little larger (the central limit), or one that is huge (the heavy tail of Z). One exponential tilt cannot
cover both, since E e^{θZ} = ∞. So split by the largest coordinate, in *levels* of cells of g (see `cells`): the base,
where all coordinates are below some g₀, and the levels above it. Below the top of a level e^{θZ} is bounded.

One epoch in one level: draw one coordinate in the level and the others anywhere below its top, all tilted by
e^{θZ/T}. If N coordinates end up in the level, the density against Q is N·e^{Σt}/(T·A·B^{T−1}), or e^{Σt}/B^T in the
base. A is the tilted mass of the level, B that of everything below its top, and e^{Σt} is the product of the tilts of
the cells. As S^a ≤ (a/eθ)^a e^{θS} for every S > 0, on average over the positions within the cells

    S^a·dQ/dG ≤ C(a) = T·A·B^{T−1}·(a/eθ)^a ,

and θ is chosen to minimise C. For several epochs choose the highest level i, an epoch that is in it, and a for this
choice; each other epoch is in level l ≤ i with probability proportional to C_l(a). As
(X − K)₊ ≤ X^a·K^{1−a}(a−1)^{a−1}/a^a,

    contributions ≤ b_i = E·C_i(a)·(Σ_{l≤i} C_l(a))^{E−1}·K^{1−a}(a−1)^{a−1}/a^a        (base: C_0(a)^E·K^{1−a}…)

where a is chosen to minimise b_i, and i is chosen with probability b_i/b. Then no contribution exceeds b = Σ b_i,
which is 1 to 15 times δ at the settings of `benchmarks/verify.py`. Above the last level, δ is at most P(largest
coordinate there), which is added to the upper bound.

`add`, K = e^{−ε}: δ = E_Q(1 − S/K)₊. One tilt e^{−θZ/T} over the cells below Z = TK is enough: nothing beyond them
contributes. (1 − S/K)₊ e^{θS} is at most e^{θK−1}/θK, or 1 if θK ≤ 1. For several epochs see `tilted_add`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

import numpy as np
from scipy.integrate import cumulative_trapezoid
from scipy.interpolate import CubicHermiteSpline
from scipy.special import log_ndtr, xlogy

from ballsbins.accounting.curve import Array
from ballsbins.accounting.monte_carlo.cells import Cells, Law

_LEVEL = 0.8  # width of a level in g or in log Z, whichever is less
_CELL, _JUMP_CELL = 0.035, 0.2  # width of a cell in g or log Z; width of a cell of jumps times the largest g
_KNEE = 3.0  # for g − s above this, coordinates come singly, and cells are finer
_PUT_CELL = 0.03  # width of a cell for `add`, in g or ½log Z
_NEGLIGIBLE = 10.0  # coordinates whose log Z is this far below log K share the lowest cell
# |g|: almost no coordinate is 5.5 or 8 below the mean, and none is 40 away
_UNCOMMON, _RARE, _OUT_OF_REACH = 5.5, 8.0, 40.0
_LARGEST = 1e11  # largest log mass: beyond it, differences of logs are only rounding
_LEAP = 0.25  # a larger change of log a between neighbours is not smooth
_BEYOND = 30.0  # e^−30 of δ is left out, and counted in the upper bound
# cells of jumps do not get finer for a g beyond s + 10, and are never wider than this
_OUT_OF_JUMPS, _WIDEST_CELL = 10.0, 0.05
_FINE_FROM, _LARGEST_LOG_THETA = -3.0, 24.0  # range of log θ to choose tilts from; closer together from −3 on
_FINE = 0.1  # distance of log θ there
_TOGETHER, _POINTS, _KEPT = 32, 4001, 64  # tilts at a time (memory); points of a density; plans kept
_TRIES = 8  # bases, the most promising first, whose range is computed without interpolation
_EXPONENTS = 1.0 + np.exp(np.arange(-6.0, 24.0, 0.07))  # the grid from which a is chosen


def _log_peak(a: Array) -> Array:
    """Log sup (x − 1)₊/x^a = log (a−1)^{a−1}/a^a."""
    return np.asarray(xlogy(a - 1.0, a - 1.0) - xlogy(a, a))


@dataclass(frozen=True)
class Level:
    """Cells from `first`, which is 0 for the base, up to `top`, exclusive."""

    first: int
    top: int


@dataclass(frozen=True)
class Stratum:
    """The levels that epochs may be in; at least one epoch is in the last of them.

    `log_factor` is log (a/eθ)^a of each level and `log_peak` log K^{1−a}(a−1)^{a−1}/a^a: contributions are divided
    by both.
    """

    levels: Sequence[Level]
    theta: Array
    log_c: Array
    log_factor: Array
    log_peak: float
    log_range: float

    @cached_property
    def chance(self) -> Array:
        """Cumulative probabilities of the levels."""
        total = np.cumsum(np.exp(self.log_c - self.log_c.max()))
        return np.asarray(total / total[-1])


class Plan:
    """Cells, strata and their ranges for one question."""

    def __init__(
        self, cells: Cells, log_k: float, strata: Sequence[Stratum], log_rest: float = -math.inf
    ) -> None:
        """Take log K and the log of the part that is not sampled, `log_rest`, both in units of the cells."""
        self.cells, self.log_k, self.strata = cells, log_k, strata
        ranges = np.array([stratum.log_range for stratum in strata])
        self.log_range = float(np.logaddexp.reduce(ranges))
        self.chance = np.cumsum(np.exp(ranges - self.log_range))
        self.rest = math.exp(min(log_rest - self.log_range, 0.0))
        self._laws: dict[tuple[int, int], Law] = {}

    def law(self, stratum: int, level: int) -> Law:
        """The law of one epoch in this level."""
        if (stratum, level) not in self._laws:
            here = self.strata[stratum]
            at = here.levels[level]
            self._laws[stratum, level] = Law(self.cells, float(here.theta[level]), at.first, at.top)
        return self._laws[stratum, level]


class _Masses:
    """log T·A·B^{T−1} of levels, or log B^T of bases, and its derivative by log θ, on a grid of θ."""

    def __init__(self, cells: Cells, theta: Array, tops: Sequence[int]) -> None:
        """`tops` are the cells where one level ends and the next begins."""
        self._steps = float(cells.steps)
        starts, parts = [0, *tops[:-1]], []
        for some in np.array_split(theta, max(theta.size // _TOGETHER, 1)):  # bounds memory
            tilts = cells.log_tilts(some)[:, : tops[-1]]
            mean = some[:, None] * cells.mean[: tops[-1]]
            tilted = cells.log_mass[: tops[-1]] + tilts
            with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
                slopes = tilted + np.log(2.0 * tilts - mean)  # of θy + θ²w²/8 by log θ
                each = [np.logaddexp.reduceat(x, starts, axis=1) for x in (tilted, slopes)]
                parts.append([*each, *(np.logaddexp.accumulate(x, axis=1) for x in each)])
        self._own, self._own_slope, self._below, self._below_slope = (
            np.concatenate([part[k] for part in parts]) for k in range(4)
        )

    def of(self, k: int, *, base: bool = False) -> tuple[Array, Array]:
        """The mass and its derivative for each θ, of the level or the base that ends at `tops[k]`."""
        T = self._steps
        with np.errstate(over="ignore", invalid="ignore"):
            below, slope = self._below[:, k], np.exp(self._below_slope[:, k] - self._below[:, k])
            if base:
                return T * below, T * slope
            own, own_slope = self._own[:, k], np.exp(self._own_slope[:, k] - self._own[:, k])
            return math.log(T) + own + (T - 1.0) * below, own_slope + (T - 1.0) * slope


def _least(masses: Array, slope: Array, log_theta: Array) -> tuple[Array, Array]:
    """log C(a) and the log θ that minimises it, on the grid of a; ∞ where no θ of the grid is near.

    θ minimises C for a = `slope`, which increases with θ. Between near neighbours, cubics in log a interpolate: the
    slope of log C is a(log a − log θ) by the envelope theorem. Where `slope` leaps from body to tail, the better of
    two neighbours is taken. These values only guide the choice; the chosen ones are computed again.
    """
    log_c, log_at = np.full((2, _EXPONENTS.size), np.inf)
    good = (np.abs(masses) < _LARGEST) & (slope > 0.0)
    good[good] = np.diff(np.maximum.accumulate(slope[good]), prepend=0.0) > 0.0
    a, value, u = slope[good], masses[good], log_theta[good]
    if a.size < 2:
        return log_c, log_at
    inside = (a[0] <= _EXPONENTS) & (a[-1] >= _EXPONENTS)
    chosen = _EXPONENTS[inside]
    x, log_a = np.log(chosen), np.log(a)
    right = np.searchsorted(a, chosen).clip(1, a.size - 1)
    ends = np.stack([right - 1, right])
    either = value[ends] + chosen * (x - 1.0 - u[ends])
    nearest = np.take_along_axis(u[ends], either.argmin(axis=0)[None], axis=0)[0]
    cubic = CubicHermiteSpline(log_a, value + a * (log_a - 1.0 - u), a * (log_a - u))(x)
    near = log_a[right] - log_a[right - 1] < _LEAP
    log_c[inside] = np.where(near, cubic, either.min(axis=0))
    log_at[inside] = np.where(near, np.interp(x, log_a, u), nearest)
    return log_c, log_at


def _stratum(
    cells: Cells, epochs: int, log_k: float, levels: Sequence[Level], theta: Array, a: float
) -> Stratum:
    """The stratum with the C_l(a) and b_i that belong to these θ."""
    factor = a * (math.log(a) - 1.0 - np.log(theta))
    log_c = factor.copy()
    for k, level in enumerate(levels):
        tops = [level.first, level.top] if level.first else [level.top]
        log_c[k] += _Masses(cells, theta[k : k + 1], tops).of(len(tops) - 1, base=level.first == 0)[0][0]
    peak = (1.0 - a) * log_k + float(_log_peak(np.array(a)))
    log_range = peak + float(log_c[-1]) + (epochs - 1.0) * float(np.logaddexp.reduce(log_c))
    log_range += math.log(epochs) * (levels[-1].first > 0)
    return Stratum(levels, theta, log_c, factor, peak, log_range)


def _even(first: float, last: float, width: float) -> Array:
    """Numbers about `width` apart, both ends included."""
    return np.linspace(first, last, max(math.ceil((last - first) / width), 1) + 1)


def _body(first: float, last: float, width: float, centre: float) -> Array:
    """Numbers `width` apart at the centre of φ(g)Z(g)², the variance of S, and wider apart where it is small.

    Cell widths proportional to the inverse of its cube root leave the least variance within cells.
    """
    g = np.linspace(first, last, _POINTS)
    rate = 1.0 / (width * np.minimum(np.exp(np.square(g - centre) / 6), 4))
    count = cumulative_trapezoid(rate, g, initial=0.0)
    return np.asarray(np.interp(_even(0.0, float(count[-1]), 1.0), count, g))


def _chain(tops: Sequence[int], k: int) -> list[Level]:
    """The base that ends at `tops[k]`, and the levels above it."""
    return [Level(0, tops[k]), *(Level(*ends) for ends in pairwise(tops[k:]))]


def _one_epoch(cells: Cells, masses: _Masses, tops: Sequence[int], log_theta: Array) -> list[Stratum]:
    """K = 1. For each θ the best exponent is a = 1 + θ, as (S − 1)₊ ≤ e^{θS}·e^{−1−θ}/θ."""
    theta = np.exp(log_theta)
    ranges = np.empty((2, len(tops), log_theta.size))
    for k in range(len(tops)):
        for row, base in zip(ranges, (True, False), strict=True):
            row[k] = masses.of(k, base=base)[0] - 1.0 - theta - log_theta
    ranges = np.where(np.isnan(ranges), np.inf, ranges)
    least, at = ranges.min(axis=2), ranges.argmin(axis=2)
    above = np.append(np.logaddexp.accumulate(least[1, ::-1])[::-1], -np.inf)[1:]
    k = int(np.argmin(np.logaddexp(least[0], above)))
    chosen = theta[np.append(at[0, k], at[1, k + 1 :])]
    return [
        _stratum(cells, 1, 0.0, [level], np.array([value]), 1.0 + value)
        for level, value in zip(_chain(tops, k), chosen, strict=True)
    ]


def _several_epochs(
    cells: Cells, masses: _Masses, tops: Sequence[int], log_theta: Array, epochs: int, log_k: float
) -> list[Stratum]:
    """Choose a from a grid, on which C is interpolated; then compute the most promising bases and take the best."""
    bases = [_least(*masses.of(k, base=True), log_theta) for k in range(len(tops))]
    others = [_least(*masses.of(k), log_theta) for k in range(len(tops))]
    payoff = (1.0 - _EXPONENTS) * log_k + _log_peak(_EXPONENTS)
    found = []
    for k in range(len(tops)):
        log_c, log_at = np.stack([bases[k], *others[k + 1 :]], axis=1)
        b = log_c + payoff + (epochs - 1.0) * np.logaddexp.accumulate(log_c, axis=0)
        b[1:] += math.log(epochs)
        found.append((float(np.logaddexp.reduce(b.min(axis=1))), k, b.argmin(axis=1), np.exp(log_at)))
    best: tuple[float, list[Stratum]] = math.inf, []
    for seemed, k, chosen, theta in sorted(found, key=lambda one: one[0])[:_TRIES]:
        if not seemed < best[0]:
            break
        levels = _chain(tops, k)
        strata = [
            _stratum(cells, epochs, log_k, levels[: i + 1], theta[: i + 1, j], float(_EXPONENTS[j]))
            for i, j in enumerate(chosen)
        ]
        total = float(np.logaddexp.reduce([stratum.log_range for stratum in strata]))
        best = min(best, (total, strata), key=lambda one: one[0])
    return best[1]


@lru_cache(maxsize=_KEPT)
def remove(sigma: float, steps: int, epochs: int, epsilon: float) -> Plan:
    """The plan for D(P‖Q)."""
    s, T, E = 1.0 / sigma, steps, epochs
    unit = epsilon if E == 1 else 0.0
    log_k = epsilon - E * unit
    alone = max((epsilon + math.log(T) + 0.5 * s * s) / s, s)  # the g at which one coordinate makes S = K
    # above `last`, P has e^−_BEYOND of its mass above `alone`, and so less than that fraction of δ
    last = s + min(math.sqrt((alone - s) ** 2 + 2.0 * _BEYOND) + 1.0, _OUT_OF_REACH)
    first = min(max(-_UNCOMMON, (unit - _NEGLIGIBLE + 0.5 * s * s) / s), last - 1.0)
    fine = min(_JUMP_CELL / min(alone, s + _OUT_OF_JUMPS), _WIDEST_CELL)
    knee = min(max(s + _KNEE, first), last)
    body = _body(first, knee, max(fine, _CELL / max(s, 1.0)), min(2.0 * s, _KNEE))
    cells = Cells.below(s, T, unit, np.unique(np.append(body, _even(knee, last, fine))))
    levels = np.arange(last, first, -_LEVEL / max(s, 1.0))[::-1]
    tops = (np.unique(np.searchsorted(cells.edges, levels - 0.5 * fine)) + 1).tolist()
    start = -math.log(max(float(cells.mean[-1]), 1.0)) - 2.0
    log_theta = np.append(np.arange(start, _FINE_FROM, 0.5), np.arange(_FINE_FROM, _LARGEST_LOG_THETA, _FINE))
    masses = _Masses(cells, np.exp(log_theta), tops)
    if E == 1:
        strata = _one_epoch(cells, masses, tops, log_theta)
    else:
        strata = _several_epochs(cells, masses, tops, log_theta, E, log_k)
    log_rest = math.log(E) + float(np.logaddexp(log_ndtr(s - last), math.log(T) + log_ndtr(-last)))
    return Plan(cells, log_k, strata, log_rest - E * unit)


@lru_cache(maxsize=_KEPT)
def add(sigma: float, steps: int, epsilon: float) -> Plan:
    """The plan for D(Q‖P) of one epoch: one stratum, one level, and θ < 0."""
    s, T = 1.0 / sigma, steps
    equal = (0.5 * s * s - epsilon) / s  # the g at which all coordinates together make S = K
    alone = equal + math.log(T) / s
    last = min(alone, s + _OUT_OF_REACH)
    # below `first` is almost no mass, neither of Q nor of Q tilted by e^{−θZ/T} with θ/T about −equal/s
    far = max(-equal, 0.0)
    first = min(max(-math.sqrt(far * (far + 2.0 / s) + _RARE**2), equal - _NEGLIGIBLE / s), last - 1.0)
    cells = Cells.below(s, T, -epsilon, _even(first, last, _PUT_CELL / max(0.5 * s, 1.0, far / _RARE)))
    log_theta = np.arange(-6, _LARGEST_LOG_THETA, 0.5 * _FINE)
    theta = np.exp(log_theta)
    peak = np.where(theta > 1.0, theta - 1.0 - log_theta, 0.0)
    b = T * np.logaddexp.reduce(cells.log_mass + cells.log_tilts(-theta), axis=1) + peak
    k = int(np.argmin(b))
    level = Level(0, cells.mean.size)
    stratum = Stratum((level,), -theta[k : k + 1], b[k : k + 1], np.zeros(1), float(peak[k]), float(b[k]))
    return Plan(cells, 0.0, (stratum,), math.log(T) + float(log_ndtr(-last)) if last < alone else -math.inf)
