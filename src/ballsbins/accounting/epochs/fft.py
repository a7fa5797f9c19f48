"""The curve of a product of discrete pairs by an exponentially tilted FFT, with bounds on all errors of the FFT.

Let r = Π* p_j^{*n_j} be the law of the summed loss under P (atoms on the lattice of spacing h). For θ ≥ 0 and
κ(θ) = Σ_j n_j log Σ_i p_{j,i} e^{θε_i}, the tilted laws p̃ = p e^{θε}/Σ… are probabilities, r̃ = Π* p̃ = r
e^{θε−κ}, and

    δ(ε) = e^{κ−θε} Σ_{ε_k>ε} r̃_k e^{−θ(ε_k−ε)} (1 − e^{−(ε_k−ε)})  +  (mass at infinity).

With κ′(θ) = ε the sum is over the *bulk* of r̃, so that an absolute error of 10⁻¹⁵ in r̃ is a relative one in
δ, however small δ is. A smaller tilt is enough as long as δ's share of r̃ stays well above rounding, and one θ
serves a range of ε.

These errors are bounded (Higham, Accuracy and Stability of Numerical Algorithms, thm 24.2: ‖fft(x) − computed‖₂ ≤
e_N‖fft(x)‖₂ with e_N ≈ 7u·log₂N):
- rounding of r̃ in any one cell, by Cauchy–Schwarz on the inverse transform of Π z_j^{n_j}:
  D = (e_N + 4nu)·‖r̃‖₂ + Σ_j n_j e_N ‖p̃_j‖₂ ‖(|z_j|+Δ)^{n_j−1} Π_{i≠j}|z_i|^{n_i}‖₂/√N;
- mass outside the window of N cells, by Chernoff with the exact κ: mass above the window is missed, and mass
  outside is wrapped into it; the weight of such mass is at most max_x e^{−θx}(1−e^{−x}) = θ^θ/(1+θ)^{1+θ};
- rounding of log p + θε − κ, relative.
The upper bound adds these, the lower one subtracts them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy  # its parts, such as `scipy.fft`, load when they are first used
from numpy.typing import NDArray

from ballsbins.accounting.curve import Array, U
from ballsbins.accounting.epochs.polygons import Pair, suffix_sums
from ballsbins.accounting.epochs.stretch import Stretch
from ballsbins.accounting.epochs.survey import Atoms, Cumulants
from ballsbins.errors import AccuracyError

# B30, …: docs/derivation.md.
MAX_CELLS = 2**23  # most cells of a transform: 64 MB
_FFT = 7  # roundings per level of a transform, Higham's theorem 24.2 (B30)
_PRODUCT = 4  # roundings of a power of a spectrum: three per factor for complex products, and one (B30)
_TILT = 4  # roundings of log p + θε − κ, besides its size (B30)
_SUMS = 8 * U  # rounding of the final sums: bits of the count, and what was added up in exponents (B30)
_CHERNOFF = 64 * U  # rounding of κ, for Chernoff's bound alone (B33)
# The rest are choices; the stated error covers their effect:
_SMALLEST_TILT, _LARGEST_TILT, _TILT_PER_CELL = 1e-9, 1e9, 40  # of θ; a tilt of e⁴⁰ per cell leaves one cell
_TRIES = 8  # attempts to find a sheet whose costs are within their limits
# fraction of ε: leave out losses so low that all others together cannot reach it (a sheet may go down to there)
_RELEVANT = 0.8
_CUT, _CUT_MORE = 14, 3  # trim single losses this many e-folds below δ, and at this many more if that shows
_AROUND = 0.2  # a sheet serves at most this fraction of ε to either side
_NEAR_SADDLE = 0.7  # from this fraction of the saddle on, the next tilt is the saddle itself
_OUTSIDE, _OUTSIDE_MORE, _MOST_OUTSIDE = 10, 3, 80.0  # e-folds by which mass outside the window is below δ
_LEAST_SADDLE = 0.1  # least slope of log δ assumed for that
_FARTHEST, _STRETCH = 6, 1.5  # one tilt serves up to this many deviations above the mean, or times ε
# rounding per step; wanted error of δ; least and most e-folds between the two
_NOISE, _WANTED, _LEAST_MARGIN, _MOST_MARGIN = 2e-14, 1e-5, 1.0, 14.0
_BISECTIONS = 8  # halvings to find the least tilt
_EDGE_POWERS = range(-6, 31)  # tilts tried for Chernoff's bound: powers of √2 over the deviation

Spectrum = NDArray[np.complexfloating]


class WindowError(AccuracyError):
    """The composed loss spreads over more cells than a transform may have."""


def tilted_deviation(pairs: Sequence[tuple[Pair, int]], epsilon: float) -> float:
    """The standard deviation of the summed loss, tilted so that its mean is ε."""
    cumulants = Cumulants([Atoms(pair.epsilon, pair.log_p, count).lumped() for pair, count in pairs])
    return math.sqrt(cumulants.at(cumulants.solve(epsilon, _LARGEST_TILT))[2])


def without_transform(
    pairs: Sequence[tuple[Pair, int]], epsilon: float, *, upper: bool
) -> tuple[float, float]:
    """Chernoff's bound δ(ε) ≤ e^{κ(θ)−θε} max_x e^{−θx}(1−e^{−x}) at its best θ (−∞ from below), and θ."""
    atoms = [Atoms(pair.epsilon, pair.log_p, count) for pair, count in pairs]
    theta = max(Cumulants([a.lumped() for a in atoms]).solve(epsilon, _LARGEST_TILT), _SMALLEST_TILT)
    if not upper:
        return -math.inf, theta
    kappa = sum(a.count * a.log_moment(theta) for a in atoms)
    relative = sum(count * (pair.relative_error + _CHERNOFF * (1 + abs(kappa))) for pair, count in pairs)
    finite = kappa - theta * epsilon + _log_peak(theta) + relative
    return min(0.0, float(np.logaddexp(finite, log_infinity(pairs)))), theta


