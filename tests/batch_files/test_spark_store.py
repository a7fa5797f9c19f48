"""The Spark engine and an object store: executors read inputs and write batches as the embedded engine does."""

import gc
import importlib.util
import os
import subprocess
import sys
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ballsbins import BallsAndBins, Deterministic, Shuffle
from ballsbins.batch_files import BatchFiles, spark
from ballsbins.batch_files import assignments as embedded
from ballsbins.batch_files import build as local
from ballsbins.batch_files.build_plan import plan_build
from ballsbins.batch_files.inputs import open_inputs
from ballsbins.batch_files.spark.store_rows import _tasks
from ballsbins.batch_files.store import located
from ballsbins.cli import main
from ballsbins.errors import DataError
from ballsbins.samplers import Key

from . import spark_cluster
from .s3_store import BUCKET

pytestmark = [
    pytest.mark.xdist_group("spark"),  # one Java process serves them all
    *spark_cluster.OPEN_SOCKETS,
]

ROWS = 1000
KEY = Key(bytes(range(100, 132))).for_run()


@pytest.fixture(scope="module")
def session(running):
    spark_cluster.install_java()
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    # Java may run already, with an environment that knows no store.
    told = {
        f"spark.executorEnv.{name}": value for name, value in os.environ.items() if name.startswith("AWS_")
    }
    settings = {
        "spark.driver.memory": "600m",
        "spark.driver.extraJavaOptions": spark_cluster.LIGHT,
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "128",
    }
    with spark.session("local[2]", settings | told) as started:
        yield started
    gc.collect()  # sockets that PySpark left open, before the tests of others


@pytest.fixture
def address(store, request):
    """A place of its own for each test."""
    return f"s3://{BUCKET}/spark/{abs(hash(request.node.name))}"


def put(place, table, row_group_size=77):
    with place.create() as sink:
        pq.write_table(table, sink, row_group_size=row_group_size)


def put_all(address, table):
    """Write a table as files of unequal length, one of them empty, whose names need care."""
    begin = 0
    for name, rows in {"a b+c": 350, "d%20é": 0, "e#f": 50, "x=1/g": 600}.items():
        put(located(f"{address}/in") / f"{name}.parquet", table.slice(begin, rows))
        begin += rows
    assert begin == ROWS
    return f"{address}/in"


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(5)
    return pa.table(
        {
            "name": [f"user-{number * 7919 % 10007}" for number in range(ROWS)],
            "number": pa.array(np.arange(ROWS) * 5, pa.uint64()),
            "a.b `c`": pa.array(rng.normal(size=ROWS), pa.float32(), mask=rng.random(ROWS) < 0.1),
            "_metadata": pa.array(np.arange(ROWS) * 10**9, pa.timestamp("ms", "UTC")),
            "kind": pa.array([f"kind {row * 7 % 13}" for row in range(ROWS)]).dictionary_encode(),
        }
    )


def batches_of(directory, epoch=0):
    return [pa.table(batch) for batch in BatchFiles.open(directory).batches(epoch)]


def require_equal_epochs(one, two, rows=ROWS):
    found, expected = batches_of(one), batches_of(two)
    assert sum(batch.num_rows for batch in found) == rows
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.schema.equals(theirs.schema)
        assert mine.equals(theirs)


CASES = {
    "bins": (BallsAndBins(13), None),
    "truncated by name": (BallsAndBins(13, max_batch_size=77, num_examples=ROWS), "name"),
    "by number": (BallsAndBins(13), "number"),
    "shuffle": (Shuffle(13), None),
    "deterministic": (Deterministic(13), None),
}


@pytest.mark.parametrize("case", CASES)
def test_from_store_to_store_as_the_embedded_engine(case, address, session, store, table, tmp_path):
    sampler, identity = CASES[case]
    planned = plan_build(open_inputs([put_all(address, table)]), sampler, identity_column=identity)
    expected = local.build(planned, tmp_path / "embedded", KEY)
    store.requests.clear()
    manifest = spark.build(planned, f"{address}/out", KEY, session=session, parts=3)
    # Spark has read the store itself: once for the hashes, once for the rows.
    assert sum(asked.startswith("HEAD /") and "g.parquet" in asked for asked in store.requests) >= 2
    kept = sum(batch.num_rows for batch in batches_of(tmp_path / "embedded"))
    require_equal_epochs(f"{address}/out", tmp_path / "embedded", kept)
    manifest.require_same_run(expected)


