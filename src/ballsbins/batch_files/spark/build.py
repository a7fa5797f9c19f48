"""Build batch files and assignments on Spark: executors assign, sort and write; the driver publishes what they wrote.

**Assignments.** `assign` writes only the assignment of rows to batches, the same file as the embedded engine's.

Executors sort and truncate the identities in parts; the driver concatenates the parts. For Poisson, the executors
draw the batches and read nothing: the file has about one line per row and epoch, but a join with it repeats rows.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ballsbins import _check
from ballsbins._extras import Later, load
from ballsbins.batch_files.assignments import (
    Positions,
    assignment_schema,
    checked_epochs,
    require_numbered,
)
from ballsbins.batch_files.build import Report, Reporter, begin_run
from ballsbins.batch_files.build_plan import BuildPlan
from ballsbins.batch_files.dictionaries import as_stream
from ballsbins.batch_files.epoch_directory import new_epoch, new_file
from ballsbins.batch_files.format import Manifest, StoredFile, stored_epoch
from ballsbins.batch_files.input_files import require_unchanged
from ballsbins.batch_files.inputs import Inputs, file_digest
from ballsbins.batch_files.row_order import row_order_of
from ballsbins.batch_files.sort import Memory
from ballsbins.batch_files.spark.session import broadcast, ship, what_failed
from ballsbins.batch_files.store import Location, located
from ballsbins.batch_files.writer import write_epoch_end
from ballsbins.errors import DataError
from ballsbins.samplers import BallsAndBins, Key
from ballsbins.samplers.base import check_epoch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ballsbins.batch_files.spark.part_writer import Written

arrow = Later("pyarrow", feature="Writing assignments", extra="data")
parquet = Later("pyarrow.parquet", feature="Writing assignments", extra="data")


def build(
    plan: BuildPlan,
    directory: str | os.PathLike[str],
    key: Key,
    epoch: int = 0,
    report: Report | None = None,
    *,
    session: SparkSession,
    parts: int | None = None,
    group_readable: bool = False,
) -> Manifest:
    """Write one epoch of batch files on Spark, unless it already exists.

    The run is chosen as in the embedded engine.

    Args:
        plan: what to build, from `plan_build`.
        directory: where to build; the driver and all executors must reach it under the same address.
        key: a master key; or the key of one run, `key.for_run(run)`.
        epoch: the number of the epoch, from 0.
        report: called with the progress of the build.
        session: the Spark session, from `session`.
        parts: the number of partitions and files, at most one per batch; by default at least one per core of the
            cluster. It does not affect which batch a row goes to.
        group_readable: whether to accept a directory of mode 0770.

    Returns:
        The manifest of the epoch.

    Raises:
        DataError: Spark failed, or the inputs have changed.
        InvalidInputError: a batch does not fit into a Python worker.
    """
    here, number = located(directory), stored_epoch(plan.sampler, check_epoch(epoch))
    _require_memory(plan, session)
    run_key, there = begin_run(plan, here, key, group_readable=group_readable)
    if number in there:
        return there[number]
    digests = hashed(plan.inputs, session)
    manifest = replace(
        plan.manifest(run_key, number, digests), batches_per_file=batches_per_file(plan, session, parts)
    )
    for found in there.values():
        manifest.require_same_run(found)
    reporter = Reporter(report, [number], plan.num_examples, plan.inputs.bytes)
    with new_epoch(here, number) as begun:
        written = write_parts(plan, manifest, run_key, begun.made, begun.scratch, session, reporter)
        require_unchanged(plan.inputs.files)
        stored = [StoredFile(part.name, part.bytes, part.checksum) for part in written]
        sizes = np.concatenate([np.array(part.sizes, dtype=np.int64) for part in written])
        with begun.publishing(manifest, [part.name for part in stored]):
            return write_epoch_end(begun.made, manifest, sizes, stored, plan.dictionaries.as_batch())


def build_epochs(
    plan: BuildPlan,
    directory: str | os.PathLike[str],
    key: Key,
    epochs: Sequence[int],
    report: Report | None = None,
    *,
    session: SparkSession,
    parts: int | None = None,
    group_readable: bool = False,
) -> list[Manifest]:
    """Write several epochs of one run, one shuffle for each: `build` for several epochs."""
    made = []
    for epoch in epochs:
        made.append(
            build(
                plan,
                directory,
                key,
                epoch,
                report,
                session=session,
                parts=parts,
                group_readable=group_readable,
            )
        )
        # The next epoch belongs to this run too, even if a trainer has removed this epoch by then.
        key = key.for_run(made[-1].run)
    return made


def _require_memory(plan: BuildPlan, session: SparkSession) -> None:
    """Refuse batches that do not fit into a Python worker's memory: the stated limit, or Spark's share for Python."""
    settings = session.sparkContext.getConf()
    given = settings.get("spark.executor.pyspark.memory")
    limit = plan.memory.limit
    if given is not None:
        cores = int(settings.get("spark.executor.cores") or 1)
        limit = min(limit, Memory.parse(_with_unit(given)).limit // cores)
    limited = replace(plan, memory=Memory(limit), wanted_workers=1)
    vars(limited)["trial"] = plan.trial  # reuse the trial that has already run
    limited.require_memory()


def _with_unit(size: str) -> str:
    """A size as Spark writes it: 512m, 2g, or a plain number, which means mebibytes."""
    number, unit = size.rstrip("bB").rstrip("kmgKMG"), size.rstrip("bB")[-1:].lower()
    return f"{number}{unit if unit in 'kmg' and unit else 'm'}ib"


def hashed(inputs: Inputs, session: SparkSession) -> list[str]:
    """The hash of every input file. Executors read the files with pyarrow, as the embedded engine does."""
    if isinstance(inputs, Positions):
        return []
    ship(session)
    context = session.sparkContext
    numbers = range(len(inputs.files))
    slices = max(1, min(len(numbers), 4 * context.defaultParallelism))
    with _spark_errors(str(inputs.files[0].location.parent), "read"):
        found = context.parallelize(numbers, slices).map(partial(file_digest, inputs)).collect()
    require_unchanged(inputs.files)
    return found


def assign(
    plan: BuildPlan,
    path: str | os.PathLike[str],
    key: Key,
    epochs: Sequence[int] = (0,),
    report: Report | None = None,
    *,
    session: SparkSession,
    parts: int | None = None,
) -> str:
    """Write the assignment of some epochs as one Parquet file of mode 0600, on Spark. It is as secret as the key.

    Args:
        plan: what to assign, from `plan_assignment`.
        path: the file to write; it must not exist yet.
        key: a master key starts a new run; the key of a run continues that run.
        epochs: the epochs to assign, counted from 0.
        report: called with the progress.
        session: the Spark session, from `session`.
        parts: the number of partitions of an epoch; it does not affect which batch a row goes to.

    Returns:
        The public id of the run, which is also in the file's metadata.

    Raises:
        DataError: Spark failed, or the file exists.
    """
    numbers = checked_epochs(epochs)
    run_key = key.for_run()
    schema = assignment_schema(plan, run_key)
    _require_memory(plan, session)
    with (
        new_file(located(path)) as (made, scratch),
        made.create() as sink,
        parquet.ParquetWriter(sink, schema, compression=plan.compression, write_statistics=False) as file,
    ):
        for epoch in numbers:
            # Executors can reach files beside the output, on a shared disk or in a store.
            below = made.parent / f".building-{made.name}-{epoch}-{secrets.token_hex(4)}"
            below.make_directory()
            reporter = Reporter(report, [epoch], plan.num_examples, plan.inputs.bytes)
            manifest = _manifest(plan, run_key, epoch, batches_per_file(plan, session, parts))
            try:
                written = write_parts(plan, manifest, run_key, below, scratch, session, reporter)
                for number, part in enumerate(written):
                    first = number * manifest.batches_per_file
                    steps = np.repeat(np.arange(first, first + len(part.sizes)), part.sizes)
                    with (below / part.name).open() as source:
                        _append(file, parquet.ParquetFile(source), epoch, steps.astype(np.int32), schema)
                    (below / part.name).remove()
            finally:
                below.remove_tree()
    return str(run_key.run)


def _manifest(plan: BuildPlan, key: Key, epoch: int, per_file: int) -> Manifest:
    """The manifest that guides the part writer. The writer sees Poisson batches as already truncated bins."""
    if not plan.sampler.partitions:
        require_numbered(plan)
        bins = replace(plan, sampler=BallsAndBins(plan.sampler.steps), mechanism=None)
        return replace(bins.manifest(key, epoch), batches_per_file=per_file)
    drawn = stored_epoch(plan.sampler, epoch)
    row_order_of(plan.sampler, key, drawn, plan.num_examples, plan.identity)  # raises if it has none
    return replace(plan.manifest(key, drawn), batches_per_file=per_file)


def _append(file: Any, part: Any, epoch: int, steps: Any, schema: Any) -> None:
    begin = 0
    for rows in part.iter_batches(1 << 18):
        end = begin + rows.num_rows
        columns = [*rows.columns, arrow.array(np.full(rows.num_rows, epoch)), arrow.array(steps[begin:end])]
        file.write_table(arrow.table(columns, schema=schema))
        begin = end


def batches_per_file(plan: BuildPlan, session: SparkSession, parts: int | None) -> int:
    """Batches in one part: to get `parts` parts, or one part per core and more if parts would be too large."""
    wanted = session.sparkContext.defaultParallelism if parts is None else parts
    number = _check.integer("parts", wanted, 1, advice="State how many files an epoch is cut into.")
    even = -(-plan.sampler.steps // number)
    return even if parts is not None else min(even, plan.batches_per_file)


def write_parts(
    plan: BuildPlan,
    manifest: Manifest,
    key: Key,
    directory: Location,
    scratch: Path,
    session: SparkSession,
    reporter: Reporter,
) -> list[Written]:
    """Let Spark write all parts into `directory` and their list into `scratch`; return the parts in order."""
    load("pyspark", feature="The Spark engine", extra="spark")
    from ballsbins.batch_files.spark.part_writer import FORMAT, BatchSource, Job, read_committed, write_part
    from ballsbins.batch_files.spark.rows import drawn, sorted_rows

    words = plan.dictionaries.as_batch()
    shared = directory / f"dictionaries-{secrets.token_hex(4)}.tmp"
    if words is not None:
        shared.write(as_stream(words))
    job = Job.of(directory, scratch, manifest, plan, "" if words is None else shared.name)
    ship(session)
    with (
        broadcast(session, drawn(plan, manifest, key)) as secret,
        _spark_errors(str(directory.parent), "write below"),
        watched(session, directory, manifest, plan, reporter),
    ):
        session.dataSource.register(BatchSource)
        rows = sorted_rows(plan, manifest, session, secret)
        rows.write.format(FORMAT).mode("append").option("job", job.to_option()).save()
    written = {part.part: part for part in read_committed(scratch)}
    if plan.num_examples == 0:  # Spark runs no tasks for a table that it knows to be empty
        written = {part: write_part(job, part, []) for part in range(manifest.num_parts)}
    if words is not None:
        shared.remove()
    for part in written.values():
        if part.problem is not None:
            raise DataError(part.problem)
    if set(written) != set(range(manifest.num_parts)):
        raise DataError(
            f"Spark wrote {len(written)} of {manifest.num_parts} parts. Run the same command again."
        )
    came = sum(part.rows for part in written.values())
    if came != plan.num_examples and plan.sampler.partitions:
        raise DataError(
            f"The inputs had {plan.num_examples:,} rows when they were counted, but {came:,} when Spark read them. "
            "Build from files that do not change, and that all machines of the cluster see."
        )
    return [written[part] for part in range(manifest.num_parts)]


@contextmanager
def _spark_errors(where: str, doing: str) -> Iterator[None]:
    """Turn a failed Spark job into an error that says what failed, without the Java stack trace."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise DataError(
            f"Spark could not {doing} {where!r}: {what_failed(error)} Nothing unfinished was left behind. Check that "
            "all machines of the cluster can read the inputs and write this directory, then run the same command "
            "again."
        ) from None


_PAUSE = 0.5  # seconds between two checks


@contextmanager
def watched(
    session: SparkSession, directory: Location, manifest: Manifest, plan: BuildPlan, reporter: Reporter
) -> Iterator[None]:
    """Report progress to `reporter` from time to time, in a separate thread, until the block ends."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_PAUSE):
            begun = len(directory.names())
            if begun:
                written = min(max(begun - 1, 0), manifest.num_parts) * manifest.batches_per_file
                reporter.written(reporter.epoch, min(written, manifest.steps), manifest.steps)
            else:
                share = _finished_share(session)
                reporter.read(int(share * plan.num_examples), int(share * plan.inputs.bytes))

    thread = threading.Thread(target=watch, name="ballsbins-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    reporter.written(reporter.epoch, manifest.steps, manifest.steps)


def _finished_share(session: SparkSession) -> float:
    tracker = session.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    tasks = [(stage.numCompletedTasks, stage.numTasks) for stage in stages if stage is not None]
    return max((done / max(total, 1) for done, total in tasks), default=0.0)
