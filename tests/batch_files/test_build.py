"""The embedded engine writes the batches of the in-memory sampler, row for row, whatever the memory."""

import json
import os
import re
import stat
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ballsbins import BallsAndBins, Deterministic, Key, Mechanism, Poisson, Shuffle
from ballsbins.batch_files import BatchFiles, Manifest
from ballsbins.batch_files.build import build
from ballsbins.batch_files.build_plan import BuildPlan, plan_build
from ballsbins.batch_files.inputs import open_inputs
from ballsbins.batch_files.row_order import Arranged
from ballsbins.batch_files.sort import Memory
from ballsbins.batch_files.writer import padded
from ballsbins.errors import DataError, InvalidInputError, SecretError

from .conftest import ROWS

SAMPLERS = [
    BallsAndBins(40),
    BallsAndBins(40, max_batch_size=500, num_examples=ROWS),
    BallsAndBins(3, max_batch_size=6_700, num_examples=ROWS),
    BallsAndBins(70_000),  # more than 2¹⁶ batches, most of them empty
    BallsAndBins(40, redraw=False),
    Shuffle(40),
    Shuffle(777),
    Shuffle(30_000),
    Deterministic(33),
    Deterministic(30_000),
]


def built(folder, out, sampler, key, memory, epoch=0, **options):
    made = plan_build(open_inputs([folder]), sampler, memory=memory, **options)
    return build(made, out, key, epoch)


@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
def test_batches_are_those_of_the_sampler_in_memory(sampler, folder, table, key, tiny, tmp_path):
    built(folder, tmp_path / "out", sampler, key, tiny, epoch=2)
    files = BatchFiles.open(tmp_path / "out")
    in_memory = sampler.batches(ROWS, key, epoch=2)
    for step, (indices, batch) in enumerate(zip(in_memory, files.batches(2), strict=True)):
        assert np.array_equal(batch["row"].to_numpy(), indices), step
        if step < 3:
            assert pa.table(batch).equals(table.take(pa.array(indices)))


def test_another_key_or_epoch_gives_other_batches(folder, key, tiny, tmp_path):
    sampler = BallsAndBins(40)
    for name, secret, epoch in (("a", key, 0), ("b", Key.from_seed(1), 0), ("c", key, 1)):
        built(folder, tmp_path / name, sampler, secret, tiny, epoch=epoch)
    first = [
        next(BatchFiles.open(tmp_path / name).batches(epoch))["row"].to_pylist()
        for name, epoch in (("a", 0), ("b", 0), ("c", 1))
    ]
    assert first[0] != first[1]
    assert first[0] != first[2]


@pytest.mark.parametrize(
    "sampler",
    [BallsAndBins(40, max_batch_size=500, num_examples=ROWS), Shuffle(777), Deterministic(777)],
    ids=repr,
)
def test_padded_batches_have_one_size_and_weights(sampler, folder, key, tiny, tmp_path):
    manifest = built(folder, tmp_path / "out", sampler, key, tiny, pad=True)
    size = 500 if isinstance(sampler, BallsAndBins) else -(-ROWS // 777)
    assert manifest.padded_to == size
    files = BatchFiles.open(tmp_path / "out")
    blanks = 0
    for indices, batch in zip(sampler.batches(ROWS, key), files.batches(0), strict=True):
        weights = batch["weight"].to_numpy()
        real = len(indices)
        assert batch.num_rows == size
        assert np.array_equal(weights, np.arange(size) < real)
        assert np.array_equal(batch["row"].to_numpy()[:real], indices)
        for column, nothing in (("row", 0), ("name", ""), ("x", 0.0), ("maybe", 0)):
            assert set(batch[column].to_pylist()[real:]) <= {nothing}
        blanks += size - real
    assert blanks > 0


def test_rows_named_by_a_column_go_where_the_sampler_says(folder, table, key, tiny, tmp_path):
    sampler = BallsAndBins(40, max_batch_size=500, num_examples=ROWS)
    built(folder, tmp_path / "out", sampler, key, tiny, identity_column="name")
    names = [name.encode() for name in table["name"].to_pylist()]
    bins = sampler.bins_of(key, 0, names)
    cut = 0
    for step, batch in enumerate(BatchFiles.open(tmp_path / "out").batches(0)):
        members = sorted(names[row] for row in np.flatnonzero(bins == step))
        words = sampler.truncation_words(key, 0, step, members)
        kept = sorted(np.argsort(words, kind="stable")[:500])
        assert batch["name"].to_pylist() == [members[place].decode() for place in kept]
        cut += len(members) > 500
    assert cut > 0


def test_rows_named_by_a_column_do_not_depend_on_the_order_of_files(folder, table, key, tiny, tmp_path):
    order = np.random.default_rng(1).permutation(ROWS)
    pq.write_table(table.take(pa.array(order)), tmp_path / "mixed.parquet")
    sampler = BallsAndBins(40)
    built(folder, tmp_path / "a", sampler, key, tiny, identity_column="name")
    built(tmp_path / "mixed.parquet", tmp_path / "b", sampler, key, Memory(), identity_column="name")
    pair = (BatchFiles.open(tmp_path / name).batches(0) for name in ("a", "b"))
    assert all(one == other for one, other in zip(*pair, strict=True))


@pytest.mark.parametrize(
    "kind", [pa.int64(), pa.uint8(), pa.string(), pa.binary(), pa.large_string(), pa.binary(3)]
)
def test_the_bytes_of_an_identity(kind, key, tmp_path):
    texts = [f"{number}" for number in range(100, 150)]
    values = [int(text) for text in texts] if pa.types.is_integer(kind) else texts
    if pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind):
        values = [text.encode() for text in texts]
    pq.write_table(pa.table({"id": pa.array(values, kind)}), tmp_path / "in.parquet")
    sampler = BallsAndBins(7)
    built(tmp_path / "in.parquet", tmp_path / "out", sampler, key, Memory(), identity_column="id")
    for step, batch in enumerate(BatchFiles.open(tmp_path / "out").batches(0)):
        expected = [
            value
            for value, text in zip(values, texts, strict=True)
            if sampler.bin_of(key, 0, text.encode()) == step
        ]
        assert batch["id"].to_pylist() == expected


