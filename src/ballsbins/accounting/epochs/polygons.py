"""Discrete pairs above and below a privacy curve, on one lattice of losses.

A pair (P, Q) is determined by its curve c(K) = sup_E P(E) − K·Q(E), K = e^ε > 0: convex, decreasing,
(1 − K)₊ ≤ c ≤ 1. Conversely masses p_i ≥ 0 at losses ε_i (so q_i = p_i/K_i under Q), and p_∞ where Q has none,
have the curve

    c(K) = Σ_i p_i (1 − K/K_i)₊ + p_∞ ,          a polygon with slope jumps q_i = p_i/K_i at the K_i .

Composition is monotone in each factor: D_K(P₁⊗P₂ ‖ Q₁⊗Q₂) = E_{P₂}[c₁(K/S₂)]. So a polygon with kinks on the
lattice that lies *above* the true curve composes to an upper bound, one that lies *below* to a lower bound,
and a factor 1 + η on c₁ is at most a factor 1 + η on the product. Nothing else has to be shown.

All computations use the out-of-the-money value v(ε), which avoids cancellation: c(K) = (1 − K)₊ + v, that is v =
δ_remove(ε) for ε ≥ 0 and e^ε·δ_add(−ε) for ε < 0. It is convex on either side of K = 1. Exchanging P and Q
maps v to v(−ε)·e^ε and lines to lines, so one pair serves both directions, and everything below is symmetric.

**Upper** (connect-the-dots, Doroshenko et al. 2022): the lower convex hull of the upper bounds at the lattice
points and of (0, 1); beyond the last point the constant v_n = p_∞. The chord of a convex function lies above
it, and the hull of points above a convex function lies above it. The error is v″h²K²/12 on average.

**Lower**: values g = (1−K)₊ + (1−β_i)·v_i at the lattice points, v_i the lower bounds there, such that every
chord of g lies below c; then the lower convex hull of these points, which is below their chords. Chords lie
below c when β_i is at least ρ of both neighbouring cells, with

    ρ = max over the cell of 1 − (a minorant of v)/(chord of the lower bounds).

(If g_j ≤ (1−ρ)v_j at both ends of a cell, the chord of g is at most (1−ρ) times that of v, at most the
minorant.) The minorant comes from convexity alone: with the curve known on a lattice four times finer, v lies
above the two lines through the neighbouring pairs of fine points, extended into the cell (the nearer point at
its lower, the farther at its upper bound, so that errors cannot hurt), and above the smaller of its end
values. Then β ≈ (1/8 + 3/128)·v″h²K²/v: second order like the upper bound and of the same size. At both ends
β = 1, i.e. v = 0 is used there: the upper tail becomes an atom at the last point, the lower one an atom at
the first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ballsbins.accounting.curve import ADD, REMOVE, Array, Curve, U
from ballsbins.errors import AccuracyError

# B28, B29: docs/derivation.md.
# points of the curve per lattice cell: the minorant then costs 3/128 beside the 1/8 of a chord (B28)
FINE = 4
# a larger relative violation of domination or mass means that the curve's stated errors are wrong (B29)
WORST = 1e-6
LOG_SUM = 2 * U  # error of a sum of logarithms and exponentials, relative to its size: two roundings (B1)
# number of such roundings in the curve of a stored pair: in all, plus one per this many cells (B29)
_STORED, _CELLS_PER_ROUNDING = 4096, 512
_MINORANT = 32 * U  # rounding of ρ: a handful of sums of positive terms (B1)
SUPPORT = 16 * U  # a point that should be below a line is moved down by this, to cover rounding (B1)
_LARGEST_EXPONENT, _SAFE_EXPONENT = 700.0, 300.0  # e⁷⁰⁰ fits into a double, and so does the square of e³⁰⁰
_MOST_ROUNDS = 500  # most rounds of removing points from a hull: about ten are usual
# terms summed together, and most e-folds between the largest and the least of them
_BLOCK, _MOST_SPREAD = 2048, 300
_GAP_BLOCK = 64  # lattice points that share one spacing; blocks grow farther out
_LARGE_ATOM = 1e-3  # an atom at 0 of this mass can make up for what rounding took from the total mass
_LEAST_LOG_V = -600.0  # log v(0) below which a missing mass is not measured relative to v(0)


class TooCoarse(Exception):  # noqa: N818
    """The lattice is wider than the mechanism's own steps, so nothing positive on it lies below the curve."""


