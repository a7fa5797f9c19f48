"""What every privacy curve must satisfy, over the whole domain: σ in [0.05, 100], T in [1, 10¹²], |ε| in [10⁻⁶, 50].

Warnings are errors here, so nothing may overflow unnoticed either.
"""

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ballsbins.accounting.curve import ADD, DIRECTIONS, REMOVE
from ballsbins.accounting.gaussian import GaussianCurve
from ballsbins.accounting.one_epoch.curve import ExactCurve


def log_uniform(low, high):
    return st.floats(math.log(low), math.log(high)).map(math.exp)


SIGMA, STEPS = log_uniform(0.05, 100.0), log_uniform(1.0, 1e12).map(int)
EPSILON = st.lists(log_uniform(1e-6, 50.0), min_size=1, max_size=6)
CLOSE = st.lists(st.floats(0.0, 12.0), min_size=1, max_size=6)  # in standard deviations of the loss


def answer(curve, epsilon, direction):
    found = curve.log_delta(epsilon, direction)
    for part in (found.lower, found.value, found.upper):
        assert part.shape == epsilon.shape
        assert not np.isnan(part).any()
    assert (found.lower <= found.value).all()
    assert (found.value <= found.upper).all()
    assert (found.upper <= 0.0).all()  # δ ≤ 1
    return found


@pytest.mark.slow
@settings(max_examples=70, deadline=None, derandomize=True)
@given(sigma=SIGMA, steps=STEPS, far=EPSILON, close=CLOSE)
@example(sigma=0.05, steps=10**12, far=[1e-6, 50.0], close=[0.0])
@example(sigma=100.0, steps=2, far=[1e-6, 1.0, 50.0], close=[0.0, 1.0])
@example(sigma=100.0, steps=10**12, far=[1e-6, 50.0], close=[0.0, 1.0])
@example(sigma=0.05, steps=2, far=[1e-6, 50.0], close=[0.0])
@example(sigma=10.3, steps=3, far=[0.6, 0.8], close=[0.0])
def test_a_curve_is_a_curve(sigma, steps, far, close):
    """Decreasing and convex in e^ε up to the stated error, between (1 − e^ε)₊ and the Gaussian; signs agree."""
    curve = ExactCurve(((steps, sigma),))
    near = np.clip(np.array(close) * min(curve.deviation, 4.0), 0.0, 50.0)
    positive = np.unique(np.concatenate([np.array(far), near]))
    epsilon = np.concatenate([-positive[::-1], positive])
    k_minus_1 = np.expm1(epsilon)
    both = {direction: answer(curve, epsilon, direction) for direction in DIRECTIONS}
    for direction, found in both.items():
        assert (found.lower[1:] <= np.minimum.accumulate(found.upper)[:-1]).all()
        gaussian = GaussianCurve(sigma).log_delta(epsilon, direction)
        assert (found.lower <= gaussian.upper).all()
        with np.errstate(divide="ignore"):
            floor = np.log(np.maximum(-k_minus_1, 0.0))
        assert (found.upper >= floor - 1e-12).all()

        # convex: the middle of three is not above the chord of its neighbours' upper bounds
        middle = np.exp(found.lower[1:-1])
        left, right = np.exp(found.upper[:-2]), np.exp(found.upper[2:])
        span = k_minus_1[2:] - k_minus_1[:-2]
        some = span > 0
        share = (k_minus_1[2:] - k_minus_1[1:-1])[some] / span[some]
        chord = share * left[some] + (1 - share) * right[some]
        # where 1 − e^ε dominates, it has the rounding of doubles
        assert (middle[some] <= chord * (1 + 1e-12) + 1e-307).all()

    # 1 − e^−ε + e^−ε δ_other(ε) = δ(−ε)
    for direction, other in ((REMOVE, ADD), (ADD, REMOVE)):
        mirrored = np.logaddexp(
            np.log(-np.expm1(-positive[positive > 0])),
            both[other].value[epsilon > 0] - positive[positive > 0],
        )
        here = both[direction]
        stated = (here.upper - here.lower)[epsilon < 0][::-1]
        assert (np.abs(here.value[epsilon < 0][::-1] - mirrored) <= 1e-14 + stated).all()


@pytest.mark.slow
@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    sigma=SIGMA,
    steps=STEPS,
    more=st.floats(1.0001, 1.5),
    far=log_uniform(1e-6, 50.0),
    close=st.floats(0.0, 12.0),
)
def test_more_noise_is_more_private(sigma, steps, more, far, close):
    curve, noisier = ExactCurve(((steps, sigma),)), ExactCurve(((steps, sigma * more),))
    epsilon = np.array([min(far, close * curve.deviation), far])
    for direction in DIRECTIONS:
        assert (answer(noisier, epsilon, direction).lower <= answer(curve, epsilon, direction).upper).all()


@pytest.mark.slow
@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    sigma=SIGMA,
    steps=st.integers(2, 10**6),
    share=st.floats(0.0, 1.0),
    visits=st.integers(1, 9),
    far=log_uniform(1e-6, 50.0),
    close=st.floats(0.0, 12.0),
    unfinished=st.booleans(),
)
def test_stopping_inside_an_epoch(sigma, steps, share, visits, far, close, unfinished):
    """Unfinished epochs and two kinds of bins answer everywhere, and are no less private than all they could be."""
    done = min(max(int(share * steps), 1), steps - 1)
    if unfinished:
        curve, most = ExactCurve(((done, sigma),), steps=steps), sigma
    else:
        most = sigma / math.sqrt(visits + 1)
        curve = ExactCurve(((done, most), (steps - done, sigma / math.sqrt(visits))))
    whole = ExactCurve(((steps, most),))
    epsilon = np.array([min(far, close * curve.deviation), far, -far])
    for direction in DIRECTIONS:
        assert (answer(curve, epsilon, direction).lower <= answer(whole, epsilon, direction).upper).all()
