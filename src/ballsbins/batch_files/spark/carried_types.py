"""The types that carry Arrow's values through Spark, which has fewer types: the writer casts them back.

Dates and times travel as the integers that Arrow stores. So no unit, time zone or calendar of Spark touches them, and
the engine also takes units that Spark does not know (times of day, nanoseconds). Structs and maps need no type here:
`plan_build` refuses them for both engines.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from ballsbins.errors import DataError

_SIGNED = {8: pa.int16(), 16: pa.int32(), 32: pa.int64(), 64: pa.decimal128(20, 0)}  # by width, for unsigned


def carried(schema: pa.Schema) -> tuple[pa.Schema, StructType]:
    """The schema in which rows enter Spark, for Arrow and for Spark.

    Raises:
        DataError: no type of Spark can carry a column.
    """
    fields = []
    for entry in schema:
        try:
            field = pa.field(entry.name, _carrier(entry.type))
            from_arrow_schema(pa.schema([field]))
        except (PySparkException, ValueError):
            raise DataError(
                f"Spark has no type for the column {entry.name!r}, which is of type {entry.type}. Leave it out, "
                "convert it, or use the embedded engine."
            ) from None
        fields.append(field)
    found = pa.schema(fields)
    return found, from_arrow_schema(found)


def _carrier(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return _carrier(kind.storage_type)
    if types.is_unsigned_integer(kind):
        return _SIGNED[kind.bit_width]
    if types.is_float16(kind):
        return pa.float32()
    if types.is_temporal(kind):
        return pa.int32() if kind.bit_width == 32 else pa.int64()
    if types.is_decimal(kind):
        return pa.decimal128(kind.precision, kind.scale)
    if types.is_large_string(kind):
        return pa.string()
    if types.is_fixed_size_binary(kind) or types.is_large_binary(kind):
        return pa.binary()
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return pa.list_(pa.field("element", _carrier(kind.value_type)))  # the name that Spark expects
    return kind
