"""Jobs that take turns, so that what else happens on the machine happens to all of them alike."""

import contextlib
import os
import subprocess
import sys
import time
from itertools import pairwise


def seconds(job, clock):
    begin = clock()
    job()
    return clock() - begin


def in_turns(jobs, rounds, summary=min, clock=time.perf_counter):
    """Seconds of each job (the least, unless told), all jobs taking turns, after one round that compiles."""
    for job in jobs.values():
        job()
    taken = {name: [] for name in jobs}
    for _ in range(rounds):
        for name, job in jobs.items():
            taken[name].append(seconds(job, clock))
    return {name: float(summary(values)) for name, values in taken.items()}


def in_stages(job, clocks):
    """Run a job that yields its result so far at the end of each stage.

    Returns the last result, and for each clock the seconds of every stage.
    """
    result, marks = None, [[clock() for clock in clocks]]
    for found in job:
        result = found
        marks.append([clock() for clock in clocks])
    marks.append([clock() for clock in clocks])
    return result, [[end - begin for begin, end in pairwise(times)] for times in zip(*marks, strict=True)]


def least(runs):
    """The time of a job from the seconds of its stages in several runs: the sum of the least of each stage.

    What else happens on a machine only adds to a time. It seldom spares a run of a second, but it does spare every
    stage of some milliseconds in one run or the other.
    """
    return sum(map(min, zip(*runs, strict=True)))


def one_thread_of_blas():
    """The environment of a process that does no linear algebra: idle threads of BLAS wait in a loop at its start."""
    return os.environ | {"OPENBLAS_NUM_THREADS": "1"}


@contextlib.contextmanager
def busy(count):
    """`count` other processes that never rest."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()
