"""Committed results of benchmarks say what made them, docs/benchmarks.md has their figures, and failures are told."""

import importlib
import json
import sys
from pathlib import Path

import pytest

import ballsbins

ROOT = Path(__file__).resolve().parent.parent
RESULTS = sorted((ROOT / "benchmarks" / "results").glob("*.json"))
BINS = {"PLD_accounting", "numba", "random-allocation"}
POISSON = {"dp-accounting", "opacus", "prv-accountant"}
PEERS = {
    "epsilon": BINS | POISSON,
    "scaling": BINS | POISSON,
    "training-torch": {"opacus", "torch"},
    "training-jax": {"jax", "jax-privacy", "optax", "opacus", "torch"},
    "samplers": {"numpy"},
    "start": {"numpy", "scipy"},
    "engines": {"pyarrow", "duckdb", "polars"},
    "reading": {"pyarrow", "torch"},
}


def rows_of(name):
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())["rows"]


@pytest.fixture
def script(monkeypatch):
    """Import a script of benchmarks/ anew; it imports its neighbours by name, as scripts do."""
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    names = {path.stem for path in (ROOT / "benchmarks").glob("*.py")}
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module
    for name in names:
        sys.modules.pop(name, None)


@pytest.fixture
def page(script):
    return script("page")


@pytest.fixture
def changed(page, monkeypatch):
    """Let the page see other rows, or another maker, of one benchmark."""
    load = page.record.load

    def change(name, rows=None, made=None):
        found = load(name)
        other = (found[0] if rows is None else rows), found[1] | (made or {})
        before = page.record.load
        monkeypatch.setattr(page.record, "load", lambda asked: other if asked == name else before(asked))

    return change


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_results_carry_what_made_them(path):
    data = json.loads(path.read_text())
    made = data["made_by"]
    assert made["ballsbins"] == ballsbins.__version__, "measure again for this version: `make bench`"
    assert made["python"].startswith("3.")
    assert made["processor"]
    assert made["cores"] >= 1
    assert 0.0 <= made["others"] <= made["cores"]
    assert PEERS[path.stem] <= set(made["packages"])
    assert data["rows"]


def test_every_benchmark_has_results():
    assert {path.stem for path in RESULTS} == set(PEERS)


def test_the_page_has_the_figures_of_the_results(page):
    assert page.PAGE.read_text() == page.written(page.PAGE.read_text()), (
        "`python benchmarks/page.py` writes it"
    )


@pytest.mark.parametrize("name", ["bench_scaling.svg", "bench_tightness.svg"])
def test_the_plots_have_the_figures_of_the_results(page, name):
    drawn = page.plots.PLOTS[name]()
    assert (ROOT / "docs" / "assets" / name).read_text() == drawn, "`python benchmarks/page.py` writes it"


@pytest.mark.parametrize("name", ["start", "reading", "engines", "samplers"])
def test_the_comparison_with_the_results_can_fail(page, changed, name):
    rows, _ = page.record.load(name)
    key = next(key for key in ("seconds", "cpu") if key in rows[0])
    changed(name, [rows[0] | {key: 2.0 * rows[0][key]}, *rows[1:]])
    assert page.PAGE.read_text() != page.written(page.PAGE.read_text())


def test_the_comparison_of_plots_can_fail(page, changed):
    before = page.plots.scaling()
    rows, _ = page.record.load("scaling")
    changed("scaling", [rows[0] | {"seconds": 2.0 * rows[0]["seconds"]}, *rows[1:]])
    assert page.plots.scaling() != before


def test_the_page_tells_whether_the_machine_was_idle(page, changed):
    names = [path.stem for path in RESULTS]
    for name in names:
        changed(name, made={"others": 0.03})
    assert "idle otherwise: other programs used at most 0.03 of" in page.machine()
    changed(names[2], made={"others": 1.4})
    assert (
        f"Other programs used up to 1.4 of the 2 cores on average (during `{names[2]}.json`)"
        in page.machine()
    )


