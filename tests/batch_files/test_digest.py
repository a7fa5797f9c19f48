"""The hash of rows does not depend on how they are cut, and depends on every value and its place."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ballsbins.batch_files.digest import RowsDigest
from ballsbins.batch_files.inputs import open_inputs

COLUMNS = {
    "number": pa.array([5, 6, None, 8, 9, 6, 0], pa.int32()),
    "truth": pa.array([True, False, False, True, None, True, True]),
    "text": pa.array(["ab", "c", "", None, "d", "ef", "g"]),
    "large": pa.array(["ab", "c", "", None, "d", "ef", "g"], pa.large_string()),
    "raw": pa.array([b"12", b"34", b"56", b"78", None, b"11", b"22"], pa.binary(2)),
    "price": pa.array([1, 2, 3, None, 5, 6, 7], pa.int64()).cast(pa.decimal128(30, 2)),
    "when": pa.array([1, 2, 3, None, 5, 6, 7], pa.timestamp("us")),
    "words": pa.array([["a", "b"], [], None, ["c"], [None], ["d"], ["e"]], pa.list_(pa.string())),
    "point": pa.array([[1, 2], [3, 4], [5, 6], None, [7, 8], [9, 1], [2, 3]], pa.list_(pa.float32(), 2)),
    "pair": pa.array(
        [{"u": 1, "v": "x"}, None, {"u": None, "v": "y"}, *({"u": row, "v": str(row)} for row in range(4))]
    ),
    "kind": pa.array(["k", "l", "k", None, "m", "l", "k"]).dictionary_encode(),
}


def digest(table, cuts=()):
    hashed = RowsDigest()
    edges = [0, *cuts, table.num_rows]
    for begin, end in pairwise(edges):
        for batch in table.slice(begin, end - begin).to_batches():
            hashed.update(batch)
    return hashed.digest()


@pytest.mark.parametrize("name", COLUMNS)
def test_by_type(name):
    table = pa.table({name: COLUMNS[name]})
    whole = digest(table)
    for cuts in ([1], [3], [1, 2, 3, 4, 5, 6], [4, 4]):
        assert digest(table, cuts) == whole
    moved = pa.concat_tables([table.slice(1), table.slice(0, 1)]).slice(6)
    assert digest(pa.concat_tables([moved, table.slice(1)]).combine_chunks()) == whole, "from other offsets"
    others = [table.take([1, 0, 2, 3, 4, 5, 6]), table.take([0, 1, 3, 2, 4, 5, 6]), table.slice(1)]
    for other in others:
        assert digest(other) != whole, "two values exchanged, or one left out"


def test_what_is_stored_under_a_missing_value_does_not_count():
    values = [pa.array([1, hidden, 3], mask=np.array([False, True, False])) for hidden in (7, 8)]
    assert digest(pa.table({"a": values[0]})) == digest(pa.table({"a": values[1]}))
    assert digest(pa.table({"a": [1, 3, None]})) != digest(pa.table({"a": [1, None, 3]}))


def test_text_is_hashed_with_its_borders_and_columns_with_their_names():
    assert digest(pa.table({"a": ["ab", "c"]})) != digest(pa.table({"a": ["a", "bc"]}))
    assert digest(pa.table({"a": [1], "b": [2]})) != digest(pa.table({"a": [2], "b": [1]}))
    assert digest(pa.table({"a": [["x"], []]})) != digest(pa.table({"a": [[], ["x"]]}))


def test_categories_count_as_their_values():
    plain = COLUMNS["kind"].cast(pa.string())
    assert digest(pa.table({"kind": COLUMNS["kind"]})) == digest(pa.table({"kind": plain}))


def test_a_file_has_one_hash_however_many_rows_are_read_at_a_time(folder):
    inputs = open_inputs([folder])
    found = []
    for rows in (7, 999, 10**6):
        digests = {}
        assert sum(batch.num_rows for _, batch in inputs.read(rows, digests=digests)) == inputs.count()
        found.append(inputs.file_digests(digests))
    assert found[0] == found[1] == found[2]
    assert len(set(found[0])) == len(inputs.files)


def test_pieces_are_read_in_any_order_with_the_same_hash(folder, table):
    inputs = open_inputs([folder])
    whole, parts = {}, {}
    rows = [batch for _, batch in inputs.read(5_000, digests=whole)]
    assert pa.Table.from_batches(rows).equals(table)
    for piece in reversed(inputs.pieces()):
        some = pa.Table.from_batches([batch for _, batch in inputs.read(700, [piece], parts)], inputs.schema)
        assert some.equals(table.slice(piece.first, piece.rows))
    assert parts == whole


def test_every_footer_is_opened_once(tmp_path, monkeypatch):
    """Of 50 files; the trial reads a few more of them."""
    from ballsbins import BallsAndBins
    from ballsbins.batch_files.build_plan import plan_build
    from ballsbins.batch_files.store import Location

    for number in range(50):
        pq.write_table(pa.table({"a": range(2_000)}), tmp_path / f"{number:02}.parquet")
    opened, real = [], Location.open
    monkeypatch.setattr(Location, "open", lambda self: opened.append(self.path) or real(self))
    plan = plan_build(open_inputs([tmp_path]), BallsAndBins(5))
    assert sorted(opened) == sorted(str(path) for path in tmp_path.iterdir())
    assert plan.row_bytes > 8
    assert plan.inputs.pieces()[-1].first == 49 * 2_000
    assert len(opened) <= 50 + 2 * 48, "the trial stops after some ten thousand rows"
