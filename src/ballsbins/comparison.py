"""Compare a run with the same run under other samplers: which is better where, and what a Poisson claim is worth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Literal, get_args

import numpy as np

from ballsbins import _check
from ballsbins.accounting.curve import DIRECTIONS, Array, Curve, Direction, U
from ballsbins.accounting.search import LARGEST_EPSILON, epsilon_at
from ballsbins.bound import Bound
from ballsbins.mechanism import Mechanism, check_run
from ballsbins.samplers import SAMPLERS, BallsAndBins, Deterministic, Poisson, Shuffle

ClaimedBy = Literal["exact", "rdp"]  # how a Poisson accountant may have computed its claim
_LEAST_EPSILON = 1e-9  # end of the search if δ of the first run is below `least_delta` from the start
_NEAREST = 1e-3  # fraction of the largest ε below which no crossover is searched for
_FIRST_POINTS = 6  # number of ε in the first evaluation
_CLOSE = 0.01  # relative accuracy of the crossover
_MOST_ROUNDS = 20
_ROUNDING = 64 * U  # rounding of e^{log δ} and of the lines through such values (B1 of docs/derivation.md)
_UNDERFLOW = 1e-300  # added to upper bounds that were scaled to at most 1: more than underflow can remove


def at_equal_noise(mechanism: Mechanism, *, truncated: bool = False) -> dict[str, Mechanism]:
    """Return the same run under every sampler, by the sampler's name.

    Args:
        mechanism: the run; it comes first in the answer, unchanged.
        truncated: whether the other samplers truncate their batches as `mechanism` does, if their sizes vary.

    Returns:
        The run itself, followed by the run under each other sampler of the paper's comparison (by name), with the
        same noise, steps and epochs.

    Example:
        >>> from ballsbins import BallsAndBins, Mechanism
        >>> from ballsbins.comparison import at_equal_noise
        >>> list(at_equal_noise(Mechanism(BallsAndBins(1000), noise_multiplier=0.5)))
        ['balls-and-bins', 'Poisson', 'shuffle', 'deterministic']
    """
    check_run("mechanism", mechanism)
    own = mechanism.sampler
    runs = {own.name: mechanism}
    for kind in SAMPLERS:
        other = kind(own.steps)
        if truncated and other.random_sizes and own.max_batch_size is not None:
            assert own.num_examples is not None  # the sampler has checked this
            other = other.truncated_to(own.max_batch_size, own.num_examples)
        runs.setdefault(other.name, mechanism.under(other))
    return runs


@dataclass(frozen=True)
class Crossover:
    """Two intervals of ε: on one δ_first is proved larger than δ_second, on the other it is proved smaller.

    δ_first(ε) > δ_second(ε) for all ε from `start` to `left`, and δ_first(ε) < δ_second(ε) for all ε from `right` to
    `end`; left < right. If nothing is proved for an interval, both its ends are None. Elsewhere the bounds cannot
    decide. Erratum 6 of the paper (docs/errata.md): at small ε, balls-and-bins is *worse* than Poisson.
    """

    left: float | None
    right: float | None
    start: float | None = None
    end: float | None = None


def crossover(
    first: Mechanism, second: Mechanism, least_delta: float = 1e-10, direction: Direction | None = None
) -> Crossover:
    """Find where the curve of `first` falls below that of `second` as ε ≥ 0 increases, with proof on both sides.

    The proof covers every ε, not only the evaluated ones. δ is convex and non-increasing in e^ε, so chords bound it
    from above, and chords extended beyond their ends bound it from below (docs/accounting.md, "Between two points").

    Args:
        first: the run with the larger δ at small ε.
        second: the run to compare it with.
        least_delta: the search ends at the ε where δ of `first` has fallen to this probability, in (0, 1).
        direction: "remove" or "add" to compare the divergences of that direction; None for δ, the larger of the two.

    Returns:
        The intervals of ε on both sides of the crossover, a short distance apart; an end that is not proved is None.

    Raises:
        AccuracyError: δ of one of the two runs cannot be computed with a known error.

    Example:
        >>> from ballsbins import BallsAndBins, Mechanism
        >>> from ballsbins.comparison import at_equal_noise, crossover
        >>> runs = at_equal_noise(Mechanism(BallsAndBins(1000), noise_multiplier=0.5))
        >>> found = crossover(runs["balls-and-bins"], runs["Poisson"])
        >>> 0 == found.start < found.left < found.right < 1 < found.end
        True
    """
    check_run("first", first)
    check_run("second", second)
    least_delta = _check.delta(least_delta)
    if direction is not None:
        _check.one_of("direction", direction, DIRECTIONS, advice="None compares the larger of the two.")
    ways = DIRECTIONS if direction is None else (direction,)
    known = max(float(epsilon_at(first.curve, way, np.log([least_delta]))[1, 0]) for way in ways)
    largest = min(max(known, _LEAST_EPSILON), LARGEST_EPSILON)  # it may be 0 or ∞
    pair = _Pair(first.curve, second.curve, ways)
    pair.ask(np.concatenate([[0.0], np.geomspace(_NEAREST * largest, largest, _FIRST_POINTS)]))
    for _ in range(_MOST_ROUNDS):
        left, right = pair.bracket
        if left is None or right is None or right - left < _CLOSE * right:
            break
        pair.ask(np.clip(pair.root * (1.0 + 0.4 * _CLOSE * np.array([-1.0, 1.0])), left, right))
        if pair.bracket == (left, right):
            break
    for _ in range(_MOST_ROUNDS):
        open_cells = pair.open_cells
        if open_cells.size == 0:
            break
        pair.ask(open_cells)
    return pair.proved()


class _Pair:
    """Two curves at all ε evaluated so far, and where one is proved to be larger."""

    def __init__(self, first: Curve, second: Curve, ways: Sequence[Direction]) -> None:
        self._curves, self._ways = (first, second), ways
        self._epsilon = np.empty(0)
        self._logs = np.empty((2, 3, 0))  # curve, (lower, value, upper), ε

    def ask(self, epsilon: Array) -> None:
        """Compare the two curves at more ε."""
        epsilon = np.setdiff1d(epsilon, self._epsilon)
        if epsilon.size == 0:
            return
        new = [
            np.max([curve.log_delta(epsilon, way).rows for way in self._ways], axis=0)
            for curve in self._curves
        ]
        order = np.argsort(np.append(self._epsilon, epsilon))
        self._epsilon = np.append(self._epsilon, epsilon)[order]
        self._logs = np.concatenate([self._logs, np.stack(new)], axis=2)[:, :, order]

    @property
    def _signs(self) -> Array:
        """At each ε: +1 if δ_first > δ_second is proved, −1 if δ_first < δ_second is proved, else 0."""
        one, two = self._logs
        return np.where(one[0] > two[2], 1.0, np.where(one[2] < two[0], -1.0, 0.0))

    @property
    def bracket(self) -> tuple[float | None, float | None]:
        """The last ε at which the first curve is proved larger, and the next ε at which it is proved smaller."""
        above = np.flatnonzero(self._signs > 0)
        left = None if above.size == 0 else float(self._epsilon[above[-1]])
        below = np.flatnonzero((self._signs < 0) & (self._epsilon > (-1.0 if left is None else left)))
        return left, None if below.size == 0 else float(self._epsilon[below[0]])

    @property
    def root(self) -> float:
        """Where the logarithms are equal, between the ends of the bracket, estimated by a chord."""
        left, right = (int(np.flatnonzero(self._epsilon == end)[0]) for end in self.bracket)
        a, b = self._epsilon[left], self._epsilon[right]
        up, down = self._logs[0, 1, [left, right]] - self._logs[1, 1, [left, right]]
        chord = a + (b - a) * up / (up - down)
        return float(chord) if a < chord < b else float(0.5 * (a + b))

    def _cells(self) -> Array:
        """Between each ε and the next: +1 if δ_first > δ_second is proved throughout, −1 if < is, else 0."""
        one, two = self._logs
        signs = np.zeros(self._epsilon.size - 1)
        for place in range(signs.size):
            if _above(self._epsilon, one, two, place):
                signs[place] = 1.0
            elif _above(self._epsilon, two, one, place):
                signs[place] = -1.0
        return signs

    @property
    def open_cells(self) -> Array:
        """Midpoints of cells that are not yet proved although both ends have the same sign; short cells are left."""
        signs, left, right = self._signs, self._epsilon[:-1], self._epsilon[1:]
        same = (signs[:-1] == signs[1:]) & (signs[1:] != 0.0)
        long = right - left > 0.25 * _CLOSE * right
        return np.asarray((0.5 * (left + right))[same & long & (self._cells() == 0.0)])

    def proved(self) -> Crossover:
        """Return the intervals on both sides of the bracket, as far as all their cells are proved."""
        cells, ends = self._cells(), self._epsilon
        above, below = np.flatnonzero(cells > 0), np.flatnonzero(cells < 0)
        left = right = start = end = None
        if above.size:
            first = last = int(above[-1])
            while first > 0 and cells[first - 1] > 0:
                first -= 1
            start, left = float(ends[first]), float(ends[last + 1])
            below = below[below > last]
        if below.size:
            first = last = int(below[0])
            while last + 1 < cells.size and cells[last + 1] < 0:
                last += 1
            right, end = float(ends[first]), float(ends[last + 1])
        return Crossover(left, right, start, end)


def _above(epsilon: Array, one: Array, two: Array, place: int) -> bool:
    """Whether δ_one > δ_two is proved between ε[place] and the next ε, from bounds on log δ at all ε.

    Both curves are convex and non-increasing in x = e^ε. So δ_two lies below its chord, and δ_one lies above its
    value at the right end and above its neighbouring chords, extended from either side. The maximum of these three
    lines minus the chord is convex and piecewise linear in x, so its minimum is at an end or where two lines meet.
    """
    near = slice(max(place - 1, 0), min(place + 3, epsilon.size))
    top = max(float(one[2, near].max()), float(two[2, near].max()))
    if not one[0, place + 1] > -np.inf or not np.isfinite(top):
        return False
    low = np.exp(one[0] - top) * (1.0 - _ROUNDING)
    high, other = (np.exp(rows[2] - top) * (1.0 + _ROUNDING) + _UNDERFLOW for rows in (one, two))

    def width(cell: int) -> float:  # width in x, in units of x at the left end of cell `place`
        return float(np.exp(epsilon[cell] - epsilon[place]) * np.expm1(epsilon[cell + 1] - epsilon[cell]))

    own = width(place)
    lines = [(low[place + 1], 0.0)]  # value at the left end, and change from there to the right end
    if place > 0:
        lines.append((low[place], own / width(place - 1) * (low[place] - high[place - 1])))
    if place + 2 < epsilon.size:
        fall = own / width(place + 1) * (low[place + 1] - high[place + 2])
        lines.append((low[place + 1] + fall, -fall))
    places = [0.0, 1.0]
    for (a, b), (c, d) in combinations(lines, 2):
        if b != d:
            places.append(min(max((c - a) / (b - d), 0.0), 1.0))
    chord = other[place], other[place + 1] - other[place]
    return all(max(a + b * x for a, b in lines) > chord[0] + chord[1] * x for x in places)


@dataclass(frozen=True)
class PoissonClaim:
    """ε of a run that was accounted for as Poisson sampling, for each way its batches may really have been drawn.

    `claimed` is the reported ε, if that is known instead of the noise.
    """

    run: Mechanism
    delta: float
    poisson: Bound
    shuffle: Bound
    deterministic: Bound
    balls_and_bins: Bound
    claimed: float | None = None

    @property
    def claim(self) -> float:
        """The reported ε: as stated, or else the largest ε that Poisson accounting can have claimed."""
        return float(self.poisson.upper) if self.claimed is None else self.claimed

    @property
    def false_if_shuffled(self) -> bool:
        """Whether ε of shuffled batches is proved to be larger than the claim."""
        return float(self.shuffle.lower) > self.claim

    @property
    def factor(self) -> float:
        """A lower bound on the ratio of ε of shuffled batches to the claim; infinite if the claim is 0."""
        return float(self.shuffle.lower) / self.claim if self.claim > 0 else math.inf

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            "run": {
                "noise_multiplier": self.run.noise_multiplier,
                "steps": self.run.sampler.steps,
                "epochs": self.run.epochs,
                "last_epoch_steps": self.run.last_epoch_steps,
            },
            "delta": self.delta,
            "claimed_epsilon": self.claimed,
            "epsilon": {
                "poisson": self.poisson.to_dict(),
                "shuffle": self.shuffle.to_dict(),
                "deterministic": self.deterministic.to_dict(),
                "balls_and_bins": self.balls_and_bins.to_dict(),
            },
            "report_is_false_if_shuffled": self.false_if_shuffled,
        }


def poisson_claim(run: Mechanism, delta: float, claimed: float | None = None) -> PoissonClaim:
    """Account for a run that was reported as Poisson sampling, under each way its batches may have been drawn.

    Args:
        run: the run, with any sampler that has the right number of steps.
        delta: δ of the claim, a probability in (0, 1).
        claimed: the reported ε, if `run` was found from it (`noise_of_claim`); None if only the noise is known, and
            the claim is the ε that Poisson accounting gives for it.

    Returns:
        ε at `delta` for Poisson sampling (the claim), shuffled, deterministic and balls-and-bins batches.

    Raises:
        InvalidInputError: `delta` is not in (0, 1).

    Example:
        >>> from ballsbins import Mechanism, Poisson
        >>> from ballsbins.comparison import poisson_claim
        >>> claim = poisson_claim(Mechanism(Poisson(steps=10_000), noise_multiplier=0.5), delta=1e-6)
        >>> claim.false_if_shuffled, round(claim.factor, 1)
        (True, 5.6)
    """
    check_run("run", run)
    kinds = (Poisson, Shuffle, Deterministic, BallsAndBins)
    poisson, shuffle, deterministic, bins = (run.under(kind).epsilon(delta) for kind in kinds)
    return PoissonClaim(run, delta, poisson, shuffle, deterministic, bins, claimed)


def noise_of_claim(
    steps: int, epochs: int, *, epsilon: float, delta: float, accountant: ClaimedBy = "exact"
) -> Mechanism:
    """Find the run for which a Poisson accountant would have reported this ε.

    Args:
        steps: T, the number of batches in one epoch.
        epochs: the number of passes over the data.
        epsilon: the ε that was claimed, above 0 and at most 700.
        delta: the δ at which it was claimed, strictly between 0 and 1.
        accountant: how it was computed. "exact" for privacy loss distributions (PRV, PLD) whose error is small;
            "rdp" for Rényi divergences, the default of Opacus until 1.4 and of TF Privacy, which overstate ε, so the
            run had more noise.

    Returns:
        The run with Poisson batches and the noise multiplier that matches the claim.

    Raises:
        InvalidInputError: an argument is out of its range.
        UnreachableTargetError: no noise multiplier matches the claim.

    Example:
        >>> from ballsbins.comparison import noise_of_claim
        >>> run = noise_of_claim(235, 10, epsilon=3.0, delta=1e-5, accountant="rdp")
        >>> f"{run.noise_multiplier:.3f}"
        '0.742'
    """
    from ballsbins.calibration import calibrate, least_noise_of

    _check.one_of("accountant", accountant, get_args(ClaimedBy), advice="PRV and PLD are close to exact.")
    tight = calibrate(Poisson(steps), epsilon=epsilon, delta=delta, epochs=epochs)
    if accountant == "exact":
        return tight

    def claimed(sigma: float) -> float:
        return _rdp_epsilon(steps, steps * epochs, sigma, delta)

    return replace(tight, noise_multiplier=least_noise_of(claimed, epsilon, start=tight.noise_multiplier))


def _rdp_epsilon(steps: int, taken: int, sigma: float, delta: float) -> float:
    """Return the ε that an accountant of Rényi divergences gives for Poisson batches."""
    import dp_accounting

    one_step = dp_accounting.PoissonSampledDpEvent(1.0 / steps, dp_accounting.GaussianDpEvent(sigma))
    accountant = dp_accounting.rdp.RdpAccountant()
    accountant.compose(one_step, taken)
    return float(accountant.get_epsilon(delta))
