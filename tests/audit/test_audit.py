"""The audit lets a true claim stand and refutes it when the noise is halved; its parts are what they say."""

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from typer.testing import CliRunner

from ballsbins import BallsAndBins, Deterministic, InvalidInputError, Mechanism, Poisson, Shuffle
from ballsbins.audit import answer_queries, audit
from ballsbins.audit import attacks as canary
from ballsbins.audit.attacks import game_of, statistics
from ballsbins.audit.claim_test import at_least, at_most, epsilon_at_least
from ballsbins.cli import app

FALSE_ALARM = 1e-6
MECHANISMS = [
    Mechanism(BallsAndBins(12), 1.0),
    Mechanism(BallsAndBins(12), 1.0, epochs=3),
    Mechanism(BallsAndBins(12, redraw=False), 1.0, epochs=2),
    Mechanism(Poisson(12), 1.0),
    Mechanism(Poisson(12), 1.0, epochs=2),
    Mechanism(Shuffle(12), 1.0),
    Mechanism(Shuffle(12), 1.0, epochs=2),
    Mechanism(Deterministic(12), 1.0),
]
EACH = pytest.mark.parametrize("mechanism", MECHANISMS, ids=repr)


@EACH
def test_true_claim_stands_and_halved_noise_is_refuted(mechanism):
    """Confidence 1 − 1e-6: the true claim is refuted by chance that rarely."""
    settings = {"trials": 30_000, "confidence": 1 - FALSE_ALARM, "seed": 1}
    honest = audit(mechanism, 1e-2, **settings)
    assert honest.consistent
    assert 0.0 < honest.at_delta.shown.epsilon < honest.at_delta.claimed.lower
    cheat = audit(mechanism, 1e-2, secret_noise_multiplier=0.5, **settings)
    assert not cheat.consistent
    assert cheat.at_delta.shown.epsilon > cheat.at_delta.claimed.upper
    assert cheat.sharpest.shown.epsilon > cheat.sharpest.claimed.upper


def in_float32(sums, noise_multiplier, key, domain):
    """What everybody does: float32 noise, added in float32."""
    random = np.random.default_rng([len(domain), int(domain[-1]), int(sums.sum())])
    noise = np.float32(noise_multiplier) * random.standard_normal(sums.shape, dtype=np.float32)
    return sums.astype(np.float32) + noise


@pytest.mark.parametrize("mechanism", [MECHANISMS[0], MECHANISMS[3], MECHANISMS[7]], ids=repr)
def test_noise_of_floats_is_refuted_by_its_low_bits_and_ours_is_not(mechanism, monkeypatch):
    """The audit runs the real noise and sums, so that it sees them fail: with float32 ones the claim is refuted."""
    mechanism = replace(mechanism, noise_multiplier=1.1)
    settings = {"trials": 30_000, "confidence": 1 - FALSE_ALARM, "seed": 3}
    honest = audit(mechanism, 1e-3, **settings)
    assert honest.low_bits.consistent
    monkeypatch.setattr(canary, "released", in_float32)
    leaking = audit(mechanism, 1e-3, **settings)
    assert not leaking.low_bits.consistent
    assert not leaking.consistent
    assert leaking.low_bits.shown.epsilon > 1.2 * leaking.low_bits.claimed.upper
    assert leaking.at_delta.consistent  # what looks at sizes alone sees nothing


def test_more_noise_than_claimed_is_no_offence():
    mechanism = MECHANISMS[0]
    more = audit(mechanism, 1e-2, trials=30_000, secret_noise_multiplier=2.0)
    assert more.consistent
    assert more.at_delta.shown.epsilon < audit(mechanism, 1e-2, trials=30_000).at_delta.shown.epsilon


def test_fixed_bins_accounted_as_redrawn_are_refuted():
    """The twentyfold lie: fixed bins run, redrawn claimed. The runs of the one show more than the other allows."""
    fixed, redrawn = (Mechanism(BallsAndBins(30, redraw=kind), 1.0, epochs=8) for kind in (False, True))
    shown = audit(fixed, 1e-2, trials=20_000, confidence=1 - FALSE_ALARM)
    assert shown.consistent
    assert shown.at_delta.shown.epsilon > redrawn.epsilon(1e-2).upper


