"""What the pages about the paper name exists, and every numbered part of the paper has a row."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("completeness", "errata", "accounting")
NAMED = re.compile(r"`((?:[\w-]+/)*[\w-]+\.py)(?:(::?)([\w.]+))?`")
ALGORITHMS, EQUATIONS, FIGURES = 11, 6, 4  # of the paper
THEOREMS = [
    *(f"2.{k}" for k in range(1, 7)), *(f"3.{k}" for k in range(1, 6)), "4.1", "4.2",
    *(f"B.{k}" for k in range(1, 6)), *(f"D.{k}" for k in range(1, 5)),
]  # fmt: skip


@cache
def defined(path):
    """Everything that a file defines, methods as Class.method."""
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{part.name}" for part in node.body if isinstance(part, ast.FunctionDef)}
        if isinstance(node, ast.Assign):
            names |= {
                each.id for target in node.targets for each in ast.walk(target) if isinstance(each, ast.Name)
            }
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return names


def missing(text):
    """What a page names and is not there."""
    found = []
    for file, kind, name in NAMED.findall(text):
        places = [ROOT / "tests" / file] if kind == "::" else [ROOT / "src/ballsbins" / file, ROOT / file]
        if not kind:
            places.append(ROOT / "tests" / file)
        path = next((place for place in places if place.is_file()), None)
        if path is None or (name and name not in defined(path)):
            found.append(f"{file}{kind}{name}")
    return found


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_names_exists(page):
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    assert len(NAMED.findall(text)) > 10
    assert missing(text) == []


def test_what_is_missing_is_seen():
    assert missing("`accounting/curve.py:Curve`, `test_comparison.py::test_no_such_test`, `nowhere.py`") == [
        "test_comparison.py::test_no_such_test",
        "nowhere.py",
    ]
    assert missing("`accounting/curve.py:Curve.no_such_method`") == [
        "accounting/curve.py:Curve.no_such_method"
    ]


def test_every_numbered_part_of_the_paper_has_a_row():
    rows = [
        line.split("|")[1]
        for line in (ROOT / "docs/completeness.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("| ")
    ]
    text = "\n".join(rows)
    for number in range(1, ALGORITHMS + 1):
        assert re.search(rf"[Aa]lgorithm {number}\b", text), f"algorithm {number}"
    for number in range(1, FIGURES + 1):
        assert f"Figure {number}" in text
    for number in range(1, EQUATIONS + 1):
        assert f"({number})" in text
    for number in THEOREMS:
        assert re.search(rf"\b{re.escape(number)}\b", text), number
