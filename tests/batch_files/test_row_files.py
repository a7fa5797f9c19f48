"""Rows survive temporary files and reordering, whatever their types; memory is used again, and by one thread each."""

import os
import threading
from decimal import Decimal
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from ballsbins.batch_files import row_files
from ballsbins.batch_files.gather import ReusedMemory, fixed_width, ordered_rows
from ballsbins.batch_files.row_files import RawRows, RowFile, RowLayout, load_rows, load_some_rows
from ballsbins.errors import DataError

ROWS = 1_000


def some(of):
    """Values, of which every seventh is missing."""
    return [None if row % 7 == 3 else of(row) for row in range(ROWS)]


@pytest.fixture(scope="module")
def rows():
    return pa.RecordBatch.from_pydict(
        {
            "int8": pa.array(range(ROWS), pa.int32()).cast(pa.int8(), safe=False),
            "missing": pa.array(some(int), pa.int32()),
            "text": pa.array(some(lambda row: "x" * (row % 5))),
            "double": np.arange(ROWS) / 3,
            "flag": pa.array(some(lambda row: row % 2 == 0)),
            "hash": pa.array([row.to_bytes(5, "little") for row in range(ROWS)], pa.binary(5)),
            "price": pa.array(some(Decimal), pa.decimal128(20, 2)),
            "list": pa.array([[row] * (row % 3) for row in range(ROWS)]),
            "vector": pa.array([[row, row + 1] for row in range(ROWS)], pa.list_(pa.float32(), 2)),
            "never": pa.nulls(ROWS),
            "when": pa.array(range(ROWS), pa.timestamp("ms")),
        }
    )


def written(path, rows, cuts, name="a"):
    """A file with a piece for each range between cuts, from rows that begin within a larger batch."""
    file = RowFile(path / name, RowLayout(rows.schema))
    raw = RawRows(RowLayout(rows.schema), rows)
    for start, stop in pairwise(cuts):
        file.write(raw, start, stop)
    file.close()
    return file


@pytest.mark.parametrize("vectored", [True, False])
@pytest.mark.parametrize("most_buffers", [1024, 3])
def test_rows_come_back_in_order(rows, tmp_path, monkeypatch, vectored, most_buffers):
    monkeypatch.setattr(row_files, "_VECTORED", vectored and row_files._VECTORED)
    monkeypatch.setattr(row_files, "_MOST_BUFFERS", most_buffers)
    layout = RowLayout(rows.schema)
    first = written(tmp_path, rows.slice(0, 600), [0, 1, 300, 300, 600], "a")
    second = written(tmp_path, rows.slice(600), [0, 399, 400], "b")
    assert first.bytes == os.path.getsize(tmp_path / "a")
    found = load_rows(layout, [first, second], ReusedMemory())
    found.validate(full=True)
    assert found.equals(pa.Table.from_batches([rows]))
    assert load_rows(layout, [], ReusedMemory()).num_rows == 0


def test_rows_without_missing_values_may_follow_those_with_some(tmp_path):
    with_some = pa.RecordBatch.from_pydict({"x": pa.array([1, None, 3], pa.int16())})
    without = pa.RecordBatch.from_pydict({"x": pa.array([4, 5], pa.int16())})
    files = [
        written(tmp_path, batch, [0, batch.num_rows], str(n)) for n, batch in enumerate((without, with_some))
    ]
    found = load_rows(RowLayout(without.schema), files, ReusedMemory())
    assert found["x"].to_pylist() == [4, 5, 1, None, 3]


def test_rows_are_loaded_in_parts_of_a_size(rows, tmp_path):
    layout, memory = RowLayout(rows.schema), ReusedMemory()
    assert written(tmp_path, rows, [0, ROWS], "whole").bytes == layout.bytes_of(rows)
    files = [written(tmp_path, rows, range(0, ROWS + 1, 100), name) for name in "ab"]
    most = files[0].bytes // 3
    sizes, values = [], []
    for table in load_some_rows(layout, files, most, memory):
        sizes.append(table.num_rows)
        values += table["double"].to_pylist()
    assert values == 2 * rows["double"].to_pylist()
    assert sizes == [300, 300, 300, 300, 300, 300, 200]
    assert [table.num_rows for table in load_some_rows(layout, files, 1, memory)] == [100] * 20


def test_a_call_may_write_and_read_less_than_all(rows, tmp_path, monkeypatch):
    real_write, real_read = os.writev, os.preadv
    monkeypatch.setattr(os, "writev", lambda file, buffers: real_write(file, [buffers[0], buffers[1][:5]]))
    monkeypatch.setattr(
        os, "preadv", lambda file, buffers, at: real_read(file, [buffers[0], buffers[1][:7]], at)
    )
    file = written(tmp_path, rows, [0, 500, ROWS])
    assert file.bytes == os.path.getsize(file.path)
    assert load_rows(RowLayout(rows.schema), [file], ReusedMemory()).equals(pa.Table.from_batches([rows]))


def test_a_file_that_has_become_shorter_is_named(rows, tmp_path):
    file = written(tmp_path, rows, [0, ROWS])
    os.truncate(file.path, file.bytes - 1)
    with pytest.raises(DataError, match=r"temporary file .*a' has become shorter"):
        load_rows(RowLayout(rows.schema), [file], ReusedMemory())


@pytest.mark.parametrize("kind", ["batch", "table", "chunks"])
def test_rows_in_another_order(rows, kind):
    order = np.random.default_rng(0).permutation(ROWS)[:700]
    expected = pa.Table.from_batches([rows]).take(order)
    given = {
        "batch": rows.slice(0),
        "table": pa.Table.from_batches([rows]),
        "chunks": pa.Table.from_batches([rows.slice(0, 10), rows.slice(10)]),
    }[kind]
    found = ordered_rows(given, order, ReusedMemory(), "test")
    assert type(found) is type(given)
    found.validate(full=True)
    assert pa.table(found).equals(expected)
    part = rows.slice(100, 300)
    found = ordered_rows(part, np.arange(299, -1, -1), ReusedMemory(), "test")
    assert found["double"].to_pylist() == part["double"].to_pylist()[::-1]
    assert ordered_rows(rows, np.arange(0), ReusedMemory(), "test").num_rows == 0


def test_only_whole_bytes_are_a_fixed_width():
    widths = {pa.int8(): 1, pa.float16(): 2, pa.date32(): 4, pa.duration("s"): 8, pa.decimal128(9): 16}
    widths |= {pa.binary(5): 5, pa.decimal256(50): 32}
    others = [
        pa.bool_(),
        pa.null(),
        pa.string(),
        pa.binary(),
        pa.list_(pa.int8(), 2),
        pa.struct([("x", pa.int8())]),
    ]
    assert {kind: fixed_width(kind) for kind in widths} == widths
    assert [fixed_width(kind) for kind in others] == [0] * len(others)


def test_memory_is_used_again_by_the_same_thread_only():
    memory = ReusedMemory()

    def addresses(purpose, *sizes):
        return [array.ctypes.data for array in memory.arrays(purpose, sizes)]

    first = addresses("a", 10_001, 10, 1)
    assert all(address % 64 == 0 for address in first)
    assert first[1] >= first[0] + 10_001
    assert addresses("a", 9_000)[0] == first[0]
    assert addresses("b", 9_000)[0] != first[0]
    elsewhere = []
    thread = threading.Thread(target=lambda: elsewhere.extend(addresses("a", 9_000)))
    thread.start()
    thread.join()
    assert elsewhere[0] != first[0]
    assert [len(array) for array in memory.arrays("a", [10**6, 3])] == [10**6, 3]
