"""Batch files are read from any step, by any number of ranks, into PyTorch and JAX."""

import json
import mmap
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

from ballsbins import BallsAndBins, Shuffle
from ballsbins.batch_files import BatchFiles, part_bytes
from ballsbins.batch_files.build import build
from ballsbins.batch_files.build_plan import BuildPlan, plan_build
from ballsbins.batch_files.inputs import open_inputs
from ballsbins.batch_files.reader import OtherWorldSizeWarning, arrays, padded_arrays
from ballsbins.batch_files.sort import Memory
from ballsbins.errors import DataError, InvalidInputError

from .conftest import ROWS

SAMPLER = BallsAndBins(60, max_batch_size=350, num_examples=ROWS)


class InManyParts(BuildPlan):
    """The same plan with small files."""

    @property
    def batches_per_file(self):
        return 7


@pytest.fixture(scope="module", params=[False, True], ids=["as drawn", "padded"])
def stored(request, folder, key, tiny, tmp_path_factory):
    out = tmp_path_factory.mktemp("read") / "out"
    made = plan_build(open_inputs([folder]), SAMPLER, memory=tiny, pad=request.param)
    build(InManyParts(**{name: getattr(made, name) for name in BuildPlan.__dataclass_fields__}), out, key)
    assert len(list((out / "epoch-000000").glob("*.parquet"))) == 9
    return out


def real_rows(batch):
    rows = batch["row"].to_numpy()
    return rows[batch["weight"].to_numpy() == 1] if "weight" in batch.column_names else rows


@pytest.mark.parametrize("start", [0, 1, 6, 7, 33, 59, 60])
def test_reading_begins_at_any_step(start, stored, key):
    batches = BatchFiles.open(stored).batches(0, start)
    for indices, batch in zip(SAMPLER.batches(ROWS, key, 0, start), batches, strict=True):
        assert np.array_equal(real_rows(batch), indices)


def test_a_late_start_opens_only_the_files_from_there_on(stored, key, tmp_path):
    epoch = copied(stored, tmp_path)
    for number in (1, 3):
        the_part(epoch, number).write_bytes(b"broken")
    the_part(epoch, 2).unlink()
    files = BatchFiles.open(epoch.parent)
    batch = next(files.batches(0, 30))
    assert np.array_equal(real_rows(batch), SAMPLER.batches(ROWS, key)[30])
    for start, number in ((0, 1), (14, 2)):
        with pytest.raises(DataError, match=rf"part-00000{number}-\w+\.parquet'"):
            list(files.batches(0, start))


def test_a_part_of_another_time_is_refused(stored, folder, tiny, key, tmp_path):
    """A part of the same run and epoch, from the same rows, but not the one that the manifest names."""
    epoch = copied(stored, tmp_path)
    part = the_part(epoch, 0)
    pq.write_table(pq.read_table(part), part)
    with pytest.raises(DataError, match=r"part-000000-\w+\.parquet' is damaged.*Build the epoch again"):
        next(BatchFiles.open(epoch.parent).batches(0))


def test_an_epoch_under_another_number_is_refused(stored, tmp_path):
    """Its bins would be used twice, and accounted for as drawn anew."""
    copied = tmp_path / "copied"
    shutil.copytree(stored, copied)
    shutil.copytree(copied / "epoch-000000", copied / "epoch-000077")
    files = BatchFiles.open(copied)
    next(files.batches(0))
    with pytest.raises(DataError, match=r"is of epoch 0: it was copied or renamed.*--epoch 77"):
        next(files.batches(77))


def test_ranks_partition_every_batch_as_in_memory(stored, key):
    files = BatchFiles.open(stored)
    with pytest.warns(OtherWorldSizeWarning, match="world size of 1, .*each of the 3 ranks.*--world-size 3"):
        shares = [files.batches(0, rank=rank, ranks=3) for rank in range(3)]
    whole = files.batches(0)
    for step, (batch, *parts) in enumerate(zip(whole, *shares, strict=True)):
        rows = np.concatenate([part["row"].to_numpy() for part in parts])
        assert sorted(rows.tolist()) == sorted(batch["row"].to_pylist())
        if "weight" not in batch.column_names:
            for rank, part in enumerate(parts):
                expected = SAMPLER.batches(ROWS, key).for_rank(rank, 3)[step]
                assert np.array_equal(part["row"].to_numpy(), expected)


def test_views_without_a_copy(stored):
    """A batch is one piece of what was read: NumPy sees its memory, not a copy."""
    assert not any(batch["row"].flags.owndata for batch, _ in arrays(BatchFiles.open(stored), 0))


def test_arrays_to_write_to_are_views_too_and_belong_to_one_reader(stored):
    files = BatchFiles.open(stored)
    for (batch, _), (again, _) in zip(arrays(files, 0, writable=True), arrays(files, 0), strict=True):
        assert not batch["row"].flags.owndata
        assert isinstance(batch["row"].base.base, pa.Buffer)
        batch["row"] += 1
        batch["x"][:] = 0
        assert np.array_equal(batch["row"], again["row"] + 1)
        assert again["x"].any()


