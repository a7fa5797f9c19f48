"""Ghost clipping: per-example gradient norms that are never below the true ones, and checks that they are used.

**Norms** are computed in float64. Opacus computes its norms in float32, where two things go wrong. Squares underflow,
so the norm of a nonzero gradient can come out as 0. And the norm of a layer that is used at several positions of an
example (a sequence) is a sum of signed terms, which can cancel: with activations of 10⁵ Opacus finds 0 although the
norm is 3. Norms that are too small are worse than none.

Here a layer has inputs a_t and signals g_t at the positions t, and its gradient is Σ_t g_t a_tᵀ. Let
mass = Σ_t ‖a_t‖‖g_t‖, and let γ bound the relative effect of rounding in the sum. Then the true norm is at most the
computed norm plus γ·mass. If the square is computed instead, as q = Σ_{s,t} (a_s·a_t)(g_s·g_t), the true norm is at
most √(q + γ·mass²).

**Checks** ensure that the norms that Opacus clips by are those of the examples' gradients. Ghost clipping never
forms the gradient of one example. It takes norms layer by layer in a first backward pass, scales each example's loss,
and lets a second pass sum everything that autograd finds. So any part that the norms miss is summed without clipping:
a weight that is used outside its layer (`h @ embedding.weight.T`), a second loss, or losses in a column, which are
multiplied with a row of factors. Each of these is refused here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from opacus.grad_sample.functorch import ft_compute_per_sample_gradient
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping, DPTensorFastGradientClipping
from torch import nn

from ballsbins.errors import RunError
from ballsbins.training.grid import UNIT_ROUNDOFF, gamma
from ballsbins.training.torch.clipped_sums import COARSE, row_squares

Norms = dict[torch.Tensor, torch.Tensor]
_AT_ONCE = 1 << 20  # values of per-example gradients held at a time, to limit memory


def use_precise_norms(model: Any) -> None:
    """Make a model that Opacus wrapped for ghost clipping use the norms of this module; change no other model."""
    for name, value in model._module.named_parameters():
        if value.dtype in COARSE:  # frozen ones: trained parameters were checked before
            raise RunError(
                f"The frozen parameter {name!r} is of the type {value.dtype}. The two backward passes of ghost "
                "clipping round signals that go through it differently, and norms are wrong by up to a hundredth. "
                "Load the model in float32, or use grad_sample_mode='hooks'."
            )
    for layer in model._module.modules():
        if next(layer.children(), None) is None:
            layer.register_forward_hook(_require_precise_output)
    model.NORM_SAMPLERS = {nn.Linear: linear_norms, nn.Embedding: embedding_norms}
    # For other layers, Opacus takes norms of per-example gradients, in the type in which it gets them.
    model.GRAD_SAMPLERS = {
        kind: _in_float64(model.GRAD_SAMPLERS.get(kind, ft_compute_per_sample_gradient))
        for kind in {type(layer) for layer in model._module.modules()}
    }


def linear_norms(layer: nn.Linear, activations: list[torch.Tensor], backprops: torch.Tensor) -> Norms:
    """Norms for nn.Linear, with any number of positions."""
    require_precise_signals(backprops)
    rows = len(backprops)
    g = backprops.reshape(rows, -1, backprops.shape[-1])
    a = activations[0].reshape(rows, -1, activations[0].shape[-1])
    weight = layer.weight if layer.weight.requires_grad else None
    bias = layer.bias if layer.bias is not None and layer.bias.requires_grad else None
    inputs = a if weight is not None else None
    parts = [_layer_norms(None if inputs is None else inputs[rows], g[rows]) for rows in _pieces(a, g)]
    of_weight, of_bias = (torch.cat(norms) for norms in zip(*parts, strict=True))
    found = {weight: of_weight, bias: of_bias}
    return {parameter: norms for parameter, norms in found.items() if parameter is not None}


def _pieces(a: torch.Tensor, g: torch.Tensor) -> list[slice]:
    """Split the rows into pieces, so that the float64 intermediates stay small."""
    positions, inputs, outputs = a.shape[1], a.shape[2], g.shape[2]
    values = max(positions * (inputs + outputs), min(positions**2, inputs * outputs), 1)
    step = max(1, _AT_ONCE // values)
    return [slice(begin, begin + step) for begin in range(0, max(len(a), 1), step)]


def _layer_norms(a: torch.Tensor | None, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Norms of Σ_t g_t a_tᵀ and of Σ_t g_t for every row; if a is None, only the latter."""
    g = g.double()
    positions, outputs = g.shape[1:]
    if positions == 1:
        lengths = _lengths(g)[:, 0]
        return (lengths if a is None else _lengths(a.double())[:, 0] * lengths), lengths
    inputs = 0 if a is None else a.shape[2]
    # Use either the products of all pairs of positions or the gradient itself: whichever needs fewer multiplications.
    pairs = a is not None and positions * (inputs + outputs) < inputs * outputs
    terms = positions**2 if pairs else inputs * outputs
    slack = gamma(2 * (positions + terms + inputs + outputs + 8), UNIT_ROUNDOFF)
    if a is not None and pairs:
        a = a.double()
        of_inputs, of_signals = torch.bmm(a, a.transpose(1, 2)), torch.bmm(g, g.transpose(1, 2))
        # The diagonals hold the squared lengths.
        squares = of_signals.diagonal(dim1=1, dim2=2)
        mass = (of_inputs.diagonal(dim1=1, dim2=2) * squares).sqrt().sum(dim=1)
        bias = of_signals.sum(dim=(1, 2)).clamp(min=0.0) + slack * squares.sqrt().sum(dim=1).square()
        weight = of_inputs.mul_(of_signals).sum(dim=(1, 2)).clamp(min=0.0) + slack * mass.square()
        return weight.sqrt_(), bias.sqrt_()
    lengths = _lengths(g)
    bias = _lengths(g.sum(dim=1)) + slack * lengths.sum(dim=1)
    if a is None:
        return bias, bias
    a = a.double()
    gradient = torch.bmm(g.transpose(1, 2), a)
    return _lengths(gradient.flatten(1)) + slack * (_lengths(a) * lengths).sum(dim=1), bias


