"""Tables come from Parquet, CSV and TSV, files and directories, local or elsewhere; what is wrong is named."""

import gzip
import os

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest

from ballsbins import BallsAndBins, new_key
from ballsbins.batch_files import BatchFiles
from ballsbins.batch_files.build import build, build_epochs
from ballsbins.batch_files.build_plan import plan_build
from ballsbins.batch_files.inputs import CsvOptions, open_inputs
from ballsbins.batch_files.sort import Memory
from ballsbins.batch_files.trial import sample
from ballsbins.batch_files.two_passes import joined
from ballsbins.errors import DataError, InvalidInputError

from .conftest import ROWS


def all_rows(inputs, rows=1000):
    return pa.Table.from_batches([batch for _, batch in inputs.read(rows)], schema=inputs.schema)


def write_csv(table, path, delimiter=","):
    pc.write_csv(table, path, pc.WriteOptions(delimiter=delimiter))


def test_a_directory_is_read_in_order_of_path_and_what_is_not_data_is_left_out(folder, table):
    inputs = open_inputs([folder])
    assert inputs.count() == ROWS
    assert all_rows(inputs).equals(table)
    assert max(batch.num_rows for _, batch in inputs.read(1000)) <= 1000


def test_inputs_are_taken_in_the_order_given(folder, table):
    paths = sorted(folder.glob("*.parquet"))[::-1]
    rows = all_rows(open_inputs(paths))["row"].to_pylist()
    assert rows[0] == 15_000
    assert rows[-1] == 0
    assert sorted(rows) == list(range(ROWS))


@pytest.mark.parametrize("ending", ["csv", "tsv", "csv.gz"])
def test_text_gives_the_same_batches_as_parquet(ending, folder, table, key, tiny, tmp_path):
    path = tmp_path / "in"
    path.mkdir()
    for number, begin in enumerate(range(0, ROWS, 9_000)):
        part = path / f"part-{number}.{ending.removesuffix('.gz')}"
        write_csv(table.slice(begin, 9_000), part, "\t" if ending == "tsv" else ",")
        if ending.endswith(".gz"):
            (path / f"{part.name}.gz").write_bytes(gzip.compress(part.read_bytes()))
            part.unlink()
    sampler = BallsAndBins(40, max_batch_size=500, num_examples=ROWS)
    build(plan_build(open_inputs([path]), sampler, memory=tiny), tmp_path / "out", key)
    for indices, batch in zip(
        sampler.batches(ROWS, key), BatchFiles.open(tmp_path / "out").batches(0), strict=True
    ):
        assert np.array_equal(batch["row"].to_numpy(), indices)
        assert np.array_equal(batch["x"].to_numpy().astype(np.float32), table["x"].to_numpy()[indices])


def test_text_without_a_header_and_with_stated_types(tmp_path):
    (tmp_path / "in.csv").write_text("1,007,2.5\n2,008,3.5\n")
    inputs = open_inputs([tmp_path / "in.csv"], csv=CsvOptions(header=False, types={"f1": "string"}))
    assert all_rows(inputs).to_pylist() == [
        {"f0": 1, "f1": "007", "f2": 2.5},
        {"f0": 2, "f1": "008", "f2": 3.5},
    ]
    with pytest.raises(InvalidInputError, match="the type of f1 is 'number'"):
        open_inputs([tmp_path / "in.csv"], csv=CsvOptions(header=False, types={"f1": "number"}))
    with pytest.raises(DataError, match="The column 'f9' is missing"):
        open_inputs([tmp_path / "in.csv"], csv=CsvOptions(header=False, types={"f9": "string"}))


def test_line_breaks_within_quotes_may_stand_anywhere(tmp_path, monkeypatch):
    """Text is read in blocks; here, small ones that end within a value time and again."""
    monkeypatch.setattr("ballsbins.batch_files.inputs._CSV_BLOCK", 300)
    values = ["a\n, b \n" * (row % 7) for row in range(200)]
    lines = ["n,t\n", *(f'{row},"{value}"\n' for row, value in enumerate(values))]
    (tmp_path / "in.csv").write_text("".join(lines), newline="")
    assert all_rows(open_inputs([tmp_path / "in.csv"])).to_pydict() == {"n": list(range(200)), "t": values}


