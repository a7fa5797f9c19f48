"""What the tests of the engines share: small tables, a key, and a memory limit so small that everything spills."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ballsbins import Key
from ballsbins.batch_files.sort import Memory

ROWS = 20_000


@dataclass(frozen=True)
class Tiny(Memory):
    """Buckets of some hundred rows, three at a time: rows are scattered several times over."""

    chunk_bytes, most_rows = 100_000, 1_000
    bucket_bytes = 40_000
    row_group_bytes = 60_000
    max_files = 3


@pytest.fixture(scope="session")
def tiny():
    return Tiny()


@pytest.fixture(scope="session")
def key():
    return Key.from_seed(20_24)


@pytest.fixture(scope="session")
def table():
    """Rows that know their position and a unique name; a column has missing values."""
    random = np.random.default_rng(5)
    return pa.table(
        {
            "row": np.arange(ROWS),
            "name": [f"user {number * 7919 % 100_003}" for number in range(ROWS)],
            "x": random.random(ROWS).astype(np.float32),
            "maybe": pa.array([None if number % 3 == 0 else number for number in range(ROWS)], pa.int32()),
        }
    )


@pytest.fixture(scope="session")
def folder(table, tmp_path_factory):
    """The table as Parquet files of different sizes, with things beside them that are not data."""
    path = tmp_path_factory.mktemp("inputs")
    cuts = [0, 1, 4_000, 4_000, 15_000, ROWS]
    for number, (begin, end) in enumerate(pairwise(cuts)):
        pq.write_table(table.slice(begin, end - begin), path / f"part-{number}.parquet", row_group_size=3_000)
    (path / "_SUCCESS").write_text("")
    (path / ".part-0.parquet.crc").write_text("not data")
    return path


@pytest.fixture(scope="module")
def running():
    """A store that the tests of a file share."""
    from .s3_store import serving

    with serving() as started:
        yield started


@pytest.fixture
def store(running):
    """That store, whatever an earlier test has made of it."""
    running.be_good()
    running.requests.clear()
    yield running
    running.be_good()
