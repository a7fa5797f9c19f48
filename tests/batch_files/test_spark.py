"""The Spark engine beside the embedded one and the samplers in memory: no row differs, and the key stays secret."""

import base64
import gc
import os
import pickle
import re
import shutil
import stat
import sys
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from ballsbins import BallsAndBins, Deterministic, Poisson, Shuffle
from ballsbins.batch_files import BatchFiles, spark
from ballsbins.batch_files import assignments as embedded
from ballsbins.batch_files import build as local
from ballsbins.batch_files.build_plan import plan_build
from ballsbins.batch_files.inputs import open_inputs
from ballsbins.batch_files.spark import executor_functions as assignment
from ballsbins.batch_files.spark import part_writer as writer
from ballsbins.batch_files.spark.session import broadcast, require_java
from ballsbins.batch_files.store import located
from ballsbins.batch_files.trial import Trial
from ballsbins.errors import DataError, InvalidInputError, MissingExtraError
from ballsbins.samplers import Key
from ballsbins.samplers.physical import truncate

from . import spark_cluster

pytestmark = [
    pytest.mark.xdist_group("spark"),  # one Java process serves them all
    *spark_cluster.OPEN_SOCKETS,
]

ROWS = 1000
MASTER = Key(bytes(range(100, 132)))
KEY = MASTER.for_run()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("spark")


@pytest.fixture(scope="module")
def session(place):
    spark_cluster.install_java()
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    (place / "events").mkdir()
    settings = {
        "spark.driver.memory": "600m",
        "spark.driver.extraJavaOptions": spark_cluster.LIGHT,
        "spark.local.dir": str(place / "local"),
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": f"file://{place / 'events'}",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "128",  # so that batches span what Spark sends at once
    }
    with spark.session("local[2]", settings) as started:
        yield started
    gc.collect()  # sockets that PySpark left open, before the tests of others


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(5)
    return pa.table(
        {
            "name": [f"user-{number * 7919 % 10007}" for number in range(ROWS)],
            "number": pa.array(np.arange(ROWS) * 5, pa.uint32()),
            "a.b `c`": pa.array(rng.normal(size=ROWS), pa.float32(), mask=rng.random(ROWS) < 0.1),
            "when": pa.array(np.arange(ROWS) * 10**9, pa.timestamp("ms", "UTC")),
            "kind": pa.array([f"kind {row * 7 % 13}" for row in range(ROWS)]).dictionary_encode(),
            "tags": pa.array(
                [[int(tag) for tag in range(row % 4)] for row in range(ROWS)], pa.list_(pa.int16())
            ),
        }
    )


@pytest.fixture(scope="module")
def inputs(place, table):
    """Files whose names need care, of unequal length, one of them empty."""
    directory = place / "in put"
    (directory / "x=1").mkdir(parents=True)
    begin = 0
    for name, rows in {
        "a [b]*.parquet": 350,
        "c+d%20é.parquet": 0,
        "e#f.parquet": 50,
        "x=1/g.parquet": 600,
    }.items():
        pq.write_table(table.slice(begin, rows), directory / name, row_group_size=77)
        begin += rows
    return open_inputs([directory])


def in_memory(table, sampler, epoch, identity):
    """The batches as tables, by the samplers alone."""
    if identity is None:
        batches = sampler.batches(table.num_rows, KEY, epoch)
        return [table.take(pa.array(batch.astype(np.int64))) for batch in batches]
    names = np.array([str(value).encode() for value in table.column(identity).to_pylist()], dtype=object)
    bins = sampler.bins_of(KEY, epoch, names.tolist())
    batches = []
    for step in range(sampler.steps):
        rows = sorted(np.flatnonzero(bins == step), key=lambda row: names[row])
        if sampler.max_batch_size is not None and rows:
            words = sampler.truncation_words(KEY, epoch, step, [names[row] for row in rows])
            rows = truncate(np.array(rows), words, sampler.max_batch_size)
        batches.append(table.take(pa.array(rows, pa.int64())))
    return batches


def batches_of(directory, epoch):
    return [pa.table(batch) for batch in BatchFiles.open(directory).batches(epoch)]


