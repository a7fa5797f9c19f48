"""Build one epoch of batch files on Spark: assign, shuffle, sort, write; the driver publishes what was written."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ballsbins import validate
from ballsbins.engines.manifest import MANIFEST_NAME, OFFSETS_NAME, Manifest, part_name, stored_epoch
from ballsbins.engines.placement import placement_for
from ballsbins.engines.plan import Plan
from ballsbins.engines.progress import Report, Reporter
from ballsbins.engines.reader import complete_epochs, read_manifest
from ballsbins.engines.spark.session import broadcast, shipped
from ballsbins.engines.workspace import new_epoch, prepare_directory, write_whole
from ballsbins.errors import BallsBinsError, DataError
from ballsbins.extras import load
from ballsbins.samplers import BallsAndBins, Key, Shuffle
from ballsbins.samplers.base import check_epoch, even_cuts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ballsbins.engines.spark.writer import Written

_LAST_PYTHON_ERROR = re.compile(r"^(\w+(?:\.\w+)*(?:Error|Exception|Interrupt)): (.+)$", re.MULTILINE)


def build(
    plan: Plan,
    directory: str | Path,
    key: Key,
    epoch: int = 0,
    report: Report | None = None,
    *,
    session: SparkSession,
    parts: int | None = None,
) -> Manifest:
    """Write one epoch of batch files, unless it is there already; return its manifest.

    `parts` is the number of partitions and files, at most one for each batch; by default at least one for each core
    of the cluster. No row's batch depends on it.
    """
    load("pyspark", feature="The Spark engine", extra="spark")
    path, number = Path(directory).absolute(), stored_epoch(plan.sampler, check_epoch(epoch))
    placement_for(plan.sampler, key, number, plan.num_examples, plan.identity)  # refuses what has none
    manifest = replace(plan.manifest(key, number), batches_per_file=_batches_per_file(plan, session, parts))
    prepare_directory(path)
    for other in complete_epochs(path):
        found = read_manifest(path, other)
        manifest.require_same_run(found)
        if other == number:
            return found
    reporter = Reporter(report, number, plan.num_examples, plan.inputs.bytes)
    with new_epoch(path, number) as (made, scratch):
        written = _run(plan, manifest, key, scratch, session, reporter)
        _take(written, manifest, plan, made)
    return manifest


def _batches_per_file(plan: Plan, session: SparkSession, parts: int | None) -> int:
    steps = plan.sampler.steps
    wanted = session.sparkContext.defaultParallelism if parts is None else parts
    number = validate.integer("parts", wanted, 1, advice="State how many files an epoch is cut into.")
    even = -(-steps // number)
    return even if parts is not None else min(even, plan.batches_per_file)


def _run(
    plan: Plan, manifest: Manifest, key: Key, scratch: Path, session: SparkSession, reporter: Reporter
) -> dict[int, Written]:
    """Have Spark write all parts below `scratch`."""
    from ballsbins.engines.spark.assignment import Drawn
    from ballsbins.engines.spark.progress import watched
    from ballsbins.engines.spark.writer import FORMAT, BatchSource, Job, read_committed

    drawn = Drawn(plan.sampler, key, manifest.epoch, _boundaries(plan, manifest, key))
    job = Job.of(scratch, manifest, plan.inputs.schema, plan.rows_per_group, plan.compression)
    with (
        shipped(session),
        broadcast(session, drawn) as secret,
        _spark_errors(scratch.parent.parent),
        watched(session, scratch, manifest, plan, reporter),
    ):
        session.dataSource.register(BatchSource)
        rows = _sorted_rows(plan, manifest, session, secret)
        rows.write.format(FORMAT).mode("append").option("job", job.to_option()).save()
    return read_committed(scratch)


def _boundaries(plan: Plan, manifest: Manifest, key: Key) -> tuple[tuple[int, int], ...]:
    """For shuffle, the random places at which the parts but the first begin."""
    from ballsbins.engines.spark.assignment import shuffled_boundaries

    if not isinstance(plan.sampler, Shuffle):
        return ()
    ranks = _first_ranks(plan, manifest)
    return shuffled_boundaries(plan.sampler, key, manifest.epoch, plan.num_examples, ranks)


def _first_ranks(plan: Plan, manifest: Manifest) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The rank of the first row of every part but the first, as far as there are rows."""
    cut = even_cuts(plan.num_examples, manifest.steps)
    starts = [
        cut(step).start
        for step in range(manifest.batches_per_file, manifest.steps, manifest.batches_per_file)
    ]
    return np.array([start for start in starts if start < plan.num_examples], dtype=np.int64)


