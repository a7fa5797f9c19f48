"""Decide which run a build belongs to: the run whose epochs are in the directory, or a new one. For all engines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ballsbins.engines.manifest import Manifest
from ballsbins.engines.placement import check_placement
from ballsbins.engines.plan import Plan
from ballsbins.engines.reader import complete_epochs, read_manifest
from ballsbins.engines.workspace import prepare_directory
from ballsbins.errors import DataError
from ballsbins.samplers import Key


class BegunEpoch(NamedTuple):
    """The key of the run, the manifest of the epoch, and whether the directory has this epoch already."""

    key: Key
    manifest: Manifest
    is_there: bool


def begin_epoch(plan: Plan, directory: Path, key: Key, epoch: int) -> BegunEpoch:
    """Prepare a directory for one epoch, and decide to which run the epoch belongs.

    Args:
      plan: what is built.
      directory: where it is built; made if it does not exist.
      key: a master key, or the key of one run.
      epoch: the number of the epoch that is stored.

    Returns:
      If the directory holds complete epochs: their run. Otherwise the run of `key` or, for a master key, a new run.
      `new_epoch` compares again before the epoch appears, since other processes may build into the directory.

    Raises:
      DataError: the directory holds epochs of another run, of another master key, or of other inputs.
    """
    check_placement(plan.sampler, plan.num_examples, plan.identity)
    prepare_directory(directory)
    there = [read_manifest(directory, number) for number in complete_epochs(directory)]
    run_key = _key_of_run(directory, key, there)
    manifest = plan.manifest(run_key, epoch)
    for found in there:
        manifest.require_same_run(found)
    for found in there:
        if found.epoch == epoch:
            return BegunEpoch(run_key, found, is_there=True)
    return BegunEpoch(run_key, manifest, is_there=False)


def _key_of_run(directory: Path, key: Key, there: Sequence[Manifest]) -> Key:
    # The epochs of another master key cannot be continued: `require_same_run` refuses them and names the keys.
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