def test_an_address_of_pyarrow_fs(folder, table):
    assert all_rows(open_inputs([folder.as_uri()])).equals(table)
    with pytest.raises(InvalidInputError, match="the scheme is 'nowhere://', but must be one that is known"):
        open_inputs(["nowhere://x/y"])


@pytest.fixture
def moved(folder, tmp_path):
    """A copy of the table's files, to be changed."""
    path = tmp_path / "moved"
    path.mkdir()
    for part in sorted(folder.glob("*.parquet")):
        (path / part.name).write_bytes(part.read_bytes())
        os.utime(path / part.name, (0, 0))
    return path


def planned(path, memory, **options):
    return plan_build(open_inputs([path]), BallsAndBins(10), memory=memory, **options)


def test_where_inputs_are_and_of_when_does_not_matter(folder, moved, key, tiny, tmp_path):
    build(planned(folder, tiny), tmp_path / "out", key)
    build(planned(moved, Memory(), workers=3), tmp_path / "out", key, 1)
    assert BatchFiles.open(tmp_path / "out").epochs == (0, 1)


@pytest.mark.parametrize("how", ["another size", "rows in the middle exchanged", "one value"])
def test_inputs_of_another_epoch_that_differ_are_named(how, folder, table, moved, key, tiny, tmp_path):
    """Whatever else of the file stays as it was: its size, its times, its footer, its first and last rows."""
    build(planned(folder, tiny), tmp_path / "out", key)
    path = moved / "part-3.parquet"
    if how == "another size":
        pq.write_table(table.slice(4_000, 11_000), path, compression="none")
    else:
        # the same numbers of bytes: three row groups, of which the middle one is another
        plain = {"compression": "none", "use_dictionary": False, "write_statistics": False}
        order = np.arange(11_000)
        order[5_000:5_010] = order[5_000:5_010][::-1]
        part = table.slice(4_000, 11_000)
        changed = part.take(order)
        if how == "one value":
            numbers = part["x"].to_numpy().copy()
            numbers[5_000] += 1
            changed = part.set_column(2, "x", [numbers])
        for name, rows in (("before", part), ("after", changed)):
            pq.write_table(rows, path, row_group_size=3_000, **plain)
            if name == "before":
                remade = tmp_path / "remade"
                build(planned(moved, tiny), remade, key)
                size = path.stat().st_size
        assert path.stat().st_size == size
        (tmp_path / "out").rename(tmp_path / "old")
        remade.rename(tmp_path / "out")
    os.utime(path, (0, 0))
    with pytest.raises(DataError, match=r"the input file 'part-3\.parquet'"):
        build(planned(moved, tiny), tmp_path / "out", key, 1)
    assert os.listdir(tmp_path / "out") == ["epoch-000000"]


@pytest.mark.parametrize("workers", [1, 2])
def test_an_input_that_changes_while_it_is_read_is_named(workers, table, moved, key, tiny, tmp_path):
    """The last file is replaced during the first look at progress: the same rows in another order."""
    path = moved / "part-4.parquet"
    rows = table.slice(15_000).take(np.arange(5_000)[::-1])
    begun = False

    def replace_it(at):
        nonlocal begun
        if not begun and at.stage == "reading":
            begun = True
            pq.write_table(rows, path, row_group_size=3_000)

    with pytest.raises(DataError, match=r"part-4\.parquet' changed while it was being read"):
        build(planned(moved, tiny, workers=workers), tmp_path / "out", key, report=replace_it)
    assert begun
    assert os.listdir(tmp_path / "out") == []


