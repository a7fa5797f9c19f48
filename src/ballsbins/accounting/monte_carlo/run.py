"""Draw many losses: reproducibly, in parallel, resumably, in bounded memory.

Samples come in blocks; block i of a run has its own generator, seeded by (seed, stream, i), and the size of a block
depends on the sampler alone. Counts of losses are integers, so their sum does not depend on who drew what: one
seed, one answer, on any number of workers. Jobs (two directions, perhaps several ε) are drawn side by side.

Looks are taken after 1, 2, 4, 8, … blocks; `Outcome` keeps the counts of the last one. A run that ends as planned
is judged at its planned number of samples with 9/10 of β; whatever is shown before, or after a run was extended, is
judged at the last look, with shares of the other 1/10 (`confidence.spend`). Both together fail with probability β.
"""

from __future__ import annotations

import heapq
import time
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ballsbins import extras, validate
from ballsbins.accounting.curve import Array, Interval
from ballsbins.accounting.monte_carlo import confidence
from ballsbins.accounting.monte_carlo.conditional import Conditional
from ballsbins.accounting.monte_carlo.estimate import Lattice, Moments, Tally, moments, one_by_one
from ballsbins.accounting.monte_carlo.pairs import LossSampler, log_range
from ballsbins.accounting.monte_carlo.state import Entry, StateFile
from ballsbins.errors import InvalidInputError

_BLOCK = 2**20  # numbers drawn for one block
_SAVE_SECONDS = 30.0
PLANNED_SHARE = 0.9


@dataclass(frozen=True)
class Outcome:
    """Counts so far, and those of the last look."""

    sampler: LossSampler
    tally: Tally
    look: int  # number of the last look, −1 before the first
    looked: Tally
    planned: int  # the number of samples first planned
    wanted: int  # the number of samples now wanted
    epsilon: float = 0.0  # the least one asked for

    @property
    def as_planned(self) -> bool:
        """Whether the samples are those first planned, neither fewer nor more."""
        return self.tally.count == self.planned == self.wanted

    def moments(self, epsilon: float) -> Moments:
        """Mean and variance of the contributions, in units of the range."""
        if isinstance(self.sampler, Conditional):
            return one_by_one(*self.sampler.values(self.tally, epsilon))
        return moments(self.tally, self.sampler.tilt, epsilon)

    def log_delta(self, epsilon: float | Array, beta: float, bound: str = "auto") -> Interval:
        """Bounds on log δ at each ε, each side of each failing with probability at most β."""
        points = np.atleast_1d(np.asarray(epsilon, dtype=np.float64))
        if points.min() < self.sampler.least_epsilon:
            advice = "Outside of its event losses may be larger than that; draw again."
            bound = f"at least {self.sampler.least_epsilon}, for which the event was made"
            raise InvalidInputError("epsilon", float(points.min()), bound, advice)
        if self.as_planned:
            tally, share = self.tally, PLANNED_SHARE * beta
        elif self.look >= 0:
            tally, share = self.looked, confidence.spend((1.0 - PLANNED_SHARE) * beta, self.look)
        else:
            return Interval(np.full(points.shape, -np.inf), np.zeros(points.shape), np.zeros(points.shape))
        m = float(tally.count)
        if isinstance(self.sampler, Conditional):
            each = [self.sampler.values(tally, float(point)) for point in points]
            found = [one_by_one(*values) for values in each]
        else:
            each = []
            found = [moments(tally, self.sampler.tilt, float(point)) for point in points]
        low, high = np.array([f.mean_low for f in found]), np.array([f.mean_high for f in found])
        if bound == "auto" and each:
            lower = np.array([confidence.log_bet_lower(least, n, share) for least, _, n in each])
            upper = np.array([confidence.log_bet_upper(most, n, share) for _, most, n in each])
        elif bound != "bernstein":
            lower = confidence.log_kl_lower(low, m, share)
            upper = confidence.log_kl_upper(high, m, share)
        else:
            spread = np.array([(f.variance_low, f.variance_high) for f in found]).T
            lower = confidence.log_bernstein_lower(low, spread[0], m, share)
            upper = confidence.log_bernstein_upper(high, spread[1], m, share)
        tilt, kappa = self.sampler.tilt, self.sampler.log_weight
        scale = np.array([log_range(kappa, tilt, float(point)) for point in points])
        error = self.sampler.log_weight_error
        lower, upper = lower + scale - error, np.minimum(upper + scale + error, 0.0)
        with np.errstate(divide="ignore"):
            value = np.log(0.5 * (low + high)) + scale
        lower = np.minimum(lower, upper)
        return Interval(lower, np.clip(value, lower, upper), upper)


