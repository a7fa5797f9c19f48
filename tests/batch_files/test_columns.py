"""The schema decides the dtype and the shape of every array, whatever a batch holds."""

import datetime
import pickle
import sys
from decimal import Decimal
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ballsbins import BallsAndBins, new_key
from ballsbins.batch_files import BatchFiles, dictionaries
from ballsbins.batch_files.build import build
from ballsbins.batch_files.build_plan import plan_build
from ballsbins.batch_files.columns import Converter, columns_of
from ballsbins.batch_files.inputs import open_inputs
from ballsbins.batch_files.reader import OtherWorldSizeWarning, arrays, padded_arrays
from ballsbins.cli import main
from ballsbins.errors import DataError, InvalidInputError

ROWS, STEPS = (
    600,
    150,
)  # four rows a batch: some batches are empty, some have no missing value, some have only those
SAMPLER = BallsAndBins(STEPS, max_batch_size=30, num_examples=ROWS)

# Name: (type, value of row i, dtype, shape of a row). What may be missing is so in every seventh row.
TYPES = {
    **{
        f"int{bits}": (getattr(pa, f"int{bits}")(), lambda i: i % 100, f"int{bits}", ())
        for bits in (8, 16, 32, 64)
    },
    **{
        f"uint{bits}": (getattr(pa, f"uint{bits}")(), lambda i: i % 100, f"uint{bits}", ())
        for bits in (8, 16, 32, 64)
    },
    "float16": (pa.float16(), lambda i: np.float16(i / 8), "float16", ()),
    "float32": (pa.float32(), lambda i: i / 8, "float32", ()),
    "float64": (pa.float64(), lambda i: i / 8, "float64", ()),
    "bool": (pa.bool_(), lambda i: i % 2 == 0, "bool", ()),
    "decimal": (pa.decimal128(12, 2), lambda i: Decimal(i) / 4, "float64", ()),
    "day": (
        pa.date32(),
        lambda i: datetime.date(1970, 1, 1) + datetime.timedelta(days=i),
        "int32",
        (),
    ),
    "when_us": (pa.timestamp("us"), lambda i: i, "int64", ()),
    "when_ns": (pa.timestamp("ns", tz="Europe/Zurich"), lambda i: i, "int64", ()),
    "time": (pa.time64("us"), lambda i: i, "int64", ()),
    "took": (pa.duration("ms"), lambda i: i, "int64", ()),
    "text": (pa.string(), lambda i: f"t{i}", "object", ()),
    "large": (pa.large_string(), lambda i: f"t{i}", "object", ()),
    "bytes": (pa.binary(), lambda i: b"%d" % i, "object", ()),
    "word": (pa.binary(3), lambda i: b"%03d" % i, "uint8", (3,)),
    "floats": (pa.list_(pa.float32(), 4), lambda i: [i, i + 1, i + 2, i + 3], "float32", (4,)),
    "ints": (pa.list_(pa.int16(), 2), lambda i: [i, None if i % 5 == 0 else -i], "int16", (2,)),
    "grid": (pa.list_(pa.list_(pa.int8(), 2), 3), lambda i: [[i % 9, 1], [2, 3], [4, 5]], "int8", (3, 2)),
    "tensor": (pa.fixed_shape_tensor(pa.float32(), [2, 3]), lambda i: [i] * 6, "float32", (2, 3)),
    "kind": (pa.dictionary(pa.int32(), pa.string()), lambda i: f"k{i % 5}", "int32", ()),
}
FLOATS = ("float16", "float32", "float64", "decimal", "floats", "tensor")


def array_of(kind, values):
    if isinstance(kind, pa.FixedShapeTensorType):
        return pa.ExtensionArray.from_storage(kind, pa.array(values, kind.storage_type))
    if pa.types.is_dictionary(kind):
        return pa.array(values, kind.value_type).dictionary_encode().cast(kind)
    return pa.array(values, kind)


def column(name, nullable):
    kind, value, _, _ = TYPES[name]
    values = [None if nullable and row % 7 == 0 else value(row) for row in range(ROWS)]
    return array_of(kind, values)


