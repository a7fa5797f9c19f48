"""Ghost clipping: norms of per-example gradients in float64, never below the true ones.

Opacus' own norms are float32. Squares underflow there, so that a norm of 0 is found for a gradient that is not 0;
and the norm of a layer that is used at several positions of an example (a sequence) is a sum of signed terms, which
can cancel to nothing: with activations of 10⁵ Opacus finds 0 where the norm is 3. Norms that are too small are worse
than none.

Here a layer has inputs a_t and signals g_t at the positions t, and its gradient is Σ_t g_t a_tᵀ. With
mass = Σ_t ‖a_t‖‖g_t‖ and γ for what the roundings of the sum change at most, the true norm is at most the computed
norm plus γ·mass; or, where its square is computed as Σ_{s,t} (a_s·a_t)(g_s·g_t), at most the root of that plus
γ·mass².
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from opacus.grad_sample.functorch import ft_compute_per_sample_gradient
from torch import nn

from ballsbins.errors import RunError
from ballsbins.training.grid import UNIT_ROUNDOFF, gamma
from ballsbins.training.opacus.clipping import COARSE

Norms = dict[torch.Tensor, torch.Tensor]
_AT_ONCE = 1 << 20  # values of per-example gradients in memory at a time


def use_precise_norms(model: Any) -> None:
    """Let a model that Opacus wrapped for ghost clipping take its norms from here; no other model is changed."""
    model.NORM_SAMPLERS = {nn.Linear: linear_norms, nn.Embedding: embedding_norms}
    # Other layers have norms of their per-example gradients, which Opacus takes in the type that it gets.
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
    found: Norms = {}
    if layer.weight.requires_grad:
        found[layer.weight] = _product_norms(a, g)
    if layer.bias is not None and layer.bias.requires_grad:
        wide = g.double()
        lengths = wide.square().sum(dim=2).sqrt()
        slack = gamma(g.shape[1] + g.shape[2] + 4, UNIT_ROUNDOFF)
        found[layer.bias] = wide.sum(dim=1).square().sum(dim=1).sqrt() + slack * lengths.sum(dim=1)
    return found


def _product_norms(a: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    """Norms of Σ_t g_t a_tᵀ for every row."""
    positions, inputs, outputs = a.shape[1], a.shape[2], g.shape[2]
    if positions == 1:
        return _lengths(a)[:, 0] * _lengths(g)[:, 0]
    # Either all products of pairs of positions, or the gradient itself: whichever takes fewer multiplications.
    pairs = positions * (inputs + outputs) < inputs * outputs
    terms = positions**2 if pairs else inputs * outputs
    slack = gamma(2 * (positions + terms + inputs + outputs + 8), UNIT_ROUNDOFF)
    step = max(1, _AT_ONCE // terms)
    parts = []
    for begin in range(0, len(a), step):
        wide_a, wide_g = a[begin : begin + step].double(), g[begin : begin + step].double()
        mass = (_lengths(wide_a) * _lengths(wide_g)).sum(dim=1)
        if pairs:
            gram = torch.bmm(wide_a, wide_a.transpose(1, 2)) * torch.bmm(wide_g, wide_g.transpose(1, 2))
            squares = gram.sum(dim=(1, 2)).clamp(min=0.0)
            parts.append((squares + slack * mass.square()).sqrt())
        else:
            gradient = torch.bmm(wide_g.transpose(1, 2), wide_a)
            parts.append(gradient.square().sum(dim=(1, 2)).sqrt() + slack * mass)
    return torch.cat(parts) if parts else a.new_zeros(0, dtype=torch.float64)


def _lengths(vectors: torch.Tensor) -> torch.Tensor:
    return vectors.double().square().sum(dim=-1).sqrt()


def embedding_norms(layer: nn.Embedding, activations: list[torch.Tensor], backprops: torch.Tensor) -> Norms:
    """Norms for nn.Embedding: what an example adds to one row of the table is added up first."""
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
    squares.index_add_(0, places // layer.num_embeddings, summed.square().sum(dim=1))
    slack = gamma(2 * ids.shape[1] + g.shape[2] + 8, UNIT_ROUNDOFF)
    return {layer.weight: squares.sqrt() + slack * _lengths(g).sum(dim=1)}


def _in_float64(sampler: Callable[..., dict[Any, torch.Tensor]]) -> Callable[..., dict[Any, torch.Tensor]]:
    def widened(layer: nn.Module, activations: Any, backprops: torch.Tensor) -> dict[Any, torch.Tensor]:
        require_precise_signals(backprops)
        return {
            parameter: each.double() for parameter, each in sampler(layer, activations, backprops).items()
        }

    return widened


def require_precise_signals(backprops: torch.Tensor) -> None:
    """Refuse signals of 16 bits: norms that follow from them are wrong by up to a hundredth."""
    if backprops.dtype in COARSE:
        raise RunError(
            f"The norms to clip by would be of the type {backprops.dtype}, which is wrong by up to a hundredth. "
            "Ghost clipping needs float32: leave autocast out, or use grad_sample_mode='hooks', which clips in "
            "float64."
        )
