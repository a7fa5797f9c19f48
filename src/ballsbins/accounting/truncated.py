"""The privacy cost of truncating batches to at most B examples, and the least B for a given share of δ.

**Upper bound.** A batch of balls-and-bins or Poisson has Bin(n, 1/T) examples. Unless some batch has more than B,
nothing changes, so by Chua et al. (2024b, prop. 3.2, thm 3.3; the paper's appendix C)

    δ_truncated(ε) ≤ g(ε) = δ(ε) + (1 + e^ε)·p,     p = batches·Pr[Bin(n, 1/T) > B] ,

where `batches` is the number of batches drawn (fixed bins are drawn once). g is convex in e^ε, so it falls up to some
ε* and then rises, whereas δ_truncated only falls: the bound is g(ε) up to ε*, and g(ε*) beyond. It is not the curve
of a pair, so composition comes first and truncation last.

**Lower bound.** Truncation may also protect, since it drops examples at random. If all gradients but that of one
example are 0, truncation changes only steps that drop this example. So Q is unchanged, and P changes only if the
example is dropped, with a probability of at most d. So |P_truncated(E) − P(E)| ≤ d for every event E, and

    remove: δ_truncated(ε) ≥ δ(ε) − d,      add: δ_truncated(ε) ≥ δ(ε) − e^ε·d,      both: ≥ 1 − e^ε ,
    d = batches/T·Pr[Bin(n − 1, 1/T) ≥ B]   (in a batch with probability 1/T, and then with B or more others).

δ falls in ε and the subtracted term does not, so the lower bound also falls.

**Tail.** With k = B + 1 > nq,

    Pr[Bin ≥ k] = b(k)·(1 + r₁ + r₁r₂ + …),   r_j = (n−k−j+1)/(k+j)·q/(1−q) < 1 decreasing,

cut off with its geometric bound, and b(k) by Loader's saddlepoint form

    log b(k) = s(n) − s(k) − s(n−k) − D(k, nq) − D(n−k, n(1−q)) + ½ log(n/(2πk(n−k))),
    D(x, m) = x log(x/m) + m − x,   s(n) = log n! − (n+½) log n + n − ½ log 2π ,

which loses no digits for n = 10⁹ and beyond, where log-gammas cancel. The result is raised by 10⁻⁹ and by several
roundings of k − nq, which is more than its error.

The sum has about √(nq) terms. If that is too many, a bound replaces it: log r_j falls by at least
d = 1/(n−k) + 1/(k+J) per step up to j = J, so r₁…r_j ≤ g(j) = exp(−aj − d·j(j−1)/2) with a = −log r₁, and the sum is
at most

    1 + ∫₀^∞ g(x) dx + g(J)/(1 − r₁),      ∫₀^∞ g = R(a/√d − √d/2)/√d,  R Mills' ratio:

which is too large by about 10/√k, relative. (g rises at first if a < d/2, by less than a relative d.)
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import gammaln

from ballsbins.accounting.curve import ANSWER, REMOVE, Array, Curve, Direction, Interval, U
from ballsbins.accounting.gaussian import mills_ratio
from ballsbins.accounting.tradeoff import best_threshold

# B1, B20: docs/derivation.md.
_SAFETY = 1e-9  # raise a log tail by this: more than the error of its sum (B20)
_MEAN = 8 * U  # rounding of k − nq, which the slope of the tail multiplies (B20)
_POWER = 1e-15  # relative rounding of n·log q (B20)
_MANY = 1e10  # from this n·q·(1−q) on, the tail is bounded, not summed: the sum would have √ of it, 10⁵ terms
_BLOCK = 4096  # terms at a time
_REST = 1e-12  # stop when the remainder is below this fraction of the sum; the remainder is added (B20)
_FAR = 12  # J of the closed form in units of √k: g(J) is e⁻⁷² or less there
_STIRLING = 16  # n from which five terms of Stirling's series have all digits; one over its coefficients:
_STIRLING_SERIES = 12, 360, 1260, 1680, 1188
_CLOSE = 0.1  # |x − m|/(x + m) up to which the deviance is a series: beyond, it loses less than two digits
# Relative distance ahead at which to test whether the sum rises; from the last ε, this leads to 700, the largest ε.
_AHEAD, _LAST, _LEAST_TURN = 0.01, 693.0, 1e-6
_IDLE = -30.0  # log of a ratio to what truncation adds, so small that no digit of the sum shows it
_NEGLIGIBLE = -200.0  # log of a δ that counts for nothing
_LEAST_LOG_P = -740.0  # e⁻⁷⁴⁰ is about the least double
_ADDED = 32 * U  # rounding of what truncation adds, relative to |log δ| (B1)
_TAKEN = 16 * U  # rounding of the share that truncation takes away (B1)


def log_binomial_tail(n: int, q: float, B: int) -> float:
    """Return an upper bound on log Pr[Bin(n, q) > B]; it is 0 if B is below the mean.

    Above the mean it is tight to 10⁻⁹, or to 10⁻³ if the variance is above 10¹⁰.
    """
    if n <= B or q <= 0:
        return -math.inf
    k = B + 1
    if q >= 1 or k <= n * q or k <= 0:
        return 0.0
    if k == n:
        return n * math.log(q) * (1 - _POWER) + _SAFETY
    log_b = (
        _stirling_error(n) - _stirling_error(k) - _stirling_error(n - k)
        - _deviance(k, n * q) - _deviance(n - k, n * (1 - q))
        + 0.5 * math.log(n / (2 * math.pi * k) / (n - k))
    )  # fmt: skip
    odds = q / (1 - q)
    total = _sum(n, k, odds) if n * q * (1 - q) < _MANY else _sum_bound(n, k, odds)
    return min(0.0, log_b + math.log(total) + _SAFETY + _MEAN * (k - n * q))


def _sum(n: int, k: int, odds: float) -> float:
    """Return 1 + r₁ + r₁r₂ + …, summed term by term."""
    total, product, j = 1.0, 1.0, 1
    while True:
        block = np.arange(j, min(j + _BLOCK, n - k + 1), dtype=np.float64)
        if not block.size:
            return total
        products = product * np.cumprod((n - k - block + 1) / (k + block) * odds)
        total += float(products.sum())
        product, j = float(products[-1]), j + block.size
        ratio = (n - k - j + 1) / (k + j) * odds
        if product * ratio <= _REST * total * (1 - ratio):
            return total + product * ratio / (1 - ratio)


def _sum_bound(n: int, k: int, odds: float) -> float:
    """Return an upper bound on the same sum in closed form."""
    first = (n - k) / (k + 1) * odds
    far = min(math.ceil(_FAR * math.sqrt(k)), n - k)
    a, d = -math.log(first), 1 / (n - k) + 1 / (k + far)
    integral = float(mills_ratio(np.array(a / math.sqrt(d) - 0.5 * math.sqrt(d)))) / math.sqrt(d)
    rest = math.exp(-a * far - 0.5 * d * far * (far - 1)) / (1 - first)
    return (1 + d) * (1 + integral + rest)


def _stirling_error(n: int) -> float:
    if n < _STIRLING:
        return float(gammaln(n + 1)) - (n + 0.5) * math.log(n) + n - 0.5 * math.log(2 * math.pi)
    n2 = float(n) * n
    a, b, c, d, e = _STIRLING_SERIES
    return (1 / a - (1 / b - (1 / c - (1 / d - 1 / (e * n2)) / n2) / n2) / n2) / n


def _deviance(x: float, m: float) -> float:
    """Return x log(x/m) + m − x, by a series in (x−m)/(x+m) if they are close."""
    if abs(x - m) > _CLOSE * (x + m):
        return x * math.log(x / m) + m - x
    v = (x - m) / (x + m)
    total, power, j = (x - m) * v, 2 * x * v, 1
    while True:
        power *= v * v
        step = power / (2 * j + 1)
        if total + step == total:
            return total
        total, j = total + step, j + 1


def log_overflow_probability(num_examples: int, steps: int, max_batch_size: int, batches: int) -> float:
    """Return log p ≤ 0, where p bounds the probability that any of `batches` batches has more than B examples."""
    return min(0.0, math.log(batches) + log_binomial_tail(num_examples, 1 / steps, max_batch_size))


def log_drop_probability(num_examples: int, steps: int, max_batch_size: int, batches: int) -> float:
    """Return log d ≤ 0, where d bounds the probability that any of `batches` batches drops a given example."""
    tail = log_binomial_tail(num_examples - 1, 1 / steps, max_batch_size - 1)
    every = log_overflow_probability(num_examples, steps, max_batch_size, batches)
    return min(every, math.log(batches) - math.log(steps) + tail + _SAFETY)


def least_max_batch_size(num_examples: int, steps: int, batches: int, log_p: float) -> int:
    """Return the least B with p ≤ e^{log_p}."""
    low, high = 0, num_examples  # p(high) = 0
    while low < high:
        middle = (low + high) // 2
        if log_overflow_probability(num_examples, steps, middle, batches) <= log_p:
            high = middle
        else:
            low = middle + 1
    return high


class Truncated(Curve):
    """A curve whose upper bound includes what truncation may add, and whose lower bound what it may remove.

    Both bounds fall in ε.
    """

    def __init__(self, curve: Curve, log_p: float, log_drop: float) -> None:
        """Take `log_p` from `log_overflow_probability` and `log_drop` from `log_drop_probability`."""
        self.curve, self.log_p, self.log_drop = curve, log_p, log_drop
        self.kind, self.method, self.confidence = curve.kind, curve.method, curve.confidence
        self.pointwise, self.fallback = curve.pointwise, curve.fallback
        self._turns: dict[Direction, float] = {}

    @property
    def scale(self) -> float:
        """That of the curve."""
        return self.curve.scale

    @property
    def untruncated(self) -> Curve:
        """The curve without truncation."""
        return self.curve

    def sketch(self, epsilon: Array, direction: Direction) -> Array | None:
        """Return the sketch of the curve: truncation changes little."""
        return self.curve.sketch(epsilon, direction)

    def rough_epsilon(self, log_deltas: Array, direction: Direction) -> Array | None:
        """Return that of the curve, for the same reason."""
        return self.curve.rough_epsilon(log_deltas, direction)

    def stretch(self, epsilon: float, direction: Direction) -> tuple[float, float]:
        """Return that of the curve."""
        return self.curve.stretch(epsilon, direction)

    def log_upper(self, epsilon: Array, direction: Direction, enough: Array | None = None) -> Array | None:
        """Return a cheap bound on the sum, if the curve has one: no better than needed for `enough`."""
        penalty = self._log_penalty(epsilon)
        if enough is not None:
            with np.errstate(divide="ignore"):
                left = enough + np.log(-np.expm1(np.minimum(penalty - enough, 0.0)))
            # if truncation alone is too much, any bound will do
            enough = np.where(np.isneginf(left), 0.0, left)
        rough = self.curve.log_upper(epsilon, direction, enough)
        return None if rough is None else np.logaddexp(rough, penalty)

    def at(self, epsilon: Array, direction: Direction) -> Interval:
        """Return the same as `log_delta`."""
        return self.with_penalty(epsilon, direction)[0]

    def log_delta(self, epsilon: Array, direction: Direction) -> Interval:
        """Return bounds on log δ(ε) of the truncated batches."""
        return self.with_penalty(epsilon, direction)[0]

    def with_penalty(self, epsilon: Array, direction: Direction) -> tuple[Interval, Array]:
        """Return the same, and what truncation adds to the upper δ(ε): that bound minus the untruncated one."""
        epsilon = np.asarray(epsilon, dtype=np.float64)
        if self.log_p == -math.inf or not epsilon.size:
            return self.curve.log_delta(epsilon, direction), np.zeros(epsilon.shape)
        turn = self._turn(float(epsilon.max()), direction)
        plain = self._plain(epsilon, direction, turn)
        value, upper = self._penalised(epsilon, plain)
        if turn < math.inf:
            at = np.array([turn])
            value_there, upper_there = self._penalised(at, self.curve.log_delta(at, direction))
            late = epsilon > turn
            value = np.where(late, value_there, value)
            upper = np.where(late, upper_there, np.maximum(upper, upper_there))
        lower = np.minimum(self._lower(epsilon, plain.lower, direction), upper)
        added = -np.expm1(np.minimum(plain.upper - upper, 0.0)) + _ADDED * (1 + np.abs(upper))
        penalty = np.exp(np.minimum(self._log_penalty(epsilon), upper + np.log(added)))
        return Interval(lower, np.clip(value, lower, upper), upper), np.minimum(penalty, np.exp(upper))

    def _plain(self, epsilon: Array, direction: Direction, turn: float) -> Interval:
        """Return the curve without truncation, with all digits only where the answer needs them.

        Beyond ε*, the upper bound is the one at ε*, and the lower bound is trivial if an example is dropped more
        often than δ. A cheap bound that shows this is enough.
        """
        rough = self.curve.log_upper(np.maximum(epsilon, 0.0), direction) if turn < math.inf else None
        if rough is None:
            return self.curve.log_delta(epsilon, direction)
        idle = (epsilon > max(turn, 0.0)) & (rough < self.log_drop + _IDLE)
        rows = np.stack([np.full(epsilon.shape, -np.inf), rough, rough])
        if not idle.all():
            rows[:, ~idle] = self.curve.log_delta(epsilon[~idle], direction).rows
        return Interval(*rows)

    def penalty_share(self, epsilon: Array, log_delta: Array) -> Array:
        """Return (1 + e^ε)·p, the part of δ that truncation uses up at the ε found for it; all of δ if none was."""
        if self.log_p == -math.inf:
            return np.zeros(epsilon.shape)
        return np.exp(np.minimum(self._log_penalty(epsilon), log_delta))

    def _penalised(self, epsilon: Array, plain: Interval) -> tuple[Array, Array]:
        penalty = self._log_penalty(epsilon)
        value, upper = (np.minimum(np.logaddexp(row, penalty), 0.0) for row in (plain.value, plain.upper))
        return value, upper

    def _log_penalty(self, epsilon: Array) -> Array:
        return self.log_p + np.logaddexp(0.0, epsilon)

    def _turn(self, most: float, direction: Direction) -> float:
        """Return the ε* at which δ(ε) + (1 + e^ε)p is least; ∞ if it is beyond `most` and so need not be known.

        A Monte Carlo curve whose confidence holds for one answer only is not evaluated at other ε; it uses the sum.
        """
        if self.pointwise or self.log_p >= 0.0:  # with p = 1 the bound is 1
            return math.inf
        if direction not in self._turns:
            if not self._rises(most, direction):
                return math.inf
            far = min(_NEGLIGIBLE - self.log_p, _LAST)
            rough = None if far <= 0.0 else self.curve.log_upper(np.array([far]), direction)
            # so far down, where the sum is least does not matter to anyone
            if rough is not None and rough[0] < _NEGLIGIBLE:
                self._turns[direction] = far
                return far
            # The sum is convex in e^ε: where it rises, its minimum is not farther out, where δ is hard to compute.
            # The start of the search does not depend on the question, so neither does its result.
            guess = self.curve.rough_epsilon(np.array([self.log_p]), direction)
            right = min(self.curve.scale if guess is None else max(float(guess[0]), _LEAST_TURN), _LAST)
            while right < _LAST and not self._rises(right, direction):
                right = min(2.0 * right, _LAST)
            while right > _LEAST_TURN and self._rises(0.5 * right, direction):
                right *= 0.5
            between = 0.5 * right if right > _LEAST_TURN else 0.0, (1.0 + _AHEAD) * right
            self._turns[direction] = best_threshold(
                self.curve, direction, math.exp(max(self.log_p, _LEAST_LOG_P)), between
            )
        return self._turns[direction]

    def _rises(self, epsilon: float, direction: Direction) -> bool:
        """Whether the sum is larger slightly beyond an ε."""
        at = min(epsilon, _LAST)
        near = np.array([at, at + _AHEAD * max(abs(at), _LEAST_TURN)])
        rough = None if at < 0.0 else self.curve.log_upper(near[:1], direction)
        if rough is not None and rough[0] < self._log_penalty(near[:1])[0] + _IDLE:
            return True  # only what truncation adds is left of the sum
        here, beyond = np.logaddexp(self.curve.log_delta(near, direction).upper, self._log_penalty(near))
        return bool(beyond > here)

    def _lower(self, epsilon: Array, plain: Array, direction: Direction) -> Array:
        cost = self.log_drop + (0.0 if direction == REMOVE else epsilon)
        with np.errstate(divide="ignore", invalid="ignore"):
            share = cost - plain + _TAKEN * (1 + np.abs(cost) + np.abs(plain))
            kept = np.where(share < 0.0, plain + np.log(-np.expm1(np.minimum(share, 0.0))), -np.inf)
            floor = np.where(epsilon < 0.0, np.log(-np.expm1(epsilon)) - ANSWER, -np.inf)  # δ ≥ 1 − e^ε
        return np.maximum(kept, floor)
