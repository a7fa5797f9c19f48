"""Audit one run of a PyTorch loop with canaries, from the noisy gradients of all its steps."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from opacus import GradSampleModule
from torch import nn, optim
from torch.utils.data import ConcatDataset, Dataset, TensorDataset, default_collate

from ballsbins.audit.one_run import OneRunAudit, Seen, check_settings, judge, toss
from ballsbins.errors import InvalidInputError
from ballsbins.mechanism import Mechanism
from ballsbins.training.torch import make_private

EXAMPLE_CLIP_NORM = 0.1  # well below the norms of gradients, so that clipping is tested
_INPUTS = 400  # inputs of the example's model: enough that random inputs are almost orthogonal
_AT_ONCE = 1 << 24  # values of per-example gradients held at a time, to limit memory
# a noise multiplier so small that it hides nothing, but for which the grid does not overflow
_SMALLEST = 1e-4

Loss = Callable[[nn.Module, Any], torch.Tensor]


def audit_torch_training(
    mechanism: Mechanism,
    delta: float,
    model: nn.Module,
    data: Dataset[Any],
    canaries: Dataset[Any],
    loss: Loss,
    *,
    max_grad_norm: float,
    optimizer: Callable[[Any], optim.Optimizer] = lambda parameters: optim.SGD(parameters, lr=1e-3),
    confidence: float = 0.99,
    seed: int = 0,
    secret_noise_multiplier: float | None = None,
    secret_max_grad_norm: float | None = None,
    **options: Any,
) -> OneRunAudit:
    """Train once with `make_private` on data with canaries, and guess which of them were in.

    The batches, the sums and the noise are those of training. The auditor sees the noisy gradients of all steps, as
    the guarantee allows, and projects each on the gradient of every canary. The auditor distinguishes canaries better
    if their gradients have less in common: random inputs work well, in a model with more parameters than there are
    canaries.

    Args:
        mechanism: the claimed mechanism, with whole epochs only.
        delta: δ at which its ε is tested.
        model: the model to train, starting from the parameters that it has.
        data: the examples to train on besides the canaries.
        canaries: the canaries, in the same form as the data.
        loss: a function of the model and a batch that returns the mean loss of the batch: the body of the loop.
        max_grad_norm: C. Choose it well below the norm of gradients; otherwise the audit cannot see whether the run
            clips.
        optimizer: makes an optimizer for the parameters. What it does with gradients is post-processing.
        confidence: the probability that the ε shown is a lower bound.
        seed: the same seed gives the same audit: coins, batches and noise.
        secret_noise_multiplier: the noise multiplier actually used, if it differs from the claim, as a negative
            control; 0 for no noise.
        secret_max_grad_norm: the norm to which gradients are actually clipped, with noise as if it were C, as a
            negative control; `inf` for no clipping.
        options: options of `make_private`.

    Returns:
        What the run shows, and what is claimed.

    Raises:
        InvalidInputError: an argument is out of its range.

    Example:
        >>> import torch
        >>> from torch.utils.data import TensorDataset
        >>> from ballsbins import BallsAndBins, Mechanism
        >>> _ = torch.manual_seed(0)
        >>> def made(count):
        ...     return TensorDataset(torch.randn(count, 30), torch.randint(0, 5, (count,)))
        >>> def loss(model, batch):
        ...     return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])
        >>> mechanism = Mechanism(BallsAndBins(steps=8), noise_multiplier=0.8)
        >>> found = audit_torch_training(
        ...     mechanism, 1e-5, torch.nn.Linear(30, 5), made(40), made(100), loss, max_grad_norm=0.1
        ... )
        >>> found.consistent, found.canaries
        (True, 100)
    """
    count = len(canaries)  # type: ignore[arg-type]
    check_settings(count, confidence, delta)
    if options.get("grad_sample_mode", "hooks") != "hooks":
        advice = "Ghost clipping gets its losses in another way; audit the same model with hooks."
        raise InvalidInputError("grad_sample_mode", options["grad_sample_mode"], "'hooks'", advice)
    others = len(data)  # type: ignore[arg-type]
    noise = mechanism.noise_multiplier if secret_noise_multiplier is None else secret_noise_multiplier
    clip = max_grad_norm if secret_max_grad_norm is None else secret_max_grad_norm
    if math.isinf(clip):
        clip = 1e4 * max_grad_norm
    really = Mechanism(mechanism.sampler, max(noise, _SMALLEST) * max_grad_norm / clip, mechanism.epochs)
    auditor = _Auditor(model, canaries, loss, max_grad_norm)
    private, stepped, loader = make_private(
        really, model, optimizer(model.parameters()), ConcatDataset([data, canaries]),
        max_grad_norm=clip, key=seed, **options,
    )  # fmt: skip
    present = toss(count, seed)
    loader.leave_out(others + np.flatnonzero(~present))
    scale = (others + count) / really.sampler.steps
    for _ in range(really.epochs):
        for batch in loader:
            auditor.look_before(private)
            stepped.zero_grad()
            _backward(loss(private, batch))
            stepped.step()
            auditor.look_after(private, scale)
    return judge(mechanism, delta, auditor.seen(really.epochs), present, confidence)


def audit_example(
    mechanism: Mechanism,
    delta: float,
    *,
    canaries: int,
    seed: int,
    secret_clip_norm: float | None = None,
    **rest: Any,
) -> OneRunAudit:
    """Audit `make_private` on a linear classifier and random data, as `ballsbins audit-training` does."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Linear(_INPUTS, 10)
        data, extra = (
            TensorDataset(torch.randn(count, _INPUTS), torch.randint(0, 10, (count,)))
            for count in (max(canaries, mechanism.sampler.steps), canaries)
        )

        def loss(model: nn.Module, batch: Any) -> torch.Tensor:
            return nn.functional.cross_entropy(model(batch[0]), batch[1])

        return audit_torch_training(
            mechanism, delta, model, data, extra, loss, max_grad_norm=EXAMPLE_CLIP_NORM, seed=seed,
            secret_max_grad_norm=secret_clip_norm, **rest,
        )  # fmt: skip


