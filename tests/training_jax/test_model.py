"""The network's size and shape, its loss, and AUC."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from ballsbins.data.criteo import DISPLAY_ADS, SPONSORED_SEARCH
from ballsbins.data.dataset import area_under_curve
from ballsbins.errors import InvalidInputError
from ballsbins.samplers import Key
from ballsbins.training.jax.model import Model, losses
from ballsbins.training.jax.private_step import scores


@pytest.mark.parametrize(("form", "millions"), [(DISPLAY_ADS, 85), (SPONSORED_SEARCH, 57)])
def test_about_as_many_parameters_as_the_paper(form, millions):
    model = Model(len(form.integers), tuple(form.buckets.values()))
    assert model.num_parameters == pytest.approx(millions * 1e6, rel=0.03)
    assert model.widths[1:] == (598, 598, 598, 1)


def test_the_count_is_that_of_the_arrays(model, parameters):
    sizes = [parameters.table.size] + [part.size for layer in parameters.layers for part in layer]
    assert model.num_parameters == sum(sizes)


def test_initial_parameters_follow_from_the_key(model):
    wide = Model(10, (500,), 40, (200,))
    first, again, other = (wide.initial(Key.from_seed(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.table, again.table)
    assert not np.array_equal(first.table, other.table)
    assert float(np.std(first.table)) == pytest.approx(40**-0.5, rel=0.03)
    assert float(np.std(first.layers[0].weight)) == pytest.approx((2 / 50) ** 0.5, rel=0.03)
    assert not np.array_equal(np.ravel(first.layers[0].weight)[:100], np.ravel(first.table)[:100])


def test_loss_is_weighted_cross_entropy(batch):
    logits = np.linspace(-60, 60, 40).astype(np.float32)
    signed = np.where(batch.labels == 1, 1.0, -1.0) * logits
    reference = batch.weights * np.logaddexp(0.0, -signed)  # −log of the probability of the label
    np.testing.assert_allclose(losses(logits, batch), reference, rtol=1e-5)


@pytest.mark.parametrize("levels", [3, 10**6])
def test_auc_against_scikit_learn(levels):
    rng = np.random.default_rng(levels)
    labels = (rng.random(500) < 0.2).astype(np.float32)
    values = np.round(rng.random(500) * levels) + labels
    assert area_under_curve(labels, values) == pytest.approx(roc_auc_score(labels, values), rel=1e-12)


def test_auc_of_one_class_is_refused():
    with pytest.raises(InvalidInputError, match="both classes"):
        area_under_curve(np.ones(4), np.arange(4.0))


def test_scores_do_not_depend_on_how_they_are_cut(model, parameters, data, monkeypatch):
    whole = scores(model, parameters, data.test.integers, data.test.categories)
    monkeypatch.setattr("ballsbins.training.jax.private_step._SCORED_AT_ONCE", 33)
    np.testing.assert_allclose(
        whole, scores(model, parameters, data.test.integers, data.test.categories), rtol=1e-5, atol=1e-6
    )


def test_a_network_without_categories_or_without_integers():
    for model in (Model(3, (), 4, (5,)), Model(0, (6,), 4, (5,))):
        parameters = model.initial(Key.from_seed(0))
        integers = np.zeros((2, model.num_integers), np.float32)
        categories = np.zeros((2, len(model.buckets)), np.int32)
        assert scores(model, parameters, integers, categories).shape == (2,)


def test_bad_widths():
    with pytest.raises(InvalidInputError, match="width"):
        Model(1, (5,), 0)
    with pytest.raises(InvalidInputError, match="2³¹"):
        Model(1, (2**30, 2**30))
