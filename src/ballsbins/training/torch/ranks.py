"""Distributed training: find the rank of this process, and check that all ranks belong to one run."""

from __future__ import annotations

from typing import Any

import torch
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from torch import nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

from ballsbins.errors import InvalidInputError
from ballsbins.training.torch.guarded_run import GuardedRun


def require_one_run(run: GuardedRun, loss_reduction: str, fingerprint: str | None) -> None:
    """Make all ranks adopt the run of rank 0; refuse ranks with different keys or plans.

    Otherwise an example could be in two steps, or in none.
    """
    if run.world_size == 1:
        return
    mine = {
        "the key's commitment": run.key.commitment(),
        "the run of the key": run.given_run,
        "the mechanism": repr(run.mechanism),
        "the number of examples": run.num_examples,
        "max_grad_norm": run.clip_norms.plan,
        "loss_reduction": loss_reduction,
        "data_fingerprint": None if fingerprint is None else run.fingerprint_code(fingerprint),
    }
    found: list[Any] = [None] * run.world_size
    torch.distributed.all_gather_object(found, mine)
    for name, value in mine.items():
        seen = [facts[name] for facts in found]
        if any(other != seen[0] for other in seen):
            raise InvalidInputError(
                f"{name} on rank {run.rank}",
                value,
                f"the same on all ranks (here {seen})",
                "Every rank draws its share of one and the same batch: give all of them the key of one file, with "
                "Key.from_file, and the same plan. new_key() in each process makes as many keys.",
            )
    shared: list[Any] = [run.key.run, run.nonce]
    torch.distributed.broadcast_object_list(shared, src=0)
    run.share_with(*shared)


def ranks_of(model: nn.Module) -> tuple[int, int]:
    """Return the rank of this process and the number of ranks; (0, 1) unless the model is wrapped for several."""
    initialised = torch.distributed.is_available() and torch.distributed.is_initialized()
    world_size = torch.distributed.get_world_size() if initialised else 1
    if isinstance(model, (FSDPModule, FullyShardedDataParallel)):
        raise InvalidInputError(
            "model",
            type(model).__name__,
            "not sharded",
            "FSDP gives every process a share of each parameter, and no process the whole gradient of an example: "
            "its norm, the sums and the noise would have to be put together from shares, which is not written. "
            "Wrap the model in opacus.distributed.DifferentiallyPrivateDistributedDataParallel.",
        )
    if isinstance(model, (DifferentiallyPrivateDistributedDataParallel, DistributedDataParallel)):
        return torch.distributed.get_rank(), world_size
    if world_size > 1:
        raise InvalidInputError(
            "model",
            type(model).__name__,
            f"wrapped for the {world_size} processes that train",
            "Wrap it in opacus.distributed.DifferentiallyPrivateDistributedDataParallel; unwrapped, every process "
            "would release its own noisy sum of the same batches.",
        )
    return 0, 1
