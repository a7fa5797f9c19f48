"""What an installed ballsbins must do without any extra, in seconds: `python tests/smoke.py`.

Run by tests/release.py with every interpreter we declare, from the wheel and at the lowest versions of the
dependencies, and by the tests from the source. Every number here comes from a formula of its own.
"""

import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import ballsbins
from ballsbins import BallsAndBins, Deterministic, Key, Mechanism, MonteCarlo, Poisson, Shuffle, calibrate
from ballsbins.dp_events import MechanismAccountant, MechanismDpEvent

MAIN = [sys.executable, "-c", "from ballsbins.cli import main; main()"]


def gaussian_delta(epsilon, sigma):
    """δ(ε) of one Gaussian, with the distribution function of the standard library."""
    a, b = 0.5 / sigma - epsilon * sigma, -0.5 / sigma - epsilon * sigma
    return 0.5 * math.erfc(-a / math.sqrt(2)) - math.exp(epsilon) * 0.5 * math.erfc(-b / math.sqrt(2))


def inside(bound, truth):
    assert bound.lower <= truth * (1 + 1e-9), (bound, truth)
    assert truth <= bound.upper * (1 + 1e-9), (bound, truth)


def accounting():
    inside(Mechanism(Deterministic(10), 0.8).delta(1.5), gaussian_delta(1.5, 0.8))
    inside(Mechanism(BallsAndBins(1), 0.8).delta(1.5), gaussian_delta(1.5, 0.8))
    inside(Mechanism(BallsAndBins(1), 0.8, epochs=4).delta(1.5), gaussian_delta(1.5, 0.4))
    ends = [
        Mechanism(sampler, 1.0, epochs=3).epsilon(1e-6)
        for sampler in (BallsAndBins(50), Poisson(50), Shuffle(50))
    ]
    assert all(0.0 < bound.lower <= bound.upper < math.inf for bound in ends)
    found = calibrate(BallsAndBins(100), epsilon=2.0, delta=1e-6)
    assert 1.99 < found.epsilon(1e-6).upper <= 2.0
    sampled = found.delta(1.0, MonteCarlo(samples=2000, seed=1))
    exact = found.delta(1.0)
    assert sampled.lower <= exact.upper
    assert exact.lower <= sampled.upper
    accountant = MechanismAccountant().compose(MechanismDpEvent(found))
    assert accountant.get_epsilon(1e-6) >= found.epsilon(1e-6).lower


def batches():
    run = Mechanism(BallsAndBins(7), 1.0, epochs=2)
    for epoch in (0, 1):
        drawn = list(run.batches(num_examples=100, key=Key.from_seed(1), epoch=epoch))
        assert len(drawn) == 7
        assert sorted(np.concatenate(drawn).tolist()) == list(range(100))


def statement():
    text = Mechanism(BallsAndBins(1000), 0.5).statement(1e-6, num_examples=60_000).text()
    assert "balls-and-bins" in text


def command_line(folder):
    def run(*words):
        done = subprocess.run([*MAIN, *words], capture_output=True, text=True, cwd=folder, check=False)
        return done.returncode, done.stdout, done.stderr

    code, out, _ = run(
        "epsilon", "--sampler", "balls-and-bins", "-s", "0.35", "-T", "1000", "-d", "1e-6", "--json"
    )
    assert code == 0
    answer = json.loads(out)
    assert answer["upper"] == Mechanism(BallsAndBins(1000), 0.35).epsilon(1e-6).upper
    for words in (("citation", "-s", "1", "-T", "10"), ("key", "k.key")):
        code, out, err = run(*words)
        assert code == 0, (words, err)
    assert ballsbins.__version__ in run("--version")[1]
    assert run("epsilon", "-s", "-1", "-T", "10", "-d", "1e-6")[0] == 2


def main():
    with tempfile.TemporaryDirectory() as folder:
        accounting()
        batches()
        statement()
        command_line(Path(folder))
    print(f"ballsbins {ballsbins.__version__} works, Python {sys.version.split()[0]}, numpy {np.__version__}")


if __name__ == "__main__":
    main()
