"""A pair in which the example takes part only sometimes: against high precision and the exact curve."""

import math

import mpmath as mp
import numpy as np
import pytest

from ballsbins.accounting.bounds_only import Diluted
from ballsbins.accounting.curve import ADD, DIRECTIONS, REMOVE
from ballsbins.accounting.gaussian import GaussianCurve
from ballsbins.accounting.one_epoch.curve import ExactCurve
from ballsbins.accounting.one_epoch.lower_bound import BallsAndBinsLowerBound


def log_diluted(sigma, part, whole, epsilon, direction):
    """A Gaussian pair diluted to part/whole, by the densities' own crossing in 400 digits."""
    with mp.workdps(400):
        s, w = 1 / mp.mpf(sigma), mp.mpf(part) / whole
        k = (mp.exp(epsilon if direction == REMOVE else -mp.mpf(epsilon)) - 1 + w) / w
        if k <= 0:
            return mp.mpf("-inf") if direction == ADD else mp.log(1 - mp.exp(epsilon))
        call = mp.ncdf(s / 2 - mp.log(k) / s) - k * mp.ncdf(-s / 2 - mp.log(k) / s)
        return mp.log(w * call if direction == REMOVE else mp.exp(epsilon) * w * (call + k - 1))


def test_a_diluted_gaussian_contains_high_precision():
    rng = np.random.default_rng(11)
    checked = 0
    for _ in range(80):
        sigma, whole = 10 ** rng.uniform(-1.5, 5), int(10 ** rng.uniform(0.31, 12))
        part = min(whole, 1 + int(whole ** rng.uniform(0, 1)))
        direction = str(rng.choice(DIRECTIONS))
        epsilon = float(rng.choice([-1, 1]) * 10 ** rng.uniform(-8, 2.5))
        if rng.random() < 0.5 and part < whole:  # within the bounded side of the loss
            epsilon = float(-math.log1p(-rng.uniform(0, 1) * part / whole)) * (1 if direction == ADD else -1)
        truth = log_diluted(sigma, part, whole, epsilon, direction)
        if truth > -800:
            found = Diluted(GaussianCurve(sigma), part, whole).log_delta(np.array([epsilon]), direction)
            lower, upper = mp.mpf(float(found.lower[0])), mp.mpf(float(found.upper[0]))
            assert lower <= truth <= upper, (sigma, part, whole, epsilon, direction)
            checked += 1
    assert checked > 40


def test_nothing_left_out_changes_nothing():
    epsilon = np.array([-700.0, -3.0, 0.0, 1e-9, 2.0, 40.0, 700.0])
    for direction in DIRECTIONS:
        plain = GaussianCurve(0.03).log_delta(epsilon, direction)
        found = Diluted(GaussianCurve(0.03), 7, 7).log_delta(epsilon, direction)
        assert found.value == pytest.approx(plain.value, rel=1e-12, abs=1e-12)
        assert (found.lower <= plain.upper).all()
        assert (plain.lower <= found.upper).all()


@pytest.mark.parametrize(
    ("done", "steps", "sigma"), [(1, 2, 0.3), (5, 1000, 0.05), (999, 1000, 1.0), (3, 7, 20.0)]
)
def test_an_unfinished_epoch_lies_between_the_diluted_bounds(done, steps, sigma):
    """S_C of the bins visited is below the truth, δ_D below which δ_B stays is above: diluted, too."""
    epsilon = np.concatenate([-np.geomspace(1e-3, 3, 5), [0.0], np.geomspace(1e-3, 30, 8)])
    for direction in DIRECTIONS:
        truth = ExactCurve(((done, sigma),), steps=steps).log_delta(epsilon, direction)
        below = Diluted(BallsAndBinsLowerBound(sigma, done), done, steps).log_delta(epsilon, direction)
        above = Diluted(GaussianCurve(sigma), done, steps).log_delta(epsilon, direction)
        assert (below.lower <= truth.upper).all()
        assert (above.upper >= truth.lower).all()
        # tighter than what holds for the whole epoch
        assert (above.upper <= GaussianCurve(sigma).log_delta(epsilon, direction).upper + 1e-12).all()


def test_a_lower_bound_of_the_whole_epoch_is_none_for_a_part_of_it():
    whole = BallsAndBinsLowerBound(0.05, 1000).log_delta(np.array([1.0]), REMOVE)
    assert whole.lower > ExactCurve(((5, 0.05),), steps=1000).log_delta(np.array([1.0]), REMOVE).upper