def test_a_duplicate_is_named_however_far_apart_it_is(table, key, tiny, tmp_path):
    names = table["name"].to_pylist()
    names[-1] = names[17]
    doubled = table.set_column(1, "name", [names])
    pq.write_table(doubled, tmp_path / "in.parquet")
    with pytest.raises(DataError, match=r"not unique: 'user \d+' names row 17 and row 19,999"):
        built(tmp_path / "in.parquet", tmp_path / "out", BallsAndBins(40), key, tiny, identity_column="name")
    assert os.listdir(tmp_path / "out") == []


def test_a_missing_identity_is_named(table, key, tmp_path):
    pq.write_table(table, tmp_path / "in.parquet")
    with pytest.raises(DataError, match="'maybe' has no value in row 0"):
        built(
            tmp_path / "in.parquet", tmp_path / "out", BallsAndBins(4), key, Memory(), identity_column="maybe"
        )


def test_identities_must_fit(folder, key, tmp_path):
    for column, why in (("x", "is of type float"), ("nobody", "is not in the inputs")):
        with pytest.raises(DataError, match=why):
            built(folder, tmp_path / "out", BallsAndBins(4), key, Memory(), identity_column=column)
    with pytest.raises(InvalidInputError, match="left out for shuffle"):
        built(folder, tmp_path / "out", Shuffle(4), key, Memory(), identity_column="name")


def test_the_smallest_tables(key, tmp_path):
    empty = pa.table({"a": pa.array([], pa.int64()), "text": pa.array([], pa.string())})
    for rows, name in ((empty, "none"), (pa.table({"a": [5], "text": ["x"]}), "one")):
        pq.write_table(rows, tmp_path / f"{name}.parquet")
        for sampler in (BallsAndBins(3), Shuffle(3), Deterministic(3)):
            out = tmp_path / f"{name}-{sampler.type_name}"
            built(tmp_path / f"{name}.parquet", out, sampler, key, Memory())
            batches = list(BatchFiles.open(out).batches(0))
            assert [batch.num_rows for batch in batches] == [
                len(i) for i in sampler.batches(rows.num_rows, key)
            ]
            assert all(batch.schema.equals(rows.schema) for batch in batches)


