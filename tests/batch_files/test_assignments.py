"""`assign` says the same as the samplers in memory, for those who join it with their data."""

import os
import stat

import numpy as np
import pyarrow.parquet as pq
import pytest

from ballsbins import BallsAndBins, Deterministic, Poisson, Shuffle
from ballsbins.batch_files.assignments import assign, plan_assignment
from ballsbins.batch_files.inputs import open_inputs
from ballsbins.errors import DataError, InvalidInputError

from .conftest import ROWS

SAMPLERS = [
    BallsAndBins(40),
    BallsAndBins(40, max_batch_size=500, num_examples=ROWS),
    BallsAndBins(40, redraw=False),
    Shuffle(777),
    Deterministic(33),
    Poisson(40),
    Poisson(40, max_batch_size=500, num_examples=ROWS),
]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
def test_positions(sampler, key, tiny, tmp_path):
    path = tmp_path / "bins.parquet"
    assign(plan_assignment(ROWS, sampler, memory=tiny), path, key, epochs=[0, 3])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["bins.parquet"]
    table = pq.read_table(path)
    assert table.column_names == ["position", "epoch", "batch"]
    for epoch in (0, 3):
        part = table.filter(table["epoch"].to_numpy() == epoch)
        batches, positions = part["batch"].to_numpy(), part["position"].to_numpy()
        expected = list(sampler.batches(ROWS, key, epoch))
        assert np.array_equal(positions, np.concatenate(expected))
        assert np.array_equal(
            batches, np.repeat(np.arange(sampler.steps), [len(batch) for batch in expected])
        )


def test_rows_named_by_a_column(folder, table, key, tiny, tmp_path):
    sampler = BallsAndBins(40)
    made = plan_assignment(open_inputs([folder]), sampler, identity_column="name", memory=tiny)
    assign(made, tmp_path / "bins.parquet", key)
    found = pq.read_table(tmp_path / "bins.parquet")
    assert found.column_names == ["name", "epoch", "batch"]
    names = found["name"].to_pylist()
    assert sorted(names) == sorted(table["name"].to_pylist())
    bins = sampler.bins_of(key, 0, [name.encode() for name in names])
    assert np.array_equal(bins, found["batch"].to_numpy())


def test_files_are_counted_where_rows_are_named_by_position(folder, key, tiny, tmp_path):
    sampler = Shuffle(40)
    assign(plan_assignment(open_inputs([folder]), sampler, memory=tiny), tmp_path / "bins.parquet", key)
    positions = pq.read_table(tmp_path / "bins.parquet")["position"].to_numpy()
    assert np.array_equal(positions, sampler.order(ROWS, key))


def test_ties_of_the_shuffled_order_are_broken_as_in_memory(key, tiny, tmp_path):
    rows, sampler = 300_000, Shuffle(777)
    words = sampler.keystream(key, 0).words32(0, 0, rows)
    assert len(np.unique(words)) < rows, "some rows have the same first word"
    assign(plan_assignment(rows, sampler, memory=tiny), tmp_path / "bins.parquet", key)
    positions = pq.read_table(tmp_path / "bins.parquet")["position"].to_numpy()
    assert np.array_equal(positions, sampler.order(rows, key))


def test_refusals(folder, key, tmp_path):
    with pytest.raises(InvalidInputError, match="left out without inputs"):
        plan_assignment(100, BallsAndBins(4), identity_column="name")
    for sampler, said in ((Poisson(4), "left out for Poisson"), (Shuffle(4), "left out for shuffle")):
        with pytest.raises(InvalidInputError, match=said):
            plan_assignment(open_inputs([folder]), sampler, identity_column="name")
    assert os.listdir(tmp_path) == [], "nothing is left"
    (tmp_path / "bins.parquet").write_text("precious")
    with pytest.raises(DataError, match="exists, and is not overwritten"):
        assign(plan_assignment(100, BallsAndBins(4)), tmp_path / "bins.parquet", key)
    assert (tmp_path / "bins.parquet").read_text() == "precious"
    with pytest.raises(DataError, match="is not the name of a file"):
        assign(plan_assignment(100, BallsAndBins(4)), ".", key)
    with pytest.raises(DataError, match="is not a directory"):
        assign(plan_assignment(100, BallsAndBins(4)), tmp_path / "no" / "bins.parquet", key)


def test_an_identity_column_of_a_name_that_the_assignment_has_is_refused(table, tmp_path):
    for name in ("epoch", "batch"):
        pq.write_table(table.rename_columns([name, "name", "x", "maybe"]), tmp_path / "in.parquet")
        with pytest.raises(InvalidInputError, match=f"the identity column is '{name}'"):
            plan_assignment(open_inputs([tmp_path / "in.parquet"]), BallsAndBins(4), identity_column=name)


def test_no_epochs_are_none_to_write(key, tmp_path):
    with pytest.raises(InvalidInputError, match="epochs"):
        assign(plan_assignment(100, BallsAndBins(4)), tmp_path / "bins.parquet", key, epochs=[])
    assert os.listdir(tmp_path) == []