def compose(
    pairs: Sequence[tuple[Pair, int]], epsilon: float, stop: float, *, accuracy: float, upper: bool
) -> Stretch:
    """The curve of Π pair_j^{n_j} in the direction (P, Q), from ε up to at most `stop`.

    `accuracy` is the accuracy wanted in ε: rounding, window and trimming may each cost at most a tenth of it. The
    first choices are estimates. If they cost more, less is trimmed, the tilt moves to the saddlepoint, or the
    window grows.
    """
    h = pairs[0][0].h
    most = sum(count * float(pair.epsilon[-1]) for pair, count in pairs)
    if epsilon >= most:  # no sum of losses exceeds ε
        nothing = np.array([-np.inf])
        return Stretch(
            h=h,
            origin=0.0,
            first=0,
            start=most,
            stop=max(stop, epsilon),
            theta=0.0,
            kappa=0.0,
            log_value=nothing,
            log_tail=nothing,
            log_slack=-math.inf,
            noise=0.0,
            relative=0.0,
            log_infinity=log_infinity(pairs),
            log_trimmed=-math.inf,
            upper=upper,
        )
    pairs = _relevant(pairs, _RELEVANT * epsilon)
    steps = sum(count for _, count in pairs)
    log_cut, extended, attempt = math.inf, False, None
    for _ in range(_TRIES):
        if attempt is None:
            attempt = _Attempt.of(_trimmed(pairs, log_cut, upper=upper), epsilon, h, accuracy)
            if math.isinf(log_cut):
                log_cut = attempt.guess - math.log(steps) - _CUT
                attempt = _Attempt.of(_trimmed(pairs, log_cut, upper=upper), epsilon, h, accuracy)
        # Nearby questions are likely to follow, so also serve a standard deviation around ε.
        around = min(attempt.deviation, _AROUND * epsilon)
        span = (max(0.0, epsilon - around), max(stop, epsilon + around))
        sheet = _compose(attempt, span, math.log(steps) + log_cut, upper=upper, extended=extended)
        noise, missed, trimmed, allowed = (
            float(row[0]) for row in sheet.costs(np.array([epsilon]), accuracy)
        )
        if max(noise, missed, trimmed) <= allowed:
            break
        if trimmed > allowed:
            log_cut, attempt = log_cut - _CUT_MORE - math.log(trimmed / allowed), None
            continue
        if noise > allowed and attempt.theta == attempt.saddle:
            if extended and missed <= allowed:
                break  # nothing is left to try
            extended = True
        elif noise > allowed:
            close = attempt.theta >= _NEAR_SADDLE * attempt.saddle
            attempt = replace(
                attempt, theta=attempt.saddle if close else 0.5 * (attempt.theta + attempt.saddle)
            )
        if missed > allowed:
            wider = attempt.outside + _OUTSIDE_MORE + math.log(missed / allowed)
            attempt = replace(attempt, outside=min(_MOST_OUTSIDE, wider))
    return replace(
        sheet.cut(*sheet.good_range(epsilon, accuracy)), met=max(noise, missed, trimmed) <= allowed
    )