CASES = {
    "bins": (BallsAndBins(13), None, False),
    "truncated and padded": (BallsAndBins(13, max_batch_size=77, num_examples=ROWS), None, True),
    "truncated by name": (BallsAndBins(13, max_batch_size=77, num_examples=ROWS), "name", False),
    "by number": (BallsAndBins(13, redraw=False), "number", False),
    "more bins than rows": (BallsAndBins(1500), None, False),
    "shuffle": (Shuffle(13), None, False),
    "shuffle, more batches than rows": (Shuffle(1500), None, False),
    "deterministic, padded": (Deterministic(13), None, True),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_engines_and_memory_agree_row_for_row(case, session, inputs, table, tmp_path):
    sampler, identity, pad = CASES[case]
    epoch = 0 if case in ("by number", "deterministic, padded") else 2
    planned = plan_build(inputs, sampler, identity_column=identity, pad=pad)
    local.build(planned, tmp_path / "embedded", KEY, epoch)
    expected = batches_of(tmp_path / "embedded", epoch)
    for drawn, batch in zip(in_memory(table, sampler, epoch, identity), expected, strict=True):
        real = batch if not pad else batch.slice(0, drawn.num_rows).select(table.column_names)
        assert real.cast(drawn.schema).equals(drawn)
    for parts, split in ((None, "128m"), (5, "2k")):
        session.conf.set("spark.sql.files.maxPartitionBytes", split)
        directory = tmp_path / f"spark-{parts}"
        manifest = spark.build(planned, directory, KEY, epoch, session=session, parts=parts)
        found = batches_of(directory, epoch)
        assert len(found) == len(expected)
        for mine, theirs in zip(found, expected, strict=True):
            assert mine.schema.equals(theirs.schema)
            assert mine.equals(theirs)
        manifest.require_same_run(BatchFiles.open(tmp_path / "embedded").manifest)
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        assert [entry.name for entry in directory.iterdir()] == [f"epoch-{epoch:06d}"]


def test_parts_of_the_shuffled_order_begin_where_they_should():
    sampler, rows = Shuffle(1000), 300_000
    order = sampler.order(rows, KEY, 4).astype(np.int64)
    ranks = np.arange(1000, rows, 1700)
    boundaries = assignment.shuffled_boundaries(sampler, KEY, 4, rows, ranks)
    places = assignment._places(sampler.keystream(KEY, 4), order)
    expected = np.searchsorted(ranks, np.arange(rows), side="right")
    assert np.array_equal(assignment._parts(boundaries, *places), expected)
    words = sampler.keystream(KEY, 4).words32(0, 0, rows)
    assert len(np.unique(words)) < rows  # ties of first words are among them
    assert assignment.shuffled_boundaries(sampler, KEY, 4, rows, ranks[:0]) == ()


def test_places_that_tie_in_their_first_half():
    high, low = np.array([[4, 99], [5, 9], [5, 10], [5, 15], [5, 20], [6, 0]], dtype=np.uint64).T
    assert assignment._parts(((5, 10), (5, 20)), high, low).tolist() == [0, 0, 1, 1, 2, 2]


def job_of(path, manifest, planned, schema):
    made = writer.Job.of(located(path), path, manifest, planned)
    return replace(made, schema=base64.b64encode(schema.serialize().to_pybytes()).decode())


def test_large_batches_are_whole(tmp_path):
    """Rows come in chunks that begin and end anywhere; batches are as large as many of them."""
    sampler = BallsAndBins(5, max_batch_size=80_000, num_examples=400_000)
    bins = np.sort(sampler.bins(KEY, 0, 0, 400_000))
    rows = pa.table(
        {"x": np.arange(400_000), writer.BATCH: bins.astype(np.int32), writer.WORD: np.arange(400_000)[::-1]}
    )
    planned = plan_build(embedded.Positions(400_000), sampler)
    job = job_of(tmp_path, planned.manifest(KEY, 0), planned, rows.schema.remove(2).remove(1))
    written = writer.write_part(job, 0, rows.to_batches(max_chunksize=9_999))
    sizes = np.bincount(bins, minlength=5)
    assert written.rows == 400_000
    assert sizes.max() > 80_000 > sizes.min()
    assert list(written.sizes) == np.minimum(sizes, 80_000).tolist()
    ends = np.cumsum(sizes)
    kept = np.concatenate(
        [np.arange(max(end - size, end - 80_000), end) for end, size in zip(ends, sizes, strict=True)]
    )
    assert np.array_equal(pq.read_table(tmp_path / written.name).column("x").to_numpy(), kept)


@pytest.mark.parametrize("steps", [3, 1000])
def test_large_parts_of_ranked_rows_are_whole(tmp_path, steps):
    planned = plan_build(embedded.Positions(400_000), Deterministic(steps), pad=True)
    manifest = replace(planned.manifest(KEY, 0), batches_per_file=steps)
    rows = pa.table({"x": np.arange(400_000)})
    job = job_of(tmp_path, manifest, planned, rows.schema)
    written = writer.write_part(job, 0, rows.to_batches(max_chunksize=10_000))
    assert list(written.sizes) == [-(-400_000 // steps)] * steps
    found = pq.read_table(tmp_path / written.name)
    assert np.array_equal(found.filter(pc.field("weight") == 1).column("x").to_numpy(), np.arange(400_000))


def test_another_key_gives_other_batches(session, inputs, tmp_path):
    """The comparison above can fail."""
    planned, told = plan_build(inputs, BallsAndBins(13)), []
    spark.build(planned, tmp_path / "one", KEY, session=session)
    spark.build(planned, tmp_path / "two", Key(bytes(32)), 0, told.append, session=session)
    pairs = zip(batches_of(tmp_path / "one", 0), batches_of(tmp_path / "two", 0), strict=True)
    assert not any(one.equals(two) for one, two in pairs)
    assert (told[-1].stage, told[-1].rows, told[-1].total_rows) == ("writing", ROWS, ROWS)


def test_an_epoch_that_is_there_is_not_built_again(session, inputs, tmp_path):
    planned = plan_build(inputs, BallsAndBins(13))
    local.build(planned, tmp_path / "out", KEY, 1)
    before = (tmp_path / "out" / "epoch-000001" / "manifest.json").stat().st_mtime_ns
    assert spark.build(planned, tmp_path / "out", KEY, 1, session=session).epoch == 1
    assert (tmp_path / "out" / "epoch-000001" / "manifest.json").stat().st_mtime_ns == before
    with pytest.raises(DataError, match="not of one run"):
        spark.build(planned, tmp_path / "out", Key(bytes(32)), 2, session=session)


def test_runs_are_chosen_as_by_the_embedded_engine(session, inputs, table, tmp_path):
    planned = plan_build(inputs, BallsAndBins(13))
    first = spark.build(planned, tmp_path / "out", MASTER, session=session)
    assert local.build(planned, tmp_path / "out", MASTER, 1).run == first.run
    assert spark.build(planned, tmp_path / "out", MASTER, 2, session=session).run == first.run
    drawn = BallsAndBins(13).batches(ROWS, MASTER.for_run(first.run), 2)
    for indices, batch in zip(drawn, batches_of(tmp_path / "out", 2), strict=True):
        assert batch.equals(table.take(pa.array(indices.astype(np.int64))))
    assert spark.build(planned, tmp_path / "other", MASTER, session=session).run != first.run
    with pytest.raises(DataError, match=f"of the run {first.run}, but the key is of the run {KEY.run}"):
        spark.build(planned, tmp_path / "out", KEY, 3, session=session)


def test_an_assignment_has_the_id_of_its_run(session, tmp_path):
    planned = embedded.plan_assignment(ROWS, BallsAndBins(13))
    run = spark.assign(planned, tmp_path / "spark.parquet", MASTER, session=session)
    assert pq.read_schema(tmp_path / "spark.parquet").metadata[embedded.RUN_METADATA] == run.encode()
    embedded.assign(planned, tmp_path / "embedded.parquet", MASTER.for_run(run))
    found, expected = (pq.read_table(tmp_path / f"{engine}.parquet") for engine in ("spark", "embedded"))
    assert found.equals(expected)


def test_text_with_a_key_column(session, tmp_path):
    lines = [
        "id,text,value",
        '7,"a ""b"", c",1.5',
        "12,,2.5",
        '13,"",NaN',
        "3,plain,",
        *(f"{n},x{n},{n / 4}" for n in range(20, 90)),
    ]
    (tmp_path / "in.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    inputs = open_inputs([tmp_path / "in.csv"])
    planned = plan_build(inputs, BallsAndBins(5), identity_column="id")
    local.build(planned, tmp_path / "embedded", KEY)
    spark.build(planned, tmp_path / "spark", KEY, session=session, parts=2)
    pairs = zip(batches_of(tmp_path / "embedded", 0), batches_of(tmp_path / "spark", 0), strict=True)
    assert all(one.equals(two) for one, two in pairs)
    with pytest.raises(InvalidInputError, match="name a unique column"):
        spark.build(plan_build(inputs, BallsAndBins(5)), tmp_path / "none", KEY, session=session)
    assert list((tmp_path / "none").iterdir()) == []


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["a", "b", "a", "d"], r"'name' is not unique: 'a' names"),
        (["a", None, "c", "d"], "'name' has no value"),
    ],
)
def test_names_that_name_nothing(session, tmp_path, names, said):
    pq.write_table(pa.table({"name": names}), tmp_path / "in.parquet")
    planned = plan_build(open_inputs([tmp_path / "in.parquet"]), BallsAndBins(3), identity_column="name")
    vars(planned)["trial"] = Trial(
        8.0, 20.0, 8.0, 0.0, ()
    )  # a trial would find a missing name among the first rows
    with pytest.raises(DataError, match=said):
        spark.build(planned, tmp_path / "out", KEY, session=session)
    assert list((tmp_path / "out").iterdir()) == []


def test_a_broken_file_leaves_nothing(session, table, tmp_path):
    path = tmp_path / "in.parquet"
    pq.write_table(table, path, compression="none")
    planned = plan_build(open_inputs([path]), BallsAndBins(3))
    assert planned.batches_per_file  # what looks at the rows has looked
    content = bytearray(path.read_bytes())
    content[4:2000] = bytes(1996)
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"Spark could not read .*in\.parquet"):
        spark.build(planned, tmp_path / "out", KEY, session=session)
    assert list((tmp_path / "out").iterdir()) == []


