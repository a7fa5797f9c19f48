"""`ballsbins build` and `ballsbins assign` as people use them."""

import json
import math
import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from ballsbins import BallsAndBins, Key, Mechanism
from ballsbins.batch_files import BatchFiles
from ballsbins.cli import app
from ballsbins.curves import log_penalty
from ballsbins.errors import BallsBinsError, DataError, InvalidInputError, SecretError

from .conftest import ROWS

RUN = CliRunner()


@pytest.fixture
def key_file(key, tmp_path, monkeypatch):
    key.save(tmp_path / "key")
    monkeypatch.delenv("BALLSBINS_KEY_FILE", raising=False)
    return tmp_path / "key"


def answer(*words):
    done = RUN.invoke(app, [str(word) for word in words])
    if done.exception is not None:
        raise done.exception
    return done.stdout


def test_build_then_remove(folder, key_file, tmp_path):
    out = tmp_path / "out"
    common = ["--out", out, "--batch-size", 500, "--key-file", key_file]
    text = answer("build", folder, *common, "--epochs", 2, "--noise-multiplier", 0.8)
    assert "epochs 0 to 1" in text
    assert "20,000 rows in 40 batches" in text
    files = BatchFiles.open(out)
    assert files.manifest.mechanism == Mechanism(BallsAndBins(40), 0.8, epochs=2)
    key = Key.from_file(key_file).for_run(files.manifest.run)
    for epoch in (0, 1):
        for indices, batch in zip(
            BallsAndBins(40).batches(ROWS, key, epoch), files.batches(epoch), strict=True
        ):
            assert np.array_equal(batch["row"].to_numpy(), indices)
    assert "Removed epoch 0" in answer("build", "--out", out, "--remove", 0)
    assert files.epochs == (1,)
    answer("build", folder, *common, "--epoch", 3)
    assert files.epochs == (1, 3)


def test_truncated_and_padded_for_a_counted_number_of_rows(folder, key_file, tmp_path):
    out = tmp_path / "out"
    answer("build", folder, "--out", out, "-T", 40, "-B", 520, "--pad", "--key-file", key_file)
    files = BatchFiles.open(out)
    assert files.manifest.sampler == BallsAndBins(40, max_batch_size=520, num_examples=ROWS)
    assert {batch.num_rows for batch in files.batches(0)} == {520}


def test_truncated_where_that_costs_next_to_nothing(folder, key_file, tmp_path):
    out = tmp_path / "out"
    answer("build", folder, "--out", out, "-T", 40, "-B", "auto", "-E", 2, "--key-file", key_file)
    drawn = BatchFiles.open(out).manifest.sampler
    smaller = replace(drawn, max_batch_size=drawn.max_batch_size - 1)
    costs = [
        (1.0 + math.exp(10.0)) * math.exp(log_penalty(Mechanism(each, 1.0, 2))) for each in (drawn, smaller)
    ]
    assert costs[0] <= 1e-10 < costs[1]
    with pytest.raises(InvalidInputError, match="one size already"):
        answer(
            "build", folder, "--out", out, "-T", 40, "-B", 90, "--sampler", "shuffle", "--key-file", key_file
        )
    with pytest.raises(InvalidInputError, match="--max-batch-size is 'many'"):
        answer("build", folder, "--out", out, "-T", 40, "-B", "many", "--key-file", key_file)


def test_the_key_of_the_environment(folder, key_file, tmp_path, monkeypatch):
    arguments = ["build", folder, "--out", tmp_path / "out", "-T", 4]
    with pytest.raises(SecretError, match="BALLSBINS_KEY_FILE"):
        answer(*arguments)
    assert not (tmp_path / "out").exists()
    monkeypatch.setenv("BALLSBINS_KEY_FILE", str(key_file))
    answer(*arguments)
    assert BatchFiles.open(tmp_path / "out").manifest.key_commitment == Key.from_file(key_file).commitment()


def test_dry_run_writes_nothing_and_needs_no_key(folder, tmp_path):
    arguments = ["build", folder, "--out", tmp_path / "out", "--batch-size", 500, "--epochs", 3, "--dry-run"]
    text = answer(*arguments)
    for word in (
        "20,000 rows of 4 columns",
        "40 per epoch",
        "1 GB",
        "free disk needed",
        "time",
        "Nothing was written",
    ):
        assert word in text
    plan = json.loads(answer(*arguments, "--json-log"))
    assert plan["rows"] == ROWS
    assert plan["disk_bytes"] == pytest.approx(
        3 * plan["scratch_bytes"] + plan["output_bytes_per_epoch"], rel=0.1
    ), "one pass for three epochs"
    assert plan["passes"] == 1
    assert "the input is read once" in text
    assert plan["seconds_per_epoch"] >= 0
    assert os.listdir(tmp_path) == []


