"""The live page: one question in, a stream of answers out, the fast ones first; and the other requests it serves.

Every answer is one line of JSON, sent as soon as it is known. If the reader goes away (because somebody moved a
slider further), the processes that still compute for it are ended.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from string import Template
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from ballsbins.ask import SamplerName
from ballsbins.errors import BallsBinsError
from ballsbins.mechanism import Mechanism
from ballsbins.report import Statement
from ballsbins.report.numbers import too_large_delta, up
from ballsbins.web import answers, page
from ballsbins.web.answers import Calibrated, Points, Row
from ballsbins.web.question import DEFAULTS, PRESETS, Question, field_of, question_from, worded
from ballsbins.web.workers import Work, Workers

Proof = Callable[[Mechanism, float], str]
MOST_QUESTIONS = 8  # maximum number of questions answered at the same time
QUICK_SECONDS, SLOW_SECONDS = 10.0, 30.0  # processor time allowed for one piece of an answer
# Seconds to wait before slow work begins: while a slider moves, the next question comes before that.
PAUSE = 0.2
_REMEMBERED = 256
_SCRIPTS = ("chart.js", "copy.js", "explorer.js")
# the samplers in the order of the table; their numbers match the chart's lines
PLACES = {name: place for place, name in enumerate(SamplerName)}


@dataclass
class Part:
    """A piece of the answer: which workers compute it, and what. The first thing people look at does not pause."""

    name: str
    workers: Workers
    work: Work
    arguments: tuple[Any, ...]
    first: bool = False


class Explorer:
    """Answers questions, remembers answers, and limits how much is computed at once."""

    def __init__(self, proof: Proof | None = None) -> None:
        """Start no process yet; `proof` gives what is proved about a run at a δ."""
        self.proof = proof
        self.quick = Workers(2, QUICK_SECONDS, urgent=True)
        self.slow = Workers(2, SLOW_SECONDS, urgent=False)
        self.open = 0
        self._known: OrderedDict[Any, list[Any]] = OrderedDict()

    def parts(self, question: Question) -> list[Part]:
        """The pieces to compute, in the order in which people wait for them."""
        main = question.main
        order = sorted(question.mechanisms, key=lambda name: name != question.asked)
        parts = []
        for name in order:
            run = question.mechanisms[name]
            asked = name == question.asked
            parts.append(Part(name, self._lane(run), answers.of_run, (run, question.delta), asked))
        if question.target is not None:
            wanted = (main.sampler, question.target, question.delta, main.epochs)
            parts.append(Part("calibration", self.slow, answers.calibrated, wanted))
        if question.asked is not None:
            stated = (main, question.delta, question.examples)
            parts.append(Part("statement", self.slow, answers.statement_of, stated))
        return parts

    def _lane(self, mechanism: Mechanism) -> Workers:
        """Composing several epochs, or Poisson's many coin flips, takes longer; the rest is answered at once."""
        _, epochs = mechanism.independent_epochs
        quick = epochs == 1 and mechanism.sampler.name != "Poisson"
        return self.quick if quick or mechanism.sampler.name == "deterministic" else self.slow

    async def results(self, question: Question) -> AsyncIterator[tuple[str, Any]]:
        """Give (part, result) as results become known; a result may be an error instead."""
        queue: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
        answered: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        async def compute(part: Part) -> None:
            main = part.name == question.asked
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
                elif isinstance(result, Row) and self.proof is not None:
                    run = question.mechanisms[SamplerName(name)]
                    yield name, replace(result, proof=self.proof(run, question.delta))
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
        if part.workers is self.slow and not part.first:
            await asyncio.sleep(PAUSE)
        found = []
        async for result in part.workers.results(part.work, *part.arguments):
            found.append(result)
            yield result
        self._known[key] = found
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)

    async def lines(self, question: Question) -> AsyncIterator[bytes]:
        """The stream of answers to one question."""
        self.open += 1
        try:
            sampler = question.main.sampler
            limits = [run.sampler.max_batch_size for run in question.mechanisms.values()]
            yield _line(
                "run",
                steps=sampler.steps,
                command=question.command,
                max_batch_size=max((limit for limit in limits if limit is not None), default=None),
                warning=too_large_delta(question.delta, question.examples),
            )
            rows: dict[SamplerName, Row] = {}
            async for name, result in self.results(question):
                for event in _events(question, rows, name, result):
                    yield event
            yield _line("end")
        finally:
            self.open -= 1

    async def export(self, question: Question) -> str:
        """The static page for the same question; a sampler without an answer is left out, and the reason is given."""
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
                    if name in (question.asked, "statement"):
                        raise result
                    silent.append(f"{question.mechanisms[name].sampler.name}: {worded(result)}")
        finally:
            self.open -= 1
        runs = {
            name: page.Run(rows[name], points[name], statement if name == question.asked else None)
            for name in SamplerName
            if name in points
        }
        return await asyncio.to_thread(
            page.page_of_samplers, "Privacy of a training run", runs, question.asked, silent
        )


