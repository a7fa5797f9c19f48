"""Paths of integration in the plane: each leaves the real axis at one point and ends once the integrand is tiny.

Many paths are followed together, because a path has only about fifty points and numpy needs thousands to be fast.

Paths through the saddle, right of 0, give the put (direction "add", and by parity calls that are not small).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ballsbins.accounting.one_epoch.basket import FINER, Basket
from ballsbins.accounting.one_epoch.quadrature import (
    DROP,
    Complex,
    Estimate,
    Flags,
    Indices,
    Nodes,
    Real,
    Strikes,
    estimate_of,
    halved,
    slope_sum,
    trapezoidal_error,
    worst,
)

# Angles past the vertical at which a path may end. A straight line is best for anything like a Gaussian (that is, if
# the exponent's curvature in log ω is large); bends speed up slow decay.
_BENDS = (0.3, 0.0, 0.6, 0.9)
_STRAIGHT_FIRST = (0.0, 0.3, 0.6, 0.9)  # the same angles in the order used for nearly Gaussian integrands
_STRAIGHT = 20.0  # the curvature from which the straight line is tried first: a choice
_GOOD_SCORE = 7.0  # a path with a lower score is not compared with others: a choice
# How far in u a path goes at first, and by how much it is extended if that was not enough. A Gaussian has dropped by
# 3.1; a saddle with less curvature takes longer; off the cut, 3.7 is nearly always enough. A choice.
_LENGTH, _PER_WIDTH, _LENGTH_OFF_CUT, _MORE = 3.0, 3.3, 3.7, 1.6
_LONGEST = 40.0  # in u: ω has grown by e⁴⁰, and an integrand that has not dropped by then never will
_MOST_RISE = 30.0  # in logs: a path that climbs this much has lost all digits
FARTHEST = 7.0  # standard deviations from its strike at which a path no longer resolves the phase
_TOGETHER = 12  # neighbouring paths whose transform is computed on one set of nodes: a choice
PROBES = 7  # points of a path at which the transform is computed again (B6)
_RISE_COST = 2.0  # in a path's score, one e-fold of rise counts as two units of length: a choice
_USUAL_STEP = 0.1  # along a path: about forty nodes, usually all digits; the stated error shows if not (B9)
_LEAST_CURVATURE = 0.5  # least curvature used for a width: at a saddle it is 2 or more, near one maybe less


@dataclass(frozen=True)
class Path:
    """ω(u) = ω₀ + w(−tan β (cosh u − 1) + i sinh u), u ≥ 0, leaving the real axis vertically."""

    start: float
    width: float  # the scale of the integrand
    bend: float  # β, the final angle

    def __call__(self, u: Real) -> tuple[Complex, Complex]:
        """Return points and derivatives."""
        return _along(np.array([[self.start, self.width, np.tan(self.bend)]]), u[None, :])


def _along(paths: Real, u: Real) -> tuple[Complex, Complex]:
    """Return points and derivatives; each row of `paths` has start, width and tan β."""
    start, width, bend = paths.T[:, :, None]
    sinh, cosh = np.sinh(u), np.cosh(u)
    omega = start - width * bend * 2.0 * np.sinh(0.5 * u) ** 2 + 1j * width * sinh
    slope = width * (-bend * sinh + 1j * cosh)
    return (omega, slope) if len(paths) > 1 else (omega[0], slope[0])


@dataclass(frozen=True)
class Trace:
    """Values on a path at equal steps of u: enough to judge the path, and to integrate along it."""

    path: Path
    u: Real
    omega: Complex
    transform: Complex
    plain: Real
    log_slope: Complex  # log of dω/du/ω²
    rise: float = 0.0  # of the integrand above its start, in logs

    @property
    def score(self) -> float:
        """Smaller is better: a path should not climb and should end soon."""
        return _RISE_COST * self.rise + float(self.u[-1])


def _traces(basket: Basket, paths: list[Path], strikes: Strikes, step: float) -> list[Trace | None]:
    """Follow each path, for its strike, until the integrand is negligible; None if the integrand climbs instead."""
    found: list[Trace | None] = [None] * len(paths)
    shapes = np.array([[path.start, path.width, np.tan(path.bend)] for path in paths])
    open_: Indices = np.arange(len(paths))
    # ω, transform, log dω/du/ω², and one complex number that holds the plain bins and the log of the integrand
    known, count = np.empty((len(paths), 4, 0), complex), 0
    widest = float((shapes[:, 1] / np.abs(shapes[:, 0])).max())
    first = _LENGTH + _PER_WIDTH * widest if shapes[0, 0] > 0.0 else _LENGTH_OFF_CUT
    while open_.size and count * step < _LONGEST:
        more = int(np.ceil((first if count == 0 else _MORE) / step))
        u = step * np.arange(count, count + more, dtype=np.float64)
        at, slope = (part.reshape(len(open_), more) for part in _along(shapes[open_], u[None, :]))
        transform, plain = (part.reshape(at.shape) for part in basket.exponent(at.ravel()))
        here = strikes[open_]
        t = float(basket.size)
        factor = np.where(plain == t, here.k[:, None], here.k_minus_1[:, None] + plain / t)
        log_slope = np.log(slope / at) - np.log(at)  # ω² may overflow
        size = factor * (t * at.real) + transform.real + log_slope.real
        both = plain + 1j * np.where(np.isfinite(size), size, np.inf)
        known = np.concatenate([known, np.stack([at, transform, log_slope, both], axis=1)], axis=2)
        count += more
        sizes = known[:, 3].imag
        peak = sizes.max(axis=1)
        climbs = peak > sizes[:, 0] + _MOST_RISE
        dropped = np.maximum.accumulate(sizes, axis=1) - sizes > DROP
        ended = dropped.any(axis=1) & ~climbs
        for row in np.flatnonzero(ended):
            end = int(dropped[row].argmax()) + 1
            *parts, plain_ = known[row, :, :end]
            u = step * np.arange(end, dtype=np.float64)
            omega, transform_, log_slope_ = parts
            rise = float(peak[row] - sizes[row, 0])
            trace = Trace(paths[open_[row]], u, omega, transform_, plain_.real, log_slope_, rise)
            found[open_[row]] = trace
        go_on = ~(ended | climbs)
        open_, known = open_[go_on], known[go_on]
    return found


def best_traces(
    basket: Basket, start: Real, curvature: Real, strikes: Strikes, step: float
) -> tuple[Real, list[Trace | None]]:
    """Return the scale of the integrand at each `start`, and the best of a few paths from there, for its strike."""
    width = np.abs(start) / np.sqrt(curvature)
    best: list[Trace | None] = [None] * len(start)
    for bends in zip(_BENDS, _STRAIGHT_FIRST, strict=True):
        left = [row for row, trace in enumerate(best) if trace is None or trace.score >= _GOOD_SCORE]
        for first in range(0, len(left), _TOGETHER):
            rows = np.array(left[first : first + _TOGETHER])
            paths = [
                Path(float(start[row]), float(width[row]), bends[int(curvature[row] > _STRAIGHT)])
                for row in rows
            ]
            for row, trace in zip(rows, _traces(basket, paths, strikes[rows], step), strict=True):
                other = best[row]
                if trace is not None and (other is None or trace.score < other.score):
                    best[row] = trace
    return width, best


def weighted(basket: Basket, traces: list[Trace], log_du: list[Real], probes: int = PROBES) -> list[Nodes]:
    """Turn points on paths into quadrature nodes, with a sampled error of the transform.

    If there are many paths, the sample has a few points of each, and the worst error applies to all paths.
    """
    inner = 0.0
    if probes > 0:
        each = max(2, probes // len(traces))
        some = [slice(k % 3, None, max(1, len(trace.u) // each)) for k, trace in enumerate(traces)]
        at, known = (
            np.concatenate([part[probe] for part, probe in zip(parts, some, strict=True)])
            for parts in ([trace.omega for trace in traces], [trace.transform for trace in traces])
        )
        for rows in np.array_split(np.arange(len(at)), -(-len(traces) // _TOGETHER)):
            finer, _ = basket.exponent(at[rows], FINER)
            inner = max(inner, worst(np.abs(_unwound(finer - known[rows])) / np.abs(finer)))
    shift = np.log(np.pi * float(basket.size))
    return [
        Nodes(trace.omega, trace.transform, trace.plain, trace.log_slope + (log_step - shift), inner)
        for trace, log_step in zip(traces, log_du, strict=True)
    ]


def _unwound(difference: Complex) -> Complex:
    turns = np.round(difference.imag / (2.0 * np.pi))
    return difference - 2j * np.pi * turns


LARGEST_LOG_SADDLE = 702.0  # a path extends to about e⁵ times the saddle, which must still be a double
_MOST_NEWTON = 80  # most steps: bisecting a bracket of 700 to 10⁻³ takes 20, with Newton's steps in between
# A path need not pass exactly through the saddle: 2 % of the width off, or 10⁻³ in log c, is just as good.
_OFF_SADDLE, _CLOSE_BRACKET = 0.02, 1e-3
_LEAST_SLOPE, _MOST_STEP = 1e-3, 4.0  # least slope and largest step of Newton's method in log c: a choice
_MOST_LOG_VARIANCE = 300.0  # largest 1/σ² for which the variance of Z is computed; beyond, it is a guess


class PutContour:
    """A path through the saddle of one strike, right of the pole at 0."""

    def __init__(self, bins: int, k: float, width: float, nodes: Nodes | None, reach: float) -> None:
        """Serve the strike k and others up to `reach` widths from it; without nodes, serve no strike."""
        self.bins, self.k, self.nodes = bins, k, nodes
        self._unit = reach / (bins * width)

    @classmethod
    def through(
        cls,
        basket: Basket,
        strikes: Strikes,
        step: float = _USUAL_STEP,
        guess: Real | None = None,
        reach: float = FARTHEST,
    ) -> list[PutContour]:
        """Build one contour per strike, with that step along the path; `guess` is where the saddles may be."""
        saddle, curvature = put_saddles(basket, strikes, guess)
        width, traces = best_traces(basket, saddle, np.maximum(curvature, _LEAST_CURVATURE), strikes, step)
        usable = [trace for trace in traces if trace is not None]
        weights = [np.full(len(trace.u), step) for trace in usable]
        for weight in weights:
            weight[0] *= 0.5
        nodes = iter(weighted(basket, usable, [np.log(weight) for weight in weights]) if usable else [])
        return [
            cls(basket.size, float(k), float(w), None if trace is None else next(nodes), reach)
            for k, w, trace in zip(strikes.k, width, traces, strict=True)
        ]

    def __call__(self, strikes: Strikes) -> Estimate:
        """log put(K)."""
        if self.nodes is None:
            return Estimate.nothing(strikes)
        return _values(self.bins, self.nodes, strikes).where(self.near(strikes))

    def near(self, strikes: Strikes) -> Flags:
        """Which strikes this path may serve."""
        return np.asarray((np.abs(strikes.k - self.k) < self._unit) & (self.nodes is not None))


def _values(bins: int, nodes: Nodes, strikes: Strikes) -> Estimate:
    exponent, load = nodes.terms(bins, strikes)
    scale, parts, slack = slope_sum(exponent, load, nodes)
    sums = halved(parts)
    return estimate_of(scale, sums[0], slack, trapezoidal_error(*sums))


def puts_on(paths: Sequence[tuple[PutContour, Strikes]]) -> Estimate:
    """Return log put(K) of each path at its own strikes, concatenated; all paths are summed in one operation."""
    if len(paths) == 1:
        return paths[0][0](paths[0][1])
    usable = [(path, path.nodes, some) for path, some in paths if path.nodes is not None]
    strikes = Strikes(
        *(np.concatenate([getattr(some, part) for _, some in paths]) for part in ("k", "k_minus_1"))
    )
    near = np.concatenate([path.near(some) for path, some in paths])
    if not usable:
        return Estimate.nothing(strikes)
    # a path without nodes serves no strike; it borrows other nodes, and `near` discards the result
    index = np.cumsum([path.nodes is not None for path, _ in paths]) - 1
    which = np.repeat(np.maximum(index, 0), [len(some.k) for _, some in paths])
    nodes = Nodes.rows([nodes for _, nodes, _ in usable], which)
    return _values(paths[0][0].bins, nodes, strikes).where(near)


def put_saddles(basket: Basket, strikes: Strikes, guess: Real | None = None) -> tuple[Real, Real]:
    """Return the c > 0 that minimises T·c·K + Σ log L(c) − 2 log c for each strike, and the curvature in log c."""
    t, k, k_minus_1 = float(basket.size), strikes.k, strikes.k_minus_1
    low, high = np.log(2.0 / t) - np.log(k), np.full(k.shape, LARGEST_LOG_SADDLE)  # the mean is not negative
    if guess is None:  # as if S were Gaussian: c·(T(K−1) + c·variance) = 2
        variance = sum(n * np.expm1(min(1.0 / sd**2, _MOST_LOG_VARIANCE)) for n, sd in basket.kinds)
        b = t * k_minus_1
        root = np.sqrt(b * b + 8 * variance)
        guess = np.where(b < 0, (root - b) / (2.0 * variance), 4 / (root + b))
    x, curvature = np.clip(np.log(guess), low, high), np.ones(k.shape)
    rows = np.arange(len(k))
    for _ in range(_MOST_NEWTON):
        c = np.exp(x[rows])
        _, _, mean, gap, variance_ = basket.on_axis(c)
        gradient = np.where(k[rows] < 0.5, t * c * k[rows] - mean, t * c * k_minus_1[rows] + gap) - 2.0
        curvature[rows] = gradient + 2.0 + variance_
        above = gradient > 0.0
        high[rows] = np.where(above, x[rows], high[rows])
        low[rows] = np.where(above, low[rows], x[rows])
        done = np.abs(gradient) < _OFF_SADDLE * np.sqrt(np.maximum(curvature[rows], _LEAST_CURVATURE))
        done |= high[rows] - low[rows] < _CLOSE_BRACKET
        newton = gradient / np.maximum(curvature[rows], _LEAST_SLOPE)
        step = x[rows] - np.clip(newton, -_MOST_STEP, _MOST_STEP)
        inside = (low[rows] < step) & (step < high[rows])
        x[rows] = np.where(done, x[rows], np.where(inside, step, 0.5 * (low + high)[rows]))
        rows = rows[~done]
        if rows.size == 0:
            break
    return np.exp(x), curvature