def every_type():
    """Four rows of all types that a Parquet file and the embedded engine take: extremes, and missing values."""
    late = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
    values = {
        "bool": ([True, False, None, True], pa.bool_()),
        **{f"int{bits}": ([-(2 ** (bits - 1)), 0, None, 7], f"int{bits}") for bits in (8, 16, 32, 64)},
        **{f"uint{bits}": ([2**bits - 1, 0, None, 7], f"uint{bits}") for bits in (8, 16, 32, 64)},
        "half": (np.array([-0.0, 1.5, np.inf, 65504], np.float16), pa.float16()),
        "single": ([-0.0, 1e-45, None, float("inf")], pa.float32()),
        "double": ([-0.0, 5e-324, None, float("-inf")], pa.float64()),
        "text": (["", "é\0", None, "x" * 999], pa.string()),
        "long text": (["", "é", None, "x"], pa.large_string()),
        "bytes": ([b"", b"\xff\0", None, b"x"], pa.binary()),
        "long bytes": ([b"", b"\xff", None, b"x"], pa.large_binary()),
        "three bytes": ([b"abc", b"\0\0\0", None, b"\xff\xff\xff"], pa.binary(3)),
        "money": ([Decimal("-1.25"), Decimal(0), None, Decimal("9" * 36 + ".99")], pa.decimal128(38, 2)),
        "wide money": ([Decimal("-1.25"), Decimal(0), None, Decimal("9.99")], pa.decimal256(30, 2)),
        "day": ([date(1, 1, 1), date(9999, 12, 31), None, date(1970, 1, 1)], pa.date32()),
        "time": ([time(0), time(23, 59, 59, 999_000), None, time(1)], pa.time32("ms")),
        "fine time": ([1, 86_399_999_999_999, None, 0], pa.time64("ns")),
        "ms": ([late, datetime(1, 1, 1, tzinfo=UTC), None, late], pa.timestamp("ms", "+02:00")),
        "us": (
            [late.replace(tzinfo=None), datetime(1, 1, 1), None, datetime(1970, 1, 1)],
            pa.timestamp("us"),
        ),
        "ns": ([2**63 - 1, 1, None, -(2**63) + 1], pa.timestamp("ns", "Europe/Berlin")),
        "span": ([timedelta(1), timedelta(0, 0, 1), None, timedelta(-1)], pa.duration("us")),
        "nothing": ([None] * 4, pa.null()),
        "list": ([[1, None], [], None, [3]], pa.list_(pa.uint16())),
        "long list": ([["a"], [], None, [None]], pa.large_list(pa.string())),
        "pair": ([[1.0, None], [2.0, 3.0], None, [4.0, 5.0]], pa.list_(pa.float16(), 2)),
        "matrix": ([[[1, 2], None], [], None, [[3, None]]], pa.list_(pa.list_(pa.time64("us"), 2))),
        "uuid": ([b"0123456789abcdef", bytes(16), None, bytes(range(16))], pa.uuid()),
    }
    columns = {name: pa.array(found, kind) for name, (found, kind) in values.items()}
    table = pa.table(columns)
    return table.append_column(
        pa.field("always", pa.int16(), nullable=False), pa.array([1, 2, 3, 4], pa.int16())
    )


def test_every_type_that_the_embedded_engine_takes(address, session, tmp_path):
    table = every_type()
    put(located(f"{address}/in/a.parquet"), table)
    planned = plan_build(open_inputs([f"{address}/in"]), Deterministic(2))
    local.build(planned, tmp_path / "embedded", KEY)
    spark.build(planned, tmp_path / "spark", KEY, session=session)
    require_equal_epochs(tmp_path / "spark", tmp_path / "embedded", 4)
    assert pa.concat_tables(batches_of(tmp_path / "spark")).equals(table)


