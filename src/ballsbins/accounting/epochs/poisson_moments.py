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
from functools import cached_property

import numpy as np

from ballsbins.accounting.curve import ANSWER, Array
from ballsbins.accounting.epochs.curve_moments import CurveMoments
from ballsbins.accounting.epochs.fourier import TINY, Complex, Grid, TooFine, alias, fourier
from ballsbins.accounting.epochs.moments import (
    DEEP,
    FIRST_FLOOR,
    LARGEST_MOMENT,
    PER_WIDTH,
    SPREAD,
    Moments,
    Transform,
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
_LARGEST_LOG_Z = 690.0  # e^690 still fits into a double
# No finer nodes than these, to limit time and memory. With few steps, the losses of a narrow split would need more.
_MOST_NODES, _FINEST = 2**14, 2.0**-8
_FURTHER = 1.5  # if a survey was not deep enough, the next one goes this many times as deep


class StepMoments(Moments):
    """The moments of one step with q = 1/`steps`."""

    faithful = True  # v is in closed form

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
        fine = 2.0 ** math.floor(math.log2(split.width / (PER_WIDTH * rate)))
        return float(min(self.spacing, max(fine, _FINEST)))

    def rough(self, c: Array, split: Split | None) -> Array:
        """Log M_body at real c outside of [0, 1]; if the law is split, from its density.

        Left of 0 it is as precise as the nodes: a large tilt shows how far every loss is from the least one.
        """
        if split is None and c[0] < 0.0:
            loss, log_terms, _ = self._at(self.spacing)
            return np.logaddexp(0.0, np.log(c * (c - 1.0)) + _log_sums(loss, log_terms, c - 2.0))
        if split is None or not split.law:
            return super().rough(c, split)
        loss, log_weight = self._law
        return _log_sums(loss, log_weight + split.log_body(loss), c)

    def rough_jump(self, c: Array, split: Split) -> Array:
        """Log J at real c outside of [0, 1], likewise."""
        if not split.law:
            return super().rough_jump(c, split)
        loss, log_weight = self._law
        return _log_sums(loss, log_weight + split.log_local_jump(loss), c)

    def rough_along(self, c: float, y: Array, split: Split | None) -> Complex:
        """M_body at u = c + iy, likewise."""
        if split is None and c < 0.0:
            loss, log_terms, _ = self._at(self.spacing)
            u, exponent = c + 1j * y, log_terms + (c - 2.0) * loss
            return np.asarray(1.0 + u * (u - 1.0) * (np.exp(1j * np.outer(y, loss)) @ np.exp(exponent)))
        if split is None or not split.law:
            return super().rough_along(c, y, split)
        loss, log_weight = self._law
        exponent = log_weight + split.log_body(loss) + c * loss
        return np.asarray(np.vecdot(np.exp(-1j * np.outer(y, loss)), np.exp(exponent)))

    @cached_property
    def _law(self) -> tuple[Array, Array]:
        """Losses at nodes of the first spacing, and log φ(g)·dg there."""
        g, log_z, log_step = self._points(self.spacing)
        return np.log1p(self._q * np.expm1(log_z)), log_step - 0.5 * g**2 - 0.5 * math.log(2.0 * math.pi)

    def edge(self, c: float, line: Grid, split: Split) -> tuple[Transform, float, float]:
        """The slope of a split is narrow: an even lattice in k serves it."""
        return self._lattice.edge(c, line, split)

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
            _, log_z, log_step = self._points(h)
            log_v, off = log_hockey_stick(np.abs(log_z), s)
            log_v = log_v + np.minimum(log_z, 0.0) + math.log(q)
            loss = np.log1p(q * np.expm1(log_z))
            self._nodes[h] = (
                loss,
                log_v + log_z + log_step + math.log(q * s),
                off + ANSWER * (1.0 + np.abs(log_z)),
            )
        return self._nodes[h]

    def _points(self, h: float) -> tuple[Array, Array, Array]:
        """The nodes of spacing h in t: g, log z(g) and log dg."""
        t = h * np.arange(math.ceil(_FIRST / h), math.floor(_FARTHEST / h) + 1)
        inner = t - np.exp(-t)
        away = np.log1p(np.exp(inner))
        log_step = np.log(h * (1.0 + np.exp(-t)) / (1.0 + np.exp(-inner)))
        g = 0.5 * self._s + np.concatenate([-away[::-1], away])
        log_z = self._s * np.concatenate([-away[::-1], away])
        known = (np.abs(g) < _FARTHEST) & (log_z < _LARGEST_LOG_Z)
        return g[known], log_z[known], np.concatenate([log_step[::-1], log_step])[known]


def _log_sums(loss: Array, log_weight: Array, c: Array) -> Array:
    """Log Σ_j w_j e^{c·k_j} for every c."""
    exponent = np.multiply.outer(c, loss)
    exponent += log_weight
    top = exponent.max(axis=1)
    exponent -= top[:, None]
    return np.asarray(top + np.log(np.exp(exponent, out=exponent).sum(axis=1)))


def _worst(found: Transform, most: float = 0.0) -> float:
    """The largest error, relative to the largest value, or to `most` if `most` is larger."""
    return float(found.error.max() / max(np.abs(found.value).max(), most, TINY))


def _both(one: Callable[[Array], Array] | None, two: Callable[[Array], Array]) -> Callable[[Array], Array]:
    return two if one is None else lambda k: one(k) + two(k)
