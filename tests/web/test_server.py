"""`ballsbins serve` as a client sees it: answers, refusals, and how it starts and ends."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import signal
import socket
import subprocess
import time
from urllib.parse import urlencode, urlsplit

import pytest

from ballsbins import BallsAndBins, Mechanism, calibrate
from ballsbins.report.numbers import up

from .conftest import BALLSBINS, QUIET, serving

FIELDS = {
    "sampler": "balls-and-bins",
    "noise-multiplier": "0.7",
    "examples": "10000",
    "batch-size": "100",
    "delta": "1e-6",
    "epsilon": "3",
}
ASKED = f"/answer?{urlencode(FIELDS)}"


@pytest.mark.slow
def test_a_proof_is_shown_beside_its_run_alone(tmp_path):
    pytest.importorskip("flint", reason="proving needs the extra certify")
    from ballsbins import certify

    file = tmp_path / "proof.json"
    file.write_text(json.dumps(certify(Mechanism(BallsAndBins(20), 2.0), delta=1e-5).to_dict()))
    fields = FIELDS | {"noise-multiplier": "2", "batch-size": "500", "delta": "1e-5"}
    with serving("--certificate", str(file)) as (_, address):
        shown = {}
        for sigma in ("2", "2.1"):
            asked = f"/answer?{urlencode(fields | {'noise-multiplier': sigma})}"
            connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)
            with contextlib.closing(connection):
                connection.request("GET", asked)
                events = parsed(connection.getresponse().read().decode())
            shown[sigma] = next(event["html"] for event in events if event["kind"] == "headline")
    assert "is proved at δ = 1e-5; check with: ballsbins certify --check proof.json" in shown["2"]
    assert "proved" not in shown["2.1"]


def parsed(body):
    return [json.loads(line) for line in body.splitlines()]


def test_the_stream_has_the_python_answers(get):
    status, headers, body = get(ASKED)
    assert status == 200
    assert headers["content-type"].startswith("application/x-ndjson")
    events = parsed(body)
    run = Mechanism(BallsAndBins(100), 0.7)
    rows = {event["part"]: event for event in events if event["kind"] == "row"}
    assert set(rows) == {"balls-and-bins", "poisson", "shuffle", "deterministic"}
    (headline,) = [event["html"] for event in events if event["kind"] == "headline"]
    assert f"<output>{up(run.epsilon(1e-6).upper, 4)}</output>" in headline
    assert "With balls-and-bins batches" in headline
    curves = [event for event in events if event["kind"] == "curve"]
    assert sorted(curve["position"] for curve in curves) == [0, 1, 2, 3]
    (found,) = [event for event in events if event["kind"] == "calibration"]
    assert found["noise_multiplier"] == up(
        calibrate(BallsAndBins(100), epsilon=3.0, delta=1e-6).noise_multiplier, 5
    )
    (statement,) = [event for event in events if event["kind"] == "statement"]
    ours = run.statement(1e-6, num_examples=10000).text()
    before = ours.index("Software")  # what else has been imported here is not what the server has
    assert len(statement["text"]) > before
    assert statement["text"][:before] == ours[:before]
    assert events[0] == {
        "kind": "run",
        "steps": 100,
        "command": events[0]["command"],
        "max_batch_size": None,
        "warning": None,
    }
    assert events[-1] == {"kind": "end"}


def test_bad_input_names_its_field(get):
    status, _, body = get(f"/answer?{urlencode({**FIELDS, 'delta': '2'})}")
    assert status == 422
    words = json.loads(body)
    assert words["field"] == "delta"
    assert words["message"].startswith("δ is 2.0, but must be a number in (0, 1).")


def test_what_only_the_accountant_finds_wrong_names_its_field_too(get):
    _, _, body = get(f"/answer?{urlencode({**FIELDS, 'max-batch-size': '110', 'epsilon': '-1'})}")
    errors = {event["part"]: event for event in parsed(body) if event["kind"] == "error"}
    assert errors["balls-and-bins"]["field"] == "max-batch-size"
    assert "or more, or a larger δ" in errors["balls-and-bins"]["message"]
    assert errors["calibration"]["field"] == "epsilon"
    assert not {"shuffle", "statement"} & set(errors)
    assert "statement" not in {event["kind"] for event in parsed(body)}


def test_every_answer_has_the_headers(get):
    for path in ("/", "/assets/explorer.js", "/answer", "/nowhere"):
        _, headers, _ = get(path)
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "http" not in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert "server" not in headers
        assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 422),
        ({}, 422),
    ],
)
def test_only_our_own_page_may_ask(get, headers, status):
    assert get("/answer", headers=headers)[0] == status


def test_a_link_from_elsewhere_may_open_the_page(get):
    assert get("/", headers={"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"})[0] == 200
    assert get("/", headers={"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"})[0] == 403


def test_no_files_no_other_methods_no_long_addresses(get):
    for path in ("/assets/../routes.py", "/assets/..%2froutes.py", "/assets/%2e%2e%2froutes.py", "/etc/passwd",
                 "/assets//etc/passwd", "/assets/page.html"):  # fmt: skip
        assert get(path)[0] == 404
    status, _, words = get("/answer", method="POST")
    assert (status, words) == (405, "This server only answers questions: use GET.\n")
    assert get(f"/answer?delta={'1' * 3000}")[0] == 414


def test_too_many_questions_at_once_are_refused_with_the_reason():
    # nobody answers these within the life of this test
    slow = {
        "noise-multiplier": "0.5",
        "steps": "100000",
        "epochs": "1000",
        "delta": "1e-9",
        "epsilon": "0.01",
        "sampler": "balls-and-bins",
    }
    with serving() as (_, address):
        place = urlsplit(address)
        open_ = [http.client.HTTPConnection(place.hostname, place.port, timeout=60) for _ in range(9)]
        try:
            statuses = []
            for number, connection in enumerate(open_):
                slow["noise-multiplier"] = f"0.5{number}"
                connection.request("GET", f"/answer?{urlencode(slow)}")
                answer = connection.getresponse()
                statuses.append(answer.status)
            assert statuses == [200] * 8 + [503]
            assert "Ask again in a moment" in json.loads(answer.read())["message"]
        finally:
            for connection in open_:
                connection.close()
        for _ in range(100):  # whoever went away is no longer counted
            connection = http.client.HTTPConnection(place.hostname, place.port, timeout=60)
            connection.request("GET", "/answer?delta=2")
            status = connection.getresponse().status
            connection.close()
            if status != 503:
                break
            time.sleep(0.1)
        assert status == 422


def test_ctrl_c_ends_it_and_its_processes():
    with serving() as (process, address):
        place = urlsplit(address)
        connection = http.client.HTTPConnection(place.hostname, place.port, timeout=60)
        connection.request("GET", f"/answer?{urlencode({**FIELDS, 'epochs': '1000', 'delta': '1e-12'})}")
        connection.getresponse()
        children = descendants(process.pid)
        assert children
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=300)
        connection.close()
    assert process.returncode == 0
    assert out.strip() == "Stopped."
    assert err == ""
    deadline = time.monotonic() + 10
    while any(map(alive, children)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, children))


def test_ctrl_c_while_it_starts():
    with serving() as (process, _):
        process.send_signal(signal.SIGINT)  # its workers are not there yet
        _, err = process.communicate(timeout=300)
        assert "Traceback" not in err
        assert not any(map(alive, descendants(process.pid)))


def test_what_the_accountant_cannot_do_is_said(get):
    status, _, body = get(f"/answer?{urlencode({**FIELDS, 'noise-multiplier': '1e6'})}")
    assert status == 200
    assert parsed(body)[-1] == {"kind": "end"}


def descendants(pid):
    """The processes that a process started, and those that they started."""
    found = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    parents = {int(child): int(parent) for child, parent in (line.split() for line in found.splitlines())}
    family = {pid}
    while more := {child for child, parent in parents.items() if parent in family} - family:
        family |= more
    return family - {pid}


def alive(pid):
    found = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return bool(found.stdout.strip()) and not found.stdout.startswith("Z")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--port", "99999"), "--port is 99999"),
        (("--port", "-1"), "--port is -1"),
        (("--host", "no.such.host.invalid"), "--host is 'no.such.host.invalid'"),
        (("--host", "203.0.113.7"), "--host is '203.0.113.7'"),
    ],
)
def test_where_it_cannot_listen_is_said_in_words(words, reason):
    refused(words, reason)


def test_a_port_in_use():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused(("--port", str(port)), f"--port is {port}, but must be a free port")


def refused(words, reason):
    command = [BALLSBINS, "serve", "--no-browser", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=QUIET)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert reason in done.stderr


def test_it_listens_on_this_machine_alone():
    with serving() as (_, address):
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", address)
        # who listens on all addresses listens on this one too
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", urlsplit(address).port), timeout=10)
