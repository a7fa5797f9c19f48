"""Inputs, batches and assignments in an object store: an epoch is there if and only if its manifest is."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ballsbins import BallsAndBins, Key, Poisson, new_key
from ballsbins.batch_files import BatchFiles
from ballsbins.batch_files.assignments import assign, plan_assignment
from ballsbins.batch_files.build import build, build_epochs
from ballsbins.batch_files.build_plan import plan_build
from ballsbins.batch_files.epoch_directory import remove_epoch
from ballsbins.batch_files.inputs import open_inputs
from ballsbins.batch_files.sort import Memory
from ballsbins.batch_files.store import located
from ballsbins.cli import main
from ballsbins.errors import DataError, InvalidInputError

from .s3_store import BUCKET

ROWS, STEPS, SEED = 3_000, 12, 3


@dataclass(frozen=True)
class Small(Memory):
    """Row groups of a few batches."""

    row_group_bytes = 10_000


@pytest.fixture
def address(store, request):
    """A place of its own for each test."""
    return f"s3://{BUCKET}/{request.node.name.partition('[')[0]}/{abs(hash(request.node.name))}"


@pytest.fixture(scope="module")
def table():
    random = np.random.default_rng(1)
    return pa.table({"row": np.arange(ROWS), "x": random.random(ROWS)})


@pytest.fixture
def inputs(address, table):
    """The table in the store, in two files."""
    below = located(f"{address}/in")
    for name, part in (("a", table.slice(0, 1_000)), ("b", table.slice(1_000))):
        with (below / f"{name}.parquet").create() as sink:
            pq.write_table(part, sink, row_group_size=500)
    return str(below)


def planned(inputs, **options):
    return plan_build(open_inputs([inputs]), BallsAndBins(STEPS), **options)


def rows_of(address, epoch=0):
    return [batch["row"].to_pylist() for batch in BatchFiles.open(address).batches(epoch)]


def expected(epoch=0):
    return [indices.tolist() for indices in BallsAndBins(STEPS).batches(ROWS, Key.from_seed(SEED), epoch)]


def names_of(address, epoch=0):
    return set(located(f"{address}/epoch-{epoch:06d}").names())


def whole_names(address, epoch=0):
    """What an epoch has if nothing is missing and nothing is left over."""
    files = BatchFiles.open(address)._open_epoch(epoch).files
    return {"manifest.json", *(file.name for file in files.all)}


def test_from_store_to_store_and_back(address, inputs, store):
    out = f"{address}/out"
    build_epochs(planned(inputs), out, Key.from_seed(SEED), [0, 1])
    assert BatchFiles.open(out).epochs == (0, 1)
    for epoch in (0, 1):
        assert rows_of(out, epoch) == expected(epoch)
        assert names_of(out, epoch) == whole_names(out, epoch)
    written = [
        asked for asked in store.requests if "/out/" in asked and not asked.startswith(("GET", "HEAD"))
    ]
    assert re.match(r"POST .*epoch-000001/manifest\.json", written[-1]), "the manifest is last"
    assert not any("CopyObject" in asked or "copy" in asked.lower() for asked in store.requests), "no renames"
    BatchFiles.open(out).verify(0)
    remove_epoch(out, 0)
    assert BatchFiles.open(out).epochs == (1,)
    assert names_of(out, 0) == set()
    with pytest.raises(DataError, match="Epoch 0 is not in 's3://"):
        remove_epoch(out, 0)


def test_a_thread_fetches_the_next_row_group_and_ends_with_the_reading(address, inputs, store):
    out = f"{address}/out"
    build(planned(inputs, memory=Small()), out, Key.from_seed(SEED))
    reading = BatchFiles.open(out).batches(0)
    first = next(reading)

    def fetching():
        return [thread for thread in threading.enumerate() if thread.name.startswith("ballsbins-fetch")]

    assert fetching(), "there is more than one row group"
    assert [first["row"].to_pylist()] == expected()[:1]
    reading.close()
    assert not fetching()
    assert rows_of(out) == expected()
    assert not fetching()


def test_an_assignment_in_a_store(address, inputs):
    sampler = Poisson(STEPS)
    assign(plan_assignment(open_inputs([inputs]), sampler), f"{address}/bins.parquet", Key.from_seed(SEED))
    with located(f"{address}/bins.parquet").open() as source:
        found = pq.read_table(source)
    wanted = np.concatenate(list(sampler.batches(ROWS, Key.from_seed(SEED))))
    assert found["position"].to_numpy().tolist() == wanted.tolist()
    with pytest.raises(DataError, match="exists, and is not overwritten"):
        assign(plan_assignment(10, sampler), f"{address}/bins.parquet", Key.from_seed(SEED))


def test_an_epoch_without_its_manifest_is_none_and_one_without_a_part_is_told(address, inputs):
    out = f"{address}/out"
    build(planned(inputs), out, Key.from_seed(SEED))
    epoch = located(f"{out}/epoch-000000")
    part = next(name for name in epoch.names() if name.startswith("part-"))
    (epoch / part).remove()
    with pytest.raises(DataError, match=rf"'{epoch / part}' cannot be read .*"):
        rows_of(out)
    (epoch / "manifest.json").remove()
    with pytest.raises(DataError, match="holds no complete epoch"):
        BatchFiles.open(out)
    build(planned(inputs), out, Key.from_seed(SEED))
    assert rows_of(out) == expected()
    assert names_of(out) == whole_names(out), "what was left is cleared away"


KILLS = {
    "before the first part": r"POST .*/part-000000.*uploads",
    "while a part is sent": r"PUT .*/part-000000.*partNumber",
    "before the manifest": r"POST .*/manifest\.json\?uploads",
    "at the last moment": r"POST .*/manifest\.json\?uploadId",
}


@pytest.mark.parametrize("when", KILLS)
def test_killed_in_the_middle(when, address, inputs, store):
    out, process = f"{address}/out", None

    def kill(asked):
        if process is not None and re.search(KILLS[when], asked):
            process.kill()
            process.wait()

    store.at_request = kill
    code = (
        "from ballsbins import BallsAndBins, Key\n"
        "from ballsbins.batch_files.build import build\n"
        "from ballsbins.batch_files.build_plan import plan_build\n"
        "from ballsbins.batch_files.inputs import open_inputs\n"
        f"build(plan_build(open_inputs([{inputs!r}]), BallsAndBins({STEPS})), {out!r}, Key.from_seed({SEED}))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code])
    assert process.wait() == -signal.SIGKILL
    store.be_good()
    last, patience = when == "at the last moment", 1000
    while last and "manifest.json" not in names_of(out) and patience:  # the store may still be at work on it
        time.sleep(0.01)
        patience -= 1
    there = "manifest.json" in names_of(out)
    assert there == last, "the store had the request already"
    if not there:
        with pytest.raises(DataError, match="holds no complete epoch"):
            BatchFiles.open(out)
    build(planned(inputs), out, Key.from_seed(SEED))
    assert rows_of(out) == expected()
    assert names_of(out) == whole_names(out)


def test_a_store_that_is_slow_and_fails_now_and_then_changes_nothing(address, inputs, store):
    out = f"{address}/out"
    store.delay, store.fail_every = 0.01, 5
    build(planned(inputs), out, Key.from_seed(SEED))
    assert rows_of(out) == expected()
    assert names_of(out) == whole_names(out)
    assert len(store.requests) > 10


def test_a_store_that_fails_while_a_part_is_written_leaves_nothing_that_counts(address, inputs, store):
    out = f"{address}/out"

    def refuse_parts(asked):
        store.users = set() if "/part-0" in asked and asked.startswith("PUT") else {"trainer"}

    store.at_request = refuse_parts
    with pytest.raises(DataError, match=r"part-000000.*cannot be written .*The store refused"):
        build(planned(inputs), out, Key.from_seed(SEED))
    store.be_good()
    assert names_of(out) == set()


@pytest.fixture
def key_file(tmp_path):
    new_key().save(tmp_path / "key")
    return str(tmp_path / "key")


def command(source, target, key_file):
    return ["ballsbins", "build", source, "--out", target, "-T", "12", "--key-file", key_file]


@pytest.mark.parametrize(
    ("source", "target", "said"),
    [
        ("nowhere://x/y", None, "the scheme is 'nowhere://'"),
        (None, "s3://user:password@batches/out", "must be without credentials"),
        ("s3://no-such-bucket-here/in", None, "does not exist"),
        (None, "s3://no-such-bucket-here/out", "The bucket does not exist"),
    ],
)
def test_what_a_person_gets_wrong(source, target, said, address, inputs, key_file, monkeypatch, capsys):
    out = f"{address}/out"
    monkeypatch.setattr("sys.argv", command(source or inputs, target or out, key_file))
    with pytest.raises(SystemExit) as ended:
        main()
    told = capsys.readouterr().err
    assert ended.value.code == 2
    assert said in told
    assert "password" not in told
    assert len([line for line in told.splitlines() if not line.startswith("build: ")]) == 1  # how far it is
    assert names_of(out) == set()


@pytest.mark.parametrize("who", ["nobody", "a stranger"])
def test_credentials_that_are_missing_or_not_enough(who, address, inputs, key_file):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_ACCESS")}
    if who != "nobody":
        environment["AWS_ACCESS_KEY_ID"] = who
    begin = [sys.executable, "-c", "from ballsbins.cli import main; main()"]
    asked = [*begin, *command(inputs, f"{address}/out", key_file)[1:]]
    done = subprocess.run(asked, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 2
    assert "The store refused: set credentials that may do this" in done.stderr
    assert "Traceback" not in done.stderr
    assert len([line for line in done.stderr.splitlines() if not line.startswith("build: ")]) == 1
    assert names_of(f"{address}/out") == set()


def test_a_store_that_is_not_there_is_told(inputs, store, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(DataError, match="The store did not answer, also after several tries"):
        open_inputs([f"s3://{BUCKET}/elsewhere/that/nobody/asked/for"])


def test_an_object_that_changes_is_named(address, inputs, table):
    out, plan = f"{address}/out", planned(inputs)
    swapped = table.slice(1_000).take(np.random.default_rng(0).permutation(2_000))
    with located(f"{inputs}/b.parquet").create() as sink:
        pq.write_table(swapped, sink, row_group_size=500)
    with pytest.raises(DataError, match=r"b\.parquet' changed while it was being read"):
        build(plan, out, Key.from_seed(SEED))
    assert names_of(out) == set()


def test_any_scheme_of_fsspec(table):
    """memory:// stands for all of them."""
    home = located("memory://ballsbins/in")
    with suppress(FileNotFoundError):
        home.filesystem.delete_dir("ballsbins")
    home.filesystem.create_dir(home.path)
    with (home / "a.parquet").create() as sink:
        pq.write_table(table, sink)
    out = "memory://ballsbins/out"
    home.filesystem.create_dir("ballsbins/out/epoch-000000")
    build(planned(str(home)), out, Key.from_seed(SEED))
    assert rows_of(out) == expected()


def test_locations(tmp_path):
    here = located("s3://bucket/a/b?region=eu-west-1&endpoint_override=http%3A%2F%2F127.0.0.1%3A9")
    below = here / "c"
    assert str(below) == "s3://bucket/a/b/c"
    assert below.path == "bucket/a/b/c"
    assert below.everywhere.startswith("s3://bucket/a/b/c?region=eu-west-1&")
    assert (str(below.parent), below.parent.path) == (str(here), here.path)
    local = located(tmp_path / "x")
    assert local.local == tmp_path / "x"
    assert str(local / "y") == str(tmp_path / "x" / "y")
    sink = local.write(b"abc")
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o600
    assert (sink.bytes, local.read_bytes()) == (3, b"abc")
    with pytest.raises(DataError, match="File exists"):
        local.write(b"other")
    assert local.read_bytes() == b"abc", "a file that was there is not touched"
    for bad in ("s3://a:b@bucket/x", "s3://bucket/x?secret_key=abc"):
        with pytest.raises(InvalidInputError, match="without credentials"):
            located(bad)
