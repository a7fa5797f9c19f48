"""Composition against the Gaussian, whose composition is known, and against itself."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ballsbins.accounting.curve import ADD, DIRECTIONS, REMOVE, Curve, Interval
from ballsbins.accounting.epochs.composition import Accuracy, ComposedCurve
from ballsbins.accounting.epochs.fft import compose
from ballsbins.accounting.epochs.gathered import pair_below
from ballsbins.accounting.epochs.loss_distribution import privacy_loss_distribution
from ballsbins.accounting.epochs.polygons import bracket, choose_points, curve_at_nodes, hull, suffix_sums
from ballsbins.accounting.epochs.survey import Atoms, Cumulants, Survey
from ballsbins.accounting.gaussian import GaussianCurve
from ballsbins.accounting.poisson import PoissonCurve, PoissonStepCurve
from ballsbins.errors import AccuracyError


def epsilon_of(sigma, epochs, log_delta):
    """The ε of the Gaussian at a δ."""
    curve = GaussianCurve(sigma, epochs)
    low, high = 0.0, 1e5
    for _ in range(200):
        middle = 0.5 * (low + high)
        low, high = (
            (middle, high)
            if curve.log_delta(np.array([middle]), REMOVE).value[0] > log_delta
            else (low, middle)
        )
    return low


@pytest.mark.parametrize("epochs", [2, 25, 1000])
@pytest.mark.parametrize("sigma", [0.3, 1.0, 10.0])
def test_gaussian_from_half_down_to_1e_200(sigma, epochs):
    """The truth is inside, both bounds are within the accuracy wanted in ε, for δ = 10⁻¹ … 10⁻²⁰⁰."""
    exact = GaussianCurve(sigma, epochs)
    at = [epsilon_of(sigma, epochs, -k * np.log(10)) for k in (1, 5, 15, 30, 100, 200)]
    epsilon = np.unique(np.maximum(at, 0.0))
    curve = ComposedCurve([(GaussianCurve(sigma), epochs)])
    truth = exact.log_delta(epsilon, REMOVE)
    step = 1e-5
    slope = (truth.value - exact.log_delta(epsilon + step, REMOVE).value) / step
    for direction in DIRECTIONS:
        found = curve.log_delta(epsilon, direction)
        assert np.all(found.lower <= truth.upper)
        assert np.all(truth.lower <= found.upper)
        wanted = np.maximum(slope, 0.1) * Accuracy().at(epsilon) * 1.1
        assert np.all(found.upper - found.lower <= wanted)
        assert np.all(np.abs(found.value - truth.value) <= 0.5 * wanted)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    st.floats(np.log(0.1), np.log(50)),
    st.integers(2, 300),
    st.floats(1e-3, 12),
    st.sampled_from(DIRECTIONS),
    st.booleans(),
)
def test_gaussian_anywhere(log_sigma, epochs, deviations, direction, negative):
    sigma = float(np.exp(log_sigma))
    s = np.sqrt(epochs) / sigma
    epsilon = np.array([min(s * s / 2 + deviations * s, 2000.0)]) * (-1 if negative else 1)
    found = ComposedCurve([(GaussianCurve(sigma), epochs)]).log_delta(epsilon, direction)
    truth = GaussianCurve(sigma, epochs).log_delta(epsilon, direction)
    assert found.lower[0] <= truth.upper[0]
    assert truth.lower[0] <= found.upper[0]
    assert found.lower[0] <= found.value[0] <= found.upper[0]


def test_two_kinds_of_runs():
    """Two runs at σ = 2 and three at σ = 3 have s² = 2/4 + 3/9."""
    curve = ComposedCurve([(GaussianCurve(2.0), 2), (GaussianCurve(3.0), 3), (GaussianCurve(1.0), 0)])
    epsilon = np.array([0.0, 0.5, 2.0, 6.0])
    found, truth = (
        curve.log_delta(epsilon, REMOVE),
        GaussianCurve((2 / 4 + 3 / 9) ** -0.5).log_delta(epsilon, REMOVE),
    )
    assert np.all((found.lower <= truth.upper) & (truth.lower <= found.upper))
    assert np.all(found.upper - found.lower < 0.02)


@pytest.mark.parametrize("factor", [1, 3])
def test_convergence_is_of_second_order(factor):
    """Halving h divides both errors by about four, one run and several."""
    one, exact = GaussianCurve(2.0), GaussianCurve(2.0, factor)
    errors = []
    for h in (0.08, 0.04, 0.02):
        low, high = bracket(one, h, np.arange(-round(8 / h), round(8 / h) + 1))
        at = np.array([0.4, 1.2])  # lattice points of all three
        truth = exact.log_delta(at, REMOVE).value
        row = []
        for pair, upper in ((low, False), (high, True)):
            if factor == 1:
                nodes = curve_at_nodes(pair.log_p, pair.log_p_infinity, pair.epsilon)
                row.append(nodes[np.searchsorted(pair.epsilon, at - h / 2)] - truth)
            else:
                sheet = compose([(pair, factor)], 0.4, 1.2, accuracy=1e-6, upper=upper)
                row.append(sheet.log_delta(at)[0] - truth)
        errors.append(row)
    below, above = np.array(errors).transpose(1, 0, 2)
    assert np.all(below < 0)
    order = np.log2(below[:-1] / below[1:])
    assert np.all((order > 1.8) & (order < 2.3))
    if factor == 1:
        assert np.all(np.abs(above) < 1e-12)  # connect-the-dots is exact at its points
    else:
        order = np.log2(above[:-1] / above[1:])
        assert np.all(above > 0)
        assert np.all((order > 1.8) & (order < 2.2))


class Noisy(Curve):
    """A curve whose bounds are wrong: shaken independently at every point by more than it states."""

    method, kind, confidence = "noisy", "bounds", 1.0

    def __init__(self, curve, size, stated):
        self.curve, self.size, self.stated = curve, size, stated

    def at(self, epsilon, direction):
        return self.log_delta(epsilon, direction)

    def log_delta(self, epsilon, direction):
        found = self.curve.log_delta(epsilon, direction)
        shake = self.size * np.sin(1e7 * epsilon + 0.3)
        return Interval(
            found.lower + shake - self.stated, found.value + shake, found.upper + shake + self.stated
        )


def test_noise_within_the_stated_error_is_absorbed():
    """Second differences of noise of 10⁻⁶ on a grid of 10⁻³ are larger than the curve's own; the hull copes."""
    epsilon = np.array([0.5, 3.0, 8.0])
    truth = GaussianCurve(2.0, 4).log_delta(epsilon, REMOVE).value
    found = ComposedCurve([(Noisy(GaussianCurve(2.0), 1e-6, 1e-6), 4)]).log_delta(epsilon, REMOVE)
    assert np.all((found.lower <= truth) & (truth <= found.upper))
    assert np.all(found.upper - found.lower < 0.05)


