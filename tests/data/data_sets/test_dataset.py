"""Reading prepared data: what another program may have got wrong is named."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ballsbins import InvalidInputError
from ballsbins.data.dataset import Dataset, Features


@pytest.fixture
def made(tmp_path):
    """A data set of three examples in two files, as another program could write it."""
    description = {
        "schema": 1, "label": "label", "integers": ["x"], "categories": {"c": 4}, "splits": {"train": 3, "test": 1},
        "facts": {"source": "by hand"}, "not_covered": ["something"],
    }  # fmt: skip
    (tmp_path / "dataset.json").write_text(json.dumps(description))
    table = pa.table({"c": [3, 0, 1], "label": [1, 0, 1], "x": [0.5, -1.0, 2.0]})
    for split, file, rows in (("train", "b", table[2:]), ("train", "a", table[:2]), ("test", "a", table[:1])):
        (tmp_path / split).mkdir(exist_ok=True)
        pq.write_table(rows, tmp_path / split / f"{file}.parquet")
    return tmp_path


def rewrite(made, **columns):
    file = made / "train" / "a.parquet"
    table = pq.read_table(file)
    for name, values in columns.items():
        place = table.schema.get_field_index(name)
        table = (
            table.remove_column(place) if values is None else table.set_column(place, name, pa.array(values))
        )
    pq.write_table(table, file)


def test_read(made):
    dataset = Dataset.open(made)
    assert dataset.features == Features(("x",), (("c", 4),))
    assert dataset.num_examples("train") == 3
    assert dataset.public_facts == {"source": "by hand"}
    assert dataset.not_covered == ("something",)
    examples = dataset.examples("train")
    assert len(examples) == 3
    assert (examples.labels.dtype, examples.integers.dtype, examples.categories.dtype) == (
        np.float32,
        np.float32,
        np.int32,
    )
    assert examples.labels.tolist() == [1, 0, 1]
    assert examples.integers.tolist() == [[0.5], [-1.0], [2.0]]
    assert examples.categories.tolist() == [[3], [0], [1]]
    taken = examples.take(np.array([2, -1, 0]))
    assert taken.categories.tolist() == [[1], [1], [3]]
    assert len(examples.take(np.array([], np.int64))) == 0


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"label": [1, 2]}, r"a label .*is 2.0, but must be 0 or 1"),
        ({"c": [1, 4]}, r"category 'c' .*is 4, but must be from 0 to 3"),
        ({"c": [-1, 0]}, r"category 'c' .*is -1"),
        ({"c": None}, r"column 'c'"),
        ({"c": [1, None]}, r"without missing values in the column 'c'"),
        ({"x": [1.0, float("nan")]}, r"without NaN"),
    ],
)
def test_wrong_values_are_named(made, columns, message):
    rewrite(made, **columns)
    with pytest.raises(InvalidInputError, match=message):
        Dataset.open(made).examples("train")


def test_files_that_are_not_whole(made):
    (made / "train" / "b.parquet").unlink()
    with pytest.raises(InvalidInputError, match="2 examples and should have 3"):
        Dataset.open(made).examples("train")
    pq.write_table(pa.table({"c": [0] * 9, "label": [0] * 9, "x": [0.0] * 9}), made / "train" / "b.parquet")
    with pytest.raises(InvalidInputError, match="within the 3 examples"):
        Dataset.open(made).examples("train")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 2}, "schema"),
        ({"splits": {"test": 1}}, "with train"),
        ({"splits": {"train": -1}}, "the size of train"),
        ({"categories": {"c": 1}}, "number of buckets of 'c'"),
        ({"categories": {"x": 4}}, "all different"),
        ({"more": 1}, "exactly the fields"),
    ],
)
def test_wrong_descriptions_are_named(made, change, message):
    file = made / "dataset.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(InvalidInputError, match=message):
        Dataset.open(made)


def test_not_a_data_set(made):
    with pytest.raises(InvalidInputError, match="ballsbins data prepare"):
        Dataset.open(made / "train")
    (made / "dataset.json").write_text("{")
    with pytest.raises(InvalidInputError, match="readable"):
        Dataset.open(made)


def test_unknown_split(made):
    with pytest.raises(InvalidInputError, match="one of train, test"):
        Dataset.open(made).examples("validation")
