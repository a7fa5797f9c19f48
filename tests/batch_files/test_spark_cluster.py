"""Spark for real: a standalone master and two workers on the loopback, one of which loses its power at work."""

import gc
import os
import sys
import threading
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from ballsbins import BallsAndBins
from ballsbins.batch_files import BatchFiles, spark
from ballsbins.batch_files import build as local
from ballsbins.batch_files.build_plan import plan_build
from ballsbins.batch_files.inputs import open_inputs
from ballsbins.batch_files.spark.session import ship
from ballsbins.batch_files.store import located
from ballsbins.cli import app
from ballsbins.samplers import Key

from . import spark_cluster
from .s3_store import BUCKET, serving

pytestmark = [
    pytest.mark.xdist_group("spark cluster"),
    pytest.mark.slow,
    *spark_cluster.OPEN_SOCKETS,
]

MASTER = Key(bytes(range(32)))
KEY = MASTER.for_run()
SAMPLER = BallsAndBins(40, max_batch_size=60, num_examples=2000)
PARTS = 20


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def light_java():
    spark_cluster.install_java()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("JAVA_TOOL_OPTIONS", spark_cluster.LIGHT)
        yield
    gc.collect()  # sockets that PySpark left open, before the tests of others


@pytest.fixture(scope="module")
def cluster(place, light_java):
    with spark_cluster.Cluster(place) as started:
        yield started


@pytest.fixture(scope="module")
def inputs(place):
    directory = place / "in"
    directory.mkdir()
    for part in range(4):
        values = np.arange(part * 500, part * 500 + 500)
        pq.write_table(
            pa.table({"row": values, "text": [f"row {value}" for value in values]}),
            directory / f"{part}.parquet",
        )
    return directory


@pytest.fixture(scope="module")
def expected(inputs, place):
    local.build(plan_build(open_inputs([inputs]), SAMPLER), place / "embedded", KEY)
    return list(BatchFiles.open(place / "embedded").batches(0))


def agree(directory, expected):
    found = list(BatchFiles.open(directory).batches(0))
    return found == expected


def test_the_command_line_builds_on_spark(light_java, inputs, expected, tmp_path):
    MASTER.save(tmp_path / "key")
    options = [
        "--steps",
        "40",
        "--max-batch-size",
        "60",
        "--key-file",
        str(tmp_path / "key"),
        "--run",
        KEY.run,
    ]
    where = ["--out", str(tmp_path / "out"), "--engine", "spark", "--master", "local[2]"]
    done = CliRunner().invoke(app, ["build", str(inputs), *options, *where])
    assert done.exit_code == 0, done.output
    assert "2,000 rows in 40 batches" in " ".join(done.output.split())
    assert agree(tmp_path / "out", expected)


def test_executors_read_a_store_with_the_package_that_is_sent_to_them(cluster, inputs, expected):
    with serving():
        for file in inputs.iterdir():
            located(f"s3://{BUCKET}/cluster/in/{file.name}").write(file.read_bytes())
        told = {
            f"spark.executorEnv.{name}": os.environ[name] for name in os.environ if name.startswith("AWS_")
        }
        planned, out = (
            plan_build(open_inputs([f"s3://{BUCKET}/cluster/in"]), SAMPLER),
            f"s3://{BUCKET}/cluster/out",
        )
        with spark.session(cluster.url, told) as session:
            spark.build(planned, out, KEY, session=session, parts=3)
        assert agree(out, expected)


def test_a_worker_that_dies_changes_nothing(cluster, inputs, expected, place, tmp_path):
    (place / "events").mkdir()
    settings = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": f"file://{place / 'events'}",
        "spark.shuffle.io.retryWait": "200ms",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",  # both workers take part from the beginning
    }
    planned = plan_build(open_inputs([inputs]), SAMPLER)
    failed = []

    def build(session):
        try:
            spark.build(planned, tmp_path / "out", KEY, session=session, parts=PARTS)
        except BaseException as error:
            failed.append(error)

    with spark.session(cluster.url, settings) as session:
        ship(session)
        sources = session.sparkContext.parallelize(range(2), 2).map(
            lambda _: __import__("ballsbins").__file__
        )
        assert all(
            ".zip" in source for source in sources.collect()
        )  # the driver's own package, not an installed one
        at_work = threading.Thread(target=build, args=(session,))
        at_work.start()
        epoch = tmp_path / "out" / "epoch-000000"
        while not list(epoch.glob("part-*.parquet")) and at_work.is_alive():
            time.sleep(0.01)
        cluster.kill_worker(1)
        assert at_work.is_alive(), "the worker was to be killed in the middle"
        at_work.join()
    assert failed == []
    events = "".join(path.read_text() for path in (place / "events").rglob("events_*"))
    assert "SparkListenerExecutorRemoved" in events
    assert "ExecutorLostFailure" in events or "FetchFailed" in events  # work was lost, and done again
    assert agree(tmp_path / "out", expected)
    assert [entry.name for entry in (tmp_path / "out").iterdir()] == ["epoch-000000"]
