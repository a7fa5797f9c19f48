"""Build one epoch of batch files on Spark: executors assign, sort and write; the driver publishes what they wrote."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ballsbins._files import write_new
from ballsbins.engines.manifest import MANIFEST_NAME, OFFSETS_NAME, Manifest, part_name, stored_epoch
from ballsbins.engines.plan import Plan
from ballsbins.engines.progress import Report, Reporter
from ballsbins.engines.runs import begin_epoch
from ballsbins.engines.spark.job import batches_per_file, run
from ballsbins.engines.workspace import new_epoch
from ballsbins.samplers import Key
from ballsbins.samplers.base import check_epoch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ballsbins.engines.spark.writer import Written


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
    of the cluster. No row's batch depends on it. The run is chosen as by the embedded engine.
    """
    path, number = Path(directory).absolute(), stored_epoch(plan.sampler, check_epoch(epoch))
    per_file = batches_per_file(plan, session, parts)
    run_key, manifest, is_there = begin_epoch(plan, path, key, number)
    if is_there:
        return manifest
    manifest = replace(manifest, batches_per_file=per_file)
    reporter = Reporter(report, number, plan.num_examples, plan.inputs.bytes)
    with new_epoch(path, manifest) as (made, scratch):
        written = run(plan, manifest, run_key, scratch, session, reporter)
        _publish(written, manifest, made)
    return manifest


def _publish(written: list[Written], manifest: Manifest, made: Path) -> None:
    """Make an epoch of the parts; the manifest comes last."""
    for number, part in enumerate(written):
        Path(part.path).rename(made / part_name(number))
    sizes = np.concatenate([np.array(part.sizes, dtype=np.int64) for part in written])
    content = io.BytesIO()
    np.save(content, np.concatenate(([0], np.cumsum(sizes))))
    write_new(made / OFFSETS_NAME, content.getvalue())
    write_new(made / MANIFEST_NAME, manifest.to_json().encode("utf-8"))
