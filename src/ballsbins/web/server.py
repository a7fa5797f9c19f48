"""Run the live page: bind, say where, open the browser, serve until Ctrl-C."""

from __future__ import annotations

import errno
import socket
import threading
import webbrowser
from collections.abc import Callable
from contextlib import suppress

from ballsbins import _check, _extras
from ballsbins.errors import InvalidInputError
from ballsbins.web import markup
from ballsbins.web.guard import is_loopback


def serve(host: str, port: int, *, browser: bool, say: Callable[[str], None]) -> None:
    """Serve on `host`, at `port` or at a free one if it is 0; `say` tells the person at the terminal."""
    uvicorn = _extras.load("uvicorn", feature=markup.FEATURE, extra=markup.EXTRA)
    _extras.load("starlette", feature=markup.FEATURE, extra=markup.EXTRA)
    with bind(host, port) as listening:
        from ballsbins.web import application

        app = application.build(host)
        url = _url(host, listening.getsockname()[1])
        say(f"The page is at {url} and stays until you press Ctrl-C.")
        if not is_loopback(host):
            say(
                "Whoever can reach this machine can use the page and its processor: there is no password. "
                "Leave out --host to keep it to yourself."
            )
        if browser:  # in a thread of its own: some browsers keep the caller waiting
            threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
        config = uvicorn.Config(
            app,
            log_level="critical",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            ws="none",
            limit_concurrency=64,
            timeout_graceful_shutdown=1,
        )
        with suppress(KeyboardInterrupt):  # the usual way to end it
            uvicorn.Server(config).run(sockets=[listening])
        say("Stopped.")


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; whatever is in the way is said in words."""
    number = _check.integer("--port", port, 0, 65535, advice="Leave it out, or 0, to pick a free one.")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, number, type=socket.SOCK_STREAM)[0]
    except OSError:
        advice = "127.0.0.1 is this machine alone, 0.0.0.0 all of its addresses."
        raise InvalidInputError("--host", host, "an address of this machine", advice) from None
    listening = socket.socket(family, kind, protocol)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(address)
        listening.listen(128)
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            advice = "Another program listens there: leave --port out to have a free one chosen."
            raise InvalidInputError("--port", number, "a free port", advice) from None
        if error.errno == errno.EACCES:
            advice = "Ports below 1024 are for the administrator: leave --port out."
            raise InvalidInputError("--port", number, "one that you may use", advice) from None
        advice = "127.0.0.1 is this machine alone, 0.0.0.0 all of its addresses."
        raise InvalidInputError("--host", host, "an address of this machine", advice) from None
    return listening


def _url(host: str, port: int) -> str:
    shown = "127.0.0.1" if host in ("0.0.0.0", "::", "") else host
    return f"http://[{shown}]:{port}/" if ":" in shown else f"http://{shown}:{port}/"
