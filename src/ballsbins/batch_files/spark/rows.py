"""The input rows as a DataFrame: every row gets its identity and its batch, and goes to its part in order."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray
from pyspark.errors import AnalysisException
from pyspark.sql import functions as sql

from ballsbins._extras import load
from ballsbins.batch_files.assignments import POSITION, Positions
from ballsbins.batch_files.build_plan import BuildPlan
from ballsbins.batch_files.format import Manifest
from ballsbins.batch_files.input_files import File
from ballsbins.batch_files.inputs import Inputs
from ballsbins.batch_files.row_order import IdentityColumn
from ballsbins.batch_files.spark import executor_functions as assignment
from ballsbins.batch_files.spark.part_writer import BATCH, NAME, WORD
from ballsbins.batch_files.spark.store_rows import ROW, stored_rows
from ballsbins.errors import DataError, InvalidInputError
from ballsbins.samplers import BallsAndBins, Key, Poisson, Shuffle
from ballsbins.samplers.base import even_cuts

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

_PLACE = "__ballsbins_place"


def drawn(plan: BuildPlan, manifest: Manifest, key: Key) -> assignment.Drawn:
    """What executors need to know about an epoch; secret."""
    boundaries: tuple[tuple[int, int], ...] = ()
    if isinstance(plan.sampler, Shuffle):
        ranks = _first_ranks(plan, manifest)
        boundaries = assignment.shuffled_boundaries(
            plan.sampler, key, manifest.epoch, plan.num_examples, ranks
        )
    return assignment.Drawn(plan.sampler, key, manifest.epoch, plan.num_examples, boundaries)


def sorted_rows(plan: BuildPlan, manifest: Manifest, session: SparkSession, secret: Any) -> DataFrame:
    """A DataFrame whose partition p has the rows of part p, in the order of the batch files."""
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


def _identified(plan: BuildPlan, session: SparkSession) -> DataFrame:
    """The input's columns and IDENTITY: the position of a row as an integer, or the bytes of a column."""
    inputs, identity = plan.inputs, plan.identity
    if isinstance(inputs, Positions):
        return session.range(plan.num_examples).select(
            sql.col("id").alias(POSITION), sql.col("id").alias(IDENTITY)
        )
    columns = [sql.col(quoted(name)) for name in inputs.schema.names]
    by_pieces = not _spark_reaches(inputs)
    frame = stored_rows(plan, session) if by_pieces else _read(session, inputs)
    if identity is not None:
        return frame.select(*columns, _as_bytes(identity, inputs.schema).alias(IDENTITY))
    if by_pieces:
        return frame.select(*columns, sql.col(ROW).alias(IDENTITY))
    return _numbered(session, inputs, frame, columns)


def _spark_reaches(inputs: Inputs) -> bool:
    """Whether Spark reads these files without further libraries: those of a file system or of HDFS."""
    places = [file.location for file in inputs.files]
    return all(place.local is not None or place.address.startswith("hdfs://") for place in places)


def _binned(
    plan: BuildPlan, manifest: Manifest, rows: DataFrame, secret: Any, columns: list[Column]
) -> DataFrame:
    """Balls-and-bins: a row's batch follows from its identity; rows that may be truncated also get a word."""
    identity = sql.col(IDENTITY)
    placed = rows.withColumn(BATCH, assignment.bin_function(secret)(identity))
    parted = placed.repartitionById(manifest.num_parts, _part_of_batch(manifest))
    own = [sql.col(BATCH)]
    if plan.sampler.max_batch_size is not None:
        own.append(assignment.truncation_function(secret)(sql.col(BATCH), identity).alias(WORD))
    if plan.identity is not None:
        own.append(identity.alias(NAME))
    return parted.sortWithinPartitions(BATCH, IDENTITY).select(*columns, *own)


def _drawn_by_step(plan: BuildPlan, manifest: Manifest, session: SparkSession, secret: Any) -> DataFrame:
    """Poisson: no rows are read; each batch is drawn separately, as positions."""
    steps = session.range(plan.sampler.steps).select(sql.col("id").cast("int").alias(BATCH))
    parted = steps.repartitionById(manifest.num_parts, _part_of_batch(manifest)).sortWithinPartitions(BATCH)
    positions = assignment.poisson_function(secret)(sql.col(BATCH))
    return parted.select(sql.explode(positions).alias(POSITION), BATCH)


def _part_of_batch(manifest: Manifest) -> Column:
    return sql.expr(f"cast({BATCH} div {manifest.batches_per_file} as int)")