@dataclass(frozen=True)
class _Attempt:
    """The factors without negligible losses, a tilt, and the log of the mass outside the window."""

    pairs: Sequence[tuple[Pair, int]]
    atoms: Sequence[Atoms]
    cumulants: Cumulants
    saddle: float
    theta: float
    outside: float
    guess: float  # of log δ
    deviation: float  # at the saddlepoint

    @staticmethod
    def of(pairs: Sequence[tuple[Pair, int]], epsilon: float, h: float, accuracy: float) -> _Attempt:
        """Make an attempt from estimates at one ε."""
        atoms = [Atoms(pair.epsilon, pair.log_p, count) for pair, count in pairs]
        cumulants = Cumulants([a.lumped() for a in atoms])
        saddle = cumulants.solve(epsilon, _TILT_PER_CELL / h)
        kappa, _, variance = cumulants.at(saddle)
        decline = math.log1p(saddle * (1 + saddle) * math.sqrt(2 * math.pi * variance))
        guess = min(0.0, kappa - saddle * epsilon - decline)
        theta, share = _least_tilt(cumulants, epsilon, saddle, h, guess)
        outside = _OUTSIDE - share - math.log(max(saddle, _LEAST_SADDLE) * accuracy)
        return _Attempt(pairs, atoms, cumulants, saddle, theta, outside, guess, math.sqrt(variance))


def _trimmed(pairs: Sequence[tuple[Pair, int]], log_cut: float, *, upper: bool) -> list[tuple[Pair, int]]:
    """The pairs without the largest losses, of mass up to e^{log_cut} each: moved to infinity (upper) or left out.

    A heavy tail would otherwise pull the tilted law towards losses that δ(ε) does not depend on.
    """
    kept = []
    for pair, count in pairs:
        tail = np.logaddexp.accumulate(pair.log_p[::-1])[::-1]
        stop = max(1, int(np.searchsorted(-tail, -log_cut))) if log_cut < math.inf else pair.log_p.size
        if stop == pair.log_p.size:
            kept.append((pair, count))
            continue
        mass = float(np.logaddexp(pair.log_p_infinity, tail[stop])) if upper else pair.log_p_infinity
        kept.append(
            (replace(pair, index=pair.index[:stop], log_p=pair.log_p[:stop], log_p_infinity=mass), count)
        )
    return kept


def _relevant(pairs: Sequence[tuple[Pair, int]], epsilon: float) -> list[tuple[Pair, int]]:
    """The pairs without losses so low that the sum cannot exceed ε, even with all other losses at their largest."""
    most = sum(count * float(pair.epsilon[-1]) for pair, count in pairs)
    kept = []
    for pair, count in pairs:
        some = pair.epsilon > epsilon - (most - float(pair.epsilon[-1])) - 2 * pair.h
        some[-1] = True
        kept.append(
            (pair if some.all() else replace(pair, index=pair.index[some], log_p=pair.log_p[some]), count)
        )
    return kept