def test_nobody_without_the_key_can_try_out_rows_by_the_digests(folder, key, tiny, tmp_path):
    """They stand in the manifest and in logs: a plain one would tell who knows all rows but one the last."""
    made = planned(folder, tiny)
    plain = {}
    for _ in made.inputs.read(1000, digests=plain):
        pass
    digests = made.inputs.file_digests(plain)
    mine, other = key.for_run(), new_key().for_run()
    shown = [
        [file.digest for file in made.manifest(secret, epoch, digests).inputs]
        for secret, epoch in ((mine, 0), (mine, 1), (other, 0))
    ]
    assert shown[0] == shown[1]
    assert not set(shown[0]) & set(shown[2])
    written = build_epochs(made, tmp_path / "out", mine, [0])[0].to_json()
    assert all(digest in written for digest in shown[0])
    assert not any(digest in written for digest in digests)


def test_schemas_that_differ_are_named(table, tmp_path):
    for name, part in (
        ("a", table),
        ("b", table.set_column(2, "x", table["x"].cast(pa.float64()))),
        ("c", table.drop_columns("maybe")),
        ("d", table.append_column("more", table["x"])),
    ):
        pq.write_table(part, tmp_path / f"{name}.parquet")
    for other, message in (
        ("b", r"'x' is of type double in '.*b\.parquet', but of type float in '.*a\.parquet'"),
        ("c", r"'maybe' is missing in '.*c\.parquet'"),
        ("d", r"'more', which '.*d\.parquet' has is missing in '.*a\.parquet'"),
    ):
        with pytest.raises(DataError, match=message):
            open_inputs([tmp_path / "a.parquet", tmp_path / f"{other}.parquet"])


def test_columns_in_another_order_are_the_same_table(table, tmp_path):
    pq.write_table(table.slice(0, 10), tmp_path / "a.parquet")
    pq.write_table(table.slice(10, 10).select(["x", "row", "maybe", "name"]), tmp_path / "b.parquet")
    assert all_rows(open_inputs([tmp_path])).equals(table.slice(0, 20))


def test_what_cannot_be_read_is_named(folder, table, tmp_path):
    (tmp_path / "data.xlsx").write_text("")
    (tmp_path / "bad.parquet").write_text("this is not Parquet")
    (tmp_path / "empty").mkdir()
    write_csv(table, tmp_path / "t.csv")
    for paths, message in (
        ([tmp_path / "absent"], "absent' does not exist"),
        ([tmp_path / "data.xlsx"], r"data\.xlsx' is of no kind that can be read"),
        ([tmp_path / "bad.parquet"], r"bad\.parquet' cannot be read"),
        ([tmp_path / "empty"], "has no Parquet, CSV or TSV files"),
        ([tmp_path / "t.csv", folder], r"is parquet, but '.*t\.csv' is csv"),
    ):
        with pytest.raises(DataError, match=message):
            open_inputs(paths)
    with pytest.raises(InvalidInputError, match="at least one"):
        open_inputs([])


def test_text_that_changes_its_type_is_named(tmp_path, key):
    (tmp_path / "a.csv").write_text("n\n1\n2\n")
    (tmp_path / "b.csv").write_text("n\n3\nmany\n")
    with pytest.raises(DataError, match=r"b\.csv' cannot be read: .*many"):
        plan_build(open_inputs([tmp_path]), BallsAndBins(2))


def test_rows_that_become_wider_are_read_in_smaller_numbers(tmp_path):
    """The first 70,000 rows have one letter, the others two thousand: what is held at a time stays small."""
    narrow, wide = ["a"] * 70_000, [f"{number:02000d}" for number in range(10_000)]
    pq.write_table(pa.table({"text": narrow + wide}), tmp_path / "in.parquet", row_group_size=20_000)
    made = plan_build(open_inputs([tmp_path / "in.parquet"]), BallsAndBins(2))
    assert made.trial.row_bytes < 100, "it saw next to none of the wide ones"
    assert made.row_bytes > 1_000
    rows = made.rows_per_read(500_000)
    chunks = [batch for _, batch in joined(made.inputs, rows, 500_000)]
    assert sum(batch.num_rows for batch in chunks) == 80_000
    assert max(batch.nbytes for batch in chunks) < 500_000 + 2_010 * rows
    assert rows * 2_010 < made.memory.chunk_bytes