def _lengths(vectors: torch.Tensor) -> torch.Tensor:
    lengths: torch.Tensor = torch.linalg.vector_norm(vectors, dim=-1)
    return lengths


def embedding_norms(layer: nn.Embedding, activations: list[torch.Tensor], backprops: torch.Tensor) -> Norms:
    """Norms for nn.Embedding: the contributions of an example to the same row of the table are added up first."""
    require_precise_signals(backprops)
    if not layer.weight.requires_grad:
        return {}
    rows = len(backprops)
    ids = activations[0].reshape(rows, -1)
    g = backprops.reshape(rows, ids.shape[1], -1).double()
    own = torch.arange(rows, device=ids.device)[:, None]
    places, inverse = torch.unique((own * layer.num_embeddings + ids).reshape(-1), return_inverse=True)
    summed = torch.zeros(len(places), g.shape[2], dtype=torch.float64, device=g.device)
    summed.index_add_(0, inverse, g.reshape(-1, g.shape[2]))
    squares = torch.zeros(rows, dtype=torch.float64, device=g.device)
    squares.index_add_(0, places // layer.num_embeddings, _lengths(summed).square())
    slack = gamma(2 * ids.shape[1] + g.shape[2] + 8, UNIT_ROUNDOFF)
    return {layer.weight: squares.sqrt() + slack * _lengths(g).sum(dim=1)}


def _in_float64(sampler: Callable[..., dict[Any, torch.Tensor]]) -> Callable[..., dict[Any, torch.Tensor]]:
    """Make Opacus compute the norms of a layer's per-example gradients in float64."""

    def widened(layer: nn.Module, activations: Any, backprops: torch.Tensor) -> dict[Any, torch.Tensor]:
        require_precise_signals(backprops)
        return {
            parameter: each.double() if _meets_again(parameter) else row_squares(each).sqrt()[:, None]
            for parameter, each in sampler(layer, activations, backprops).items()
        }

    return widened


def _meets_again(parameter: Any) -> bool:
    """Whether the batch uses a parameter more than once, so that Opacus adds up gradients before it takes norms.

    If not, a single column with the norm can replace the gradient: it has the same norm and needs far less memory.
    """
    return parameter._forward_counter != 1 or getattr(parameter, "_current_grad_sample", None) is not None


def require_precise_signals(backprops: torch.Tensor) -> None:
    """Refuse 16-bit signals: norms computed from them are wrong by up to a hundredth."""
    if backprops.dtype in COARSE:
        raise _coarse(backprops.dtype)


def _coarse(kind: torch.dtype) -> RunError:
    return RunError(
        f"The norms to clip by would be of the type {kind}, which is wrong by up to a hundredth. Ghost clipping "
        "needs float32: leave autocast out, or use grad_sample_mode='hooks', which clips in float64."
    )


def _require_precise_output(layer: nn.Module, inputs: Any, output: Any) -> None:
    """Refuse autocast in any layer: float32 signals may have passed through other layers that use 16 bits.

    The second pass of ghost clipping then rounds them differently from the first pass, which gave the norms.
    """
    if (
        isinstance(output, torch.Tensor)
        and output.dtype in COARSE
        and torch.is_grad_enabled()
        and layer.training
    ):
        raise _coarse(output.dtype)


_TOLERANCE = 1e-3  # relative error allowed for a norm that is computed in float32


class CheckedLoss(DPLossFastGradientClipping):  # type: ignore[misc]
    """Opacus' criterion, with losses that are checked in the backward pass."""

    def __call__(self, *args: Any, **kwargs: Any) -> CheckedLosses:
        """Compute the losses of the batch."""
        return _checked(super().__call__(*args, **kwargs))


class CheckedLosses(DPTensorFastGradientClipping):  # type: ignore[misc]
    """The losses of a batch, one for each example."""

    def backward(self) -> None:
        """Clip by norms that come from this pass and cover the whole gradient."""
        each, module = self.loss_per_sample, self.module
        if each.dim() != 1:
            shape = ", ".join(["batch", *map(str, each.shape[1:])]) if each.dim() else ""
            raise RunError(  # the size of the batch is secret
                f"The criterion gives losses of shape ({shape}), but must give one for each example: "
                "Opacus would multiply every loss with the clipping factors of all examples. For logits of one "
                "column use criterion(model(inputs).squeeze(1), targets); sum or average what belongs to one example."
            )
        for parameter in module.trainable_parameters:
            # A layer that this batch does not use would still have the norms of the last batch.
            parameter.__dict__.pop("_norm_sample", None)
        watched = self._norm_of_one() if self.optimizer.is_time_to_check() else None
        try:
            super().backward()
        except AttributeError as error:
            if "_norm_sample" not in str(error):
                raise
            raise RunError(
                "A layer with parameters to train was not called in this step, so its norms are unknown. Use every "
                "layer in every step, freeze it before make_private, or use grad_sample_mode='hooks'."
            ) from None
        # Check each parameter separately: stacking would convert a coarse norm to the type of a precise one.
        for parameter in module.trainable_parameters:
            if parameter._norm_sample.dtype != torch.float64:
                raise _coarse(parameter._norm_sample.dtype)
        if watched is not None:
            self._require_norms(*watched)
        self.optimizer.note_clipped()

    def _require_norms(self, place: int, norms: list[float]) -> None:
        """Refuse norms of one example that are below the true ones, for each parameter."""
        slack = 1e-6 + _TOLERANCE * 1e-3 * max(norms, default=0.0)
        for parameter, norm in zip(self.module.trainable_parameters, norms, strict=True):
            found = float(parameter._norm_sample[place])
            if norm > found * (1.0 + _TOLERANCE) + slack:
                raise RunError(
                    f"An example's gradient has norm {norm:.6g} in a parameter of shape {tuple(parameter.shape)}, "
                    f"but Opacus found {found:.6g} to clip by: the model uses a weight outside of its layer's own "
                    "call (such as h @ embedding.weight.T), or examples meet in the model or the loss. Use "
                    "grad_sample_mode='hooks' for the former."
                )

    def _norm_of_one(self) -> tuple[int, list[float]]:
        """Compute the gradient norm of the example with the largest loss, for each parameter, by plain autograd."""
        each, module = self.loss_per_sample, self.module
        place = int(each.detach().argmax())
        module.disable_hooks()
        parts = torch.autograd.grad(
            each[place], module.trainable_parameters, retain_graph=True, allow_unused=True
        )
        module.enable_hooks()
        return place, [0.0 if part is None else float(part.double().norm()) for part in parts]


def _checked(losses: Any) -> CheckedLosses:
    losses.__class__ = CheckedLosses
    return losses  # type: ignore[no-any-return]


def _keeps_checks(name: str) -> Callable[..., CheckedLosses]:
    def operation(self: CheckedLosses, *others: Any) -> CheckedLosses:
        return _checked(getattr(DPTensorFastGradientClipping, name)(self, *others))

    return operation


for _name in ("truediv", "mul", "rmul", "add", "radd", "sub", "rsub", "neg"):
    setattr(CheckedLosses, f"__{_name}__", _keeps_checks(f"__{_name}__"))