@pytest.mark.parametrize(
    ("mechanism", "present"),
    [(mechanism, True) for mechanism in MECHANISMS] + [(MECHANISMS[5], False), (MECHANISMS[0], False)],
    ids=repr,
)
def test_runs_at_once_are_the_runs_of_the_algorithm(mechanism, present):
    """Kolmogorov–Smirnov against runs of ABLQ itself, one by one; noise a third off must be rejected."""
    others = -1.0 if isinstance(mechanism.sampler, Shuffle) else 0.0
    values = np.full((12, 1), others)
    values[0] = 1.0 if present else 0.0
    shape = (mechanism.epochs, 12)
    rows = [answer_queries(mechanism, lambda _: values, key=run)[:, 0] for run in range(500)]
    observed = np.reshape(rows, (-1, *shape)) - others  # a batch of one other than the canary has this sum
    slowly = game_of(mechanism).log_ratio(observed)
    quickly = statistics(mechanism, 1.0, present=present, trials=20_000, seed=5)
    assert stats.ks_2samp(slowly, quickly).pvalue > FALSE_ALARM
    wrong = statistics(mechanism, 0.6, present=present, trials=20_000, seed=5)
    assert stats.ks_2samp(slowly, wrong).pvalue < FALSE_ALARM


@EACH
def test_statistic_is_a_likelihood_ratio(mechanism):
    """E_Q[dP/dQ] = 1 and E_P[dQ/dP] = 1, within five standard errors at σ = 1.5; not for runs of other noise."""
    mild = Mechanism(mechanism.sampler, 1.5, mechanism.epochs)
    for present, sign in ((False, 1.0), (True, -1.0)):
        ratio = np.exp(sign * statistics(mild, 1.5, present=present, trials=40_000, seed=2))
        assert abs(ratio.mean() - 1.0) < 5 * ratio.std() / 200
    off = np.exp(statistics(mild, 2.0, present=False, trials=40_000, seed=2))
    assert abs(off.mean() - 1.0) > 5 * off.std() / 200


@pytest.mark.parametrize(("hits", "runs"), [(0, 30), (30, 30), (7, 30), (1, 100_000)])
def test_confidence_bounds_are_clopper_and_pearsons(hits, runs):
    for error in (1e-3, 0.05):
        peer = stats.binomtest(hits, runs).proportion_ci(1 - 2 * error, method="exact")
        assert at_least(np.array([hits]), runs, error)[0] == pytest.approx(peer.low, rel=1e-9)
        assert at_most(np.array([hits]), runs, error)[0] == pytest.approx(peer.high, rel=1e-9)


def test_lower_bound_fails_as_rarely_as_stated_and_is_not_idle():
    """Randomised response with ε = log 3, 400 times at error 0.1: at most 70 failures (five deviations above 40)."""
    random, failures, found = np.random.default_rng(0), 0, []
    for _ in range(400):
        present, absent = random.random(2000) < 0.75, random.random(2000) < 0.25
        bound = epsilon_at_least(present.astype(float), absent.astype(float), 0.0, 0.1).epsilon
        failures += bound > np.log(3.0)
        found.append(bound)
    assert failures <= 70
    assert np.median(found) > 0.85 * np.log(3.0)


def test_the_event_is_judged_on_other_runs_than_it_was_chosen_on():
    """Noise on both sides: chosen and judged on the same runs, the best of 2000 events would look like something."""
    random = np.random.default_rng(1)
    found = [epsilon_at_least(*random.normal(size=(2, 400)), 0.0, 0.5).epsilon for _ in range(200)]
    assert np.mean(np.array(found) > 0.0) < 0.5 + 5 * 0.5 / np.sqrt(200)


def test_same_seed_same_audit():
    first, again = (audit(MECHANISMS[0], 1e-3, trials=2000, seed=7).to_dict() for _ in range(2))
    assert first == again
    assert first != audit(MECHANISMS[0], 1e-3, trials=2000, seed=8).to_dict()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trials": 10}, "trials"),
        ({"confidence": 1.0}, "confidence"),
        ({"secret_noise_multiplier": 0.0}, "secret"),
    ],
)
def test_bad_settings_are_named(changes, message):
    with pytest.raises(InvalidInputError, match=message):
        audit(MECHANISMS[0], 1e-3, **changes)


def test_what_it_does_not_cover_is_refused():
    for mechanism in (
        Mechanism(BallsAndBins(5, max_batch_size=9, num_examples=20), 1.0),
        Mechanism(BallsAndBins(5), 1.0, last_epoch_steps=2),
    ):
        with pytest.raises(InvalidInputError, match="whole epochs, without a largest batch"):
            audit(mechanism, 1e-3, trials=100)


def test_command():
    words = ["audit", "-s", "1", "-T", "20", "-d", "1e-3", "--trials", "20000"]
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == 0
    assert json.loads(done.stdout)["consistent"] is True
    shown = CliRunner().invoke(app, words)
    assert "may be true" in shown.stdout
    assert "REFUTED" not in shown.stdout
    cheat = CliRunner().invoke(app, [*words, "--secret-noise-multiplier", "0.5"])
    assert cheat.exit_code == 1
    assert "REFUTED" in cheat.stdout
