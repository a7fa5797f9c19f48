"""Build epochs of batch files from a table of any size, within a stated memory limit.

This is the embedded engine. It puts every row into the batch that the in-memory sampler gives to the row's identity.
One pass over the table builds as many epochs as fit on the disk.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from ballsbins.batch_files.build_plan import BuildPlan
from ballsbins.batch_files.epoch_directory import complete_epochs, new_epoch, prepare_directory, read_manifest
from ballsbins.batch_files.format import Manifest, stored_epoch
from ballsbins.batch_files.row_order import check_row_order, row_order_of
from ballsbins.batch_files.store import Location, located
from ballsbins.batch_files.two_passes import Scattered
from ballsbins.batch_files.writer import write_epoch_end
from ballsbins.errors import DataError
from ballsbins.samplers import Key
from ballsbins.samplers.base import check_epoch

# fraction of an epoch's time spent reading, as measured; the rest is sorting and writing
_READING_SHARE = 0.35


@dataclass(frozen=True)
class BuildProgress:
    """One progress message: the rows and input bytes of an epoch that are done, and the estimated time left."""

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


Report = Callable[[BuildProgress], None]


class Reporter:
    """Tracks the progress of the epochs that one pass over the table builds, and passes it to `report`."""

    def __init__(
        self, report: Report | None, epochs: Sequence[int], total_rows: int, total_bytes: int
    ) -> None:
        """Start the clock."""
        self._report, self._epochs = report, tuple(epochs)
        self._rows, self._bytes = total_rows, total_bytes
        self._begin = time.monotonic()

    @property
    def epoch(self) -> int:
        """The first of these epochs."""
        return self._epochs[0]

    def read(self, rows: int, read_bytes: int) -> None:
        """Report how many rows, in input order, have been read."""
        done = rows / max(self._rows, 1)
        self._tell(self.epoch, "reading", rows, read_bytes, _READING_SHARE * done)

    def written(self, epoch: int, steps: int, total_steps: int) -> None:
        """Report how many batches are written. Actual batch sizes are secret, so expected sizes are reported."""
        done = (self._epochs.index(epoch) + steps / total_steps) / len(self._epochs)
        rows, expected = (total * steps // total_steps for total in (self._rows, self._bytes))
        self._tell(epoch, "writing", rows, expected, _READING_SHARE + (1 - _READING_SHARE) * done)

    def _tell(self, epoch: int, stage: str, rows: int, done_bytes: int, share: float) -> None:
        if self._report is None:
            return
        seconds = time.monotonic() - self._begin
        left = seconds * (1 - share) / share if share > 0 else None
        self._report(
            BuildProgress(
                epoch,
                stage,
                rows,
                self._rows,
                done_bytes,
                self._bytes,
                round(seconds, 3),
                None if left is None else round(left, 3),
            )
        )


class BegunRun(NamedTuple):
    """The key of a run, and the manifests of the epochs already in its directory."""

    key: Key
    there: Mapping[int, Manifest]


def begin_run(plan: BuildPlan, directory: Location, key: Key, *, group_readable: bool = False) -> BegunRun:
    """Prepare a directory for epochs, and decide which run they belong to.

    Args:
        plan: what to build.
        directory: where to build it; created if it does not exist.
        key: a master key, or the key of one run.
        group_readable: whether to accept a directory of mode 0770.

    Returns:
        The run of the complete epochs in the directory, if there are any. Otherwise the run of `key` or, for a master
        key, a new run. `new_epoch` compares again before an epoch appears, since other processes may build into the
        same directory.

    Raises:
        DataError: the directory holds epochs of another run, of another master key, or of other inputs.
    """
    check_row_order(plan.sampler, plan.num_examples, plan.identity)
    prepare_directory(directory, group_readable=group_readable)
    there = {number: read_manifest(directory, number) for number in complete_epochs(directory)}
    run_key = _key_of_run(directory, key, list(there.values()))
    for found in there.values():
        _first_look(plan.manifest(run_key, found.epoch), found)
    return BegunRun(run_key, there)


def _first_look(manifest: Manifest, found: Manifest) -> None:
    """Compare everything that is known before the rows are read; for the inputs, these are names and sizes."""
    known = {(number, file.name, file.bytes): file.digest for number, file in enumerate(found.inputs)}
    inputs = tuple(
        replace(file, digest=known.get((number, file.name, file.bytes), ""))
        for number, file in enumerate(manifest.inputs)
    )
    replace(manifest, inputs=inputs).require_same_run(found)


def _key_of_run(directory: Location, key: Key, there: Sequence[Manifest]) -> Key:
    # Epochs of another master key cannot be continued: `require_same_run` refuses them and names the keys.
    if not there or there[0].key_commitment != key.commitment():
        return key.for_run()
    run = there[0].run
    if key.run not in (None, run):
        raise DataError(
            f"{str(directory)!r} holds epochs of the run {run}, but the key is of the run {key.run}. To continue the "
            f"run that is there, give --run {run}, or the master key without a run; to build the other run, name "
            "another directory."
        )
    return key.for_run(run)


def build(
    plan: BuildPlan,
    directory: str | os.PathLike[str],
    key: Key,
    epoch: int = 0,
    report: Report | None = None,
    *,
    scratch: Path | None = None,
    group_readable: bool = False,
) -> Manifest:
    """Write one epoch of batch files, unless it already exists. This is `build_epochs` for a single epoch.

    Args:
        plan: what to build, from `plan_build`.
        directory: where, as for `build_epochs`.
        key: a master key; or the key of one run, `key.for_run(run)`.
        epoch: the number of the epoch, from 0.
        report: called with the progress of the build.
        scratch: where temporary files go.
        group_readable: whether to accept a directory of mode 0770.

    Returns:
        The manifest of the epoch.

    Raises:
        DataError: in the same cases as `build_epochs`.
        InvalidInputError: in the same cases as `build_epochs`.

    Example:
        >>> import pyarrow as pa
        >>> import pyarrow.parquet as pq
        >>> pq.write_table(pa.table({"x": range(100)}), "table.parquet")
        >>> from ballsbins import BallsAndBins, new_key
        >>> from ballsbins.batch_files.build_plan import plan_build
        >>> from ballsbins.batch_files.inputs import open_inputs
        >>> manifest = build(plan_build(open_inputs(["table.parquet"]), BallsAndBins(steps=4)), "batches", new_key())
        >>> manifest.epoch, manifest.num_examples
        (0, 100)
    """
    (manifest,) = build_epochs(
        plan, directory, key, [epoch], report, scratch=scratch, group_readable=group_readable
    )
    return manifest


def build_epochs(
    plan: BuildPlan,
    directory: str | os.PathLike[str],
    key: Key,
    epochs: Sequence[int],
    report: Report | None = None,
    *,
    scratch: Path | None = None,
    group_readable: bool = False,
) -> list[Manifest]:
    """Write several epochs of batch files, in as few passes as the disk allows. Existing epochs are skipped.

    If the sampler draws the same batches for all epochs, only epoch 0 is built. The epochs join the run whose epochs
    are in the directory. In an empty directory a new run begins, unless `key` already belongs to a run.

    Args:
        plan: what to build, from `plan_build`.
        directory: where to build: a directory, created with mode 0700 if it does not exist, or an address in an
            object store. It holds the epochs of one run, and nothing else.
        key: a master key; or the key of one run, `key.for_run(run)`.
        epochs: the numbers of the epochs, from 0.
        report: called with the progress of the build.
        scratch: where temporary files go; by default beside the epochs, or in the system's temporary directory.
        group_readable: whether to accept a directory of mode 0770.

    Returns:
        The manifest of each epoch.

    Raises:
        DataError: the directory holds something else, another process is building an epoch, the disk is too small, or
            an input has changed: what was read is compared with what earlier epochs were built from.
        InvalidInputError: a batch does not fit in memory, or the sampler can put a row into several batches.

    Example:
        >>> import pyarrow as pa
        >>> import pyarrow.parquet as pq
        >>> pq.write_table(pa.table({"x": range(100)}), "table.parquet")
        >>> from ballsbins import BallsAndBins, new_key
        >>> from ballsbins.batch_files.build_plan import plan_build
        >>> from ballsbins.batch_files.inputs import open_inputs
        >>> plan = plan_build(open_inputs(["table.parquet"]), BallsAndBins(steps=4))
        >>> [manifest.epoch for manifest in build_epochs(plan, "batches", new_key(), range(3))]
        [0, 1, 2]
    """
    here = located(directory)
    numbers = [stored_epoch(plan.sampler, check_epoch(epoch)) for epoch in epochs]
    run_key, there = begin_run(plan, here, key, group_readable=group_readable)
    made = dict(there)
    missing = sorted(set(numbers) - set(made))
    if missing:
        together = plan.require_disk(here, scratch, len(missing))
        for first in range(0, len(missing), together):
            some = missing[first : first + together]
            made |= _one_pass(plan, here, run_key, some, made, report, scratch)
    return [made[number] for number in numbers]


def _one_pass(
    plan: BuildPlan,
    directory: Location,
    key: Key,
    epochs: Sequence[int],
    there: Mapping[int, Manifest],
    report: Report | None,
    scratch: Path | None,
) -> dict[int, Manifest]:
    """Build epochs from one pass over the table; each epoch appears when it is complete."""
    reporter = Reporter(report, epochs, plan.num_examples, plan.inputs.bytes)
    row_orders = [
        row_order_of(plan.sampler, key, epoch, plan.num_examples, plan.identity) for epoch in epochs
    ]
    made = {}
    with ExitStack() as stack:
        new = [stack.enter_context(new_epoch(directory, epoch, scratch)) for epoch in epochs]
        scattered = Scattered(plan, row_orders, [begun.scratch for begun in new])
        scattered.read(reporter.read)
        digests = plan.inputs.file_digests(scattered.digests)
        for number, (epoch, begun) in enumerate(zip(epochs, new, strict=True)):
            manifest = plan.manifest(key, epoch, digests)
            for found in there.values():
                manifest.require_same_run(found)
            report_written = partial(reporter.written, epoch, total_steps=plan.sampler.steps)
            parts, sizes = scattered.write_parts(number, begun.made, manifest, report_written)
            with begun.publishing(manifest, [part.name for part in parts]):
                made[epoch] = write_epoch_end(
                    begun.made, manifest, sizes, parts, plan.dictionaries.as_batch()
                )
    return made