@pytest.fixture(scope="module")
def table():
    names = [
        (f"{name}{'' if nullable else '!'}", name, nullable) for name in TYPES for nullable in (True, False)
    ]
    schema = pa.schema(
        [pa.field("row", pa.int64(), nullable=False)]
        + [pa.field(shown, TYPES[name][0], nullable=nullable) for shown, name, nullable in names]
    )
    columns = [pa.array(range(ROWS)), *(column(name, nullable) for _, name, nullable in names)]
    return pa.table(columns, schema=schema)


@pytest.fixture(scope="module", params=[False, True], ids=["as drawn", "padded"])
def stored(request, table, key, tiny, tmp_path_factory):
    path = tmp_path_factory.mktemp("columns")
    pq.write_table(table, path / "in.parquet", row_group_size=100)
    build(
        plan_build(open_inputs([path / "in.parquet"]), SAMPLER, memory=tiny, pad=request.param),
        path / "out",
        key,
    )
    return BatchFiles.open(path / "out")


def shown_types(batch, rows):
    for name, values in batch.items():
        assert len(values) == rows, name
    return {name: (str(values.dtype), values.shape[1:]) for name, values in batch.items()}


def expected_types(names):
    found = {"row": ("int64", ())}
    for name in names:
        _, _, dtype, shape = TYPES[name.removesuffix("!")]
        found[name] = (dtype, shape)
        inner = name.startswith(("ints", "grid"))  # their elements may be missing, whatever the lists
        if name.removesuffix("!") not in FLOATS and (inner or not name.endswith("!")):
            found[f"{name}.valid"] = ("bool", shape)
    return found


def test_every_batch_has_the_same_arrays(stored, table):
    wanted = expected_types(table.column_names[1:])
    if stored.manifest.padded_to is not None:
        wanted["weight"] = ("float32", ())
    seen = [shown_types(batch, rows) for batch, rows in arrays(stored, 0)]
    assert all(found == wanted for found in seen)
    empty = [rows for _, rows in arrays(stored, 0) if rows == 0]
    assert bool(empty) == (stored.manifest.padded_to is None), "the case of an empty batch is there"
    said = {entry.name: (entry.dtype, entry.shape) for entry in stored.manifest.columns}
    assert said == {
        name: ({"text": "text", "large": "text", "bytes": "bytes"}.get(name.rstrip("!"), dtype), shape)
        for name, (dtype, shape) in wanted.items()
        if not name.endswith(".valid")
    }


def test_the_values_are_those_of_the_table(stored, table, key):
    """Compared row by row with Python's own values, by a way of its own."""
    for indices, (batch, _) in zip(SAMPLER.batches(ROWS, key), arrays(stored, 0), strict=True):
        for name in table.column_names[1:]:
            plain = name.removesuffix("!")
            for place, row in enumerate(indices.tolist()):
                missing = not name.endswith("!") and row % 7 == 0
                check_value(stored, batch, name, plain, place, row, missing)


def check_value(stored, batch, name, plain, place, row, missing):
    found = batch[name][place]
    if plain in FLOATS:
        wanted = np.nan if missing else np.array(TYPES[plain][1](row), "float64").reshape(found.shape)
        assert np.array_equal(
            np.asarray(found, "float64"), np.broadcast_to(wanted, found.shape), equal_nan=True
        )
        return
    mask = batch.get(f"{name}.valid", np.ones(batch[name].shape, bool))[place]
    if missing:
        assert not np.any(mask)
        assert found in ("", b"") if isinstance(found, (str, bytes)) else not np.any(found)
        return
    wanted = TYPES[plain][1](row)
    if plain == "day":
        wanted = row
    elif plain == "word":
        wanted = list(wanted)
    elif plain == "kind":
        found = stored.dictionary(name)[int(found)].as_py()
    elif plain == "ints":
        assert mask.tolist() == [True, row % 5 != 0]
        wanted = [value or 0 for value in wanted]
    assert np.all(mask) or plain == "ints"
    assert np.array_equal(found, wanted)


def test_times_state_their_unit(stored):
    units = {entry.name: entry.unit for entry in stored.manifest.columns if entry.unit is not None}
    wanted = {"day": "D", "when_us": "us", "when_ns": "ns", "time": "us", "took": "ms"}
    assert units == wanted | {f"{name}!": unit for name, unit in wanted.items()}


