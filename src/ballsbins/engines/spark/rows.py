"""The plan on DataFrames: every row gets its batch, goes to the partition of its part, and is sorted there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pyspark.sql import functions as sql

from ballsbins.engines.assign import POSITION, Positions
from ballsbins.engines.manifest import Manifest
from ballsbins.engines.plan import Plan
from ballsbins.engines.spark import assignment
from ballsbins.engines.spark.table import IDENTITY, identified, quoted, row_counts
from ballsbins.engines.spark.writer import BATCH, NAME, WORD
from ballsbins.samplers import BallsAndBins, Key, Poisson, Shuffle
from ballsbins.samplers.base import even_cuts

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_PLACE = "__ballsbins_place"


def drawn(plan: Plan, manifest: Manifest, key: Key) -> assignment.Drawn:
    """What executors need to know of an epoch; secret."""
    boundaries: tuple[tuple[int, int], ...] = ()
    if isinstance(plan.sampler, Shuffle):
        ranks = _first_ranks(plan, manifest)
        boundaries = assignment.shuffled_boundaries(
            plan.sampler, key, manifest.epoch, plan.num_examples, ranks
        )
    return assignment.Drawn(plan.sampler, key, manifest.epoch, plan.num_examples, boundaries)


def sorted_rows(plan: Plan, manifest: Manifest, session: SparkSession, secret: Any) -> DataFrame:
    """Partition p has the rows of part p, in the order of the batch files."""
    columns = [sql.col(quoted(name)) for name in plan.inputs.schema.names]
    match plan.sampler:
        case BallsAndBins():
            return _binned(plan, manifest, _identified(plan, session), secret, columns)
        case Poisson():
            return _drawn_by_step(plan, manifest, session, secret)
        case Shuffle():
            place = assignment.shuffle_function(secret)(sql.col(IDENTITY))
            placed = _identified(plan, session).withColumn(_PLACE, place)
            parted = placed.repartitionById(manifest.num_parts, sql.col(f"{_PLACE}.part"))
            return parted.sortWithinPartitions(f"{_PLACE}.high", f"{_PLACE}.low").select(*columns)
    firsts = sql.array(*[sql.lit(rank) for rank in _first_ranks(plan, manifest).tolist()])
    part = sql.size(sql.filter(firsts, lambda rank: rank <= sql.col(IDENTITY)))
    parted = _identified(plan, session).repartitionById(manifest.num_parts, part)
    return parted.sortWithinPartitions(IDENTITY).select(*columns)


def _identified(plan: Plan, session: SparkSession) -> DataFrame:
    if isinstance(plan.inputs, Positions):
        return session.range(plan.num_examples).select(
            sql.col("id").alias(POSITION), sql.col("id").alias(IDENTITY)
        )
    counts = row_counts(plan.inputs) if plan.inputs.is_parquet else None
    return identified(session, plan.inputs, counts, plan.identity)


def _binned(plan: Plan, manifest: Manifest, rows: DataFrame, secret: Any, columns: list[Column]) -> DataFrame:
    """Balls-and-bins: a row's batch follows from its identity; rows to be truncated get a word."""
    identity = sql.col(IDENTITY)
    placed = rows.withColumn(BATCH, assignment.bin_function(secret)(identity))
    parted = placed.repartitionById(manifest.num_parts, _part_of_batch(manifest))
    own = [sql.col(BATCH)]
    if plan.sampler.max_batch_size is not None:
        own.append(assignment.truncation_function(secret)(sql.col(BATCH), identity).alias(WORD))
    if plan.identity is not None:
        own.append(identity.alias(NAME))
    return parted.sortWithinPartitions(BATCH, IDENTITY).select(*columns, *own)


def _drawn_by_step(plan: Plan, manifest: Manifest, session: SparkSession, secret: Any) -> DataFrame:
    """Poisson: no rows are read; every batch is drawn by itself, as positions."""
    steps = session.range(plan.sampler.steps).select(sql.col("id").cast("int").alias(BATCH))
    parted = steps.repartitionById(manifest.num_parts, _part_of_batch(manifest)).sortWithinPartitions(BATCH)
    positions = assignment.poisson_function(secret)(sql.col(BATCH))
    return parted.select(sql.explode(positions).alias(POSITION), BATCH)


def _part_of_batch(manifest: Manifest) -> Column:
    return sql.expr(f"cast({BATCH} div {manifest.batches_per_file} as int)")


def _first_ranks(plan: Plan, manifest: Manifest) -> NDArray[np.int64]:
    """The rank of the first row of every part but the first, as far as there are rows."""
    cut, per_file = even_cuts(plan.num_examples, manifest.steps), manifest.batches_per_file
    starts = [cut(step).start for step in range(per_file, manifest.steps, per_file)]
    return np.array([start for start in starts if start < plan.num_examples], dtype=np.int64)
