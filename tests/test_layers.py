"""Dependencies point one way: no module imports from a layer above its own, or from a neighbour in its layer.

Every import in the source counts: inside functions (lazy ones) and for type checkers only, too. A type of a higher
layer in a signature is knowledge of that layer.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "ballsbins"

# From the bottom to the top. Rooms of one layer that stand in different tuples know nothing of each other; those that
# share a tuple are one idea in several files.
LAYERS: list[list[tuple[str, ...]]] = [
    [("errors", "_check", "_files", "_extras", "_progress")],
    [("samplers.key", "samplers.keystream")],  # batches and noise follow from the same key
    [("samplers",), ("accounting",), ("noise",)],
    [
        (
            "bound",
            "mechanism",
            "curves",
            "accountant",
            "adjacency",
            "largest_batch",
            "calibration",
            "comparison",
            "total",
            "dp_events",
        )
    ],
    [("proof",)],
    [("report",), ("batch_files",), ("data",), ("plots",)],
    [("training",)],
    [("audit",)],
    [("ask",), ("reproduce",)],
    [("web",)],
    [("cli",)],
]
ROOMS = {
    room: (height, position)
    for height, layer in enumerate(LAYERS)
    for position, group in enumerate(layer)
    for room in group
}
# What people import: it may take from everywhere, and nothing may take from it.
FACADE = "__init__"
# Files that take from a room above: the central object hands a question on, `Mechanism.statement`.
EXCEPTIONS = {("mechanism.py", "report")}


class Import(NamedTuple):
    """One import of ours: the line where it stands, and the module that it names."""

    file: Path
    line: int
    module: str

    @property
    def place(self) -> str:
        return self.file.relative_to(SOURCE).as_posix()

    @property
    def ends(self) -> tuple[str, str]:
        """The room of the file, and the room that it takes from."""
        own = ".".join(self.file.relative_to(SOURCE).with_suffix("").parts)
        return room_of(own), room_of(self.module.removeprefix("ballsbins").removeprefix("."))

    def __str__(self) -> str:
        return f"src/ballsbins/{self.place}:{self.line} → {self.module}"


def imports_of(file: Path, text: str) -> Iterator[Import]:
    """All imports of our own modules in a file, wherever they stand."""
    package = ["ballsbins", *file.relative_to(SOURCE).parts[:-1]]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            # `from ballsbins import ask` names a module; the version of the package is no module, and no secret
            names = [f"{base}.{alias.name}" for alias in node.names if alias.name != "__version__"]
        elif isinstance(node, ast.Call) and "import_module" in ast.unparse(node.func):
            names = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
        else:
            continue
        for name in names:
            if name.split(".")[0] == "ballsbins":
                yield Import(file, node.lineno, _module(name))


def _module(name: str) -> str:
    """The longest part of a dotted name that is a module: the rest is what is taken from it."""
    parts = name.split(".")
    while len(parts) > 1:
        place = SOURCE.joinpath(*parts[1:])
        if place.is_dir() or place.with_suffix(".py").exists():
            break
        parts.pop()
    return ".".join(parts)


def room_of(module: str) -> str:
    """The room that a module stands in: the longest part of its name that is one."""
    parts = module.split(".")
    while parts and ".".join(parts) not in ROOMS:
        parts.pop()
    return ".".join(parts) or FACADE


def is_allowed(found: Import) -> bool:
    """Whether an import points downwards, or stays in its room."""
    own, other = found.ends
    if own in (FACADE, other) or (found.place, other) in EXCEPTIONS:
        return True
    if other == FACADE:
        return False
    return ROOMS[other][0] < ROOMS[own][0] or ROOMS[other] == ROOMS[own]


def all_imports() -> list[Import]:
    files = sorted(SOURCE.rglob("*.py"))
    return [found for file in files for found in imports_of(file, file.read_text(encoding="utf-8"))]


def test_every_file_stands_in_a_room():
    lost = [
        str(file.relative_to(SOURCE))
        for file in SOURCE.rglob("*.py")
        if room_of(".".join(file.relative_to(SOURCE).with_suffix("").parts)) == FACADE
    ]
    assert sorted(lost) == ["__init__.py", "__main__.py"]  # the names to import, and `python -m ballsbins`
    assert all(SOURCE.joinpath(*room.split(".")).is_dir() or room_file(room).is_file() for room in ROOMS)


def test_no_file_is_long():
    """One idea per file; what needs more than 400 lines is two."""
    lines = {
        str(file.relative_to(SOURCE)): len(file.read_text().splitlines()) for file in SOURCE.rglob("*.py")
    }
    assert not {name: count for name, count in lines.items() if count > 400}


def room_file(room: str) -> Path:
    return SOURCE.joinpath(*room.split(".")).with_suffix(".py")


def test_every_exception_is_needed():
    assert {(found.place, found.ends[1]) for found in all_imports()} >= EXCEPTIONS


def test_nothing_imports_upwards_or_sideways():
    wrong = [str(found) for found in all_imports() if not is_allowed(found)]
    assert not wrong, "these imports point upwards or sideways:\n" + "\n".join(wrong)


@pytest.mark.parametrize(
    ("file", "text", "line"),
    [
        ("samplers/base.py", "import ballsbins.accounting.search", 1),
        ("accounting/curve.py", "from ballsbins.samplers import Key", 1),
        ("accounting/curve.py", "from ballsbins import samplers", 1),
        ("calibration.py", "def ask():\n    from ballsbins.report import Card", 2),
        ("noise/draw.py", "from ballsbins.samplers import Key", 1),
        ("samplers/key.py", "from ballsbins.samplers.base import Sampler", 1),
        ("mechanism.py", "from importlib import import_module\nimport_module('ballsbins.web')", 2),
        ("report/card.py", "if TYPE_CHECKING:\n    from ballsbins.training import run", 2),
        ("report/card.py", "from ballsbins.plots import save", 1),
        ("web/page.py", "from ballsbins import cli", 1),
        ("web/page.py", "from ..cli import options", 1),
        ("training/run.py", "from ballsbins import Mechanism", 1),
        ("errors.py", "from .mechanism import Mechanism", 1),
    ],
)
def test_an_import_that_does_not_belong_there_is_named(file, text, line):
    (wrong,) = [found for found in imports_of(SOURCE / file, text) if not is_allowed(found)]
    assert str(wrong).startswith(f"src/ballsbins/{file}:{line} → ballsbins")


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("web/page.py", "from ballsbins.report import Card\nimport ballsbins.ask"),
        ("mechanism.py", "from ballsbins.bound import Bound\nfrom ballsbins.samplers import Sampler"),
        ("report/card.py", "from ballsbins import __version__\nfrom . import numbers"),
        ("__init__.py", "from ballsbins.report import Card"),
        ("noise/draw.py", "import numpy as np\nfrom ballsbins.samplers.key import Key"),
    ],
)
def test_other_imports_may_stand_there(file, text):
    assert all(map(is_allowed, imports_of(SOURCE / file, text)))
