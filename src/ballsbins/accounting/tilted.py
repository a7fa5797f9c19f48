"""The curve of a product of discrete pairs by an exponentially tilted FFT, with bounds on all that FFT does
wrong.

Let r = Π* p_j^{*n_j} be the law of the summed loss under P (atoms on the lattice of spacing h). For θ ≥ 0 and
κ(θ) = Σ_j n_j log Σ_i p_{j,i} e^{θε_i}, the tilted laws p̃ = p e^{θε}/Σ… are probabilities, r̃ = Π* p̃ = r
e^{θε−κ}, and

    δ(ε) = e^{κ−θε} Σ_{ε_k>ε} r̃_k e^{−θ(ε_k−ε)} (1 − e^{−(ε_k−ε)})  +  (mass at infinity).

With κ′(θ) = ε the sum is over the *bulk* of r̃, so that an absolute error of 10⁻¹⁵ in r̃ is a relative one in
δ, however small δ is. One θ serves all ε within a few tilted standard deviations.

What is bounded (Higham, Accuracy and Stability of Numerical Algorithms, thm 24.2: ‖fft(x) − computed‖₂ ≤
e_N‖fft(x)‖₂ with e_N ≈ 7u·log₂N):
- rounding of r̃ in any one cell, by Cauchy–Schwarz on the inverse transform of Π z_j^{n_j}:
  D = (e_N + 4nu)·‖r̃‖₂ + Σ_j n_j e_N ‖p̃_j‖₂ ‖(|z_j|+Δ)^{n_j−1} Π_{i≠j}|z_i|^{n_i}‖₂/√N;
- mass outside of the window of N cells, by Chernoff with the exact κ: what is above is missed, what is
  outside is wrapped into the window; the weight of such mass is at most max_x e^{−θx}(1−e^{−x}) =
  θ^θ/(1+θ)^{1+θ};
- rounding of log p + θε − κ, relative.
The upper bound adds these, the lower one subtracts them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from ballsbins.accounting.curve import Array
from ballsbins.accounting.discretize import Pair, suffix_sums
from ballsbins.errors import AccuracyError

MAX_CELLS = 2**23
REACH = 4.0  # tilted standard deviations around its mean that one θ serves
_OUTSIDE = 32.0  # −log of the mass that may lie outside of the window
_U = 2.0**-53
_LUMPS = 2048

Spectrum = NDArray[np.complex128]


@dataclass(frozen=True)
class Atoms:
    """Losses and log masses of one factor, and how often it occurs."""

    epsilon: Array
    log_p: Array
    count: int

    def lumped(self) -> Atoms:
        """At most _LUMPS atoms with nearly the same moments, to look for θ."""
        n = self.log_p.size
        if n <= _LUMPS:
            return self
        size = -(-n // _LUMPS)
        pad = -n % size
        log_p = np.concatenate([self.log_p, np.full(pad, -np.inf)]).reshape(-1, size)
        epsilon = np.concatenate([self.epsilon, np.zeros(pad)]).reshape(-1, size)
        w = np.maximum(log_p.max(axis=1, keepdims=True), -1e300)
        p = np.exp(log_p - w)
        total = p.sum(axis=1)
        full = total > 0
        return Atoms(
            (p * epsilon).sum(axis=1)[full] / total[full], np.log(total[full]) + w[full, 0], self.count
        )

    def log_moment(self, theta: float) -> float:
        """Log Σ p e^{θε}, once."""
        x = self.log_p + theta * self.epsilon
        w = float(x.max())
        return w + math.log(float(np.exp(x - w).sum()))

    def moments(self, theta: float) -> tuple[float, float, float]:
        """Log Σ p e^{θε}, tilted mean and tilted variance, once."""
        x = self.log_p + theta * self.epsilon
        w = float(x.max())
        p = np.exp(x - w)
        total = float(p.sum())
        mean = float(p @ self.epsilon) / total
        variance = float(p @ (self.epsilon - mean) ** 2) / total
        return w + math.log(total), mean, variance


@dataclass(frozen=True)
class Cumulants:
    """κ(θ), its derivatives, and the θ that puts the mean at ε."""

    atoms: Sequence[Atoms]

    def at(self, theta: float) -> tuple[float, float, float]:
        """κ, κ′, κ″ of the sum of all losses."""
        each = [(a.count, a.moments(theta)) for a in self.atoms]
        kappa, mean, variance = (sum(n * m[k] for n, m in each) for k in range(3))
        return kappa, mean, variance

    def solve(self, epsilon: float, largest: float) -> float:
        """The θ in [0, largest] with κ′(θ) = ε to 10⁻³ standard deviations, else the nearer end."""
        low, high = 0.0, math.inf
        _, mean, variance = self.at(0.0)
        if mean >= epsilon:
            return 0.0
        theta = min((epsilon - mean) / max(variance, 1e-300), largest)
        for _ in range(200):
            _, mean, variance = self.at(theta)
            if abs(mean - epsilon) <= 1e-3 * math.sqrt(variance) + 1e-15 * abs(epsilon):
                break
            if mean < epsilon:
                if theta >= largest:
                    break
                low = theta
            else:
                high = theta
            newton = theta + (epsilon - mean) / max(variance, 1e-300)
            if not low < newton < high:
                newton = 2 * theta if math.isinf(high) else 0.5 * (low + high)
            theta = min(newton, largest, 4 * theta if math.isinf(high) else math.inf)
            if high - low <= 1e-12 * high:
                break
        return theta


@dataclass(frozen=True)
class Sheet:
    """The composed curve around one θ: valid for `start` ≤ ε ≤ `stop`."""

    h: float
    first: int
    start: float
    stop: float
    theta: float
    kappa: float
    log_value: (
        Array  # log Σ_{j≥k} r̃_j e^{−θ(ε_j−ε_k)}(1 − e^{−(ε_j−ε_k)}) at the lattice points of the window
    )
    log_tail: Array  # log Σ_{j≥k} r̃_j e^{−(1+θ)(ε_j−ε_k)}
    log_slack: float  # log of what is added to (upper) or taken from (lower) the sum besides D
    relative: float  # log of the factor on the whole, added or taken
    log_infinity: float
    upper: bool

    def log_delta(self, epsilon: Array) -> tuple[Array, Array]:
        """Bound on log δ at ε, and −dlog δ/dε. Between lattice points the curve is linear in K, exactly."""
        k = np.clip(np.floor(epsilon / self.h).astype(np.int64) + 1 - self.first, 0, self.log_value.size)
        node = self.h * (self.first + k)
        x = np.minimum(epsilon - node, 0.0)
        with np.errstate(divide="ignore"):
            value = np.logaddexp(
                self.log_value[k - (k == self.log_value.size)], np.log(-np.expm1(x)) + self._tail(k)
            )
        value = np.where(k < self.log_value.size, value, -np.inf)
        scale = self.kappa - self.theta * node
        slack = self.log_slack + self.kappa - self.theta * epsilon
        with np.errstate(divide="ignore", invalid="ignore"):
            slope = np.exp(np.minimum(x + self._tail(k) - value, 700.0))
            if self.upper:
                total = np.logaddexp(np.logaddexp(value + scale, slack) + self.relative, self.log_infinity)
                return np.minimum(total, 0.0), slope
            below = value + scale
            total = below + np.log(-np.expm1(np.minimum(slack - below, 0.0))) - self.relative
        return np.where(np.isnan(total), -np.inf, np.minimum(total, 0.0)), slope

    def _tail(self, k: NDArray[np.int64]) -> Array:
        return np.where(k < self.log_tail.size, self.log_tail[np.minimum(k, self.log_tail.size - 1)], -np.inf)


def compose(pairs: Sequence[tuple[Pair, int]], epsilon: float, stop: float, *, upper: bool) -> Sheet:
    """The curve of Π pair_j^{n_j} in the direction (P, Q), from ε up to at most `stop`."""
    h = pairs[0][0].h
    atoms = [Atoms(pair.epsilon, pair.log_p, count) for pair, count in pairs]
    steps = sum(count for _, count in pairs)
    cumulants = Cumulants([a.lumped() for a in atoms])
    theta, start, stop, deviation = _choose_tilt(cumulants, epsilon, stop, 40 / h)
    kappa = sum(a.count * a.log_moment(theta) for a in atoms)
    low, below = _edge(atoms, cumulants, theta, deviation, sign=-1)
    high, above = _edge(atoms, cumulants, theta, deviation, sign=+1)
    low, high = min(low, start), max(high, stop)
    first = math.floor(low / h) - 1
    cells = math.ceil(high / h) + 2 - first
    if cells > MAX_CELLS:
        raise AccuracyError(
            f"A grid of {h:.1e} in ε needs {cells:,} cells to hold the composed loss, more than "
            f"{MAX_CELLS:,}. Ask for less accuracy in ε."
        )
    n = int(fft.next_fast_len(cells, real=True))
    r, noise, rounding = _convolve(pairs, atoms, theta, n=n, first=first)
    # Only what lies above `start` counts, and nothing where e^{−θ(ε_k−stop)} is below e^−60.
    skip = max(0, math.floor(start / h) - first)
    reach = min(cells, math.ceil((stop + 60 / theta) / h) + 2 - first) if theta > 0 else cells
    window, first = r[skip:reach], first + skip
    with np.errstate(divide="ignore"):
        log_r = np.log(np.maximum(window, 0.0) + noise if upper else np.maximum(window - noise, 0.0))
    ramp = np.asarray(h * np.arange(log_r.size), dtype=np.float64)
    log_tail = suffix_sums(log_r, (1 + theta) * ramp)
    log_value = np.full(log_r.size, -np.inf)
    log_value[:-1] = suffix_sums(log_tail[1:] + math.log(-math.expm1(-h)), theta * ramp[1:]) - theta * h
    weight = theta * math.log(theta) - (1 + theta) * math.log1p(theta) if theta > 0 else 0.0
    outside = np.logaddexp(above, -60.0 - weight) if upper else np.logaddexp(above, below)
    relative = rounding + sum(count * pair.relative_error for pair, count in pairs)
    infinity = [math.log(count) + pair.log_p_infinity for pair, count in pairs]
    return Sheet(
        h, first, start, stop, theta, kappa, log_value, log_tail, float(outside + weight),
        relative + 8 * _U * (steps.bit_length() + abs(kappa) + theta * abs(stop)),
        float(np.logaddexp.reduce(infinity)), upper,
    )  # fmt: skip


def _choose_tilt(
    cumulants: Cumulants, epsilon: float, stop: float, largest: float
) -> tuple[float, float, float, float]:
    """θ, the range of ε it serves and the tilted standard deviation, for a range that starts at ε."""
    _, mean, variance = cumulants.at(0.0)
    deviation = math.sqrt(variance)
    if epsilon <= mean + REACH * deviation / 2:
        return 0.0, epsilon, min(stop, mean + REACH * deviation), deviation
    theta = cumulants.solve(epsilon, largest)
    deviation = math.sqrt(cumulants.at(theta)[2])
    if stop > epsilon:
        theta = cumulants.solve(epsilon + min(REACH * deviation, (stop - epsilon) / 2), largest)
        _, mean, variance = cumulants.at(theta)
        deviation = math.sqrt(variance)
        stop = max(epsilon, min(stop, mean + REACH * deviation))
    return theta, epsilon, stop, deviation


def _edge(
    atoms: Sequence[Atoms], cumulants: Cumulants, theta: float, deviation: float, *, sign: int
) -> tuple[float, float]:
    """Where the window may end on one side, and the log of the tilted mass beyond (Chernoff), or the end of
    all mass.

    For t > 0, the tilted mass above x is at most e^{κ(θ+t)−κ(θ)−tx}: solve for x at mass e^{−_OUTSIDE}.
    """
    support = sum(a.count * float(a.epsilon[-1] if sign > 0 else a.epsilon[0]) for a in atoms)
    if deviation == 0:
        return support, -math.inf
    best, edge = 0.0, sign * math.inf
    rough = cumulants.at(theta)[0]
    for power in range(-6, 31):
        t = sign * 2 ** (power / 2) / deviation
        x = (cumulants.at(theta + t)[0] - rough + _OUTSIDE) / t
        if sign * x < sign * edge:
            best, edge = t, x
    if sign * support <= sign * edge:
        return support, -math.inf
    gain = sum(a.count * (a.log_moment(theta + best) - a.log_moment(theta)) for a in atoms)
    return edge, gain - best * edge


def _convolve(
    pairs: Sequence[tuple[Pair, int]], atoms: Sequence[Atoms], theta: float, *, n: int, first: int
) -> tuple[Array, float, float]:
    """r̃ on the cells first … first+n−1 (cyclically), the bound D on its rounding, the relative one on p̃."""
    bound = 7 * _U * math.log2(n)
    spectra, norms, offset, rounding = [], [], 0, 0.0
    for (pair, count), a in zip(pairs, atoms, strict=True):
        log_moment = a.log_moment(theta)
        tilted = np.exp(a.log_p + theta * a.epsilon - log_moment)
        with np.errstate(invalid="ignore"):
            size = tilted * (np.abs(a.log_p) + theta * np.abs(a.epsilon))
        rounding += 2 * _U * count * (float(np.nansum(size)) + abs(log_moment) + 4)
        centre = round(float(tilted @ a.epsilon) / pair.h)
        index = (pair.index - centre) % n
        wrapped = np.bincount(index, weights=tilted, minlength=n)
        offset += count * centre
        spectra.append((fft.rfft(wrapped), count))
        norms.append(float(np.linalg.norm(wrapped)))
    product = _power(*spectra[0])
    for z, count in spectra[1:]:
        product = product * _power(z, count)
    r = fft.irfft(product, n)
    steps = sum(count for _, count in pairs)
    noise = (bound + 4 * steps * _U) * float(np.linalg.norm(r))
    for j, (_, count) in enumerate(spectra):
        moduli = 1.0
        for i, (z, m) in enumerate(spectra):
            moduli = moduli * (np.abs(z) + bound * math.sqrt(n) * norms[i]) ** (m - (i == j))
        others = math.sqrt(2 / n) * float(np.linalg.norm(moduli)) if np.ndim(moduli) else 1.0
        noise += count * bound * norms[j] * others
    return np.roll(r, -((first - offset) % n)), noise, rounding


def _power(z: Spectrum, count: int) -> Spectrum:
    """z^count by repeated squaring: relative error at most 3·count roundings."""
    result = None
    with np.errstate(under="ignore"):
        while count:
            if count & 1:
                result = z if result is None else result * z
            count >>= 1
            if count:
                z = z * z
    assert result is not None
    return result
