"""The peak of the resident memory stays under the stated limit when the table is larger than that."""

import re
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ballsbins import new_key

ROWS, COLUMNS = 2_000_000, 40  # 320 MB of 32-bit numbers, which would be held several times over

PEAK = """
import sys
from pathlib import Path
try:
    from ballsbins.cli import app
    app(standalone_mode=False)
finally:
    print(Path("/proc/self/status").read_text())
"""


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    path = tmp_path_factory.mktemp("wide")
    random = np.random.default_rng(0)
    schema = pa.schema([(f"c{number}", pa.float32()) for number in range(COLUMNS)])
    with pq.ParquetWriter(path / "in.parquet", schema, use_dictionary=False, compression="none") as file:
        for _ in range(4):
            columns = [random.random(ROWS // 4, dtype=np.float32) for _ in range(COLUMNS)]
            file.write_table(pa.table(columns, schema=schema))
    new_key().save(path / "key")
    return path


def peak_megabytes(wide, out, *more):
    arguments = ["build", str(wide / "in.parquet"), "--out", str(out), "--key-file", str(wide / "key"), *more]
    done = subprocess.run(
        [sys.executable, "-c", PEAK, *arguments], capture_output=True, text=True, check=True
    )
    return int(re.search(r"VmHWM:\s+(\d+) kB", done.stdout)[1]) / 1000


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells the peak")
def test_the_peak_is_under_the_limit(wide, tmp_path):
    assert peak_megabytes(wide, tmp_path / "out", "-b", "2000", "--memory", "300MB") < 300
