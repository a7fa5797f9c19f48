"""Importing the package is cheap, and its public names are what they say."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

import ballsbins
from ballsbins import _extras
from ballsbins.errors import BallsBinsError, MissingExtraError

HEAVY = [
    "torch",
    "jax",
    "pyspark",
    "matplotlib",
    "pandas",
    "pyarrow",
    "dp_accounting",
    "scipy",
    "cryptography",
    "typer",
]


def modules_after(statement):
    code = f"{statement}; import sys; print('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_import_pulls_in_nothing_heavy():
    assert modules_after("import ballsbins").isdisjoint(HEAVY)


def test_the_check_itself_can_fail():
    assert "scipy" in modules_after("import ballsbins.accountant")


def test_accounting_needs_no_dp_accounting():
    assert "dp_accounting" not in modules_after("import ballsbins.accountant, ballsbins.cli")


def test_public_names():
    assert ballsbins.__all__ == sorted(ballsbins.__all__)
    for name in ballsbins.__all__:
        assert getattr(ballsbins, name) is not None
    with pytest.raises(AttributeError, match="calibrat"):
        ballsbins.calibrate_everything  # noqa: B018


def test_completion_offers_the_public_names():
    assert set(ballsbins.__all__) <= set(dir(ballsbins))


def test_a_star_import_needs_no_extra():
    # None in sys.modules makes an import fail, as if python-flint were not installed
    code = (
        "import sys; sys.modules['flint'] = None\n"
        "from ballsbins import *\n"
        "try:\n    certify(Mechanism(BallsAndBins(10), 1.0), 1.0)\n"
        "except MissingExtraError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "ballsbins[certify]" in done.stdout


def test_a_missing_extra_answers_with_the_pip_command():
    with pytest.raises(MissingExtraError, match=r"pip install 'ballsbins\[plots\]'") as caught:
        _extras.load("no_such_module_of_ours", feature="Drawing pictures", extra="plots")
    assert isinstance(caught.value, ImportError)
    assert isinstance(caught.value, BallsBinsError)


# What an answer for one epoch can do without, by name: each took a good part of a cold `ballsbins epsilon`.
NOT_FOR_EPSILON = {
    "dp_accounting", "matplotlib", "pyarrow", "pandas", "torch", "jax", "flint", "numba", "cryptography", "joblib",
    "scipy.fft", "scipy.integrate", "scipy.linalg", "scipy.optimize", "scipy.stats", "asyncio", "multiprocessing",
    "mpmath", "ballsbins.accounting.monte_carlo", "ballsbins.calibration", "ballsbins.plots",
    *(f"ballsbins.cli.{name}" for name in ("build", "plot", "report", "train", "verify")),
}  # fmt: skip


def run_the_command_line(*words):
    """The modules that are loaded when a command ends."""
    return modules_after(f"""
import contextlib, sys, ballsbins.cli
sys.argv[1:] = {words!r}
with contextlib.suppress(SystemExit):
    ballsbins.cli.main()
pass""")


def test_an_answer_loads_nothing_it_does_not_need():
    loaded = run_the_command_line("epsilon", "-s", "0.35", "-T", "1000", "-d", "1e-6")
    assert "ballsbins.accounting.one_epoch.curve" in loaded
    assert not NOT_FOR_EPSILON & loaded


def test_every_command_stands_in_the_table_of_the_command_line():
    """The table says which file to load for a command; a name that is missing there would load them all."""
    import typer

    from ballsbins import cli

    for panel in cli.PANELS.values():
        for name, names in panel.items():
            app = typer.Typer()
            import_module(f"ballsbins.cli.{name}").register(app)
            found = [one.name for one in (*app.registered_groups, *app.registered_commands)]
            assert sorted(found) == sorted(names), name


def test_the_command_line_starts_without_what_only_answers_need():
    """A cold `ballsbins --help` should not wait for scipy, nor for any optional part."""
    late = {"scipy", "dp_accounting", "matplotlib", "pyarrow", "pandas", "torch", "jax", "flint", "numba"}
    assert not late & run_the_command_line("--help")
