"""One key file serves many runs, and every directory of batch files and every assignment belongs to one of them."""

import fcntl
import json
import os
import re
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from ballsbins import BallsAndBins, Key, Poisson
from ballsbins.batch_files import BatchFiles
from ballsbins.batch_files import build as local
from ballsbins.batch_files.assignments import RUN_METADATA, assign, plan_assignment
from ballsbins.batch_files.build import build
from ballsbins.batch_files.build_plan import plan_build
from ballsbins.batch_files.epoch_directory import remove_epoch
from ballsbins.batch_files.inputs import open_inputs
from ballsbins.cli import app, main
from ballsbins.errors import DataError, SecretError
from ballsbins.samplers.key import SEED_RUN

from .conftest import ROWS

MASTER = Key(bytes(range(7, 39)))
SAMPLER = BallsAndBins(40)
RUN_ID = re.compile(r"[0-9a-f]{32}")
MOMENT = 0.3  # seconds in which a process that does not wait would have gone on


@pytest.fixture(scope="module")
def made(folder):
    return plan_build(open_inputs([folder]), SAMPLER)


@pytest.fixture
def key_file(tmp_path, monkeypatch):
    monkeypatch.delenv("BALLSBINS_KEY_FILE", raising=False)
    MASTER.save(tmp_path / "key")
    return tmp_path / "key"


def answer(*words):
    done = CliRunner().invoke(app, [str(word) for word in words])
    if done.exception is not None:
        raise done.exception
    return done.stdout


def rows_of(directory, epoch):
    return [batch["row"].to_pylist() for batch in BatchFiles.open(directory).batches(epoch)]


def rows_in_memory(key, epoch):
    return [indices.tolist() for indices in SAMPLER.batches(ROWS, key, epoch)]


