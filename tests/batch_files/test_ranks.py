"""With --world-size each rank reads its own rows only; another number of ranks reads right, at more cost."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ballsbins import BallsAndBins, Shuffle
from ballsbins.batch_files import BatchFiles, build_plan, row_groups, sort
from ballsbins.batch_files.build import build
from ballsbins.batch_files.build_plan import plan_build
from ballsbins.batch_files.inputs import open_inputs
from ballsbins.batch_files.part_bytes import _Mapped
from ballsbins.batch_files.reader import OtherWorldSizeWarning, padded_arrays
from ballsbins.errors import InvalidInputError

from .conftest import ROWS

SAMPLER = BallsAndBins(60, max_batch_size=350, num_examples=ROWS)
RANKS = 4
OTHER = pytest.mark.filterwarnings("ignore::ballsbins.batch_files.reader.OtherWorldSizeWarning")


@pytest.fixture(scope="module", params=[False, True], ids=["as drawn", "padded"])
def files(request, folder, key, tiny, tmp_path_factory):
    out = tmp_path_factory.mktemp("ranks") / "out"
    made = plan_build(open_inputs([folder]), SAMPLER, memory=tiny, pad=request.param, world_size=RANKS)
    build(made, out, key)
    return BatchFiles.open(out)


@pytest.fixture(scope="module")
def whole(folder, key, tiny, tmp_path_factory):
    """The same batches, laid out for one."""
    out = tmp_path_factory.mktemp("whole") / "out"
    build(plan_build(open_inputs([folder]), SAMPLER, memory=tiny), out, key)
    return BatchFiles.open(out)


@pytest.fixture
def read_bytes(monkeypatch):
    """The bytes that are read from parts, counted."""
    counted = [0]
    plain = _Mapped.get

    def get(self, begin, end):
        counted[0] += end - begin
        return plain(self, begin, end)

    monkeypatch.setattr(_Mapped, "get", get)
    return counted


def real(batch):
    return batch.filter(pa.compute.equal(batch["weight"], 1)) if "weight" in batch.column_names else batch


@pytest.mark.parametrize("start", [0, 17, 59, 60])
def test_each_rank_has_its_share_of_every_batch(start, files, key):
    for rank in range(RANKS):
        drawn = SAMPLER.batches(ROWS, key).for_rank(rank, RANKS)
        found = list(files.batches(0, start, rank, RANKS))
        assert len(found) == SAMPLER.steps - start
        for step, batch in enumerate(found, start):
            assert np.array_equal(real(batch)["row"].to_numpy(), drawn[step])


def test_a_rank_reads_its_own_rows_only(files, read_bytes):
    costs = []
    for rank in range(RANKS):
        read_bytes[0] = 0
        assert sum(1 for _ in files.batches(0, rank=rank, ranks=RANKS)) == SAMPLER.steps
        costs.append(read_bytes[0])
    total = sum(file.bytes for file in files.manifest.files.parts)
    footers = (RANKS + 1) * 2 * 2**16  # of each part, by each rank, and once more for the schema
    assert sum(costs) < 1.1 * total + footers
    assert max(costs) < 1.3 * total / RANKS + footers / RANKS


@pytest.mark.parametrize("ranks", [1, 3, 8])
def test_another_number_of_ranks_reads_the_same_batches_and_says_that_it_costs_more(ranks, files, whole):
    said = f"world size of {RANKS}, so .*takes longer.*--world-size {ranks}"
    with pytest.warns(OtherWorldSizeWarning, match=said):
        shares = [files.batches(0, 11, rank, ranks) for rank in range(ranks)]
    for batch, *parts in zip(whole.batches(0, 11), *shares, strict=True):
        for rank, part in enumerate(map(real, parts)):
            assert part["row"].to_pylist() == batch["row"].to_pylist()[rank::ranks]
            assert part["name"].to_pylist() == batch["name"].to_pylist()[rank::ranks]


def test_the_arrays_of_all_ranks_have_one_shape(files):
    shapes = {
        tuple((name, values.shape) for name, values in batch.items())
        for rank in range(RANKS)
        for batch in padded_arrays(files, 0, rank=rank, ranks=RANKS, columns=["x", "maybe"])
    }
    assert shapes == {(("x", (88,)), ("maybe", (88,)), ("maybe.valid", (88,)), ("weight", (88,)))}


def test_row_groups_hold_whole_batches_and_come_rank_by_rank(files, whole):
    for some, ranks in ((files, RANKS), (whole, 1)):
        (part,) = some.paths(0)[1:]
        groups = pq.ParquetFile(part.path).metadata
        rows = np.array([groups.row_group(number).num_rows for number in range(groups.num_row_groups)])
        assert len(rows) % ranks == 0
        assert len(rows) > 4 * ranks, "there are several runs of batches"
        offsets = np.load(some.paths(0)[0].path)
        assert set(np.cumsum(rows.reshape(-1, ranks).sum(axis=1)).tolist()) <= set(offsets.tolist())


@pytest.mark.parametrize("steps", [1, 7, 60, 613, 997])
@pytest.mark.parametrize("bucket_bytes", [15_000, 40_000, 75_000, 105_000, 400_000])
def test_no_part_and_no_bucket_is_much_shorter_than_the_others(
    steps, bucket_bytes, folder, tiny, monkeypatch
):
    """A short one would have short row groups, one for each rank, and each of them costs as much as a long one."""
    monkeypatch.setattr(build_plan, "_LEAST_PART_BYTES", 170_000)
    monkeypatch.setattr(row_groups, "_WELL_FILLED", 0.0)
    monkeypatch.setattr(type(tiny), "bucket_bytes", bucket_bytes)
    monkeypatch.setattr(type(tiny), "max_files", 1_000)
    made = plan_build(open_inputs([folder]), BallsAndBins(steps), memory=tiny, workers=2)
    part, ranges = made.batches_per_file, made.ranges()
    parts = -(-steps // part)
    assert part * parts - steps < parts, "all parts but the last ones would have fewer batches otherwise"
    assert ranges.group % part == 0
    buckets = -(-ranges.group // ranges.width)
    assert ranges.width * buckets - ranges.group < buckets
    planned = max(1, steps * bucket_bytes / (ROWS * made.row_bytes))
    assert ranges.width <= 1.25 * planned + 1
    if buckets > 1:
        assert ranges.width >= planned / 2, "buckets are not smaller than they need to be"


def test_rows_of_one_width_get_longer_row_groups_for_ranks(key, tiny, tmp_path, monkeypatch):
    """They cannot be wider than planned, so a bucket may come close to the size at which it is scattered again."""
    monkeypatch.setattr(build_plan, "_LEAST_PART_BYTES", 150_000)
    monkeypatch.setattr(row_groups, "_WELL_FILLED", 0.0)
    monkeypatch.setattr(type(tiny), "max_files", 1_000)
    numbers = {"row": np.arange(ROWS), "x": np.zeros(ROWS, np.float32)}
    pq.write_table(pa.table(numbers), tmp_path / "fixed.parquet")
    pq.write_table(pa.table(numbers | {"t": ["word"] * ROWS}), tmp_path / "any.parquet")

    def widths(name):
        plans = [
            plan_build(open_inputs([tmp_path / name]), BallsAndBins(200), memory=tiny, world_size=ranks)
            for ranks in (1, 4)
        ]
        return [made.ranges().width * made.row_bytes * ROWS / 200 for made in plans], plans[1]

    (one, four), made = widths("fixed.parquet")
    assert 1.3 * one < four <= 2 * tiny.bucket_bytes
    (one, four), _ = widths("any.parquet")
    assert one == four, "later words may be longer"

    monkeypatch.setattr(sort.BucketSort, "_scattered_again", None)
    build(made, tmp_path / "out", key)
    files = BatchFiles.open(tmp_path / "out")
    buckets = -(-made.batches_per_file // made.ranges().width)
    for part in files.paths(0)[1:-1]:
        assert pq.ParquetFile(part.path).metadata.num_row_groups == 4 * buckets
    drawn = made.sampler.batches(ROWS, key).for_rank(2, 4)
    for step, batch in enumerate(files.batches(0, rank=2, ranks=4)):
        assert np.array_equal(batch["row"].to_numpy(), drawn[step])


@OTHER
def test_shuffled_batches_are_shared_too(folder, key, tiny, tmp_path):
    sampler = Shuffle(45)
    build(plan_build(open_inputs([folder]), sampler, memory=tiny, world_size=3), tmp_path / "out", key)
    files = BatchFiles.open(tmp_path / "out")
    for rank, ranks in ((0, 3), (2, 3), (0, 1), (1, 2)):
        drawn = sampler.batches(ROWS, key).for_rank(rank, ranks)
        for step, batch in enumerate(files.batches(0, rank=rank, ranks=ranks)):
            assert np.array_equal(batch["row"].to_numpy(), drawn[step])


def test_more_ranks_than_rows_of_a_batch_are_refused(folder):
    inputs = open_inputs([folder])
    plan_build(inputs, BallsAndBins(2_000), world_size=10)
    for wrong in (11, 0, 2.5):
        with pytest.raises(
            InvalidInputError, match=r"the world size .*from 1 to 10\. .*about 10 rows.*fewer ranks"
        ):
            plan_build(inputs, BallsAndBins(2_000), world_size=wrong)