def test_wide_rows_that_are_stored_once_are_held_in_small_numbers(tmp_path):
    """A word of 20,000 letters stands once in the file for 5,000 rows: footers do not tell how wide they are."""
    words = ["a"] * 70_000 + ["b" * 20_000] * 5_000
    pq.write_table(pa.table({"text": words}), tmp_path / "in.parquet")
    made = plan_build(open_inputs([tmp_path / "in.parquet"]), BallsAndBins(2), memory=Memory(300 * 10**6))
    assert made.row_bytes < 1_000
    chunk = made.memory.chunk_bytes
    rows = made.rows_per_read(chunk)
    assert 20_000 * rows < 20 * 10**6
    held = [batch.nbytes for _, batch in joined(made.inputs, rows, chunk)]
    assert max(held) < 2 * chunk


def test_rows_of_one_width_are_read_in_whole_chunks_and_not_copied(tmp_path):
    """The end of a file is a small chunk of its own: joining it to the next one would copy both."""
    for name, rows in (("a", 10_000), ("b", 4_080), ("c", 10), ("d", 20)):
        values = {"x": np.arange(rows), "y": np.arange(rows, dtype=np.float32)}
        pq.write_table(pa.table(values), tmp_path / f"{name}.parquet")
    made = plan_build(open_inputs([tmp_path]), BallsAndBins(2))
    rows = made.rows_per_read(50_000)
    assert 0.99 * 50_000 < rows * 12.25 <= 50_000
    chunks = [batch for _, batch in joined(made.inputs, rows, 50_000)]
    assert max(batch.nbytes for batch in chunks) <= 50_000
    last = 10_000 - 2 * rows
    assert [batch.num_rows for batch in chunks] == [rows, rows, last, 4_080, 30]
    assert [batch["x"][0].as_py() for batch in chunks] == [0, rows, 2 * rows, 0, 0]


def test_the_trial_is_on_few_rows_where_they_are_wide(tmp_path):
    rows = [bytes([row % 256]) * 50_000 for row in range(2_000)]
    pq.write_table(pa.table({"image": rows}), tmp_path / "in.parquet", row_group_size=100, compression="none")
    inputs = open_inputs([tmp_path / "in.parquet"])
    assert 2**22 < sample(inputs).nbytes < 2**24
    inputs = open_inputs([tmp_path / "in.parquet"])
    made = plan_build(inputs, BallsAndBins(2))
    rows = made.rows_per_read(made.memory.chunk_bytes)
    largest = max(batch.nbytes for _, batch in inputs.read(rows))
    assert largest < 10**7


def test_a_column_that_is_there_twice_is_named(tmp_path):
    (tmp_path / "a.csv").write_text("n,n\n1,2\n")
    with pytest.raises(DataError, match=r"'n' is twice.*--no-header"):
        open_inputs([tmp_path / "a.csv"])


def in_files(tmp_path, *columns):
    """One column, cut into files a, b, …"""
    for name, column in zip("abcd", columns, strict=False):
        pq.write_table(
            pa.table([column], schema=pa.schema([column_field(column)])), tmp_path / f"{name}.parquet"
        )
    return open_inputs([tmp_path])


def column_field(column):
    return pa.field("c", column.type, nullable=column.null_count > 0)


def test_files_that_may_and_may_not_have_missing_values_are_one_table(tmp_path):
    inputs = in_files(tmp_path, pa.array([1, 2]), pa.array([3, None]))
    assert all_rows(inputs)["c"].to_pylist() == [1, 2, 3, None]
    assert inputs.schema.field("c").nullable


def test_categories_of_many_files_need_not_fit_the_smallest_index(key, tmp_path):
    """What pandas writes: each file has its own categories, numbered in 8 bits."""
    kind = pa.dictionary(pa.int8(), pa.string())
    files = [pa.array([f"{file}-{row}" for row in range(100)]).cast(kind) for file in range(3)]
    inputs = in_files(tmp_path, *files)
    sampler = BallsAndBins(4)
    build(plan_build(inputs, sampler), tmp_path / "out", key)
    for indices, batch in zip(
        sampler.batches(300, key), BatchFiles.open(tmp_path / "out").batches(0), strict=True
    ):
        assert batch["c"].to_pylist() == [f"{row // 100}-{row % 100}" for row in indices]


