"""ε from δ: on the safe side, to the accuracy of the curve, at every target, and always in finite time."""

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ballsbins.accounting import search
from ballsbins.accounting.curve import ADD, DIRECTIONS, REMOVE, Curve, Interval
from ballsbins.accounting.gaussian import GaussianCurve
from ballsbins.accounting.one_epoch.curve import ExactCurve
from ballsbins.accounting.search import least
from ballsbins.errors import UnreachableTargetError


def epsilon_at(curve, direction, log_delta):
    """The answer for one target."""
    return tuple(float(row[0]) for row in search.epsilon_at(curve, direction, np.array([log_delta])))


class Drawn(Curve):
    """A curve given by its logarithm and by how far its bounds are off."""

    scale = 1.0
    method, kind, confidence = "drawn", "bounds", 1.0

    def __init__(self, log, below=0.0, above=0.0):
        self.log, self.under, self.over, self.questions = log, below, above, 0

    def at(self, epsilon, direction):
        self.questions += len(epsilon)
        assert self.questions < 2000, "this search does not end"
        value = np.array([self.log(e) for e in epsilon])
        return Interval(value - self.under, value, np.minimum(value + self.over, 0.0))


def test_steps_cliffs_plateaus_and_wide_bounds_end_on_the_safe_side():
    target = math.log(1e-5)
    for log in (
        lambda e: -3.0 - e,  # a line
        lambda e: -1.0 if e < 2.0 else -math.inf,  # a cliff to δ = 0
        lambda e: -1.0 - min(e, 1.0) - (20.0 if e > 3.0 else 0.0),  # a plateau, then a step
        lambda e: -0.5 * (e / 1e-7) ** 2,  # a tiny scale
        lambda e: -1e-3 * e,  # beyond all ε that a double can exponentiate
    ):
        for below, above in ((0.0, 0.0), (1e-12, 1e-12), (0.7, 0.2), (30.0, 1.0)):
            curve = Drawn(log, below, above)
            lower, value, upper = epsilon_at(curve, REMOVE, target)
            assert 0.0 <= lower <= value <= upper
            if upper < math.inf:
                assert min(log(upper) + above, 0.0) <= target
            if lower > 0.0:
                assert log(lower) - below >= target
            if below == above == 0.0 and 0.0 < upper < math.inf:
                assert log(0.999 * upper) > target  # not needlessly large
                assert upper - lower <= 1e-9 * upper


def test_a_jump_is_not_searched_to_the_last_bit():
    """Where an exact answer ends, every further point is a hard one: ten more rounds took ten seconds."""
    curve = Drawn(lambda e: -1.0 - e if e < 2.0 else -40.0 - e)
    lower, value, upper = epsilon_at(curve, REMOVE, math.log(1e-5))
    assert lower < 2.0 <= value <= upper <= 2.0 + 2e-9
    assert curve.questions < 50


def test_zero_where_delta_at_zero_is_within_the_target():
    curve = ExactCurve(((1000, 3.0),))
    at_zero = curve.log_delta(np.array([0.0]), REMOVE)
    assert epsilon_at(curve, REMOVE, at_zero.upper[0] + 1e-9) == (0.0, 0.0, 0.0)
    lower, value, upper = epsilon_at(curve, REMOVE, at_zero.lower[0] - 1e-6)
    assert 0.0 < upper < 1e-4
    assert lower <= value <= upper
    # a bound that is within the target at 0 only below
    assert epsilon_at(Drawn(lambda e: -2.0 - e, below=5.0, above=3.0), REMOVE, -1.5)[0] == 0.0


def test_where_no_epsilon_is_enough_one_question_is():
    """Next to no noise over many epochs: losses are in the thousands, and every question takes seconds."""
    curve = Drawn(lambda e: -1e-9 * e, below=1e-9)
    curve.scale = 2e4
    assert epsilon_at(curve, REMOVE, math.log(1e-6)) == (700.0, math.inf, math.inf)
    assert curve.questions == 1


@pytest.mark.parametrize(
    ("sigma", "steps", "log_target"),
    [
        (0.35, 1000, math.log(1e-6)),
        (0.35, 10**9, math.log(1e-6)),
        (1.0, 100, math.log(1e-300)),
        (0.5, 2, math.log(0.9)),
        (0.06, 50, math.log(0.999)),
        (5.0, 10**12, math.log(1e-9)),
        (100.0, 3, math.log(1e-10)),
        (20.0, 10**5, math.log(1e-250)),
    ],
)
def test_round_trip(sigma, steps, log_target):
    """δ(ε(δ)) = δ within the errors, in both directions; the bounds hug each other."""
    for direction in DIRECTIONS:
        curve = ExactCurve(((steps, sigma),))
        lower, value, upper = epsilon_at(curve, direction, log_target)
        assert lower <= value <= upper
        fresh = ExactCurve(((steps, sigma),))
        if upper > 0.0:
            assert fresh.log_delta(np.array([upper]), direction).lower[0] <= log_target + 1e-12
            assert upper - lower <= 1e-8 * upper
        if lower > 0.0:
            assert fresh.log_delta(np.array([lower]), direction).upper[0] >= log_target - 1e-12
            back = fresh.log_delta(np.array([value]), direction).value[0]
            assert back == pytest.approx(log_target, abs=1e-7)
        # on the curve that was searched, the promise is strict
        assert curve.log_delta(np.array([upper]), direction).upper[0] <= log_target