@contextmanager
def held(directory):
    """Lock a directory as a process does that publishes or removes an epoch."""
    descriptor = os.open(directory, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(descriptor)


def test_two_directories_of_one_key_are_two_runs(made, tmp_path):
    runs = [build(made, tmp_path / name, MASTER).run for name in ("a", "b")]
    assert all(map(RUN_ID.fullmatch, runs))
    assert runs[0] != runs[1]
    first, second = (rows_of(tmp_path / name, 0) for name in ("a", "b"))
    assert not any(one == other for one, other in zip(first, second, strict=True))
    assert [first, second] == [rows_in_memory(MASTER.for_run(run), 0) for run in runs]


def test_epochs_built_one_by_one_are_one_run(made, tmp_path):
    run = build(made, tmp_path / "out", MASTER, 3).run
    assert [build(made, tmp_path / "out", MASTER, epoch).run for epoch in (0, 3, 1)] == [run] * 3
    for epoch in (0, 1, 3):
        assert rows_of(tmp_path / "out", epoch) == rows_in_memory(MASTER.for_run(run), epoch)


def test_a_seed_is_its_own_run_and_repeats(made, tmp_path):
    seed = Key.from_seed(4)
    assert build(made, tmp_path / "out", seed).run == SEED_RUN
    assert rows_of(tmp_path / "out", 0) == rows_in_memory(seed, 0)
    build(made, tmp_path / "out", seed, 1)
    assert rows_of(tmp_path / "out", 1) == rows_in_memory(seed, 1)


def test_a_key_of_a_run_builds_that_run_and_no_other(made, tmp_path):
    out, mine, other = tmp_path / "out", MASTER.for_run(), MASTER.for_run()
    assert build(made, out, mine).run == mine.run
    assert build(made, out, mine, 1).run == mine.run
    with pytest.raises(DataError, match=f"of the run {mine.run}, but the key is of the run {other.run}"):
        build(made, out, other, 2)
    with pytest.raises(DataError, match=r"has the key .* not of one run.* Use the key file"):
        build(made, out, Key(bytes(32)), 2)
    assert BatchFiles.open(out).epochs == (0, 1)


def test_a_directory_with_epochs_of_two_runs_is_refused(made, tmp_path):
    for name, epoch in (("a", 0), ("b", 1)):
        build(made, tmp_path / name, MASTER, epoch)
    shutil.copytree(tmp_path / "b" / "epoch-000001", tmp_path / "a" / "epoch-000001")
    with pytest.raises(DataError, match=r"Epoch 1 has run '\w+', but epoch 0 has '\w+': they are not of one"):
        BatchFiles.open(tmp_path / "a").batches(1)
    with pytest.raises(DataError, match=r"has run '\w+', but the one that is there has '\w+'"):
        build(made, tmp_path / "a", MASTER, 2)


def test_a_build_that_another_one_overtook_with_another_run_is_not_kept(made, tmp_path):
    """Both began in an empty directory, so each drew an id."""
    out, overtaken = tmp_path / "out", []

    def overtake(_):
        if not overtaken:
            overtaken.append(build(made, out, MASTER, 0).run)

    with pytest.raises(DataError, match=r"epoch 0 of another run in .*Run the same command again"):
        build(made, out, MASTER, 1, overtake)
    assert os.listdir(out) == ["epoch-000000"]
    assert build(made, out, MASTER, 1).run == overtaken[0]
    assert rows_of(out, 1) == rows_in_memory(MASTER.for_run(overtaken[0]), 1)


def test_nobody_publishes_between_the_last_look_and_the_manifest(made, tmp_path):
    out = tmp_path / "out"
    out.mkdir(mode=0o700)
    build(made, tmp_path / "other", MASTER, 0)
    with ThreadPoolExecutor(1) as pool:
        with held(out):
            building = pool.submit(build, made, out, MASTER, 1)
            while not list((out / "epoch-000001").glob("part-*")):
                assert not building.done()
                time.sleep(0.01)
            time.sleep(MOMENT)
            assert not (out / "epoch-000001" / "manifest.json").exists()
            shutil.copytree(tmp_path / "other" / "epoch-000000", out / "epoch-000000")
        with pytest.raises(DataError, match="epoch 0 of another run"):
            building.result()
    assert os.listdir(out) == ["epoch-000000"]


def test_no_epoch_is_removed_while_another_is_compared_with_it(made, tmp_path):
    out = tmp_path / "out"
    build(made, out, MASTER)
    with ThreadPoolExecutor(1) as pool:
        with held(out):
            removing = pool.submit(remove_epoch, out, 0)
            time.sleep(MOMENT)
            assert BatchFiles.open(out).epochs == (0,)
        removing.result()
    assert os.listdir(out) == []


def test_an_epoch_of_the_old_format_is_refused_until_it_is_removed(made, tmp_path):
    out = tmp_path / "out"
    build(made, out, MASTER)
    path = out / "epoch-000000" / "manifest.json"
    saved = json.loads(path.read_text())
    assert saved["format_version"] == 5
    assert RUN_ID.fullmatch(saved.pop("run"))
    path.write_text(json.dumps(saved | {"format_version": 1}))
    for attempt in (lambda: BatchFiles.open(out), lambda: build(made, out, MASTER, 1)):
        with pytest.raises(
            DataError, match=r"An earlier version of ballsbins wrote it.*--remove.*build the epoch again"
        ):
            attempt()
    remove_epoch(out, 0)
    build(made, out, MASTER)


def test_a_manifest_needs_the_key_of_a_run(made):
    """With an id that it drew itself it would name another run than that of the batches."""
    with pytest.raises(SecretError, match=r"master key.*key\.for_run\(\)"):
        made.manifest(MASTER, 0)


@pytest.mark.parametrize("sampler", [SAMPLER, Poisson(40)], ids=repr)
def test_an_assignment_has_the_id_of_its_run(sampler, tmp_path):
    prepared = plan_assignment(ROWS, sampler)
    runs = [assign(prepared, tmp_path / name, MASTER) for name in ("a", "b")]
    assert runs[0] != runs[1]
    for name, run in zip(("a", "b"), runs, strict=True):
        assert RUN_ID.fullmatch(run)
        assert pq.read_schema(tmp_path / name).metadata[RUN_METADATA] == run.encode()
        positions = pq.read_table(tmp_path / name)["position"].to_numpy()
        assert np.array_equal(positions, np.concatenate(list(sampler.batches(ROWS, MASTER.for_run(run)))))
    assert assign(prepared, tmp_path / "c", Key.from_seed(1)) == SEED_RUN


def test_assignments_of_further_epochs(key_file, tmp_path):
    common = ["assign", "-n", ROWS, "-T", 40, "--key-file", key_file]
    text = " ".join(answer(*common, "--out", tmp_path / "both", "--epochs", 2).split())
    run = re.search(r"The run id is (\w+)\. .*add --run (\w+)\.", text)
    assert run[1] == run[2] == pq.read_schema(tmp_path / "both").metadata[b"ballsbins.run"].decode()
    told = answer(*common, "--out", tmp_path / "later", "--epoch", 1, "--run", run[1], "--json-log")
    assert json.loads(told.splitlines()[-1])["run"] == run[1]
    assert pq.read_table(tmp_path / "later").equals(pq.read_table(tmp_path / "both").slice(ROWS))


def test_a_build_tells_its_run_and_can_continue_one(folder, key_file, tmp_path):
    common = ["build", folder, "-T", 40, "--key-file", key_file, "--out"]
    text = " ".join(answer(*common, tmp_path / "a", "--epochs", 2).split())
    run = re.search(r"The run id is (\w+)\. .*add --run (\w+)\.", text)
    assert run[1] == run[2] == BatchFiles.open(tmp_path / "a").manifest.run
    answer("build", "--out", tmp_path / "a", "--remove", 0, "--remove", 1)
    told = answer(*common, tmp_path / "a", "--epoch", 2, "--run", run[1], "--json-log")
    assert json.loads(told.splitlines()[-1])["manifest"]["run"] == run[1]
    assert rows_of(tmp_path / "a", 2) == rows_in_memory(MASTER.for_run(run[1]), 2)
    with pytest.raises(DataError, match=f"of the run {run[1]}, but the key is of the run {'0' * 32}"):
        answer(*common, tmp_path / "a", "--epoch", 3, "--run", "0" * 32)


def test_the_epochs_of_one_command_are_one_run_also_if_they_are_removed_at_once(
    folder, key_file, tmp_path, monkeypatch
):
    def build_and_train(plan, directory, key, epoch, report):
        manifest = build(plan, directory, key, epoch, report)
        remove_epoch(directory, epoch)
        return manifest

    monkeypatch.setattr(local, "build", build_and_train)
    told = answer(
        "build", folder, "-T", 40, "--key-file", key_file, "--out", tmp_path / "out", "--epochs", 3, "--json-log"
    )  # fmt: skip
    runs = [line["manifest"]["run"] for line in map(json.loads, told.splitlines()) if "manifest" in line]
    assert len(runs) == 3
    assert len(set(runs)) == 1


def test_a_dry_run_draws_no_run_id(folder, tmp_path):
    for command in (["build", folder], ["assign", "-n", ROWS]):
        words = [*command, "-T", 40, "--out", tmp_path / "out", "--dry-run"]
        assert "run id" not in answer(*words)
        assert "run" not in json.loads(answer(*words, "--json-log"))


@pytest.mark.parametrize("command", ["build", "assign"])
@pytest.mark.parametrize("run", ["", "12", "seed", "G" * 32, "0" * 33])
def test_what_is_no_run_id(command, run, folder, key_file, tmp_path, monkeypatch, capsys):
    words = [command, folder, "-T", 40, "--key-file", key_file, "--out", tmp_path / "out", "--run", run]
    monkeypatch.setattr("sys.argv", ["ballsbins", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert f"{run!r} is not a run id" in " ".join(capsys.readouterr().err.split())
    assert os.listdir(tmp_path) == ["key"]