@pytest.mark.parametrize("kind", [pa.string_view(), pa.binary_view()])
def test_views_are_read_as_text_and_bytes(kind, key, tmp_path):
    values = [f"{row}" for row in range(50)]
    if kind == pa.binary_view():
        values = [value.encode() for value in values]
    inputs = in_files(tmp_path, pa.array(values, kind))
    build(plan_build(inputs, BallsAndBins(3), identity_column="c"), tmp_path / "out", key)
    found = pa.concat_tables(map(pa.table, BatchFiles.open(tmp_path / "out").batches(0)))
    assert sorted(found["c"].to_pylist()) == sorted(values)


def test_a_type_whose_rows_cannot_be_moved_is_named(tmp_path):
    with pytest.raises(
        DataError, match=r"'c' of '.*a\.parquet' is of type list.*cannot be put in another order"
    ):
        in_files(tmp_path, pa.array([["x"]], pa.list_(pa.string_view())))


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_text_files_without_rows_tell_no_types(order, tmp_path):
    for name, lines in zip(order, ("", "1,x\n2,y\n"), strict=True):
        (tmp_path / f"{name}.csv").write_text(f"n,t\n{lines}")
    assert all_rows(open_inputs([tmp_path])).to_pylist() == [{"n": 1, "t": "x"}, {"n": 2, "t": "y"}]


def test_names_that_are_not_text_are_refused(table, tmp_path, key):
    pq.write_table(table, tmp_path / "in.parquet")
    made = plan_build(open_inputs([tmp_path / "in.parquet"]), BallsAndBins(2))
    with pytest.raises(DataError, match="cannot be used for batch files"):
        build(made, os.fsdecode(os.fsencode(tmp_path) + b"/\xff"), key)
    os.rename(tmp_path / "in.parquet", os.fsencode(tmp_path) + b"/\xff.parquet")
    with pytest.raises(DataError, match="cannot be read"):
        open_inputs([tmp_path])


def test_ways_to_read_text_are_not_for_parquet(folder):
    for csv in (CsvOptions(header=False), CsvOptions(types={"x": "int8"})):
        with pytest.raises(InvalidInputError, match="left out for Parquet"):
            open_inputs([folder], csv=csv)


def test_columns_are_chosen_without_opening_the_files_again(folder, table, monkeypatch):
    inputs = open_inputs([folder])
    monkeypatch.setattr("ballsbins.batch_files.inputs.read_footer", None)
    assert all_rows(inputs.only(["x", "row"])).equals(table.select(["x", "row"]))


def test_only_the_columns_that_are_read_count(tmp_path):
    """Names alone need a fraction of the disk that whole rows need."""
    rows = 2_000
    table = pa.table(
        {"name": np.arange(rows), "text": [f"{row:01000d}" for row in range(rows)], "s": [{"u": 1.5}] * rows}
    )
    pq.write_table(table, tmp_path / "in.parquet", compression="none", use_dictionary=False)
    inputs = open_inputs([tmp_path / "in.parquet"])
    assert inputs.stored_row_bytes > 1_000
    assert 8 <= inputs.only(["name"]).stored_row_bytes < 20
    assert 16 <= inputs.only(["name", "s"]).stored_row_bytes < 30


def test_reading_a_little_holds_a_little_of_every_column(tmp_path):
    """Every worker reads some of each column ahead: forty times 1 MB were over a limit of 300 MB for two workers."""
    rows, names = 250_000, [f"c{number}" for number in range(40)]
    column = pa.array(np.random.default_rng(0).random(rows, dtype=np.float32))
    path = tmp_path / "in.parquet"
    pq.write_table(
        pa.table([column] * len(names), names=names), path, use_dictionary=False, data_page_size=1 << 16
    )
    inputs = open_inputs([path])
    before, most = pa.total_allocated_bytes(), 0
    for _, batch in inputs.read(1_000):
        most = max(most, pa.total_allocated_bytes() - before - batch.nbytes)
    assert most < 20_000_000