def test_masses_of_a_noisy_curve_are_a_pair_above_it():
    """Clamping negative masses, as dp_accounting does, would not be."""
    h, index = 1e-3, np.arange(-6000, 6001)
    noisy = Noisy(GaussianCurve(2.0), 3e-5, 3e-5)
    pair = bracket(noisy, h, index)[1]
    assert np.exp(pair.log_p).sum() + np.exp(pair.log_p_infinity) == pytest.approx(1, abs=1e-12)
    right = h * index[6000:]
    upper, truth = noisy.log_delta(right, REMOVE).upper, GaussianCurve(2.0).log_delta(right, REMOVE).value
    dense = np.full(index.size, -np.inf)
    dense[pair.index + 6000] = pair.log_p
    got = curve_at_nodes(dense[6000:], pair.log_p_infinity, right)
    assert np.all(got >= truth)
    assert np.all(got <= upper + 1e-11)
    K = np.exp(right)
    jumps = np.diff(np.diff(np.exp(upper)) / np.diff(K)) * K[1:-1]
    assert (jumps < 0).mean() > 0.1  # the negative control: taken as they are, many masses are negative
    assert np.maximum(jumps, 0).sum() > 1.1  # and clamped they are no distribution


def test_noise_beyond_the_stated_error_is_noticed():
    with pytest.raises(AccuracyError, match="misses domination"):
        bracket(Noisy(GaussianCurve(2.0), 3e-5, 0.0), 1e-3, np.arange(-6000, 6001))