def test_padded_arrays_have_one_shape(stored, table):
    numbers = [name for name in table.column_names if TYPES.get(name.rstrip("!"), ("",) * 3)[2] != "object"]
    shapes = {
        tuple((name, str(values.dtype), values.shape) for name, values in batch.items())
        for batch in padded_arrays(stored, 0, columns=numbers)
    }
    assert len(shapes) == 1
    assert {shape[2][0] for shape in shapes.pop()} == {30}
    texts = next(padded_arrays(stored, 0, columns=["text", "bytes"]))
    assert {type(value) for value in texts["text"]} == {str}
    assert {type(value) for value in texts["bytes"]} == {bytes}


def test_tensors_have_the_same_types(stored, table):
    torch = pytest.importorskip("torch")
    from ballsbins.batch_files.torch_dataset import BatchDataset

    kinds = set()
    for batch, (wanted, _) in zip(BatchDataset(stored, 0), arrays(stored, 0), strict=True):
        kinds.add(tuple((name, getattr(value, "dtype", list)) for name, value in batch.items()))
        for name, value in batch.items():
            if wanted[name].dtype == object:
                assert value == wanted[name].tolist()
            else:
                assert isinstance(value, torch.Tensor)
                assert np.array_equal(value.numpy(), wanted[name], equal_nan=wanted[name].dtype.kind == "f")
    assert len(kinds) == 1


def test_a_batch_crosses_from_a_worker_in_one_piece(stored):
    """Tens of small tensors in shared memory of their own took thirty times as long as reading them."""
    torch = pytest.importorskip("torch")
    from multiprocessing.reduction import ForkingPickler

    from ballsbins.batch_files import torch_dataset

    for batch, piped in zip(
        torch_dataset.BatchDataset(stored, 0, start=100), (True, False) * 25, strict=True
    ):
        with pytest.MonkeyPatch.context() as patch:
            if not piped:
                patch.setattr(torch_dataset, "_PIPED", -1)
            plain = batch.__reduce__()
            shared = [value for value in plain[1] if isinstance(value, torch.Tensor)]
            assert len(shared) == (0 if piped else 1)
            again = pickle.loads(ForkingPickler.dumps(batch)) if piped else plain[0](*plain[1])
        assert list(again) == list(batch)
        for name, value in batch.items():
            if isinstance(value, list):
                assert again[name] == value
            else:
                assert again[name].dtype == value.dtype
                assert torch.equal(again[name].nan_to_num(7), value.nan_to_num(7))
                again[name][:] = 0  # a tensor of its own


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.int32()), pa.large_list(pa.float32()), pa.list_(pa.string())], ids=str
)
def test_lists_of_any_length_are_values_and_offsets(kind, key, tiny, tmp_path):
    value = str if kind.value_type == pa.string() else int
    lists = [None if row % 7 == 0 else [value(row)] * (row % 4) for row in range(ROWS)]
    pq.write_table(pa.table({"tags": pa.array(lists, kind)}), tmp_path / "in.parquet")
    build(plan_build(open_inputs([tmp_path / "in.parquet"]), SAMPLER, memory=tiny), tmp_path / "out", key)
    files = BatchFiles.open(tmp_path / "out")
    for indices, (batch, rows) in zip(SAMPLER.batches(ROWS, key), arrays(files, 0), strict=True):
        offsets = batch["tags.offsets"]
        assert (offsets.dtype, offsets.shape) == (np.int64, (rows + 1,))
        found = [batch["tags"][begin:end].tolist() for begin, end in pairwise(offsets)]
        assert found == [lists[row] or [] for row in indices]
        assert ("tags.valid" in batch) == (kind.value_type != pa.float32())
    for rank in range(3):
        with pytest.warns(OtherWorldSizeWarning):
            shares = arrays(files, 0, rank=rank, ranks=3)
        for indices, (batch, rows) in zip(SAMPLER.batches(ROWS, key).for_rank(rank, 3), shares, strict=True):
            found = [batch["tags"][begin:end].tolist() for begin, end in pairwise(batch["tags.offsets"])]
            assert rows == len(indices)
            assert found == [lists[row] or [] for row in indices]
    with pytest.raises(
        InvalidInputError, match=r"'tags'.*left out where batches have one shape.*fixed-size list"
    ):
        next(padded_arrays(files, 0))


