"""How long row groups are: almost a power of two rows, because that is what Arrow decodes at the least cost.

For every column that Arrow decodes it reserves memory for the next power of two rows, and gives back what was not
needed. If that is almost half, its allocator moves the column to a smaller place, which copies all of it.
"""

from __future__ import annotations

import math

_FULL = (
    0.98  # planned share of the power of two: batches vary in size, and one row too many needs the next power
)
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

    def filled(batches: int) -> float:
        rows = batches * batch_rows
        expected = rows / max(1, math.ceil(rows / (_FULL * most_rows)))
        return expected / (2 * longest(math.ceil(expected / _FULL) - 1)) if expected > _FULL else 1.0

    possible = [-(-steps // some) for some in range(parts, 2 * parts)]
    well_filled = (batches for batches in possible if filled(batches) >= _WELL_FILLED)
    return next(well_filled, max(possible, key=filled))