def test_chosen_columns(stored):
    files = BatchFiles.open(stored)
    assert next(files.batches(0, columns=["x", "row"])).column_names == ["x", "row"]
    with pytest.raises(InvalidInputError, match="columns is 'y'"):
        files.batches(0, columns=["y"])


def test_bad_arguments_are_refused_at_once(stored):
    files = BatchFiles.open(stored)
    for arguments in ({"start": 61}, {"start": -1}, {"rank": 3, "ranks": 3}, {"ranks": 0}):
        with pytest.raises(InvalidInputError):
            files.batches(0, **arguments)
    with pytest.raises(DataError, match="Epoch 4 is not in"):
        files.batches(4)
    with pytest.raises(DataError, match="cannot be read"):
        BatchFiles.open(stored / "nowhere")


def test_the_repr_shows_public_facts_only(stored):
    assert repr(BatchFiles.open(stored)) == f"BatchFiles({str(stored)!r}, {SAMPLER!r})"


def test_what_comes_next_is_announced_unless_it_is_in_memory(stored, monkeypatch):
    """The kernel reads it from the disk while the present rows are used."""
    announced = []

    class Memory(mmap.mmap):
        def madvise(self, option, start, length):
            announced.append((option, start, length))

    monkeypatch.setattr(mmap, "mmap", Memory)
    for cached, expected in ((True, False), (False, True)):
        monkeypatch.setattr(part_bytes._Mapped, "_cached", lambda self, place, cached=cached: cached)
        list(BatchFiles.open(stored).batches(0))
        assert bool(announced) == expected
    assert {option for option, _, _ in announced} == {mmap.MADV_WILLNEED}
    assert all(start % mmap.PAGESIZE == 0 and length > 0 for _, start, length in announced)


def test_no_batch_carries_the_sizes_of_row_groups_in_its_schema(stored):
    assert {batch.schema.metadata for batch in BatchFiles.open(stored).batches(0)} == {None}


def test_arrays_of_one_shape_for_jax(stored, key):
    jax = pytest.importorskip("jax")
    files = BatchFiles.open(stored)
    traced = []

    @jax.jit
    def total(x, weight):
        traced.append(x.shape)
        return (x * weight).sum(), weight.sum()

    for indices, batch in zip(
        SAMPLER.batches(ROWS, key, 0, 3), padded_arrays(files, 0, 3, columns=["row", "x"]), strict=True
    ):
        assert {name: len(column) for name, column in batch.items()} == dict.fromkeys(
            ["row", "row.valid", "x", "weight"], 350
        )
        assert batch["weight"].sum() == len(indices)
        assert np.array_equal(batch["row"][: len(indices)], indices)
        assert float(total(batch["x"], batch["weight"])[1]) == len(indices)
    assert traced == [(350,)], "compiled once"


@pytest.mark.filterwarnings("ignore::ballsbins.batch_files.reader.OtherWorldSizeWarning")
def test_arrays_of_a_rank_have_its_share_of_the_shape(stored):
    shapes = {
        len(batch["weight"])
        for rank in range(3)
        for batch in padded_arrays(BatchFiles.open(stored), 0, rank=rank, ranks=3, columns=["x"])
    }
    assert shapes == {117}


