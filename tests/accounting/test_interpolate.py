"""Interpolation must state an error that holds, find the hard places, and never answer where it has not looked."""

import itertools

import numpy as np
import pytest

from ballsbins.accounting.one_epoch.interpolate import Interpolant


class Counted:
    """A function that counts its samples, adds bounded noise to them and says how much."""

    def __init__(self, function, noise=0.0, seed=0):
        self.function, self.noise, self.samples = function, noise, 0
        self._rng = np.random.default_rng(seed)

    def __call__(self, x):
        self.samples += len(x)
        off = self.noise * self._rng.uniform(-1, 1, len(x))
        return self.function(x) + off, np.full(len(x), self.noise + 1e-15)


SMOOTH = {
    "power": lambda x: -(x**1.5) / 3,
    "kink of width 0.02": lambda x: -np.sqrt((x - 3.3) ** 2 + 4e-4),
    "pole near by": lambda x: 1 / (1 + 40 * (x - 5) ** 2),
    "oscillating": lambda x: np.sin(7 * x),
    "cliff": lambda x: np.log1p(-x / 10.001),
}


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize("noise", [0.0, 1e-12, 1e-9])
def test_the_stated_error_holds(name, noise):
    function = SMOOTH[name]
    sampled = Counted(function, noise)
    points = np.linspace(0.01, 10.0, 4001)
    value, error = Interpolant(sampled, 1e-11)(points)
    assert (np.abs(value - function(points)) <= error).all()
    assert error.max() <= 2.5e-11 + 5e-10 + 5 * noise
    if noise < 1e-9:
        assert sampled.samples < 2500  # it did interpolate


def test_any_order_duplicates_and_no_points():
    function = SMOOTH["power"]
    points = np.linspace(0.1, 4.0, 1000)
    straight, _ = Interpolant(Counted(function), 1e-11)(points)
    shuffled = np.random.default_rng(1).permutation(np.concatenate([points, points[:100]]))
    value, error = Interpolant(Counted(function), 1e-11)(shuffled)
    assert value == pytest.approx(function(shuffled), abs=1e-10)
    assert straight == pytest.approx(function(points), abs=1e-10)
    assert (np.abs(value - function(shuffled)) <= error).all()
    empty, _ = Interpolant(Counted(function), 1e-11)(np.empty(0))
    assert empty.shape == (0,)


def test_pieces_serve_later_questions_only_where_they_were_checked():
    sampled = Counted(SMOOTH["power"])
    interpolant = Interpolant(sampled, 1e-11)
    interpolant(np.linspace(1.0, 2.0, 500))
    before = sampled.samples
    inside, _ = interpolant(np.array([1.0, 1.234, 2.0]))
    assert sampled.samples == before
    assert inside == pytest.approx(SMOOTH["power"](np.array([1.0, 1.234, 2.0])), abs=1e-11)
    outside, _ = interpolant(np.array([0.5, 2.1]))
    assert sampled.samples == before + 2
    assert outside == pytest.approx(SMOOTH["power"](np.array([0.5, 2.1])), rel=1e-14)


def test_nodes_themselves_are_returned_exactly():
    interpolant = Interpolant(Counted(SMOOTH["power"]), 1e-11)
    ends = np.linspace(1.0, 3.0, 401)
    value, _ = interpolant(ends)
    assert value[[0, -1]] == pytest.approx(SMOOTH["power"](ends[[0, -1]]), rel=1e-15)


def test_pieces_meet():
    """Neighbouring pieces agree at their common end within their errors."""
    function = SMOOTH["kink of width 0.02"]
    interpolant = Interpolant(Counted(function), 1e-11)
    interpolant(np.linspace(0.0, 10.0, 2000))
    pieces = sorted(interpolant._pieces, key=lambda p: p.low)
    assert len(pieces) > 1
    for left, right in itertools.pairwise(pieces):
        if left.high != right.low:
            continue
        at = np.array([left.high])
        (a, first), (b, second) = left(at), right(at)
        assert abs(a[0] - b[0]) <= first[0] + second[0]


def test_a_place_that_cannot_be_sampled_is_left_to_the_function():
    """Where samples are not finite there is no piece, and the answer is what the function says."""

    def function(x):
        bad = (x > 2.0) & (x < 2.5)
        return np.where(bad, -np.inf, -x), np.where(bad, np.inf, 1e-14)

    points = np.linspace(0.0, 4.0, 3000)
    value, error = Interpolant(function, 1e-11)(points)
    bad = (points > 2.0) & (points < 2.5)
    assert np.isinf(error[bad]).all()
    assert value[~bad] == pytest.approx(-points[~bad], abs=1e-10)
    assert (error[~bad] < 1e-10).all()