def test_a_type_that_spark_has_not_is_refused_by_name(address, session, tmp_path):
    put(located(f"{address}/in/a.parquet"), pa.table({"big": pa.array([Decimal(1)], pa.decimal256(50, 2))}))
    planned = plan_build(open_inputs([f"{address}/in"]), BallsAndBins(2))
    with pytest.raises(
        DataError, match=r"no type for the column 'big', which is of type decimal256\(50, 2\)"
    ):
        spark.build(planned, tmp_path / "spark", KEY, session=session)
    assert list((tmp_path / "spark").iterdir()) == []


def test_text_is_read_as_by_the_embedded_engine(address, session, table, tmp_path):
    """Rows are named by their position; line breaks within quotes and words for missing values are read, too."""
    lines = [
        "id,text,value",
        '7,"a\nb",1.5',
        "12,,NA",
        '13,"",NaN',
        *(f"{n},x{n},{n / 4}" for n in range(99)),
    ]
    located(f"{address}/in/a.csv").write("\n".join(lines).encode())
    located(f"{address}/in/b.csv").write(b"id,text,value\n1,last,2\n")
    planned = plan_build(open_inputs([f"{address}/in"]), BallsAndBins(5))
    local.build(planned, tmp_path / "embedded", KEY)
    spark.build(planned, tmp_path / "spark", KEY, session=session, parts=2)
    require_equal_epochs(tmp_path / "spark", tmp_path / "embedded", 103)


def test_tables_here_and_there_are_one_table(address, session, table, tmp_path):
    plain = table.drop_columns("_metadata")
    put(located(f"{address}/in/b.parquet"), plain.slice(300))
    pq.write_table(plain.slice(0, 300), tmp_path / "a.parquet")
    planned = plan_build(open_inputs([tmp_path / "a.parquet", f"{address}/in"]), BallsAndBins(5))
    local.build(planned, tmp_path / "embedded", KEY)
    spark.build(planned, tmp_path / "spark", KEY, session=session)
    require_equal_epochs(tmp_path / "spark", tmp_path / "embedded")


def test_an_assignment_of_a_table_in_a_store(address, session, table):
    source = open_inputs([put_all(address, table)])
    planned = embedded.plan_assignment(source, BallsAndBins(13), identity_column="name")
    embedded.assign(planned, f"{address}/embedded.parquet", KEY)
    spark.assign(planned, f"{address}/spark.parquet", KEY, session=session)
    one, two = (pq.read_table(located(f"{address}/{name}.parquet").open()) for name in ("embedded", "spark"))
    assert one.num_rows == ROWS
    assert one.equals(two)


def test_a_table_without_rows(address, session, table, tmp_path):
    put(located(f"{address}/in/a.parquet"), table.slice(0, 0))
    planned = plan_build(open_inputs([f"{address}/in"]), BallsAndBins(7))
    spark.build(planned, tmp_path / "out", KEY, session=session, parts=2)
    assert [batch.num_rows for batch in batches_of(tmp_path / "out")] == [0] * 7


def test_an_object_that_changed_is_refused_by_name(address, session, table, tmp_path):
    source, out = put_all(address, table), tmp_path / "out"
    changing = located(source) / "e#f.parquet"
    as_it_was, swapped = table.slice(350, 50), table.slice(350, 50).take([1, 0, *range(2, 50)])
    planned = plan_build(open_inputs([source]), BallsAndBins(3))
    assert planned.batches_per_file  # what looks at the rows has looked
    put(changing, swapped)
    with pytest.raises(DataError, match=r"Spark could not read .*e#f\.parquet' changed while"):
        spark.build(planned, out, KEY, session=session)
    assert list(out.iterdir()) == []
    put(changing, as_it_was)
    spark.build(plan_build(open_inputs([source]), BallsAndBins(3)), out, KEY, session=session)
    put(changing, swapped)
    with pytest.raises(DataError, match=r"the input file .*e#f\.parquet'"):
        spark.build(plan_build(open_inputs([source]), BallsAndBins(3)), out, KEY, 1, session=session)
    assert [entry.name for entry in out.iterdir()] == ["epoch-000000"]


