"""Rows of an object store as a DataFrame: the executors read the pieces of the table with pyarrow.

Spark itself reaches stores only through Java libraries that PySpark does not bring along. The executors have pyarrow,
and `Inputs` knows how to read each piece and notices objects that have changed, so they read as the embedded engine
does. Rows enter Spark through its interface for data sources in Python, which takes Arrow batches as they are and
needs no pandas. `mapInArrow` needs pandas, and an RDD would make a Python object of every value.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from ballsbins.batch_files.build_plan import BuildPlan
from ballsbins.batch_files.inputs import Inputs
from ballsbins.batch_files.spark.carried_types import carried

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMAT = "ballsbins_inputs"
ROW = "__ballsbins_row"
_SENT_ROWS, _SENT_BYTES = 1 << 13, 1 << 22  # the most that travels from Python to Java at a time
_TASK_BYTES = 128 << 20  # as Spark cuts files; a task reads more only if pieces are larger
_TASKS_PER_CORE = 4  # so that one slow task does not hold up the others for long


def stored_rows(plan: BuildPlan, session: SparkSession) -> DataFrame:
    """The columns of the inputs and ROW, the position of each row.

    Args:
        plan: what to build.
        session: the session; its executors find the store's credentials in their own environment.

    Raises:
        DataError: no type of Spark can carry a column.
    """
    schema, spark_schema = carried(plan.inputs.schema.append(pa.field(ROW, pa.int64())))
    sent = int(max(1, min(_SENT_ROWS, _SENT_BYTES // plan.row_bytes)))
    reader = PieceReader(
        plan.inputs, schema, sent, _tasks(plan.inputs, session.sparkContext.defaultParallelism)
    )

    # Options of a data source are strings, which logs show. The inputs travel with the class instead.
    class PieceSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return FORMAT

        def reader(self, schema: Any) -> DataSourceReader:
            del schema
            return reader

    session.dataSource.register(PieceSource)
    return session.read.format(FORMAT).schema(spark_schema).load()


def _tasks(inputs: Inputs, cores: int) -> list[InputPartition]:
    """Consecutive pieces for each task, of about equal bytes."""
    sizes = np.array([piece.bytes for piece in inputs.pieces()], dtype=np.int64)
    wanted = max(1, _TASKS_PER_CORE * cores, int(sizes.sum()) // _TASK_BYTES)
    before = np.cumsum(sizes) - sizes
    task_of = before * wanted // max(1, int(sizes.sum()))
    starts = [0, *(np.flatnonzero(np.diff(task_of)) + 1).tolist(), len(sizes)]
    return [Pieces(begin, end) for begin, end in pairwise(starts)]


@dataclass(frozen=True)
class Pieces(InputPartition):
    """The pieces begin … end − 1, which one task reads."""

    begin: int
    end: int


@dataclass(frozen=True)
class PieceReader(DataSourceReader):
    """Reads pieces of `inputs`, at most `rows` rows at a time, as `schema`, whose last column is ROW."""

    inputs: Inputs
    schema: pa.Schema
    rows: int
    tasks: list[InputPartition]

    def partitions(self) -> list[InputPartition]:
        """What each task reads."""
        return self.tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Give the rows of one task; this runs on an executor."""
        assert isinstance(partition, Pieces)
        pieces = self.inputs.pieces()[partition.begin : partition.end]
        row = pieces[0].first if pieces else 0
        for _, batch in self.inputs.read(self.rows, pieces):
            end = row + batch.num_rows
            columns = [
                values.cast(kind) for values, kind in zip(batch.columns, self.schema.types, strict=False)
            ]
            yield pa.RecordBatch.from_arrays([*columns, pa.array(np.arange(row, end))], schema=self.schema)
            row = end