def test_arrays_of_one_shape_need_a_largest_batch(folder, key, tiny, tmp_path):
    for sampler, name in ((BallsAndBins(60), "bins"), (Shuffle(60), "shuffle")):
        build(plan_build(open_inputs([folder]), sampler, memory=tiny), tmp_path / name, key)
    with pytest.raises(InvalidInputError, match="max_batch_size"):
        next(padded_arrays(BatchFiles.open(tmp_path / "bins"), 0))
    shapes = [
        len(batch["x"]) for batch in padded_arrays(BatchFiles.open(tmp_path / "shuffle"), 0, columns=["x"])
    ]
    assert shapes == [-(-ROWS // 60)] * 60


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_pytorch_loader(workers, stored, key):
    torch = pytest.importorskip("torch")
    from ballsbins.batch_files.torch_dataset import BatchDataset

    dataset = BatchDataset(BatchFiles.open(stored), 0, start=50)
    options = {"multiprocessing_context": "spawn"} if workers else {}
    loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=workers, **options)
    assert len(loader) == 10
    for indices, batch in zip(SAMPLER.batches(ROWS, key, 0, 50), loader, strict=True):
        rows = batch["row"]
        assert isinstance(rows, torch.Tensor)
        if "weight" in batch:
            rows = rows[batch["weight"] == 1]
        assert np.array_equal(rows.numpy(), indices)
        assert len(batch["name"]) == len(batch["row"])
        rows += 1  # a tensor of its own


def test_the_whole_epoch_is_the_table(stored, table):
    rows = pa.concat_tables(map(pa.table, BatchFiles.open(stored).batches(0))).sort_by("row")
    if "weight" in rows.column_names:
        rows = rows.filter(pa.compute.equal(rows["weight"], 1)).drop_columns("weight")
    dropped = ROWS - rows.num_rows
    assert 0 < dropped < ROWS / 10, "some were truncated"
    assert rows.equals(table.take(rows["row"]))


def test_default_memory_gives_the_same_files_as_little(folder, key, tiny, tmp_path):
    for name, memory in (("a", tiny), ("b", Memory())):
        build(plan_build(open_inputs([folder]), SAMPLER, memory=memory), tmp_path / name, key)
    pair = (BatchFiles.open(tmp_path / name).batches(0) for name in ("a", "b"))
    assert all(one == other for one, other in zip(*pair, strict=True))


def test_a_weight_of_the_users_own_is_not_taken_for_ours(table, key, tmp_path):
    """Gradients are multiplied by ours after clipping: by another number they would exceed the clip norm."""
    pq.write_table(table.append_column("weight", pa.array(np.full(ROWS, 9.0))), tmp_path / "in.parquet")
    build(plan_build(open_inputs([tmp_path / "in.parquet"]), SAMPLER), tmp_path / "out", key)
    files = BatchFiles.open(tmp_path / "out")
    assert next(padded_arrays(files, 0, columns=["x"]))["weight"].max() == 1
    for columns in (None, ["x", "weight"]):
        with pytest.raises(InvalidInputError, match=r"columns is 'weight'.*rename"):
            next(padded_arrays(files, 0, columns=columns))


def copied(stored, tmp_path):
    return shutil.copytree(stored, tmp_path / "copy") / "epoch-000000"


def the_part(epoch, number):
    (part,) = epoch.glob(f"part-{number:06d}-*.parquet")
    return part


def changed_manifest(epoch, change):
    """Write a manifest whose plain content was changed."""
    path = epoch / "manifest.json"
    saved = json.loads(path.read_text())
    change(saved)
    path.write_text(json.dumps(saved))


@pytest.mark.parametrize("wrong", [0, -5, 10**9])
def test_offsets_that_were_changed_are_refused(wrong, stored, tmp_path):
    """A row would be in two batches, or a batch would begin nowhere; also if the checksum was changed with them."""
    epoch = copied(stored, tmp_path)
    (path,) = epoch.glob("offsets-*.npy")
    offsets = np.load(path)
    offsets[3] = wrong
    np.save(path, offsets)
    with pytest.raises(DataError, match=r"offsets-\w+\.npy' is damaged.*Build the epoch again"):
        list(BatchFiles.open(epoch.parent).batches(0))
    checksum = xxhash.xxh3_64_hexdigest(path.read_bytes())
    changed_manifest(epoch, lambda saved: saved["files"]["offsets"].update(checksum=checksum))
    with pytest.raises(DataError, match=r"offsets-\w+\.npy' is not of 61 ascending.*Build the epoch again"):
        list(BatchFiles.open(epoch.parent).batches(0))


def test_columns_other_than_the_manifest_says_are_refused(stored, tmp_path):
    epoch = copied(stored, tmp_path)
    changed_manifest(epoch, lambda saved: saved["columns"][2].update(name="y"))
    with pytest.raises(DataError, match=r"columns.*manifest.*Build the epoch again"):
        list(BatchFiles.open(epoch.parent).batches(0))


def test_a_flipped_bit_is_found_wherever_it_is(stored, tmp_path):
    """Reading finds it before anything is decoded from it, and so does `verify`."""
    epoch = copied(stored, tmp_path)
    part = the_part(epoch, 2)
    content = part.read_bytes()
    places = np.random.default_rng(7).integers(0, len(content), 60).tolist()
    files = BatchFiles.open(epoch.parent)
    for place in [0, 3, 4, *places, *range(len(content) - 12, len(content))]:
        flipped = bytearray(content)
        flipped[place] ^= 1 << place % 8
        part.write_bytes(flipped)
        with pytest.raises(DataError, match=r"part-000002-\w+\.parquet' is damaged.*Build the epoch again"):
            list(files.batches(0, 14))
        with pytest.raises(DataError, match=r"part-000002-\w+\.parquet' is damaged"):
            files.verify(0)
    part.write_bytes(content)
    files.verify(0)


def test_a_manifest_of_an_earlier_version_says_to_build_again(stored, tmp_path):
    epoch = copied(stored, tmp_path)
    changed_manifest(epoch, lambda saved: saved.update(format_version=2))
    with pytest.raises(DataError, match=r"earlier version of ballsbins.*build the epoch again"):
        BatchFiles.open(epoch.parent)


def test_a_manifest_that_leads_out_of_its_directory_is_refused(stored, tmp_path):
    epoch = copied(stored, tmp_path)
    changed_manifest(epoch, lambda saved: saved["files"]["offsets"].update(name="../offsets.npy"))
    with pytest.raises(DataError, match="one within the epoch"):
        BatchFiles.open(epoch.parent)
