"""The committed results of benchmarks say what made them, and docs/benchmarks.md has their figures."""

import json
import sys
from pathlib import Path

import pytest

import ballsbins

ROOT = Path(__file__).resolve().parent.parent
RESULTS = sorted((ROOT / "benchmarks" / "results").glob("*.json"))
PEERS = {
    "epsilon": {"PLD_accounting", "numba", "random-allocation", "dp-accounting", "opacus", "prv-accountant"},
    "scaling": {"random-allocation"},
    "training-torch": {"opacus", "torch"},
    "samplers": {"numpy"},
    "start": {"numpy", "scipy"},
}


@pytest.fixture
def page(monkeypatch):
    """The script that writes the page; it imports its neighbours by name, as scripts do."""
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    for name in ("page", "record"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import page

    yield page
    for name in ("page", "record"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_results_carry_what_made_them(path):
    data = json.loads(path.read_text())
    made = data["made_by"]
    assert made["ballsbins"] == ballsbins.__version__, "measure again for this version: `make bench`"
    assert made["python"].startswith("3.")
    assert made["processor"]
    assert made["cores"] >= 1
    assert PEERS[path.stem] <= set(made["packages"])
    assert data["rows"]


def test_every_benchmark_has_results():
    assert {path.stem for path in RESULTS} == set(PEERS)


def test_the_page_has_the_figures_of_the_results(page):
    assert page.PAGE.read_text() == page.written(page.PAGE.read_text()), (
        "`python benchmarks/page.py` writes it"
    )


def test_the_comparison_with_the_results_can_fail(page, monkeypatch):
    load = page.record.load
    rows, made = load("start")
    changed = [rows[0] | {"seconds": 2.0 * rows[0]["seconds"]}, *rows[1:]], made
    monkeypatch.setattr(page.record, "load", lambda name: changed if name == "start" else load(name))
    assert page.PAGE.read_text() != page.written(page.PAGE.read_text())


def test_brackets_of_peers_contain_our_answer():
    """Two independent ways to every ε of the page: no peer's upper bound is below ours, no lower bound above."""
    rows = json.loads((ROOT / "benchmarks" / "results" / "epsilon.json").read_text())["rows"]
    ours = {}
    for row in rows:
        if row["accountant"] == "ballsbins":
            ours = row
        elif row["accountant"] != "authors":
            assert row["upper"] >= ours["lower"]
            assert row["lower"] is None or row["lower"] <= ours["upper"]