def test_the_published_values():
    """σ=0.35, T=1000 and σ=0.3, T=36133 at δ = 10⁻⁶: ten digits that high precision gave."""
    for sigma, steps, truth in ((0.35, 1000, 10.168696127), (0.3, 36133, 10.286294502)):
        lower, _, upper = epsilon_at(ExactCurve(((steps, sigma),)), REMOVE, math.log(1e-6))
        assert truth - 5e-10 <= upper
        assert lower <= truth + 5e-10
        assert upper - lower < 1e-9


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    log_sigma=st.floats(math.log(0.05), math.log(100)),
    log_steps=st.floats(0.0, math.log(1e12)),
    log_target=st.floats(-690.0, -1e-3),
    direction=st.sampled_from(DIRECTIONS),
)
@example(log_sigma=math.log(0.05), log_steps=math.log(1e12), log_target=-1e-3, direction=ADD)
@example(log_sigma=math.log(100.0), log_steps=math.log(1e12), log_target=-690.0, direction=REMOVE)
@pytest.mark.slow
def test_anywhere_it_ends_and_is_safe(log_sigma, log_steps, log_target, direction):
    curve = ExactCurve(((int(math.exp(log_steps)), math.exp(log_sigma)),))
    lower, value, upper = epsilon_at(curve, direction, log_target)
    assert 0.0 <= lower <= value <= upper
    if upper < math.inf:
        assert curve.log_delta(np.array([upper]), direction).upper[0] <= log_target
    if lower > 0.0:
        assert curve.log_delta(np.array([lower]), direction).lower[0] >= log_target - 1e-9


class Counted(Curve):
    """A curve that counts how often it is asked, and for which direction."""

    method, kind, confidence = "counted", "bounds", 1.0

    def __init__(self, curve):
        self.curve, self.asked = curve, []

    scale = property(lambda self: self.curve.scale)

    def rough_epsilon(self, log_deltas, direction):
        return self.curve.rough_epsilon(log_deltas, direction)

    def log_upper(self, epsilon, direction, enough=None):
        return self.curve.log_upper(epsilon, direction, enough)

    def at(self, epsilon, direction):
        self.asked.append(direction)
        return self.curve.at(epsilon, direction)


@pytest.mark.parametrize(
    "make",
    [lambda: GaussianCurve(1.3), lambda: ExactCurve(((1000, 0.35),)), lambda: ExactCurve(((10**6, 2.0),))],
)
def test_many_targets_together_are_as_each_alone_in_a_few_calls(make):
    targets = np.log(np.geomspace(1e-12, 1e-3, 60))[np.random.default_rng(3).permutation(60)]
    for direction in DIRECTIONS:
        curve = Counted(make())
        found = search.epsilon_at(curve, direction, targets)
        assert len(curve.asked) <= 8
        assert found.shape == (3, 60)
        assert (found[0] <= found[1]).all()
        assert (found[1] <= found[2]).all()
        falling = found[:, np.argsort(targets)]
        assert (np.diff(falling, axis=1) <= 0.0).all()  # smaller ε for larger δ
        assert (curve.log_delta(found[2], direction).upper <= targets + 1e-9).all()
        for k in range(0, 60, 13):
            lower, _, upper = epsilon_at(make(), direction, targets[k])
            assert lower <= found[2, k] * (1 + 1e-13)
            assert found[0, k] <= upper * (1 + 1e-13)
            assert found[1, k] == pytest.approx(upper, rel=1e-8)
    assert search.epsilon_at(make(), REMOVE, np.empty(0)).shape == (3, 0)


def test_the_direction_that_cannot_decide_is_searched_when_asked_for():
    targets = np.log([1e-6, 1e-4])
    curve = Counted(ExactCurve(((1000, 0.35),)))
    both = search.BothDirections(curve, targets)
    assert set(curve.asked) == {REMOVE}
    assert np.array_equal(both.worst, both[REMOVE])
    assert (both[ADD][2] < both.worst[0]).all()
    assert ADD in curve.asked
    assert list(both) == list(DIRECTIONS)
    # where no cheap bound is known, one question proves it; and the larger of the two is the answer in any case
    plain = Drawn(lambda e: -2.0 - e)
    assert (search.BothDirections(plain, targets).worst[2] >= -targets - 2.0).all()


def test_gaussian_inverse_against_bisection():
    for sigma in (0.3, 1.0, 30.0):
        curve = GaussianCurve(sigma)
        for target in (math.log(0.5), math.log(1e-6), -600.0):
            lower, _, upper = epsilon_at(curve, REMOVE, target)
            left, right = 0.0, 1e5
            for _ in range(200):
                middle = 0.5 * (left + right)
                deep = curve.log_delta(np.array([middle]), REMOVE).value[0] <= target
                left, right = (left, middle) if deep else (middle, right)
            assert lower * (1 - 1e-9) <= right <= upper * (1 + 1e-9) + 1e-30


def test_least_meets_the_target_and_is_least():
    for root in (1e-3, 0.7, 1.0, 40.0, 3e5):
        for start in (1e-2, 1.0, 100.0):
            found = least(lambda x, r=root: r / x - 1.0, 1e-6, 1e9, start=start, relative=1e-7, what="x")
            assert root <= found <= root * (1 + 3e-7)
    assert least(lambda x: -1.0, 0.5, 8.0, start=1.0, relative=1e-6, what="x") == 0.5
    with pytest.raises(UnreachableTargetError, match="no sigma up to 8 meets"):
        least(lambda x: 3.0, 0.5, 8.0, start=1.0, relative=1e-6, what="sigma")
