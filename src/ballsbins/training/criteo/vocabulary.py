"""Ids by a vocabulary of the training part. It looks at the data, so no privacy statement covers it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ballsbins import _extras
from ballsbins.training.criteo.hashing import MISSING_ID

UNKNOWN_ID = 1  # rare values, and those that the training part does not have
RESERVED = 2
NOT_COVERED = (
    "The vocabularies of the categories, and so the sizes of the embedding tables, were computed from the training "
    "examples without noise. The privacy statement does not cover them; prepare the data with hashing if it should."
)


class Vocabulary:
    """The values of one category that have an id of their own, the most frequent first."""

    def __init__(self, values: Any) -> None:
        """Take a pyarrow array of distinct binary values."""
        self._values = values
        self._compute = _extras.load("pyarrow.compute", feature="Preparing data", extra="data")

    @property
    def buckets(self) -> int:
        """Ids in use: those of the values, one for missing and one for unknown."""
        return len(self._values) + RESERVED

    def ids(self, column: Any) -> NDArray[np.int32]:
        """The ids of a column, null being missing."""
        places = self._compute.index_in(column, self._values)
        found = (
            places.fill_null(UNKNOWN_ID - RESERVED).to_numpy(zero_copy_only=False).astype(np.int32) + RESERVED
        )
        return np.where(column.is_null().to_numpy(zero_copy_only=False), MISSING_ID, found).astype(np.int32)


def build(files: list[Path], name: str, max_buckets: int, scratch: Path) -> Vocabulary:
    """The vocabulary of a column; ties in frequency go by the value, so that it does not depend on the machine.

    DuckDB groups on disk where memory does not suffice.
    """
    duckdb = _extras.load("duckdb", feature="A vocabulary", extra="data")
    arrow = _extras.load("pyarrow", feature="A vocabulary", extra="data")
    with duckdb.connect(config={"temp_directory": str(scratch), "preserve_insertion_order": False}) as engine:
        rows = engine.sql(
            f'SELECT "{name}" FROM read_parquet(?) WHERE "{name}" IS NOT NULL GROUP BY 1 ORDER BY count(*) DESC, 1 '
            "LIMIT ?",
            params=[[str(file) for file in files], max_buckets - RESERVED],
        ).to_arrow_table()
    return Vocabulary(rows.column(0).combine_chunks().cast(arrow.binary()))
