"""An epoch appears whole or not at all, whatever happens while it is built; running again finishes the work."""

import fcntl
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ballsbins import BallsAndBins, Key, new_key
from ballsbins.batch_files import BatchFiles
from ballsbins.batch_files.build import build
from ballsbins.batch_files.build_plan import plan_build
from ballsbins.batch_files.epoch_directory import new_epoch, remove_epoch
from ballsbins.batch_files.inputs import open_inputs
from ballsbins.batch_files.sort import Memory
from ballsbins.batch_files.store import located
from ballsbins.errors import DataError, SecretError

from .conftest import ROWS

BALLSBINS = [sys.executable, "-c", "from ballsbins.cli import main; main()"]


def rows_of(files, epoch=0):
    return [batch["row"].to_pylist() for batch in files.batches(epoch)]


@pytest.mark.slow
def test_killed_at_every_step(folder, tmp_path):
    """Kill −9 at each of some dozen looks at the file system: nothing or everything is there, then everything."""
    script = Path(__file__).with_name("killed.py")
    done = subprocess.run(
        [sys.executable, str(script), str(folder), str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    states = [line.split() for line in done.stdout.splitlines()]
    assert len(states) > 15
    assert all(ended == str(int(signal.SIGKILL)) for ended, _ in states[:-1])
    assert states[-1] == ["0", "whole"]
    assert {state for _, state in states} == {"none", "part", "whole"}
    expected = [indices.tolist() for indices in BallsAndBins(40).batches(ROWS, Key.from_seed(11))]
    for number in range(1, len(states) + 1):
        out = tmp_path / f"{number}"
        assert os.listdir(out) == ["epoch-000000"], "what a killed process left was cleared away"
        assert rows_of(BatchFiles.open(out)) == expected


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A table that takes a moment."""
    path = tmp_path_factory.mktemp("large")
    random = np.random.default_rng(3)
    columns = {f"c{number}": random.random(400_000) for number in range(8)}
    pq.write_table(pa.table({"row": np.arange(400_000), **columns}), path / "in.parquet")
    new_key().save(path / "key")
    return path


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["reading", "writing"])
def test_killed_from_outside(stage, large, tmp_path):
    arguments = ["build", str(large / "in.parquet"), "--out", str(tmp_path / "out"), "--batch-size", "1000"]
    command = [*BALLSBINS, *arguments, "--key-file", str(large / "key"), "--memory", "300MB", "--json-log"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if json.loads(line).get("stage") == stage:
                process.kill()
                break
    assert process.returncode == -signal.SIGKILL
    assert not list((tmp_path / "out").glob("*/manifest.json"))
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1])["event"] == "built"
    assert os.listdir(tmp_path / "out") == ["epoch-000000"]
    rows = rows_of(BatchFiles.open(tmp_path / "out"))
    assert sorted(row for batch in rows for row in batch) == list(range(400_000))


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), int(sys.argv[1])))
sys.argv = ["ballsbins", *sys.argv[2:]]
from ballsbins.cli import main
main()
"""


@pytest.mark.parametrize("limit", [200_000, 8_000_000])  # in pass one; in pass two
@pytest.mark.slow
def test_a_full_disk_is_told_and_leaves_nothing(limit, large, tmp_path):
    """The system refuses to let a file grow, as a full disk or a quota does."""
    command = [sys.executable, "-c", LIMITED, str(limit), "build", str(large / "in.parquet")]
    command += ["--out", str(tmp_path / "out"), "--batch-size", "1000", "--key-file", str(large / "key")]
    command += ["--compression", "none", "--memory", "320MB", "--workers", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert f"Writing below {str(tmp_path / 'out')!r} failed" in done.stderr
    assert "Make room" in done.stderr
    assert os.listdir(tmp_path / "out") == []


def test_a_disk_that_is_clearly_too_small_is_refused_before_anything_is_written(folder, tmp_path, key):
    made = replace(plan_build(open_inputs([folder]), BallsAndBins(40)), num_examples=10**15)
    with pytest.raises(DataError, match=r"needs about [\d,]+ bytes below .* but [\d,]+ are free"):
        made.require_disk(located(tmp_path / "not" / "there" / "yet"))


def test_a_file_that_breaks_in_the_middle_leaves_nothing(folder, table, key, tiny, tmp_path):
    path = tmp_path / "in"
    path.mkdir()
    pq.write_table(table, path / "a.parquet")
    pq.write_table(table, path / "b.parquet", compression="none", use_dictionary=False)
    made = plan_build(open_inputs([path]), BallsAndBins(40), memory=tiny)
    made.manifest(key.for_run(), 0)  # all that is decided before the rows are read
    content = bytearray((path / "b.parquet").read_bytes())
    content[4:200_000] = bytes(199_996)  # pages, not the footer
    (path / "b.parquet").write_bytes(content)
    with pytest.raises(DataError, match=r"b\.parquet' cannot be read.*you may read it"):  # in one line
        build(made, tmp_path / "out", key)
    assert os.listdir(tmp_path / "out") == []


def test_files_that_change_while_they_are_read_are_told(folder, table, key, tmp_path):
    path = tmp_path / "in.parquet"
    pq.write_table(table, path)
    made = plan_build(open_inputs([path]), BallsAndBins(40))
    pq.write_table(table.slice(5), path)
    with pytest.raises(DataError, match=r"in\.parquet' changed while it was being read"):
        build(made, tmp_path / "out", key)
    assert os.listdir(tmp_path / "out") == []


def test_an_epoch_without_a_manifest_is_none(folder, key, tmp_path):
    """Another tool, or a copy that broke off, may leave such a directory: it is not read, and is built again."""
    made = plan_build(open_inputs([folder]), BallsAndBins(40))
    build(made, tmp_path / "out", key)
    (tmp_path / "out" / "epoch-000000" / "manifest.json").unlink()
    with pytest.raises(DataError, match="no complete epoch"):
        BatchFiles.open(tmp_path / "out")
    build(made, tmp_path / "out", key)
    assert len(rows_of(BatchFiles.open(tmp_path / "out"))) == 40
    assert os.listdir(tmp_path / "out") == ["epoch-000000"]


def test_half_a_manifest_is_none(folder, key, tmp_path):
    """A process was killed while it wrote it."""
    made = plan_build(open_inputs([folder]), BallsAndBins(40))
    build(made, tmp_path / "out", key)
    path = tmp_path / "out" / "epoch-000000" / "manifest.json"
    whole = path.read_bytes()
    for length in (0, 1, len(whole) // 2, len(whole) - 2):
        path.write_bytes(whole[:length])
        with pytest.raises(DataError, match="no complete epoch"):
            BatchFiles.open(tmp_path / "out")
    build(made, tmp_path / "out", key)
    assert len(rows_of(BatchFiles.open(tmp_path / "out"))) == 40


def test_a_group_may_read_if_one_says_so(folder, key, tmp_path):
    """As on mounts that show mode 0770 whatever one does."""
    made, out = plan_build(open_inputs([folder]), BallsAndBins(40)), tmp_path / "out"
    out.mkdir()
    out.chmod(0o770)
    build(made, out, key, group_readable=True)
    assert out.stat().st_mode & 0o777 == 0o770
    with pytest.raises(SecretError, match=r"mode 0770.*--group-readable"):
        BatchFiles.open(out)
    with pytest.raises(SecretError, match=r"mode 0770.*--group-readable"):
        build(made, out, key, 1)
    assert len(rows_of(BatchFiles.open(out, group_readable=True))) == 40
    out.chmod(0o775)
    with pytest.raises(SecretError, match=r"mode 0775.*must have 0770"):
        BatchFiles.open(out, group_readable=True)


def test_two_processes_do_not_build_one_epoch(folder, key, tmp_path):
    made = plan_build(open_inputs([folder]), BallsAndBins(40))
    build(made, tmp_path / "out", key, 1)
    work = tmp_path / "out" / ".building-epoch-000000"
    work.mkdir(mode=0o700)
    descriptor = os.open(work, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(DataError, match="Another process is building epoch 0"):
        build(made, tmp_path / "out", key, 0)
    os.close(descriptor)
    build(made, tmp_path / "out", key, 0)
    assert BatchFiles.open(tmp_path / "out").epochs == (0, 1)


def test_remove(folder, key, tmp_path):
    made = plan_build(open_inputs([folder]), BallsAndBins(40), memory=Memory())
    for epoch in (0, 1):
        build(made, tmp_path / "out", key, epoch)
    files = BatchFiles.open(tmp_path / "out")
    remove_epoch(tmp_path / "out", 0)
    assert files.epochs == (1,)
    assert os.listdir(tmp_path / "out") == ["epoch-000001"]
    with pytest.raises(DataError, match=r"Epoch 0 is not in .*complete epochs: 1"):
        remove_epoch(tmp_path / "out", 0)
    with pytest.raises(DataError, match=r"Epoch 0 is not in .*complete epochs: 1"):
        files.batches(0)


def test_remove_takes_what_killed_processes_left(folder, key, tmp_path):
    """It is rows in the order of their batches, and as secret as an epoch."""
    out = tmp_path / "out"
    build(plan_build(open_inputs([folder]), BallsAndBins(40)), out, key, 1)
    (out / ".building-epoch-000000" / "scratch").mkdir(parents=True)
    (out / "epoch-000000").mkdir()  # a copy that broke off: it has no manifest
    (out / "epoch-000000" / "part-000000.parquet").touch()
    remove_epoch(out, 0)
    assert os.listdir(out) == ["epoch-000001"]
    with pytest.raises(DataError, match="Epoch 0 is not in"):
        remove_epoch(out, 0)


def test_remove_leaves_a_build_that_runs(folder, key, tmp_path):
    out = tmp_path / "out"
    build(plan_build(open_inputs([folder]), BallsAndBins(40)), out, key, 1)
    work = out / ".building-epoch-000000"
    (work / "scratch").mkdir(parents=True)
    descriptor = os.open(work, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(DataError, match="Another process is building epoch 0"):
        remove_epoch(out, 0)
    os.close(descriptor)
    assert (work / "scratch").exists()


def test_what_cannot_be_removed_is_told(folder, key, tmp_path, monkeypatch):
    out = tmp_path / "out"
    build(plan_build(open_inputs([folder]), BallsAndBins(40)), out, key)

    def refuse(*_, **__):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.unlink", refuse)
    with pytest.raises(
        DataError, match=r"Not all could be removed .*Operation not permitted.*as secret as the key"
    ):
        remove_epoch(out, 0)


def test_an_epoch_that_another_process_finished_meanwhile_is_kept(folder, key, tmp_path):
    out = tmp_path / "out"
    manifest = build(plan_build(open_inputs([folder]), BallsAndBins(40)), out, key)
    with (
        pytest.raises(DataError, match="Another process has just built epoch 0"),
        new_epoch(located(out), manifest.epoch),
    ):
        pass
    assert os.listdir(out) == ["epoch-000000"]