def test_the_disk_that_was_promised_is_about_what_is_used(folder, key_file, tmp_path):
    arguments = ["build", folder, "--out", tmp_path / "out", "-T", 40, "--key-file", key_file]
    plan = json.loads(answer(*arguments, "--dry-run", "--json-log"))
    answer(*arguments)
    used = sum(path.stat().st_size for path in (tmp_path / "out").rglob("*.parquet"))
    assert used == pytest.approx(plan["output_bytes_per_epoch"], rel=0.3)


def test_json_log_is_lines_of_json_without_secrets(folder, key_file, tmp_path):
    # A fixed run id: of the sizes of a random one, 1 in 500 happen to add up to a count of progress.
    run, numbers = "0123456789abcdef" * 2, set()
    words = ["--out", tmp_path / "out", "-T", 40, "--key-file", key_file, "--run", run, "--json-log"]
    text = answer("build", folder, *words)
    lines = [
        json.loads(line, parse_int=lambda digits: numbers.add(int(digits)) or int(digits))
        for line in text.splitlines()
    ]
    assert [line["event"] for line in lines[:-1]] == ["progress"] * (len(lines) - 1)
    assert {"rows", "total_rows", "bytes", "total_bytes", "seconds_left"} <= lines[0].keys()
    assert lines[-1]["event"] == "built"
    assert lines[-1]["manifest"]["num_examples"] == ROWS
    assert key_file.read_text().strip() not in text
    sizes = [len(batch) for batch in BallsAndBins(40).batches(ROWS, Key.from_file(key_file).for_run(run))]
    assert ROWS in numbers
    assert not numbers & set(np.cumsum(sizes)[:-1].tolist()), "realised sizes are secret"


def test_text_with_options(key_file, tmp_path):
    (tmp_path / "in.tsv").write_text("".join(f"{row}\t00{row}\n" for row in range(50)))
    common = ["--out", tmp_path / "out", "-T", 3, "--key-file", key_file, "--no-header"]
    answer("build", tmp_path / "in.tsv", *common, "--type", "f1=string", "--identity", "f1")
    manifest = BatchFiles.open(tmp_path / "out").manifest
    assert [(column.name, column.type) for column in manifest.columns] == [("f0", "int64"), ("f1", "string")]
    assert manifest.identity_column == "f1"
    with pytest.raises(InvalidInputError, match="NAME=TYPE"):
        answer("build", tmp_path / "in.tsv", *common, "--type", "f1")


def test_assign(folder, key_file, tmp_path):
    common = ["-T", 40, "--key-file", key_file, "--epochs", 2, "--run", "5" * 32]
    answer("assign", folder, "--out", tmp_path / "a.parquet", *common)
    answer("assign", "-n", ROWS, "--out", tmp_path / "b.parquet", *common)
    first, second = (pq.read_table(tmp_path / name) for name in ("a.parquet", "b.parquet"))
    assert first.equals(second)
    assert first.num_rows == 2 * ROWS
    text = answer(
        "assign", "-n", ROWS, "--sampler", "poisson", "--out", tmp_path / "c.parquet", "-T", 40,
        "--key-file", key_file, "--run", "5" * 32, "--json-log",
    )  # fmt: skip
    assert json.loads(text.splitlines()[-1]) == {
        "event": "assigned",
        "epochs": [0],
        "file": str(tmp_path / "c.parquet"),
        "run": "5" * 32,
    }


