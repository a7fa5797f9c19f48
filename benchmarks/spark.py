"""What the Spark engine costs per row, beside Spark's own shuffle of the same data and the embedded engine.

    python benchmarks/spark.py [--small]

`plain` is Spark's own read → repartition → sort → write. It and `ours` shuffle every row once, sort it and write it
as Parquet with the same compression, in as many files. Ours also hashes the inputs, computes every row's batch from
the key, and records where batches begin. `stored` is `ours` with rows that pyarrow reads and hands to Java, as for
inputs in an object store, but from the local disk: no network is in its time. `hashing` is the part of `ours` that
reads the inputs for their hashes. `embedded` is the embedded engine with one worker.

CPU time is that of Java, the Python workers and the driver together, user and system. Every job runs on two sizes,
after a first run on the smaller one for Java's compiler, so the slope between the two has no start-up in it.
docs/spark.md extrapolates from the slopes.
"""

import argparse
import json
import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from unittest import mock

from ballsbins import BallsAndBins, Key
from ballsbins.batch_files import build as embedded_engine
from ballsbins.batch_files import spark
from ballsbins.batch_files.build_plan import plan_build
from ballsbins.batch_files.format import InputFile, Manifest, StoredFile
from ballsbins.batch_files.inputs import open_inputs
from ballsbins.batch_files.spark.build import hashed
from engines import make

SIZES, SMALL = (1_000_000, 3_000_000), (10_000, 20_000)
BATCH_SIZE = 1_024
PARTS = 8
ENTRIES = (1_000, 5_000)  # of a manifest
READINGS = 5  # of a manifest; the fastest counts
MANY = 4 * 10**9  # rows of the plan in docs/spark.md


