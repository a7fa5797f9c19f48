"""One accountant, one question: its answer, CPU time and peak memory, as JSON on one line.

    python benchmarks/peers.py ACCOUNTANT SAMPLER SIGMA STEPS EPOCHS DELTA [--seconds S]

Run by benchmarks/compare.py in a process of its own for each question, with the Python that has the accountant. The
time is the least of two or more calls within S seconds of CPU: the first may compile or fill tables. The memory is
the peak of the process above what it held after its imports. Every accountant is asked as its documentation does,
with the options that make it fastest at its default accuracy.
"""

import argparse
import json
import resource
import time
import warnings
from importlib.metadata import version
from pathlib import Path


def ballsbins(sampler, sigma, steps, epochs, delta):
    import ballsbins.accountant  # noqa: F401
    from ballsbins import BallsAndBins, Mechanism, Poisson

    kind = {"balls-and-bins": BallsAndBins, "Poisson": Poisson}[sampler]

    def ask():  # a fresh Mechanism each time: nothing is remembered from the call before
        bound = Mechanism(kind(steps), sigma, epochs).epsilon(delta)
        return bound.lower, bound.upper

    return ask, ["ballsbins", "numpy", "scipy"]


def pld_accounting(sampler, sigma, steps, epochs, delta):
    from PLD_accounting import gaussian_allocation_epsilon_range, has_numba

    assert has_numba(), "PLD_accounting without numba is three times slower: `make clean`, then `make bench`"

    def ask():
        upper, lower = gaussian_allocation_epsilon_range(
            delta=delta, sigma=sigma, num_steps=steps, num_epochs=epochs
        )
        return lower, upper

    return ask, ["PLD_accounting", "numba"]


def random_allocation(sampler, sigma, steps, epochs, delta):
    """The fastest of its methods, and in all our settings its tightest: Rényi divergences, computed directly."""
    from random_allocation import PrivacyParams, SchemeConfig, allocation_epsilon_direct

    def ask():
        config = SchemeConfig(allocation_direct_alpha_orders=list(range(2, 61)))
        params = PrivacyParams(sigma=sigma, num_steps=steps, num_epochs=epochs, delta=delta)
        return None, float(allocation_epsilon_direct(params, config))

    return ask, ["random-allocation"]


def authors(sampler, sigma, steps, epochs, delta):
    """The algorithm that the paper's authors released, in the copy that random-allocation ships; their own example.

    It samples δ at one ε, given here in place of δ: 100,000 samples of importance sampling, and an upper bound that
    holds with probability 0.99. It has no importance sampling for several epochs.
    """
    import numpy as np
    from random_allocation.external_sources.Monte_Carlo_external import BnBAccountant

    def ask():
        np.random.seed(1)  # noqa: NPY002 (it draws from the global generator)
        found = BnBAccountant().estimate_deltas(sigma, (delta,), steps, 100_000, epochs)[0]
        return None, float(found.get_upper_confidence_bound(0.01))

    return ask, ["random-allocation"]


def dp_accounting(sampler, sigma, steps, epochs, delta):
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    def ask():
        step = dp_accounting.PoissonSampledDpEvent(1 / steps, dp_accounting.GaussianDpEvent(sigma))
        return None, float(PLDAccountant().compose(step, steps * epochs).get_epsilon(delta))

    return ask, ["dp-accounting"]


def opacus(sampler, sigma, steps, epochs, delta):
    from opacus.accountants import PRVAccountant

    def ask():
        accountant = PRVAccountant()
        accountant.history = [(sigma, 1 / steps, steps * epochs)]
        return None, float(accountant.get_epsilon(delta))

    return ask, ["opacus", "torch"]


def prv_accountant(sampler, sigma, steps, epochs, delta):
    from prv_accountant.dpsgd import DPSGDAccountant

    def ask():
        made = DPSGDAccountant(
            sigma, 1 / steps, max_steps=steps * epochs, eps_error=0.01, delta_error=delta / 1000
        )
        lower, _, upper = made.compute_epsilon(delta, steps * epochs)
        return float(lower), float(upper)

    return ask, ["prv-accountant"]


MOST_BYTES = 12 * 10**9  # an accountant that wants more memory fails, and the machine goes on
LONG = 15.0  # seconds: after a first call that took longer, there is no second
ACCOUNTANTS = {
    job.__name__: job
    for job in (ballsbins, pld_accounting, random_allocation, authors, dp_accounting, opacus, prv_accountant)
}


def peak_bytes():
    """The peak of this process alone (Linux; getrusage would count the peak of its parent as well)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("this system does not tell the peak memory of a process")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("accountant", choices=ACCOUNTANTS)
    parser.add_argument("sampler", choices=("balls-and-bins", "Poisson"))
    parser.add_argument("sigma", type=float)
    parser.add_argument("steps", type=int)
    parser.add_argument("epochs", type=int)
    parser.add_argument("delta", type=float)
    parser.add_argument("--seconds", type=float, default=1.0)
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    ask, packages = ACCOUNTANTS[given.accountant](
        given.sampler, given.sigma, given.steps, given.epochs, given.delta
    )
    before, took = peak_bytes(), []
    while sum(took) < (given.seconds if len(took) > 1 else LONG) and len(took) < 50:
        begin = time.process_time()
        lower, upper = ask()
        took.append(time.process_time() - begin)
    versions = {name: version(name) for name in packages}
    if given.accountant not in ("ballsbins", "opacus"):
        versions["numpy (peers)"] = version("numpy")
    answer = {
        "lower": lower,
        "upper": upper,
        "seconds": min(took),
        "megabytes": (peak_bytes() - before) / 1e6,
    }
    print(json.dumps(answer | {"versions": versions}))


if __name__ == "__main__":
    main()
