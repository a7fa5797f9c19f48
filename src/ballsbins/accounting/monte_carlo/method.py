"""`MonteCarlo(…)`: the method object for `Mechanism.delta(ε, method=…)`, and the privacy curve behind it.

The error probability β is divided. An answer has two directions and two sides, so each of the four bounds may fail
with probability β/4. If `epsilons` is given, each bound at each point of that grid may fail with β/(4·points), and
the stated confidence holds for all ε together. This works because δ decreases in ε: the upper bound at a grid point
also holds above it, and the lower bound also holds below it. Without a grid the stated confidence holds for every
single answer, and ε cannot be searched for, because the search would choose among answers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from os import PathLike
from typing import Literal

import numpy as np

from ballsbins import _check
from ballsbins.accounting.curve import ADD, DIRECTIONS, Array, Curve, Direction, Interval
from ballsbins.accounting.monte_carlo import confidence, orders
from ballsbins.accounting.monte_carlo.estimate import Lattice
from ballsbins.accounting.monte_carlo.importance import Combined, Importance
from ballsbins.accounting.monte_carlo.order_statistics import OrderStatistics
from ballsbins.accounting.monte_carlo.pairs import LossSampler, log_range
from ballsbins.accounting.monte_carlo.plain import Epochs, Plain, Unfinished
from ballsbins.accounting.monte_carlo.run import MOST_SAMPLES, TILTED, Job, Outcome, Progress, run
from ballsbins.accounting.monte_carlo.state import StateFile
from ballsbins.accounting.monte_carlo.tilted import SHARES, Tilted
from ballsbins.accounting.monte_carlo.tilted_add import TiltedAdd, best_power
from ballsbins.errors import InvalidInputError

SamplerKind = Literal["tilted", "plain", "importance", "order-statistics", "combined"]
KINDS = ("tilted", "plain", "importance", "order-statistics", "combined")
_FINITE = -1e300  # replaces log 0, so that interpolation works
_NOTHING = -690.0  # a log δ below this is treated as δ = 0: no samples are drawn
# coordinates: more are too many to draw each of them for `add` of several epochs, so samples are not tilted
_MANY = 20_000
_MOST_CELLS = 2**20  # most cells of a lattice; points too far apart for one lattice do not share samples
LEAST_SIGMA = 0.04  # for a smaller σ, Z overflows a double
# largest log range of tilted samples: their variance is below that of plain samples, whose range is 1
_LARGEST_RANGE = math.log(4.0)
_FEW = 300  # coordinates: up to this many, drawing them all is faster than drawing order statistics

_MOST_WORKERS = 10_000  # processes: more than any machine has cores


@dataclass(frozen=True)
class MonteCarlo:
    """Monte Carlo accounting of balls-and-bins: the paper's own method, and an independent check of the exact one.

    Pass it as `method=` to `Mechanism.delta` or `Mechanism.epsilon`. An answer is an interval that holds with
    probability 1 − `error_probability`: for every single ε, or for all ε together if `epsilons` is given.

    Args:
        samples: the number of samples in each direction, from 1 to 10¹⁵. More samples make the bounds tighter.
        error_probability: the probability that a bound fails, in (0, 1).
        seed: any integer ≥ 0. The same seed gives the same answer, whatever `workers` is.
        sampler: how to draw. "tilted" is our own, for small δ and any number of epochs; every ε has its own samples.
            The paper's are "plain", "importance" (one epoch), "order-statistics" and "combined" (one epoch).
        bound: the confidence bound: "kl", "bernstein", or "auto" (betting for tilted samples, else "kl").
        orders: which order statistics to draw, for "order-statistics" and "combined": "auto", the name of one of the
            paper's lists, or increasing numbers from 1 to the number of draws.
        looseness: the largest relative distance of the bounds on one sample with `orders="auto"`, > 0.
        epsilons: increasing ε, chosen before seeing any answer, for which the answers hold together. A search for ε
            requires it, because a search chooses among answers.
        workers: the number of processes, at least 1.
        state: a file to keep the samples in. A later run with more samples continues from there.
        progress: called with the results so far.

    Raises:
        InvalidInputError: an argument is outside its range, or does not fit the sampler.

    Example:
        >>> from ballsbins import BallsAndBins, Mechanism, MonteCarlo
        >>> run = Mechanism(BallsAndBins(steps=1000), noise_multiplier=0.35)
        >>> bound = run.delta(10.0, method=MonteCarlo(samples=2000, seed=1))
        >>> bound.lower < run.delta(10.0).value < bound.upper, bound.kind, bound.confidence
        (True, 'sampled', 0.999)
    """

    samples: int = 100_000
    error_probability: float = 1e-3
    seed: int = 0
    sampler: SamplerKind = "tilted"
    bound: Literal["auto", "kl", "bernstein"] = "auto"
    orders: str | tuple[int, ...] = "auto"
    looseness: float = 3e-3
    epsilons: tuple[float, ...] | None = None
    workers: int = 1
    state: str | PathLike[str] | None = None
    progress: Progress | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        """Validate, once."""
        _check.integer(
            "samples",
            self.samples,
            1,
            MOST_SAMPLES,
            advice="More samples make the bounds tighter; start with 100000.",
        )
        _check.integer("seed", self.seed, 0, advice="Any integer; one seed gives one answer.")
        _check.integer(
            "workers", self.workers, 1, _MOST_WORKERS, advice="State the number of processes to use."
        )
        confidence.error_probability(self.error_probability)
        _check.real("looseness", self.looseness, 0.0, open_left=True, advice="1e-2 is coarse, 1e-4 fine.")
        for name, value, allowed in (
            ("sampler", self.sampler, KINDS),
            ("bound", self.bound, ("auto", "kl", "bernstein")),
        ):
            _check.one_of(name, value, allowed, advice="Leave it out for the best one.")
        if not (isinstance(self.orders, str) and self.orders == "auto") and self.sampler not in (
            "order-statistics",
            "combined",
        ):
            advice = 'Leave them out, or use "order-statistics" or "combined".'
            raise InvalidInputError("orders", self.orders, f"left out for {self.sampler} samples", advice)
        if self.epsilons is not None:
            bound, advice = "increasing numbers", "State the grid of ε to answer for together."
            grid = _check.reals("epsilons", self.epsilons, bound, np.isfinite, advice=advice)
            if grid.ndim != 1 or not grid.size or np.any(np.diff(grid) <= 0):
                raise InvalidInputError("epsilons", self.epsilons, bound, advice)
        if self.state is not None and not isinstance(self.state, (str, PathLike)):
            raise InvalidInputError(
                "state", self.state, "the path of a file", "Leave it out to keep no samples."
            )
        if self.progress is not None and not callable(self.progress):
            raise InvalidInputError("progress", self.progress, "a function", "Leave it out to see nothing.")


class MonteCarloCurve(Curve):
    """δ(ε) with confidence."""

    def __init__(
        self,
        settings: MonteCarlo,
        sigma: float,
        steps: int,
        epochs: int,
        unfinished: tuple[tuple[int, float], ...] | None = None,
    ) -> None:
        """Take the number of whole epochs with redrawn bins (fixed bins are one epoch with less noise).

        `unfinished` describes a last epoch that stopped early.
        """
        self.settings, self.sigma, self.steps, self.epochs = settings, sigma, steps, epochs
        self.unfinished = unfinished
        self.confidence = min(1.0 - settings.error_probability, math.nextafter(1.0, 0.0))  # never certain
        self.pointwise = settings.epsilons is None
        self.outcomes: dict[Job, Outcome] = {}
        self._grid: dict[Direction, Interval] = {}
        self._state = None if settings.state is None else StateFile(settings.state)

    kind = "sampled"

    @property
    def method(self) -> str:  # type: ignore[override]
        """The method in words, with the number of samples actually drawn."""
        drawn = [outcome.tally.count for outcome in self.outcomes.values()]
        few = min(drawn, default=self.settings.samples)
        stopped = "" if few >= self.settings.samples else f" of {self.settings.samples:,} planned"
        kind, seed = self.settings.sampler, self.settings.seed
        return f"Monte Carlo ({kind}), {few:,}{stopped} samples a direction, seed {seed}"

    def at(self, epsilon: Array, direction: Direction) -> Interval:
        """The same as `log_delta`."""
        return self.log_delta(epsilon, direction)

    def log_delta(self, epsilon: Array, direction: Direction) -> Interval:
        """Confidence bounds on log δ(ε), for ε of any sign: samples of one direction serve both signs."""
        epsilon = np.asarray(epsilon, dtype=np.float64)
        beta = self.settings.error_probability / 4
        if self.settings.epsilons is None:
            return self._at(epsilon, direction, beta)
        grid = np.array(self.settings.epsilons)
        if direction not in self._grid:
            self._grid[direction] = self._at(grid, direction, beta / grid.size)
        known = self._grid[direction]
        left = np.searchsorted(grid, epsilon, side="right") - 1
        right = np.searchsorted(grid, epsilon, side="left")
        upper = np.where(left >= 0, np.minimum.accumulate(known.upper)[left], 0.0)
        lows = np.append(np.maximum.accumulate(known.lower[::-1])[::-1], -np.inf)
        trivial = _trivial(epsilon)
        lower = np.minimum(np.maximum(lows[right], trivial), upper)
        finite = np.maximum(known.value, _FINITE)
        return Interval(lower, np.clip(np.interp(epsilon, grid, finite), lower, upper), upper)

    def _at(self, epsilon: Array, direction: Direction, beta: float) -> Interval:
        """Bounds at each ε. Points with the same sampler share samples; none are drawn where δ surely underflows."""
        self._draw(epsilon)
        sure = self._sure_at(epsilon, direction)
        lower, value, upper = np.full(epsilon.shape, -np.inf), sure.copy(), sure.copy()
        for job, rows in self._groups(epsilon, direction, sure).items():
            found = self.outcomes[job].log_delta(epsilon[rows], beta, self.settings.bound)
            lower[rows], value[rows], upper[rows] = found.lower, found.value, found.upper
        upper = np.minimum(upper, sure)
        lower = np.minimum(np.maximum(lower, _trivial(epsilon)), upper)
        return Interval(lower, np.clip(value, lower, upper), upper)

    def _draw(self, epsilon: Array) -> None:
        """Draw both directions side by side, so that an interrupted run has results for each."""
        jobs: list[Job] = []
        for direction in DIRECTIONS:
            groups = self._groups(epsilon, direction, self._sure_at(epsilon, direction))
            jobs += [job for job in groups if job not in self.outcomes]
        if jobs:
            found = run(
                jobs,
                seed=self.settings.seed,
                workers=self.settings.workers,
                progress=self.settings.progress,
                state=self._state,
            )
            self.outcomes.update(zip(jobs, found, strict=True))

    def _groups(self, epsilon: Array, direction: Direction, sure: Array) -> dict[Job, list[int]]:
        """The jobs to draw for a direction, each with the points it serves, in increasing order."""
        by_sampler: dict[LossSampler, list[list[int]]] = {}
        for k in np.argsort(epsilon, kind="stable"):
            if sure[k] > _NOTHING:
                sampler = self.sampler_for(float(epsilon[k]), direction)
                parts = by_sampler.setdefault(sampler, [[]])
                if parts[-1] and _lattice(sampler, epsilon[[parts[-1][0], k]]).size > _MOST_CELLS:
                    parts.append([])
                parts[-1].append(int(k))
        return {
            Job(
                sampler,
                _lattice(sampler, epsilon[rows]),
                self.settings.samples,
                int(direction == ADD),
                float(epsilon[rows[0]]),
            ): rows
            for sampler, parts in by_sampler.items()
            for rows in parts
        }

    def _sure_at(self, epsilon: Array, direction: Direction) -> Array:
        return np.array([self._sure(float(point), direction) for point in epsilon])

    def _sure(self, epsilon: float, direction: Direction) -> float:
        """Log of an upper bound on δ that needs no samples: 1, or the range of a tilted sample."""
        if self.settings.sampler != "tilted":
            return 0.0
        sampler = self.sampler_for(epsilon, direction)
        above = sampler.log_weight_error
        if isinstance(sampler, TILTED):
            above += math.log1p(sampler.rest)
        return min(log_range(sampler.log_weight, sampler.tilt, epsilon) + above, 0.0)

    def sampler_for(self, epsilon: float, direction: Direction) -> LossSampler:
        """The sampler to use for one ε."""
        make: dict[str, Callable[[float, Direction], LossSampler]] = {
            "plain": lambda _, way: Plain(self.sigma, self.steps, way),
            "importance": lambda e, way: Importance(self.sigma, self.steps, way, e),
            "order-statistics": lambda _, way: self._order_statistics(way),
            "combined": self._combined,
            "tilted": self._tilted,
        }
        last = None if self.unfinished is None else Unfinished(self.unfinished, self.steps, direction)
        if last is not None and self.epochs == 0:
            return last
        one = make[self.settings.sampler](epsilon, direction)
        if isinstance(one, TILTED) or (self.epochs == 1 and last is None):
            return one
        return Epochs(one, self.epochs, last)

    def _orders(self, draws: int) -> tuple[int, ...]:
        if self.settings.orders == "auto":
            found = orders.automatic(draws, self.sigma, self.settings.looseness / self.epochs)
        else:
            found = orders.checked(self.settings.orders, draws)
        return tuple(int(k) for k in found)

    def _order_statistics(self, direction: Direction) -> LossSampler:
        draws = self.steps if direction == ADD else self.steps - 1
        if draws < 1:
            return Plain(self.sigma, self.steps, direction)
        return OrderStatistics(self.sigma, self.steps, direction, self._orders(draws))

    def _combined(self, epsilon: float, direction: Direction) -> LossSampler:
        draws = self.steps if direction == ADD else self.steps - 2
        if draws < 1:
            return Importance(self.sigma, self.steps, direction, epsilon)
        return Combined(self.sigma, self.steps, direction, epsilon, self._orders(draws))

    def _tilted(self, epsilon: float, direction: Direction) -> LossSampler:
        if direction == ADD and self.epochs > 1:
            if epsilon <= 0.0 or self.steps > _MANY:
                return self._untilted(ADD)
            power = best_power(self.sigma, self.steps, self.epochs, epsilon)
            if power == 0.0:
                return self._untilted(ADD)
            return TiltedAdd(self.sigma, self.steps, power, epsilon, self.epochs)
        tilted = Tilted(self.sigma, self.steps, direction, epsilon, self.epochs)
        return tilted if tilted.log_weight < _LARGEST_RANGE else self._untilted(direction)

    def _untilted(self, direction: Direction) -> LossSampler:
        return (
            Plain(self.sigma, self.steps, direction)
            if self.steps <= _FEW
            else self._order_statistics(direction)
        )


def _lattice(sampler: LossSampler, epsilon: Array) -> Lattice:
    """The lattice that these increasing ε need."""
    ends = float(epsilon[0]), float(epsilon[-1])
    if isinstance(sampler, TILTED):
        return SHARES
    return Lattice.around(*ends, sampler.tilt)


def _trivial(epsilon: Array) -> Array:
    """log(1 − e^ε) for ε < 0: δ is never smaller."""
    with np.errstate(divide="ignore"):
        return np.where(epsilon < 0.0, np.log(-np.expm1(np.minimum(epsilon, 0.0))), -math.inf)
