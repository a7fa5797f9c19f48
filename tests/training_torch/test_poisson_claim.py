"""`ballsbins audit-run`: numbers from the accountant, checkpoints of Opacus runs, and no code from a file."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from typer.testing import CliRunner

from ballsbins import BallsAndBins, Deterministic, Mechanism, Poisson, Shuffle
from ballsbins.cli import app
from ballsbins.comparison import poisson_claim
from ballsbins.errors import DataError, InvalidInputError

pytestmark = pytest.mark.filterwarnings("ignore:Secure RNG turned off")


def answer(*words):
    done = CliRunner().invoke(app, ["audit-run", *map(str, words)])
    if done.exception is not None:
        raise done.exception
    return done.stdout


def data(*words):
    return json.loads(answer(*words, "--json"))


def test_the_numbers_are_those_of_the_mechanisms():
    found = data("-s", 0.8, "-T", 100, "-E", 2, "-d", 1e-6)
    assert found["run"] == {"noise_multiplier": 0.8, "steps": 100, "epochs": 2, "last_epoch_steps": None}
    for name, sampler in {
        "poisson": Poisson(100),
        "shuffle": Shuffle(100),
        "deterministic": Deterministic(100),
        "balls_and_bins": BallsAndBins(100),
    }.items():
        bound = Mechanism(sampler, 0.8, 2).epsilon(1e-6)
        assert found["epsilon"][name]["lower"] == bound.lower
        assert found["epsilon"][name]["upper"] == bound.upper
    assert found["report_is_false_if_shuffled"] is True


def test_words_say_at_least_and_at_most_and_round_against_us():
    text = " ".join(answer("-s", 0.5, "-T", 10000, "-d", 1e-6).split())
    assert "Poisson samples (what was reported) at most 1.95323" in text
    assert "the claim is false: ε is at least 10.99, 5.6 times the claim" in text
    assert "without training again is ε ≤ 11" in text
    assert "balls-and-bins, at the same noise at most 1.94189" in text
    assert "zero-out adjacency" in text


def test_where_nothing_is_proved_it_says_so():
    findings = poisson_claim(
        Mechanism(Poisson(1), 0.5), 1e-6
    )  # one batch: shuffled, Poisson and fixed are the same
    assert not findings.false_if_shuffled
    assert "nobody has proved the claim, nor disproved it" in " ".join(
        answer("-s", 0.5, "-T", 1, "-d", 1e-6).split()
    )


def shuffled_run(path, steps, accountant="prv", **save):
    """Train as people do: shuffled batches, Opacus' own accounting."""
    engine = PrivacyEngine(accountant=accountant)
    model = nn.Linear(3, 1)
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        data_loader=DataLoader(TensorDataset(torch.randn(70, 3)), batch_size=10, shuffle=True),
        noise_multiplier=0.9,
        max_grad_norm=1.0,
        poisson_sampling=False,
    )
    while steps:
        for (batch,) in loader:
            if steps:
                optimizer.zero_grad()
                model(batch).sum().backward()
                optimizer.step()
                steps -= 1
    engine.save_checkpoint(path=path, module=model, optimizer=optimizer, **save)
    return engine


@pytest.mark.parametrize("accountant", ["prv", "rdp"])
def test_a_checkpoint_of_opacus_tells_the_run(tmp_path, accountant):
    engine = shuffled_run(tmp_path / "run.pt", 17, accountant)
    found = data("--opacus-checkpoint", tmp_path / "run.pt", "-d", 1e-5)
    assert found["run"] == {"noise_multiplier": 0.9, "steps": 7, "epochs": 3, "last_epoch_steps": 3}
    upper = found["epsilon"]["poisson"]["upper"]
    if accountant == "rdp":  # an upper bound of the same thing, by another library
        assert upper <= engine.get_epsilon(1e-5)
    if accountant == "prv":
        assert upper == pytest.approx(engine.get_epsilon(1e-5), rel=0.02)
    assert found["report_is_false_if_shuffled"] is True
    torch.save(engine.accountant.state_dict(), tmp_path / "accountant.pt")
    assert data("--opacus-checkpoint", tmp_path / "accountant.pt", "-d", 1e-5) == found


