"""How far a Spark build is: finished tasks while rows are read, finished parts while they are written."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ballsbins.engines.manifest import Manifest
from ballsbins.engines.plan import Plan
from ballsbins.engines.progress import Reporter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PAUSE = 0.5  # seconds between two looks


@contextmanager
def watched(
    session: SparkSession, scratch: Path, manifest: Manifest, plan: Plan, reporter: Reporter
) -> Iterator[None]:
    """Tell `reporter` from time to time, from a thread of its own, until the block ends."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_PAUSE):
            begun = sum(1 for entry in scratch.iterdir() if entry.is_dir())
            if begun:
                written = min(max(begun - 1, 0), manifest.num_parts) * manifest.batches_per_file
                reporter.written(min(written, manifest.steps), manifest.steps)
            else:
                share = _finished_share(session)
                reporter.read(int(share * plan.num_examples), int(share * plan.inputs.bytes))

    thread = threading.Thread(target=watch, name="ballsbins-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    reporter.written(manifest.steps, manifest.steps)


def _finished_share(session: SparkSession) -> float:
    tracker = session.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    tasks = [(stage.numCompletedTasks, stage.numTasks) for stage in stages if stage is not None]
    return max((done / max(total, 1) for done, total in tasks), default=0.0)
