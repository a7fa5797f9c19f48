"""Paths of integration in the plane: off the real axis at one point, until the integrand has dropped for good."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ballsbins.accounting.balls_and_bins.basket import Basket
from ballsbins.accounting.balls_and_bins.laplace import Complex, Flags, Real
from ballsbins.accounting.balls_and_bins.sums import DROP, Nodes, Strikes, drift_of, worst

# Angles past the vertical at which a path may end. The straight line is best for anything like a Gaussian (where the
# exponent's curvature in log ω is large); bends hasten slow decay.
_BENDS = (0.3, 0.0, 0.6, 0.9)
_STRAIGHT_FIRST = (0.0, 0.3, 0.6, 0.9)


class Path:
    """ω(u) = ω₀ + w(−tan β (cosh u − 1) + i sinh u), u ≥ 0, leaving the real axis vertically."""

    def __init__(self, start: float, width: float, bend: float) -> None:
        """Leave the real axis at `start`; `width` is the scale of the integrand, `bend` the final angle."""
        self.start, self.width, self.bend = start, width, np.tan(bend)

    def __call__(self, u: Real) -> tuple[Complex, Complex]:
        """Points and derivatives."""
        sinh, cosh = np.sinh(u), np.cosh(u)
        omega = self.start - self.width * self.bend * 2.0 * np.sinh(0.5 * u) ** 2 + 1j * self.width * sinh
        return omega, self.width * (-self.bend * sinh + 1j * cosh)


@dataclass(frozen=True)
class Trace:
    """What was met on a path at equal steps of u: enough to judge the path, and to integrate along it."""

    path: Path
    u: Real
    omega: Complex
    transform: Complex
    plain: Real
    rise: float  # of the integrand above its start, in logs

    @property
    def score(self) -> float:
        """Smaller is better: a path should not climb and should end soon."""
        return 2.0 * self.rise + float(self.u[-1])


def _trace(basket: Basket, path: Path, strikes: Strikes, step: float) -> Trace | None:
    """Follow the path until the integrand has dropped for good; None if it climbs instead."""
    u, omega, transform, plain = np.empty(0), np.empty(0, complex), np.empty(0, complex), np.empty(0)
    sizes = np.empty(0)
    while len(u) * step < 40.0:
        chunk = int(
            np.ceil((3.7 if len(u) == 0 else 1.6) / step)
        )  # a Gaussian has dropped by 3.1, most by 3.6
        more = step * np.arange(len(u), len(u) + chunk, dtype=np.float64)
        at, derivative = path(more)
        found, uncentred = basket.exponent(at)
        size = (drift_of(basket.size, strikes[:1], uncentred, float(basket.size) * at)[0] + found).real
        size += np.log(np.abs(derivative / at)) - np.log(np.abs(at))  # ω² may be beyond the doubles
        size = np.where(np.isfinite(size), size, np.inf)
        sizes = np.concatenate([sizes, size])
        u, omega = np.concatenate([u, more]), np.concatenate([omega, at])
        transform, plain = np.concatenate([transform, found]), np.concatenate([plain, uncentred])
        peak = float(sizes.max())
        if peak > sizes[0] + 30.0:
            return None
        dropped = np.maximum.accumulate(sizes) - sizes > DROP
        if dropped.any():
            end = int(dropped.argmax()) + 1
            return Trace(path, u[:end], omega[:end], transform[:end], plain[:end], peak - float(sizes[0]))
    return None


def best_trace(
    basket: Basket, start: float, curvature: float, strikes: Strikes, step: float
) -> tuple[float, Trace | None]:
    """The scale of the integrand at `start`, and the best of a few paths from there."""
    width = abs(start) / np.sqrt(curvature)
    best: Trace | None = None
    for bend in _STRAIGHT_FIRST if curvature > 20.0 else _BENDS:
        trace = _trace(basket, Path(start, width, bend), strikes, step)
        if trace is not None and (best is None or trace.score < best.score):
            best = trace
        if best is not None and best.score < 7.0:
            break
    return width, best


def weighted(basket: Basket, trace: Trace, log_du: Real, probes: int = 7) -> Nodes:
    """Turn points on a path into quadrature nodes, with a sample of the transform's error."""
    inner = 0.0
    if probes > 0:
        probe = slice(0, None, max(1, len(trace.u) // probes))
        finer, _ = basket.exponent(trace.omega[probe], 1.6)
        inner = worst(np.abs(_unwound(finer - trace.transform[probe])) / np.abs(finer))
    _, derivative = trace.path(trace.u)
    factor = derivative / (np.pi * float(basket.size) * trace.omega)
    log_weight = np.asarray(np.log(factor) - np.log(trace.omega) + log_du, dtype=np.complex128)
    return Nodes(trace.omega, trace.transform, trace.plain, log_weight, inner)


def _unwound(difference: Complex) -> Complex:
    turns = np.round(difference.imag / (2.0 * np.pi))
    return difference - 2j * np.pi * turns


def near(strikes: Strikes, k: float, scale: float) -> Flags:
    """Which strikes are within a few standard deviations: farther off the nodes do not resolve the phase."""
    return np.asarray(scale * np.abs(strikes.k - k) < 7.0)
