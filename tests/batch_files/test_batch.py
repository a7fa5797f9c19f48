"""A batch is used like a record batch, and cuts a column out only when it is asked for."""

import pickle

import polars
import pyarrow as pa
import pytest

from ballsbins.batch_files import Batch

ROWS = pa.record_batch({"x": list(range(1_000)), "text": [f"word {row}" for row in range(1_000)]})


@pytest.fixture
def batch():
    return Batch(ROWS, 10, 5)


@pytest.fixture
def expected():
    return ROWS.slice(10, 5)


def test_it_has_the_rows_of_a_slice(batch, expected):
    assert batch.record_batch.equals(expected)
    assert batch["x"].equals(expected["x"])
    assert batch.column("text").equals(expected["text"])
    assert batch.column(1).equals(expected.column(1))
    assert batch.schema.equals(expected.schema)
    assert len(batch) == batch.num_rows == 5


def test_whatever_a_record_batch_offers_works(batch, expected):
    assert batch.to_pydict() == expected.to_pydict()
    assert batch.column_names == ["x", "text"]
    assert batch.num_columns == 2
    assert batch.select(["x"]).equals(expected.select(["x"]))
    assert batch.filter(pa.compute.field("x") > 12).num_rows == 2
    assert batch.slice(1, 2).equals(expected.slice(1, 2))


def test_other_libraries_take_it(batch, expected):
    assert pa.table(batch).equals(pa.Table.from_batches([expected]))
    assert pa.record_batch(batch).equals(expected)
    assert pa.schema(batch).equals(expected.schema)
    assert polars.DataFrame(batch).to_dict(as_series=False) == expected.to_pydict()


def test_batches_are_equal_if_their_rows_are(batch, expected):
    assert batch == Batch(expected, 0, 5)
    assert batch.equals(Batch(expected, 0, 5))
    assert not batch.equals(Batch(expected, 0, 4))
    other_metadata = Batch(expected.replace_schema_metadata({"a": "b"}), 0, 5)
    assert batch.equals(other_metadata)
    assert not batch.equals(other_metadata, check_metadata=True)
    assert batch == expected
    assert batch != Batch(ROWS, 11, 5)
    assert batch != "another thing"
    with pytest.raises(TypeError, match="unhashable"):
        hash(batch)


def test_a_pickle_has_only_the_rows_of_the_batch(batch):
    copy = pickle.loads(pickle.dumps(batch))
    assert copy == batch
    assert copy.record_batch.get_total_buffer_size() < 200, "rows of other batches"


def test_a_log_shows_neither_rows_nor_their_number(batch):
    assert repr(batch) == str(batch) == "Batch(x, text)"


def test_a_missing_column_or_attribute_is_named(batch):
    with pytest.raises(KeyError, match="nothing"):
        batch["nothing"]
    for name in ("nothing", "_nothing"):
        with pytest.raises(AttributeError, match=name):
            getattr(batch, name)
