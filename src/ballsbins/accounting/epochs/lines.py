"""Integrals along vertical lines in the plane of u, summed for many K at once, with the error they make.

With the step Δy = 2π/P the trapezoidal sum adds to the tilted curve e^{(c−1)k} v(k) its own images at distances P in
k. The part of the images that is linear in K is known in closed form and subtracted. Leaving out every second term
halves the period, which shows the size of the rest.

**The error** of a value is the sum of: rounding, 2⁻⁵³ times the sum of |terms| weighted with the size of what was
added up in the exponent; aliases of the moments; the end of the line; images; powers of jumps left out; and the
relative error η of the curves of single runs. The last part is simple. As a functional of the curve v of one run, all
others fixed, E(X − K)₊ is f(1) + ∫ f″ v with f″ ≥ 0, and f(1) is its value without that run. So an error η in each of
n runs causes an error of at most η·n·(1 − δ_{n−1}/δ_n) ≤ η·n in the result; that factor is one more integral on the
same line.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ballsbins.accounting.curve import ANSWER, SEVERAL, Array, U
from ballsbins.accounting.epochs.fourier import TINY, Complex, Grid
from ballsbins.accounting.epochs.moments import Part
from ballsbins.accounting.epochs.survey import Split
from ballsbins.accounting.one_epoch.quadrature import complex_log1p

_ABOVE = 1.01  # a little more than 1, to allow for the error of a computed value
_LEAST_SHARE = 1e-3  # every product is charged at least this fraction of the error of single curves
_CRUDE = 0.1  # a value with a larger relative error has no correct digit
_GONE = 1e-20  # a line ends where all later terms are below this fraction of the largest
_RISEN, _FASTER = (
    2.0,
    1.05,
)  # rise of the log of an end that shows rounding; optimism about how fast ends fall
_FLATTEST = 0.05  # curvature in log c; less means that the saddle is at the end of the candidates
_ABSURD = (
    1e9  # terms of this size, relative to the first, are errors of moments: |M(c + iy)| ≤ M(c), or nearly so
)
_LARGEST_LOG = 300.0  # largest logarithm of a number that must fit into a double


class NoLine(Exception):  # noqa: N818
    """No line was found whose error can be stated."""


ANY = -1  # in place of a number of jumps: all terms with one or more jumps together


@dataclass(frozen=True)
class Term:
    """One power of z: how many jumps, the saddle, the height of the integrand there, and the value to expect."""

    jumps: int
    k: float  # the log K that all of this applies to
    c: float
    height: float
    estimate: float
    width: float

    @classmethod
    def lowest(
        cls, jumps: Sequence[int], k: float, away: Array, heights: Array, *, right: bool
    ) -> list[Term]:
        """For each number of jumps the best of the candidates at distances `away` from 1 (right) or 0.

        `heights` has a row for each; the best candidate is refined by a parabola.
        """
        rows = np.arange(len(heights))
        at = np.clip(np.argmin(heights, axis=1), 1, heights.shape[1] - 2)
        x, y = np.log(away[[at - 1, at, at + 1]]), heights[rows, [at - 1, at, at + 1]]
        first, second = (y[2] - y[0]) / (x[2] - x[0]), (y[2] - 2 * y[1] + y[0]) / (x[1] - x[0]) ** 2
        curvature = np.maximum(second, _FLATTEST)
        best = np.exp(x[1] - np.clip(first / curvature, x[0] - x[1], x[2] - x[1]))
        estimate = y[1] - 0.5 * np.log(2 * math.pi * curvature) + np.log(best)
        c, width = 1.0 + best if right else -best, best / np.sqrt(curvature)
        found = np.stack([c, y[1], estimate, width]).T.tolist()
        return [cls(jumps, k, *numbers) for jumps, numbers in zip(jumps, found, strict=True)]


@dataclass(frozen=True)
class Way:
    """A way to split single runs, the terms that matter then, and the logarithm of their estimated sum."""

    split: Split | None
    terms: list[Term]
    together: float
    dropped: float = -math.inf  # log of the height of all other terms

    @property
    def height(self) -> float:
        """The height of the largest term."""
        return max(term.height for term in self.terms)


@dataclass(frozen=True)
class Line:
    """One integral along Re u = c, ready for many K."""

    c: float
    period: float
    # M(u)/(u(u−1)) e^{−scale}, halved at y = 0; second row: its derivative by the size of all v
    integrand: Complex
    scale: float
    mass: float  # of the law that is inverted, and its mean
    mean: float
    off: float  # relative error of both
    slack: float  # absolute error of the sum in units of e^{scale + (1−c)k}, besides rounding of y·k
    weight: float  # Σ|terms|, in the same units
    turning: float  # Σ|terms|·y, likewise

    def value(self, k: Array) -> tuple[Array, Array, Array, Array]:
        """(log of the unit, value, growth, error) at each k, all but the first in that unit.

        The sum of every second term has half the period, so its distance from the full sum shows the images there.
        """
        unit = self.scale + (1.0 - self.c) * k
        total, growth = self._sum(self.integrand, self.period, k)
        half, _ = self._sum(self.integrand[:, ::2], 0.5 * self.period, k)
        error = self.slack + U * (self.weight * (4 + np.abs(unit)) + self.turning * np.abs(k))
        (images, size), (more, _) = (
            self._images(k, period, unit) for period in (self.period, 0.5 * self.period)
        )
        total, half = total - images, half - more
        error = error + (ANSWER * (1.0 + np.abs(unit)) + self.off) * size
        with np.errstate(divide="ignore", invalid="ignore"):
            d = np.abs(half / total - 1.0)
            error = error + np.abs(total) * np.minimum(np.where(np.isnan(d), 1.0, d), 1.0)
        # Chernoff: v ≤ M(c)·K^{1−c}·max_x of the payoff's share
        away = abs(self.c) if self.c < 0.0 else self.c - 1.0
        log_peak = away * math.log(away) - (1.0 + away) * math.log1p(away)
        most = abs(self.c * (self.c - 1.0)) * math.exp(log_peak)
        return unit, total, growth, np.where((self.mean > 0.0) & (total > _ABOVE * most), np.inf, error)

    @staticmethod
    def _sum(integrand: Complex, period: float, k: Array) -> Array:
        """(Δy/π)·Re Σ_l f_l e^{−iy_l k} for both rows, as matrix products: y_l = y_a + y_b."""
        step = 2.0 * math.pi / period
        size = integrand.shape[1]
        width = max(1, math.isqrt(size))
        rows = -(-size // width)
        padded = np.zeros((2, rows * width), dtype=complex)
        padded[:, :size] = integrand
        inner = np.exp(np.outer(np.arange(width), -1j * step * k))
        outer = np.exp(np.outer(np.arange(rows), -1j * step * width * k))
        # row by row: each product is too small to start a second thread
        sums = (padded.reshape(2, rows, 1, width) @ inner)[:, :, 0, :]
        return np.asarray((step / math.pi) * (sums * outer).sum(axis=1).real)

    def _images(self, k: Array, period: float, unit: Array) -> Array:
        """The part of the images of the curve that is linear in K, in units of e^unit, and the size of its terms."""
        sign = 1.0 if self.c > 1.0 else -1.0
        n = np.floor(sign * k / period) + 1.0
        mean, mass = abs(self.c - 1.0) * period, abs(self.c) * period
        with np.errstate(over="ignore", invalid="ignore"):
            means = self.mean * np.exp(-n * mean - unit) / -math.expm1(-mean)
            masses = self.mass * np.exp(k - n * mass - unit) / -math.expm1(-mass)
            return np.stack([sign * (means - masses), means + masses])


@dataclass(frozen=True)
class Lines:
    """All lines for the K around one place, and the relative error that they share."""

    lines: Sequence[Line]
    count: int  # number of all runs
    relative: float  # relative error of the curves of single runs
    log_rest: float  # log of everything that was left out

    def log_value(self, k: Array) -> tuple[Array, Array]:
        """Log of the value and its relative error, which is ∞ where no digit is correct."""
        found = [line.value(k) for line in self.lines]
        unit = np.max([part[0] for part in found], axis=0)
        total = np.sum([part[1] * np.exp(part[0] - unit) for part in found], axis=0)
        growth = np.sum([part[2] * np.exp(part[0] - unit) for part in found], axis=0)
        error = np.sum([part[3] * np.exp(part[0] - unit) for part in found], axis=0)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            log = unit + np.log(total)
            share = np.clip(_ABOVE * np.abs(growth) / total + _LEAST_SHARE, 0.0, self.count)
            relative = (
                error / total + np.exp(np.minimum(self.log_rest - log, _LARGEST_LOG)) + share * self.relative
            )
        good = (total > 0.0) & (relative < _CRUDE)
        return np.where(good, log, -np.inf), np.where(good, relative, np.inf)


def in_sight(ends: Sequence[float], enough: float, longer: int) -> bool:
    """Whether a line that may become so many times longer is likely to end.

    Args:
        ends: logarithms of what lay beyond the line, each after doubling it.
        enough: how small the last one must become.
        longer: how many times longer the line may become.
    """
    gains = -np.diff(ends)
    if gains.size and gains[-1] < -_RISEN:  # only rounding of the moments is left
        return False
    if gains.size < 2 or gains[-2] <= 0.0:
        return True
    further = (_FASTER * gains[-1] / gains[-2]) ** np.arange(1, max(longer, 1).bit_length())
    return bool(ends[-1] - gains[-1] * further.sum() < enough)


def _powers(series: Any, ratio: Any, count: int) -> Any:
    """Multiply a power series in z (along the first axis) by (1 + ratio·z)^count."""
    result, choose, power = np.zeros_like(series), 1.0, np.ones_like(ratio)
    for j in range(min(series.shape[0], count + 1)):
        if j > 0:
            choose, power = choose * (count - j + 1) / j, power * ratio
        result[j:] += choose * power * series[: series.shape[0] - j]
    return result


def _any_jumps(parts: Sequence[tuple[Part, int]]) -> tuple[Complex, Complex, Array]:
    """(M^n − M_body^n)/M_body^n, all powers of z but the first; its derivative by the size of all v; its error.

    The derivatives of M^n − M_body^n by M_body and J are n(M^{n−1} − M_body^{n−1}) and nM^{n−1}.
    """
    split = [
        (1.0 + part.body.value, part.body, part.jump, count) for part, count in parts if part.jump is not None
    ]
    more = np.sum([count * complex_log1p(jump.value / base) for base, _, jump, count in split], axis=0)
    rise = np.exp(more)
    growth, error = np.zeros_like(more), U * SEVERAL * np.abs(rise) * (1.0 + np.abs(more))
    for base, body, jump, count in split:
        whole = base + jump.value
        growth += count * (rise * (body.value + jump.value) / whole - body.value / base)
        error += count * (np.abs(rise / whole - 1.0 / base) * body.error + np.abs(rise / whole) * jump.error)
    return np.expm1(more), growth, error


def _totals(term: Term, parts: Sequence[tuple[Part, int]]) -> tuple[float, float, float]:
    """Mass and mean of the law that a term inverts, and their relative error: its values at u = 0 and u = 1."""
    found = []
    for excess in ([part.mass for part, _ in parts], [part.mean for part, _ in parts]):
        log_body = sum(count * math.log1p(e) for e, (_, count) in zip(excess, parts, strict=True))
        if term.jumps == ANY:
            found.append(-math.expm1(log_body))
            continue
        series = np.zeros(term.jumps + 1)
        series[0] = 1.0
        for e, (_, count) in zip(excess, parts, strict=True):
            series = _powers(series, np.float64(-e / (1.0 + e)), count)
        found.append(math.exp(log_body) * float(series[-1]))
    worst = max(count * abs(e) for part, count in parts for e in (part.mass, part.mean))
    relative = max((part.body.relative for part, _ in parts), default=0.0)
    return found[0], found[1], (max(term.jumps, 1) + worst) * (relative + SEVERAL * U)


def assemble(term: Term, grid: Grid, parts: Sequence[tuple[Part, int]]) -> tuple[Line, float, float]:
    """Build a line from the moments: the line, the relative error of the curves, and what lies beyond its end."""
    y = grid.y
    u = term.c + 1j * y
    log_m, spread = np.zeros(u.shape, dtype=complex), np.zeros(u.shape)
    series = np.zeros((max(term.jumps, 0) + 1, u.size), dtype=complex)
    series[0] = 1.0
    growth, relative, ends = np.full(u.shape, max(term.jumps, 0) + 0j), 0.0, 0.0
    absolute = np.zeros(u.shape)  # errors that are not relative to the term itself, in units of M_body^n
    with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
        for part, count in parts:
            modulus = np.maximum(np.abs(1.0 + part.body.value), TINY)
            log_m += count * complex_log1p(part.body.value)
            spread += count * part.body.error / modulus
            relative = max(relative, part.body.relative)
            ends += count * part.body.ends
            growth += count * part.body.value / (1.0 + part.body.value)
            if part.jump is not None and term.jumps == ANY:
                relative, ends = max(relative, part.jump.relative), ends + count * part.jump.ends
            elif part.jump is not None and term.jumps > 0:
                series = _powers(series, part.jump.value / (1.0 + part.body.value), count)
                spread += term.jumps * part.jump.error / np.maximum(np.abs(part.jump.value), TINY)
                relative = max(relative, part.jump.relative)
                ends += term.jumps * part.jump.ends
        if term.jumps == ANY:
            (series[0], growth, absolute), spread = _any_jumps(parts), np.zeros(u.shape)
        exponent = log_m - np.log(u) - np.log(u - 1.0)
        scale = float(exponent.real[0]) + math.log(max(float(np.abs(series[-1][0])), TINY))
        unit = np.exp(exponent - scale)
        terms = unit * series[-1]
        growth = np.where(terms == 0.0, 0.0, growth * (unit if term.jumps == ANY else terms))
    step, sizes = 2.0 * math.pi / grid.period, np.abs(terms)
    if not (sizes < (_ABSURD if term.jumps == 0 else math.inf)).all():
        raise NoLine("unresolved")
    later = np.maximum.accumulate(sizes[::-1])[::-1]
    gone = np.flatnonzero(later < _GONE * later[0])
    stop = int(gone[0]) if gone.size else u.size
    beyond = float(later[stop - 1]) * float(y[-1]) / math.pi if gone.size == 0 else 0.0
    with np.errstate(over="ignore"):
        off = sizes * np.minimum(spread + U * (SEVERAL + 2.0 * np.abs(log_m)), 2.0) + np.abs(unit) * absolute
    slack = step / math.pi * float(off[:stop].sum()) + beyond + ends
    terms, sizes = np.stack([terms, growth])[:, :stop], sizes[:stop]
    terms[:, 0] *= 0.5
    weight = step / math.pi * float(sizes.sum())
    turning = step / math.pi * float((sizes * y[:stop]).sum())
    totals = _totals(term, parts)
    return Line(term.c, grid.period, terms, scale, *totals, slack, weight, turning), relative, beyond
