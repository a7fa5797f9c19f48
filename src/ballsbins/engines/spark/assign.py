"""Write only who goes where, on Spark: the same file as the embedded engine's `assign`.

Executors sort and truncate the identities in parts; the driver strings the parts together. Poisson draws every batch
on some executor and reads nothing: it costs about one line a row and epoch, but a join with it repeats rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ballsbins._extras import load
from ballsbins.engines.assign import assignment_schema, checked_epochs, require_numbered
from ballsbins.engines.manifest import Manifest, stored_epoch
from ballsbins.engines.placement import placement_for
from ballsbins.engines.plan import Plan
from ballsbins.engines.progress import Report, Reporter
from ballsbins.engines.spark.job import batches_per_file, run
from ballsbins.engines.workspace import new_file
from ballsbins.samplers import BallsAndBins, Key

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def assign(
    plan: Plan,
    path: str | Path,
    key: Key,
    epochs: Sequence[int] = (0,),
    report: Report | None = None,
    *,
    session: SparkSession,
    parts: int | None = None,
) -> str:
    """Write the assignment of some epochs as one Parquet file of mode 0600; it is as secret as the key.

    `parts` is the number of partitions of an epoch; no row's batch depends on it. A master key begins a new run, and
    the key of a run continues it. Returns the public id of the run, which the file's metadata has, too.
    """
    parquet = load("pyarrow.parquet", feature="Writing assignments", extra="data")
    numbers = checked_epochs(epochs)
    run_key = key.for_run()
    schema = assignment_schema(plan, run_key)
    with (
        new_file(Path(path).absolute()) as (made, scratch),
        parquet.ParquetWriter(
            str(made), schema, compression=plan.compression, write_statistics=False
        ) as file,
    ):
        for epoch in numbers:
            below = scratch / f"epoch-{epoch}"
            below.mkdir(mode=0o700)
            reporter = Reporter(report, epoch, plan.num_examples, plan.inputs.bytes)
            manifest = _manifest(plan, run_key, epoch, batches_per_file(plan, session, parts))
            for number, part in enumerate(run(plan, manifest, run_key, below, session, reporter)):
                steps = np.repeat(np.arange(len(part.sizes)) + number * manifest.batches_per_file, part.sizes)
                _append(file, parquet.ParquetFile(part.path), epoch, steps.astype(np.int32), schema)
                Path(part.path).unlink()
    return str(run_key.run)


def _manifest(plan: Plan, key: Key, epoch: int, per_file: int) -> Manifest:
    """What the parts are written by. To their writer, Poisson's batches are bins like others, already truncated."""
    if not plan.sampler.partitions:
        require_numbered(plan)
        bins = replace(plan, sampler=BallsAndBins(plan.sampler.steps), mechanism=None)
        return replace(bins.manifest(key, epoch), batches_per_file=per_file)
    drawn = stored_epoch(plan.sampler, epoch)
    placement_for(plan.sampler, key, drawn, plan.num_examples, plan.identity)  # refuses what has none
    return replace(plan.manifest(key, drawn), batches_per_file=per_file)


def _append(file: Any, part: Any, epoch: int, steps: Any, schema: Any) -> None:
    arrow = load("pyarrow", feature="Writing assignments", extra="data")
    begin = 0
    for rows in part.iter_batches(1 << 18):
        end = begin + rows.num_rows
        columns = [*rows.columns, arrow.array(np.full(rows.num_rows, epoch)), arrow.array(steps[begin:end])]
        file.write_table(arrow.table(columns, schema=schema))
        begin = end