# called after every task with what all jobs have so far, and once more, with True, when no more will be drawn
Progress = Callable[[Sequence[Outcome], bool], None]


@dataclass(frozen=True)
class Job:
    """So many samples of one sampler, counted on one lattice; `stream` sets apart what shares a seed."""

    sampler: LossSampler
    lattice: Lattice
    samples: int
    stream: int = 0
    epsilon: float = 0.0  # the least one asked for: what to show meanwhile


def block_size(sampler: LossSampler) -> int:
    """Samples in one block: a matter of the sampler alone."""
    return int(np.clip(_BLOCK // max(sampler.row, 1), 1, 2**14))


def draw_blocks(job: Job, seed: int, first: int, last: int) -> Tally:
    """Count the losses of blocks first … last − 1, as far as they are among the samples wanted."""
    size = block_size(job.sampler)
    drawn = []
    for block in range(first, last):
        sequence = np.random.SeedSequence(seed, spawn_key=(job.stream, block))
        found = job.sampler.losses(np.random.Generator(np.random.SFC64(sequence)), size)
        if any(np.shape(part) != (size,) for part in found):
            shapes = [np.shape(part) for part in found]
            advice = "Return a lower and an upper bound on the loss of each sample."
            raise InvalidInputError("losses(rng, count)", shapes, f"arrays of {size} numbers", advice)
        inside = min(size, job.samples - block * size)
        drawn.append([part[:inside] for part in found])
    return Tally.of(job.lattice, *(np.concatenate(parts) for parts in zip(*drawn, strict=True)))


def run(
    jobs: Sequence[Job],
    *,
    seed: int = 0,
    workers: int = 1,
    progress: Progress | None = None,
    state: StateFile | None = None,
) -> list[Outcome]:
    """Draw all jobs side by side, so that Ctrl-C, which returns what there is, finds something of each."""
    validate.integer("seed", seed, 0, advice="Any integer; one seed gives one answer.")
    validate.integer("workers", workers, 1, advice="State the number of processes to use.")
    running = [_Running(job, seed, state) for job in jobs]
    saved = time.monotonic()
    tasks = heapq.merge(*(one.tasks(k) for k, one in enumerate(running)))

    def outcomes() -> list[Outcome]:
        return [one.outcome for one in running]

    try:
        with closing(_drawn(jobs, seed, tasks, workers)) as drawn:
            for k, last, tally in drawn:
                running[k].add(last, tally)
                if progress is not None:
                    progress(outcomes(), False)
                if state is not None and time.monotonic() - saved > _SAVE_SECONDS:
                    state.put({one.question: one.entry for one in running})
                    saved = time.monotonic()
    except KeyboardInterrupt:
        for one in running:
            one.stop()
    finally:
        if progress is not None:
            progress(outcomes(), True)
    if state is not None:
        state.put({one.question: one.entry for one in running})
    return outcomes()


class _Running:
    """A job, what it has, and how to go on."""

    def __init__(self, job: Job, seed: int, state: StateFile | None) -> None:
        validate.integer("samples", job.samples, 1, 10**15, advice="More samples make the bounds tighter.")
        self.size = block_size(job.sampler)
        self.job, self.blocks = job, -(-job.samples // self.size)
        if state is not None and type(job.sampler).__repr__ is object.__repr__:
            advice = (
                "Make its class a frozen dataclass: saved samples are found again by what repr says of it."
            )
            raise InvalidInputError("sampler", type(job.sampler).__name__, "told apart by its repr", advice)
        facts = f"seed={seed} stream={job.stream} block={self.size} format=2"
        self.question = f"{job.sampler!r} {job.lattice!r} {facts}"
        entry = None if state is None else state.get(self.question)
        begin, done = _start(job.sampler, job.lattice, job.samples, entry)
        self.outcome = replace(begin, epsilon=job.epsilon)
        if self.outcome.tally.count > job.samples:
            advice = "Ask for as many or more, or name another file."
            found = f"at least {self.outcome.tally.count}, the number saved in the state file"
            raise InvalidInputError("samples", job.samples, found, advice)
        # without a last, partial block: what can be continued. One name for both, as Ctrl-C may come at any time
        self._kept = self.outcome, done

    def tasks(self, k: int) -> Iterator[tuple[float, int, int, int]]:
        """Runs of blocks that end at every power of two; the share of the job done, job k, first and last block."""
        _, done = self._kept
        while done < self.blocks:
            look = 1 << done.bit_length() if done else 1
            stop = min(self.blocks, look, done + max(1, min(16, done // 4)))
            if stop == self.blocks and stop - done > 1:  # the last block may be partial: alone
                stop -= 1
            yield stop / self.blocks, k, done, stop
            done = stop

    def add(self, last: int, tally: Tally) -> None:
        """Add the blocks up to `last`."""
        self.outcome = replace(self.outcome, tally=self.outcome.tally.merge(tally))
        if last & (last - 1) == 0 and last * self.size <= self.job.samples:  # 1, 2, 4, … blocks
            self.outcome = replace(self.outcome, look=last.bit_length() - 1, looked=self.outcome.tally)
        if last * self.size <= self.job.samples:
            self._kept = self.outcome, last

    def stop(self) -> None:
        """Leave it at what can be continued, unless it is complete."""
        if self.outcome.tally.count < self.job.samples:
            self.outcome, _ = self._kept

    @property
    def entry(self) -> Entry:
        """What can be continued, to be saved."""
        return _entry(*self._kept)


def _drawn(
    jobs: Sequence[Job], seed: int, tasks: Iterator[tuple[float, int, int, int]], workers: int
) -> Generator[tuple[int, int, Tally]]:
    """The job, last block and tally of each task, in order."""
    if workers == 1:
        for _, k, first, last in tasks:
            yield k, last, draw_blocks(jobs[k], seed, first, last)
        return
    joblib = extras.load("joblib", feature="Monte Carlo on several workers", extra="parallel")
    sent: deque[tuple[int, int]] = deque()  # never the whole plan, which may be long

    def calls() -> Iterator[Any]:
        for _, k, first, last in tasks:
            sent.append((k, last))
            yield joblib.delayed(draw_blocks)(jobs[k], seed, first, last)

    found = joblib.Parallel(n_jobs=workers, return_as="generator")(calls())
    try:
        for tally in found:
            yield *sent.popleft(), tally
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that tasks are dropped: so it is meant after Ctrl-C
            found.close()


def _entry(outcome: Outcome, done: int) -> Entry:
    head = [outcome.planned, done, outcome.tally.count, outcome.look, outcome.looked.count]
    parts = [outcome.tally.low, outcome.tally.high, outcome.looked.low, outcome.looked.high]
    return np.concatenate([np.array(head, dtype=np.int64), *parts])


def _start(sampler: LossSampler, lattice: Lattice, samples: int, entry: Entry | None) -> tuple[Outcome, int]:
    """An outcome without samples, or the one that was saved; and the blocks done."""
    empty = Tally.empty(lattice)
    if entry is None:
        return Outcome(sampler, empty, -1, empty, samples, samples), 0
    planned, done, count, look, looked_count = (int(x) for x in entry[:5])
    low, high, looked_low, looked_high = entry[5:].reshape(4, empty.low.size)
    outcome = Outcome(
        sampler,
        Tally(lattice, count, low, high),
        look,
        Tally(lattice, looked_count, looked_low, looked_high),
        planned,
        samples,
    )
    return outcome, done