def _compose(
    attempt: _Attempt, span: tuple[float, float], log_trimmed: float, *, upper: bool, extended: bool
) -> Stretch:
    """One sheet for ε from span[0] to span[1]."""
    pairs, atoms, cumulants, theta = attempt.pairs, attempt.atoms, attempt.cumulants, attempt.theta
    outside, h = attempt.outside, pairs[0][0].h
    epsilon, stop = span
    kappa, mean, variance = cumulants.at(theta)
    deviation = math.sqrt(variance)
    stop = min(stop, max(mean + _FARTHEST * deviation, _STRETCH * epsilon))
    low, below = _edge(atoms, cumulants, theta, deviation, -outside)
    edge, above = _edge(atoms, cumulants, theta, deviation, outside)
    low, edge = min(low, epsilon), max(edge, stop)
    # Cells from ε up to `high` are read. Mass above them has a weight of at most e^{−θ(high−ε)}. Mass above ε plus
    # the length of the window is wrapped into them.
    high = min(edge, stop + outside / theta) if theta > 0 else edge
    missed = above if high == edge else np.logaddexp(above, -outside - _log_peak(theta))
    origin = sum(count * pair.offset for pair, count in pairs)
    first = math.floor((low - origin) / h) - 1
    cells = math.ceil(max(high - low, edge - epsilon) / h) + 4
    if cells > MAX_CELLS:
        raise WindowError(
            f"A grid of {h:.1e} in ε needs {cells:,} cells to hold the composed loss, more than "
            f"{MAX_CELLS:,}. Ask for less accuracy in ε."
        )
    kappa = sum(a.count * a.log_moment(theta) for a in atoms)
    r, noise, rounding = _convolve(
        pairs, atoms, theta, n=int(scipy.fft.next_fast_len(cells, real=True)), first=first, extended=extended
    )
    skip = max(0, math.floor((epsilon - origin) / h) - first)
    reach = math.ceil((high - origin) / h) + 2 - first
    window, first = r[skip:reach], first + skip
    with np.errstate(divide="ignore"):
        log_r = np.log(np.maximum(window, 0.0) + noise if upper else np.maximum(window - noise, 0.0))
    ramp = np.asarray(h * np.arange(log_r.size), dtype=np.float64)
    log_tail = suffix_sums(log_r, (1 + theta) * ramp)
    log_value = np.full(log_r.size, -np.inf)
    log_value[:-1] = suffix_sums(log_tail[1:] + math.log(-math.expm1(-h)), theta * ramp[1:]) - theta * h
    missed = missed if upper else np.logaddexp(above, below)
    steps = sum(count for _, count in pairs)
    relative = rounding + sum(count * pair.relative_error for pair, count in pairs)
    return Stretch(
        h=h,
        origin=origin,
        first=first,
        start=epsilon,
        stop=stop,
        theta=theta,
        kappa=kappa,
        log_value=log_value,
        log_tail=log_tail,
        log_slack=float(missed + _log_peak(theta)),
        noise=noise
        * min(1 / (-math.expm1(-theta * h) * (1 + theta)) if theta > 0 else math.inf, reach - skip),
        relative=relative + _SUMS * (steps.bit_length() + abs(kappa) + theta * abs(stop)),
        log_infinity=log_infinity(pairs),
        log_trimmed=log_trimmed,
        upper=upper,
    )


def _log_peak(theta: float) -> float:
    """Log max_x e^{−θx}(1−e^{−x})."""
    return theta * math.log(theta) - (1 + theta) * math.log1p(theta) if theta > 0 else 0.0


def log_infinity(pairs: Sequence[tuple[Pair, int]]) -> float:
    """Log of the mass that the product of P has where the product of Q has none, or slightly more."""
    return float(np.logaddexp.reduce([math.log(count) + pair.log_p_infinity for pair, count in pairs]))


