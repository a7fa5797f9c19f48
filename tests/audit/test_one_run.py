"""The audit of one training run: its bound holds, honest runs stand, and broken ones are refuted."""

import itertools
import json
import math

import numpy as np
import pytest
from scipy import optimize, stats
from typer.testing import CliRunner

from ballsbins import BallsAndBins, InvalidInputError, Mechanism, Shuffle, calibrate
from ballsbins.audit.one_run import SHARES, Seen, judge, least_epsilon, p_value, toss
from ballsbins.cli import app

CANARIES, DELTA = 200, 1e-6
CLAIM = calibrate(BallsAndBins(40), epsilon=1.5, delta=DELTA)
BROKEN = {
    "no noise": {"secret_noise_multiplier": 0.0},
    "a quarter of the noise": {"secret_noise_multiplier": CLAIM.noise_multiplier / 4},
    "no clipping": {"clip": math.inf},
}


def test_bound_without_delta_is_the_binomial_tail_by_enumeration():
    """All 2⁸ outcomes of eight guesses, each right with probability q."""
    q = 0.7
    epsilon = math.log(q / (1 - q))
    for right in range(9):
        tail = sum(
            math.prod(q if hit else 1 - q for hit in hits)
            for hits in itertools.product([True, False], repeat=8)
            if sum(hits) >= right
        )
        assert p_value(right, 8, 8, epsilon, 0.0) == pytest.approx(tail, rel=1e-12)


def most_right_guesses(right, guesses, canaries, epsilon, delta):
    """The largest P[W ≥ v] of any (ε, δ)-DP mechanism, by linear programming.

    By symmetry (docs/audit.md) a mechanism is given by the probabilities h(k) of k right guesses. The other variables
    are what neighbours differ by beyond the factor e^ε, if a guess is right here and wrong there, or the reverse.
    """
    size, factor = guesses, math.exp(epsilon)
    count = 3 * size + 1
    rows, limits = [], []
    for k in range(1, size + 1):
        up, down = np.zeros(count), np.zeros(count)
        up[[k, k - 1, size + k]] = 1.0, -factor * (size - k + 1) / k, -1.0
        down[[k - 1, k, 2 * size + k]] = 1.0, -factor * k / (size - k + 1), -1.0
        rows += [up, down]
        limits += [0.0, 0.0]
    budget = np.zeros(count)
    budget[size + 1 : 2 * size + 1] = np.arange(1, size + 1) / canaries
    budget[2 * size + 1 :] = np.arange(size, 0, -1) / canaries
    total = (np.arange(count) <= size)[None].astype(float)
    goal = -((np.arange(count) >= right) & (np.arange(count) <= size)).astype(float)
    found = optimize.linprog(
        goal, A_ub=[*rows, budget], b_ub=[*limits, delta], A_eq=total, b_eq=[1.0], bounds=(0.0, None)
    )
    return -found.fun