def test_a_curve_that_lies_about_its_mass_is_refused():
    class Lying(Noisy):
        def log_delta(self, epsilon, direction):
            found = self.curve.log_delta(epsilon, direction)
            shift = 0.3 if direction == ADD else 0.0  # breaks parity: both sides cannot belong to one pair
            return Interval(found.lower - shift, found.value - shift, found.upper - shift)

    with pytest.raises(AccuracyError, match="misses domination"):
        ComposedCurve([(Lying(GaussianCurve(2.0), 0, 0), 4)]).log_delta(np.array([1.0]), REMOVE)


def test_nan_is_refused():
    class Broken(Noisy):
        def log_delta(self, epsilon, direction):
            found = self.curve.log_delta(epsilon, direction)
            return Interval(found.lower, found.value, np.where(epsilon > 3, np.nan, found.upper))

    with pytest.raises(AccuracyError, match="NaN"):
        bracket(Broken(GaussianCurve(1.0), 0, 0), 0.1, np.arange(-50, 51))


def test_accuracy_that_doubles_cannot_give():
    curve = ComposedCurve([(GaussianCurve(1.0), 10)], Accuracy(1e-13, 1e-13))
    with pytest.raises(AccuracyError, match="accuracy"):
        curve.log_delta(np.array([5.0]), REMOVE)


def test_accuracy_that_is_nearly_too_fine_gives_the_bounds_that_can_be_had():
    found = ComposedCurve([(GaussianCurve(1.0), 10)], Accuracy(1e-9, 1e-9)).log_delta(np.array([5.0]), REMOVE)
    truth = GaussianCurve(1.0, 10).log_delta(np.array([5.0]), REMOVE).value
    assert found.lower[0] < truth[0] < found.upper[0]
    assert found.upper[0] - found.lower[0] < 1e-4


def test_finer_accuracy_narrows_the_bounds():
    epsilon = np.array([4.0])
    gaps = []
    for wanted in (1e-3, 1e-4, 1e-5):
        found = ComposedCurve([(GaussianCurve(2.0), 10)], Accuracy(wanted, wanted)).log_delta(epsilon, REMOVE)
        truth = GaussianCurve(2.0, 10).log_delta(epsilon, REMOVE).value
        assert found.lower[0] <= truth[0] <= found.upper[0]
        gaps.append(found.upper[0] - found.lower[0])
    assert gaps[0] > gaps[1] > gaps[2]
    assert gaps[2] < 5e-5


def test_curve_is_monotone_and_directions_agree_below_zero():
    curve = ComposedCurve([(PoissonStepCurve(0.8, 20), 20)])
    epsilon = np.linspace(-3, 6, 61)
    for direction, other in ((REMOVE, ADD), (ADD, REMOVE)):
        found = curve.log_delta(epsilon, direction)
        assert np.all(found.lower <= found.upper)
        assert np.all(np.diff(np.maximum(found.value, -700)) < 1e-6)
        mirrored = curve.log_delta(-epsilon, other)
        K = np.exp(epsilon)
        assert np.allclose(np.exp(found.value), 1 - K + K * np.exp(mirrored.value), atol=1e-4)


@pytest.mark.parametrize(
    ("make", "epsilon", "before"),
    [
        # the lattice refined for other ε was the first for this one; with T = 8880 it gave only δ ≤ 1
        (
            lambda: ComposedCurve([(PoissonStepCurve(0.16, 1000), 1000)], edge=-np.log1p(-1 / 1000)),
            0.0212,
            [np.array([0.01, 0.02, 0.05, 0.1, 1.0])],
        ),
        (
            lambda: ComposedCurve([(PoissonStepCurve(0.8, 20), 60)]),
            3.3,
            [3.2, np.linspace(0.0, 12.0, 40), 0.4],
        ),
        (
            lambda: ComposedCurve([(GaussianCurve(2.0), 2), (GaussianCurve(3.0), 3)]),
            6.1,
            [np.array([5.9, 6.1, 6.2]), 200.0, 1e-6],
        ),
    ],
)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_no_answer_depends_on_what_was_asked_before(make, epsilon, before, direction):
    """Bit by bit: lattices, sheets and surveys that are kept are those that the question alone would make."""
    question = np.array([epsilon, 1.1 * epsilon])
    fresh = make().log_delta(question, direction)
    curve = make()
    for asked in before:
        curve.log_delta(np.atleast_1d(asked), direction)
    assert np.array_equal(curve.log_delta(question, direction).rows, fresh.rows)
    assert np.all(fresh.upper < 0.0)