def _least_tilt(
    cumulants: Cumulants, epsilon: float, saddle: float, h: float, log_delta: float
) -> tuple[float, float]:
    """The least θ at which rounding should not matter at ε, and the log of δ's share of r̃ there.

    At tilt θ that share is e^{log δ(ε) − κ(θ) + θε}, and rounding in r̃ about 10⁻¹⁴·n·√(deviation/h) of its
    maximum. A small θ is better: rare large losses then stay rare in r̃, and the window is small.
    """
    _, _, variance = cumulants.at(0.0)
    steps = sum(a.count for a in cumulants.atoms)
    noise = math.log(_NOISE * steps * math.sqrt(max(math.sqrt(variance) / h, 1.0)))
    margin = min(max(math.log(_WANTED) - noise, _LEAST_MARGIN), _MOST_MARGIN)

    def share(theta: float) -> float:
        return min(0.0, log_delta - cumulants.at(theta)[0] + theta * epsilon)

    if share(0.0) > -margin:
        return 0.0, share(0.0)
    low, high = 0.0, saddle
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if share(middle) > -margin else (middle, high)
    return high, share(high)


def _edge(
    atoms: Sequence[Atoms], cumulants: Cumulants, theta: float, deviation: float, outside: float
) -> tuple[float, float]:
    """Where the window may end on one side (at most the end of all mass), and the log of the tilted mass beyond.

    By Chernoff, for t > 0, the tilted mass above x is at most e^{κ(θ+t)−κ(θ)−tx}: solve for x at mass
    e^{−|outside|}. The sign of `outside` chooses the side.
    """
    sign = math.copysign(1.0, outside)
    support = sum(a.count * float(a.epsilon[-1] if sign > 0 else a.epsilon[0]) for a in atoms)
    if deviation == 0:
        return support, -math.inf
    best, edge = 0.0, sign * math.inf
    rough = cumulants.at(theta)[0]
    for power in _EDGE_POWERS:
        t = sign * 2 ** (power / 2) / deviation
        x = (cumulants.at(theta + t)[0] - rough + abs(outside)) / t
        if sign * x < sign * edge:
            best, edge = t, x
    if sign * support <= sign * edge:
        return support, -math.inf
    gain = sum(a.count * (a.log_moment(theta + best) - a.log_moment(theta)) for a in atoms)
    return edge, gain - best * edge


def _convolve(
    pairs: Sequence[tuple[Pair, int]],
    atoms: Sequence[Atoms],
    theta: float,
    *,
    n: int,
    first: int,
    extended: bool,
) -> tuple[Array, float, float]:
    """r̃ on the cells first … first+n−1 (cyclically), the bound D on its rounding, and the relative bound on p̃.

    With `extended`, everything up to the product of spectra is in long doubles, because those errors count n times.
    """
    real = np.longdouble if extended else np.float64
    u = float(np.finfo(real).eps) / 2
    bound = _FFT * u * math.log2(n)
    spectra, norms, offset, rounding = [], [], 0, 0.0
    for (pair, count), a in zip(pairs, atoms, strict=True):
        log_moment = a.log_moment(theta)
        tilted = np.exp(a.log_p + theta * a.epsilon - log_moment)
        size = float(tilted @ (np.abs(a.log_p) + theta * np.abs(a.epsilon)))
        rounding += 2 * U * count * (size + abs(log_moment) + _TILT)
        # Put the largest atom into cell 0, where its transform is a constant without rounding error.
        largest = int(tilted.argmax())
        centre = int(pair.index[largest])
        offset += count * centre
        atom, tilted[largest] = tilted[largest], 0.0
        wrapped = np.bincount((pair.index - centre) % n, weights=tilted, minlength=n)
        spectra.append((scipy.fft.rfft(wrapped.astype(real)) + atom, count))
        norms.append(float(np.linalg.norm(wrapped)) + 2 * u / bound)
    product = _power(*spectra[0])
    for z, count in spectra[1:]:
        product = product * _power(z, count)
    r = scipy.fft.irfft(product.astype(np.complex128), n)
    steps = sum(count for _, count in pairs)
    noise = (_FFT * U * math.log2(n) + _PRODUCT * U + _PRODUCT * steps * u) * float(np.linalg.norm(r))
    for j, (_, count) in enumerate(spectra):
        moduli = np.ones(1)
        for i, (z, m) in enumerate(spectra):
            modulus = np.abs(z).astype(np.float64) + bound * math.sqrt(n) * norms[i]
            moduli = moduli * modulus ** (m - (i == j))
        others = math.sqrt(2 / n) * float(np.linalg.norm(moduli)) if moduli.size > 1 else 1.0
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
