"""Jobs that take turns, so that what else happens on the machine happens to all of them alike."""

import contextlib
import subprocess
import sys
import time


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
