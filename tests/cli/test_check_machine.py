"""`ballsbins check-machine`: what it tests, and that a failure is seen and told."""

import json

from typer.testing import CliRunner

from ballsbins.cli import app, prepare
from ballsbins.noise import draw as known_answers
from ballsbins.training.machine_check import MachineCheck

GOOD = MachineCheck("cpu", row_local=True, reproducible=True)


def invoke(*words):
    return CliRunner().invoke(app, ["check-machine", *words])


def test_this_machine_passes():
    done = invoke("--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["covered"]
    assert {check["what"] for check in found["checks"]} >= {
        "noise by numba",
        "noise by xla",
        "noise by numpy",
    }
    assert any(check["what"].startswith("JAX on cpu") for check in found["checks"])
    assert any(check["what"].startswith("PyTorch on cpu") for check in found["checks"])


def test_every_failure_ends_with_exit_code_1_and_its_name(monkeypatch):
    monkeypatch.setattr(prepare, "_jax", lambda: GOOD)
    monkeypatch.setattr(prepare, "_torch", lambda: None)
    monkeypatch.setattr(known_answers, "right", lambda executor: True)
    assert "Floating point is covered on this machine" in invoke().stdout
    for wrong, words in (
        (MachineCheck("cpu", row_local=False, reproducible=True), "keeps examples apart"),
        (MachineCheck("cpu", row_local=True, reproducible=False), "repeats its sums"),
        (MachineCheck("cpu", row_local=True, reproducible=True, precise=False), "within their error bound"),
        (MachineCheck("gpu (card)", row_local=True, reproducible=True), "is a processor that was tested"),
    ):
        monkeypatch.setattr(prepare, "_jax", lambda wrong=wrong: wrong)
        done = invoke()
        assert done.exit_code == 1
        assert words in " ".join(done.stderr.split())
        assert "NO" in done.stdout
    monkeypatch.setattr(prepare, "_jax", lambda: GOOD)
    monkeypatch.setattr(known_answers, "right", lambda executor: executor != "numpy")
    done = invoke()
    assert done.exit_code == 1
    assert "noise by numpy gives the known integers" in " ".join(done.stderr.split())


def test_known_answers_see_a_wrong_integer(monkeypatch):
    own = known_answers.rounded_normals

    def off_by_one(*arguments, **options):
        drawn = own(*arguments, **options)
        drawn[12345] += 1
        return drawn

    assert known_answers.right("numpy")
    monkeypatch.setattr(known_answers, "rounded_normals", off_by_one)
    assert not known_answers.right("numpy")


def test_wrong_noise_is_refused_wherever_it_is_drawn(monkeypatch):
    import pytest

    from ballsbins.errors import RunError

    known_answers.require_right_noise()
    known_answers.require_right_noise.cache_clear()
    monkeypatch.setattr(known_answers, "right", lambda executor: False)
    with pytest.raises(RunError, match="does not give the known integers"):
        known_answers.require_right_noise()
    monkeypatch.undo()
    known_answers.require_right_noise.cache_clear()