def test_columns_of_many_types_survive_sorting_and_padding(key, tiny, tmp_path):
    rows = 300
    numbers = list(range(rows))
    table = pa.table(
        {
            "row": numbers,
            "truth": [number % 2 == 0 for number in numbers],
            "when": pa.array(numbers, pa.timestamp("us")),
            "day": pa.array(numbers, pa.date32()),
            "price": pa.array(numbers, pa.int64()).cast(pa.decimal128(30, 2)),
            "words": pa.array([["a"] * (number % 3) for number in numbers], pa.list_(pa.string())),
            "kind": pa.array([f"k{number % 5}" for number in numbers]).dictionary_encode(),
            "raw": pa.array([bytes([number % 256]) * 4 for number in numbers], pa.binary(4)),
        }
    )
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=50)
    sampler = BallsAndBins(9, max_batch_size=60, num_examples=rows)
    built(tmp_path / "in.parquet", tmp_path / "out", sampler, key, tiny, pad=True)
    for indices, batch in zip(
        sampler.batches(rows, key), BatchFiles.open(tmp_path / "out").batches(0), strict=True
    ):
        real = batch.slice(0, len(indices)).drop_columns("weight")
        assert real.to_pylist() == table.take(pa.array(indices)).to_pylist()


def test_only_the_owner_can_enter_and_the_key_is_nowhere(folder, tmp_path, tiny):
    secret = bytes(range(100, 132))
    built(folder, tmp_path / "out", BallsAndBins(40), Key(secret), tiny)
    for path in (tmp_path / "out", tmp_path / "out" / "epoch-000000"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    for path in (tmp_path / "out" / "epoch-000000").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    content = (tmp_path / "out" / "epoch-000000" / "manifest.json").read_bytes()
    assert Key(secret).commitment().encode() in content
    of_run = Key(secret).for_run(json.loads(content)["run"])._secret
    for hidden in (secret, of_run):
        for shown in (hidden, hidden.hex().encode(), str(list(hidden)).encode()):
            assert shown not in content
    (tmp_path / "out").chmod(0o750)
    with pytest.raises(SecretError, match=r"0750.*chmod 700"):
        BatchFiles.open(tmp_path / "out")
    with pytest.raises(SecretError, match=r"0750.*chmod 700"):
        built(folder, tmp_path / "out", BallsAndBins(40), Key(secret), tiny, epoch=1)


def test_no_realised_size_is_in_what_is_public_of_the_manifest(folder, key, tiny, tmp_path):
    """The manifests of two keys differ in commitment and digests alone: they say nothing about the batches."""
    manifests = []
    for seed in (1, 2):
        built(folder, tmp_path / f"{seed}", BallsAndBins(40), Key.from_seed(seed), tiny)
        public = BatchFiles.open(tmp_path / f"{seed}").manifest.public()
        assert "files" not in public
        text = json.dumps(public).replace(Key.from_seed(seed).commitment(), "")
        for file in public["inputs"]:
            text = text.replace(file["digest"], "")
        manifests.append(text)
    assert manifests[0] == manifests[1]


def test_progress_says_nothing_about_the_key(folder, tiny, tmp_path):
    made = plan_build(open_inputs([folder]), BallsAndBins(40), memory=tiny)
    told = []
    for seed in (1, 2):
        messages = []
        build(made, tmp_path / f"{seed}", Key.from_seed(seed), report=messages.append)
        told.append([(at.epoch, at.stage, at.total_rows, at.total_bytes) for at in messages])
        rows = [at.rows for at in messages if at.stage == "writing"]
        assert rows == sorted(rows)
        assert rows[-1] == ROWS
        assert all(row * 40 % ROWS == 0 for row in rows), "only expected sizes may be told"
        assert [at.rows for at in messages if at.stage == "reading"][-1] == ROWS
        assert messages[-1].seconds_left == 0
    assert told[0] == told[1]


def test_what_is_there_is_not_built_again_and_must_be_of_the_same_run(folder, table, key, tiny, tmp_path):
    out = tmp_path / "out"
    first = built(folder, out, BallsAndBins(40), key, tiny)
    (part,) = (out / "epoch-000000").glob("part-*.parquet")
    before = part.stat()
    assert built(folder, out, BallsAndBins(40), key, tiny) == first
    assert part.stat() == before
    pq.write_table(table.slice(1), tmp_path / "other.parquet")
    for arguments, what in (
        ((folder, out, BallsAndBins(41), key), "sampler"),
        ((folder, out, BallsAndBins(40), Key.from_seed(9)), "the key"),
        ((tmp_path / "other.parquet", out, BallsAndBins(40), key), "num_examples"),
    ):
        with pytest.raises(DataError, match=f"has {what} .* not of one run"):
            built(*arguments, tiny, epoch=1)
    assert os.listdir(out) == ["epoch-000000"]


def test_the_same_batches_for_all_epochs_are_stored_once(folder, key, tiny, tmp_path):
    sampler = BallsAndBins(40, redraw=False)
    assert built(folder, tmp_path / "out", sampler, key, tiny, epoch=5).epoch == 0
    files = BatchFiles.open(tmp_path / "out")
    batch = next(files.batches(7))
    assert np.array_equal(batch["row"].to_numpy(), sampler.batches(ROWS, key, 7)[0])


def test_an_epoch_is_read_while_the_next_is_built(folder, key, tiny, tmp_path):
    sampler = BallsAndBins(200)
    built(folder, tmp_path / "out", sampler, key, tiny)
    files = BatchFiles.open(tmp_path / "out")
    reading = files.batches(0)
    seen = [next(reading)["row"].to_pylist()]
    with ThreadPoolExecutor(1) as pool:
        building = pool.submit(built, folder, tmp_path / "out", sampler, key, tiny, epoch=1)
        seen += [batch["row"].to_pylist() for batch in reading]
        building.result()
    assert seen == [indices.tolist() for indices in sampler.batches(ROWS, key, 0)]
    assert files.epochs == (0, 1)
    assert next(files.batches(1))["row"].to_pylist() == sampler.batches(ROWS, key, 1)[0].tolist()


def test_what_cannot_be_built(folder, key, tmp_path):
    with pytest.raises(InvalidInputError, match="assign"):
        built(folder, tmp_path / "out", Poisson(40), key, Memory())
    with pytest.raises(InvalidInputError, match="max_batch_size"):
        built(folder, tmp_path / "out", BallsAndBins(40), key, Memory(), pad=True)
    with pytest.raises(InvalidInputError, match="num_examples"):
        built(folder, tmp_path / "out", BallsAndBins(40, max_batch_size=9, num_examples=7), key, Memory())
    with pytest.raises(InvalidInputError, match="compression"):
        built(folder, tmp_path / "out", BallsAndBins(40), key, Memory(), compression="middle-out")
    with pytest.raises(InvalidInputError, match="memory limit"):
        Memory(10**6)
    with pytest.raises(InvalidInputError, match="--memory"):
        Memory.parse("much")
    assert Memory.parse("1.5 GiB").limit == 3 * 2**29


def test_a_batch_that_does_not_fit_is_refused_without_its_size(folder, key, tmp_path, tiny, monkeypatch):
    class Least(type(tiny)):
        largest_bucket = 1000

    monkeypatch.setattr(
        BuildPlan, "require_memory", lambda _: None
    )  # rows that are wider than those it looks at
    with pytest.raises(InvalidInputError, match="more steps, or a larger limit") as caught:
        built(folder, tmp_path / "out", BallsAndBins(2), key, Least())
    assert not any(character.isdigit() for character in str(caught.value).replace("1000000000", ""))


@pytest.mark.parametrize("sampler", [BallsAndBins(2), Shuffle(2), Deterministic(2)], ids=repr)
def test_batches_that_cannot_fit_are_refused_before_anything_is_read(sampler, folder, key, tmp_path, tiny):
    class Least(type(tiny)):
        largest_bucket = 100_000

    made = plan_build(open_inputs([folder]), sampler, memory=Least())
    told = []
    with pytest.raises(InvalidInputError, match=r"enough for batches of [\d,]+ bytes, as expected") as caught:
        build(made, tmp_path / "out", key, report=told.append)
    assert told == []
    steps, limit = map(int, re.search(r"at least (\d+) steps, or --memory (\d+)", str(caught.value)).groups())
    replace(made, sampler=replace(sampler, steps=steps)).require_memory()
    replace(made, memory=Memory(max(limit, 300 * 10**6))).require_memory()
    vast = replace(made, num_examples=10**9)
    with pytest.raises(InvalidInputError, match=r"at least \d+ steps\.$"):
        vast.require_memory()
    assert os.listdir(tmp_path / "out") == []


def test_a_large_limit_makes_no_array_that_arrow_cannot_hold():
    """Text has 32-bit offsets: what is joined to one array must stay below 2³¹ bytes."""
    much = Memory(64 * 10**9)
    assert max(much.chunk_bytes, 2 * much.bucket_bytes, much.largest_bucket) < 2**31
    assert much.max_files == 400


def test_padding_holds_some_batches_at_a_time():
    """Each of 50 batches is filled from 2 rows to 2¹⁸: at once that would be 13 million."""
    sizes = np.full(50, 2)
    table = pa.table({"x": np.arange(100)})
    pieces = list(padded(Arranged(7, sizes, table, np.arange(100)[::-1]), 2**18))
    assert max(len(piece.order) for piece in pieces) <= 2**20
    assert [
        step for piece in pieces for step in range(piece.first_step, piece.first_step + len(piece.sizes))
    ] == [*range(7, 57)]
    rows = np.concatenate([piece.order for piece in pieces]).reshape(50, 2**18)
    assert np.array_equal(rows[:, :2].ravel(), np.arange(100)[::-1])
    assert (rows[:, 2:] == 100).all()


def test_a_column_called_weight_must_not_be_there_when_padding_adds_one(key, tmp_path):
    pq.write_table(pa.table({"weight": [1.0]}), tmp_path / "in.parquet")
    sampler = BallsAndBins(2, max_batch_size=1, num_examples=1)
    with pytest.raises(InvalidInputError, match="weight"):
        built(tmp_path / "in.parquet", tmp_path / "out", sampler, key, Memory(), pad=True)


def test_a_directory_with_other_things_is_refused(folder, key, tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(DataError, match=r"'thesis\.tex', which is not of batch files"):
        built(folder, tmp_path, BallsAndBins(4), key, Memory())


def test_the_manifest_survives_and_refuses_what_it_does_not_know(folder, key, tiny, tmp_path):
    mechanism = Mechanism(BallsAndBins(40), 0.7, epochs=3)
    manifest = built(folder, tmp_path / "out", mechanism.sampler, key, tiny, mechanism=mechanism)
    saved = json.loads(manifest.to_json())
    assert Manifest.from_dict(saved) == manifest
    assert BatchFiles.open(tmp_path / "out").manifest.mechanism == mechanism
    for broken in (
        {**saved, "format_version": 6},
        {**saved, "more": 1},
        {**saved, "sampler": {"type": "magic"}},
        {**saved, "sampler": BallsAndBins(40, max_batch_size=9, num_examples=7).to_dict(), "mechanism": None},
        {**saved, "key_commitment": None},
        {**saved, "run": None},
        {**saved, "world_size": 0},
        {**saved, "files": {**saved["files"], "parts": []}},
        {**saved, "version": [1]},
        {**saved, "identity_column": {}},
    ):
        with pytest.raises(InvalidInputError):
            Manifest.from_dict(broken)
    (tmp_path / "out" / "epoch-000000" / "manifest.json").write_text("[]")
    with pytest.raises(DataError, match="not a manifest"):
        BatchFiles.open(tmp_path / "out")


def random_sampler(random, rows):
    steps = int(random.integers(1, 2 * rows + 2))
    kind = random.integers(4)
    if kind == 0:
        return Shuffle(steps)
    if kind == 1:
        return Deterministic(steps)
    limit = {} if kind == 2 else {"max_batch_size": int(random.integers(1, rows + 2)), "num_examples": rows}
    return BallsAndBins(steps, redraw=bool(random.integers(2)), **limit)


@pytest.mark.parametrize("seed", range(40))
def test_random_tables_samplers_and_sizes(seed, tiny, tmp_path):
    """Rows, batches, files, row groups, buckets and padding of all proportions: always the batches in memory."""
    random = np.random.default_rng(seed)
    rows = int(random.integers(0, 300))
    cuts = np.sort(random.integers(0, rows + 1, 3))
    table = pa.table({"row": np.arange(rows)})
    (tmp_path / "in").mkdir()
    for number, (begin, end) in enumerate(pairwise([0, *cuts, rows])):
        part = table.slice(begin, end - begin)
        pq.write_table(
            part, tmp_path / "in" / f"{number}.parquet", row_group_size=int(random.integers(1, 60))
        )

    class Random(type(tiny)):
        chunk_bytes, bucket_bytes = int(random.integers(1, 3_000)), int(random.integers(300, 3_000))
        row_group_bytes, max_files = int(random.integers(1, 2_000)), int(random.integers(2, 6))

    sampler, key, epoch = random_sampler(random, rows), Key.from_seed(seed), int(random.integers(3))
    fixed_size = not isinstance(sampler, BallsAndBins) or sampler.max_batch_size is not None
    pad = bool(random.integers(2)) and fixed_size
    built(tmp_path / "in", tmp_path / "out", sampler, key, Random(), epoch=epoch, pad=pad)
    batches = list(BatchFiles.open(tmp_path / "out").batches(epoch))
    for batch, indices in zip(batches, sampler.batches(rows, key, epoch), strict=True):
        real = batch.filter(batch["weight"].to_numpy() == 1) if pad else batch
        assert np.array_equal(real["row"].to_numpy(), indices)
    assert not pad or len({batch.num_rows for batch in batches}) == 1
