"""Moments of one step of Poisson subsampling: S = 1 − q + qZ with Z = exp(s·g − s²/2), g ~ N(0, 1), s = 1/σ.

At K = 1 − q + qz the out-of-the-money value is v = q·E(Z − z)₊ for z ≥ 1 and q·E(z − Z)₊ for z < 1, in closed form
(`deterministic`). With g as the variable of integration, z = exp(s·g − s²/2),

    M(u) − 1 = u(u−1) ∫ e^{(u−1)k} v dk = u(u−1)·q·s ∫ S^{u−2} z(g)·v(g) dg .

Every term is positive at real u, so nothing cancels, however small q is. v has its kink at g = s/2. On either side
the integrand is analytic, and g = s/2 ± log(1 + exp(t − e^{−t})) makes the trapezoidal rule in t converge
geometrically: near the kink, nodes approach it as in the double exponential rule, and far from it they are evenly
spaced, as suits a Gaussian. S^{u−2} is analytic up to a distance of π/s from real g, so the spacing must shrink with
1/s. The sum over every second node shows the error. If large losses matter and
y is large, e^{iyk} turns too fast for these nodes. The large losses are then integrated on an even lattice in k
(`moments`).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import scipy  # its parts, such as `scipy.fft`, load when they are first used
from numpy.polynomial.chebyshev import chebval

from ballsbins.accounting.curve import ANSWER, Array
from ballsbins.accounting.epochs.moments import (
    DEEP,
    FIRST_FLOOR,
    LARGEST_MOMENT,
    PER_WIDTH,
    SPREAD,
    TINY,
    Complex,
    CurveMoments,
    Grid,
    Moments,
    TooFine,
    Transform,
    alias,
    refined,
    weighted_error,
)
from ballsbins.accounting.epochs.survey import Split
from ballsbins.accounting.gaussian import log_hockey_stick
from ballsbins.accounting.poisson import PoissonStepCurve

_NODES_PER_UNIT, _NODES_PER_STRIP = 8.0, 3.0  # nodes in t per unit of t, and per unit of 1/s: usually enough
_FIRST, _FARTHEST = -3.7, 60.0  # t where g − s/2 is 10⁻¹⁹, and the largest g: its density is e^−1800
_DEEPEST = -3000.0  # do not survey log v below this
_TURNS = 20.0  # radians of e^{iyk} that nodes in t can follow
_MOST_DEGREE = 80  # of the Chebyshev series that interpolates a long line
_LEFT_OUT = -42.0  # log of a coefficient of that series that does not show
_LARGEST_LOG_Z = 690.0  # e^690 still fits into a double
# multiplications in one block of a complex matrix product: OpenBLAS starts no second thread up to 2¹⁶
_ONE_THREAD = 2**15
_MOST_NODES = 2**14  # no finer nodes than these, to limit the time
_MOST_PRODUCTS = 4 * 10**7  # of a sum along a line: a few tenths of a second
_FURTHER = 1.5  # if a survey was not deep enough, the next one goes this many times as deep


class StepMoments(Moments):
    """The moments of one step with q = 1/`steps`."""

    def __init__(self, noise_multiplier: float, steps: int) -> None:
        """Everything is in closed form; the nodes of each spacing are made when they are needed."""
        self._s, self._q = 1.0 / noise_multiplier, 1.0 / steps
        self._nodes: dict[float, tuple[Array, Array, Array]] = {}
        self.spacing = 2.0 ** -math.ceil(math.log2(max(_NODES_PER_UNIT, _NODES_PER_STRIP * self._s)))
        self.least = math.log1p(-self._q)
        self._floor = FIRST_FLOOR
        self._lattice = CurveMoments(PoissonStepCurve(noise_multiplier, steps))
        self._take()
        self.spread = SPREAD * self._q * math.erf(self._s / math.sqrt(8))

    def reach(self, floor: float) -> None:
        """Survey the curve of this step out to where log v is below `floor`."""
        self._lattice.reach(floor)
        self._take()

    def _take(self) -> None:
        look = self._lattice
        self.loss, self.log_v, self.bounded = look.loss, look.log_v, look.bounded

    def split_spacing(self, split: Split) -> float:
        """A fraction of the width of the split in g: the loss k changes with g at the rate s·(1 − (1−q)·e^{−k})."""
        rate = -self._s * math.expm1(-split.at + self.least)
        return float(min(self.spacing, 2.0 ** math.floor(math.log2(split.width / (PER_WIDTH * rate)))))

    def transform(
        self, c: float, line: Grid, log_weight: Callable[[Array], Array] | None, h: float, *, kink: bool
    ) -> Transform:
        """The transform of the weighted integrand along a line; large losses are treated apart if y is large."""
        end = float(line.y[-1])
        tilted = self.log_v + (c - 1.0) * self.loss
        if log_weight is not None:
            tilted = tilted + log_weight(self.loss)
        if end * float(self.loss[tilted > tilted.max() - DEEP].max()) < _TURNS:
            return self._along(c, line, log_weight, h)
        while not self._lattice.covers(c, None) and self._floor > _DEEPEST:
            self._floor *= _FURTHER
            self._lattice.reach(self._floor)
        step = Split.at_valley(0.5 * _TURNS / end, math.inf)
        small, large = _both(log_weight, step.log_body), _both(log_weight, step.log_jump)
        near = refined(lambda h: self._along(c, line, small, h), min(h, self.split_spacing(step)), _worst)
        most = float(np.abs(near.value).max())
        far = refined(
            lambda h: self._lattice.transform(c, line, large, h, kink=False),
            self._lattice.split_spacing(step),
            lambda found: _worst(found, most),
        )
        ends, relative = near.ends + far.ends, max(near.relative, far.relative)
        return Transform(near.value + far.value, near.error + far.error, h, relative, ends, settled=True)

    def _along(
        self, c: float, line: Grid, log_weight: Callable[[Array], Array] | None, h: float
    ) -> Transform:
        loss, log_terms, error = self._at(h)
        exponent = log_terms + (c - 2.0) * loss
        if log_weight is not None:
            exponent = exponent + log_weight(loss)
        top = float(exponent.max())
        if top > LARGEST_MOMENT:  # the moments themselves would overflow a double
            raise TooFine
        factor = (c + 1j * line.y) * (c - 1.0 + 1j * line.y) * math.exp(top)
        some = np.flatnonzero(exponent > top - DEEP)
        weight = np.exp(exponent[some] - top)
        fine, distance = fourier(loss[some], weight, np.where(some % 2 == 0, 2.0, 0.0), line)
        fine, distance = factor * fine, np.abs(factor) * distance
        relative = weighted_error(error, exponent - top)
        ends = math.exp(float(exponent[-1]) - top)
        return Transform(fine, alias(fine, distance), h, relative, ends, 2 * loss.size > _MOST_NODES)

    def _at(self, h: float) -> tuple[Array, Array, Array]:
        """Losses at the nodes of spacing h in t, log of q·s·z·v·dg there, and its error, from left to right."""
        if h not in self._nodes:
            s, q = self._s, self._q
            t = h * np.arange(math.ceil(_FIRST / h), math.floor(_FARTHEST / h) + 1)
            inner = t - np.exp(-t)
            away = np.log1p(np.exp(inner))
            log_step = np.log(h * (1.0 + np.exp(-t)) / (1.0 + np.exp(-inner)))
            g = 0.5 * s + np.concatenate([-away[::-1], away])
            log_z = s * np.concatenate([-away[::-1], away])
            known = (np.abs(g) < _FARTHEST) & (log_z < _LARGEST_LOG_Z)
            g, log_z = g[known], log_z[known]
            log_v, off = log_hockey_stick(np.abs(log_z), s)
            log_v = log_v + np.minimum(log_z, 0.0) + math.log(q)
            loss = np.log1p(q * np.expm1(log_z))
            log_step = np.concatenate([log_step[::-1], log_step])[known]
            self._nodes[h] = (
                loss,
                log_v + log_z + log_step + math.log(q * s),
                off + ANSWER * (1.0 + np.abs(log_z)),
            )
        return self._nodes[h]


def _worst(found: Transform, most: float = 0.0) -> float:
    """The largest error, relative to the largest value, or to `most` if `most` is larger."""
    return float(found.error.max() / max(np.abs(found.value).max(), most))


def _both(one: Callable[[Array], Array] | None, two: Callable[[Array], Array]) -> Callable[[Array], Array]:
    return two if one is None else lambda k: one(k) + two(k)


def fourier(position: Array, weight: Array, coarse: Array, line: Grid) -> tuple[Complex, Array]:
    """Σ_j w_j e^{iy_l x_j} at all y of a line, and its distance from the same sum with weights times `coarse`.

    As a function of y the sum is entire, of type at most the largest |x|. If it turns little along the line, a short
    Chebyshev series has all digits, so a long line is interpolated.
    """
    size = line.highest + 1
    weights = weight * np.stack([np.ones(coarse.shape), coarse])
    end = float(line.y[-1])
    degree = _degree(0.5 * end * float(np.abs(position).max()))
    if degree <= _MOST_DEGREE and size > 4 * degree:
        nodes = np.cos(math.pi * (np.arange(degree + 1) + 0.5) / (degree + 1))
        turns = np.exp(0.5 * 1j * end * np.outer(nodes + 1.0, position))
        fine, other = (np.vecdot(row, turns) for row in weights)
        series = (scipy.fft.dct(fine.real, type=2) + 1j * scipy.fft.dct(fine.imag, type=2)) / (degree + 1)
        series[0] *= 0.5
        values = chebval(2.0 * np.arange(size) / (size - 1) - 1.0, series)
        return np.asarray(values), np.full(size, np.abs(fine - other).max())
    if size * position.size > _MOST_PRODUCTS:
        raise TooFine
    # Matrix products, y_l = y_a + y_b, in blocks too small for OpenBLAS to start a second thread.
    width = max(1, math.isqrt(size))
    rows = -(-size // width)
    step = 2.0 * math.pi / line.period
    inner = np.exp(1j * step * np.outer(position, np.arange(width)))
    outer = np.exp(1j * step * width * np.outer(np.arange(rows), position)) * weights[:, None, :]
    sums = np.zeros((2, rows, width), dtype=complex)
    block = max(1, _ONE_THREAD // (rows * width))
    for first in range(0, position.size, block):
        part = slice(first, first + block)
        sums += outer[:, :, part] @ inner[part]
    fine, other = sums.reshape(2, -1)[:, :size]
    return fine, np.abs(fine - other)


def _degree(turn: float) -> int:
    """The degree from which on the Chebyshev coefficients of e^{i·turn·x} do not show: |J_k(z)| ≤ (z/2)^k / k!."""
    degree, log = 0, 0.0
    while log > _LEFT_OUT and degree <= _MOST_DEGREE:
        degree += 1
        log += math.log(0.5 * max(turn, TINY) / degree)
    return degree
