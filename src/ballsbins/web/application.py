"""The live page's application: what may be asked of it, and nothing else."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from string import Template
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from ballsbins.errors import BallsBinsError
from ballsbins.web import markup, page
from ballsbins.web.explorer import PLACES, Explorer
from ballsbins.web.guard import Guard
from ballsbins.web.question import DEFAULTS, Question, field_of, question_from

MOST_QUESTIONS = 8  # answered at the same time
_SCRIPTS = ("chart.js", "copy.js", "explorer.js")


def build(host: str) -> Starlette:
    """The application, for a server that listens on `host`."""
    version = markup.bokeh_version()
    explorer = Explorer()
    home = Template(markup.asset("explorer.html")).substitute(
        bokeh=f"bokeh-{version}.js",
        figure=page.script_json(json.loads(markup.figure_json(list(PLACES.values())))),
        defaults=page.script_json(dict(DEFAULTS)),
    )
    # all that is ever served, read once: no request leads to a file
    assets = {name: (markup.asset(name), "text/javascript") for name in _SCRIPTS}
    assets |= {name: (markup.asset(name), "text/css") for name in ("style.css", "explorer.css")}
    assets[f"bokeh-{version}.js"] = (markup.bokeh_library(), "text/javascript")

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
            return JSONResponse({"field": field_of(error), "message": str(error)}, 422)

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
            return JSONResponse({"field": field_of(error), "message": str(error)}, 422)
        disposition = {
            "content-disposition": 'attachment; filename="privacy.html"',
            "cache-control": "no-store",
        }
        return HTMLResponse(text, headers=disposition)

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        del app
        question_from(DEFAULTS)  # for practice: what it imports is not to delay the first question
        try:
            explorer.quick.start()
            explorer.slow.start()
            yield
        finally:  # also where Ctrl-C comes before all have started
            explorer.quick.close()
            explorer.slow.close()

    return Starlette(
        routes=[
            Route("/", show),
            Route("/answer", answer),
            Route("/export", export),
            Route("/assets/{name}", asset),
        ],
        middleware=[Middleware(Guard, host=host)],
        lifespan=lifespan,
    )
