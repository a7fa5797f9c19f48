"""The docstrings of public names are the reference: they have their sections, and their examples are run.

Google style: a summary, Args (units, shapes, ranges), Returns, Raises, Example. A class has Args or Attributes for
what it is made from. Functions and public methods have Args, Returns and Raises where they take, give and raise.
"""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import textwrap
from dataclasses import is_dataclass

import pytest

import ballsbins

ELSEWHERE = {
    "MechanismAccountant": "ballsbins.dp_events",
    "TrainingPlan": "ballsbins.training.jax",
    "answer_queries": "ballsbins.audit",
    "assign": "ballsbins.batch_files.assignments",
    "audit": "ballsbins.audit",
    "binomial_sizes": "ballsbins.samplers",
    "build": "ballsbins.batch_files.build",
    "cut_in_order": "ballsbins.samplers",
    "execution_plan": "ballsbins.training.jax_privacy",
    "open_inputs": "ballsbins.batch_files.inputs",
    "pad": "ballsbins.samplers",
    "padded_arrays": "ballsbins.batch_files.reader",
    "plan_assignment": "ballsbins.batch_files.assignments",
    "plan_build": "ballsbins.batch_files.build_plan",
    "plan_card": "ballsbins.training.jax_privacy",
    "rank_slice": "ballsbins.samplers",
    "rounded_normals": "ballsbins.noise",
    "split": "ballsbins.samplers",
    "split_padded": "ballsbins.samplers",
    "thrown_sizes": "ballsbins.samplers",
    "truncate": "ballsbins.samplers",
    "MechanismDpEvent": "ballsbins.dp_events",
    "limited": "ballsbins.largest_batch",
    "PrivateTrainer": "ballsbins.training.huggingface",
    "make_private": "ballsbins.training.torch",
    "BatchFiles": "ballsbins.batch_files",
    "train": "ballsbins.training.jax.trainer",
    "Statement": "ballsbins.report",
    "Card": "ballsbins.report",
    "FloatingPoint": "ballsbins.report",
    "citation": "ballsbins.report",
    "at_equal_noise": "ballsbins.comparison",
    "crossover": "ballsbins.comparison",
    "poisson_claim": "ballsbins.comparison",
}
NAMES = [*ballsbins.__all__, *ELSEWHERE]
# Those whose docstrings are still to be written. A name that is here and needs not be is an error, too.
PENDING: set[str] = set()


def public(name):
    return getattr(importlib.import_module(ELSEWHERE.get(name, "ballsbins")), name)


def methods_of(kind):
    """Public methods that the class, or a class of ours that it is derived from, defines."""
    found = {}
    for base in reversed(inspect.getmro(kind)):
        if not base.__module__.startswith("ballsbins"):
            continue
        for name, member in vars(base).items():
            plain = member.__func__ if isinstance(member, (staticmethod, classmethod)) else member
            if not name.startswith("_") and inspect.isfunction(plain):
                found[name] = plain
    return found


def raises(function):
    """Whether a function raises, or has a value checked, itself."""
    return any(
        isinstance(node, ast.Raise) or (isinstance(node, ast.Name) and node.id == "_check")
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function))))
    )


def sections_missing(thing, *, example=True):
    """What a docstring should have and has not."""
    text = inspect.getdoc(thing) or ""
    if not text.strip():
        return ["a docstring"]
    missing = []

    def want(*titles):
        if not any(f"\n{title}:" in f"\n{text}" for title in titles):
            missing.append(" or ".join(titles))

    if inspect.isclass(thing):
        if not issubclass(thing, Exception) or is_dataclass(thing):
            want("Args", "Attributes")
    else:
        signature = inspect.signature(thing)
        if [parameter for parameter in signature.parameters if parameter not in ("self", "cls")]:
            want("Args")
        if signature.return_annotation not in (None, "None", "NoReturn"):
            want("Returns", "Yields")
        if raises(thing):
            want("Raises")
    if example:
        want("Example")
    return missing


def missing_of(name):
    thing = public(name)
    found = {name: sections_missing(thing)}
    if inspect.isclass(thing) and not issubclass(thing, Exception):
        for method, function in methods_of(thing).items():
            found[f"{name}.{method}"] = sections_missing(function, example=False)
    return {where: sections for where, sections in found.items() if sections}


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_has_its_sections(name):
    missing = missing_of(name)
    if name in PENDING:
        assert missing, f"{name} is complete: take it out of PENDING"
    else:
        assert not missing


@pytest.mark.parametrize("name", NAMES)
def test_its_examples_are_true(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    thing = public(name)
    finder, runner = (
        doctest.DocTestFinder(recurse=True),
        doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE),
    )
    said: list[str] = []
    for test in finder.find(thing, name, module=False, globs={name: thing}):
        runner.run(test, out=said.append)
    assert not runner.failures, "".join(said)
    assert name in PENDING or runner.tries > 0


def test_a_docstring_without_its_sections_is_noticed():
    def bare(value: int) -> int:
        """Double a value."""
        if value < 0:
            raise ValueError(value)
        return 2 * value

    def whole(value: int) -> int:
        """Double a value.

        Args:
            value: a number.

        Returns:
            Twice the number.

        Raises:
            ValueError: it is below 0.

        Example:
            >>> 2 * 2
            4
        """
        if value < 0:
            raise ValueError(value)
        return 2 * value

    assert sections_missing(bare) == ["Args", "Returns or Yields", "Raises", "Example"]
    assert sections_missing(whole) == []
