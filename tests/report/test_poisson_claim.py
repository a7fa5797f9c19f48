"""What is true of a run that was reported as Poisson, where the report claims ε = 0."""

from __future__ import annotations

import math

from typer.testing import CliRunner

from ballsbins import Mechanism, Poisson
from ballsbins.cli import app
from ballsbins.comparison import poisson_claim


def test_a_claim_of_nothing_is_false_if_shuffled():
    findings = poisson_claim(Mechanism(Poisson(100), 0.4, 3), 0.5)
    assert findings.poisson.upper == 0.0
    assert findings.false_if_shuffled
    assert findings.factor == math.inf
    done = CliRunner().invoke(app, ["audit-run", "-s", "0.4", "-T", "100", "-E", "3", "-d", "0.5"])
    assert done.exception is None or isinstance(done.exception, SystemExit)