def test_bad_options(folder, key_file, tmp_path):
    out = ["--out", tmp_path / "out", "--key-file", key_file]
    for words, message in (
        (["build", folder, "-T", 4], "--out"),
        (["build", folder, *out], "--steps"),
        (["build", folder, *out, "-T", 4, "-b", 5], "--batch-size"),
        (["build", *out, "-T", 4], "at least one"),
        (["build", folder, *out, "-T", 4, "--examples", 7], "20,000, the rows of the inputs"),
        (["build", folder, *out, "-T", 4, "--sampler", "poisson"], "assign"),
        (["build", folder, *out, "-T", 4, "--sampler", "shuffle", "--fixed-bins"], "--fixed-bins"),
        (["build", folder, *out, "-T", 4, "--memory", "lots"], "--memory"),
        (["build", folder, *out, "-T", 4, "--epochs", 0], "--epochs is 0"),
        (
            ["build", folder, *out, "-T", 4, "--epochs", 2, "--epoch", 2, "-s", 1],
            "--epoch is 2, but must be below",
        ),
        (["build", folder, *out, "-T", 4, "--type", "x=int8"], "left out for Parquet"),
        (["build", folder, *out, "-T", 4, "--no-header"], "left out for Parquet"),
        (["build", folder, *out, "-T", 4, "--type", "x=int8", "--type", "x=int16"], "stated once for x"),
        (["build", folder, *out, "-T", 4, "--sampler", "poisson", "--dry-run"], "assign"),
        (
            ["build", folder, *out, "-T", 4, "--sampler", "shuffle", "--identity", "row", "--dry-run"],
            "left out for",
        ),
        (["assign", *out, "-n", 5, "-T", 4, "--epochs", 0], "--epochs is 0"),
        (["assign", *out, "-n", 5, "-T", 4, "--no-header"], "--no-header must be left out"),
        (
            ["assign", *out, "-n", 10**9, "-T", 1, "--memory", "300MB", "--dry-run"],
            "for batches of 20,000,000,000",
        ),
        (["build", folder, *out, "-T", 4, "--master", "local[2]"], "--engine spark"),
        (["build", folder, *out, "-T", 10**9], "at most 15,625,000 for this memory limit"),
        (["build", "--out", tmp_path / "nowhere", "--remove", 1], "nowhere' cannot be read"),
        (["assign", *out, "-T", 4], "--examples"),
        (["assign", folder, *out, "-T", 4, "-n", 5], "left out with inputs"),
    ):
        with pytest.raises(BallsBinsError) as caught:
            answer(*words)
        assert message in str(caught.value), words
    assert os.listdir(tmp_path) == ["key"]


def test_an_error_ends_with_one_sentence_and_exit_code_2(tmp_path):
    command = [
        str(Path(sys.executable).parent / "ballsbins"),
        "build",
        str(tmp_path / "none"),
        "--out",
        "o",
        "-T",
        "4",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 2
    assert "\nballsbins: " in f"\n{done.stderr}"  # slow work may say how far it is before
    assert "does not exist" in done.stderr
    assert "Traceback" not in done.stderr


def test_remove_does_nothing_else(folder, key_file, tmp_path):
    """Above all, it does not remove where only a look was asked for."""
    out = tmp_path / "out"
    answer("build", folder, "--out", out, "-T", 4, "--key-file", key_file, "--epochs", 2)
    for more in (["--dry-run"], [folder], ["--epochs", 2], ["--key-file", key_file]):
        with pytest.raises(InvalidInputError, match="left out with --remove"):
            answer("build", "--out", out, "--remove", 0, *more)
    assert BatchFiles.open(out).epochs == (0, 1)
    told = answer("build", "--out", out, "--remove", 0, "--remove", 1, "--json-log").splitlines()
    assert [json.loads(line) for line in told] == [
        {"event": "removed", "epoch": epoch, "directory": str(out)} for epoch in (0, 1)
    ]
    assert os.listdir(out) == []


@pytest.mark.parametrize("name", ["o[red]x", "o[", "a b's"])
def test_names_are_shown_as_they_are_and_can_be_pasted(name, folder, key_file, tmp_path):
    text = answer("build", folder, "--out", tmp_path / name, "-T", 4, "--key-file", key_file, "--epochs", 2)
    assert f"{tmp_path / name} has epochs 0 to 1" in text
    command = shlex.split(text.splitlines()[-1].partition("remove it: ")[2])
    answer(*command[1:])
    assert BatchFiles.open(tmp_path / name).epochs == (1,)


def test_the_plan_of_poisson_batches_scatters_nothing(tmp_path):
    arguments = ["assign", "-n", 1000, "-T", 10, "--sampler", "poisson", "--out", tmp_path / "a", "--dry-run"]
    text = answer(*arguments)
    assert "draws and writes batch by batch" in text
    assert "bucket" not in text
    assert json.loads(answer(*arguments, "--json-log"))["scratch_bytes"] == 0


def test_the_trial_hashes_names_as_a_build_does(folder, tmp_path):
    """So its time counts them; it shows by a name that is missing."""
    with pytest.raises(DataError, match="'maybe' has no value in row 0"):
        answer("build", folder, "--out", tmp_path / "out", "-T", 4, "--identity", "maybe", "--dry-run")
