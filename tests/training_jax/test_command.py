"""`ballsbins train` as a user runs it: to the end, killed and resumed, from batch files, and with bad input."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from ballsbins import BallsAndBins, Key
from ballsbins.batch_files import BatchFiles
from ballsbins.batch_files.build import build
from ballsbins.batch_files.build_plan import plan_build
from ballsbins.batch_files.inputs import open_inputs
from ballsbins.cli import app, main
from ballsbins.data.dataset import Dataset
from ballsbins.errors import DataError
from ballsbins.report import Card
from ballsbins.training.jax.checkpoint import load
from ballsbins.training.jax.trainer import train
from ballsbins.training.training_plan import TrainingPlan

from ..batch_files.s3_store import serving

SMALL = ["--embedding-dim", "3", "--hidden", "8,6", "--learning-rate", "0.005", "--clip-norm", "0.5"]


def run(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A prepared data set of 2,400 training examples, and a key."""
    path = tmp_path_factory.mktemp("command")
    run("data", "generate", path / "ads.tsv", "-n", 3000)
    run("data", "prepare", path / "ads.tsv", "--out", path / "data", "--max-buckets", 20)
    run("key", path / "key")
    return path


def options(place, out, *more):
    """The usual options, unless `more` has others in their place."""
    usual = ["--data", place / "data", "--key-file", place / "key", "--out", out, "--delta", "1e-5", *SMALL]
    pairs = [usual[k : k + 2] for k in range(0, len(usual), 2) if usual[k] not in more]
    return ["train", *(word for pair in pairs for word in pair), *more]


@pytest.fixture(scope="module")
def whole(place):
    """One run to the end, by the command; "begun" holds its first step, for others to continue the same run."""
    command = options(
        place, place / "whole", "--noise-multiplier", 0.9, "--steps", 300, "--max-batch-size", 60
    )
    run(*command, "--stop-after", 1)
    shutil.copytree(place / "whole", place / "begun")
    shown = run(*command)
    return shown.output, load(place / "whole" / "model.npz")[1]


@pytest.fixture(scope="module")
def built(place):
    """Batches in files, as they are and padded."""
    for name, padding in (("batches", []), ("padded", ["--pad"])):
        run(
            "build", place / "data" / "train", "--out", place / name, "--key-file", place / "key",
            "--steps", 300, "--max-batch-size", 60, "--examples", 2400, *padding,
        )  # fmt: skip
    return place / "batches", place / "padded"


def same(first, second):
    return all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in zip(first, second, strict=True))


def test_a_run_says_what_was_run(place, whole):
    shown, _ = whole
    card = Card.read(place / "whole" / "card.json")
    assert card.mechanism.sampler.steps == 300
    assert card.key_secret
    assert "AUC on the test split" in shown
    assert "at δ = 1e-5" in shown
    assert (place / "whole" / "statement.md").stat().st_size > 1000


def test_the_target_is_met(place):
    answer = json.loads(
        run(
            *options(place, place / "target", "--epsilon", 3, "--steps", 300, "--stop-after", 4, "--json")
        ).stdout
    )
    assert answer["steps"] == 4
    assert answer["card"]["planned"]["last_epoch_steps"] is None
    assert answer["card"]["mechanism"]["last_epoch_steps"] == 4
    planned = Card.read(place / "target" / "card.json").planned
    assert 2.99 < planned.epsilon(1e-5).upper <= 3.0
    assert planned.sampler.max_batch_size is not None


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_killed_at_any_point_and_resumed_has_the_same_bits(place, whole):
    """Killed outright at two places, one of them likely while a checkpoint is being written; then to the end."""
    out = place / "killed"
    shutil.copytree(place / "begun", out)
    command = options(place, out, "--noise-multiplier", 0.9, "--steps", 300, "--max-batch-size", 60)
    command = [
        sys.executable,
        "-c",
        "from ballsbins.cli import main; main()",
        *map(str, command),
        "--checkpoint-seconds",
        "0",
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    taken = [1]
    for after in (0.0, 0.05):
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment
        )
        deadline = time.monotonic() + 300
        while steps_of(out) <= taken[-1] and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(after)
        process.kill()
        _, errors = process.communicate()
        assert process.returncode == -signal.SIGKILL, errors.decode()
        taken.append(steps_of(out))
        assert taken[-2] < taken[-1] < 300
    subprocess.run(command, check=True, capture_output=True, env=environment)
    assert same(load(out / "model.npz")[1], whole[1])
    assert not list(out.glob(".*"))  # nothing half written is left


