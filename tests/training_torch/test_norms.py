"""Ghost clipping: norms are never below the true ones, where Opacus' own are 0."""

from __future__ import annotations

import pytest
import torch
from opacus.grad_sample import GradSampleModule
from opacus.grad_sample.embedding_norm_sample import compute_embedding_norm_sample
from opacus.grad_sample.linear import compute_linear_norm_sample
from torch import nn
from torch.utils.data import TensorDataset

from ballsbins import BallsAndBins, Mechanism
from ballsbins.training.torch import make_private
from ballsbins.training.torch.ghost_clipping import embedding_norms, linear_norms


def true_norms(a, g):
    """Of Σ_t g_t a_tᵀ, in float64 from float32 values: exact to 10⁻¹² of the mass."""
    return torch.einsum("nto,nti->noi", g.double(), a.double()).flatten(1).norm(dim=1)


def cancelling(width=40):
    """Two positions that nearly cancel: activations of 10⁵, and a gradient of norm about 3."""
    generator = torch.Generator().manual_seed(0)
    a = 1e5 * torch.rand(1, 1, width, generator=generator).repeat(1, 2, 1)
    a[:, 1] += 0.05
    g = torch.rand(1, 1, 90, generator=generator).repeat(1, 2, 1)
    g[:, 1] *= -1.0
    return a, g * (3.0 / float(true_norms(a, g)))


def test_norms_of_sequences_do_not_cancel():
    a, g = cancelling()
    layer = nn.Linear(a.shape[2], g.shape[2])
    true = float(true_norms(a, g))
    assert true == pytest.approx(3.0, rel=1e-5)
    assert float(compute_linear_norm_sample(layer, [a], g)[layer.weight]) < 0.1 * true  # Opacus'
    for pairs in (True, False):
        wide = a if pairs else a[:, :, :2].contiguous()  # few inputs: the gradient itself is computed
        true = float(true_norms(wide, g))
        layer = nn.Linear(wide.shape[2], g.shape[2])
        found = float(linear_norms(layer, [wide], g)[layer.weight])
        assert true <= found <= 1.1 * true


@pytest.mark.parametrize("shape", [(5, 8), (5, 1, 8), (5, 3, 8), (5, 3, 2, 8), (5, 30, 8)])
@pytest.mark.parametrize("outputs", [3, 200])
def test_norms_of_linear_layers(shape, outputs):
    generator = torch.Generator().manual_seed(1)
    layer = nn.Linear(8, outputs)
    a = torch.randn(shape, generator=generator)
    g = torch.randn(*shape[:-1], outputs, generator=generator)
    found = linear_norms(layer, [a], g)
    flat_a, flat_g = a.reshape(5, -1, 8), g.reshape(5, -1, outputs)
    for norms, true in (
        (found[layer.weight], true_norms(flat_a, flat_g)),
        (found[layer.bias], flat_g.double().sum(dim=1).norm(dim=1)),
    ):
        assert norms.dtype == torch.float64
        assert bool((norms >= true * (1 - 1e-14)).all())
        assert torch.allclose(norms, true, rtol=1e-6)


@pytest.mark.parametrize("frozen", ["weight", "bias"])
@pytest.mark.parametrize("positions", [1, 3, 30])
def test_a_linear_layer_of_which_a_part_is_frozen(frozen, positions):
    generator = torch.Generator().manual_seed(1)
    layer = nn.Linear(8, 40)
    a, g = (torch.randn(5, positions, width, generator=generator) for width in (8, 40))
    both = linear_norms(layer, [a], g)
    getattr(layer, frozen).requires_grad_(False)
    found = linear_norms(layer, [a], g)
    assert set(found) == set(both) - {getattr(layer, frozen)}
    for parameter, norms in found.items():
        assert torch.allclose(norms, both[parameter], rtol=1e-6)


def test_squares_that_underflow_are_seen():
    """Signals of 2·10⁻²³ with activations of 10¹⁸: the gradient has norm 0.02, and Opacus finds 0."""
    layer = nn.Linear(100, 10_000)
    a, g = torch.full((1, 100), 1e18), torch.full((1, 10_000), 2e-23)
    assert float(compute_linear_norm_sample(layer, [a], g)[layer.weight]) == 0.0
    assert float(linear_norms(layer, [a], g)[layer.weight]) == pytest.approx(0.02, rel=1e-5)


def test_norms_of_tables():
    generator = torch.Generator().manual_seed(2)
    layer = nn.Embedding(6, 4)
    ids = torch.randint(0, 6, (9, 5), generator=generator)
    g = torch.randn(9, 5, 4, generator=generator)
    dense = torch.zeros(9, 6, 4, dtype=torch.float64)
    for row in range(9):
        dense[row].index_add_(0, ids[row], g[row].double())
    found = embedding_norms(layer, [ids], g)[layer.weight]
    true = dense.flatten(1).norm(dim=1)
    assert bool((found >= true * (1 - 1e-14)).all())
    assert torch.allclose(found, true, rtol=1e-6)
    same = torch.full((1, 3), 2)  # a token three times, whose signals nearly cancel in float32
    signals = torch.tensor([[[1e8], [3.0], [-1e8]]])
    table = nn.Embedding(6, 1)
    assert float(compute_embedding_norm_sample(table, [same], signals)[table.weight]) != 3.0
    assert float(embedding_norms(table, [same], signals)[table.weight]) == pytest.approx(3.0, rel=1e-6)


class Sequence(nn.Module):
    """Layers of every kind, at several positions."""

    def __init__(self):
        super().__init__()
        self.table, self.norm = nn.Embedding(9, 6), nn.LayerNorm(6)
        self.mix, self.conv, self.last = nn.Linear(6, 6), nn.Conv1d(6, 4, 2), nn.Linear(4, 2)

    def forward(self, tokens):
        hidden = self.norm(torch.tanh(self.mix(self.table(tokens))))
        hidden = self.norm(hidden)  # a layer that is used twice
        return self.last(torch.relu(self.conv(hidden.transpose(1, 2))).mean(dim=2))


def test_all_norms_of_a_model_are_float64_and_those_of_its_gradients():
    torch.manual_seed(0)
    model = Sequence()
    tokens = torch.randint(0, 9, (40, 5))
    data = TensorDataset(tokens, torch.randint(0, 2, (40,)))
    net, _, criterion, loader = make_private(
        Mechanism(BallsAndBins(4), 1.0), model, torch.optim.SGD(model.parameters(), lr=0.1), data,
        max_grad_norm=1.0, key=1, grad_sample_mode="ghost", criterion=nn.CrossEntropyLoss(reduction="sum"),
        loss_reduction="sum",
    )  # fmt: skip
    inputs, targets = next(iter(loader))
    criterion(net(inputs), targets).backward()
    norms = net.per_sample_gradient_norms
    assert norms.dtype == torch.float64
    torch.manual_seed(0)
    plain = Sequence()
    sampled = GradSampleModule(plain, loss_reduction="sum")
    nn.functional.cross_entropy(sampled(inputs), targets, reduction="sum").backward()
    each = [parameter.grad_sample.flatten(1).double() for parameter in plain.parameters()]
    assert torch.allclose(norms, torch.cat(each, dim=1).norm(dim=1), rtol=1e-5)
    assert nn.Conv1d not in type(net).NORM_SAMPLERS  # nothing is changed for other models
