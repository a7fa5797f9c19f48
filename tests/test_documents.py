"""What the documents show is true: blocks run as pasted, shown outputs are what is printed, links lead somewhere.

In README.md, CONTRIBUTING.md and docs/, every block says what it is by its mark and its title:

* `sh` and `python` without a title are run; so are the lines of `console` that begin with `$ `, and what follows them
  must be what they print (a line `...` stands for any lines, `…` for anything within a line);
* "Output" is what the block before it prints, compared in the same way;
* a line `--8<-- "examples/…"` stands for that script, as it does for the site;
* "Excerpt: …" needs something that the reader has and the tests have not, and "Takes …" is too long for them.

Anything else fails. The blocks of a document are pasted in order, into a directory that is empty at first.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^( *)```(\w*)([^\n]*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
SCRIPT = re.compile(r'^--8<-- "(examples/[^"]+)"\n', re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:)([^)#]*)(#[^)]*)?\)")
RUN, NOT_RUN, SHOWN = ("sh", "python", "console"), ("Excerpt: ", "Takes "), "Output"


@dataclass
class Block:
    """A fenced block: what it is by its mark and title, and where it begins."""

    mark: str
    title: str
    text: str
    place: str

    @property
    def is_run(self) -> bool:
        return self.mark in RUN and not self.title

    @property
    def is_known(self) -> bool:
        return self.is_run or self.title == SHOWN or self.title.startswith(NOT_RUN)


def blocks_of(text: str, name: str) -> list[Block]:
    """All fenced blocks of a document, also those that are indented."""
    found = []
    for match in FENCE.finditer(text):
        indent, mark, rest, inside = match.groups()
        title = re.search(r'title="([^"]*)"', rest)
        lines = "".join(line.removeprefix(indent) for line in inside.splitlines(keepends=True))
        lines = SCRIPT.sub(lambda script: (ROOT / script[1]).read_text(), lines)
        line = text.count("\n", 0, match.start()) + 1
        found.append(Block(mark, title[1] if title else rest.strip(), lines, f"{name}:{line}"))
    return found


def _paste(pieces: list[tuple[str, str, str]], folder: Path) -> list[str]:
    """Run pieces of blocks in one directory, our `ballsbins` in front of any other; what each printed."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "pasted_blocks.py")],
        input=json.dumps(pieces),
        cwd=folder,
        env={
            **os.environ,
            "PATH": path,
            "COLUMNS": "100",
            "PYTHONWARNINGS": "ignore",
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


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
    pattern = "".join(
        "(.*\n)*" if line == "..." else re.escape(line).replace("…", ".*") + "\n" for line in shown
    )
    return re.fullmatch(pattern, "".join(line + "\n" for line in printed)) is not None


def _stripped(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip("\n").splitlines()]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_block_says_what_it_is(document):
    blocks = blocks_of(document.read_text(), document.name)
    assert not [block.place for block in blocks if not block.is_known]
    for before, block in zip([None, *blocks], blocks, strict=False):
        assert block.title != SHOWN or (before and before.is_run), f"{block.place}: output of what?"
        if block.mark == "python" and not block.is_run:
            compile(block.text, block.place, "exec")


@pytest.mark.slow
@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_block_does_what_it_shows(document, tmp_path):
    pieces: list[tuple[str, str, str]] = []
    expected: list[list[str] | None] = []
    for block in blocks_of(document.read_text(), document.name):
        if block.title == SHOWN:
            expected[-1] = _stripped(block.text)
        elif block.is_run and block.mark == "console":
            for command, shown in _commands(block.text):
                pieces.append(("sh", command, block.place))
                expected.append(_stripped("\n".join(shown)))
        elif block.is_run:
            pieces.append((block.mark, block.text, block.place))
            expected.append(None)
    for piece, shown, printed in zip(pieces, expected, _paste(pieces, tmp_path), strict=True):
        assert shown is None or _matches(shown, _stripped(printed)), f"{piece[2]}\n{piece[1]}\n{printed}"


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
    assert _matches(["accuracy 0.9…"], ["accuracy 0.957"])
    assert not _matches(["accuracy 0.9…"], ["accuracy 0.857"])


def test_a_command_that_fails_and_one_that_prints_are_told_apart(tmp_path):
    run = "ballsbins epsilon --sampler balls-and-bins -s 1 -T 10 -d 1e-6"
    called, piped = _paste([("sh", run, "a call"), ("sh", f"{run} | cat", "a pipe")], tmp_path)
    assert called == piped
    for wrong in (
        "ballsbins epsilon -s 0 -T 10 -d 1e-6",
        "ballsbins epsilon -s 0 -T 10 -d 1e-6 > out",
        "exit 1",
    ):
        with pytest.raises(AssertionError, match="exit code"):
            _paste([("sh", wrong, "wrong")], tmp_path)


def test_a_block_that_does_not_say_what_it_is_is_noticed():
    text = (
        '```sh\nls\n```\n\n```py\nx = 1\n```\n\n  ```sh title="Excerpt: yours"\n  ls\n  ```\n\n```\nls\n```\n'
    )
    blocks = blocks_of(text, "page")
    assert [block.place for block in blocks] == ["page:1", "page:5", "page:9", "page:13"]
    assert [block.is_known for block in blocks] == [True, False, True, False]
    assert [block.text for block in blocks] == ["ls\n", "x = 1\n", "ls\n", "ls\n"]


def test_the_five_scripts_are_short():
    shown = SCRIPT.findall((ROOT / "docs" / "examples.md").read_text())
    assert len(shown) == 5
    for script in shown:
        assert len((ROOT / script).read_text().splitlines()) <= 80, script
