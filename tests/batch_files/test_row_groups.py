"""Row groups have almost a power of two rows, which Arrow decodes without a copy."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ballsbins import BallsAndBins
from ballsbins.batch_files import BatchFiles, build_plan
from ballsbins.batch_files.build import build
from ballsbins.batch_files.build_plan import plan_build
from ballsbins.batch_files.inputs import open_inputs
from ballsbins.batch_files.row_groups import batches_per_part, buckets_per_part, longest
from ballsbins.batch_files.sort import Memory
from ballsbins.batch_files.writer import _runs


def filled(rows):
    """The share of the reserved memory that a row group needs."""
    return rows / (1 << int(rows - 1).bit_length())


@pytest.mark.parametrize(
    ("rows", "power"), [(0.3, 1), (1, 1), (2, 2), (97_541.8, 65_536), (131_072, 131_072)]
)
def test_the_longest_row_group(rows, power):
    assert longest(rows) == power


def test_parts_are_as_long_as_row_groups_allow():
    # ten parts of 62,592 rows; nine would have 69,500
    assert batches_per_part(4_883, 9, 128.0, 131_072) == 489
    assert batches_per_part(4_883, 9, 1_024.0, 131_072) == 489  # four row groups of 125,184 rows each
    assert batches_per_part(4_883, 9, 1_000.0, 65_536) == 543  # nine row groups of 60,333 rows each
    assert batches_per_part(500, 1, 140.0, 131_072) == 500  # one part stays one, whatever its length


def test_buckets_are_as_large_as_row_groups_allow():
    # six of 238,250 rows; five would have two row groups of 142,950 rows each
    assert buckets_per_part(5, 1_429_504.0, 262_144) == 6
    assert buckets_per_part(5, 1_429_504.0, 131_072) == 6  # two row groups of 119,125 rows each
    assert buckets_per_part(2, 125_000.0, 131_072) == 2
    assert buckets_per_part(1, 140_000.0, 131_072) == 1  # one bucket stays one, whatever its length


@pytest.mark.parametrize("seed", range(200))
def test_row_groups_are_well_filled_and_parts_equal(seed):
    random = np.random.default_rng(seed)
    steps, batch_rows = int(random.integers(100, 10_000)), float(random.uniform(1, 3_000))
    parts, most = int(random.integers(2, 30)), 2 ** int(random.integers(12, 18))
    batches = batches_per_part(steps, parts, batch_rows, most)
    number = -(-steps // batches)
    assert -(-steps // (2 * parts)) <= batches <= -(-steps // parts)
    assert batches * number - steps < number
    rows = batches * batch_rows
    groups = np.ceil(rows / (0.98 * most))
    assert rows / groups <= most
    if batches > 40:  # or a batch more or less is too much
        assert filled(rows / groups) > 0.7


def test_runs_end_at_the_nearest_batch():
    ends = np.cumsum([0, 10, 30, 10, 10, 10, 30])
    assert list(_runs(ends, 0, 6, 50)) == [(0, 3), (3, 6)]
    assert list(_runs(ends, 0, 6, 40)) == [(0, 2), (2, 5), (5, 6)]  # 40 and 70 are nearest to 33 and 67
    assert list(_runs(ends, 1, 3, 1_000)) == [(1, 3)]


@pytest.mark.parametrize("bucket_bytes", [None, 65_000])
@pytest.mark.parametrize("ranks", [1, 4])
def test_a_build_fills_its_row_groups(bucket_bytes, ranks, key, tmp_path, monkeypatch):
    class Some(Memory):
        max_files = 1_000

    monkeypatch.setattr(build_plan, "_LEAST_PART_BYTES", 150_000)
    if bucket_bytes is not None:
        monkeypatch.setattr(Some, "bucket_bytes", bucket_bytes)
    rows, steps = 100_000, 2_000
    pq.write_table(pa.table({"row": np.arange(rows), "x": np.zeros(rows)}), tmp_path / "in.parquet")
    inputs = open_inputs([tmp_path / "in.parquet"])
    made = plan_build(inputs, BallsAndBins(steps), memory=Some(workers=2), world_size=ranks, workers=2)
    assert bucket_bytes is None or len(made.ranges()) > made.sampler.steps / made.batches_per_file + 1
    build(made, tmp_path / "out", key)
    parts = [pq.ParquetFile(part.path).metadata for part in BatchFiles.open(tmp_path / "out").paths(0)[1:]]
    assert len(parts) > 2
    for part in parts[:-1]:
        for group in range(part.num_row_groups):
            assert filled(part.row_group(group).num_rows) > 0.7
