"""Answers between other neighbours than zero-out: what is the same, what is a bound, what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ballsbins import BallsAndBins, Deterministic, InvalidInputError, Mechanism, Poisson, Shuffle


def gaussian_delta(epsilon, sensitivity):
    """δ of the Gaussian mechanism in closed form, with the noise as the unit."""

    def cdf(x):
        return 0.5 * math.erfc(-x / math.sqrt(2.0))

    return cdf(sensitivity / 2 - epsilon / sensitivity) - math.exp(epsilon) * cdf(
        -sensitivity / 2 - epsilon / sensitivity
    )


def test_replacing_in_known_batches_is_a_gaussian_of_twice_the_sensitivity():
    bound = Mechanism(Deterministic(10), 1.3, epochs=4).delta(2.0, adjacency="replace-one")
    truth = gaussian_delta(2.0, 2.0 * math.sqrt(4) / 1.3)
    assert bound.kind == "closed form"
    assert bound.lower <= truth * (1 + 1e-12)
    assert truth * (1 - 1e-12) <= bound.upper <= truth * (1 + 1e-9)


def replaced_by_quadrature(sigma, steps, epsilon):
    """δ of replacing +1 by −1 in one of two random bins, one epoch: the mixture's hockey stick on a grid."""
    assert steps == 2
    x = np.linspace(-1 - 12 * sigma, 1 + 12 * sigma, 2401)
    first, second = np.meshgrid(x, x, indexing="ij")

    def density(at):
        both = [
            np.exp(-((first - a) ** 2 + (second - b) ** 2) / (2 * sigma**2)) for a, b in ((at, 0), (0, at))
        ]
        return 0.5 * (both[0] + both[1]) / (2 * math.pi * sigma**2)

    gap = np.maximum(density(1.0) - math.exp(epsilon) * density(-1.0), 0.0)
    return float(gap.sum() * (x[1] - x[0]) ** 2)


@pytest.mark.parametrize(("sigma", "epsilon"), [(0.8, 0.5), (1.5, 1.0)])
def test_bounds_on_replacing_hold_for_opposite_gradients(sigma, epsilon):
    bound = Mechanism(BallsAndBins(2), sigma).delta(epsilon, adjacency="replace-one")
    truth = replaced_by_quadrature(sigma, 2, epsilon)
    assert truth <= bound.upper * (1 + 1e-4)
    assert bound.lower == Mechanism(BallsAndBins(2), sigma).delta(epsilon).lower
    assert bound.kind == "bounds"


@pytest.mark.parametrize("sampler", [BallsAndBins(50), Poisson(50), Shuffle(50), Deterministic(50)])
def test_epsilon_and_delta_of_replacing_agree(sampler):
    run = Mechanism(sampler, 1.2, epochs=2)
    epsilon = run.epsilon(1e-5, adjacency="replace-one").upper
    assert run.epsilon(1e-5).upper <= epsilon
    # δ is searched over more ways to share ε than ε over ways to share δ
    assert run.delta(epsilon, adjacency="replace-one").upper <= 1e-5 * (1 + 1e-9)


def test_arrays_keep_their_shape():
    run = Mechanism(BallsAndBins(50), 1.2)
    many = run.delta(np.array([[0.5, 1.0], [2.0, 3.0]]), adjacency="replace-one")
    assert many.upper.shape == (2, 2)
    assert many.upper[1, 0] == run.delta(2.0, adjacency="replace-one").upper


def test_adding_is_zeroing_out_where_no_other_batch_changes():
    run = Mechanism(Poisson(50), 1.2)
    bound = run.epsilon(1e-5, adjacency="add-or-remove")
    assert (bound.upper, bound.adjacency) == (run.epsilon(1e-5).upper, "add-or-remove")
    assert bound.to_dict()["adjacency"] == "add-or-remove"
    with pytest.raises(InvalidInputError, match="replace-one for shuffle"):
        Mechanism(Shuffle(50), 1.2).epsilon(1e-5, adjacency="add-or-remove")


def test_bad_adjacency():
    run = Mechanism(BallsAndBins(50), 1.2)
    with pytest.raises(InvalidInputError, match="one of zero-out, add-or-remove, replace-one"):
        run.delta(1.0, adjacency="swap")
    with pytest.raises(InvalidInputError, match="left out"):
        run.delta(1.0, method="renyi", adjacency="replace-one")


def test_truncated_batches_have_no_short_cut():
    run = Mechanism(BallsAndBins(10, max_batch_size=60, num_examples=200), 2.0)
    bound = run.epsilon(1e-5, adjacency="replace-one")
    assert run.epsilon(1e-5).upper < bound.upper < math.inf
