"""How far a build is. Says nothing that depends on the key: batches are counted, their rows are expected ones."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

_READING_SHARE = 0.45  # of the time of an epoch, measured; the rest is sorting and writing


@dataclass(frozen=True)
class Progress:
    """One message: what is done of an epoch, in rows and in bytes of the input, and the time it has yet to take."""

    epoch: int
    stage: str
    rows: int
    total_rows: int
    bytes: int
    total_bytes: int
    seconds: float
    seconds_left: float | None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"event": "progress"} | asdict(self)


Report = Callable[[Progress], None]


class Reporter:
    """Counts for one epoch, and tells `report` about it."""

    def __init__(self, report: Report | None, epoch: int, total_rows: int, total_bytes: int) -> None:
        """Begin to count the time."""
        self._report, self._epoch = report, epoch
        self._rows, self._bytes = total_rows, total_bytes
        self._begin = time.monotonic()

    def read(self, rows: int, read_bytes: int) -> None:
        """Say that so many rows were read in their given order."""
        done = rows / max(self._rows, 1)
        self._tell("reading", rows, read_bytes, _READING_SHARE * done)

    def written(self, steps: int, total_steps: int) -> None:
        """Say that so many batches were written. Their realised sizes are secret: expected ones are told."""
        done = steps / total_steps
        rows, expected = (total * steps // total_steps for total in (self._rows, self._bytes))
        self._tell("writing", rows, expected, _READING_SHARE + (1 - _READING_SHARE) * done)

    def _tell(self, stage: str, rows: int, done_bytes: int, share: float) -> None:
        if self._report is None:
            return
        seconds = time.monotonic() - self._begin
        left = seconds * (1 - share) / share if share > 0 else None
        self._report(
            Progress(
                self._epoch,
                stage,
                rows,
                self._rows,
                done_bytes,
                self._bytes,
                round(seconds, 3),
                None if left is None else round(left, 3),
            )
        )