def test_a_sheet_that_is_cut_says_the_same():
    """Only what a sheet serves is kept; the last cells of it must not be lost."""
    pair = bracket(GaussianCurve(2.0), 0.02, np.arange(-400, 401))[1]
    sheet = compose([(pair, 3)], 0.4, 1.2, accuracy=1e-3, upper=True)
    at = np.append(np.linspace(sheet.start, sheet.stop, 50), sheet.stop)
    part = sheet.cut(0.5, 0.9)
    inside = (at >= 0.5) & (at <= 0.9)
    assert part.log_value.size < sheet.log_value.size
    assert np.array_equal(part.log_delta(at[inside])[0], sheet.log_delta(at[inside])[0])
    assert np.array_equal(part.log_delta(np.array([0.9]))[0], sheet.log_delta(np.array([0.9]))[0])


def test_shifted_lattice_is_below_and_close():
    """Far coarser than q = 1/36133, and below the fine answer by half a percent (a lattice through 0 gives none)."""
    step, h = PoissonStepCurve(0.3, 36133), 4e-3
    look = Survey.above(step)
    edge = -np.log1p(-1 / 36133)
    pair = pair_below(step, h, look.reach(REMOVE, -45.0), look.spacing(1.0), edge)
    assert -edge < pair.offset < 0
    rough = compose([(pair, 36133)], 4.0, 4.0, accuracy=4e-3, upper=False).log_delta(np.array([4.0]))[0][0]
    fine = PoissonCurve(0.3, 36133, 36133).log_delta(np.array([4.0]), REMOVE)
    assert fine.upper[0] - 0.01 < rough <= fine.upper[0]


def test_hull_keeps_convex_points_and_drops_others():
    epsilon = np.linspace(-2, 2, 41)
    log_v = GaussianCurve(1.0).log_delta(np.abs(epsilon), REMOVE).value + np.minimum(epsilon, 0)
    on, _ = hull(epsilon, None, log_v)
    assert on.all()
    log_v[30] += 0.1
    on, log_p = hull(epsilon, None, log_v)
    assert list(np.flatnonzero(~on)) == [30]
    assert log_p.size == 40


def test_suffix_sums_of_any_size():
    rng = np.random.default_rng(0)
    log_x = rng.uniform(-5, 5, 5000) - np.linspace(0, 2500, 5000)  # falls by e^−2500
    position = np.cumsum(rng.uniform(0, 0.1, 5000))
    got = suffix_sums(log_x, position)
    for j in (0, 17, 2048, 4990):
        assert got[j] == pytest.approx(np.logaddexp.reduce(log_x[j:] - position[j:] + position[j]), abs=1e-11)


def test_points_thin_out_but_keep_zero_and_the_ends():
    points = choose_points(0.01, (3.0, 10.0), lambda e: abs(e) / 20)
    assert 0 in points
    assert points[0] <= -300
    assert points[-1] >= 1000
    assert np.all(np.diff(points) > 0)
    assert points.size < 700


def test_tilt_puts_the_mean_where_it_is_wanted():
    atoms = Atoms(np.array([-1.0, 0.5, 2.0]), np.log([0.2, 0.7, 0.1]), 7)
    cumulants = Cumulants([atoms])
    theta = cumulants.solve(9.0, 1e6)
    assert cumulants.at(theta)[1] == pytest.approx(9.0, rel=1e-6)
    assert cumulants.solve(-5.0, 1e6) == 0.0
    assert cumulants.solve(100.0, 30.0) == 30.0


def test_export_composes_in_dp_accounting():
    """From above and below, both closer than dp_accounting's own on the same grid."""
    epsilon, exact = np.array([0.5, 2.0, 5.0]), GaussianCurve(2.0, 10)
    truth = np.exp(exact.log_delta(epsilon, REMOVE).value)
    for pessimistic in (True, False):
        pld = privacy_loss_distribution(GaussianCurve(2.0), 1e-2, pessimistic=pessimistic).self_compose(10)
        got = np.asarray(pld.get_delta_for_epsilon(epsilon))
        assert np.all(got >= truth) if pessimistic else np.all(got <= truth)
        assert np.allclose(got, truth, rtol=1e-3)