@pytest.mark.parametrize(
    ("kind", "way_out"),
    [
        (pa.struct([("a", pa.int32())]), "Make columns of its parts"),
        (pa.map_(pa.string(), pa.int32()), "Make columns of its parts"),
        (pa.list_(pa.list_(pa.int32())), "Cut or pad the inner lists"),
        (pa.list_(pa.dictionary(pa.int32(), pa.string())), "a list of the values themselves"),
        (pa.month_day_nano_interval(), "Make columns"),
    ],
    ids=str,
)
def test_what_becomes_no_array_is_refused_by_name(kind, way_out):
    with pytest.raises(DataError, match=f"The column 'odd' is of type .*{way_out}.*leave"):
        columns_of(pa.schema([("x", pa.int32()), ("odd", kind)]))


def test_a_build_refuses_it_before_any_work(key, tmp_path):
    pq.write_table(pa.table({"x": [1, 2], "odd": [{"a": 1}, {"a": 2}]}), tmp_path / "in.parquet")
    with pytest.raises(DataError, match="The column 'odd' is of type struct"):
        plan_build(open_inputs([tmp_path / "in.parquet"]), BallsAndBins(1))


def test_names_that_would_be_taken_twice_are_refused():
    columns_of(pa.schema([pa.field("a", pa.int32(), nullable=False), ("a.valid", pa.float32())]))
    with pytest.raises(DataError, match=r"'a\.valid' has the name of an array.*Rename"):
        columns_of(pa.schema([("a", pa.int32()), ("a.valid", pa.bool_())]))


def test_tensors_that_are_stored_in_another_order_come_in_their_own():
    kind = pa.fixed_shape_tensor(pa.int32(), [2, 3], permutation=[1, 0])
    values = pa.ExtensionArray.from_storage(kind, pa.array([[0, 1, 2, 3, 4, 5]], kind.storage_type))
    batch = pa.record_batch({"t": values})
    assert columns_of(batch.schema)[0].shape == (3, 2)
    assert Converter(batch.schema)(batch)["t"].tolist() == [[[0, 3], [1, 4], [2, 5]]]


def test_a_slice_is_converted_right():
    """Offsets into buffers."""
    lists = pa.array([[row, None] for row in range(20)], pa.list_(pa.int64(), 2))
    words = pa.array([b"%02d" % row for row in range(20)], pa.binary(2))
    some = pa.record_batch({"w": words, "l": lists}).slice(5, 3)
    found = Converter(some.schema)(some)
    assert [bytes(value).decode() for value in found["w"]] == ["05", "06", "07"]
    assert found["l"].tolist() == [[5, 0], [6, 0], [7, 0]]
    assert found["l.valid"].tolist() == [[True, False]] * 3


def size_below(path):
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


@pytest.mark.parametrize("values", [7, 20_000], ids=["few", "one for each row"])
def test_a_dictionary_column_takes_about_what_text_takes(values, key, tiny, tmp_path):
    """Every row group and every piece of rows once had a copy of the whole dictionary."""
    text = pa.array([f"value {row * 7919 % values:06d}" for row in range(20_000)])
    sizes = {}
    for name, column_of in (("text", text), ("codes", text.dictionary_encode())):
        pq.write_table(pa.table({"c": column_of}), tmp_path / f"{name}.parquet", row_group_size=5_000)
        made = plan_build(open_inputs([tmp_path / f"{name}.parquet"]), BallsAndBins(50), memory=tiny)
        build(made, tmp_path / name, key)
        sizes[name] = size_below(tmp_path / name)
    assert sizes["codes"] < 1.5 * sizes["text"] + 5_000
    files = BatchFiles.open(tmp_path / "codes")
    assert len(files.dictionary("c")) == values
    both = zip(files.batches(0), BatchFiles.open(tmp_path / "text").batches(0), strict=True)
    assert all(codes["c"].to_pylist() == words["c"].to_pylist() for codes, words in both)