def test_bound_with_delta_is_what_the_worst_mechanism_attains():
    """60 random cases, against linear programming: never below the worst, and equal to it where it is below ½."""
    random = np.random.default_rng(1)
    in_the_tail = 0
    for _ in range(60):
        guesses = int(random.integers(1, 21))
        right, canaries = (
            int(random.integers(guesses // 2, guesses)) + 1,
            guesses + int(random.integers(0, 20)),
        )
        epsilon, delta = random.uniform(0.0, 2.0), 10.0 ** random.uniform(-4.0, -1.5)
        worst = most_right_guesses(right, guesses, canaries, epsilon, delta)
        bound = p_value(right, guesses, canaries, epsilon, delta)
        assert worst <= bound + 1e-8
        if bound < 0.5:
            in_the_tail += 1
            assert worst == pytest.approx(bound, rel=1e-5)
            tail = [
                stats.binom.sf(v - 1, guesses, 1.0 / (1.0 + math.exp(-epsilon))) for v in range(right + 1)
            ]
            slope = max((tail[right - i] - tail[right]) / i for i in range(1, right + 1))
            assert bound <= tail[right] + 2 * canaries * delta * slope  # theorem 5.2 of the paper
    assert in_the_tail > 15


def right_guesses(random, trials, canaries, epsilon, delta):
    """Right guesses about the coins of randomised response that gives each coin away with probability δ: exact
    (ε, δ)-DP, and no run shows more."""
    q = (1 - delta) / (1 + math.exp(-epsilon)) + delta
    return random.binomial(canaries, q, size=trials)


@pytest.mark.parametrize("delta", [0.0, 1e-3])
def test_bound_fails_as_rarely_as_stated_and_is_not_idle(delta):
    """2,000 runs at error 0.1: at most 267 failures (five deviations above 200). Of ε = 1.5, half is shown."""
    random, epsilon, canaries, error = np.random.default_rng(3), 1.5, 200, 0.1
    counts = right_guesses(random, 2000, canaries, epsilon, delta)
    shown = {
        int(right): least_epsilon(right, canaries, canaries, delta, error) for right in np.unique(counts)
    }
    found = np.array([shown[int(right)] for right in counts])
    assert (found > epsilon).sum() <= 267
    assert np.median(found) > 0.5 * epsilon
    # The negative control: runs of ε = 2.2 are seen to be no runs of 1.5.
    more = right_guesses(random, 2000, canaries, 2.2, delta)
    shown = {int(right): least_epsilon(right, canaries, canaries, delta, error) for right in np.unique(more)}
    assert np.mean([shown[int(right)] > epsilon for right in more]) > 0.5


def test_bound_grows_with_epsilon():
    for right, delta in ((90, 0.0), (80, 1e-3), (99, 5e-3), (40, 5e-3)):
        values = [p_value(right, 100, 100, epsilon, delta) for epsilon in np.linspace(0.0, 8.0, 400)]
        assert np.all(np.diff(values) >= -1e-15)


def test_tries_share_the_error():
    """Scores that tell nothing: the best of all tries shows an ε above 0 at most as often as stated."""
    mechanism, random = Mechanism(BallsAndBins(3), 1.0), np.random.default_rng(0)
    ones, found = np.ones((100, 1, 3)), 0
    for seed in range(150):
        seen = Seen(random.normal(size=(100, 1, 3)), ones, ones)
        found += judge(mechanism, 1e-6, seen, toss(100, seed), 0.8).shown > 0.0
    assert found <= 150 * 0.2 + 5 * math.sqrt(150 * 0.2 * 0.8)
    assert max(sum(shares) for shares in SHARES) < 1.0  # canaries in the run are not just half of them


def in_jax(mechanism, seed, *, clip=None, canaries=CANARIES, delta=DELTA, **changes):
    from ballsbins.audit.one_run_jax import audit_jax_training
    from ballsbins.data.dataset import Examples, Features
    from ballsbins.training.jax import InMemory

    random = np.random.default_rng(0)
    examples = Examples(
        (random.random(100) < 0.5).astype(np.float32),
        random.normal(size=(100, 1)).astype(np.float32),
        random.integers(0, 4, (100, 1)).astype(np.int32),
    )
    return audit_jax_training(
        mechanism, delta, InMemory(Features(("x",), (("a", 4),)), examples), clip_norm=0.1, canaries=canaries,
        seed=seed, secret_clip_norm=clip, embedding_dim=8, hidden=(8,), **changes,
    )  # fmt: skip


def in_torch(mechanism, seed, *, clip=None, canaries=CANARIES, delta=DELTA, **changes):
    import torch
    from torch import nn
    from torch.utils.data import TensorDataset

    from ballsbins.audit.one_run_torch import audit_torch_training

    torch.manual_seed(seed)

    def made(count):
        return TensorDataset(torch.randn(count, 200), torch.randint(0, 10, (count,)))

    def loss(model, batch):
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    return audit_torch_training(
        mechanism, delta, nn.Linear(200, 10), made(100), made(canaries), loss, max_grad_norm=0.1, seed=seed,
        secret_max_grad_norm=clip, **changes,
    )  # fmt: skip


EACH = pytest.mark.parametrize("audited", [in_jax, in_torch])


@EACH
def test_honest_runs_stand_and_broken_ones_are_refuted(audited):
    honest = audited(CLAIM, 1)
    assert honest.consistent
    assert honest.share < 1.0
    assert honest.height > 0.8
    assert honest.norm > 5.0  # so that clipping is tested
    for changes in BROKEN.values():
        found = audited(CLAIM, 1, **changes)
        assert not found.consistent
        assert found.shown > float(found.claimed.upper)


@EACH
def test_an_honest_run_with_little_noise_shows_much(audited):
    """What is claimed is large, and much of it is seen: the attack looks where the canaries are."""
    found = audited(Mechanism(BallsAndBins(40), 0.2), 2)
    assert found.consistent
    assert found.shown > 2.0


@EACH
def test_other_samplers(audited):
    found = audited(calibrate(Shuffle(10), epsilon=6.0, delta=DELTA), 0, canaries=100)
    assert found.consistent


@EACH
def test_bad_settings_are_named(audited):
    with pytest.raises(InvalidInputError, match="canaries is 5"):
        audited(CLAIM, 0, canaries=5)
    with pytest.raises(InvalidInputError, match="confidence"):
        audited(CLAIM, 0, confidence=1.0)
    with pytest.raises(
        InvalidInputError, match=r"delta is 0.1, but must be above 0 and at most 1/\(2·canaries\)"
    ):
        audited(CLAIM, 0, delta=0.1)


@pytest.mark.parametrize("library", ["jax", "torch"])
def test_command(library):
    words = [
        "audit-training",
        "-s",
        "0.9",
        "-T",
        "20",
        "-d",
        "1e-6",
        "--canaries",
        "200",
        "--library",
        library,
    ]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "may be true for balls-and-bins batches" in done.stdout
    assert "With DataLoader(shuffle=True) instead" in done.stdout
    broken = CliRunner().invoke(app, [*words, "--secret-noise-multiplier", "0", "--json"])
    assert broken.exit_code == 1
    assert json.loads(broken.stdout)["consistent"] is False
