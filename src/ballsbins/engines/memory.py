"""How a memory limit is divided among what an engine holds at a time."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ballsbins import _check
from ballsbins.errors import InvalidInputError

DEFAULT_MEMORY = 10**9
_LEAST = 300 * 10**6
_INTERPRETER = 180 * 10**6  # Python, NumPy, Arrow and their code, before any data
# More is not used: a third of it, the largest bucket, is the most text that one array can hold.
_MOST = 6 * 10**9
_UNITS = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


@dataclass(frozen=True)
class Memory:
    """A limit on the resident memory of the process, in bytes."""

    limit: int = DEFAULT_MEMORY

    def __post_init__(self) -> None:
        """Validate, once."""
        advice = "The interpreter and Arrow alone need some 180 million bytes; 1 GB is the default."
        _check.integer("the memory limit", self.limit, _LEAST, advice=advice)

    @property
    def _for_data(self) -> int:
        return min(self.limit, _MOST) - _INTERPRETER

    @property
    def chunk_bytes(self) -> int:
        """Rows that are read at a time; as much again is held while they are sorted into buckets."""
        return self._for_data // 12

    @property
    def most_rows(self) -> int:
        """Rows that are read at a time at most: a chunk of rows of 16 kB, as footers see repeated words only once."""
        return max(1, min(2**16, self.chunk_bytes // 2**14))

    @property
    def bucket_bytes(self) -> int:
        """Rows of one bucket as planned. Held twice while joined and once in part while written."""
        return self._for_data // 8

    @property
    def largest_bucket(self) -> int:
        """Rows of one bucket at most: one whose rows are twice as wide as the first ones promised still fits."""
        return self._for_data // 3

    @staticmethod
    def limit_for(batch_bytes: int) -> int | None:
        """A limit under which a batch of so many bytes is a bucket that fits, with some to spare; None if none is."""
        limit = 4 * batch_bytes + _INTERPRETER
        return limit if limit <= _MOST else None

    @property
    def row_group_bytes(self) -> int:
        """Rows that the Parquet writer takes at a time."""
        return min(self._for_data // 24, 16 * 2**20)

    @property
    def max_files(self) -> int:
        """Buckets that are written at once: open files, each getting pieces large enough to be worth writing."""
        return max(2, min(400, self.chunk_bytes // 2**17))

    @staticmethod
    def parse(text: str) -> Memory:
        """Read a limit such as 1GB, 512MiB or 2000000000."""
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmg]i?b|)\s*", text.lower())
        if found is None:
            raise InvalidInputError(
                "--memory", text, "a number of bytes, such as 1GB", "Units are kB, MB, GB, KiB, MiB and GiB."
            )
        return Memory(int(float(found[1]) * _UNITS[found[2]]))