def _backward(loss: torch.Tensor) -> None:
    with warnings.catch_warnings():  # inputs are data and need no gradient, which torch warns about
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        loss.backward()  # type: ignore[no-untyped-call]


class _Auditor:
    """Computes the canaries' gradients at the parameters before a step, and projects the noisy gradient on them."""

    def __init__(self, model: nn.Module, canaries: Dataset[Any], loss: Loss, clip_norm: float) -> None:
        self._model = GradSampleModule(copy.deepcopy(model), loss_reduction="mean")
        self._trained = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
        self._loss, self._clip_norm = loss, clip_norm
        size = sum(parameter.numel() for parameter in self._trained)
        step = max(1, _AT_ONCE // size)
        every = range(len(canaries))  # type: ignore[arg-type]
        self._pieces = [
            default_collate([canaries[place] for place in every[begin : begin + step]])
            for begin in range(0, len(every), step)
        ]
        self._state: dict[str, Any] = {}
        self._found: list[tuple[Any, Any]] = []

    def look_before(self, private: Any) -> None:
        """Remember the parameters before the step."""
        self._state = {name: value.clone() for name, value in private._module.state_dict().items()}

    def look_after(self, private: Any, scale: float) -> None:
        """Project the noisy gradient on the canaries' gradients at the parameters before the step."""
        released = torch.cat(
            [parameter.grad.reshape(-1) for parameter in private.parameters() if parameter.requires_grad]
        )
        self._model._module.load_state_dict(self._state)
        parts = [self._along(piece, released * scale) for piece in self._pieces]
        along, norms = (np.concatenate(part) for part in zip(*parts, strict=True))
        # Subtract the mean: what all canaries have in common says nothing about one of them.
        self._found.append((along - along.mean(), norms))

    def _along(self, piece: Any, released: torch.Tensor) -> tuple[Any, Any]:
        self._model.zero_grad()
        _backward(self._loss(self._model, piece))
        gradients = torch.cat([parameter.grad_sample.flatten(1) for parameter in self._trained], dim=1)
        norms = gradients.norm(dim=1).clamp(min=1e-30)
        return ((gradients @ released) / norms).double().numpy(), norms.double().numpy()

    def seen(self, epochs: int) -> Seen:
        """Return the observations by canary, epoch and step."""
        along, norms = (np.stack(part, axis=1) for part in zip(*self._found, strict=True))
        along, norms = (part.reshape(len(along), epochs, -1) / self._clip_norm for part in (along, norms))
        return Seen(along, np.minimum(norms, 1.0), norms)
