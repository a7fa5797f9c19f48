"""The tables of "Which batches?", asked of the code: `python docs/hooks/batch_matrix.py` writes them into the page.

A test compares the page with what this gives.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from ballsbins import (
    BallsAndBins,
    BallsBinsError,
    Bound,
    Deterministic,
    Mechanism,
    MonteCarlo,
    Poisson,
    Sampler,
    Shuffle,
    certify,
)
from ballsbins.ask import interval

PAGE = Path(__file__).resolve().parents[1] / "batches.md"
SIGMA, STEPS, EPOCHS, DELTA = 0.5, 1000, 10, 1e-6
NO_BREAK = "\u00a0"
FEW_STEPS, EPSILON = (
    10,
    4.0,
)  # which methods answer does not depend on the number of steps; proofs take less for few


def samplers(steps: int) -> dict[str, Sampler]:
    """All of them; truncated batches have 60 examples on average, and 150 at most."""
    return {
        "balls-and-bins, redrawn": BallsAndBins(steps),
        "balls-and-bins, fixed": BallsAndBins(steps, redraw=False),
        "balls-and-bins, truncated": BallsAndBins(steps).truncated_to(150, 60 * steps),
        "Poisson": Poisson(steps),
        "Poisson, truncated": Poisson(steps).truncated_to(150, 60 * steps),
        "shuffle": Shuffle(steps),
        "deterministic": Deterministic(steps),
    }


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(head), *([list(row) for row in rows])]
    lines.insert(1, ["---"] * len(lines[0]))
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _known(bound: Bound) -> str:
    return f"{bound.kind}<br>{interval(bound).replace(' ', NO_BREAK)}"


def _yes(fact: bool) -> str:
    return "yes" if fact else "no"


def facts() -> str:
    """How samplers differ, from their attributes."""
    rows = (
        [
            name,
            _yes(sampler.partitions),
            "random, so secret" if sampler.random_sizes else "public",
            "once" if sampler.draws_once and sampler.is_random else "anew" if sampler.is_random else "never",
            _yes(sampler.amplifies),
        ]
        for name, sampler in samplers(STEPS).items()
        if "truncated" not in name
    )
    return _table(
        ["sampler", "every example once per epoch", "batch sizes", "drawn", "random batches known to help"],
        rows,
    )


def questions() -> str:
    """What the best method knows of ε, by how long the run is and what is compared."""
    head = ["sampler", "one epoch", "stopped after 400 steps", "ten epochs", "one epoch, replace one"]
    rows = []
    for name, sampler in samplers(STEPS).items():
        one, stopped, ten = (
            Mechanism(sampler, SIGMA, **length)  # type: ignore[arg-type]
            for length in ({}, {"last_epoch_steps": 400}, {"epochs": EPOCHS})
        )
        answers = [run.epsilon(DELTA) for run in (one, stopped, ten)]
        rows.append([name, *map(_known, [*answers, one.epsilon(DELTA, adjacency="replace-one")])])
    return _table(head, rows)


def _method(run: Mechanism, method: str | MonteCarlo) -> str:
    try:
        return run.delta(EPSILON, method).kind
    except BallsBinsError:
        return "–"


def _pld(run: Mechanism) -> str:
    try:
        run.pld(interval=1e-3)
    except BallsBinsError:
        return "–"
    return "yes"


def _proof(run: Mechanism) -> str:
    try:
        certify(run, EPSILON)
    except BallsBinsError:
        return "–"
    return "proved"


def methods() -> str:
    """Which methods answer for one epoch, and what their answers are."""
    head = ["sampler", "`auto`", "`MonteCarlo()`", "`renyi`", "`lower-bound`", "`pld()`", "`certify`"]
    rows = []
    for name, sampler in samplers(FEW_STEPS).items():
        run = Mechanism(sampler, SIGMA)
        by_name = [_method(run, way) for way in ("auto", MonteCarlo(samples=1000), "renyi", "lower-bound")]
        rows.append([name, *by_name, _pld(run), _proof(run)])
    return _table(head, rows)


def written(page: str) -> str:
    """The page with its tables as they are now."""
    for name, table in (("facts", facts), ("questions", questions), ("methods", methods)):
        mark = f"<!-- {name}: written by docs/hooks/batch_matrix.py -->\n"
        before, found, after = page.partition(mark)
        assert found, f"{PAGE.name} has no place for the table {name}"
        page = before + mark + "\n" + table() + "\n" + re.sub(r"\A\n*(?:\|.*\n)*\n*", "", after)
    return page


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
