"""Readers free a piece of rows before they decode the next one, although the last batch of it is still in use."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ballsbins import BallsAndBins
from ballsbins.batch_files import BatchFiles, epoch_reader
from ballsbins.batch_files.build import build
from ballsbins.batch_files.build_plan import plan_build
from ballsbins.batch_files.inputs import open_inputs
from ballsbins.batch_files.reader import arrays
from ballsbins.batch_files.sort import Memory

ROWS, STEPS = 200_000, 1_000


@pytest.fixture(scope="module")
def files(key, tmp_path_factory):
    class Some(Memory):
        row_group_bytes = 500_000

    place = tmp_path_factory.mktemp("memory")
    words = pa.array([f"word {row % 100}" for row in range(ROWS)]).dictionary_encode()
    lists = pa.array([[row, row] for row in range(ROWS)], pa.list_(pa.int64()))
    table = pa.table({"row": np.arange(ROWS), "word": words, "list": lists})
    pq.write_table(table, place / "in.parquet")
    build(
        plan_build(open_inputs([place / "in.parquet"]), BallsAndBins(STEPS), memory=Some()),
        place / "out",
        key,
    )
    return BatchFiles.open(place / "out")


@pytest.fixture
def held(monkeypatch):
    """What Arrow holds when the next piece is about to be decoded, as a share of a piece."""
    shares, sizes, read, before = [], [], epoch_reader._Piece.read, pa.total_allocated_bytes()

    def watched(piece, *arguments):
        if sizes:
            shares.append((pa.total_allocated_bytes() - before) / max(sizes))
        rows = read(piece, *arguments)
        sizes.append(pa.total_allocated_bytes() - before)
        return rows

    monkeypatch.setattr(epoch_reader._Piece, "read", watched)
    return shares


@pytest.mark.parametrize("ranks", [1, pytest.param(3, marks=pytest.mark.filterwarnings("ignore"))])
@pytest.mark.parametrize("writable", [None, False, True])
def test_one_piece_at_a_time(writable, ranks, files, held):
    if writable is None:
        batches = files.batches(0, rank=0, ranks=ranks)
    else:
        batches = arrays(files, 0, rank=0, ranks=ranks, writable=writable)
    for batch in batches:
        assert batch is not None  # it is in use until the next one is here
    assert len(held) > 5
    assert max(held) < 0.5


def test_batches_that_are_kept_stay_right(files, key):
    """The last ones of a piece are copies; the others keep their piece."""
    drawn = list(BallsAndBins(STEPS).batches(ROWS, key))
    for batches in (
        [batch["row"].to_numpy() for batch in list(files.batches(0))],
        [batch["row"] for batch, _ in list(arrays(files, 0))],
    ):
        assert all(np.array_equal(rows, indices) for rows, indices in zip(batches, drawn, strict=True))
    for batch in files.batches(0):
        assert batch["list"].flatten().to_pylist()[::2] == batch["row"].to_pylist()
    for batch, _ in arrays(files, 0):
        assert np.array_equal(batch["list"][::2], batch["row"])


def test_a_large_batch_is_not_copied(files, monkeypatch):
    monkeypatch.setattr(epoch_reader, "_SMALL_PART", 0.0)
    rows = {batch["row"].buffers()[1].size for batch in files.batches(0)}
    assert min(rows) > 8 * ROWS / STEPS * 2, "every batch is a view of a whole piece"