def test_a_checkpoint_of_ours_needs_no_guess(training, weighted, tmp_path):
    engine = PrivacyEngine(accountant="ballsbins")
    run = training(Mechanism(BallsAndBins(5, redraw=False), 1.0, epochs=3), weighted(20), engine=engine)
    run.gradients()
    run.step(next(iter(run.loader)))
    engine.save_checkpoint(path=tmp_path / "ours.pt", module=run.model)
    found = data("--opacus-checkpoint", tmp_path / "ours.pt", "-d", 1e-5)
    assert Mechanism.from_dict(found["mechanism"]) == run.loader.as_run()
    assert found["epsilon"]["upper"] == engine.get_epsilon(1e-5)
    assert "batched and accounted for by ballsbins" in answer(
        "--opacus-checkpoint", tmp_path / "ours.pt", "-d", 1e-5
    )


class Trap:
    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return Path.touch, (self.target,)


def test_code_in_a_checkpoint_is_not_run(tmp_path):
    touched = tmp_path / "touched"
    shuffled_run(tmp_path / "trap.pt", 3, checkpoint_dict={"extra": Trap(touched)})
    with pytest.raises(DataError, match=r"not a checkpoint of plain data.*can run any code"):
        answer("--opacus-checkpoint", tmp_path / "trap.pt", "-d", 1e-5)
    assert not touched.exists()
    torch.load(tmp_path / "trap.pt", weights_only=False)  # the trap does work
    assert touched.exists()


def saved(path, history, **more):
    torch.save({"history": history, "mechanism": "prv"} | more, path)
    return path


def test_bad_files_and_histories_are_named(tmp_path):
    def ask(path, *words):
        return answer("--opacus-checkpoint", path, "-d", 1e-5, *words)

    file = tmp_path / "file.pt"
    with pytest.raises(DataError, match="There is no file"):
        ask(file)
    with pytest.raises(DataError, match="cannot be read"):
        ask(tmp_path)
    file.write_bytes(b"")
    with pytest.raises(DataError, match="not a checkpoint"):
        ask(file)
    torch.save({"weights": torch.ones(2)}, file)
    with pytest.raises(DataError, match="holds no accountant"):
        ask(file)
    with pytest.raises(DataError, match="has counted no step"):
        ask(saved(file, []))
    with pytest.raises(DataError, match="is not a list of"):
        ask(saved(file, [(1.0, 0.1)]))
    for count in (3.7, -1, "5", None):  # nothing is rounded, and no entry takes steps back
        with pytest.raises(DataError, match="is not a list of"):
            ask(saved(file, [(1.0, 0.1, 5), (1.0, 0.1, count)]))
    for ours in ({"schema": 1}, {"mechanism": 3}, None):
        with pytest.raises(DataError, match="names no mechanism"):
            ask(saved(file, [(1.0, 0.1, 5)], ballsbins=ours))
    torch.save({"history": [(1.0, 0.1, 5)], "mechanism": "[bold]prv[/nothing]"}, file)
    assert "an Opacus '[bold]prv[/nothing]' accountant" in " ".join(ask(file).split())
    with pytest.raises(InvalidInputError, match="of one noise multiplier and one sample rate"):
        ask(saved(file, [(1.0, 0.1, 5), (2.0, 0.1, 5)]))
    with pytest.raises(InvalidInputError, match=r"is 0\.3, but must be 1 / \(number of batches"):
        ask(saved(file, [(1.0, 0.3, 5)]))
    text = " ".join(ask(saved(file, [(1.0, 0.3, 5)]), "-T", 4).split())
    assert re.search(r"4 steps per epoch \(from [^)]*\), 2 epochs, the last stopped after 1 step", text)
    text = " ".join(ask(saved(file, [(1.0, 0.1, 4), (1.0, 0.1, 6)])).split())
    assert re.search(r"10 steps per epoch \(from [^)]*\), 1 epoch ", text)
    with pytest.raises(InvalidInputError, match="--epochs is 3, but must be left out"):
        ask(file, "-E", 3)
    with pytest.raises(InvalidInputError, match="--claimed-epsilon must be given, or"):
        answer("-d", 1e-5, "-T", 5)


def test_every_rate_of_a_loader_is_understood():
    """1/(1/T) is not T for some T in floating point, and int() of it is T − 1: Opacus loses a step there."""
    from ballsbins.training.opacus_history import steps_an_epoch

    assert all(steps_an_epoch(1 / steps) == steps for steps in range(1, 20_000))
    assert any(int(1 / (1 / steps)) != steps for steps in range(1, 20_000))


def test_the_shell_sees_exit_code_2_and_no_traceback(tmp_path):
    command = [str(Path(sys.executable).parent / "ballsbins"), "audit-run", "-d", "1e-5"]
    done = subprocess.run(
        [*command, "--opacus-checkpoint", str(tmp_path / "none")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert re.match(r"ballsbins: There is no file", done.stderr)
    assert "Traceback" not in done.stderr
