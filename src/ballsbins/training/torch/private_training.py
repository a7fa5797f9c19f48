"""`make_private`: make a model, an optimizer and a data set private, with a Mechanism's batches and accounting."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from opacus import PrivacyEngine
from opacus.grad_sample import AbstractGradSampleModule
from opacus.optimizers import DPOptimizer
from opacus.validators.errors import UnsupportedModuleError
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset

from ballsbins import _check
from ballsbins.calibration import calibrate
from ballsbins.errors import InvalidInputError, RunError
from ballsbins.mechanism import Mechanism, check_run
from ballsbins.noise.draw import require_right_noise
from ballsbins.samplers import Key, Sampler, as_key
from ballsbins.training.grid import Grid
from ballsbins.training.torch.accountant import NAME, BallsBinsAccountant
from ballsbins.training.torch.clip_norms import ClipNorms
from ballsbins.training.torch.clipped_sums import EXCESS
from ballsbins.training.torch.example_check import WatchedLoss
from ballsbins.training.torch.ghost_clipping import CheckedLoss, use_precise_norms
from ballsbins.training.torch.guarded_run import SKIPPED, GuardedRun
from ballsbins.training.torch.ledger import ACCOUNTED, UNPUBLISHED, Ledger
from ballsbins.training.torch.loader import BallsBinsLoader
from ballsbins.training.torch.machine_check import check_torch
from ballsbins.training.torch.noise_binding import Replay
from ballsbins.training.torch.opacus_calls import answers_opacus_calls
from ballsbins.training.torch.optimizer import guard, require_precise
from ballsbins.training.torch.ranks import ranks_of, require_one_run
from ballsbins.training.torch.traced_loss import LossWatch
from ballsbins.training.torch.watched_model import TrainingPasses, watch_layers

_OWN_LOSS = (
    "That the loss is one value per example and divides by nothing of the batch: by the word of the operator"
)
MODES = ("hooks", "functorch", "ew", "ghost")  # all except the last keep a gradient per example


@answers_opacus_calls
def make_private(
    mechanism: Mechanism | Sampler,
    model: nn.Module,
    optimizer: optim.Optimizer,
    dataset: Dataset[Any],
    *,
    max_grad_norm: float | Sequence[float] | Callable[[int], float],
    key: Key | bytes | int,
    epsilon: float | None = None,
    delta: float | None = None,
    epochs: int | None = None,
    criterion: Any = None,
    loss_is_per_example: bool = False,
    grad_sample_mode: str = "hooks",
    batch_first: bool = True,
    loss_reduction: str = "mean",
    engine: PrivacyEngine | None = None,
    data_fingerprint: str | None = None,
    ledger: str | os.PathLike[str] | None = None,
    lost_steps: str | None = None,
    allow_uncovered: bool = False,
    **loader_options: Any,
) -> Any:
    """Make a model, an optimizer and a data set private, with the batches and the accounting of a Mechanism.

    The loader is a DataLoader over the mechanism's batches. The optimizer clips to `max_grad_norm`, adds exact
    Gaussian noise of σ times that norm, and divides by the public n/T. `loader.accountant` is an Opacus accountant,
    `loader.as_run()` is the Mechanism as far as it was run, and `loader.card(delta)` holds what may be published. If
    the model is wrapped for distributed training, every rank gets its share of every batch.

    Args:
        mechanism: sampler, noise multiplier and epochs. Or only a sampler, for example from
            `BallsAndBins.for_batch_size`: then the least noise for `epsilon`, `delta` and `epochs` is used.
        model: a model with float32 or float64 parameters. Or the model that an earlier run made private: it is then
            trained further in a separate run, with different noise. `Total` adds up the cost of all runs.
        optimizer: optimizer over the parameters of the model, or the optimizer of the earlier run.
        dataset: data set with a length and with examples by index.
        max_grad_norm: C, the norm to clip to, above 0. A sequence with one norm for each parameter that the
            optimizer trains clips per layer; C is then the root of the sum of their squares. A function of the step
            number is a schedule, and the noise follows it; this call evaluates it for all steps at once.
        key: a master key (`Key.from_file`), from which every run derives its own key; an integer is a seed for
            experiments.
        epsilon: the ε to stay within, if a sampler is given.
        delta: the δ at which ε holds, if a sampler is given.
        epochs: number of passes over the data, if a sampler is given; 1 by default.
        criterion: the loss; required with "ghost". In the other modes, the gradient that the loss sends back to one
            example must not depend on other examples. This is checked at steps 0, 1, 2, 4 and so on, by recording
            what the loop does with the outputs of the model, or by calling this criterion with one example.
        loss_is_per_example: True if the loss cannot be checked and you know that it is one value for each example
            and is not divided by anything that depends on the batch. The card then says that this is your word.
        grad_sample_mode: "hooks", "functorch" or "ew", which cover floating point, or "ghost", which does not but
            needs less memory.
        batch_first: False if examples are along the second dimension of the model's input, as in (time, batch).
        loss_reduction: the reduction of your loss, "mean" or "sum". With "sum" nothing is divided by n/T.
        engine: `PrivacyEngine(accountant="ballsbins")`, to save and load Opacus checkpoints.
        data_fingerprint: any text that identifies your data, such as a hash. With it, a resumed run repeats bit for
            bit if nothing has changed. Without it, a resumed run always draws fresh noise.
        ledger: a file to which every step is written before it is taken, so that no step is forgotten.
        lost_steps: what became of steps that are in the ledger but not in the checkpoint: "unpublished" or
            "accounted".
        allow_uncovered: continue although the test of the machine failed. The card then says so.
        loader_options: options for the DataLoader: num_workers, collate_fn, pin_memory and so on.

    Returns:
        The same as Opacus' `make_private`: (model, optimizer, loader), or (model, optimizer, criterion, loader) if a
        criterion is given. Train with the returned criterion.

    Raises:
        InvalidInputError: an argument is not usable, or the integers of the sum could overflow.
        RunError: the machine fails its test, parameters have 16 bits, or the ledger belongs to another run.

    Example:
        >>> import torch
        >>> from ballsbins import BallsAndBins, Mechanism
        >>> data = torch.utils.data.TensorDataset(torch.randn(64, 3), torch.randn(64, 1))
        >>> model = torch.nn.Linear(3, 1)
        >>> sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> mechanism = Mechanism(BallsAndBins(steps=4), noise_multiplier=1.0)
        >>> model, optimizer, loader = make_private(mechanism, model, sgd, data, max_grad_norm=1.0, key=1)
        >>> for inputs, targets in loader:
        ...     optimizer.zero_grad()
        ...     torch.nn.functional.mse_loss(model(inputs.requires_grad_()), targets).backward()
        ...     _ = optimizer.step()
        >>> loader.as_run() == mechanism
        True
    """
    mechanism = _planned(mechanism, epsilon, delta, epochs)
    model, optimizer = _plain(model, optimizer)
    _check_mode(grad_sample_mode, criterion)
    require_right_noise()
    _check_fingerprint(data_fingerprint)
    _check_lost_steps(lost_steps, ledger)
    num_examples = _size(dataset, mechanism)
    accountant, engine = _accountant(engine)
    rank, world_size = ranks_of(model)
    workers = int(loader_options.get("num_workers", 0))
    ahead = (loader_options.get("prefetch_factor") or 2) * workers + 1
    trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    trained = [parameter for parameter in trained if parameter.requires_grad]
    require_precise(trained)
    norms = ClipNorms.of(max_grad_norm, len(trained), grad_sample_mode, mechanism.total_steps)
    run = GuardedRun(
        mechanism, num_examples, as_key(key), norms, rank=rank, world_size=world_size, lookahead=ahead
    )
    run.normaliser = run.expected_batch_size if loss_reduction == "mean" else 1.0
    run.grid = grid = _grid(run, sum(parameter.numel() for parameter in trained), grad_sample_mode)
    if grad_sample_mode != "ghost":
        run.machine = check_torch(_device(trained), round(run.expected_batch_size), _dense_layers(model))
        if not run.machine.row_local and not allow_uncovered:
            raise RunError(
                f"Floating point is not covered on this machine: {'; '.join(run.machine.failures)}. Train on another "
                "machine, or go on with allow_uncovered=True: the card will say that floating point is not covered."
            )
    require_one_run(run, loss_reduction, data_fingerprint)
    if data_fingerprint is not None:
        run.replay = _replay(run, model, data_fingerprint, grad_sample_mode, loss_reduction)
    if ledger is not None and rank == 0:
        run.ledger = Ledger(ledger, run.key.commitment(), mechanism, lost_steps)
    watch_layers(model)
    passes = TrainingPasses(0 if batch_first else 1)
    passes.handles.append(model.register_forward_pre_hook(passes.before))
    loader = BallsBinsLoader(dataset, run, accountant, **loader_options)
    accountant.configure(run)
    try:
        made = engine.make_private(
            module=model,
            optimizer=optimizer,
            data_loader=loader,
            criterion=criterion if criterion is not None else nn.CrossEntropyLoss(),
            noise_multiplier=mechanism.noise_multiplier,
            max_grad_norm=norms.at(0),
            loss_reduction=loss_reduction,
            poisson_sampling=False,  # leaves the loader as it is; the batches are ours
            grad_sample_mode=grad_sample_mode,
            batch_first=batch_first,
        )
    except UnsupportedModuleError as error:
        raise InvalidInputError(
            "model",
            type(model).__name__,
            "made of layers that treat every example by itself",
            f"Opacus says: {error} ModuleValidator.fix(model) replaces what it can, before the optimizer is made.",
        ) from error
    private_model, private_optimizer = made[0], made[1]
    private_optimizer.attach_step_hook(accountant.get_optimizer_hook_fn(sample_rate=run.sample_rate))
    guard(private_optimizer, private_model, run, grid, passes)
    private_optimizer.takes_public_passes = grad_sample_mode in ("hooks", "functorch")
    passes.handles.append(private_model.register_forward_hook(passes.after, with_kwargs=True))
    if grad_sample_mode == "ew":
        private_model.register_forward_pre_hook(_refuse_accumulation)
    if grad_sample_mode == "ghost":
        made[2].__class__ = CheckedLoss
        use_precise_norms(private_model)
        return made
    if loss_is_per_example:
        run.vouch(_OWN_LOSS)
        return made if criterion is None else (*made[:2], criterion, made[-1])
    passes.watch = watch = LossWatch(loss_reduction, private_optimizer.is_time_to_check)
    if criterion is not None:
        return *made[:2], WatchedLoss(criterion, loss_reduction, watch.is_due, watch.saw), made[-1]
    return made


def _grid(run: GuardedRun, count: int, mode: str) -> Grid:
    """Return the grid on which the noise covers all rounding errors; refuse sums that could overflow."""
    noise = run.mechanism.noise_multiplier
    limit = run.mechanism.sampler.max_batch_size
    mean = run.expected_batch_size
    # Larger batches have a probability below e⁻⁴⁰ (Bernstein). Each step is still checked.
    likely = min(run.num_examples, math.ceil(mean + 10.0 * math.sqrt(mean) + 40.0))
    rows = limit or max(likely, min(run.num_examples, Grid.most_rows(noise)))
    # With hooks, each example is rounded separately.
    excess, dense, scattered = (0.0, count, 0) if mode == "ghost" else (EXCESS, 0, count)
    *_, grid = (
        Grid(noise, norm, rows, excess, dense, scattered)
        for norm in (max(run.clip_norms.steps), min(run.clip_norms.steps), run.clip_norms.at(0))
    )
    return grid


def _refuse_accumulation(model: nn.Module, inputs: Any) -> None:
    """Raise our error before that of expanded weights, which prints parameters."""
    del inputs
    waiting = any(getattr(parameter, "grad_sample", None) is not None for parameter in model.parameters())
    if waiting and model.training and torch.is_grad_enabled():
        raise RunError(f"The model was called again before the step of its batch was taken. {SKIPPED}")


def _device(parameters: list[Any]) -> str:
    return str(parameters[0].device.type) if parameters else "cpu"


def _dense_layers(model: nn.Module) -> frozenset[tuple[int, int]]:
    return frozenset(
        (layer.in_features, layer.out_features) for layer in model.modules() if isinstance(layer, nn.Linear)
    )


def _replay(
    run: GuardedRun,
    model: nn.Module,
    fingerprint: str,
    mode: str,
    loss_reduction: str,
) -> Replay:
    trained = {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
    fixed = [value for value in (*model.parameters(), *model.buffers()) if id(value) not in trained]
    plan = {
        "sampler": run.mechanism.sampler.to_dict(),
        "noise_multiplier": run.mechanism.noise_multiplier,
        "max_grad_norm": run.clip_norms.plan,
        "num_examples": run.num_examples,
        "mode": mode,
        "loss_reduction": loss_reduction,
        "ranks": run.world_size,
    }
    return Replay(fingerprint, plan, fixed)


def _check_fingerprint(fingerprint: Any) -> None:
    if fingerprint is not None and (not isinstance(fingerprint, str) or not fingerprint):
        shown = fingerprint if isinstance(fingerprint, str) else type(fingerprint).__name__
        advice = "Compute it from the data that the data set gives, for example with hashlib."
        raise InvalidInputError("data_fingerprint", shown, "a text that is not empty", advice)


def _check_lost_steps(lost_steps: str | None, ledger: Any) -> None:
    if lost_steps not in (None, UNPUBLISHED, ACCOUNTED):
        advice = "Leave it out unless the ledger has steps that the checkpoint has not."
        bound = f"{UNPUBLISHED!r} or {ACCOUNTED!r}"
        raise InvalidInputError("lost_steps", lost_steps, bound, advice)
    if lost_steps is not None and ledger is None:
        advice = "Without a ledger nobody knows which steps were lost: give the one that was kept."
        raise InvalidInputError("lost_steps", lost_steps, "left out without a ledger", advice)


def _check_mode(mode: str, criterion: Any) -> None:
    if mode not in MODES:
        raise InvalidInputError(
            "grad_sample_mode", mode, " or ".join(map(repr, MODES)), "Choose one of these."
        )
    if mode == "ghost" and criterion is None:
        advice = "Ghost clipping goes through the loss: name it."
        raise InvalidInputError("criterion", None, "given for grad_sample_mode='ghost'", advice)


def _planned(given: Any, epsilon: float | None, delta: float | None, epochs: int | None) -> Mechanism:
    """Return the given Mechanism, or the one with the least noise for a sampler and a target."""
    if isinstance(given, Sampler):
        if epsilon is not None and delta is not None:
            return calibrate(given, epsilon=epsilon, delta=delta, epochs=1 if epochs is None else epochs)
        advice = "Give epsilon, delta and epochs with a sampler, or a Mechanism."
        raise InvalidInputError(
            "epsilon" if epsilon is None else "delta", None, "given with a sampler", advice
        )
    check_run("mechanism", given)
    for name, value in (("epsilon", epsilon), ("delta", delta), ("epochs", epochs)):
        if value is not None:
            advice = "A Mechanism has its noise and its epochs: leave it out, or give the sampler alone."
            raise InvalidInputError(name, value, "left out with a Mechanism", advice)
    return given  # type: ignore[no-any-return]


def _plain(model: Any, optimizer: Any) -> tuple[nn.Module, optim.Optimizer]:
    """Return the model and the optimizer without the wrappers of an earlier run."""
    if isinstance(optimizer, DPOptimizer):
        for handle in optimizer.passes.handles if hasattr(optimizer, "passes") else ():
            handle.remove()
        optimizer = optimizer.original_optimizer
    if isinstance(model, AbstractGradSampleModule):
        model = model.to_standard_module()
    if hasattr(model, "autograd_grad_sample_hooks"):
        raise InvalidInputError(
            "model",
            type(model).__name__,
            "one that no other run trains",
            "It was made private before: give the model and the optimizer that make_private returned then, and that "
            "run is over.",
        )
    return model, optimizer


def _size(dataset: Dataset[Any], mechanism: Mechanism) -> int:
    """Return the number of examples, which must be known and at least the number of steps per epoch."""
    if isinstance(dataset, DataLoader):
        advice = (
            "Give loader.dataset: the mechanism draws the batches. For batches of its size make the sampler with "
            f"BallsAndBins.for_batch_size(len(loader.dataset), {dataset.batch_size})."
        )
        raise InvalidInputError("dataset", "a DataLoader", "a data set", advice)
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        advice = "Batches name examples by their index, so a data set that only iterates cannot be batched."
        bound = "one with a length and examples by index"
        raise InvalidInputError("dataset", type(dataset).__name__, bound, advice)
    return _check.integer(
        "the number of examples in the data set",
        len(dataset),
        mechanism.sampler.steps,
        advice=f"The mechanism has {mechanism.sampler.steps:,} steps per epoch: take fewer steps than examples.",
    )


def _accountant(engine: PrivacyEngine | None) -> tuple[BallsBinsAccountant, PrivacyEngine]:
    if engine is None:
        with warnings.catch_warnings():  # Opacus warns about its own generator, which is not used here
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