@pytest.mark.parametrize("kept", [True, False], ids=["codes kept", "looked up"])
def test_row_groups_with_dictionaries_of_their_own_get_one(kept, key, tiny, tmp_path, monkeypatch):
    """Some row groups have a dictionary, some have outgrown theirs; values come again, and some are missing."""
    if not kept:
        monkeypatch.setattr(dictionaries, "_KEPT", -1)
        monkeypatch.setattr(dictionaries, "_KEPT_PER_VALUE", 0)
    monkeypatch.setattr(dictionaries, "_LARGEST_DICTIONARY", 30_000)
    random, words = np.random.default_rng(3), []
    with pq.ParquetWriter(
        tmp_path / "in.parquet", pa.schema({"c": pa.dictionary(pa.int32(), pa.string())})
    ) as file:
        for number, values in enumerate((5, 3_000, 40, 3_000, 3_000)):
            some = [f"value {value}" for value in (random.integers(0, values, 3_000) + 500 * number).tolist()]
            some[7] = None
            words += some
            file.write_table(pa.table({"c": pa.array(some).dictionary_encode()}))
    plan = plan_build(open_inputs([tmp_path / "in.parquet"]), BallsAndBins(20), memory=tiny, workers=2)
    assert bool(plan.dictionaries.codes) == kept
    build(plan, tmp_path / "out", key)
    files = BatchFiles.open(tmp_path / "out")
    assert files.dictionary("c").to_pylist() == [word for word in dict.fromkeys(words) if word is not None]
    for batch, indices in zip(files.batches(0), BallsAndBins(20).batches(len(words), key), strict=True):
        assert batch["c"].to_pylist() == [words[row] for row in indices]
    other = pa.record_batch({"c": ["value 1", "value 2", "another"]})
    for first in (0, None):
        with pytest.raises(DataError, match="'c' has a value that was not there when"):
            plan.dictionaries.encode(other, first)


def test_an_ordered_dictionary_keeps_its_order_and_values_that_no_row_has(key, tmp_path):
    """What pandas calls an ordered category: code 0 is the lowest, also if a file begins with another."""
    levels = pa.array(["low", "middle", "high", "never"])
    for number, codes in enumerate(([2, 1, 2], [0, 2, None])):
        column_of = pa.DictionaryArray.from_arrays(pa.array(codes, pa.int8()), levels, ordered=True)
        pq.write_table(pa.table({"level": column_of}), tmp_path / f"{number}.parquet")
    inputs = open_inputs([tmp_path / "0.parquet", tmp_path / "1.parquet"])
    build(plan_build(inputs, BallsAndBins(1)), tmp_path / "out", key)
    files = BatchFiles.open(tmp_path / "out")
    assert files.dictionary("level").equals(levels)
    (table,) = files.batches(0)
    assert table["level"].type.ordered
    ((batch, _),) = arrays(files, 0)
    assert batch["level"].tolist() == [2, 1, 2, 0, 2, 0]
    assert batch["level.valid"].tolist() == [True] * 5 + [False]
    with pytest.raises(InvalidInputError, match=r"column is 'row'"):
        files.dictionary("row")


def test_the_command_refuses_a_column_by_name_and_leaves_it_out(tmp_path, monkeypatch, capsys):
    table = pa.table({"x": range(40), "odd": [{"a": row} for row in range(40)]})
    pq.write_table(table, tmp_path / "in.parquet")
    new_key().save(tmp_path / "key")
    common = [
        "build",
        tmp_path / "in.parquet",
        "--out",
        tmp_path / "out",
        "-T",
        "4",
        "--key-file",
        tmp_path / "key",
    ]
    for more, said in (
        ([], "The column 'odd' is of type struct<a: int64>, which becomes no array"),
        (["--without", "even"], "--without is 'even', but must be among x, odd"),
        (
            ["--without", "odd", "--world-size", "11"],
            "the world size is 11, but must be an integer from 1 to 10",
        ),
    ):
        monkeypatch.setattr(sys, "argv", ["ballsbins", *map(str, common), *more])
        with pytest.raises(SystemExit) as stopped:
            main()
        assert stopped.value.code == 2
        assert said in capsys.readouterr().err
        assert not (tmp_path / "out").exists()
    monkeypatch.setattr(
        sys, "argv", ["ballsbins", *map(str, common), "--without", "odd", "--world-size", "2"]
    )
    with pytest.raises(SystemExit, match="0"):
        main()
    manifest = BatchFiles.open(tmp_path / "out").manifest
    assert ([column.name for column in manifest.columns], manifest.world_size) == (["x"], 2)
