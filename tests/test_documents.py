"""What the documents show is true: commands run as pasted, shown outputs are what is printed, links lead somewhere.

In README.md and docs/: a block marked `sh` or `python` is run; in one marked `console`, lines that begin with `$ `
are run, and what follows them must be the output (a line `...` stands for any lines). The blocks of a document share
one directory, in order. Blocks with another mark, or none, are not run.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(sh|console|python)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:)([^)#]*)(#[^)]*)?\)")


def _shell(command: str, folder: Path) -> str:
    """Run a command with our `ballsbins` in front of any other; give back what it printed."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command,
        shell=True,
        cwd=folder,
        env={**os.environ, "PATH": path, "COLUMNS": "100", "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def _commands(lines: str) -> list[tuple[str, list[str]]]:
    """Cut a console block into commands and the lines shown below each."""
    found: list[tuple[str, list[str]]] = []
    for line in lines.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif line.startswith("> ") and found and not found[-1][1]:
            found[-1] = (found[-1][0] + "\n" + line[2:], [])
        else:
            found[-1][1].append(line.rstrip())
    return found


def _matches(shown: list[str], printed: list[str]) -> bool:
    pattern = "".join("(.*\n)*" if line == "..." else re.escape(line) + "\n" for line in shown)
    return re.fullmatch(pattern, "".join(line + "\n" for line in printed)) is not None


def _stripped(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip("\n").splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_block_does_what_it_shows(document, tmp_path):
    for kind, text in BLOCK.findall(document.read_text()):
        if kind == "python":
            (tmp_path / "block.py").write_text(text)
            _shell(f"{sys.executable} block.py", tmp_path)
        elif kind == "sh":
            _shell("set -e\n" + text, tmp_path)
        else:
            for command, shown in _commands(text):
                printed = _stripped(_shell(command, tmp_path))
                assert _matches(_stripped("\n".join(shown)), printed), "\n".join([command, *printed])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document):
    for target, _ in LINK.findall(document.read_text()):
        assert not target or (document.parent / target).exists(), target


@pytest.mark.parametrize(
    ("title", "most"), [("What ε do I have?", 10), ("A Parquet row becomes a gradient", 12)]
)
def test_a_walk_names_few_files_and_they_exist(title, most):
    """Every stop of a walk is a file, and what it names in that file is there."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    walk = text.partition(f"## {title}")[2].partition("\n## ")[0]
    stops = re.findall(r"^(\d+)\. `([^`]+)`: (.*)$", walk, re.MULTILINE)
    assert [int(number) for number, _, _ in stops] == list(range(1, len(stops) + 1))
    assert 5 <= len(stops) <= most
    assert len({file for _, file, _ in stops}) == len(stops)
    for _, file, words in stops:
        source = (ROOT / "src" / "ballsbins" / file).read_text()
        for name in re.findall(r"`([A-Za-z_.]+)`", words):
            assert re.search(rf"\b{name.rpartition('.')[2]}\b", source), f"{name} is not in {file}"


def test_files_that_the_map_names_exist():
    for document in (ROOT / "docs" / "architecture.md", ROOT / "CONTRIBUTING.md"):
        for name in re.findall(r"`([\w/]+(?:/|\.py))`", document.read_text()):
            places = (ROOT / name, ROOT / "src" / "ballsbins" / name)
            assert any(place.exists() for place in places) or name == "utils.py", f"{document.name}: {name}"


def test_a_wrong_output_is_noticed():
    assert _matches(["a", "...", "b"], ["a", "1", "2", "b"])
    assert not _matches(["a", "b"], ["a", "c"])
    assert not _matches(["a"], ["a", "b"])