def test_files_that_changed_are_noticed(session, table, tmp_path):
    path = tmp_path / "in.parquet"
    pq.write_table(table, path)
    planned = plan_build(open_inputs([path]), BallsAndBins(3))
    pq.write_table(table.slice(0, 900), path)
    with pytest.raises(DataError, match=r"in\.parquet' changed while it was being read"):
        spark.build(planned, tmp_path / "out", KEY, session=session)
    assert list((tmp_path / "out").iterdir()) == []
    pq.write_table(table, path)
    local.build(plan_build(open_inputs([path]), BallsAndBins(3)), tmp_path / "out", KEY)
    pq.write_table(table.take([1, 0, *range(2, len(table))]), path)
    with pytest.raises(DataError, match=r"the input file 'in\.parquet'"):
        spark.build(
            plan_build(open_inputs([path]), BallsAndBins(3)), tmp_path / "out", KEY, 1, session=session
        )


def test_a_batch_that_no_python_worker_can_hold_is_refused_before_anything_starts(session, inputs, tmp_path):
    planned = replace(plan_build(inputs, BallsAndBins(13)), num_examples=10**9)
    with pytest.raises(
        InvalidInputError, match=r"enough for batches of [\d,]+ bytes.*Take at least (\d+) steps"
    ) as told:
        spark.build(planned, tmp_path / "out", KEY, session=session)
    assert not (tmp_path / "out").exists()
    steps = int(re.search(r"at least (\d+) steps", str(told.value))[1])
    replace(planned, sampler=BallsAndBins(steps), wanted_workers=1).require_memory()