def cpu_seconds():
    """All CPU time of this session of processes, those that have ended included (Linux)."""
    ticks = 0
    for entry in Path("/proc").glob("[0-9]*"):  # not self and thread-self, which are this process once more
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except (OSError, NotADirectoryError):
            continue
        if int(fields[3]) == os.getsid(0):
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def planned(source):
    return plan_build(open_inputs([source]), lambda n: BallsAndBins(-(-n // BATCH_SIZE)), workers=1)


def plain(session, source, target):
    from pyspark.sql import functions as sql

    rows = session.read.parquet(str(source))
    steps = -(-rows.count() // BATCH_SIZE)
    batch = sql.floor(sql.rand(1) * steps).cast("int")
    part = sql.expr(f"cast(batch div {-(-steps // PARTS)} as int)")
    placed = rows.withColumn("batch", batch).repartitionById(PARTS, part).sortWithinPartitions("batch")
    placed.drop("batch").write.option("compression", "snappy").parquet(str(target))


def ours(session, source, target):
    spark.build(planned(source), target, Key.from_seed(1), session=session, parts=PARTS)


def stored(session, source, target):
    with mock.patch("ballsbins.batch_files.spark.rows._spark_reaches", return_value=False):
        ours(session, source, target)


def hashing(session, source, _):
    hashed(open_inputs([source]), session)


def embedded(_, source, target):
    embedded_engine.build(planned(source), target, Key.from_seed(1))


JOBS = (plain, ours, stored, hashing, embedded)


def measured(job, session, source, target, name):
    """CPU seconds and seconds of one job; its stages get a name in Spark's event log."""
    session.sparkContext.setJobDescription(name)
    cpu, wall = cpu_seconds(), time.perf_counter()
    job(session, source, target)
    return cpu_seconds() - cpu, time.perf_counter() - wall


def shuffled(events):
    """The bytes that every job wrote for its shuffle, by the name of the job."""
    lines = [
        json.loads(line)
        for path in sorted(events.rglob("events_*"))
        for line in path.read_text().splitlines()
    ]
    name_of, total = {}, {}
    for line in lines:
        if line["Event"] == "SparkListenerJobStart":
            name = line["Properties"].get("spark.job.description")
            name_of |= dict.fromkeys(line["Stage IDs"], name)
        if line["Event"] == "SparkListenerTaskEnd" and line.get("Task Metrics"):
            name = name_of[line["Stage ID"]]
            written = line["Task Metrics"]["Shuffle Write Metrics"]["Shuffle Bytes Written"]
            total[name] = total.get(name, 0) + written
    return total


def bytes_below(folder, pattern="*"):
    return sum(path.stat().st_size for path in folder.rglob(pattern) if path.is_file())


def manifest_costs(folder):
    """Bytes of a manifest for each part and each input file, and the CPU seconds that reading one takes for both."""
    (path,) = folder.rglob("manifest.json")
    made = Manifest.from_json(path.read_text(), path)
    (part, *_), (file, *_) = made.files.parts, made.inputs

    def text(parts, files):
        ending = part.name.removeprefix("part-000000")
        entry = StoredFile(part.name, 100_000_000, part.checksum)
        stored_parts = tuple(replace(entry, name=f"part-{number:06d}{ending}") for number in range(parts))
        known = InputFile(file.name, 100_000_000, file.digest)
        inputs = tuple(replace(known, name=f"part-{number:04d}.parquet") for number in range(files))
        all_files = replace(made.files, parts=stored_parts)
        steps = BallsAndBins(parts)
        return replace(made, sampler=steps, batches_per_file=1, inputs=inputs, files=all_files).to_json()

    def seconds(content):
        times = []
        for _ in range(READINGS):
            begin = time.process_time()
            Manifest.from_json(content, path)
            times.append(time.process_time() - begin)
        return min(times)

    less, more = ENTRIES
    per_part = (len(text(more, less)) - len(text(less, less))) / (more - less)
    per_file = (len(text(less, more)) - len(text(less, less))) / (more - less)
    took = (seconds(text(more, more)) - seconds(text(less, less))) / (more - less)
    return per_part, per_file, took


def slope(values):
    """The slope between the two sizes."""
    (less, low), (more, high) = sorted(values.items())
    return (high - low) / (more - less)


def run(folder, sizes, settings, warm):
    """Run all jobs on all sizes; return CPU seconds, by job and then by rows."""
    times = {job: {} for job in JOBS}
    with spark.session("local[2]", settings) as session:
        for job in JOBS:
            if warm:
                measured(job, session, folder / str(min(sizes)), folder / f"{job.__name__}-first", "first")
            for rows in sizes:
                name = f"{job.__name__}-{rows}"
                cpu, wall = measured(job, session, folder / str(rows), folder / name, name)
                times[job][rows] = cpu
                print(f"{job.__name__:9}{rows:10,} rows {cpu:7.1f} CPU s {wall:7.1f} s", flush=True)
    return times


def report(folder, sizes, times):
    """Print the slopes from which docs/spark.md extrapolates."""
    largest = max(sizes)
    ratio = times[ours][largest] / times[plain][largest]
    print(f"\nours / Spark's own at {largest:,} rows: {ratio:.2f} of the CPU time")
    print(f"\nslopes between {sizes[0]:,} and {sizes[1]:,} rows, per row")
    for job in JOBS:
        print(f"{job.__name__:9}{1e6 * slope(times[job]):8.2f} µs of CPU time")
    written = shuffled(folder / "events")
    for job in (plain, ours, stored):
        found = {rows: written[f"{job.__name__}-{rows}"] for rows in sizes}
        print(f"{job.__name__:9}{slope(found):8.1f} bytes of shuffle")
    inputs = {rows: bytes_below(folder / str(rows)) for rows in sizes}
    output = {rows: bytes_below(folder / f"ours-{rows}", "part-*.parquet") for rows in sizes}
    print(f"{'':9}{slope(inputs):8.1f} bytes of input")
    print(f"{'':9}{slope(output):8.1f} bytes of output")
    offsets = {-(-rows // BATCH_SIZE): bytes_below(folder / f"ours-{rows}", "offsets-*") for rows in sizes}
    print(f"\n{slope(offsets):.1f} bytes of offsets per batch")
    plan = planned(folder / str(largest))
    many = replace(plan, num_examples=MANY, sampler=BallsAndBins(-(-MANY // BATCH_SIZE)))
    parts = -(-many.sampler.steps // many.batches_per_file)
    print(f"{many.row_bytes:.0f} bytes per row in memory, so {MANY:,} rows make {parts:,} parts")
    per_part, per_file, took = manifest_costs(folder / f"ours-{largest}")
    print(
        f"{per_part:.0f} bytes of manifest per part, {per_file:.0f} per input file ({ENTRIES[0]:,} to {ENTRIES[1]:,})"
    )
    print(f"{1e6 * took:.1f} µs of CPU time to read one part and one input file of a manifest")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="few rows, to see that it runs")
    small = parser.parse_args().small
    sizes = SMALL if small else SIZES
    settings = {
        "spark.driver.memory": "2g",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
    }
    if small:
        settings["spark.driver.extraJavaOptions"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if os.getsid(0) != os.getpid():
        if os.fork():  # measure the child, a session of its own
            raise SystemExit(os.waitstatus_to_exitcode(os.wait()[1]))
        os.setsid()
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        (folder / "events").mkdir()
        settings["spark.eventLog.dir"] = f"file://{folder / 'events'}"
        for rows in sizes:
            make(folder / str(rows), rows)
        print(f"rows of 40 columns, local[2], {PARTS} parts, batches of {BATCH_SIZE:,}")
        times = run(folder, sizes, settings, warm=not small)
        report(folder, sizes, times)


if __name__ == "__main__":
    main()
