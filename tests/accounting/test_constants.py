"""Every number of the accounting has a name and a reason, and docs/derivation.md names only what exists."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ACCOUNTING = ROOT / "src/ballsbins/accounting"
DERIVATION = (ROOT / "docs/derivation.md").read_text(encoding="utf-8")

# Numbers that need no name: nothing, one and two of something, a half, and the same of the imaginary unit. Whole
# numbers below ten are algebra (powers, coefficients, shapes), and so are those that divide (coefficients of series).
# But a count of roundings, a number times U, has a name unless it is one or two.
PLAIN = {0.0, 0.5, 1.0, 2.0, 1j, 2j}
LARGEST_PLAIN_INTEGER = 9
FEW_ROUNDINGS = {1, 2}

FILES = sorted(str(path.relative_to(ACCOUNTING)) for path in ACCOUNTING.rglob("*.py"))


def is_number(node):
    return (
        isinstance(node, ast.Constant)
        and isinstance(node.value, (int, float, complex))
        and not isinstance(node.value, bool)
    )


def unnamed(source):
    """(line, column, number) of every number inside a function that should have a name."""
    tree = ast.parse(source)
    above = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    found = set()
    for function in ast.walk(tree):
        if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        for node in ast.walk(function):
            if not is_number(node):
                continue
            outer = above[node]
            beside = {outer.left, outer.right} if isinstance(outer, ast.BinOp) else set()
            roundings = any(isinstance(other, ast.Name) and other.id == "U" for other in beside)
            if roundings and isinstance(outer.op, ast.Mult):
                plain = node.value in FEW_ROUNDINGS
            elif isinstance(node.value, int):
                divides = isinstance(outer, ast.BinOp) and isinstance(outer.op, ast.Div)
                plain = divides or node.value <= LARGEST_PLAIN_INTEGER
            else:
                plain = node.value in PLAIN
            if not plain:
                found.add((node.lineno, node.col_offset, node.value))
    return sorted(found)


def bare_constants(source):
    """Lines of numeric constants of a module with no comment behind them or in the line above."""
    lines = source.splitlines()
    bare = []
    for node in ast.parse(source).body:
        if not isinstance(node, ast.Assign):
            continue
        names = [
            name.id for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name)
        ]
        numbers = [part.value for part in ast.walk(node.value) if is_number(part)]
        if not all(name.isupper() for name in names) or all(number in PLAIN for number in numbers):
            continue
        own = any("#" in line for line in lines[node.lineno - 1 : node.end_lineno])
        if not own and "#" not in lines[node.lineno - 2]:
            bare.append(node.lineno)
    return bare


@pytest.mark.parametrize("name", FILES)
def test_every_number_has_a_name_and_a_reason(name):
    source = (ACCOUNTING / name).read_text(encoding="utf-8")
    complaints = [
        f"{name}:{line}: give {value!r} a name, and say where its value comes from"
        for line, _, value in unnamed(source)
    ]
    complaints += [
        f"{name}:{line}: say behind or right above the constant where its value comes from"
        for line in bare_constants(source)
    ]
    assert not complaints, "\n".join(complaints)


def test_the_check_sees_what_it_should():
    source = """
_BARE = 3.5
_PI = 2.0 * np.pi
_GOOD = 3.5  # tried

def f(x, step=0.1):
    return 0.5 * x + 8 * U + 2 * U * x / 72 + 4 * x - 1e-13 * 1j + 12 * x
"""
    assert [value for *_, value in unnamed(source)] == pytest.approx([0.1, 8, 1e-13, 12])
    assert bare_constants(source) == [2]


def sections():
    """The numbered bounds: number → text."""
    parts = re.split(r"^### B(\d+)\. ", DERIVATION, flags=re.MULTILINE)
    return {int(number): text for number, text in zip(parts[1::2], parts[2::2], strict=True)}


def named_code(text):
    """(file, name) of everything that a bound says it is used by."""
    code = text.split("\nCode: ", 1)[1].split("\nTests: ", 1)[0]
    file = None
    for quoted in re.findall(r"`([^`]+)`", code):
        if quoted.endswith(".py"):
            file = quoted
        else:
            yield file, quoted


def defined(path):
    """All names of a module: constants, functions, classes, methods."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.ClassDef)
    names = {node.name for node in ast.walk(tree) if isinstance(node, kinds)}
    for node in tree.body:
        if isinstance(node, ast.Assign):
            names |= {
                part.id for target in node.targets for part in ast.walk(target) if isinstance(part, ast.Name)
            }
    return names


def test_bounds_are_numbered_in_order_and_say_what_they_are():
    numbers = [
        int(number) for number in re.findall(r"^### B(\d+)\. .*\(.+\)$", DERIVATION, flags=re.MULTILINE)
    ]
    assert numbers == list(range(1, len(sections()) + 1))


@pytest.mark.parametrize("number", sorted(sections()))
def test_what_a_bound_names_exists(number):
    text = sections()[number]
    code = list(named_code(text))
    assert code
    for file, name in code:
        assert name in defined(ACCOUNTING / file), f"B{number}: {file} has no {name}"
    tests = re.findall(r"`(\w+\.py)::(\w+)`", text.split("\nTests: ", 1)[1])
    assert tests
    for file, name in tests:
        assert name in defined(Path(__file__).parent / file), f"B{number}: {file} has no {name}"


def test_what_the_code_cites_is_a_bound_that_names_the_file():
    known = {number: {file for file, _ in named_code(text)} for number, text in sections().items()}
    for name in FILES:
        for cited in re.findall(r"\bB(\d+)\b", (ACCOUNTING / name).read_text(encoding="utf-8")):
            assert name in known.get(int(cited), ()), f"{name} cites B{cited}, which does not name that file"
