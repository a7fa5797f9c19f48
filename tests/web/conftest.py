"""A real server and a real browser, each started once."""

from __future__ import annotations

import http.client
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from filelock import FileLock

BALLSBINS = str(Path(sys.executable).parent / "ballsbins")
NAMES = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
MISSING = (
    f"None of {', '.join(NAMES)} is on the path, and it could not be installed from here: the pages are tested in a "
    "real browser. On Debian: sudo apt-get install chromium"
)
QUIET = os.environ | {"OMP_NUM_THREADS": "1"}


# shells have what they start in the background ignore Ctrl-C, and what that starts too
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def serving(*options):
    """`ballsbins serve` as people run it; gives the process and its address."""
    command = [BALLSBINS, "serve", "--no-browser", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=QUIET)
    try:
        line = next((text for text in process.stdout if "http://" in text), "")
        found = re.search(r"http://\S+/", line)
        assert found, line + (process.stderr.read() if process.poll() is not None else "")
        yield process, found[0]
    finally:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=300)  # on a busy machine it may still be starting


@pytest.fixture(scope="session")
def server():
    """The address of a server."""
    with serving() as (_, address):
        yield address


@pytest.fixture
def get(server):
    """Ask the server, with any headers; gives status, headers and body."""

    def ask(path, method="GET", headers=()):
        place = urlsplit(server)
        connection = http.client.HTTPConnection(place.hostname, place.port, timeout=60)
        try:
            connection.putrequest(method, path, skip_host=True)
            for name, value in {"Host": place.netloc, **dict(headers)}.items():
                connection.putheader(name, value)
            connection.endheaders()
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read().decode()
        finally:
            connection.close()

    return ask


@pytest.fixture(scope="session")
def chromium():
    """Where Chromium is; installed if it may be, and a failure that says what to do if not."""
    return found_chromium() or pytest.fail(MISSING)


def found_chromium():
    """The path of a Chromium that is there, or that apt-get has just brought; None if it cannot be had."""
    for name in NAMES:
        if path := shutil.which(name):
            return path
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return None
    with FileLock(Path(tempfile.gettempdir()) / "ballsbins-apt.lock"):  # one installs at a time
        for words in (["update"], ["install", "--yes", "--no-install-recommends", "chromium"]):
            if shutil.which("chromium") is None:
                with suppress(subprocess.TimeoutExpired):
                    subprocess.run(
                        ["apt-get", "--quiet", *words],
                        check=False,
                        capture_output=True,
                        timeout=600,
                        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
                    )
    return shutil.which("chromium")


@pytest.fixture(
    scope="module"
)  # while it is open, this thread has a running event loop, which others must not meet
def playwright():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as running:
        yield running


@pytest.fixture(scope="module")
def browser(playwright, chromium):
    """One browser; its pages are kept apart by contexts."""
    running = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
    yield running
    running.close()


@pytest.fixture
def browse(browser):
    """Open a page that shares nothing with others; errors and messages of its scripts fail the test."""
    contexts, troubles = [], []

    def open_page(address, width=1280, scheme="light", ready="[data-state=ready][data-drawn=yes]"):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.asked = []
        page.on("request", lambda request: page.asked.append(request.url))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on(
            "console",
            lambda message: troubles.append(message.text) if message.type in ("error", "warning") else None,
        )
        page.goto(address)
        page.wait_for_selector(f"html{ready}", state="attached")
        return page

    open_page.troubles = troubles
    yield open_page
    for context in contexts:
        context.close()
    assert troubles == []
