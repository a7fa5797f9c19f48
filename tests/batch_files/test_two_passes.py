"""Several epochs from one pass, by several workers, on the disk that was promised; a signal leaves nothing."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ballsbins import BallsAndBins, Deterministic, Key, Shuffle, new_key
from ballsbins.batch_files import BatchFiles
from ballsbins.batch_files.build import build, build_epochs
from ballsbins.batch_files.build_plan import plan_build
from ballsbins.batch_files.inputs import Inputs, open_inputs
from ballsbins.batch_files.sort import Memory
from ballsbins.batch_files.store import located
from ballsbins.cli import main
from ballsbins.errors import InvalidInputError

from .conftest import ROWS

KEY = Key.from_seed(5)


def rows_of(out, epoch):
    return [batch["row"].to_pylist() for batch in BatchFiles.open(out).batches(epoch)]


@pytest.mark.parametrize("sampler", [BallsAndBins(40), Shuffle(33), Deterministic(40)], ids=repr)
def test_workers_and_epochs_change_no_row(sampler, folder, tiny, tmp_path):
    plan = plan_build(open_inputs([folder]), sampler, memory=tiny, workers=3)
    build_epochs(plan, tmp_path / "out", KEY, [0, 1, 2])
    for epoch in BatchFiles.open(tmp_path / "out").epochs:
        assert rows_of(tmp_path / "out", epoch) == [
            rows.tolist() for rows in sampler.batches(ROWS, KEY, epoch)
        ]


def test_the_input_is_read_once_for_all_epochs(folder, tmp_path, monkeypatch):
    plan = plan_build(open_inputs([folder]), BallsAndBins(40), workers=2)
    assert plan.row_bytes > 0, "the trial has been made"
    given, real = [], Inputs.read

    def counted(self, *arguments):
        for done, batch in real(self, *arguments):
            given.append(batch.num_rows)
            yield done, batch

    monkeypatch.setattr(Inputs, "read", counted)
    build_epochs(plan, tmp_path / "out", KEY, range(4))
    assert sum(given) == ROWS
    assert BatchFiles.open(tmp_path / "out").epochs == (0, 1, 2, 3)


def test_a_small_disk_takes_more_passes(folder):
    plan = plan_build(open_inputs([folder]), BallsAndBins(40))
    assert plan.together(4) == 4
    tight = plan.disk_bytes(4, 1)
    assert plan.disk_bytes(4, 4) > tight
    assert plan.together(4, free=tight) < 4
    with pytest.raises(InvalidInputError, match="workers is 0"):
        plan_build(open_inputs([folder]), BallsAndBins(40), workers=0)


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    path = tmp_path_factory.mktemp("wide")
    random = np.random.default_rng(3)
    columns = {f"c{number}": random.integers(0, 10 ** (number + 2), 150_000) for number in range(8)}
    table = pa.table({"row": np.arange(150_000), **columns})
    pq.write_table(table, path / "in.parquet", row_group_size=30_000)
    new_key().save(path / "key")
    return path


@pytest.fixture(scope="module")
def unlike(tmp_path_factory):
    """Rows that are not alike: the last files have long texts, and one is empty."""
    path, random = tmp_path_factory.mktemp("unlike"), np.random.default_rng(2)
    for number, (rows, width) in enumerate([(20_000, 4), (25_000, 4), (0, 1), (20_000, 60), (15_000, 60)]):
        words = pa.array([random.bytes(width).hex() for _ in range(rows)], pa.string())
        pq.write_table(
            pa.table({"x": random.random(rows), "text": words}),
            path / f"{number}.parquet",
            row_group_size=4_000,
        )
    return path


@pytest.mark.parametrize(("table", "epochs"), [("wide/in.parquet", 1), ("wide/in.parquet", 2), ("unlike", 1)])
def test_the_disk_that_was_promised_is_what_is_used(table, epochs, wide, unlike, tmp_path):
    """Looked at whenever there is something to report; within 20 %."""
    where = unlike if table == "unlike" else wide / "in.parquet"
    plan = plan_build(open_inputs([where]), BallsAndBins(200), memory=Memory(300 * 10**6))
    most = 0

    def look(_):
        nonlocal most
        found = 0
        for path in (tmp_path / "out").rglob("*"):
            try:
                found += path.stat().st_size
            except FileNotFoundError:
                continue
        most = max(most, found)

    build_epochs(plan, tmp_path / "out", KEY, range(epochs), look)
    assert plan.disk_bytes(epochs, plan.together(epochs)) == pytest.approx(most, rel=0.2)
    kept = sum(path.stat().st_size for path in (tmp_path / "out").rglob("*.parquet"))
    assert epochs * plan.output_bytes == pytest.approx(kept, rel=0.2)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_cleans_up(number, wide, tmp_path):
    command = [sys.executable, "-c", "from ballsbins.cli import main; main()", "build"]
    command += [str(wide / "in.parquet"), "--out", str(tmp_path / "out"), "-T", "100", "--epochs", "4"]
    command += ["--key-file", str(wide / "key"), "--json-log", "--workers", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if json.loads(line).get("stage") == "writing":
                process.send_signal(number)
                break
        said = process.communicate()[1]
    assert process.returncode == 130, said
    left = [path for path in (tmp_path / "out").iterdir() if not (path / "manifest.json").exists()]
    assert left == [], "whole epochs may be there, and nothing else"


def test_verify(folder, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    build(plan_build(open_inputs([folder]), BallsAndBins(40)), out, KEY)
    monkeypatch.setattr("sys.argv", ["ballsbins", "build", "--out", str(out), "--verify"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert "Epoch 0 of" in capsys.readouterr().out
    part = next(out.glob("*/part-*"))
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert part.name in capsys.readouterr().err


def test_temporary_files_go_where_one_says(folder, tmp_path):
    seen = set()
    (tmp_path / "scratch").mkdir()

    def look(_):
        seen.update(path.suffix for path in (tmp_path / "scratch").rglob("*"))

    plan = plan_build(open_inputs([folder]), BallsAndBins(40))
    build(plan, tmp_path / "out", KEY, report=look, scratch=tmp_path / "scratch")
    assert ".bin" in seen
    assert os.listdir(tmp_path / "scratch") == []
    assert located(tmp_path / "out").names() == ("epoch-000000",)
