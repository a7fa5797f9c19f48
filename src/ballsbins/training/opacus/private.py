"""From a model, an optimizer and a data set to private ones whose batches and accounting are a Mechanism's."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from opacus import PrivacyEngine
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from opacus.validators.errors import UnsupportedModuleError
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset

from ballsbins import validate
from ballsbins.errors import InvalidInputError
from ballsbins.mechanism import Mechanism
from ballsbins.samplers import Key, as_key
from ballsbins.training.opacus.accountant import NAME, BallsBinsAccountant
from ballsbins.training.opacus.ghost import CheckedLoss
from ballsbins.training.opacus.layers import watch_layers
from ballsbins.training.opacus.loader import BallsBinsLoader
from ballsbins.training.opacus.optimizer import guard
from ballsbins.training.opacus.run import Run

MODES = ("hooks", "ghost")


def make_private(
    mechanism: Mechanism,
    model: nn.Module,
    optimizer: optim.Optimizer,
    dataset: Dataset[Any],
    *,
    max_grad_norm: float,
    key: Key | bytes | int,
    criterion: Any = None,
    grad_sample_mode: str = "hooks",
    loss_reduction: str = "mean",
    engine: PrivacyEngine | None = None,
    **loader_options: Any,
) -> Any:
    """Return what Opacus' `make_private` returns: (model, optimizer, loader), and for "ghost" (…, criterion, loader).

    The loader is a DataLoader over the mechanism's batches, drawn from `key`; the optimizer clips to `max_grad_norm`,
    adds noise of σ times that, and divides by the public n/T. `loader.accountant` is an Opacus accountant;
    `loader.as_run()` is the Mechanism as far as it was run, `loader.card(delta)` what may be published. State the
    `loss_reduction` of your loss; with "sum" nothing is divided. Give an `engine` made with
    `PrivacyEngine(accountant="ballsbins")` to save and load Opacus checkpoints. Further options go to the DataLoader:
    num_workers, collate_fn, pin_memory and so on. If the model is wrapped for distributed training, every rank gets
    its share of every batch.
    """
    _check_mode(grad_sample_mode, criterion)
    clip_norm = validate.real(
        "max_grad_norm", max_grad_norm, 0.0, open_left=True, advice="It is the norm to clip gradients to."
    )
    num_examples = _size(dataset, mechanism)
    accountant, engine = _accountant(engine)
    rank, world_size = _ranks(model)
    workers = int(loader_options.get("num_workers", 0))
    ahead = (loader_options.get("prefetch_factor") or 2) * workers + 1
    run = Run(
        mechanism, num_examples, as_key(key), clip_norm, rank=rank, world_size=world_size, lookahead=ahead
    )
    run.normaliser = run.expected_batch_size if loss_reduction == "mean" else 1.0
    _require_one_run(run, loss_reduction)
    passes = watch_layers(model)
    loader = BallsBinsLoader(dataset, run, accountant, **loader_options)
    accountant.configure(run)
    try:
        made = engine.make_private(
            module=model,
            optimizer=optimizer,
            data_loader=loader,
            criterion=criterion if criterion is not None else nn.CrossEntropyLoss(),
            noise_multiplier=mechanism.noise_multiplier,
            max_grad_norm=clip_norm,
            loss_reduction=loss_reduction,
            poisson_sampling=False,  # leaves the loader as it is; the batches are ours
            grad_sample_mode=grad_sample_mode,
        )
    except UnsupportedModuleError as error:
        raise InvalidInputError(
            "model",
            type(model).__name__,
            "made of layers that treat every example by itself",
            f"Opacus says: {error} ModuleValidator.fix(model) replaces what it can, before the optimizer is made.",
        ) from error
    private_model, private_optimizer = made[0], made[1]
    private_model.forbid_grad_accumulation()
    private_optimizer.attach_step_hook(accountant.get_optimizer_hook_fn(sample_rate=run.sample_rate))
    guard(private_optimizer, private_model, run, passes)
    if grad_sample_mode == "ghost":
        made[2].__class__ = CheckedLoss
    return made


def _check_mode(mode: str, criterion: Any) -> None:
    if mode not in MODES:
        raise InvalidInputError(
            "grad_sample_mode", mode, " or ".join(map(repr, MODES)), "Choose one of these."
        )
    if mode == "ghost" and criterion is None:
        raise InvalidInputError(
            "criterion",
            None,
            "given for grad_sample_mode='ghost'",
            "Ghost clipping goes through the loss: name it.",
        )
    if mode == "hooks" and criterion is not None:
        raise InvalidInputError(
            "criterion", type(criterion).__name__, "left out for 'hooks'", "Use your loss as it is."
        )


def _size(dataset: Dataset[Any], mechanism: Mechanism) -> int:
    """The number of examples, which must be known and at least one a step."""
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise InvalidInputError(
            "dataset",
            type(dataset).__name__,
            "one with a length and examples by index",
            "Batches name examples by their index, so a data set that only iterates cannot be batched.",
        )
    return validate.integer(
        "the number of examples in the data set",
        len(dataset),
        mechanism.sampler.steps,
        advice=f"The mechanism has {mechanism.sampler.steps:,} steps an epoch: take fewer steps than examples.",
    )


def _accountant(engine: PrivacyEngine | None) -> tuple[BallsBinsAccountant, PrivacyEngine]:
    if engine is None:
        with warnings.catch_warnings():  # Opacus warns of its own generator, which is not used here
            warnings.filterwarnings("ignore", message="Secure RNG turned off")
            engine = PrivacyEngine(accountant=NAME)
    accountant = engine.accountant
    if not isinstance(accountant, BallsBinsAccountant):
        raise InvalidInputError(
            "the engine's accountant",
            accountant.mechanism(),
            f"{NAME!r}",
            f"Make it with PrivacyEngine(accountant={NAME!r}): Poisson accounting of other batches is wrong.",
        )
    return accountant, engine


def _require_one_run(run: Run, loss_reduction: str) -> None:
    """Refuse ranks that draw from different keys or plans: an example could then be in two steps, or in none."""
    if run.world_size == 1:
        return
    mine = {
        "the key's commitment": run.key.commitment(),
        "the mechanism": repr(run.mechanism),
        "the number of examples": run.num_examples,
        "max_grad_norm": run.clip_norm,
        "loss_reduction": loss_reduction,
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


def _ranks(model: nn.Module) -> tuple[int, int]:
    """Give the rank of this process and the number of ranks, if the model is wrapped for several."""
    initialised = torch.distributed.is_available() and torch.distributed.is_initialized()
    world_size = torch.distributed.get_world_size() if initialised else 1
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
