"""The static page: what is in the file, and what it refuses to say."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from html import escape
from html.parser import HTMLParser

import pytest
from typer.testing import CliRunner

from ballsbins import BallsAndBins, Mechanism
from ballsbins.cli import app
from ballsbins.report import Card
from ballsbins.report.numbers import up
from ballsbins.web.answers import points_of, row_of


def written(path, *words):
    done = CliRunner().invoke(app, ["page", "--out", str(path), *map(str, words)])
    if done.exception is not None:
        raise done.exception
    return path.read_text(encoding="utf-8")


class Elements(HTMLParser):
    """All elements with their attributes, and the text of scripts that hold data."""

    def __init__(self, text):
        super().__init__()
        self.found, self.data, self._inside = [], {}, None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))
        self._inside = dict(attributes).get("id") if tag == "script" else None

    def handle_data(self, text):
        if self._inside:
            self.data[self._inside] = json.loads(text)

    def handle_endtag(self, tag):
        self._inside = None


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return written(tmp_path_factory.mktemp("page") / "privacy.html", "-s", 0.7, "-T", 100, "-d", 1e-6)


def test_it_says_what_the_accountant_says(page):
    run = Mechanism(BallsAndBins(100), 0.7)
    assert f"<output>{up(run.epsilon(1e-6).upper, 4)}</output>" in page
    assert "With balls-and-bins batches, this run has" in page
    assert "If you shuffled instead, ε would be at least" in page
    assert all(name in page for name in ("Poisson", "shuffle", "deterministic"))
    curves = Elements(page).data["data"]["curves"]
    assert [curve["name"] for curve in curves] == ["balls-and-bins", "Poisson", "shuffle", "deterministic"]
    at = curves[0]["epsilon"][10]
    assert curves[0]["upper"][10] == pytest.approx(run.delta(at).upper, rel=1e-9)
    statement = run.statement(1e-6)
    assert statement.headline in page
    assert Elements(page).data["data"]["statements"] == [
        {"sentence": statement.sentence, "markdown": statement.markdown(), "text": statement.text()}
    ]
    assert escape(statement.plain) in page


def test_it_needs_nothing_else(page):
    elements = Elements(page).found
    assert not [tag for tag, attributes in elements if {"src", "href", "srcset"} & set(attributes)]
    assert not [tag for tag, _ in elements if tag in ("link", "iframe", "img", "object", "embed", "base")]
    policy = next(a["content"] for tag, a in elements if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert len(page) < 100_000


@pytest.mark.parametrize(("noise", "end"), [(0.01, 60.0), (1e6, 1.0)])
def test_curves_have_a_range_where_epsilon_is_infinite_or_nothing(noise, end):
    run = Mechanism(BallsAndBins(100), noise)
    assert points_of(run, row_of(run, 1e-6)).epsilon[-1] == end


def test_a_run_alone(tmp_path):
    text = written(
        tmp_path / "a.html", "-s", 0.7, "-T", 100, "-d", 1e-6, "--alone", "--sampler", "deterministic"
    )
    assert [curve["name"] for curve in Elements(text).data["data"]["curves"]] == ["deterministic"]


def test_cards_side_by_side(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    for directory, delta in (("one", 1e-6), ("two", 1e-5)):
        Card(Mechanism(BallsAndBins(100), 0.7), delta).write(tmp_path / directory / "card.json")
    paths = [tmp_path / "one/card.json", tmp_path / "two/card.json"]
    text = written(tmp_path / "cards.html", "--from", paths[0], "--from", paths[1])
    data = Elements(text).data["data"]
    assert [curve["name"] for curve in data["curves"]] == ["one/card", "two/card"]
    assert len(data["statements"]) == 2
    assert "at δ = 1e-6, exact" in text
    assert "at δ = 1e-5, exact" in text


def test_a_claim_that_is_too_small_is_not_written(tmp_path):
    card = Card(Mechanism(BallsAndBins(100), 0.7), 1e-6)
    smaller = replace(card.claim, lower=0.5, value=0.5, upper=0.5)
    replace(card, stated=smaller).write(tmp_path / "card.json")
    out = tmp_path / "page.html"
    with pytest.raises(ValueError, match=r"is 0\.5, but must be at least .* ballsbins check"):
        written(out, "--from", tmp_path / "card.json")
    assert not out.exists()


def test_names_cannot_become_markup(tmp_path):
    name = "<img src=x onerror=alert(1)>"
    card = tmp_path / f"{name}.json"
    Card(Mechanism(BallsAndBins(100), 0.7), 1e-6).write(card)
    text = written(tmp_path / "page.html", "--from", card, "--title", "</title><script>alert(2)</script>")
    assert not [tag for tag, _ in Elements(text).found if tag == "img"]
    assert "alert(1)>" not in re.sub(r"\\u003cimg src=x onerror=alert\(1\)>", "", text.replace("&gt;", ""))
    assert "<script>alert(2)" not in text


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("-s", 0.7, "-T", 100), "--delta must be given"),
        (("-T", 100, "-d", 1e-6), "--noise-multiplier must be given"),
        (("-s", 0, "-T", 100, "-d", 1e-6), r"--noise-multiplier is 0\.0"),
        (("--from", "card.json", "-d", 1e-6), "--delta is 1e-06, but must be left out with --from"),
        (("--from", "card.json", "-E", 2), "--epochs is 2"),
        (("--from", "nowhere.json"), "nowhere.json"),
    ],
)
def test_bad_input_leaves_the_file_alone(tmp_path, words, reason):
    out = tmp_path / "page.html"
    out.write_text("kept")
    with pytest.raises(ValueError, match=reason):
        written(out, *words)
    assert out.read_text() == "kept"


def test_where_to_write(tmp_path):
    run = ("-s", 0.7, "-T", 100, "-d", 1e-6, "--alone")
    with pytest.raises(ValueError, match=r"must be a file ending in \.html"):
        written(tmp_path / "page.pdf", *run)
    with pytest.raises(ValueError, match="in a directory that exists"):
        written(tmp_path / "missing" / "page.html", *run)


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("starlette", ["serve", "--no-browser"]),
        ("uvicorn", ["serve", "--no-browser"]),
    ],
)
def test_what_is_not_installed_answers_with_the_command(tmp_path, module, words):
    start = "from ballsbins.cli import main; main()"
    code = f"import sys; sys.modules[{module!r}] = None; sys.argv[1:] = {words!r}; {start}"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60, cwd=tmp_path
    )
    assert done.returncode == 2
    assert "pip install 'ballsbins[web]'" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
