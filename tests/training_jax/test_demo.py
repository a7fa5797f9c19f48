"""`ballsbins demo`, which `make run` runs, on fewer examples."""

import pytest
from typer.testing import CliRunner

from ballsbins.cli import app
from ballsbins.report import Card


@pytest.mark.slow
def test_demo_trains_and_states_what_it_did(tmp_path):
    result = CliRunner().invoke(app, ["demo", "--examples", "20000", "--out", str(tmp_path / "demo")])
    assert result.exit_code == 0, result.output
    for word in (
        "balls-and-bins",
        "Poisson",
        "shuffle",
        "AUC on test data",
        "Adjacency",
        "the truth is at least",
    ):
        assert word in result.output
    card = Card.read(tmp_path / "demo" / "balls-and-bins" / "card.json")
    assert card.claim.upper <= 2.0
    assert card.key_secret
    assert card.metrics["test_auc"] > 0.5