def steps_of(out):
    try:
        return load(out / "checkpoint.npz")[0]["steps"]
    except Exception:  # not there yet
        return 0


def test_batch_files_give_the_same_result(place, tmp_path):
    """Under a seed, whose noise is not bound to the files; from memory, from files and from padded files."""
    sampler = BallsAndBins(30, max_batch_size=140, num_examples=2400)
    plan = TrainingPlan(sampler, 1, 0.9, clip_norm=0.5, embedding_dim=3, hidden=(8, 6))
    data = Dataset.open(place / "data")
    found = [train(data, plan, key=7, stop_after=9).parameters]
    for pad in (False, True):
        table = open_inputs([str(place / "data" / "train")])
        build(plan_build(table, sampler, pad=pad), tmp_path / str(pad), Key.from_seed(7))
        files = BatchFiles.open(tmp_path / str(pad))
        found.append(train(data, plan, key=7, stop_after=9, batches=files).parameters)
    leaves = [jax.tree.leaves(each) for each in found]
    assert same(leaves[0], leaves[1])
    assert same(leaves[0], leaves[2])


def test_training_on_batch_files_is_their_run(place, built, whole):
    """Files and training share one id; two trainings on the same files are the same run, and the card shows it."""
    key = Key.from_file(place / "key")
    manifest = BatchFiles.open(built[0]).manifest
    for name in ("first", "second"):
        run(
            *options(place, place / name, "--noise-multiplier", 0.9, "--batches", built[0], "--stop-after", 5)
        )
        card = Card.read(place / name / "card.json")
        assert card.run == manifest.run
        assert card.key_commitment == manifest.key_commitment == key.commitment()
    other = Card.read(place / "whole" / "card.json")
    assert other.run != manifest.run
    assert other.key_commitment == key.commitment()


def test_epochs_that_are_not_built_yet_are_told_before_training(place, built, tmp_path):
    few = ("--noise-multiplier", 0.9, "--batches", built[0], "--stop-after", 1)
    assert "not built" not in run(*options(place, tmp_path / "one", *few)).output
    more = run(*options(place, tmp_path / "more", *few, "--epochs", 10**6)).output
    assert f"Epoch {len(BatchFiles.open(built[0]).epochs)} is not built yet" in more


def test_batches_in_an_object_store(place, tmp_path):
    """What `build --out s3://…` wrote, `train --batches s3://…` reads, step by step; a damaged part is named."""
    files, out = "s3://batches/ads", tmp_path / "out"
    with serving() as store:
        made = run(
            "build", place / "data" / "train", "--out", files, "--key-file", place / "key",
            "--steps", 300, "--max-batch-size", 60, "--examples", 2400,
        )  # fmt: skip
        assert made.exit_code == 0
        trained = run(*options(place, out, "--noise-multiplier", 0.9, "--batches", files, "--stop-after", 3))
        assert trained.exit_code == 0
        assert Card.read(out / "card.json").run == BatchFiles.open(files).manifest.run
        assert any(asked.startswith("GET") and "/part-000000" in asked for asked in store.requests)
        part = next(place for place in BatchFiles.open(files).paths(0) if place.name.startswith("part-"))
        part.write(bytes(len(part.read_bytes())))
        again = options(place, tmp_path / "no", "--noise-multiplier", 0.9, "--batches", files)
        with pytest.raises(DataError, match=f"'{part}' is damaged"):
            run(*again, "--stop-after", 3)


