"""What is true of a run that was reported as Poisson, where the report claims ε = 0."""

from __future__ import annotations

import json
import math
import re

import dp_accounting
import pytest
from typer.testing import CliRunner

from ballsbins import BallsAndBins, InvalidInputError, Mechanism, Poisson, Shuffle
from ballsbins.cli import app
from ballsbins.comparison import noise_of_claim, poisson_claim


def test_a_claim_of_nothing_is_false_if_shuffled():
    findings = poisson_claim(Mechanism(Poisson(100), 0.4, 3), 0.5)
    assert findings.poisson.upper == 0.0
    assert findings.false_if_shuffled
    assert findings.factor == math.inf
    done = CliRunner().invoke(app, ["audit-run", "-s", "0.4", "-T", "100", "-E", "3", "-d", "0.5"])
    assert done.exception is None or isinstance(done.exception, SystemExit)


SIZES = ("-n", "60000", "-b", "256", "-E", "10", "-d", "1e-5")


def said(*words):
    done = CliRunner().invoke(app, ["audit-run", *words])
    assert done.exception is None, done.exception
    return re.sub(r"\s+", " ", done.stdout)


def test_noise_of_an_rdp_claim_is_what_that_accountant_reports():
    run = noise_of_claim(235, 10, epsilon=3.0, delta=1e-5, accountant="rdp")
    accountant = dp_accounting.rdp.RdpAccountant()
    one_step = dp_accounting.PoissonSampledDpEvent(
        1 / 235, dp_accounting.GaussianDpEvent(run.noise_multiplier)
    )
    accountant.compose(one_step, 2350)
    assert accountant.get_epsilon(1e-5) == pytest.approx(3.0, rel=1e-4)
    exact = noise_of_claim(235, 10, epsilon=3.0, delta=1e-5)
    assert exact.epsilon(1e-5).upper == pytest.approx(3.0, rel=1e-4)
    assert exact.noise_multiplier < run.noise_multiplier  # Rényi divergences ask for more noise


def test_a_claim_is_set_against_what_is_true():
    text = said("--claimed-epsilon", "3", *SIZES)
    run = noise_of_claim(235, 10, epsilon=3.0, delta=1e-5)
    shuffled, bins = (run.under(kind).epsilon(1e-5) for kind in (Shuffle, BallsAndBins))
    low, high, ours = map(
        float,
        re.match(
            r"claimed: ε ≤ 3 at δ = 1e-5; true of shuffled batches: ([\d.]+) ≤ ε ≤ ([\d.]+); balls-and-bins would "
            r"have had ε ≤ ([\d.]+) ",
            text,
        ).groups(),
    )
    assert low <= shuffled.lower < low * 1.001
    assert high >= shuffled.upper > high * 0.999
    assert ours >= bins.upper > ours * 0.999
    assert "DataLoader(shuffle=True)" in text
    data = json.loads(said("-e", "3", "--accountant", "rdp", *SIZES, "--json"))
    assert data["claimed_epsilon"] == 3.0
    assert data["report_is_false_if_shuffled"] is True


def test_a_claim_or_the_noise_but_not_both():
    for words in ((), ("-e", "3", "-s", "1"), ("-s", "1", "--accountant", "rdp"), ("-e", "0"), ("-e", "nan")):
        done = CliRunner().invoke(app, ["audit-run", *words, *SIZES])
        assert isinstance(done.exception, InvalidInputError)
    with pytest.raises(InvalidInputError, match="one of exact, rdp"):
        noise_of_claim(10, 1, epsilon=1.0, delta=1e-5, accountant="moments")
