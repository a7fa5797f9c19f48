"""A curve keeps contours, lattices and interpolants between questions: none may serve where it does not resolve.

Whatever was asked before, and in whatever company, an answer has to contain the truth and to overlap the answer of a
fresh curve. This is where an error would be silent, so the questions are random, wide and many.
"""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from ballsbins.accounting.curve import ADD, DIRECTIONS, REMOVE
from ballsbins.accounting.one_epoch.curve import ExactCurve

SWEEP = json.loads((Path(__file__).parent.parent / "data" / "sweep.json").read_text())["values"]


def curve_of(point):
    groups = point.get("groups") or [[point["steps"], point["noise_multiplier"]]]
    visited = tuple((count, sigma) for count, sigma in groups if sigma is not None)
    return ExactCurve(visited, steps=sum(count for count, _ in groups))


def scattered(rng, centre):
    """One ε, a few, or a dense vector, near `centre` or far from it."""
    kind = rng.random()
    count = 1 if kind < 0.5 else int(rng.integers(2, 40)) if kind < 0.85 else int(rng.integers(201, 400))
    return np.clip(centre * np.exp(rng.normal(0, rng.choice([0.02, 0.3, 1.5]), count)), 1e-6, 50.0)


@pytest.mark.slow
def test_the_truth_is_inside_whatever_was_asked_before():
    """250 points of the sweep, each asked alone, among others or densely, after up to three other questions."""
    rng = np.random.default_rng(12)
    for index in rng.permutation(len(SWEEP))[:250]:
        point = SWEEP[index]
        curve, epsilon, direction = curve_of(point), point["epsilon"], point["direction"]
        for _ in range(int(rng.integers(0, 4))):
            curve.log_delta(
                scattered(rng, epsilon), direction if rng.random() < 0.7 else rng.choice(DIRECTIONS)
            )
        asked = np.array([epsilon]) if rng.random() < 0.4 else np.append(scattered(rng, epsilon), epsilon)
        found = curve.log_delta(asked, direction)
        assert found.lower[-1] <= float(point["log_delta"]) <= found.upper[-1], point


def random_curve(rng):
    sigma = float(np.exp(rng.uniform(np.log(0.05), np.log(100.0))))
    steps = int(np.exp(rng.uniform(np.log(2), np.log(1e12 if rng.random() < 0.5 else 50.0))))
    if rng.random() < 0.15:
        return ((steps, sigma),), steps + int(rng.integers(1, 1 + steps))
    return ((steps, sigma),), None


@pytest.mark.slow
def test_answers_in_any_order_overlap_those_of_fresh_curves():
    """12 random mechanisms, 3 to 5 random questions each over 15 deviations or the whole range, signs mixed."""
    rng = np.random.default_rng(2)
    compared = 0
    for _ in range(12):
        kinds, steps = random_curve(rng)
        curve = ExactCurve(kinds, steps)
        for _ in range(int(rng.integers(3, 6))):
            count = int(rng.choice([1, 7, 30, 300]))
            wide = np.exp(rng.uniform(np.log(1e-6), np.log(50.0), count))
            near = np.clip(min(curve.deviation, 5.0) * rng.uniform(0, 15, count), 1e-6, 50.0)
            epsilon = np.where(rng.random() < 0.4, wide, near) * rng.choice([1.0, 1.0, -1.0], count)
            direction = rng.choice(DIRECTIONS)
            found = curve.log_delta(epsilon, direction)
            assert not np.isnan([found.lower, found.value, found.upper]).any()
            for k in rng.choice(count, min(count, 5), replace=False):
                fresh = ExactCurve(kinds, steps).log_delta(epsilon[k : k + 1], direction)
                assert fresh.lower[0] <= found.upper[k], (kinds, steps, epsilon[k], direction)
                assert found.lower[k] <= fresh.upper[0], (kinds, steps, epsilon[k], direction)
                compared += 1
    assert compared > 120


