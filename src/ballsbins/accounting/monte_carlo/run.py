"""Draw many losses: reproducibly, in parallel, in bounded memory, and so that a run can be resumed.

Samples are drawn in blocks. Block i of a run has its own generator, seeded by (seed, stream, i), and the size of a
block depends only on the sampler. Counts of losses are integers, so their sum does not depend on which worker drew
what: one seed gives one answer, on any number of workers. Jobs (two directions, perhaps several ε) are drawn side by
side.

Interim results (looks) are taken after 1, 2, 4, 8, … blocks, and `Outcome` keeps the counts of each. The number of
samples first planned gets 9/10 of β, and each look its share of the other 1/10 (`confidence.spend`). All bounds
together fail with probability β, so the answer is always their intersection: more samples never widen it.
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

from ballsbins import _check, _extras
from ballsbins.accounting.curve import Array, Interval
from ballsbins.accounting.monte_carlo import confidence
from ballsbins.accounting.monte_carlo.confidence import log_bet_lower, log_bet_upper
from ballsbins.accounting.monte_carlo.estimate import (
    Lattice,
    Moments,
    Tally,
    moments,
    moments_of_shares,
    shares,
)
from ballsbins.accounting.monte_carlo.pairs import LossSampler, log_range
from ballsbins.accounting.monte_carlo.state import Saved, StateFile
from ballsbins.accounting.monte_carlo.tilted import Tilted
from ballsbins.accounting.monte_carlo.tilted_add import TiltedAdd
from ballsbins.errors import InvalidInputError

_BLOCK = 2**20  # about how many numbers are drawn for one block
_SAVE_SECONDS = 30.0  # time between two writes of the state file: little is lost in a crash
PLANNED_SHARE = 0.9  # fraction of β; the rest is for looks before and after the planned number of samples
MOST_SAMPLES = 10**15  # a month of a large cluster
_MOST_ROWS, _MOST_BLOCKS = 2**14, 16  # most samples of one block, and most blocks between two clock checks
TILTED = (Tilted, TiltedAdd)  # these samplers return contributions to δ at one ε, not losses


@dataclass(frozen=True)
class Outcome:
    """The counts so far, the counts of every look, and the counts of the samples first planned once complete."""

    sampler: LossSampler
    tally: Tally
    looks: tuple[Tally, ...]  # after 1, 2, 4, … blocks
    whole: Tally | None
    wanted: int  # the number of samples requested now
    epsilon: float = 0.0  # the least ε requested

    def moments(self, epsilon: float, tally: Tally | None = None) -> Moments:
        """Mean and variance of the contributions, in units of the range."""
        tally = self.tally if tally is None else tally
        if isinstance(self.sampler, TILTED):
            return moments_of_shares(tally, self.sampler.rest)
        return moments(tally, self.sampler.tilt, epsilon)

    def log_delta(self, epsilon: float | Array, beta: float, bound: str = "auto") -> Interval:
        """Bounds on log δ at each ε; each side of each interval fails with probability at most β."""
        points = np.atleast_1d(np.asarray(epsilon, dtype=np.float64))
        least = self.sampler.least_epsilon
        if points.min() < least or (isinstance(self.sampler, TILTED) and points.max() > least):
            advice = "These samples were drawn for another one; draw again."
            wrong = float(points.min() if points.min() < least else points.max())
            only = f"{least}" if isinstance(self.sampler, TILTED) else f"at least {least}"
            raise InvalidInputError("epsilon", wrong, f"{only}, for which they were drawn", advice)
        kappa, error = self.sampler.log_weight, self.sampler.log_weight_error
        scale = np.array([log_range(kappa, self.sampler.tilt, float(point)) for point in points])
        judged = [
            (tally, confidence.spend((1.0 - PLANNED_SHARE) * beta, k)) for k, tally in enumerate(self.looks)
        ]
        if self.whole is not None:
            judged.append((self.whole, PLANNED_SHARE * beta))
        lower, upper = np.full(points.shape, -np.inf), np.zeros(points.shape)
        for tally, share in judged:
            below, above = self._bounds(points, tally, share, bound)
            lower, upper = np.maximum(lower, below + scale - error), np.minimum(upper, above + scale + error)
        if not judged:
            return Interval(lower, upper, upper)
        latest = max((tally for tally, _ in judged), key=lambda tally: tally.count)
        found = [self.moments(float(point), latest) for point in points]
        with np.errstate(divide="ignore"):
            value = np.log([0.5 * (f.mean_low + f.mean_high) for f in found]) + scale
        lower = np.minimum(lower, upper)
        return Interval(lower, np.clip(value, lower, upper), upper)

    def _bounds(self, points: Array, tally: Tally, share: float, bound: str) -> tuple[Array, Array]:
        """Logs of bounds on the mean contribution from one tally, in units of the range."""
        if isinstance(self.sampler, TILTED) and bound == "auto":
            below, above = shares(tally, self.sampler.rest)
            return np.array([log_bet_lower(*below, share)]), np.array([log_bet_upper(*above, share)])
        found = [self.moments(float(point), tally) for point in points]
        low, high = np.array([f.mean_low for f in found]), np.array([f.mean_high for f in found])
        m = float(tally.count)
        if bound != "bernstein":
            return confidence.log_kl_lower(low, m, share), confidence.log_kl_upper(high, m, share)
        spread = np.array([(f.variance_low, f.variance_high) for f in found]).T
        return (
            confidence.log_bernstein_lower(low, spread[0], m, share),
            confidence.log_bernstein_upper(high, spread[1], m, share),
        )


# called after every task with the outcomes so far of all jobs, and once more, with True, after the last sample
Progress = Callable[[Sequence[Outcome], bool], None]


@dataclass(frozen=True)
class Job:
    """A number of samples of one sampler, counted on one lattice; `stream` separates jobs with the same seed."""

    sampler: LossSampler
    lattice: Lattice
    samples: int
    stream: int = 0
    epsilon: float = 0.0  # the least ε requested, to show while the job runs


def block_size(sampler: LossSampler) -> int:
    """The number of samples in one block, which depends only on the sampler."""
    return int(np.clip(_BLOCK // max(sampler.row, 1), 1, _MOST_ROWS))


def draw_blocks(job: Job, seed: int, first: int, last: int) -> Tally:
    """Count the losses of blocks first … last − 1, without those beyond the requested number of samples."""
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
    """Draw all jobs side by side. Ctrl-C returns the results so far, and each job then has some."""
    _check.integer("seed", seed, 0, advice="Any integer; one seed gives one answer.")
    _check.integer("workers", workers, 1, advice="State the number of processes to use.")
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
                    state.put({one.question: one.saved for one in running})
                    saved = time.monotonic()
    except KeyboardInterrupt:
        for one in running:
            one.stop()
    finally:
        if progress is not None:
            progress(outcomes(), True)
    if state is not None:
        state.put({one.question: one.saved for one in running})
    return outcomes()


class _Running:
    """A job, its results so far, and how to continue it."""

    def __init__(self, job: Job, seed: int, state: StateFile | None) -> None:
        _check.integer(
            "samples", job.samples, 1, MOST_SAMPLES, advice="More samples make the bounds tighter."
        )
        self.size = block_size(job.sampler)
        self.job, self.blocks = job, -(-job.samples // self.size)
        if state is not None and type(job.sampler).__repr__ is object.__repr__:
            advice = (
                "Make its class a frozen dataclass: saved samples are found again by what repr says of it."
            )
            raise InvalidInputError("sampler", type(job.sampler).__name__, "told apart by its repr", advice)
        facts = f"seed={seed} stream={job.stream} block={self.size} format=3"
        self.question = f"{job.sampler!r} {job.lattice!r} {facts}"
        if state is None:
            self.saved = Saved(job.samples, 0, Tally.empty(job.lattice))
        else:
            self.saved = state.begin(self.question, job.lattice, job.samples)
        if self.saved.tally.count > job.samples:
            advice = "Ask for as many or more, or name another file."
            found = f"at least {self.saved.tally.count}, the number saved in the state file"
            raise InvalidInputError("samples", job.samples, found, advice)
        self._tally = self.saved.tally  # may later include a last, partial block, which cannot be continued

    def tasks(self, k: int) -> Iterator[tuple[float, int, int, int]]:
        """Runs of blocks that stop at every power of two: (share of the job done, job k, first and last block)."""
        done = self.saved.done
        while done < self.blocks:
            look = 1 << done.bit_length() if done else 1
            stop = min(self.blocks, look, done + max(1, min(_MOST_BLOCKS, done // 4)))
            # the last block may be partial, so it is a task of its own
            if stop == self.blocks and stop - done > 1:
                stop -= 1
            yield stop / self.blocks, k, done, stop
            done = stop

    def add(self, last: int, tally: Tally) -> None:
        """Add the blocks up to `last`. One assignment replaces all saved results, as Ctrl-C may come any time."""
        self._tally, before = self._tally.merge(tally), self.saved
        whole = self._tally if self._tally.count == before.planned else before.whole
        if last * self.size <= self.job.samples:
            # 1, 2, 4, … blocks
            looks = (*before.looks, self._tally) if last & (last - 1) == 0 else before.looks
            self.saved = replace(before, done=last, tally=self._tally, looks=looks, whole=whole)
        else:
            self.saved = replace(before, whole=whole)

    def stop(self) -> None:
        """Go back to whole blocks, which can be continued, unless the job is complete."""
        if self._tally.count < self.job.samples:
            self._tally = self.saved.tally

    @property
    def outcome(self) -> Outcome:
        """The results so far."""
        saved, job = self.saved, self.job
        return Outcome(job.sampler, self._tally, saved.looks, saved.whole, job.samples, job.epsilon)


def _drawn(
    jobs: Sequence[Job], seed: int, tasks: Iterator[tuple[float, int, int, int]], workers: int
) -> Generator[tuple[int, int, Tally]]:
    """The job, last block and tally of each task, in order."""
    if workers == 1:
        for _, k, first, last in tasks:
            yield k, last, draw_blocks(jobs[k], seed, first, last)
        return
    joblib = _extras.load("joblib", feature="Monte Carlo on several workers", extra="parallel")
    sent: deque[tuple[int, int]] = deque()  # only tasks in flight: the whole plan may be long

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
            # joblib warns about dropped tasks, which is intended after Ctrl-C
            warnings.simplefilter("ignore")
            found.close()
