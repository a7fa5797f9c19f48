"""How long row groups are: almost a power of two rows, because that is what Arrow decodes at the least cost.

For every column that Arrow decodes it reserves memory for the next power of two rows, and gives back what was not
needed. If that is almost half, its allocator moves the column to a smaller place, which copies all of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

# Planned share of the power of two: batches vary in size, and one row too many needs the next power.
_FULL = 0.98
# Columns are copied below about 0.6. Fuller row groups are also fewer, and each one has costs for every column.
_WELL_FILLED = 0.9


def longest(rows: float) -> int:
    """The length of the longest row groups that have at most so many rows: a power of two, at least 1."""
    return 1 << max(0, int(rows).bit_length() - 1)


def batches_per_part(steps: int, parts: int, batch_rows: float, most_rows: int) -> int:
    """The number of batches in each part: all parts are equal, and their row groups well filled.

    Args:
        steps: the number of batches of the epoch.
        parts: the least number of parts. One part stays one; otherwise there may be up to twice as many.
        batch_rows: the expected number of rows of a batch that go into the same row group: those of one rank.
        most_rows: the most rows of a row group.

    Returns:
        The batches of the longest part that fills its row groups well; if none does, of the one that does it best.
    """
    possible = [-(-steps // some) for some in range(parts, 2 * parts)]
    return possible[_well_filled([batches * batch_rows for batches in possible], most_rows)]


def buckets_per_part(buckets: int, part_rows: float, most_rows: int) -> int:
    """The number of buckets in which a part is sorted; the row groups of each one are well filled.

    Args:
        buckets: the least number of buckets. One bucket stays one; otherwise there may be up to twice as many.
        part_rows: the expected number of rows of a part that go into the same row group: those of one rank.
        most_rows: the most rows of a row group. It does not extend beyond its bucket.

    Returns:
        The least number of buckets that fill their row groups well; if none does, the one that does it best.
    """
    possible = range(buckets, 2 * buckets)
    return possible[_well_filled([part_rows / some for some in possible], most_rows)]


def _well_filled(rows: Sequence[float], most_rows: int) -> int:
    """The place of the first number of rows whose row groups are well filled; if there is none, of the best."""
    shares = [_filled(some, most_rows) for some in rows]
    best = shares.index(max(shares))
    return next((place for place, share in enumerate(shares) if share >= _WELL_FILLED), best)


def _filled(rows: float, most_rows: int) -> float:
    """The used share of the memory that Arrow reserves for a row group, if rows are cut into as few as possible."""
    expected = rows / max(1, math.ceil(rows / (_FULL * most_rows)))
    return expected / (2 * longest(math.ceil(expected / _FULL) - 1)) if expected > _FULL else 1.0