@pytest.mark.parametrize(
    ("steps", "sigma", "top"),
    [(1000, 0.35, 10.0), (10**6, 1.0, 0.02), (3, 2.0, 4.0), (50, 8.0, 1.0), (10**9, 0.5, 2.0)],
)
def test_a_dense_curve_agrees_with_single_points(steps, sigma, top):
    """1200 points at once against each alone: within the stated errors, which are small; no jump between pieces."""
    epsilon = np.linspace(top / 1000, top, 1200)
    for direction in DIRECTIONS:
        curve = ExactCurve(((steps, sigma),))
        dense = curve.log_delta(epsilon, direction)
        shallow = dense.value > np.log(1e-300)
        assert (dense.upper - dense.lower)[shallow].max() <= 1e-9
        for k in range(5, 1200, 97):
            alone = ExactCurve(((steps, sigma),)).log_delta(epsilon[k : k + 1], direction)
            assert alone.lower[0] <= dense.upper[k]
            assert dense.lower[k] <= alone.upper[0]
        assert (np.diff(dense.value[shallow]) < 0).all()
        pieces = sorted(curve._interpolants[direction]._pieces, key=lambda piece: piece.low)
        assert pieces or shallow.sum() <= 200  # more than these are interpolated
        for left, right in itertools.pairwise(pieces):
            (before, error), (after, other) = left(np.array([left.high])), right(np.array([right.low]))
            assert left.high != right.low or abs(before[0] - after[0]) <= error[0] + other[0]


def test_vectors_in_any_shape_of_order():
    curve = ExactCurve(((200, 0.7),))
    epsilon = np.array([1.3, 0.02, 0.02, 5.0, -0.4, 0.0, 1.3, -0.4])
    for direction in DIRECTIONS:
        together = curve.log_delta(epsilon, direction)
        for k, e in enumerate(epsilon):
            alone = ExactCurve(((200, 0.7),)).log_delta(np.array([e]), direction)
            assert together.lower[k] <= alone.upper[0]
            assert alone.lower[0] <= together.upper[k]
            assert together.value[k] == pytest.approx(alone.value[0], abs=1e-9)
        assert together.value[1] == together.value[2]
        assert together.value[0] == together.value[6]
        empty = curve.log_delta(np.empty(0), direction)
        assert empty.lower.shape == empty.value.shape == empty.upper.shape == (0,)


def test_deep_points_of_a_dense_vector_are_bounded_above_and_quick():
    """A vector far beyond where δ vanishes: nothing below the truth is claimed as its upper bound."""
    for kinds, direction in (
        (((26682745354, 0.8636478956396232),), ADD),
        (((97060775195, 25.275321949508985),), REMOVE),
        (((11, 77.05),), ADD),
    ):
        curve = ExactCurve(kinds)
        epsilon = np.geomspace(1e-6, 50.0, 500)
        found = curve.log_delta(epsilon, direction)
        assert (found.upper > -np.inf).all()
        assert (np.diff(found.upper) <= 1e-9).all()
        deep = np.isneginf(found.lower)
        assert deep.any()
        assert (found.upper[deep] <= -700.0).all()
        first = epsilon[deep][0]
        alone = ExactCurve(kinds).log_delta(np.array([first]), direction)
        assert alone.lower[0] <= found.upper[deep][0]


def test_leaving_the_cut_stays_where_the_cut_is_known():
    """σ = 5.44, T = 2, ε = 1.63: lifts from beyond the meeting of the saddles were off by 5·10⁻⁷ unnoticed."""
    truth = -78.4037343495444
    for company in (np.empty(0), np.array([1.1]), np.linspace(1.4, 1.9, 30)):
        asked = np.append(company, 1.6322620868565536)
        found = ExactCurve(((2, 5.443870367755801),)).log_delta(asked, REMOVE)
        assert found.lower[-1] <= truth <= found.upper[-1]
        assert found.upper[-1] - found.lower[-1] <= 1e-9
