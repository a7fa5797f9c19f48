"""The live page's answers: one question in, a stream of answers out, the fast ones first.

Every answer is one line of JSON, sent when it is known. If the reader goes away (somebody moved a slider further),
the processes that still compute for it are ended.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import AsyncIterator
from dataclasses import dataclass
from html import escape
from typing import Any

from ballsbins.ask import SamplerName
from ballsbins.errors import BallsBinsError
from ballsbins.mechanism import Mechanism
from ballsbins.report import Statement
from ballsbins.report.numbers import up
from ballsbins.web import answers, markup, page
from ballsbins.web.answers import Calibrated, Points, Row
from ballsbins.web.question import Question, field_of
from ballsbins.web.workers import Work, Workers

QUICK_SECONDS, SLOW_SECONDS = 10.0, 30.0
# Seconds of rest before slow work begins: while a slider moves, every question is replaced sooner.
PAUSE = 0.2
_REMEMBERED = 256
# the other samplers in the order of the table; their numbers are those of the chart's lines
PLACES = {name: place for place, name in enumerate(SamplerName)}


@dataclass
class Part:
    """A piece of the answer: who computes it, and what."""

    name: str
    workers: Workers
    work: Work
    arguments: tuple[Any, ...]


class Explorer:
    """Answers questions, remembers answers, and bounds what is computed at once."""

    def __init__(self) -> None:
        """No process is started yet."""
        self.quick = Workers(2, QUICK_SECONDS, urgent=True)
        self.slow = Workers(2, SLOW_SECONDS, urgent=False)
        self.open = 0
        self._known: OrderedDict[Any, list[Any]] = OrderedDict()

    def parts(self, question: Question) -> list[Part]:
        """What is to be computed, in the order in which people wait for it."""
        runs = question.mechanisms
        main = question.main
        parts = [
            Part(name, self._lane(runs[name]), answers.of_run, (runs[name], question.delta))
            for name in (SamplerName.BALLS_AND_BINS, SamplerName.DETERMINISTIC)
        ]
        if question.target is not None:
            asked = (main.sampler, question.target, question.delta, main.epochs)
            parts.append(Part("calibration", self.slow, answers.calibrated, asked))
        parts += [
            Part(name, self.slow, answers.of_run, (runs[name], question.delta))
            for name in (SamplerName.POISSON, SamplerName.SHUFFLE)
        ]
        stated = (main, question.delta, question.examples)
        return [*parts, Part("statement", self.slow, answers.statement_of, stated)]

    def _lane(self, mechanism: Mechanism) -> Workers:
        """Several epochs of redrawn bins are composed, which takes longer; all else answers at once."""
        _, epochs = mechanism.independent_epochs
        return self.slow if epochs > 1 else self.quick

    async def results(self, question: Question) -> AsyncIterator[tuple[str, Any]]:
        """(part, result) as they become known; a result may be the error that took its place."""
        queue: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()

        answered: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        async def compute(part: Part) -> None:
            main = part.name == SamplerName.BALLS_AND_BINS
            try:
                # without an ε there is nothing to state
                if part.name != "statement" or await answered:
                    async for result in self._remembered(part):
                        await queue.put((part.name, result))
                        if main and not answered.done():
                            answered.set_result(True)
            except BallsBinsError as error:
                await queue.put((part.name, error))
            if main and not answered.done():
                answered.set_result(False)
            await queue.put((part.name, None))

        tasks = [asyncio.create_task(compute(part)) for part in self.parts(question)]
        left = len(tasks)
        try:
            while left:
                name, result = await queue.get()
                if result is None:
                    left -= 1
                else:
                    yield name, result
        finally:
            for task in tasks:
                task.cancel()

    async def _remembered(self, part: Part) -> AsyncIterator[Any]:
        key = (part.work.__name__, part.arguments)
        if key in self._known:
            self._known.move_to_end(key)
            for result in self._known[key]:
                yield result
            return
        if part.workers is self.slow and part.name != SamplerName.BALLS_AND_BINS:
            await asyncio.sleep(PAUSE)
        found = []
        async for result in part.workers.results(part.work, *part.arguments):
            found.append(result)
            yield result
        self._known[key] = found
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)

    async def lines(self, question: Question) -> AsyncIterator[bytes]:
        """The stream of one question."""
        self.open += 1
        try:
            yield _line("run", steps=question.main.sampler.steps, command=question.command)
            rows: dict[str, Row] = {}
            async for name, result in self.results(question):
                for event in self._events(question, rows, name, result):
                    yield event
            yield _line("end")
        finally:
            self.open -= 1

    def _events(self, question: Question, rows: dict[str, Row], part: str, result: Any) -> list[bytes]:
        if isinstance(result, BallsBinsError):
            event = {"part": part, "field": field_of(result), "message": str(result)}
            if part in question.mechanisms:
                event["html"] = _silent(question.mechanisms[part], str(result))
            return [_line("error", **event)]
        if isinstance(result, Row):
            rows[part] = result
            ink = markup.ink_of(result.name, PLACES[SamplerName(part)])
            row: dict[str, Any] = {"part": part, "html": markup.row_html(result, ink)}
            if part == SamplerName.BALLS_AND_BINS:
                row["headline"] = markup.headline_html(result)
            events = [_line("row", **row)]
            if len(rows) == len(SamplerName):
                events.append(_line("note", text=page.note_of([rows[name] for name in SamplerName])))
            return events
        if isinstance(result, Points):
            place = PLACES[SamplerName(part)]
            ink = markup.ink_of(rows[part].name, place)
            return [_line("curve", **page.curve_data(rows[part], result, ink, place))]
        if isinstance(result, Calibrated):
            sigma = up(result.noise_multiplier, 5)
            return [_line("calibration", html=markup.calibrated_html(result), noise_multiplier=sigma)]
        assert isinstance(result, Statement)
        words = {"markdown": result.markdown(), "text": result.text()}
        return [_line("statement", html=markup.statement_html(result), **words)]

    async def export(self, question: Question) -> str:
        """The static page of the same question; a sampler without an answer is left out with its reason."""
        rows: dict[str, Row] = {}
        points: dict[str, Points] = {}
        statement, silent = None, []
        self.open += 1
        try:
            async for name, result in self.results(question):
                if isinstance(result, Row):
                    rows[name] = result
                elif isinstance(result, Points):
                    points[name] = result
                elif isinstance(result, Statement):
                    statement = result
                elif isinstance(result, BallsBinsError) and name != "calibration":
                    if name in (SamplerName.BALLS_AND_BINS, "statement"):
                        raise result
                    silent.append(f"{question.mechanisms[name].sampler.name}: {result}")
        finally:
            self.open -= 1
        runs = [
            page.Run(rows[name], points[name], statement if name == SamplerName.BALLS_AND_BINS else None)
            for name in SamplerName
            if name in points
        ]
        note = page.note_of([run.row for run in runs], silent)
        return await asyncio.to_thread(page.page, "Privacy of a training run", runs, note)


def _line(kind: str, **content: Any) -> bytes:
    return json.dumps({"kind": kind, **content}, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def _silent(mechanism: Mechanism, reason: str) -> str:
    name = mechanism.sampler.name
    ink = markup.ink_of(name, 0)
    return (
        f'<th scope="row">{markup.swatch(ink)}<span>{escape(name)}</span></th>'
        f'<td class="silent" colspan="2">{escape(reason)}</td>'
    )
