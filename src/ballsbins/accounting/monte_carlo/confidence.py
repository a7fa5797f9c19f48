"""Confidence bounds on the mean of independent numbers in [0, 1].

Chernoff–Hoeffding (fact "hoeffding" of the paper): with empirical mean q of m numbers, each of

    upper: the least p ≥ q with m·KL(q‖p) ≥ log(1/β)        lower: the greatest p ≤ q with m·KL(q‖p) ≥ log(1/β)

fails with probability at most β. With p = q·e^{±u} and g(t) = t − log(1+t) ≥ 0,

    KL(q‖p) = q·g((p−q)/q) + (1−q)·g(−(p−q)/(1−q)),

two terms that are never negative, so nothing cancels; u is found by bisection of log u. There is no floor: no hits in
m samples give 1 − β^{1/m} up to rounding, for any m.

Empirical Bernstein (Maurer and Pontil 2009, theorem 4) uses the sample variance V as well,

    p = q ± (√(2V·log(2/β)/m) + 7·log(2/β)/(3(m−1))),

and is better if V is far below q(1−q) and m·q is large.

Betting (after Waudby-Smith and Ramdas 2024) uses the whole distribution. A player bets the share a of his money that
numbers are below m, at odds that are fair if the mean is m. He ends with Π(1 + a(m − x_i)/(1 − m)). If the mean is m
or more, his expected money never grows, so he reaches 1/β with probability at most β. We split the money equally over
the stakes a = 1, ½, ¼, …. This is still a martingale, and it does not need the order of the samples, only how often
each value occurred. The upper bound is the least m refuted. For the lower bound the player bets on numbers above m,
Π(1 + a(x_i − m)/m).

A bound that is shown before the planned m, or after m was extended, must hold at all times at once. `spend` gives
the share of β for the k-th of a sequence of looks (after 1, 2, 4, … blocks of samples). The shares sum to β, and
between two looks the bound of the last look stays valid.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ballsbins import _check
from ballsbins.accounting.curve import Array

_HALVINGS = 75  # halvings of a range of at most e^750: down to rounding
_TERMS = 11  # terms of the series below, the first two of which are 0
_SERIES = 0.02  # for smaller |t|, ten terms of the series of t − log(1+t) have all digits
_TINY = 1e-300  # near the least double: keeps logarithms and quotients finite
_FARTHEST = 50.0  # a lower bound this many logs below the mean is useless
_MAURER_PONTIL = 7.0 / 3.0  # constant of the empirical Bernstein bound (Maurer and Pontil, 2009, theorem 4)
_BET_HALVINGS = 28  # halvings of a range of at most 700: to 3·10⁻⁶ of the bound, on its outer side
_TINIEST = 1e-22  # least u: below it p and q agree up to rounding


def error_probability(value: float) -> float:
    """Check β."""
    return _check.real(
        "error_probability",
        value,
        0.0,
        1.0,
        open_left=True,
        open_right=True,
        advice="It is the probability that a bound fails; 1e-3 is common.",
    )


def _excess(t: Array) -> Array:
    """g(t) = t − log(1+t) to relative rounding."""
    small = np.abs(t) < _SERIES
    with np.errstate(divide="ignore"):
        plain = t - np.log1p(t)
    x = np.where(small, t, 0.0)
    series = np.zeros_like(x)
    for k in range(_TERMS, 1, -1):
        series = 1.0 / k - x * series
    return np.where(small, x * x * series, plain)


def kl(q: Array, p: Array) -> Array:
    """KL(Ber(q)‖Ber(p)) without cancellation, for 0 < q < 1 and 0 < p < 1."""
    d = np.asarray(p - q)
    return q * _excess(d / q) + (1.0 - q) * _excess(-d / (1.0 - q))


def _divergence(q: Array, u: Array, sign: float) -> Array:
    """KL(q‖q·e^{±u}), ∞ where q·e^u ≥ 1."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        t = np.expm1(sign * u)
        first = np.where(np.abs(u) < _SERIES, _excess(t), t - sign * u)
        d = q * t
        room = 1.0 - q
        second = np.where(d < room, _excess(np.maximum(-d / np.maximum(room, _TINY), -1.0)), np.inf)
        total = q * first + np.where(room > 0.0, room * second, np.where(d > 0.0, np.inf, 0.0))
    return np.where(np.isnan(total), np.inf, total)