def test_other_programs_are_counted_and_our_own_are_not(script, monkeypatch):
    record = script("record")
    spent = iter([(10.0, 50.0, 5.0), (20.0, 65.0, 13.0)])  # the clock, the machine, ourselves
    monkeypatch.setattr(record, "BEGIN", next(spent))
    monkeypatch.setattr(record, "used_seconds", lambda: next(spent))
    assert record.others() == pytest.approx((15.0 - 8.0) / 10.0)


@pytest.mark.parametrize(("sampler", "wanted"), [("balls-and-bins", BINS), ("Poisson", POISSON)])
def test_every_peer_is_in_the_scaling_with_an_answer_or_without(script, sampler, wanted):
    """No accountant is left out where it fails; only the last question of an axis may have no answer."""
    compare = script("compare")
    accountants = compare.FOR_BINS if sampler == "balls-and-bins" else compare.FOR_POISSON
    assert len(accountants) == len(wanted - {"numba"}) + 1
    for axis, settings in compare.SCALING.items():
        for accountant in accountants:
            rows = [
                row
                for row in rows_of("scaling")
                if (row["sampler"], row["axis"], row["accountant"]) == (sampler, axis, accountant)
            ]
            asked = [(row["sigma"], row["steps"], row["epochs"], row["delta"]) for row in rows]
            assert asked == settings[: len(rows)]
            assert all("seconds" in row for row in rows[:-1])
            assert ("failure" in rows[-1]) or len(rows) == len(settings)


def test_a_peer_without_an_answer_is_shown(page, changed):
    rows, _ = page.record.load("epsilon")
    late = {
        key: value for key, value in rows[1].items() if key not in ("lower", "upper", "seconds", "megabytes")
    }
    changed("epsilon", [rows[0], late | {"failure": "no answer in 90 s"}, *rows[2:]])
    assert "| PLD_accounting | no answer in 90 s |" in page.bins()
    rows, _ = page.record.load("scaling")
    first = next(row for row in rows if row["accountant"] == "dp_accounting" and row["steps"] == 10_000)
    ended = [
        {key: row[key] for key in row if key not in ("lower", "upper", "seconds", "megabytes")}
        | {"failure": "fails: MemoryError"}
        if row is first
        else row
        for row in rows
        if row["accountant"] != "dp_accounting" or row["steps"] <= 10_000
    ]
    changed("scaling", ended)
    assert "needs more than 12 GB from 10,000 on" in page.scaling()
    assert page.plots.scaling()


def test_a_question_that_fails_or_takes_too_long_has_no_answer(script, monkeypatch):
    compare = script("compare")
    found = compare.ask("ballsbins", "Poisson", -1.0, 10, 1, 1e-6)
    assert found["failure"].startswith("fails: ballsbins.errors.InvalidInputError")
    monkeypatch.setattr(compare, "LIMIT", 0.01)
    assert compare.ask("ballsbins", "Poisson", 1.0, 10, 1, 1e-6) == {"failure": "no answer in 0.01 s"}


def test_a_benchmark_that_fails_does_not_stop_the_others(script, monkeypatch, tmp_path, capfd):
    run = script("run")
    (tmp_path / "fails.py").write_text("raise SystemExit(3)")
    (tmp_path / "works.py").write_text("import sys; print('saw', *sys.argv[1:])")
    monkeypatch.setattr(run, "HERE", tmp_path)
    monkeypatch.setattr(run, "SAVING", ("fails.py", "works.py"))
    monkeypatch.setattr(run, "OTHERS", ())
    monkeypatch.setattr(sys, "argv", ["run.py", "--small"])
    with pytest.raises(SystemExit) as ended:
        run.main()
    assert ended.value.code == 1
    printed = capfd.readouterr().out
    assert "saw --small --save" in printed
    assert "FAILED" in next(line for line in printed.splitlines() if line.startswith("fails.py"))
    assert "FAILED" not in next(line for line in printed.splitlines() if line.startswith("works.py"))


def test_brackets_of_peers_contain_our_answer():
    """Two independent ways to every ε of the page: no peer's upper bound is below ours, no lower bound above."""
    ours = {}
    for row in rows_of("epsilon"):
        if row["accountant"] == "ballsbins":
            ours = row
        elif row["accountant"] != "authors" and "failure" not in row:
            assert row["upper"] >= ours["lower"]
            assert row["lower"] is None or row["lower"] <= ours["upper"]
