"""What a request must be before anything looks at it, and the headers that every answer carries.

Another site that somebody visits can make their browser call 127.0.0.1. It cannot choose the Host header freely
(after rebinding its name to 127.0.0.1 the header still has the name) nor hide where a request comes from: so both are
checked.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

LONGEST_QUERY = 2000
_HEADERS = (
    (
        b"content-security-policy",
        # Bokeh styles its parts with <style> elements, hence 'unsafe-inline'; scripts come from here only
        b"default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src data:; "
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
    """Refuses what is not asked by our own page under a name that is ours."""

    def __init__(self, app: ASGIApp, host: str) -> None:
        """`host` is what the server was told to listen on."""
        self._app, self._host = app, host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check, then pass on."""
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
        # a link from elsewhere may open the page (that is what a link is for), but nothing else
        site = headers.get(b"sec-fetch-site", "none")
        opens = scope["path"] == "/" and headers.get(b"sec-fetch-mode") == "navigate"
        if site not in ("same-origin", "none") and not opens:
            return 403, "Another site asked for this; only the page of this server may."
        return None


def is_ours(header: str, bound: str) -> bool:
    """Whether a Host header names this server, which listens on `bound`.

    A name can be made to point anywhere by whoever owns it, an address cannot: where the server listens on all
    addresses, any address is ours, but no name except the machine's own.
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
    """Whether only this machine can reach a server that listens there."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