def _solve(q: Array, count: float, beta: float, sign: float) -> Array:
    """Log p, rounded to the outer side of the solution."""
    target = math.log(1.0 / beta) / count
    with np.errstate(divide="ignore"):
        log_q = np.log(q)
    left = np.full(q.shape, math.log(_TINIEST))
    right = np.log(np.maximum(-log_q, _TINY)) if sign > 0 else np.full(q.shape, -math.log(_TINY))
    right = np.maximum(np.where(np.isfinite(right), right, 0.0), left)
    for _ in range(_HALVINGS):
        middle = 0.5 * (left + right)
        reached = _divergence(q, np.exp(middle), sign) >= target
        right = np.where(reached, middle, right)
        left = np.where(reached, left, middle)
    return np.asarray(log_q + sign * np.exp(right))


def log_kl_upper(mean: Array, count: float, beta: float) -> Array:
    """Log of the upper confidence bound on the mean of numbers in [0, 1]."""
    q = np.asarray(mean, dtype=np.float64)
    inside = np.clip(q, _TINY, 1.0)
    none = math.log(-math.expm1(math.log(beta) / count))  # no hits: 1 − β^{1/m}
    solved = np.minimum(_solve(inside, count, beta, 1.0), 0.0)
    return np.where(q <= 0.0, none, np.where(q >= 1.0, 0.0, np.maximum(solved, none)))


def log_kl_lower(mean: Array, count: float, beta: float) -> Array:
    """Log of the lower confidence bound; −∞ where the mean is 0."""
    q = np.asarray(mean, dtype=np.float64)
    inside = np.clip(q, _TINY, 1.0)
    all_hit = math.log(beta) / count
    solved = _solve(inside, count, beta, -1.0)
    return np.where(q <= 0.0, -np.inf, np.where(q >= 1.0, all_hit, solved))


def _bernstein(variance: Array, count: float, beta: float) -> Array:
    log_term = math.log(2.0 / beta)
    deviation = np.sqrt(2.0 * np.maximum(variance, 0.0) * log_term / count)
    return np.asarray(deviation + _MAURER_PONTIL * log_term / (count - 1.0))


def log_bernstein_upper(mean: Array, variance: Array, count: float, beta: float) -> Array:
    """Log of the empirical-Bernstein upper bound; `variance` is the unbiased sample variance (or above it)."""
    if count < 2:
        return np.zeros_like(mean)
    return np.log(np.minimum(mean + _bernstein(variance, count, beta), 1.0))


def log_bernstein_lower(mean: Array, variance: Array, count: float, beta: float) -> Array:
    """Log of the empirical-Bernstein lower bound; −∞ where it gives no information."""
    if count < 2:
        return np.full_like(mean, -np.inf)
    low = np.maximum(mean - _bernstein(variance, count, beta), 0.0)
    with np.errstate(divide="ignore"):
        return np.log(low)


def _money(gains: Array, counts: Array) -> float:
    """Log of the final money: equal parts at stakes 1, ½, ¼, … on gains ≥ −1."""
    stakes = 0.5 ** np.arange(2 + math.ceil(0.5 * math.log2(max(counts.sum(), 1.0))))
    with np.errstate(divide="ignore"):
        logs = np.log1p(np.maximum(stakes[:, None] * gains, -1.0)) @ counts
    return float(np.logaddexp.reduce(logs)) - math.log(stakes.size)


def _refuted(
    gains: Callable[[float], Array], counts: Array, beta: float, inner: float, outer: float
) -> float:
    """Bisect between log m = `inner`, not refuted, and `outer`, refuted; return the refuted end of the last step."""
    for _ in range(_BET_HALVINGS):
        middle = 0.5 * (inner + outer)
        if _money(gains(math.exp(middle)), counts) >= math.log(1.0 / beta):
            outer = middle
        else:
            inner = middle
    return outer


def log_bet_upper(values: Array, counts: Array, beta: float) -> float:
    """Log of the upper bound by betting on the mean of numbers in [0, 1], given how often each occurred."""
    mean = float(values @ counts) / float(counts.sum())
    if mean >= 1.0:
        return 0.0
    start = math.log(max(mean, _TINY))
    return _refuted(lambda m: (m - values) / max(1.0 - m, _TINY), counts, beta, start, 0.0)


def log_bet_lower(values: Array, counts: Array, beta: float) -> float:
    """Log of the lower bound by betting; −∞ if nothing is refuted."""
    mean = float(values @ counts) / float(counts.sum())
    if mean <= 0.0:
        return -math.inf
    start = math.log(mean)
    floor = start - _FARTHEST
    if _money((values - math.exp(floor)) / math.exp(floor), counts) < math.log(1.0 / beta):
        return -math.inf
    return _refuted(lambda m: (values - m) / m, counts, beta, start, floor)


def spend(beta: float, look: int) -> float:
    """The share of β for look number 0, 1, 2, …: the shares sum to β, so that all looks hold together."""
    return beta / ((look + 1.0) * (look + 2.0))