def _first_ranks(plan: BuildPlan, manifest: Manifest) -> NDArray[np.int64]:
    """The rank of the first row of every part except the first, as far as there are rows."""
    cut, per_file = even_cuts(plan.num_examples, manifest.steps), manifest.batches_per_file
    starts = [cut(step).start for step in range(per_file, manifest.steps, per_file)]
    return np.array([start for start in starts if start < plan.num_examples], dtype=np.int64)


IDENTITY = "__ballsbins_identity"
_FILE, _ROW, _FIRST = "__ballsbins_file", "__ballsbins_row", "__ballsbins_first"


def _numbered(spark: SparkSession, inputs: Inputs, frame: DataFrame, columns: list[Column]) -> DataFrame:
    """Files that Spark has read, with the position of each row as IDENTITY."""
    if not inputs.is_parquet:
        raise InvalidInputError(
            "the identity column",
            None,
            "given where Spark reads text",
            "Spark cannot number the rows of text files: name a unique column, convert them to Parquet, or use the "
            "embedded engine.",
        )
    files = spark.createDataFrame(_first_rows(frame, inputs), f"{_FILE} string, {_FIRST} bigint")
    source = [
        sql.col("_metadata.file_path").alias(_FILE),
        sql.col("_metadata.row_index").alias(_ROW),
    ]
    placed = frame.select(*columns, *source).join(sql.broadcast(files), _FILE)
    return placed.select(*columns, (sql.col(_FIRST) + sql.col(_ROW)).alias(IDENTITY))


def quoted(name: str) -> str:
    """A column name quoted for Spark's expressions, whatever characters it contains."""
    return "`" + name.replace("`", "``") + "`"


def _read(spark: SparkSession, inputs: Inputs) -> DataFrame:
    addresses = [_glob_escaped(_address(file)) for file in inputs.files]
    try:
        if inputs.is_parquet:
            return spark.read.parquet(*addresses)
        whole = inputs.stored_schema
        options: dict[str, Any] = {
            "sep": "\t" if inputs.files[0].kind == "tsv" else ",",
            "header": inputs.csv.header,
            "enforceSchema": False,  # otherwise columns in a different order would be mistaken for one another
            "escape": '"',
            "mode": "FAILFAST",
        }
        schema = spark.createDataFrame(whole.empty_table()).schema
        frame = spark.read.options(**options).schema(schema).csv(addresses)
        return frame.select(*(_as_pyarrow_reads(entry) for entry in whole))
    except AnalysisException as error:
        shown = inputs.files[0].shown
        raise DataError(
            f"Spark cannot read {shown!r}: {str(error).splitlines()[0]} Check that its machines see this address, or "
            "leave out columns of types it does not know."
        ) from None


def _as_pyarrow_reads(entry: pa.Field) -> Column:
    """A text file's column, read as pyarrow does: an empty text is a value, and NaN is missing."""
    types = load("pyarrow.types", feature="Reading CSV", extra="data")
    column = sql.col(quoted(entry.name))
    if types.is_string(entry.type):
        column = sql.coalesce(column, sql.lit(""))
    elif types.is_floating(entry.type):
        column = sql.when(~sql.isnan(column), column)
    return column.alias(entry.name)


def _first_rows(frame: DataFrame, inputs: Inputs) -> list[tuple[str, int]]:
    """The address of every file as Spark's `_metadata.file_path` writes it, and the position of its first row."""
    first: dict[str, int] = {}
    position = 0
    for file, count in zip(inputs.files, inputs.row_counts, strict=True):
        address = _normal(_address(file))
        if address in first:
            raise InvalidInputError("the inputs", file.shown, "named once", "Name every file once.")
        first[address] = position
        position += count
    rows = []
    for encoded in frame.inputFiles():
        address = _normal(unquote(encoded))
        if address in first:
            rows.append((_normal(encoded), first.pop(address)))
    if first:
        raise DataError(
            f"Spark does not find {next(iter(first))!r}, which is there for this machine. Check that the machines of "
            "the cluster see the same address."
        )
    return rows


def _address(file: File) -> str:
    """The address under which Spark finds a file."""
    return f"file:{file.location.path}" if file.location.local is not None else file.shown


def _normal(address: str) -> str:
    return re.sub("^file:/+", "file:/", address)


def _glob_escaped(address: str) -> str:
    return re.sub(r"([\\*?\[\]{}])", r"\\\1", address)


def _as_bytes(identity: IdentityColumn, schema: pa.Schema) -> Column:
    """The identity as bytes: text as UTF-8, binary unchanged, integers as decimal digits."""
    types = load("pyarrow.types", feature="Batching tables", extra="data")
    column = sql.col(quoted(identity.name))
    if types.is_integer(schema.field(identity.name).type):
        column = column.cast("string")
    return column.cast("binary")
