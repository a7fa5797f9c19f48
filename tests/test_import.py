"""Importing the package is cheap, and its public names are what they say."""

from __future__ import annotations

import subprocess
import sys

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


def test_a_missing_extra_answers_with_the_pip_command():
    with pytest.raises(MissingExtraError, match=r"pip install 'ballsbins\[plots\]'") as caught:
        _extras.load("no_such_module_of_ours", feature="Drawing pictures", extra="plots")
    assert isinstance(caught.value, ImportError)
    assert isinstance(caught.value, BallsBinsError)


def test_the_command_line_starts_without_what_only_answers_need():
    """A cold `ballsbins --help` should not wait for scipy, nor for any optional part."""
    program = "import sys, ballsbins.cli; print(*(name.partition('.')[0] for name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    late = {"scipy", "dp_accounting", "matplotlib", "pyarrow", "pandas", "torch", "jax", "flint", "numba"}
    assert not late & set(done.stdout.split())
