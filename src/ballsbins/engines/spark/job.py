"""Run the plan: broadcast the secret, have all parts written, and say in one sentence what went wrong if it did."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ballsbins import _check
from ballsbins._extras import load
from ballsbins.engines.manifest import Manifest
from ballsbins.engines.plan import Plan
from ballsbins.engines.progress import Reporter
from ballsbins.engines.spark.session import broadcast, ship, what_failed
from ballsbins.errors import DataError
from ballsbins.samplers import Key

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ballsbins.engines.spark.writer import Written


def batches_per_file(plan: Plan, session: SparkSession, parts: int | None) -> int:
    """Batches in one part: for so many parts, or for one for each core, and more where they would grow too large."""
    wanted = session.sparkContext.defaultParallelism if parts is None else parts
    number = _check.integer("parts", wanted, 1, advice="State how many files an epoch is cut into.")
    even = -(-plan.sampler.steps // number)
    return even if parts is not None else min(even, plan.batches_per_file)


def run(
    plan: Plan, manifest: Manifest, key: Key, scratch: Path, session: SparkSession, reporter: Reporter
) -> list[Written]:
    """Have Spark write all parts below `scratch`; return them in order."""
    load("pyspark", feature="The Spark engine", extra="spark")
    from ballsbins.engines.spark.progress import watched
    from ballsbins.engines.spark.rows import drawn, sorted_rows
    from ballsbins.engines.spark.writer import FORMAT, BatchSource, Job, read_committed, write_part

    job = Job.of(scratch, manifest, plan.inputs.schema, plan.rows_per_group, plan.compression)
    ship(session)
    with (
        broadcast(session, drawn(plan, manifest, key)) as secret,
        _spark_errors(scratch),
        watched(session, scratch, manifest, plan, reporter),
    ):
        session.dataSource.register(BatchSource)
        rows = sorted_rows(plan, manifest, session, secret)
        rows.write.format(FORMAT).mode("append").option("job", job.to_option()).save()
    written = {part.part: part for part in read_committed(scratch)}
    if plan.num_examples == 0:  # Spark runs no tasks for a table that it knows to be empty
        written = {part: write_part(job, part, []) for part in range(manifest.num_parts)}
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
def _spark_errors(scratch: Path) -> Iterator[None]:
    """Turn a failed Spark job into an error that says what failed, without the Java stack."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise DataError(
            f"Spark could not write below {str(scratch.parent.parent)!r}: {what_failed(error)} Nothing unfinished "
            "was left behind. Check that all machines of the cluster can read the inputs and write this directory, "
            "then run the same command again."
        ) from None