def _events(question: Question, rows: dict[SamplerName, Row], part: str, result: Any) -> list[bytes]:
    """The lines to send to the browser for one result."""
    asked = question.asked
    if isinstance(result, BallsBinsError):
        words = worded(result)
        if part in rows:  # the number is known and stays; only its curve is missing
            return [
                _line("no-curve", part=part, message=f"No curve of {rows[SamplerName(part)].name}: {words}")
            ]
        event = {"part": part, "field": field_of(result), "message": words, "main": part == asked}
        if part in question.mechanisms:
            event["html"] = page.silent_html(question.mechanisms[part].sampler.name, words)
        return [_line("error", **event)]
    if isinstance(result, Row):
        name = SamplerName(part)
        rows[name] = result
        events = [_line("row", part=part, html=page.row_html(result, page.ink_of(result.name, PLACES[name])))]
        if name is asked or (asked is None and len(rows) == len(SamplerName)):
            events.append(_line("headline", html=page.headline(rows, asked)))
        if drawn := page.picture(rows, asked):
            events.append(_line("picture", html=drawn))
        return events
    if isinstance(result, Points):
        place = PLACES[SamplerName(part)]
        row = rows[SamplerName(part)]
        data = page.curve_data(row, result, page.ink_of(row.name, place), place, main=part == asked)
        return [_line("curve", **data)]
    if isinstance(result, Calibrated):
        sigma = up(result.noise_multiplier, 5)
        way = page.WAYS[asked or SamplerName.SHUFFLE]
        return [_line("calibration", html=page.calibrated_html(result, way), noise_multiplier=sigma)]
    assert isinstance(result, Statement)
    return [_line("statement", html=page.statement_html(result), **page.copies_of(result))]


def _line(kind: str, **content: Any) -> bytes:
    return json.dumps({"kind": kind, **content}, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def build(proof: Proof | None = None) -> Starlette:
    """The application, which accepts only the requests listed here."""
    explorer = Explorer(proof)
    presets = "".join(f"<option>{name}</option>" for name in PRESETS)
    home = Template(page.asset("explorer.html")).substitute(
        presets=presets, defaults=page.script_json({"fields": dict(DEFAULTS), "presets": dict(PRESETS)})
    )
    # Read all served files once at the start: no request ever opens a file.
    assets = {name: (page.asset(name), "text/javascript") for name in _SCRIPTS}
    assets |= {name: (page.asset(name), "text/css") for name in ("style.css", "explorer.css")}

    async def show(request: Request) -> Response:
        del request
        return HTMLResponse(home, headers={"cache-control": "no-cache"})

    async def asset(request: Request) -> Response:
        found = assets.get(request.path_params["name"])
        if found is None:
            return PlainTextResponse("There is no such file.\n", 404)
        text, kind = found
        return Response(text, media_type=kind, headers={"cache-control": "no-cache"})

    def asked(request: Request) -> Question | Response:
        if explorer.open >= MOST_QUESTIONS:
            words = f"{explorer.open} questions are being answered already. Ask again in a moment."
            return JSONResponse({"field": None, "message": words}, 503, headers={"retry-after": "2"})
        try:
            return question_from(dict(request.query_params))
        except BallsBinsError as error:
            return JSONResponse({"field": field_of(error), "message": worded(error)}, 422)

    async def answer(request: Request) -> Response:
        question = asked(request)
        if not isinstance(question, Question):
            return question
        return StreamingResponse(
            explorer.lines(question), media_type="application/x-ndjson", headers={"cache-control": "no-store"}
        )

    async def export(request: Request) -> Response:
        question = asked(request)
        if not isinstance(question, Question):
            return question
        try:
            text = await explorer.export(question)
        except BallsBinsError as error:
            return JSONResponse({"field": field_of(error), "message": worded(error)}, 422)
        disposition = {
            "content-disposition": 'attachment; filename="privacy.html"',
            "cache-control": "no-store",
        }
        return HTMLResponse(text, headers=disposition)

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        del app
        question_from(DEFAULTS)  # a warm-up, so that imports do not delay the first question
        try:
            explorer.quick.start()
            explorer.slow.start()
            yield
        finally:  # even if Ctrl-C comes before all have started
            explorer.quick.close()
            explorer.slow.close()

    routes = [Route("/", show), Route("/answer", answer), Route("/export", export)]
    return Starlette(routes=[*routes, Route("/assets/{name}", asset)], lifespan=lifespan)
