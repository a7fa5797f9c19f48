"""Run the live page: bind, print the address, open the browser, serve until Ctrl-C; refuse requests of other pages.

Another site that the user visits can make their browser call 127.0.0.1. It cannot choose the Host header freely
(after rebinding its name to 127.0.0.1, the header still has that name), nor can it hide where a request comes from.
So both are checked.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
import threading
import webbrowser
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ballsbins import _check, _extras
from ballsbins.errors import InvalidInputError
from ballsbins.mechanism import Mechanism

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

FEATURE, EXTRA = "The web page", "web"
LONGEST_QUERY = 2000
_HEADERS = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; "
        b"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
)


class Guard:
    """Refuses requests that do not come from our own page under one of our own names."""

    def __init__(self, app: ASGIApp, host: str) -> None:
        """Take the app, and the `host` that the server listens on."""
        self._app, self._host = app, host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request, then pass it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_HEADERS]
            await send(message)

        refusal = self._refusal(scope)
        if refusal is None:
            await self._app(scope, receive, with_headers)
            return
        status, words = refusal
        body = f"{words}\n".encode()
        await with_headers(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [
                    (b"content-type", b"text/plain; charset=utf-8"),
                    (b"content-length", b"%d" % len(body)),
                ],
            }
        )
        await send({"type": "http.response.body", "body": body})

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get(b"host", "")
        if not is_ours(host, self._host):
            return (
                403,
                "This server answers to its own address only: open the address that `ballsbins serve` printed.",
            )
        if scope["method"] not in ("GET", "HEAD"):
            return 405, "This server only answers questions: use GET."
        if len(scope["query_string"]) > LONGEST_QUERY:
            return 414, f"The address is longer than {LONGEST_QUERY} characters: no question needs that many."
        if headers.get(b"origin", f"http://{host}") != f"http://{host}":
            return 403, "Another site asked for this; only the page of this server may."
        # a link from another site may open the page (that is what links are for), but may request nothing else
        site = headers.get(b"sec-fetch-site", "none")
        opens = scope["path"] == "/" and headers.get(b"sec-fetch-mode") == "navigate"
        if site not in ("same-origin", "none") and not opens:
            return 403, "Another site asked for this; only the page of this server may."
        return None


def is_ours(header: str, bound: str) -> bool:
    """Whether a Host header names this server, which listens on `bound`.

    Whoever owns a name can make it point anywhere, but not an address. So if the server listens on all addresses, any
    address is ours, but no name except the machine's own.
    """
    name, colon, port = ("", "", "") if header.endswith("]") else header.rpartition(":")
    if colon and not (port.isascii() and port.isdigit()):
        return False
    name = (name if colon else header).strip("[]").lower()
    if name in ("localhost", bound.lower()):
        return bool(name)
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return not is_loopback(bound) and name == socket.gethostname().lower()
    return address.is_loopback if is_loopback(bound) else True


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens on this host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def serve(
    host: str,
    port: int,
    *,
    browser: bool,
    say: Callable[[str], None],
    proof: Callable[[Mechanism, float], str] | None = None,
) -> None:
    """Serve on `host` at `port`, where 0 picks a free port; `say` prints a message for the user.

    `proof` gives what is proved about a run at a δ, or "".
    """
    uvicorn = _extras.load("uvicorn", feature=FEATURE, extra=EXTRA)
    _extras.load("starlette", feature=FEATURE, extra=EXTRA)
    with bind(host, port) as listening:
        from ballsbins.web import live

        app = Guard(live.build(proof), host)
        url = _url(host, listening.getsockname()[1])
        say(f"The page is at {url} and stays until you press Ctrl-C.")
        if not is_loopback(host):
            say(
                "Whoever can reach this machine can use the page and its processor: there is no password. "
                "Leave out --host to keep it to yourself."
            )
        if browser:  # in a separate thread, because some browsers block the caller
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
        with suppress(KeyboardInterrupt):  # the usual way to stop the server
            uvicorn.Server(config).run(sockets=[listening])
        say("Stopped.")


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; failures are explained in words."""
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
