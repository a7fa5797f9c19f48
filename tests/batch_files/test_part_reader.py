"""Row groups are read in runs of columns; the blocks of a run are checked before it is decoded."""

import datetime
import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

from ballsbins import BallsAndBins
from ballsbins.batch_files import BatchFiles, part_reader, writer
from ballsbins.batch_files.build import build
from ballsbins.batch_files.build_plan import plan_build
from ballsbins.batch_files.format import ROW_GROUPS_KEY
from ballsbins.batch_files.inputs import open_inputs
from ballsbins.batch_files.reader import arrays
from ballsbins.batch_files.store import Sink
from ballsbins.errors import DataError

ROWS, STEPS, BLOCK = 3_000, 12, 1_000


@pytest.fixture(scope="module")
def table():
    """Columns of all shapes; the name of one is the path of a part of another in Parquet."""
    random = np.random.default_rng(3)
    return pa.table(
        {
            "row": np.arange(ROWS),
            "list": pa.array([list(range(row % 4)) for row in range(ROWS)], pa.list_(pa.int16())),
            "pair": pa.array([[row, row + 1] for row in range(ROWS)], pa.list_(pa.float32(), 2)),
            "list.list": random.random(ROWS),
            "word": pa.array([f"word {row % 50}" for row in range(ROWS)]).dictionary_encode(),
            "maybe": pa.array([None if row % 7 == 0 else row for row in range(ROWS)], pa.int32()),
            "text": [f"{row}" * (row % 5) for row in range(ROWS)],
            "day": [datetime.datetime(2026, 1, 1) + datetime.timedelta(hours=row) for row in range(ROWS)],
            "x": random.random(ROWS).astype(np.float32),
        }
    )


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(writer, "BLOCK_BYTES", BLOCK)
    monkeypatch.setattr(part_reader, "BLOCK_BYTES", BLOCK)


@pytest.fixture
def built(table, key, tmp_path):
    """Build the table; a function, since tests set the size of blocks first."""

    def run(name="out", world_size=1):
        pq.write_table(table, tmp_path / "in.parquet")
        made = plan_build(open_inputs([tmp_path / "in.parquet"]), BallsAndBins(STEPS), world_size=world_size)
        build(made, tmp_path / name, key)
        return BatchFiles.open(tmp_path / name)

    return run


def part_of(files):
    return Path(files.paths(0)[-1].path)


def rows_of(files, **arguments):
    return pa.concat_tables(map(pa.table, files.batches(0, **arguments)))


@pytest.mark.parametrize("run_bytes", [1, 20_000, 10**9])
@pytest.mark.parametrize("world_size", [1, 2])
def test_rows_do_not_depend_on_runs(
    world_size, run_bytes, table, built, key, small_blocks, monkeypatch, recwarn
):
    monkeypatch.setattr(part_reader, "_RUN_BYTES", run_bytes)
    files = built(world_size=world_size)
    drawn = np.concatenate(list(BallsAndBins(STEPS).batches(ROWS, key)))
    expected = table.take(pa.array(drawn)).combine_chunks()
    found = rows_of(files).combine_chunks()
    assert found.schema.equals(expected.schema)
    assert found.to_pydict() == expected.to_pydict()
    for columns in (["x", "pair", "row"], ["list.list"], ["row", "list.list"], ["word", "maybe"], ["x", "x"]):
        chosen = list(dict.fromkeys(columns))
        assert rows_of(files, columns=columns).to_pydict() == expected.select(chosen).to_pydict()
        assert {name for batch, _ in arrays(files, 0, columns=columns) for name in batch} >= set(chosen) - {
            "list"
        }


def test_runs_are_neighbours_of_about_the_same_bytes(built, small_blocks, monkeypatch):
    files = built()

    def runs(columns=None):
        opened = files._open_epoch(0, columns)
        part = opened.part(0, opened.files.parts[0])
        part.close()
        return part.runs

    (whole,) = runs()
    assert (whole.first, whole.last) == (0, pq.ParquetFile(part_of(files)).metadata.num_columns - 1)
    monkeypatch.setattr(part_reader, "_RUN_BYTES", 1)
    assert runs() == [(place, place) for place in range(whole.last + 1)]
    monkeypatch.setattr(part_reader, "_RUN_BYTES", 10**9)
    assert runs(["x", "row", "list", "maybe"]) == [(8, 8), (0, 1), (5, 5)]