def test_an_object_that_changes_after_it_was_hashed_is_refused_by_name(
    address, session, table, tmp_path, monkeypatch
):
    source = put_all(address, table)
    planned = plan_build(open_inputs([source]), BallsAndBins(3))
    module = importlib.import_module(
        "ballsbins.batch_files.spark.build"
    )  # the package has a function of this name
    hashed = module.hashed

    def hashed_and_changed(*arguments):
        found = hashed(*arguments)
        put(located(source) / "e#f.parquet", table.slice(350, 50).take([1, 0, *range(2, 50)]))
        return found

    monkeypatch.setattr(module, "hashed", hashed_and_changed)
    with pytest.raises(
        DataError, match=r"Spark could not write below.*e#f\.parquet' changed while it was being read"
    ):
        spark.build(planned, tmp_path / "out", KEY, session=session)
    assert list((tmp_path / "out").iterdir()) == []


def test_a_store_that_refuses_the_executors(address, session, store, table, tmp_path):
    planned = plan_build(open_inputs([put_all(address, table)]), BallsAndBins(3))
    assert planned.batches_per_file  # what looks at the rows has looked
    store.users = set()
    with pytest.raises(DataError, match=r"Spark could not read .*The store refused") as told:
        spark.build(planned, tmp_path / "out", KEY, session=session)
    assert "\n" not in str(told.value)
    assert list((tmp_path / "out").iterdir()) == []


def test_a_description_of_many_files_reaches_the_executors(address, session, table, tmp_path):
    """PySpark sends functions of more than a megabyte in another way than small ones."""
    inputs = open_inputs([put_all(address, table)])
    inputs.as_many_footers = np.random.default_rng(0).bytes(3 << 20)
    planned = plan_build(inputs, BallsAndBins(3))
    local.build(planned, tmp_path / "embedded", KEY)
    spark.build(planned, tmp_path / "spark", KEY, session=session)
    require_equal_epochs(tmp_path / "spark", tmp_path / "embedded")


def test_tasks_read_consecutive_pieces_of_about_equal_size(address, table):
    inputs = open_inputs([put_all(address, table)])
    pieces = inputs.pieces()
    for cores in (1, 2, 100):
        tasks = _tasks(inputs, cores)
        numbers = [number for task in tasks for number in range(task.begin, task.end)]
        assert numbers == list(range(len(pieces)))
        assert len(tasks) <= 4 * cores
        sizes = [sum(piece.bytes for piece in pieces[task.begin : task.end]) for task in tasks]
        assert max(sizes) <= inputs.bytes / (4 * cores) + max(piece.bytes for piece in pieces)


MISTAKES = {
    "nowhere://x/y": "the scheme is 'nowhere://'",
    "s3://user:password@batches/in": "must be without credentials",
    "s3://no-such-bucket-here/in": "does not exist",
}


@pytest.mark.parametrize("source", MISTAKES)
def test_addresses_that_a_person_gets_wrong(source, store, tmp_path, monkeypatch, capsys):
    """They are refused before Spark starts."""
    Key(bytes(32)).save(tmp_path / "key")
    where = ["--out", str(tmp_path / "out"), "-T", "12", "--key-file", str(tmp_path / "key")]
    monkeypatch.setattr("sys.argv", ["ballsbins", "build", source, *where, "--engine", "spark"])
    with pytest.raises(SystemExit) as ended:
        main()
    told = capsys.readouterr().err
    assert ended.value.code == 2
    assert MISTAKES[source] in told
    assert "password" not in told
    assert len([line for line in told.splitlines() if not line.startswith("build: ")]) == 1
    assert not (tmp_path / "out").exists()


def test_without_credentials_the_command_line_says_what_to_set(address, store, table, tmp_path):
    source = put_all(address, table)
    Key(bytes(32)).save(tmp_path / "key")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_ACCESS")}
    begin = [sys.executable, "-c", "from ballsbins.cli import main; main()", "build", source]
    where = ["--out", str(tmp_path / "out"), "-T", "12", "--key-file", str(tmp_path / "key")]
    asked = [*begin, *where, "--engine", "spark"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 2
    assert "The store refused: set credentials that may do this" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()
