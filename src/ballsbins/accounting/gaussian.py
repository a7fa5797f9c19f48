"""Batches in a fixed order: one Gaussian comparison per epoch, in closed form.

Proposition D-hockey of the paper: (N(1, σ²), N(0, σ²)) tightly dominates an epoch, whatever T is, and E
epochs are one epoch at σ/√E (the sum of the E numbers is sufficient). With s = √E/σ,

    δ(ε) = Φ(s/2 − ε/s) − e^ε Φ(−s/2 − ε/s)                                        (both directions alike).

The difference cancels for large ε and for small s. With x = ε/s − s/2, φ(x) = e^ε φ(x + s), so that

    δ(ε) = φ(x) · [R(x) − R(x+s)],      R(x) = Φ(−x)/φ(x) = √(π/2)·erfcx(x/√2)        (Mills' ratio),
    R(x) − R(x+s) = ∫_x^{x+s} G(t) dt,  G = −R′ = 1 − tR(t) = R(t)·c(t) > 0,
    c(t) = 1/(t + 2/(t + 3/(t + …))).

The bracket is computed as a difference if R(x+s) < ¾R(x), and otherwise by a Gauss–Legendre rule on G: there, s is
at most about ⅓·max(1, x), less than the length over which G changes, and twelve nodes are exact to rounding. For
ε < 0, δ(ε) = 1 − e^ε + e^ε δ(−ε), a sum of positive terms.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import erfcx

from ballsbins.accounting.curve import ANSWER, Array, Curve, Direction, Interval, U

# B17: docs/derivation.md.
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)  # exact to rounding over less than G's own scale (B17)
_CLOSE = 0.75  # R(x + s)/R(x) above which the difference would lose more than two bits
# Continued fraction of c(t): from t, to t, number of terms for all digits (tested against mpmath).
_FRACTIONS = ((3.0, 6.0, 70), (6.0, 20.0, 20), (20.0, np.inf, 9))
_DEEP = -30.0  # x below which Φ(−x) is 1 to 197 digits
_ROUNDING, _PART = 2 * U, 32  # rounding of the sum that gives log δ, and units for the bracket (B17)
_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


def mills_ratio(x: Array) -> Array:
    """Return R(x) = Φ(−x)/φ(x)."""
    return np.asarray(math.sqrt(math.pi / 2) * erfcx(x / math.sqrt(2)), dtype=np.float64)


def _mills_slope(t: Array) -> Array:
    """Return G(t) = 1 − t·R(t) for t ≥ −1 to relative rounding: directly below 3, by continued fraction above."""
    ratio = mills_ratio(t)
    slope = 1 - t * ratio
    for least, most, terms in _FRACTIONS:
        here = (t >= least) & (t < most)
        if here.any():
            far, c = t[here], np.zeros(1)
            for k in range(terms, 1, -1):
                c = k / (far + c)
            slope[here] = ratio[here] / (far + c)
    return slope


def mills_difference(x: Array, s: float) -> Array:
    """Return R(x) − R(x+s) without cancellation, for x ≥ −s/2; it may be +∞ if x < −37."""
    near, far = mills_ratio(x), mills_ratio(x + s)
    difference = np.asarray(near - far)
    close = far > _CLOSE * near
    if close.any():
        t = x[close, None] + 0.5 * s * (1 + _NODES)
        difference[close] = 0.5 * s * np.vecdot(_mills_slope(t), _WEIGHTS)
    return difference


def log_hockey_stick(epsilon: Array, s: float) -> tuple[Array, Array]:
    """Return log δ(ε) of (N(s, 1), N(0, 1)) for ε ≥ 0, and a bound on its absolute error.

    The error is that of x²/2 and of the rounding of the answer itself, both relative to the size of log δ,
    plus a few units for the bracket.
    """
    x = epsilon / s - 0.5 * s
    difference = mills_difference(np.maximum(x, _DEEP), s)
    log_delta = -0.5 * x * x - _LOG_SQRT_2PI + np.log(difference)
    deep = x < _DEEP  # there only e^ε Φ(−x−s) = φ(x) R(x+s) is left to subtract from 1
    if deep.any():
        y = x[deep]
        log_delta[deep] = np.log1p(
            -np.exp(-0.5 * y * y - _LOG_SQRT_2PI) * (mills_ratio(y + s) + mills_ratio(-y))
        )
    size = np.where(deep, 0.0, np.abs(x) * (epsilon / s + s))
    return np.minimum(log_delta, 0.0), _ROUNDING * (_PART + 2 * size + np.abs(log_delta))


@dataclass(frozen=True)
class GaussianCurve(Curve):
    """The privacy curve of `epochs` passes in a fixed order; also of balls-and-bins with T = 1."""

    noise_multiplier: float
    epochs: int = 1

    kind = "closed form"
    method = "closed form"

    @property
    def sensitivity(self) -> float:
        """s = √E/σ, the distance between the two means in units of the noise."""
        return math.sqrt(self.epochs) / self.noise_multiplier

    def at(self, epsilon: Array, direction: Direction) -> Interval:
        """Return log δ(ε), the same in both directions, with an error of a few roundings."""
        del direction  # N(s, 1) against N(0, 1) is symmetric
        value, error = log_hockey_stick(epsilon, self.sensitivity)
        return Interval.around(value, error + ANSWER)
