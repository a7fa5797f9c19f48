"""Which Host headers are ours."""

from __future__ import annotations

import socket

import pytest

from ballsbins.web.server import is_loopback, is_ours


@pytest.mark.parametrize(
    "header", ["127.0.0.1", "127.0.0.1:8000", "localhost:1", "LOCALHOST", "[::1]:80", "[::1]"]
)
def test_this_machine(header):
    assert is_ours(header, "127.0.0.1")


@pytest.mark.parametrize(
    "header",
    ["", ":80", "evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil.example", "10.0.0.7",
     "0x7f000001", "2130706433", "evil.example@127.0.0.1", "127.0.0.1:80:80",
     "localhost:1@evil.example", "127.0.0.1:"],
)  # fmt: skip
def test_others(header):
    assert not is_ours(header, "127.0.0.1")


def test_where_others_may_come_a_name_is_still_not_trusted():
    for bound in ("0.0.0.0", "::"):
        assert is_ours("10.0.0.7:8000", bound)
        assert is_ours("[2001:db8::1]:8000", bound)
        assert is_ours(socket.gethostname(), bound)
        assert not is_ours("evil.example:8000", bound)
    assert is_ours("box.example:8000", "box.example")
    assert not is_ours("evil.example:8000", "box.example")


def test_loopback():
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.7", "box.example")))