def _sorted_rows(plan: Plan, manifest: Manifest, session: SparkSession, secret: Any) -> DataFrame:
    """Partition p has the rows of part p, in the order of the batch files."""
    from pyspark.sql import functions as sql

    from ballsbins.engines.spark import assignment
    from ballsbins.engines.spark.table import IDENTITY, identified, quoted, row_counts
    from ballsbins.engines.spark.writer import BATCH, NAME, WORD

    counts = row_counts(plan.inputs) if plan.inputs.is_parquet else None
    rows = identified(session, plan.inputs, counts, plan.identity)
    columns = [sql.col(quoted(name)) for name in plan.inputs.schema.names]
    identity = sql.col(IDENTITY)
    if isinstance(plan.sampler, BallsAndBins):
        placed = rows.withColumn(BATCH, assignment.bin_function(secret)(identity))
        part = sql.expr(f"cast({BATCH} div {manifest.batches_per_file} as int)")
        kept = placed.repartitionById(manifest.num_parts, part).sortWithinPartitions(BATCH, IDENTITY)
        own = [sql.col(BATCH)]
        if plan.sampler.max_batch_size is not None:
            own.append(assignment.truncation_function(secret)(sql.col(BATCH), identity).alias(WORD))
        if plan.identity is not None:
            own.append(identity.alias(NAME))
        return kept.select(*columns, *own)
    if isinstance(plan.sampler, Shuffle):
        place = "__ballsbins_place"
        placed = rows.withColumn(place, assignment.shuffle_function(secret)(identity))
        parted = placed.repartitionById(manifest.num_parts, sql.col(f"{place}.part"))
        return parted.sortWithinPartitions(f"{place}.high", f"{place}.low").select(*columns)
    firsts = sql.array(*[sql.lit(rank) for rank in _first_ranks(plan, manifest).tolist()])
    part = sql.size(sql.filter(firsts, lambda rank: rank <= identity))
    return rows.repartitionById(manifest.num_parts, part).sortWithinPartitions(IDENTITY).select(*columns)


def _take(written: dict[int, Written], manifest: Manifest, plan: Plan, made: Path) -> None:
    """Check that the parts are whole, and make an epoch of them; the manifest comes last."""
    for part in written.values():
        if part.problem is not None:
            column = "" if plan.identity is None else f"The identity column {plan.identity.name!r} "
            raise DataError(f"{column}{part.problem}")
    rows = sum(part.rows for part in written.values())
    if sorted(written) != list(range(manifest.num_parts)) or rows != plan.num_examples:
        raise DataError(
            f"The inputs had {plan.num_examples:,} rows when they were counted, but {rows:,} when Spark read them. "
            "Build from files that do not change, and that all machines of the cluster see."
        )
    sizes = [np.array(written[part].sizes, dtype=np.int64) for part in range(manifest.num_parts)]
    for number in range(manifest.num_parts):
        Path(written[number].path).rename(made / part_name(number))
    content = io.BytesIO()
    np.save(content, np.concatenate(([0], np.cumsum(np.concatenate(sizes)))))
    write_whole(made / OFFSETS_NAME, content.getvalue())
    write_whole(made / MANIFEST_NAME, manifest.to_json().encode("utf-8"))


@contextmanager
def _spark_errors(directory: Path) -> Iterator[None]:
    """Turn a failed Spark job into an error that says what failed, without the Java stack."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        yield
    except BallsBinsError:
        raise
    except (PySparkException, Py4JError) as error:
        found = _LAST_PYTHON_ERROR.findall(str(error))
        said = f"{found[-1][0]}: {found[-1][1]}" if found else str(error).strip().splitlines()[0]
        raise DataError(
            f"Spark could not build an epoch in {str(directory)!r}: {said} Nothing unfinished was left behind. Check "
            "that all machines of the cluster can read the inputs and write this directory, then run the same "
            "command again."
        ) from None
