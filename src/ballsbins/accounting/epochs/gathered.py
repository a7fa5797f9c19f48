"""A pair below a curve whose loss is bounded on the left, on a lattice wider than that bound.

One step of Poisson subsampling with q = 1/T has its loss in [log(1−q), ∞), nearly always close to the left
end. On a lattice of spacing h ≫ q that contains 0, nothing useful lies below its curve: the bulk would have
to move to −h. But the lattice can be shifted. Let u(K) = c(K) − (1 − K) = E(K − S)₊, convex, 0 up to K = 1−q.
Take a line ℓ ≤ u, nearly a tangent, and let the lattice begin where ℓ = 0:

    K_0 = e^{−τ} the zero of ℓ,     K_i = K_0 e^{ih},     g = 1 − K up to K_0,   g(K_1) − (1 − K_1) ≤ ℓ(K_1),

and to the right of K_1 as in polygons.py. Between K_0 and K_1 the polygon is at most 1 − K + ℓ, hence below
c. Seen as a rounding of S, all S left of the point of tangency move exactly to their mean K_0. Rare values between
K_0 and K_1 are merged with just enough of the bulk to bring their mean to a lattice point. The product of n such
pairs lives on the lattice shifted by −nτ.

If h < τ, the lattice need not be shifted. It is enough that it contains −τ, where the polygon then begins
(`polygons.bracket` with a `support`).

**The line.** From bounds L ≤ u ≤ U at increasing x_0 < x_1 < … : with slope m = (L_b − U_a)/(x_b − x_a) of
two neighbours a < b, M = (U_b − L_a)/(x_b − x_a), and m₋ the slope m of the pair before, convexity gives

    u(x) ≥ L_b + m(x − x_b) for x ≥ x_b,    u(x) ≥ L_a − M(x_a − x) for x ≤ x_a,    u(x) ≥ L_a + m₋(x − x_a)
    between,

so ℓ(x) = c₀ + mx with c₀ the least of L_b − m·x_b, L_a − m·x_a − (M−m)(x_a − x_0) and L_a − m·x_a −
(m−m₋)(x_b − x_a).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ballsbins.accounting.curve import ADD, REMOVE, Array, Curve, U
from ballsbins.accounting.epochs.polygons import (
    FINE,
    SUPPORT,
    WORST,
    Pair,
    TooCoarse,
    cell_deficits,
    choose_points,
    curve_at_nodes,
    hull,
    shortfall,
    stored_error,
)

# points at which u is evaluated: how many, and how close to the edge the first is; a choice
_POINTS, _FIRST = 400, 1e-4
# rounding of u as a sum of exponentials, and of the edge itself (B1 of docs/derivation.md)
_ROUNDING, _EDGE = 32 * U, 8 * U
_LEAST_SLOPE = 0.02  # least slope of a line: a flatter one would leave the bulk at the edge
_GATHERED = 0.3  # losses gather at the edge if more than this part of Q lies within h of it


def pair_below(curve: Curve, h: float, far: float, spacing: Callable[[float], float], edge: float) -> Pair:
    """The pair below `curve`, whose loss is at least −edge, with losses up to `far`."""
    tau, slope = support(curve, h, edge)
    if tau >= h:
        raise TooCoarse
    index = _points(h, far, spacing)
    between = index[1:-1, None] + np.diff(index[1:])[:, None] * (np.arange(FINE) / FINE)
    fine = np.asarray(h * np.append(between, index[-1]) - tau, dtype=np.float64)
    found = curve.log_delta(fine, REMOVE)
    deficits = cell_deficits(found.lower, found.upper, fine, 0)
    beta = np.maximum(np.append(0.0, deficits), np.append(deficits, 1.0))
    with np.errstate(divide="ignore"):
        log_v = found.lower[::FINE] + np.log1p(-np.minimum(beta, 1.0))
    first = slope * (math.expm1(h) * math.exp(-tau)) - math.expm1(h - tau)  # ℓ(K_1) − (K_1 − 1)
    if first <= 0:
        raise TooCoarse
    log_v[0] = min(log_v[0], math.log(first) - SUPPORT)
    log_v[-1] = -np.inf
    return _finish(h, index, np.append(-np.inf, log_v), -tau)


def _points(h: float, far: float, spacing: Callable[[float], float]) -> NDArray[np.int64]:
    points = choose_points(h, (h, far + h), spacing)
    return np.union1d(points[points >= 0], np.arange(4, dtype=np.int64))


def _supporting_lines(curve: Curve, h: float, edge: float) -> list[tuple[float, float]]:
    """(τ, slope) of lines below u that touch it at points from left to right."""
    width = -math.expm1(-edge)  # u = 0 up to K = 1 − width
    x = np.concatenate([[0.0], width * np.geomspace(_FIRST, 2 * math.expm1(h) / width + 2, _POINTS)])
    epsilon = np.log1p(x - width)
    negative = epsilon < 0
    lower, upper = np.zeros(x.size), np.zeros(x.size)
    left, right = curve.log_delta(-epsilon[negative], ADD), curve.log_delta(epsilon[~negative], REMOVE)
    for bound, put, call in ((lower, left.lower, right.lower), (upper, left.upper, right.upper)):
        bound[negative] = np.exp(epsilon[negative] + put)
        bound[~negative] = np.exp(call) + np.expm1(epsilon[~negative])
    lower, upper = lower * (1 - _ROUNDING), upper * (1 + _ROUNDING)
    lower[0], upper[0] = 0.0, upper[0] + _EDGE * width  # the edge itself is rounded
    gap = np.diff(x)
    m, steep = (lower[1:] - upper[:-1]) / gap, (upper[1:] - lower[:-1]) / gap
    lines = []
    for a in range(1, x.size - 1):
        at = lower[a] - m[a] * x[a]
        c0 = min(
            lower[a + 1] - m[a] * x[a + 1], at - max(steep[a] - m[a], 0.0) * x[a],
            at - max(m[a] - m[a - 1], 0.0) * gap[a],
        )  # fmt: skip
        if m[a] > _LEAST_SLOPE and c0 < 0:
            zero = -c0 / m[a]  # in x = K − (1 − width)
            lines.append((-math.log1p(zero - width) if zero < width else -1.0, float(m[a])))
    lines = [(tau, slope) for tau, slope in lines if 0 < tau < edge]
    if not lines:
        raise TooCoarse
    return lines


def gathers(curve: Curve, h: float, edge: float) -> bool:
    """Whether a large part of Q has its loss within h of the edge; u there is about h times that part."""
    if h >= edge:
        return True
    log_u = curve.log_delta(np.array([edge - h]), ADD).upper[0] - (edge - h)
    return bool(log_u > math.log(_GATHERED * h))


def support(curve: Curve, h: float, edge: float) -> tuple[float, float]:
    """τ and slope of the line below u that comes closest to it at K_1 = e^{h−τ}."""
    lines = _supporting_lines(curve, h, edge)
    tau, slope = np.array(lines).T
    there = h - tau
    left = there < 0
    u = np.empty(there.size)
    u[left] = np.exp(there[left] + curve.log_delta(-there[left], ADD).lower)
    u[~left] = np.exp(curve.log_delta(there[~left], REMOVE).lower) + np.expm1(there[~left])
    best = int(np.argmin(u - slope * math.expm1(h) * np.exp(-tau)))
    return lines[best]


def _finish(h: float, index: NDArray[np.int64], log_v: Array, offset: float) -> Pair:
    """The pair with the masses of the hull, checked to lie below the curve."""
    epsilon = np.asarray(h * index + offset, dtype=np.float64)
    on, log_mass = hull(epsilon, h * np.diff(index), log_v)
    if not on[0]:
        raise TooCoarse
    log_p = np.full(index.size, -np.inf)
    log_p[on] = log_mass
    rest = math.fsum(np.exp(log_p[1:]))
    if not rest < 1:
        raise TooCoarse
    log_p[0] = math.log1p(-rest)
    error_q = abs(math.fsum(np.exp(log_p - epsilon)) - 1)
    got = curve_at_nodes(log_p[1:], -np.inf, epsilon[1:])
    violation = shortfall(-1.0, log_v[1:], got) + (error_q + _EDGE) / -offset
    if not violation < WORST:
        raise TooCoarse
    some = np.isfinite(log_p)
    error = violation + stored_error(index.size)
    return Pair(h, index[some], log_p[some], -math.inf, -math.inf, error, offset)
