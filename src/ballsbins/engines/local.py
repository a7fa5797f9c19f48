"""The embedded engine: an epoch of batch files from a table of any size, within a stated memory limit.

Pass one reads the table in order and scatters its rows into buckets of consecutive batches; pass two sorts each
bucket and writes its batches. Every row goes to the batch that the in-memory sampler gives to its identity.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ballsbins._extras import load
from ballsbins.engines.inputs import Inputs
from ballsbins.engines.manifest import Manifest, stored_epoch
from ballsbins.engines.placement import Arranged, Placement, placement_for
from ballsbins.engines.plan import Plan
from ballsbins.engines.progress import Report, Reporter
from ballsbins.engines.runs import begin_epoch
from ballsbins.engines.spill import BucketSort, Placed
from ballsbins.engines.workspace import new_epoch
from ballsbins.engines.writer import PartsWriter
from ballsbins.errors import DataError
from ballsbins.samplers import Key
from ballsbins.samplers.base import check_epoch

if TYPE_CHECKING:
    import pyarrow as pa


def build(
    plan: Plan, directory: str | Path, key: Key, epoch: int = 0, report: Report | None = None
) -> Manifest:
    """Write one epoch of batch files, unless it is there already; return its manifest.

    Samplers that draw the same batches for all epochs have only epoch 0 built. The epoch belongs to the run whose
    epochs are in the directory; in an empty one a new run begins, unless `key` belongs to a run already.
    """
    path, number = Path(directory), stored_epoch(plan.sampler, check_epoch(epoch))
    run_key, manifest, is_there = begin_epoch(plan, path, key, number)
    if is_there:
        return manifest
    placement = placement_for(plan.sampler, run_key, number, plan.num_examples, plan.identity)
    plan.require_disk(path)
    reporter = Reporter(report, number, plan.num_examples, plan.inputs.bytes)
    with new_epoch(path, manifest) as (made, scratch):
        writer = PartsWriter(
            made,
            plan.inputs.schema,
            manifest,
            rows_per_group=plan.rows_per_group,
            compression=plan.compression,
        )
        try:
            for batches in sorted_batches(plan, placement, scratch, reporter):
                writer.write(batches)
                reporter.written(batches.first_step + len(batches.sizes), manifest.steps)
            writer.finish()
        finally:
            writer.abandon()
    return manifest


def sorted_batches(plan: Plan, placement: Placement, scratch: Path, reporter: Reporter) -> Iterator[Arranged]:
    """Give all batches of an epoch in order, some at a time."""
    plan.require_memory()
    sort = BucketSort(scratch, plan.inputs.schema, plan.memory)
    rows = _placed_rows(plan, placement, reporter)
    files = sort.scatter(rows, 0, placement.num_places, plan.scratch_bytes)
    arrow = load("pyarrow", feature="Batching tables", extra="data")
    arrow.default_memory_pool().release_unused()
    return placement.arrange(sort.buckets(files))


def _placed_rows(plan: Plan, placement: Placement, reporter: Reporter) -> Iterator[Placed]:
    start = 0
    for read_bytes, batch in joined(plan.inputs, plan.rows_per_read, plan.memory.chunk_bytes):
        positions = np.arange(start, start + batch.num_rows)
        yield batch, positions, placement.places(start, batch)
        start += batch.num_rows
        reporter.read(start, read_bytes)
    if start != plan.num_examples:
        raise DataError(
            f"The inputs had {plan.num_examples:,} rows when they were counted, but {start:,} when "
            "they were read. "
            "Build from files that do not change."
        )


def joined(inputs: Inputs, rows: int, chunk_bytes: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Read `rows` rows at a time and join them to chunks of some size in memory, however wide they turn out to be.

    Gives (bytes of the files read so far, about; a chunk). Small chunks would make small pieces of buckets.
    """
    arrow = load("pyarrow", feature="Batching tables", extra="data")
    waiting: list[Any] = []
    held, read_bytes = 0, 0
    for read_bytes, batch in inputs.read(rows):
        pieces = -(-batch.nbytes // chunk_bytes)  # rows may turn out far wider than the first ones
        length = -(-batch.num_rows // max(pieces, 1))
        for begin in range(0, batch.num_rows, max(length, 1)):
            waiting.append(batch.slice(begin, length))
            held += waiting[-1].nbytes
            if held >= chunk_bytes:
                yield read_bytes, arrow.concat_batches(waiting)
                waiting, held = [], 0
    if waiting:
        yield read_bytes, arrow.concat_batches(waiting)
