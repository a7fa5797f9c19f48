"""Sums Σ_j w_j e^{iy_l x_j} at all points y_l of a line, and the points of lines themselves."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy  # its parts, such as `scipy.fft`, load when they are first used
from numpy.polynomial.chebyshev import chebval
from numpy.typing import NDArray

from ballsbins.accounting.curve import Array

Complex = NDArray[np.complex128]

TINY = 1e-300  # near the least double: keeps logarithms and quotients finite
_POWER = 1.4  # power of the distance of two trapezoidal sums that bounds the error of the finer one
_MOST_DEGREE = 80  # of the Chebyshev series that interpolates a long line
_LEFT_OUT = -42.0  # log of a coefficient of that series that does not show
# multiplications in one block of a complex matrix product: OpenBLAS starts no second thread up to 2¹⁶
_ONE_THREAD = 2**15
_MOST_PRODUCTS = 4 * 10**7  # of a sum along a line: a few tenths of a second


class TooFine(Exception):  # noqa: N818
    """A lattice would need more points than is reasonable."""


@dataclass(frozen=True)
class Grid:
    """The points u = c + 2πil/P, l = 0 … `highest`, of a line. P is a few times a power of 2, so lattices fit."""

    period: float
    highest: int

    @classmethod
    def covering(cls, period: float, end: float) -> Grid:
        """A grid whose period is at least `period`, with y up to `end` or a little more."""
        unit = _unit(period)
        period = unit * math.ceil(period / unit)
        return cls(period, max(8, math.ceil(end * period / (2.0 * math.pi))))

    @property
    def y(self) -> Array:
        return np.asarray((2.0 * math.pi / self.period) * np.arange(self.highest + 1))

    def shortened(self, most: int) -> Grid:
        """The same line, with at most so many points."""
        return Grid(self.period, min(self.highest, most))

    def farther(self) -> Grid:
        """The same line, twice as far."""
        return Grid(self.period, 2 * self.highest)

    def lattice(self, h: float) -> tuple[int, float]:
        """Points per period and spacing, at most h, of a lattice that resolves all these y twice over."""
        h = min(_unit(self.period), 2.0 ** math.floor(math.log2(min(h, self.period / (4 * self.highest)))))
        return round(self.period / h), h


def _unit(period: float) -> float:
    """The widest spacing of a lattice: a power of 2 that fits 16 to 32 times into a period."""
    return float(2.0 ** math.floor(math.log2(period / 16)))


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


def alias(fine: Complex, distance: Array) -> Array:
    """The error of a trapezoidal sum from its distance to the one over every second point.

    The error falls at least geometrically with the number of points, so halving the step squares it. To be
    careful, the power used is 1.4 instead of 2.
    """
    size = max(float(np.abs(fine).max()), TINY)
    d = distance / size
    return np.asarray(size * np.minimum((8 * d) ** _POWER, d))