def test_a_file_of_batches_that_changed_is_noticed(place, built, tmp_path, monkeypatch, capsys):
    files = tmp_path / "files"
    shutil.copytree(built[0], files)
    arguments = options(place, tmp_path / "out", "--noise-multiplier", 0.9, "--batches", files)
    run(*arguments, "--stop-after", 5)
    part = next((files / "epoch-000000").glob("part-*.parquet"))
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)
    monkeypatch.setattr(sys, "argv", ["ballsbins", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert "something has changed: the training data" in capsys.readouterr().err


def test_the_bar_shows_steps_speed_and_a_loss_that_is_not_private(data, plan):
    from ballsbins.cli.progress import training_bar

    screen = Console(file=io.StringIO(), force_terminal=True, width=120)
    with training_bar(screen, "a title") as show:
        train(data, plan, key=1, progress=show)
        time.sleep(0.3)  # until it is drawn
    shown = screen.file.getvalue()
    for words in ("a title", "24/24 steps", "examples/s", "(not private)"):
        assert words in shown


def test_the_first_interrupt_stops_after_the_step_at_hand(place):
    from ballsbins.cli.progress import stopping

    with stopping() as asked:
        assert not asked()
        signal.raise_signal(signal.SIGTERM)
        assert asked()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--steps", "300"], "--epsilon must be given"),
        (["--steps", "300", "--epsilon", "3", "--noise-multiplier", "1"], "--epsilon is 3.0"),
        (["--epsilon", "3"], "--batch-size must be given"),
        (["--steps", "300", "--epsilon", "3", "--stop-after", "0"], "--stop-after is 0"),
        (["--steps", "2401", "--noise-multiplier", "1"], "number of training examples is 2400"),
        (["--steps", "300", "--noise-multiplier", "0.9", "--hidden", "8;6"], "--hidden is '8;6'"),
        (
            ["--steps", "300", "--noise-multiplier", "0.9", "--max-batch-size", "big"],
            "--max-batch-size is 'big'",
        ),
        (["--steps", "300", "--noise-multiplier", "0.9", "--max-batch-size", "9"], "Use --max-batch-size "),
        (["--steps", "300", "--noise-multiplier", "0.9", "--key-file", "nowhere"], "key file 'nowhere'"),
        (["--steps", "300", "--noise-multiplier", "0.9", "--data", "nowhere"], "'nowhere'"),
        (["--batches", "nowhere", "--noise-multiplier", "0.9"], "'nowhere'"),
    ],
)
def test_bad_input_ends_with_one_sentence(place, tmp_path, monkeypatch, capsys, more, message):
    monkeypatch.setattr(sys, "argv", ["ballsbins", *map(str, options(place, tmp_path / "out", *more))])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert not (tmp_path / "out").exists()


def test_batch_files_of_another_run_are_refused(place, built, tmp_path, monkeypatch, capsys):
    run("key", place / "other")
    for more, message in (
        (["--steps", "200"], "300, as in the batch files"),
        (["--key-file", place / "other"], "Resume with the key of that run"),
    ):
        arguments = options(place, tmp_path / "out", "--noise-multiplier", 0.9, "--batches", built[0], *more)
        monkeypatch.setattr(sys, "argv", ["ballsbins", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        assert stopped.value.code == 2
        assert message in capsys.readouterr().err


def test_a_finished_run_of_another_plan_is_refused(place, whole, monkeypatch, capsys):
    before = {file.name: file.read_bytes() for file in (place / "whole").iterdir()}
    arguments = options(
        place, place / "whole", "--noise-multiplier", 1.1, "--steps", 300, "--max-batch-size", 60
    )
    monkeypatch.setattr(sys, "argv", ["ballsbins", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert "--noise-multiplier is 1.1, but must be 0.9" in capsys.readouterr().err
    assert before == {file.name: file.read_bytes() for file in (place / "whole").iterdir()}  # nothing is lost
