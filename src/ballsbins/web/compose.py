"""Which runs stand on a static page: those of cards, or a run with the other samplers beside it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from ballsbins.cli.compare import meaning
from ballsbins.errors import BallsBinsError
from ballsbins.mechanism import Mechanism
from ballsbins.report import Card
from ballsbins.report.check import shared_runs
from ballsbins.report.words import name_of
from ballsbins.samplers import BallsAndBins, Deterministic, Poisson, Sampler, Shuffle
from ballsbins.web.answers import Points, Row, points_of, row_of
from ballsbins.web.page import Run, page


def of_mechanism(
    mechanism: Mechanism, delta: float, title: str, *, examples: int | None = None, alone: bool = False
) -> str:
    """The page of one run, with the other samplers at the same noise unless it is to stand alone."""
    runs = [Run(*_answers(mechanism, delta), Card(mechanism, delta, num_examples=examples).statement())]
    silent = []
    for other in () if alone else _others(mechanism):
        try:
            runs.append(Run(*_answers(other, delta)))
        except BallsBinsError as error:  # one sampler without an answer does not take the others away
            silent.append(f"{name_of(other.sampler)}: {error}")
    return page(title, runs, note=note_of([run.row for run in runs], silent))


def of_cards(paths: Sequence[Path], title: str) -> str:
    """The page of several runs, each as its card claims it; a claim that is not true has no statement to show."""
    runs, cards = [], []
    for path, name in zip(paths, _names(paths), strict=True):
        card = Card.read(path)
        cards.append((name, card))
        statement = card.statement()
        row = row_of(card.mechanism, card.delta, card.claim, name)
        runs.append(Run(row, points_of(card.mechanism, row), statement))
    warnings = [f"Warning: {sentence}." for sentence in shared_runs(cards)]
    return page(title, runs, note=" ".join(warnings))


def note_of(rows: Sequence[Row], silent: Iterable[str] = ()) -> str:
    """What the table means, and which samplers had no answer."""
    by_name = {"balls-and-bins" if row.name.startswith("balls-and-bins") else row.name: row for row in rows}
    words = list(silent)
    if {"balls-and-bins", "Poisson", "shuffle"} <= set(by_name):
        answers = {name: [row.bound] for name, row in by_name.items()}
        words.insert(0, meaning(answers, rows[0].delta))
    return " ".join(words)


def _answers(mechanism: Mechanism, delta: float) -> tuple[Row, Points]:
    row = row_of(mechanism, delta)
    return row, points_of(mechanism, row)


def _others(mechanism: Mechanism) -> list[Mechanism]:
    steps = mechanism.sampler.steps
    samplers: list[Sampler] = [BallsAndBins(steps), Poisson(steps), Shuffle(steps), Deterministic(steps)]
    return [
        Mechanism(sampler, mechanism.noise_multiplier, mechanism.epochs, mechanism.last_epoch_steps)
        for sampler in samplers
        if type(sampler) is not type(mechanism.sampler)
    ]


def _names(paths: Sequence[Path]) -> list[str]:
    """Short names that tell the cards apart: the file's, with its directory where two are alike."""
    stems = [path.stem for path in paths]
    return [path.stem if stems.count(path.stem) == 1 else f"{path.parent.name}/{path.stem}" for path in paths]
