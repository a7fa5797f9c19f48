"""A column that lacks no value is stored as required, and every batch still has the schema of the manifest."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ballsbins import BallsAndBins
from ballsbins.batch_files import BatchFiles, writer
from ballsbins.batch_files.build import build
from ballsbins.batch_files.build_plan import plan_build
from ballsbins.batch_files.inputs import open_inputs
from ballsbins.batch_files.reader import arrays
from ballsbins.batch_files.writer import written_schema

from .test_columns import TYPES, array_of

ROWS, STEPS = 600, 150  # some batches are empty
SAMPLER = BallsAndBins(STEPS, max_batch_size=30, num_examples=ROWS)


@pytest.fixture(scope="module")
def table():
    """All columns are nullable; one lacks the value of its last row alone, one has no value at all."""
    columns = {name: array_of(kind, map(value, range(ROWS))) for name, (kind, value, _, _) in TYPES.items()}
    late = pa.array([*range(ROWS - 1), None], pa.int32())
    return pa.table({"row": np.arange(ROWS), **columns, "late": late, "none": pa.nulls(ROWS)})


def built(table, folder, key, tiny, **options):
    pq.write_table(table, folder / "in.parquet", row_group_size=100)
    made = plan_build(open_inputs([folder / "in.parquet"]), SAMPLER, memory=tiny, **options)
    build(made, folder / "out", key)
    return BatchFiles.open(folder / "out")


def part_schemas(files):
    paths = [place.path for place in files.paths(0) if place.name.endswith(".parquet")]
    return [pq.read_schema(path) for path in paths]


def shown_as_in_the_manifest(schema, files):
    wanted = {column.name: (column.type, column.nullable) for column in files.manifest.columns}
    return {entry.name: (str(entry.type), entry.nullable) for entry in schema} == wanted


@pytest.mark.parametrize("options", [{}, {"pad": True}, {"world_size": 2}], ids=["drawn", "padded", "ranks"])
def test_only_columns_without_missing_values_are_required(options, table, key, tiny, tmp_path):
    files = built(table, tmp_path, key, tiny, **options)
    for schema in part_schemas(files):
        assert {entry.name for entry in schema if entry.nullable} == {"late", "none"}
    ranks = options.get("world_size", 1)
    positions = []
    for rank in range(ranks):
        for batch in files.batches(0, rank=rank, ranks=ranks):
            assert shown_as_in_the_manifest(batch.schema, files)
            assert batch.schema.metadata is None
            real = batch.filter(pa.compute.equal(batch["weight"], 1)) if "pad" in options else batch
            rows = real["row"].to_pylist()
            positions += rows
            for name in ("late", "int16", "text", "ints", "kind"):
                assert real[name].to_pylist() == table[name].take(pa.array(rows, pa.int64())).to_pylist()
    assert sorted(positions) == list(range(ROWS))


def test_every_batch_of_a_nullable_column_has_its_mask(table, key, tiny, tmp_path):
    files = built(table, tmp_path, key, tiny)
    wanted = {name for column in files.manifest.columns for name in column.array_names}
    assert {"int16.valid", "late.valid", "text.valid", "kind.valid"} <= wanted
    missing = 0
    for batch, rows in arrays(files, 0):
        assert batch.keys() == wanted
        assert batch["int16.valid"].tolist() == [True] * rows
        missing += int((~batch["late.valid"]).sum())
    assert missing == 1


def test_epochs_with_and_without_required_columns_read_alike(table, key, tiny, tmp_path, monkeypatch):
    """The parts of format 3 had the nullability of the table."""
    (tmp_path / "new").mkdir()
    (tmp_path / "old").mkdir()
    new = built(table, tmp_path / "new", key, tiny)
    monkeypatch.setattr(
        writer, "part_schema", lambda schema, _, padded: written_schema(schema, padded=padded)
    )
    old = built(table, tmp_path / "old", key, tiny)
    place = tmp_path / "old" / "out" / "epoch-000000" / "manifest.json"
    place.write_text(json.dumps(json.loads(place.read_text()) | {"format_version": 3}))
    assert all(entry.nullable for schema in part_schemas(old) for entry in schema)
    for ours, theirs in zip(new.batches(0), old.batches(0), strict=True):
        assert ours.schema == theirs.schema
        assert ours.to_pylist() == theirs.to_pylist()


def test_a_table_without_rows(tmp_path, key, tiny):
    nothing = pa.table({"x": pa.array([], pa.int32()), "none": pa.nulls(0)})
    pq.write_table(nothing, tmp_path / "in.parquet")
    build(
        plan_build(open_inputs([tmp_path / "in.parquet"]), BallsAndBins(3), memory=tiny),
        tmp_path / "out",
        key,
    )
    files = BatchFiles.open(tmp_path / "out")
    assert [batch.num_rows for batch in files.batches(0)] == [0, 0, 0]
    assert all(shown_as_in_the_manifest(batch.schema, files) for batch in files.batches(0))