@dataclass(frozen=True)
class Pair:
    """Masses under P at the losses h·index + offset; under Q they are e^{−loss} times that."""

    h: float
    index: NDArray[np.int64]
    log_p: Array
    log_p_infinity: float  # mass of P where Q has none
    log_q_infinity: float  # mass of Q where P has none
    relative_error: float  # by how much the curve of the stored doubles may fail to dominate (be dominated)
    offset: float = 0.0

    @cached_property
    def epsilon(self) -> Array:
        return np.asarray(self.h * self.index + self.offset, dtype=np.float64)

    @cached_property
    def swapped(self) -> Pair:
        """The pair (Q, P)."""
        log_q = (self.log_p - self.epsilon)[::-1]
        infinities = self.log_q_infinity, self.log_p_infinity
        return Pair(self.h, -self.index[::-1], log_q, *infinities, self.relative_error, -self.offset)


def choose_points(h: float, far: tuple[float, float], spacing: Callable[[float], float]) -> NDArray[np.int64]:
    """Lattice points from −far[0] to far[1], both included, with gaps of 2^k·h of at most spacing(±ε).

    A polygon need not have a kink at every lattice point: where the curve is smooth, cells may be wide.
    """
    sides = []
    for sign, end in ((-1, far[0]), (1, far[1])):
        last, start, block = math.ceil(end / h) + 1, 0, _GAP_BLOCK
        pieces = [np.array([0])]
        while start < last:
            stride = 1
            while 2 * stride * h <= min(spacing(sign * start * h), spacing(sign * (start + block) * h)):
                stride = min(2 * stride, block)
                if stride == block:
                    break
            pieces.append(np.arange(start + stride, start + block + 1, stride))
            start += block
            block = _GAP_BLOCK * 2 ** max(0, (start // _GAP_BLOCK).bit_length() - 3)
        side = np.concatenate(pieces)
        sides.append(side[: np.searchsorted(side, last) + 1])
    return np.concatenate([-sides[0][:0:-1], sides[1]])


def out_of_the_money(curve: Curve, epsilon: Array) -> tuple[Array, Array]:
    """Lower and upper bounds on log v at increasing ε of both signs."""
    split = int(np.searchsorted(epsilon, 0.0))
    left = curve.log_delta(-epsilon[:split], ADD)
    right = curve.log_delta(epsilon[split:], REMOVE)
    lower = np.concatenate([left.lower + epsilon[:split], right.lower])
    upper = np.concatenate([left.upper + epsilon[:split], right.upper])
    slack = LOG_SUM * np.abs(epsilon)
    if np.isnan(lower).any() or np.isnan(upper).any() or (lower > upper).any():
        raise AccuracyError(
            "The privacy curve returned NaN or bounds out of order: this is a defect, please report it."
        )
    return lower - slack, upper + slack


def kink_masses(epsilon: Array, gap: Array, log_v: Array) -> tuple[Array, Array]:
    """p_i e^{−w_i} and w_i for the polygon (1−K)₊ + v through the given points, and through (0, 1) on the left.

    p_i = K_i·(slope right − slope left), in units of e^{w_i}, where w_i is the largest log v of the three points
    involved, so that nothing overflows. To the right of the last point v is constant. The kink of (1−K)₊ is
    added separately: 1 at the point with ε = 0 or, if there is no such point, shared between the two ends of the
    edge that crosses ε = 0.
    """
    gap_left = np.concatenate([[np.inf], gap])
    gap_right = np.concatenate([gap, [np.inf]])
    left = np.concatenate([[-np.inf], log_v[:-1]])
    right = np.concatenate([log_v[1:], log_v[-1:]])
    w = np.maximum(np.maximum(left, right), log_v)
    w[np.isneginf(w)] = 0.0
    v0, v1, v2 = np.exp(left - w), np.exp(log_v - w), np.exp(right - w)
    with np.errstate(over="ignore"):
        mass = (v2 - v1) / np.expm1(gap_right) - (v1 - v0) / -np.expm1(-gap_left)
    unit = np.exp(np.minimum(-w, _LARGEST_EXPONENT))
    mass[epsilon == 0] += unit[epsilon == 0]
    across = np.flatnonzero((epsilon[:-1] < 0) & (epsilon[1:] > 0))
    for i in across:
        mass[i] += unit[i] * np.expm1(epsilon[i + 1]) / np.expm1(gap_right[i])
        mass[i + 1] += unit[i + 1] * np.expm1(epsilon[i]) / np.expm1(-gap_left[i + 1])
    return mass, w


def hull(epsilon: Array, gap: Array | None, log_v: Array) -> tuple[NDArray[np.bool_], Array]:
    """Which points are on the lower convex hull of (K, (1−K)₊ + v) and (0, 1), and their log p.

    A point above the chord of any two others is not on the hull. So all points with a negative slope jump are
    removed at once, until none is left. The gaps can be given because they are more accurate than differences of
    rounded ε.
    """
    position = epsilon if gap is None else np.concatenate([[0.0], np.cumsum(gap)])
    keep = _tangents_from_zero(epsilon, log_v)
    for _ in range(_MOST_ROUNDS):
        gaps = np.diff(position[keep])
        mass, w = kink_masses(epsilon[keep], gaps, log_v[keep])
        above = mass < 0
        if not above.any():
            on = np.zeros(epsilon.size, dtype=bool)
            on[keep] = True
            with np.errstate(divide="ignore"):
                return on, np.log(mass) + w
        keep = keep[~above]
    raise TooCoarse


def _tangents_from_zero(epsilon: Array, log_v: Array) -> NDArray[np.intp]:
    """All points except those above the tangents from an end with v = 0, which `hull` would remove one by one."""
    some = np.flatnonzero(log_v > -np.inf)
    if not some.size:
        return np.arange(epsilon.size)
    first, last = int(some[0]), int(some[-1])
    keep = np.arange(max(first - 1, 0), min(last + 2, epsilon.size))
    if last + 1 < epsilon.size:
        side = keep[(epsilon[keep] >= 0) & (keep <= last)]
        far = np.log(np.expm1(epsilon[last + 1] - epsilon[side]))
        if side.size:
            keep = keep[(keep <= side[np.argmin(log_v[side] - epsilon[side] - far)]) | (keep > last)]
    if first > 0:
        side = keep[(epsilon[keep] <= 0) & (keep >= first)]
        far = np.log(np.expm1(epsilon[side] - epsilon[first - 1]))
        if side.size:
            keep = keep[(keep >= side[np.argmin(log_v[side] - far)]) | (keep < first)]
    return keep


def suffix_sums(log_x: Array, position: Array) -> Array:
    """Log S_j, S_j = Σ_{i≥j} x_i e^{−(t_i−t_j)} for increasing t, by positive sums that cannot overflow."""
    result = np.empty(log_x.size)
    carry, at, stop = -np.inf, 0.0, log_x.size
    while stop > 0:
        size = min(_BLOCK, stop)
        while size > 1 and (
            _spread(log_x[stop - size : stop]) > _MOST_SPREAD
            or position[stop - 1] - position[stop - size] > _MOST_SPREAD
        ):
            size //= 2
        start = stop - size
        ramp = position[start:stop] - position[start]
        terms = log_x[start:stop] - ramp
        carried = carry - (at - position[start]) if carry > -np.inf else carry
        w = max(float(terms.max()), carried)
        if w == -np.inf:
            result[start:stop] = -np.inf
        else:
            sums = np.cumsum(np.exp(terms[::-1] - w)) + math.exp(carried - w)
            with np.errstate(divide="ignore"):
                result[start:stop] = np.log(sums[::-1]) + w + ramp
        carry, at, stop = float(result[start]), float(position[start]), start
    return result


def _spread(log_x: Array) -> float:
    finite = log_x[np.isfinite(log_x)]
    return float(np.ptp(finite)) if finite.size else 0.0


def curve_at_nodes(log_p: Array, log_p_infinity: float, position: Array) -> Array:
    """Log Σ_{i>j} p_i (1 − K_j/K_i) + p_∞ at every point j, for increasing losses."""
    tail = suffix_sums(log_p, position)  # K_j·Q(loss ≥ ε_j)
    with np.errstate(divide="ignore"):
        steps = np.append(tail[1:] + np.log(-np.expm1(-np.diff(position))), log_p_infinity)
    return suffix_sums(steps, np.zeros(steps.size))


def _finish(h: float, index: NDArray[np.int64], log_v: Array, least: Array | None = None) -> Pair:
    """Build the pair from the hull and its masses, and check that the stored pair is valid.

    Its curve must agree with the hull at the corners of the hull. A pair above a curve must also lie above the
    curve's lower bounds (`least`) everywhere, which only fails if the stated errors are wrong.
    """
    epsilon = np.asarray(h * index, dtype=np.float64)
    on, log_mass = hull(epsilon, h * np.diff(index), log_v)
    ends = np.flatnonzero(on)[[0, -1]]
    log_p = np.full(index.size, -np.inf)
    log_p[on] = log_mass
    upper = least is not None
    inner = slice(ends[0], ends[1] + 1)
    least = log_v[inner] if least is None else least[inner]
    log_p, log_v, epsilon, index = log_p[inner], log_v[inner], epsilon[inner], index[inner]
    log_p_infinity = float(log_v[-1])
    log_q_infinity = float(log_v[0] - epsilon[0])
    zero = int(np.searchsorted(index, 0))
    if not 0 < zero < index.size - 1 or np.isneginf(log_v[zero]):
        raise TooCoarse
    # Set the atom at 0 so that the mass of P is 1. The mass of Q is then 1 up to the disagreement of both sides
    # at K=1.
    rest = math.fsum(np.exp(np.delete(log_p, zero))) + math.exp(log_p_infinity)
    excess = rest + math.exp(log_p[zero]) - 1
    if log_p[zero] > math.log(_LARGE_ATOM) and abs(excess) < WORST:
        log_p[zero] = math.log1p(-rest)
        excess = 0.0
    right = curve_at_nodes(log_p[zero:], log_p_infinity, epsilon[zero:])
    left = curve_at_nodes((log_p - epsilon)[zero::-1], log_q_infinity, -epsilon[zero::-1]) + epsilon[zero::-1]
    sign = 1.0 if upper else -1.0
    corner = log_p > -np.inf
    violation = max(
        shortfall(sign, log_v[zero:], right, corner[zero:]),
        shortfall(sign, log_v[zero::-1], left, corner[zero::-1]) + abs(math.expm1(left[0] - right[0])),
        shortfall(sign, least[zero:], right),
        shortfall(sign, least[zero::-1], left),
        abs(excess) * math.exp(-log_v[zero]) if log_v[zero] > _LEAST_LOG_V else 0.0,
    )
    if not violation < WORST:
        raise AccuracyError(
            f"The discretised curve misses domination or total mass by a relative {violation:.1e} on a "
            f"grid of {h:.1e} in ε, more than {WORST:.0e}. Ask for less accuracy, or for a better curve."
        )
    some = np.isfinite(log_p)
    error = violation + stored_error(index.size)
    return Pair(h, index[some], log_p[some], log_p_infinity, log_q_infinity, error)


def stored_error(points: int) -> float:
    """The largest relative effect of rounding on the curve of a pair with this many masses (B29)."""
    return (_STORED + points / _CELLS_PER_ROUNDING) * 2 * U


def shortfall(sign: float, wanted: Array, got: Array, where: NDArray[np.bool_] | None = None) -> float:
    """The largest sign·(wanted − got), at least 0; −∞ against −∞ counts as 0."""
    with np.errstate(invalid="ignore"):
        difference = sign * (wanted - got)
    return float(np.nanmax(np.append(difference if where is None else difference[where], 0.0)))


def cell_deficits(lower: Array, upper: Array, epsilon: Array, zero: int) -> Array:
    """ρ of every cell, from bounds on log v at `epsilon`; every FINE-th is an end, `zero` is where ε = 0."""
    n = (lower.size - 1) // FINE
    at = FINE * np.arange(n)[:, None] + np.arange(-1, FINE + 2)
    inside = (at >= 0) & (at < lower.size)
    # Lines must not cross K = 1, where v has its kink, so points on the other side are not used.
    inside &= np.where(at[:, 1:2] >= zero, at >= zero, at <= zero)
    at = np.clip(at, 0, lower.size - 1)
    x = np.exp(epsilon[at] - epsilon[at[:, 1:2]])  # K in units of the left end of the cell
    low, up = lower[at], np.where(inside, upper[at], np.inf)
    reference = np.maximum(low[:, 1:2], low[:, -2:-1])
    reference[np.isneginf(reference)] = 0.0
    low, up = (np.exp(np.minimum(row - reference, _SAFE_EXPONENT)) for row in (low, up))
    slope = (low[:, -2] - low[:, 1]) / (x[:, -2] - x[:, 1])
    near = np.diff(x, axis=1)
    near[near == 0] = 1.0

    def deficit(minorant: Array, where: Array) -> Array:
        chord = low[:, 1] + slope * (where - x[:, 1])
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            return np.where(chord > 0, 1 - minorant / chord, 1.0)

    worst = np.zeros(n)
    for s in range(1, FINE + 1):
        known1, known2 = inside[:, s - 1], inside[:, s + 2]
        slope1 = np.where(known1, (low[:, s] - up[:, s - 1]) / near[:, s - 1], 0.0)
        slope2 = np.where(known2, (up[:, s + 2] - low[:, s + 1]) / near[:, s + 1], 0.0)
        ends = x[:, s], x[:, s + 1]
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            meet = (low[:, s + 1] - low[:, s] + slope1 * ends[0] - slope2 * ends[1]) / (slope1 - slope2)
        meet = np.where(known1 & known2 & (meet >= ends[0]) & (meet <= ends[1]), meet, ends[0])
        lines = np.zeros(n)
        for where in (*ends, meet):
            one = np.where(known1, low[:, s] + slope1 * (where - ends[0]), 0.0)
            two = np.where(known2, low[:, s + 1] - slope2 * (ends[1] - where), 0.0)
            lines = np.maximum(lines, deficit(np.maximum(one, two), where))
        floor = np.minimum(low[:, s], low[:, s + 1])
        flat = np.maximum(deficit(floor, ends[0]), deficit(floor, ends[1]))
        worst = np.maximum(worst, np.minimum(lines, flat))
    return np.clip(worst + _MINORANT, 0.0, 1.0)


def bracket(
    curve: Curve,
    h: float,
    index: NDArray[np.int64],
    margin: float = 0.0,
    support: tuple[int, float] | None = None,
) -> tuple[Pair, Pair]:
    """The pair below and the pair above `curve` with losses among h·index (increasing, 0 inside).

    With a `margin`, the bounds of the curve are first moved apart by that factor. A `support` (k, slope) says that
    the line with this slope that is 0 at e^{−kh} lies below v (see gathered.py): the pair below begins there.
    """
    between = index[:-1, None] + np.diff(index)[:, None] * (np.arange(FINE) / FINE)
    fine = np.asarray(h * np.append(between, index[-1]), dtype=np.float64)
    lower, upper = out_of_the_money(curve, fine)
    lower, upper = lower - margin, upper + margin
    above = _finish(h, index, upper[::FINE], lower[::FINE])
    deficits = cell_deficits(lower, upper, fine, FINE * int(np.searchsorted(index, 0)))
    beta = np.maximum(np.append(1.0, deficits), np.append(deficits, 1.0))
    beta[0] = beta[-1] = 1.0
    if support is not None:
        start = int(np.searchsorted(index, -support[0]))
        beta[: start + 1], beta[start + 1] = 1.0, deficits[start + 1]
    with np.errstate(divide="ignore"):
        log_v = lower[::FINE] + np.log1p(-beta)
    if support is not None:
        allowed = math.log(support[1] * math.expm1(h)) - support[0] * h
        log_v[start + 1] = min(log_v[start + 1], allowed - SUPPORT)
    below = _finish(h, index, log_v)
    return below, above


def pair_above(curve: Curve, h: float, index: NDArray[np.int64]) -> Pair:
    """The pair above alone, which needs fewer points of the curve."""
    lower, upper = out_of_the_money(curve, np.asarray(h * index, dtype=np.float64))
    return _finish(h, index, upper, lower)
