"""Monte Carlo accounting: ours against the paper's samplers written as the paper describes them.

Everything is a ratio within one run of one process; `--small` takes seconds, and measures the slow ones by less.
"""

import math
import sys
import time

import numpy as np
from scipy import stats

from ballsbins.accounting.monte_carlo import kernel, orders
from ballsbins.accounting.monte_carlo.confidence import log_kl_upper
from ballsbins.accounting.monte_carlo.estimate import Lattice
from ballsbins.accounting.monte_carlo.importance import log_event_probability, threshold
from ballsbins.accounting.monte_carlo.order_statistics import OrderStatistics
from ballsbins.accounting.monte_carlo.plain import Plain
from ballsbins.accounting.monte_carlo.run import PLANNED_SHARE, Job
from ballsbins.accounting.monte_carlo.run import run as run_jobs
from ballsbins.accounting.monte_carlo.tilted import SHARES, Tilted

SMALL = "--small" in sys.argv[1:]
BETA = 1e-3


def papers_importance(rng, sigma, steps, epsilon, count):
    """Values (1 − e^{ε−L})₊ for x ∼ P₁ given E_ε: algorithm "max-of-samples-from-P" with scipy.stats."""
    C = threshold(sigma, steps, epsilon, "remove")
    low = stats.beta.cdf(stats.norm.cdf(C, scale=sigma), steps, 1)
    y = stats.beta.ppf(rng.uniform(low, 1.0, count), steps, 1)
    z = rng.uniform(0.0, 1.0, (count, steps)) * y[:, None]
    z[np.arange(count), rng.integers(steps, size=count)] = y
    x = stats.norm.ppf(z, scale=sigma)
    x[:, 0] += 1.0
    loss = np.log(np.exp(x / sigma**2).sum(axis=1)) - math.log(steps) - 0.5 / sigma**2
    return np.maximum(0.0, -np.expm1(np.minimum(epsilon - loss, 0.0)))


def papers_order_statistics(rng, sigma, steps, k, count):
    """Upper bounds on the loss: algorithm "order-sampling" with scipy.stats, k_{r+1} = R + 1."""
    R = steps - 1
    log_u = np.zeros(count)
    total = np.exp(rng.normal(1.0, sigma, count) / sigma**2)
    before, after = np.append(0, k[:-1]), np.append(k[1:], R + 1)
    for order, last, following in zip(k, before, after, strict=True):
        log_u += np.log(stats.beta.rvs(R - order + 1, order - last, size=count, random_state=rng))
        total += (following - order) * np.exp(stats.norm.ppf(np.exp(log_u), scale=sigma) / sigma**2)
    return np.log(total) - math.log(steps) - 0.5 / sigma**2


def run(sampler, lattice, samples, seed=0):
    return run_jobs([Job(sampler, lattice, samples)], seed=seed)[0]


def seconds(call):
    begun = time.process_time()
    found = call()
    return time.process_time() - begun, found


def ours_within(sampler, epsilon, truth, factor):
    """Samples, doubled until the upper bounds of three seeds are all within a factor of the truth; CPU seconds of one
    such run, and of a run at every smaller number as well; the largest of the three bounds."""
    spent, samples = 0.0, 250
    run(sampler, SHARES, samples)  # tables are built once

    def bound(m, seed):
        return math.exp(run(sampler, SHARES, m, seed=seed).log_delta(epsilon, BETA / PLANNED_SHARE).upper[0])

    while True:
        took, upper = seconds(lambda m=samples: max(bound(m, seed) for seed in range(3)))
        spent += took / 3
        if upper <= factor * truth:
            return spent, took / 3, samples, upper
        samples *= 2


