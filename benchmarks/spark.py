"""The Spark engine beside Spark's own read → repartition → sort → write of the same data, in the same session.

    python benchmarks/spark.py [--small]

Both shuffle every row once, sort it and write it as Parquet with the same compression, in as many files; ours also
computes every row's batch from the key, and finds and records where batches begin. CPU time is that of Java, the
Python workers and the driver together, user and system; each job runs once on few rows before, to be compiled.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

from ballsbins import BallsAndBins, Key
from ballsbins.batch_files import spark
from ballsbins.batch_files.build_plan import plan_build
from ballsbins.batch_files.inputs import open_inputs
from engines import make

ROWS, SMALL = 2_000_000, 20_000
FEW = 20_000
BATCH_SIZE = 1_024
PARTS = 8


def cpu_seconds():
    """All CPU time of this session of processes, those that have ended included (Linux)."""
    ticks = 0
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except (OSError, NotADirectoryError):
            continue
        if int(fields[3]) == os.getsid(0):
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def ours(session, source, target):
    made = plan_build(open_inputs([source]), lambda n: BallsAndBins(-(-n // BATCH_SIZE)))
    spark.build(made, target, Key.from_seed(1), session=session, parts=PARTS)


def plain(session, source, target):
    from pyspark.sql import functions as sql

    rows = session.read.parquet(str(source))
    steps = -(-rows.count() // BATCH_SIZE)
    batch = sql.floor(sql.rand(1) * steps).cast("int")
    part = sql.expr(f"cast(batch div {-(-steps // PARTS)} as int)")
    placed = rows.withColumn("batch", batch).repartitionById(PARTS, part).sortWithinPartitions("batch")
    placed.drop("batch").write.option("compression", "snappy").parquet(str(target))


def measured(job, *arguments):
    cpu, wall = cpu_seconds(), time.perf_counter()
    job(*arguments)
    return cpu_seconds() - cpu, time.perf_counter() - wall


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="few rows, to see that it runs")
    small = parser.parse_args().small
    rows = SMALL if small else ROWS
    settings = {"spark.driver.memory": "2g"}
    if small:
        settings["spark.driver.extraJavaOptions"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if os.getsid(0) != os.getpid():
        if os.fork():  # measure the child, a session of its own
            raise SystemExit(os.waitstatus_to_exitcode(os.wait()[1]))
        os.setsid()
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        for name, count in (("few", FEW), ("all", rows)):
            make(folder / name, count)
        size = sum(path.stat().st_size for path in (folder / "all").iterdir())
        print(f"{rows:,} rows of 40 columns, {size / 1e6:.0f} MB of Parquet, local[2], {PARTS} parts")
        with spark.session("local[2]", settings) as session:
            times = {}
            for job in (plain, ours):
                if not small:
                    job(session, folder / "few", folder / f"{job.__name__}-few")
                times[job] = measured(job, session, folder / "all", folder / f"{job.__name__}-all")
                cpu, wall = times[job]
                print(
                    f"{job.__name__:6} {cpu:7.1f} CPU s {wall:7.1f} s  {rows / cpu:10,.0f} rows a CPU second"
                )
        print(f"ours / Spark's own: {times[ours][0] / times[plain][0]:.2f} of the CPU time")


if __name__ == "__main__":
    main()
