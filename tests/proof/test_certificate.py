"""Certificates: what is written is read back, what was changed is refused, and another program confirms them."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import math
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ballsbins import BallsAndBins, InvalidInputError, Mechanism, Poisson, Shuffle, certify
from ballsbins.cli import app
from ballsbins.proof import checker
from ballsbins.proof.certificate import Certificate, rounded
from ballsbins.proof.certify import check, fraction, overflow
from ballsbins.report import Card

SOURCE = Path(checker.__file__)


@pytest.fixture(scope="module")
def made():
    return certify(Mechanism(BallsAndBins(1000), 0.35), 10.0)


def signed(saved):
    """The certificate with a digest that fits, as somebody who wants to deceive would make it."""
    body = {key: value for key, value in saved.items() if key != "digest"}
    text = json.dumps(body, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return {**body, "digest": hashlib.sha256(text.encode()).hexdigest()}


def test_what_it_states(made):
    assert (made.lower, made.upper) == ("1.3312258e-6", "1.3312260e-6")
    bound = made.bound
    assert bound.kind == "proved"
    assert bound.lower <= 1.331225910870904e-6 <= bound.upper
    assert set(bound.directions) == {"remove", "add"}
    assert made.directions["remove"].contour["bits"] > 60


def test_written_and_read_back(made):
    text = json.dumps(made.to_dict())
    assert len(text) < 3000
    again = Certificate.from_dict(json.loads(text))
    assert again.to_dict() == made.to_dict()
    assert check(again) == "by an independent program, along another contour"


def digits_of(saved, path=()):
    """Every place in the certificate where a digit stands, as (path, position)."""
    if isinstance(saved, dict):
        for key, value in saved.items():
            yield from digits_of(value, (*path, key))
    elif isinstance(saved, list):
        for key, value in enumerate(saved):
            yield from digits_of(value, (*path, key))
    elif saved is not None and not isinstance(saved, bool):
        yield from ((path, i) for i, letter in enumerate(str(saved)) if letter.isdigit())


def test_one_digit_changed_is_refused(made):
    """Wherever the digit stands."""
    saved = made.to_dict()
    for path, position in digits_of(saved):
        changed = copy.deepcopy(saved)
        place = changed
        for key in path[:-1]:
            place = place[key]
        old = place[path[-1]]
        text = str(old)
        text = text[:position] + str((int(text[position]) + 1) % 10) + text[position + 1 :]
        place[path[-1]] = text if isinstance(old, str) else type(old)(text)
        if changed == saved:
            continue  # a digit beyond those of a double
        with pytest.raises(InvalidInputError):
            Certificate.from_dict(changed)
        with pytest.raises(ValueError, match="changed after it was written"):
            checker.check(changed)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda c: c["directions"]["remove"].update(upper="1.3312258e-6"), "not proved"),
        (lambda c: c["directions"]["remove"].update(lower="1.3312260e-6"), "not proved"),
        (lambda c: c["directions"]["remove"].update(upper="1.4e-6"), "wider"),
        (lambda c: c["delta"].update(upper="1.3312259e-6"), "larger of the two"),
        (lambda c: c["mechanism"].update(noise_multiplier=0.34), "not proved"),
        (lambda c: c["mechanism"].update(epochs=2), "one epoch"),
        (lambda c: c["mechanism"]["sampler"].update(steps=1001), "not proved"),
        (lambda c: c["mechanism"]["sampler"].update(max_batch_size=10), "truncation"),
        (lambda c: c.update(epsilon=9.99), "not proved"),
        (lambda c: c.update(target_delta=1e-6), "target"),
        (
            lambda c: c["directions"]["remove"].update(witness=c["directions"]["remove"]["contour"]),
            "own contour",
        ),
        (lambda c: c["directions"]["remove"]["witness"].update(nodes=5), "not proved"),
        (lambda c: c["directions"]["remove"]["witness"].update(step=0.3), "not proved"),
        (lambda c: c["directions"]["remove"]["witness"].update(step=-0.05), "between"),
        (lambda c: c["directions"]["remove"]["witness"].update(edge=1.6), "between"),
        (lambda c: c["directions"]["remove"]["witness"]["inner"][0].update(last=10), "not proved"),
        (lambda c: c["directions"]["remove"]["witness"]["inner"][0].update(strip=2.0), "strip"),
        (lambda c: c["directions"]["remove"]["witness"]["inner"][0].update(step=1.0), "not proved"),
        (lambda c: c["directions"]["remove"]["witness"].update(bits=40), "not proved"),
    ],
)
def test_a_forged_certificate_is_refused(made, change, reason):
    """Even with a digest that fits: the checker computes for itself."""
    forged = copy.deepcopy(made.to_dict())
    change(forged)
    with pytest.raises(ValueError, match=reason):
        checker.check(signed(forged))


def test_the_checker_stands_alone(made, tmp_path):
    """One page, python-flint only: it runs without this package."""
    text = SOURCE.read_text()
    assert len(text.splitlines()) <= 250
    assert "ballsbins" not in "".join(line for line in text.splitlines() if "import" in line)
    file = tmp_path / "proof.json"
    file.write_text(json.dumps(made.to_dict()))
    command = [sys.executable, "-P", str(SOURCE), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, env={"PATH": ""}, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ("PROVED: {'lower': '1.3312258e-6', 'upper': '1.3312260e-6'} at epsilon = 10.0\n")
    file.write_text(json.dumps(signed({**made.to_dict(), "epsilon": 9.0})))
    done = subprocess.run(command, capture_output=True, text=True, env={"PATH": ""}, check=False)
    assert done.returncode == 1
    assert "REFUSED" in done.stderr


@pytest.mark.parametrize("mechanism", [
    Mechanism(BallsAndBins(100), 1.0),  # a line checks a hyperbola
    Mechanism(BallsAndBins(10**5), 3.0),  # a hyperbola checks a line
    Mechanism(BallsAndBins(20, redraw=False), 2.0, 3, 7),
    Mechanism(BallsAndBins(1), 3.0),
])  # fmt: skip
def test_every_kind_of_witness_is_accepted(mechanism):
    made = certify(mechanism, 0.01)
    check(made)
    assert all(part.contour != part.witness for part in made.directions.values())


def test_epsilon_at_delta():
    mechanism = Mechanism(BallsAndBins(1000), 0.5)
    made = certify(mechanism, delta=1e-6)
    assert Fraction(made.upper) <= Fraction(1e-6)
    exact = float(mechanism.epsilon(1e-6).value)
    assert exact < made.epsilon < exact * (1 + 1e-5)


TRUNCATED = [
    Mechanism(BallsAndBins(10, max_batch_size=25, num_examples=100), 2.0),
    Mechanism(Poisson(10, max_batch_size=27, num_examples=100), 2.0),
]


@pytest.mark.parametrize("mechanism", TRUNCATED, ids=["balls-and-bins", "poisson"])
def test_truncated_batches_have_a_proved_upper_bound(mechanism):
    """Against the accountant, whose penalty is summed and not bounded; and against every term, in fractions."""
    sampler = mechanism.sampler
    n, q = sampler.num_examples, Fraction(1, sampler.steps)
    tail = sum(math.comb(n, j) * q**j * (1 - q) ** (n - j) for j in range(sampler.max_batch_size + 1, n + 1))
    bound = fraction(overflow(mechanism).upper())
    assert mechanism.batches_drawn * tail <= bound <= Fraction(11, 10) * mechanism.batches_drawn * tail
    made, known = certify(mechanism, 1.0), mechanism.delta(1.0)
    assert made.lower == "0"
    assert known.value <= float(made.upper) <= 1.3 * known.upper
    again = Certificate.from_dict(json.loads(json.dumps(made.to_dict())))
    assert check(again) == "by computing it again"
    better = {name: dataclasses.replace(part, upper="1e-9") for name, part in made.directions.items()}
    with pytest.raises(InvalidInputError, match="confirmed"):
        check(dataclasses.replace(made, directions=better))
    claimed = dataclasses.replace(made, method="one epoch")
    with pytest.raises(InvalidInputError, match="confirmed"):
        check(claimed)


def test_epsilon_of_truncated_batches():
    mechanism = Mechanism(BallsAndBins(10, max_batch_size=40, num_examples=100), 0.7)
    made = certify(mechanism, delta=1e-5)
    assert Fraction(made.upper) <= Fraction(1e-5)
    assert made.epsilon <= 1.01 * mechanism.epsilon(1e-5).upper


@pytest.mark.parametrize(("value", "digits", "down", "up"), [
    (Fraction(1, 3), 3, "3.33e-1", "3.34e-1"), (Fraction(0), 3, "0", "0"), (Fraction(1, 1000), 4, "1e-3", "1e-3"),
    (Fraction(99999, 100000), 3, "9.99e-1", "1e0"), (Fraction(1, 10**400), 3, "1e-400", "1e-400"),
    (Fraction(1, 3 * 10**400), 3, "3.33e-401", "3.34e-401"),
])  # fmt: skip
def test_decimals_are_rounded_outward(value, digits, down, up):
    assert (rounded(value, digits, -1), rounded(value, digits, 1)) == (down, up)


@pytest.mark.parametrize(
    ("question", "says"),
    [
        (lambda: certify(Mechanism(BallsAndBins(10), 1.0)), "one number and one None"),
        (lambda: certify(Mechanism(BallsAndBins(10), 1.0), 1.0, delta=1e-6), "one number and one None"),
        (lambda: certify(Mechanism(BallsAndBins(10), 1.0), 40.0), "epsilon is 40"),
        (lambda: certify(Mechanism(BallsAndBins(10), 1.0), delta=2.0), "delta is 2"),
        (lambda: certify(Mechanism(BallsAndBins(10), 0.01), 1.0), "noise"),
        (lambda: certify(Mechanism(BallsAndBins(10), 1.0), 1.0, tolerance=0.1), "tolerance is 0.1"),
        (lambda: certify(Mechanism(Shuffle(10), 1.0), 1.0), "sampler is Shuffle"),
    ],
)
def test_bad_questions_are_refused(question, says):
    with pytest.raises(InvalidInputError, match=says):
        question()


def test_command(tmp_path):
    file = tmp_path / "proof.json"
    run = CliRunner().invoke(app, ["certify", "-s", "0.5", "-T", "10", "-e", "2", "--json", str(file)])
    assert run.exit_code == 0, run.output
    assert "is proved at ε = 2.0" in run.output
    again = CliRunner().invoke(app, ["certify", "--check", str(file)])
    assert again.exit_code == 0
    assert "Confirmed: by an independent program" in again.output
    saved = json.loads(file.read_text())
    file.write_text(json.dumps({**saved, "epsilon": 1.9}))
    with pytest.raises(InvalidInputError, match="digest"):
        CliRunner().invoke(app, ["certify", "--check", str(file)], catch_exceptions=False)


@pytest.mark.parametrize("options", [
    ["-s", "0.5", "-T", "10"], ["-s", "0.5", "-T", "10", "-e", "1", "-d", "1e-6"], ["-T", "10", "-e", "1"],
    ["--check", "nowhere.json"], ["--check", "nowhere.json", "-e", "1"], ["-s", "0.5", "-T", "10", "-e", "x"],
])  # fmt: skip
def test_bad_options_end_with_2(options):
    done = subprocess.run(
        [sys.executable, "-m", "ballsbins", "certify", *options],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_a_card_its_check_its_statement_and_its_page_carry_a_certificate(tmp_path):
    card, file = tmp_path / "card.json", tmp_path / "proof.json"
    mechanism = Mechanism(BallsAndBins(20), 2.0)
    Card(mechanism, 1e-5).write(card)
    file.write_text(json.dumps(certify(mechanism, delta=1e-5).to_dict()))
    shown = CliRunner().invoke(app, ["statement", "--from", str(card), "--certificate", str(file)])
    assert shown.exit_code == 0, shown.output
    assert "is proved at δ = 1e-5; check with: ballsbins certify --check proof.json" in " ".join(
        shown.output.split()
    )
    checked = CliRunner().invoke(app, ["check", str(card), "-m", "2000", "--certificate", str(file)])
    assert "Certificate: ε ≤" in checked.output
    page, proof = (
        tmp_path / "page.html",
        "is proved at δ = 1e-5; check with: ballsbins certify --check proof.json",
    )
    for run in (["--from", str(card)], ["-s", "2", "-T", "20", "-d", "1e-5", "--alone"]):
        made = CliRunner().invoke(app, ["page", *run, "--certificate", str(file), "--out", str(page)])
        assert made.exit_code == 0, made.output
        assert proof in page.read_text(encoding="utf-8")
    for run in (
        ["-s", "2.1", "-T", "20", "-d", "1e-5"],
        ["-s", "2", "-T", "20", "-d", "1e-6"],
        2 * ["--from", str(card)],
    ):
        with pytest.raises(InvalidInputError, match="certificate"):
            CliRunner().invoke(
                app,
                ["page", *run, "--certificate", str(file), "--out", str(page)],
                catch_exceptions=False,
            )
    for other in (Mechanism(BallsAndBins(21), 2.0), mechanism):
        Card(other, 1e-5 if other != mechanism else 1e-6).write(card)
        with pytest.raises(InvalidInputError, match="certificate"):
            CliRunner().invoke(
                app, ["check", str(card), "-m", "2000", "--certificate", str(file)], catch_exceptions=False
            )
