"""Rows of an object store as a DataFrame: executors read the pieces of the table with pyarrow.

Spark reaches stores only with libraries for Java that PySpark does not bring along. The executors have pyarrow, and
`Inputs` knows how to read each piece, so this is the reading of the embedded engine, one task for some pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ballsbins.batch_files.inputs import Inputs
from ballsbins.errors import DataError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROW = "__ballsbins_row"
_READ_ROWS = 1 << 13  # rows that travel from Python to Java at a time
_TASK_BYTES = 128 << 20  # of the files; more in one task only if there are not enough pieces
_TASKS_PER_CORE = 4


def read_pieces(spark: SparkSession, inputs: Inputs) -> DataFrame:
    """The columns of the table and ROW, the position of each row.

    Args:
        spark: the session; its executors need the credentials of the store in their own environment.
        inputs: the table.

    Raises:
        DataError: a column has a type that Spark does not know.
    """
    pieces = inputs.pieces()
    schema = pa.schema([pa.field(entry.name, spark_type(entry.type)) for entry in inputs.schema])
    schema = schema.append(pa.field(ROW, pa.int64()))
    try:
        types = spark.createDataFrame(schema.empty_table()).schema
    except Exception as error:  # PySpark raises errors of several kinds here
        raise DataError(
            f"Spark cannot read {inputs.files[0].shown!r}: {str(error).splitlines()[0]} Leave out columns of types "
            "it does not know, or use the embedded engine."
        ) from None
    enough = max(_TASKS_PER_CORE * spark.sparkContext.defaultParallelism, inputs.bytes // _TASK_BYTES)
    tasks = max(1, min(len(pieces), enough))
    return spark.range(0, len(pieces), 1, tasks).mapInArrow(_reader(inputs, schema), types)


def _reader(
    inputs: Inputs, schema: pa.Schema
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function of an executor, from numbers of pieces to their rows."""

    def read(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        pieces = inputs.pieces()
        for some in numbers:
            for number in some.column(0).to_pylist():
                row = pieces[number].first
                for _, batch in inputs.read(_READ_ROWS, [pieces[number]]):
                    rows = np.arange(row, row + batch.num_rows)
                    columns: list[Any] = [
                        values.cast(entry.type) for values, entry in zip(batch.columns, schema, strict=False)
                    ]
                    yield pa.RecordBatch.from_arrays([*columns, pa.array(rows)], schema=schema)
                    row += batch.num_rows

    return read


def spark_type(kind: pa.DataType) -> pa.DataType:
    """The type that carries the values of an Arrow type through Spark, which has fewer types."""
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return spark_type(kind.storage_type)
    if types.is_unsigned_integer(kind):
        return {8: pa.int16(), 16: pa.int32(), 32: pa.int64()}.get(kind.bit_width, pa.decimal128(20, 0))
    if types.is_float16(kind):
        return pa.float32()
    if types.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    if types.is_date64(kind):
        return pa.date32()
    if types.is_fixed_size_binary(kind):
        return pa.binary()
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return pa.list_(spark_type(kind.value_type))
    return kind