@pytest.mark.parametrize("columns", [None, [], ["maybe"]])
def test_no_columns_have_rows_too(columns, built):
    files = built(world_size=2)
    sizes = [batch.num_rows for batch in files.batches(0, rank=1, ranks=2, columns=columns)]
    assert sizes == (np.diff(np.load(files.paths(0)[0].path)) // 2).tolist()
    with pytest.warns(match="world size"):
        assert sum(batch.num_rows for batch in files.batches(0, columns=columns)) == ROWS


def test_every_block_has_a_checksum(built, small_blocks):
    part = part_of(built(world_size=2))
    content, begin = part.read_bytes(), 0
    groups = json.loads(pq.read_metadata(part).metadata[ROW_GROUPS_KEY.encode()])
    assert len(groups) == 2
    for end, checksums in groups:
        blocks = [content[place : min(place + BLOCK, end)] for place in range(begin, end, BLOCK)]
        assert len(blocks) > 10
        assert checksums == "".join(map(xxhash.xxh3_64_hexdigest, blocks))
        begin = end


@pytest.mark.parametrize("run_bytes", [1, 10**9])
def test_a_flipped_bit_is_found_in_every_block_before_it_is_decoded(
    run_bytes, built, small_blocks, monkeypatch
):
    monkeypatch.setattr(part_reader, "_RUN_BYTES", run_bytes)
    files = built()
    part = part_of(files)
    content = part.read_bytes()
    (group,) = json.loads(pq.read_metadata(part).metadata[ROW_GROUPS_KEY.encode()])
    for block in range(0, group[0], BLOCK):
        flipped = bytearray(content)
        flipped[min(block + 17, group[0] - 1)] ^= 4
        part.write_bytes(flipped)
        for read in (lambda: next(files.batches(0)), lambda: next(arrays(files, 0)), lambda: files.verify(0)):
            with pytest.raises(DataError, match="is damaged: its bytes are not those"):
                read()


def test_one_column_checks_its_own_blocks_only(built, small_blocks):
    files = built()
    part = part_of(files)
    expected = rows_of(files, columns=["x"])
    chunk = pq.read_metadata(part).row_group(0).column(0)
    flipped = bytearray(part.read_bytes())
    flipped[chunk.data_page_offset + chunk.total_compressed_size // 2] ^= 1
    part.write_bytes(flipped)
    assert rows_of(files, columns=["x"]).equals(expected)
    with pytest.raises(DataError, match="damaged"):
        next(files.batches(0, columns=["row"]))
    with pytest.raises(DataError, match="damaged"):
        files.verify(0)


def test_files_of_format_4_have_one_checksum_for_each_row_group(built, small_blocks, monkeypatch):
    expected = rows_of(built("five"))
    monkeypatch.setattr(writer, "BLOCK_BYTES", 10**9)
    files = built("four")
    manifest = part_of(files).parent / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"format_version": 4}))
    part = part_of(files)
    (group,) = json.loads(pq.read_metadata(part).metadata[ROW_GROUPS_KEY.encode()])
    assert len(group[1]) == 16
    files = BatchFiles.open(part.parent.parent)
    assert rows_of(files).equals(expected)
    files.verify(0)
    flipped = bytearray(part.read_bytes())
    flipped[group[0] - 20] ^= 1
    part.write_bytes(flipped)
    with pytest.raises(DataError, match="damaged"):
        next(files.batches(0, columns=["row"]))


def test_a_sink_hashes_blocks_however_the_bytes_come():
    random = np.random.default_rng(1)
    content = random.bytes(20_000)
    sink, begin = Sink(io.BytesIO()), 0
    sink.block_bytes = 777
    for end in (0, 777, 778, 5_000, 5_000, 18_000):
        place = begin
        while place < end:
            length = int(random.integers(1, 2_000))
            sink.write(content[place : min(place + length, end)])
            place += length
        blocks = [content[at : min(at + 777, end)] for at in range(begin, end, 777)]
        assert sink.section() == "".join(map(xxhash.xxh3_64_hexdigest, blocks))
        begin = end
    sink.block_bytes = None
    sink.write(content[begin:])
    assert sink.checksum == xxhash.xxh3_64_hexdigest(content[begin:])
    assert sink.bytes == len(content)
    assert sink.stream.getvalue() == content
