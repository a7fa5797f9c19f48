"""Time and memory of drawing one epoch, as ratios to `numpy.random.Generator.permutation` in the same run.

    python benchmarks/samplers.py [--small] [--save [DIR]]

CPU time, the best of three, with everything imported before. The memory is the growth of the process's peak
above what it held before and above the result, in bytes an example; it is measured in a process of its own.
"""

import argparse
import multiprocessing
import time
from pathlib import Path

import numpy as np

import record
from ballsbins.samplers import BallsAndBins, Poisson, Shuffle, binomial_sizes, thrown_sizes

FULL = (37_000_000, 36_133)
SMALL = (2_000_000, 1_954)


def cpu_seconds(job, repeats=3):
    best = float("inf")
    for _ in range(repeats):
        begin = time.process_time()
        job()
        best = min(best, time.process_time() - begin)
    return best


def all_batches(sampler, n):
    for _batch in sampler.batches(n, 1):
        pass


def drawn(sampler, n):
    sampler.batches(n, 1).at(0)  # draws the whole epoch


def peak_bytes():
    """Return the peak of this process alone (Linux; getrusage would count the peak of its parent as well)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("this system does not tell the peak memory of a process")


def extra_memory(job, n, result_bytes):
    """Return the bytes an example above the result: run in a fresh process, after a small warm-up."""
    job(1000)
    before = peak_bytes()
    job(n)
    return (peak_bytes() - before) / n - result_bytes


def bins_job(n):
    drawn(BallsAndBins(FULL[1]), n)


def shuffle_job(n):
    drawn(Shuffle(FULL[1]), n)


def poisson_job(n):
    all_batches(Poisson(FULL[1]), n)


def memory_of(job, n, result_bytes):
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(extra_memory, (job, n, result_bytes))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="a quick look; the bounds are for the full size")
    record.add_save(parser)
    options = parser.parse_args()
    small, rows = options.small, []
    n, steps = SMALL if small else FULL
    for sampler in (BallsAndBins(3), Poisson(3), Shuffle(3)):
        all_batches(sampler, 100)

    permutation = cpu_seconds(lambda: np.random.default_rng(0).permutation(n))
    print(f"n = {n:,}, T = {steps:,}; permutation of n: {permutation:.2f} s of CPU time")
    print(f"{'one epoch':42}{'seconds':>9}{'ratio':>8}{'at most':>9}")
    bins, poisson = BallsAndBins(steps), Poisson(steps)
    jobs = [
        ("BallsAndBins, batches ready", lambda: drawn(bins, n), "1"),
        ("BallsAndBins, and all batches read", lambda: all_batches(bins, n), ""),
        ("Poisson, all batches", lambda: all_batches(poisson, n), "2"),
        ("Shuffle, batches ready", lambda: drawn(Shuffle(steps), n), ""),
        ("sizes for shuffled data, thrown", lambda: thrown_sizes(bins, n, 1), ""),
        ("sizes for shuffled data, binomials", lambda: list(binomial_sizes(bins, n, 1)), ""),
    ]
    for name, job, bound in jobs:
        seconds = cpu_seconds(job)
        rows.append({"job": name, "n": n, "steps": steps, "seconds": seconds, "ratio": seconds / permutation})
        print(f"{name:42}{seconds:9.2f}{seconds / permutation:8.2f}{'' if small else bound:>9}")

    print("growth with n: seconds of BallsAndBins and of a permutation, and their ratio")
    for count in (n // 1000, n // 100, n // 10):
        taken = cpu_seconds(lambda k=count: drawn(bins, k))
        plain = cpu_seconds(lambda k=count: np.random.default_rng(0).permutation(k))
        rows.append({"job": jobs[0][0], "n": count, "steps": steps, "seconds": taken, "ratio": taken / plain})
        print(f"{count:42,}{taken:9.4f}{plain:9.4f}{taken / plain:8.2f}")

    print(f"{'peak memory above the result':42}{'bytes an example':>26}")
    for name, job, result, bound in (
        ("BallsAndBins", bins_job, 4, "16"),
        ("Shuffle", shuffle_job, 4, ""),
        ("Poisson", poisson_job, 0, ""),
    ):
        extra = memory_of(job, n, result)
        rows.append({"job": name, "n": n, "steps": FULL[1], "bytes": extra})
        print(f"{name:42}{extra:17.1f}{'' if small else bound:>9}")
    if options.save:
        record.save(options.save, "samplers", rows, packages=("numpy", "cryptography"))


if __name__ == "__main__":
    main()