ASSIGNMENTS = {
    "bins by position": (BallsAndBins(13, max_batch_size=77, num_examples=ROWS), None),
    "bins by name": (BallsAndBins(13), "name"),
    "shuffle": (Shuffle(13), None),
    "Poisson": (Poisson(13), None),
    "truncated Poisson": (Poisson(13, max_batch_size=77, num_examples=ROWS), None),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", ASSIGNMENTS)
def test_assignments_agree_line_for_line(case, session, inputs, tmp_path):
    sampler, identity = ASSIGNMENTS[case]
    planned = embedded.plan_assignment(inputs, sampler, identity_column=identity)
    embedded.assign(planned, tmp_path / "embedded.parquet", KEY, [0, 3])
    spark.assign(planned, tmp_path / "spark.parquet", KEY, [0, 3], session=session, parts=3)
    found, expected = (pq.read_table(tmp_path / f"{engine}.parquet") for engine in ("spark", "embedded"))
    assert expected.num_rows > ROWS  # of two epochs
    assert found.equals(expected)
    assert stat.S_IMODE((tmp_path / "spark.parquet").stat().st_mode) == 0o600
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["embedded.parquet", "spark.parquet"]
    if isinstance(sampler, Poisson):
        drawn = sampler.batches(ROWS, KEY, 3).at(5)
        lines = found.filter((pc.field("epoch") == 3) & (pc.field("batch") == 5))
        assert lines.column("position").to_pylist() == drawn.tolist()


def test_an_assignment_of_files_that_changed_is_refused(session, table, tmp_path):
    path = tmp_path / "in.parquet"
    pq.write_table(table, path)
    planned = embedded.plan_assignment(open_inputs([path]), BallsAndBins(3), identity_column="name")
    pq.write_table(table.slice(0, 900), path)
    with pytest.raises(DataError, match="1,000 rows when they were counted, but 900"):
        spark.assign(planned, tmp_path / "bins.parquet", KEY, session=session)
    assert [entry.name for entry in tmp_path.iterdir()] == ["in.parquet"]


@pytest.mark.parametrize(
    ("sampler", "identity"),
    [(BallsAndBins(7), None), (BallsAndBins(7), "name"), (Shuffle(7), None), (Deterministic(7), None)],
    ids=repr,
)
def test_a_table_without_rows_has_empty_batches(session, table, tmp_path, sampler, identity):
    """Spark runs no task for it."""
    pq.write_table(table.slice(0, 0), tmp_path / "in.parquet")
    planned = plan_build(open_inputs([tmp_path / "in.parquet"]), sampler, identity_column=identity)
    spark.build(planned, tmp_path / "out", KEY, session=session, parts=2)
    found = batches_of(tmp_path / "out", 0)
    assert [batch.num_rows for batch in found] == [0] * 7
    assert found[0].schema.equals(table.schema)


def test_poisson_is_for_assign(session, inputs, tmp_path):
    with pytest.raises(InvalidInputError, match="ballsbins assign"):
        spark.build(plan_build(inputs, Poisson(13)), tmp_path / "out", KEY, session=session)


def forms_of(key):
    """The ways in which a key might be written."""
    raw = key._secret
    signed = [byte - 256 if byte > 127 else byte for byte in raw]
    forms = {
        "raw": raw,
        "escaped": raw.decode("latin-1").encode("unicode_escape"),
        "hexadecimal": raw.hex().encode(),
        "base64": base64.b64encode(raw).rstrip(b"="),
        "URL-safe base64": base64.urlsafe_b64encode(raw).rstrip(b"="),
        "numbers": ", ".join(map(str, signed)).encode(),
        "numbers, tight": ",".join(map(str, signed)).encode(),
        "unsigned numbers": ", ".join(map(str, raw)).encode(),
    }
    # Within a longer string base64 may begin at any of three places.
    for shift in range(3):
        inner = base64.b64encode(bytes(shift) + raw)[4 * bool(shift) :][2 * bool(shift) :]
        forms[f"base64 within a pickle, {shift}"] = inner[4:-8]
    return forms


def found_in(content, *keys):
    lowered = content.lower()
    return sorted(
        name
        for key in keys
        for name, form in forms_of(key).items()
        if form in content or (name == "hexadecimal" and form in lowered)
    )


def test_the_key_is_in_no_plan_configuration_or_log(session, inputs, place, tmp_path):
    key = Key(np.random.default_rng(8).bytes(32))
    for name, sampler in {
        "bins": BallsAndBins(13, max_batch_size=77, num_examples=ROWS),
        "shuffle": Shuffle(13),
    }.items():
        spark.build(plan_build(inputs, sampler), tmp_path / name, key, session=session, parts=2)
    spark.build(
        plan_build(inputs, BallsAndBins(3), identity_column="name"), tmp_path / "n", key, session=session
    )
    runs = [BatchFiles.open(tmp_path / name).manifest.run for name in ("bins", "shuffle", "n")]
    keys = [key, *map(key.for_run, runs)]

    def logged():
        return b"".join(path.read_bytes() for path in (place / "events").rglob("*") if path.is_file())

    assert b"ballsbins_bin" in logged()  # the plans are there
    assert b"ballsbins_word" in logged()
    assert found_in(logged(), *keys) == []
    assert found_in(str(session.sparkContext.getConf().getAll()).encode(), *keys) == []
    assert found_in(str(dict(os.environ)).encode(), *keys) == []
    assert found_in(b"".join(path.read_bytes() for path in (tmp_path / "bins").rglob("*.json")), *keys) == []

    # The same search finds a key that is told.
    for form in (key._secret.hex(), base64.b64encode(pickle.dumps(key)).decode()):
        session.sparkContext.setJobDescription(form)
        session.range(1).count()
    session.sparkContext.setJobDescription(None)
    assert "hexadecimal" in found_in(logged(), key)
    assert any(name.startswith("base64") for name in found_in(logged(), key))


def test_the_key_is_on_no_disk(session, place):
    key = Key(np.random.default_rng(9).bytes(32))

    def on_disk():
        contents = []
        for path in (place / "local").rglob("*"):
            with suppress(FileNotFoundError, IsADirectoryError):  # Spark clears away old shuffles meanwhile
                contents.append(path.read_bytes())
        return len(contents), found_in(b"".join(contents), key)

    with broadcast(session, key) as secret:
        rows = session.sparkContext.parallelize(range(4), 2).map(lambda n: (n % 2, secret.value.commitment()))
        shuffled = rows.groupByKey(2)  # which goes through files, and they stay as long as this does
        received = shuffled.flatMap(lambda group: set(group[1])).collect()
        assert received == [key.commitment()] * 2
        number, found = on_disk()
        assert number > 0
        assert found == []
    (place / "local" / "control").write_bytes(pickle.dumps(key))
    assert "raw" in on_disk()[1]


def test_an_active_session_is_not_taken_silently(session):
    with pytest.raises(InvalidInputError, match="another Spark session is active"), spark.session("local[2]"):
        pass


@pytest.mark.parametrize("master", ["localhost", "spark:/127.0.0.1:7077", "http://127.0.0.1:7077", ""])
def test_masters_that_are_none(master):
    with pytest.raises(InvalidInputError, match="spark://"), spark.session(master):
        pass


def test_without_pyspark_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    with pytest.raises(MissingExtraError, match=r"ballsbins\[spark\]"), spark.session():
        pass


@pytest.mark.parametrize("told", [None, 'openjdk version "11.0.2"', 'java version "1.8.0_392"', "no java"])
def test_without_java_the_package_is_named(told, tmp_path, monkeypatch):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    if told is not None:
        java = tmp_path / "java"
        java.write_text(f"#!/bin/sh\necho '{told}' >&2\n")
        java.chmod(0o755)
    with pytest.raises(spark.MissingJavaError, match="default-jre-headless"):
        require_java()


def test_a_java_home_that_is_none(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(spark.MissingJavaError, match=r"does not run.*default-jre-headless"):
        require_java()
    monkeypatch.delenv("JAVA_HOME")
    assert shutil.which("java") is None or require_java() is None