def tiny_delta():
    sigma, steps, epsilon, truth = 0.35, 1000, 10.0, 1.331225910870904e-6
    print("(a) σ=0.35, T=1000, ε=10: upper bound over the truth, samples, CPU seconds")
    for factor in (1.1,) if SMALL else (1.02, 1.01, 1.1):
        spent, took, samples, upper = ours_within(
            Tilted(sigma, steps, "remove", epsilon), epsilon, truth, factor
        )
        print(f"    within {factor}: {upper / truth:.3f}, {samples:7,}, {took:.3f} s", flush=True)
    rng = np.random.default_rng(1)
    count = 500 if SMALL else 5000
    took_paper, _ = seconds(lambda: papers_importance(rng, sigma, steps, epsilon, count))
    event = math.exp(log_event_probability(sigma, steps, epsilon, "remove"))
    # how many samples it needs if its mean is exactly the truth: the least m whose bound is within 10 %
    low, high = 3.0, 12.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        bound = event * math.exp(float(log_kl_upper(np.array(truth / event), 10**middle, BETA)))
        low, high = (low, middle) if bound <= 1.1 * truth else (middle, high)
    needed = 10**high
    paper = needed * took_paper / count
    print(
        f"    the paper's sampler: {needed:,.0f} samples at {took_paper / count * 1e6:.0f} µs: {paper:.0f} s"
    )
    print(
        f"    ratio {paper / took:.0f} (goal 100); counting our shorter runs {paper / spent:.0f}", flush=True
    )


def several_epochs():
    sigma, steps, epochs, epsilon, truth = 1.0, 100, 10, 1.964, 1.0026e-6
    spent, took, samples, upper = ours_within(
        Tilted(sigma, steps, "remove", epsilon, epochs), epsilon, truth, 1.2
    )
    print(
        f"(b) σ=1, T=100, 10 epochs, ε=1.964: upper bound {upper / truth:.3f} of the truth, {samples:,} samples, "
    )
    print(f"    {took:.2f} s ({spent:.2f} s with all shorter runs before it; goal: minutes)", flush=True)


def throughput(sigma, steps, name):
    k = orders.PAPER[name]
    sampler = OrderStatistics(sigma, steps, "remove", k)
    count = 4000 if SMALL else 40_000
    lattice = Lattice.around(0.0, 0.0, 0.0)
    few = count // 10

    def ours():
        run(sampler, lattice, few)  # the table is built, and the kernel compiled, once
        return min(seconds(lambda: run(sampler, lattice, count))[0] for _ in range(3)) / count

    kernel.forget()
    plain = ours()
    kernel.compiled(10**12)  # as in a run that is long enough for it
    mine = ours()
    rng = np.random.default_rng(2)
    theirs = min(
        seconds(lambda: papers_order_statistics(rng, sigma, steps, np.array(k), few))[0] for _ in range(3)
    )
    theirs /= few
    print(f"(c) σ={sigma}, T={steps:,}, {len(k)} orders: {mine * 1e6:.1f} µs a sample with numba, ", end="")
    print(f"{plain * 1e6:.1f} µs without; scipy {theirs * 1e6:.1f} µs")
    print(f"    ratio {theirs / mine:.1f} with numba (goal 8), {theirs / plain:.1f} without", flush=True)
    return mine


def papers_ratios(sigma, steps, each, many, paper):
    count = 30 if steps < 10**6 else 4
    took, _ = seconds(lambda: run(Plain(sigma, steps, "remove"), Lattice.around(0.0, 0.0, 0.0), count))
    share = many * each / (took / count)
    print(
        f"(d) σ={sigma}, T={steps:,}: order statistics draw {many} times the samples in {100 * share:.1f} % of the"
    )
    print(f"    time of drawing all coordinates (the paper: {paper})", flush=True)


if __name__ == "__main__":
    tiny_delta()
    several_epochs()
    each = throughput(0.32, 100_000, "B, T=100000")
    papers_ratios(0.32, 100_000, each, 10, "25 %")
    each = throughput(0.25, 1_000_000, "B, T=1000000")
    papers_ratios(0.25, 1_000_000, each, 300, "82 %")
