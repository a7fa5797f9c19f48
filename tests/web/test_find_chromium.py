"""How the tests come by a browser, with an apt-get of our own."""

from __future__ import annotations

import os

import pytest

from . import conftest

APT = """#!/bin/sh
echo "$@" >> {log}
[ "$2" = install ] && {effect}
exit 0
"""


@pytest.fixture
def apt_get(tmp_path, monkeypatch):
    """An apt-get that notes what it was told, and does no more than `effect`; there is no browser to begin with."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(conftest.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 0)

    def make(effect):
        file = tmp_path / "apt-get"
        file.write_text(APT.format(log=tmp_path / "log", effect=effect))
        file.chmod(0o755)
        return tmp_path / "log"

    return make


def test_chromium_is_installed_where_it_may_be(apt_get, tmp_path):
    browser = tmp_path / "chromium"
    log = apt_get(f"echo > {browser} && /bin/chmod 755 {browser}")
    assert conftest.found_chromium() == str(browser)
    assert log.read_text().splitlines() == [
        "--quiet update",
        "--quiet install --yes --no-install-recommends chromium",
    ]
    log.unlink()
    assert conftest.found_chromium() == str(browser)
    assert not log.exists()  # what is there is not installed again


def test_where_it_cannot_be_installed_nothing_is_found(apt_get, monkeypatch):
    apt_get("false")
    assert conftest.found_chromium() is None
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    log = apt_get("false")
    log.unlink()
    assert conftest.found_chromium() is None
    assert not log.exists()
    assert "apt-get install chromium" in conftest.MISSING
