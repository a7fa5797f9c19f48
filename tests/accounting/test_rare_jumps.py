"""Poisson batches with little noise: few steps show an example, each of them clearly, and the rest show nothing.

No jump at all then has a probability that is not small, so moments hardly fall off along a line, and the body of the
law, which was once split off with negative densities, decided over the answer.
"""

import math

import numpy as np
import pytest

from ballsbins import BallsAndBins, Mechanism, Poisson
from ballsbins.accounting import poisson
from ballsbins.accounting.curve import ADD, REMOVE
from ballsbins.accounting.epochs import poisson_moments
from ballsbins.accounting.epochs.composition import ComposedCurve
from ballsbins.accounting.epochs.fourier import Grid
from ballsbins.accounting.epochs.lines import in_sight
from ballsbins.accounting.epochs.poisson_moments import StepMoments
from ballsbins.accounting.epochs.survey import Split
from ballsbins.accounting.poisson import PoissonCurve


def exact(mechanism):
    return mechanism.curve.curve


@pytest.mark.parametrize(
    ("mechanism", "epsilon"),
    [
        (Mechanism(Poisson(377_849), 0.1816, 9), [30.0, 44.1]),
        (Mechanism(Poisson(549), 0.1682), [33.88]),
    ],
    ids=repr,
)
def test_exact_answers_agree_with_the_other_method(mechanism, epsilon):
    """The second one was said to be δ = 1 to eight digits; it is 0.37."""
    curve, at = exact(mechanism), np.array(epsilon)
    lower, _, upper = curve.exactly(at, REMOVE)
    bracket = curve.bracket.log_delta(at, REMOVE)
    assert (upper - lower < 1e-9).all()
    assert (lower <= bracket.upper).all()
    assert (bracket.lower <= upper).all()


def test_delta_falls_and_is_convex():
    """In K = e^ε; at nine of these ε, δ was said to be 1."""
    epsilon = np.array([25, 30, 35, 40, 45, 50, 55, 58, 60, 62, 65, 70, 75, 80.0])
    lower, value, upper = exact(Mechanism(Poisson(4_174_477), 0.1502, 9)).exactly(epsilon, REMOVE)
    assert (upper - lower < 1e-9).all()
    assert (np.diff(value) < 0.0).all()
    slopes = np.diff(np.exp(value)) / np.diff(np.exp(epsilon))
    assert (np.diff(slopes) > 0.0).all()


def test_a_line_goes_on_behind_a_dip():
    """Jumps of 32 turn against each other at y = π/32, and the integrand comes back behind it.

    The truth is from a discrete Fourier transform of the loss in steps of 5·10⁻⁵.
    """
    found = exact(Mechanism(Poisson(24), 0.11987, 16)).exactly(np.array([0.828102385807068]), REMOVE)
    assert found[0, 0] <= -1.5287479e-7 <= found[2, 0]
    assert found[1, 0] == pytest.approx(-1.5287479e-7, rel=1e-5)


def test_a_guess_reaches_as_far_as_the_answer():
    """It ended at 3000 deviations, and a bracket of seconds had to show the way."""
    guess = exact(Mechanism(Poisson(4_174_477), 0.1502, 9)).rough_epsilon(np.log([1.29e-10]), REMOVE)
    assert guess[0] == pytest.approx(321.447, rel=0.05)


@pytest.mark.parametrize("epsilon", [1.0, 20.0])
def test_where_delta_is_nearly_one_it_is_said_at_once(epsilon):
    """Without a composition of seconds; with much noise, nothing of the kind is claimed."""
    curve = PoissonCurve(0.1257, 867, 14_439_018)
    found = curve.log_delta(np.array([epsilon, 700.0]), REMOVE)
    assert (found.lower >= -1e-12).all()
    assert (found.upper <= 0.0).all()
    assert PoissonCurve(1.0, 1000, 1000).log_delta(np.array([epsilon]), REMOVE).lower[0] < -1.0


def test_many_certain_jumps_leave_no_privacy_and_are_not_composed(monkeypatch):
    """605 jumps of about 23 each: δ(700) is nearly 1, and √X does not show it."""
    monkeypatch.setattr(ComposedCurve, "_lattice", lambda *_: pytest.fail("composed"))
    found = PoissonCurve(0.118, 408_222, 605 * 408_222).log_delta(np.array([700.0]), REMOVE)
    assert found.lower[0] >= -1e-12


def test_the_powers_against_simulation():
    """E S^{1−t} of one step: one sample in 10⁶ deviates by 6 of its standard errors with probability 2·10⁻⁹."""
    curve, s, q = PoissonCurve(0.5, 10, 2), 2.0, 0.1
    g = np.random.default_rng(1).standard_normal(10**6)
    ratio = 1.0 - q + q * np.exp(s * g - 0.5 * s * s)
    for tilt, log_power in zip(poisson._TILTS, curve._log_powers, strict=True):
        power = ratio ** (1.0 - tilt)
        error = 6.0 * power.std() / 1e3
        assert math.exp(0.5 * log_power) == pytest.approx(power.mean(), abs=error)
    assert abs(np.sqrt(ratio).mean() - math.sqrt(1.0 - q)) > error  # a wrong power would be seen


def test_body_and_jumps_of_a_split_law():
    """E[χ(S)·S^u] and E[(1−χ(S))·S^u] from v are those of the density, at complex u and at u = 0 and 1."""
    sigma, steps = 0.25, 100
    split, line = Split.among_losses(0.7, math.inf), Grid(60.0, 40)
    part = StepMoments(sigma, steps).line(1.8, line, 1000, split, jumps=True)
    g = np.linspace(-12.0, 16.0, 400_001)
    weight = np.exp(-0.5 * g * g) * (g[1] - g[0]) / math.sqrt(2.0 * math.pi)
    loss = np.log1p(np.expm1(g / sigma - 0.5 / sigma**2) / steps)
    body, jump = weight * np.exp(split.log_body(loss)), weight * np.exp(split.log_jump(loss))
    for row in (0, 7, 40):
        power = np.exp((1.8 + 1j * line.y[row]) * loss)
        assert 1.0 + part.body.value[row] == pytest.approx((body * power).sum(), rel=1e-9)
        assert part.jump.value[row] == pytest.approx((jump * power).sum(), rel=1e-9)
    assert part.mass == pytest.approx(-jump.sum(), rel=1e-9)
    assert part.mean == pytest.approx(-(jump * np.exp(loss)).sum(), rel=1e-9)
    # the size at real c is the largest: both are measures
    assert (np.abs(1.0 + part.body.value[1:]) < 1.0 + part.body.value[0].real).all()
    assert (np.abs(part.jump.value[1:]) < part.jump.value[0].real).all()


def test_a_split_of_v_has_no_such_bound():
    """The negative control: where losses are dense, the part of v below a split is no privacy curve."""
    line, moments = Grid(60.0, 400), StepMoments(0.25, 100)
    for split, largest_at_real in (
        (Split.at_valley(0.7, math.inf), False),
        (Split.among_losses(0.7, math.inf), True),
    ):
        size = np.abs(1.0 + moments.line(1.05, line, 1000, split, jumps=False).body.value)
        assert (size.argmax() == 0) == largest_at_real


def test_nodes_are_never_so_many_that_memory_runs_out():
    """With two steps, the losses below a narrow split would need 10⁸ of them: 13 GB."""
    moments = StepMoments(0.1, 2)
    for at in (1e-2, 1e-6):
        assert len(moments._points(moments.split_spacing(Split.at_valley(at, math.inf)))[0]) < 40_000


def test_no_lattice_is_refined_blindly_for_a_direction_that_does_not_decide(monkeypatch):
    """Near the largest loss of `add` no lattice gives a lower bound, and finer ones took half a minute."""
    made, build = [], ComposedCurve._lattice

    def watched(self, h, floor, finer):
        lattice = build(self, h, floor, finer)
        made.extend(pair.log_p.size for pair, _ in lattice.above)
        return lattice

    monkeypatch.setattr(ComposedCurve, "_lattice", watched)
    bracket, end = exact(Mechanism(Poisson(79), 0.2)).bracket, -79 * math.log1p(-1 / 79)
    for epsilon in (0.99686, 1.00586, 1.0063093):  # asked before, a finer lattice is the first for the next
        found = bracket._composed(np.array([epsilon]))
        assert found.lower[0] < found.upper[0] < 0.0
        assert epsilon < end
    assert made
    assert max(made) < 20_000


def test_lines_that_would_be_far_too_long_are_given_up_early(monkeypatch):
    """Next to the largest loss of `add`, every question used to lay lines of 2¹⁷ points and give them up again."""
    lengths, fourier = [], poisson_moments.fourier

    def watched(position, weight, coarse, line):
        lengths.append(line.highest)
        return fourier(position, weight, coarse, line)

    monkeypatch.setattr(poisson_moments, "fourier", watched)
    assert exact(Mechanism(Poisson(75), 0.191))._lay(ADD, 1.0064154, 0.0) is None
    assert max(lengths) < 2**13
    lengths.clear()
    curve = exact(Mechanism(Poisson(89), 1.06, 2))
    assert curve._lay(ADD, 1.959, 0.0) is None  # δ is about e^−1200
    assert not lengths
    assert curve._lay(ADD, 1.64, 0.0) is not None
    assert max(lengths) < 512


@pytest.mark.parametrize(
    ("sigma", "steps", "epochs", "share"),
    [(0.1464916, 1098, 469, 0.999), (1.0117, 2, 1, 0.97), (0.4, 79, 1, 0.98), (1.1, 6, 3, 0.98)],
)
def test_add_is_exact_near_its_largest_loss(sigma, steps, epochs, share):
    """As long as the tilt there came from a survey, no line was laid, and composing took seconds."""
    curve = exact(Mechanism(Poisson(steps), sigma, epochs))
    epsilon = np.array([share * -steps * epochs * math.log1p(-1 / steps)])
    lower, _, upper = curve.exactly(epsilon, ADD)
    assert upper[0] - lower[0] < 1e-6
    second = curve.bracket._composed(epsilon)
    assert second.lower[0] <= upper[0]
    assert lower[0] <= second.upper[0]
    assert abs(curve.rough_epsilon(lower, ADD)[0] - epsilon[0]) < 0.2 * (1.0 - share) / share * epsilon[0]


def test_lines_that_seem_too_long_are_laid_if_they_may_be_short():
    """With 22 jumps to expect, lines seem 100 times as long as they turn out to be."""
    run = Mechanism(Poisson(361_485), 0.1213, 22)
    lower, _, upper = exact(run).exactly(np.array([45.0, 200.0, 500.0]), REMOVE)
    assert (upper - lower < 1e-9).all()
    assert run.epsilon(2e-5).lower == 700.0


def test_a_cheap_bound_of_add_goes_below_the_value_it_is_a_multiple_of():
    """δ of `add` is e^ε times a value: a bound of e^−80 on the value says nothing at ε = 80."""
    curve, epsilon = exact(Mechanism(Poisson(20), 0.6176, 98)), np.array([60.0, 80.0, 90.0])
    found = curve.log_upper(epsilon, ADD)
    assert (found < -80.0).all()
    assert (found >= curve.exactly(epsilon, ADD)[0]).all()


def test_whether_a_line_can_end_is_seen_from_how_fast_its_ends_fall():
    slowly, ever_faster = [-6.37, -7.08, -7.86], [-0.8, -2.1, -3.7]
    assert not in_sight(slowly, math.log(1e-7), 64)
    assert in_sight(slowly, math.log(1e-7), 2**14)
    assert in_sight(ever_faster, math.log(1e-7), 64)
    assert not in_sight([-20.0, 3.0], -30.0, 64)  # rounding
    assert in_sight([-1.0], -30.0, 64)


def test_the_integrand_of_several_jumps_may_grow_along_its_line():
    """u(u−1)·J of a third jump is 10⁹ times as large as at the saddle before it falls; this is not an error."""
    curve = exact(Mechanism(Poisson(49_675), 0.69185, 12))
    lower, _, upper = curve.exactly(np.array([0.40356]), REMOVE)
    assert upper[0] - lower[0] < 1e-6


@pytest.mark.parametrize(
    ("run", "epsilon"),
    [
        (Mechanism(Poisson(2332), 5.418, 9), 58.5),
        (Mechanism(BallsAndBins(103_443), 2.955, 85), 15.36),
        (Mechanism(BallsAndBins(170_552), 0.8727, 3), 90.4),
    ],
)
def test_where_no_double_is_small_enough_nothing_is_composed(monkeypatch, run, epsilon):
    """It took 14 to 17 seconds, and the second answer was δ ≤ 1.75·10⁻⁴."""
    monkeypatch.setattr(ComposedCurve, "_lattice", lambda *_: pytest.fail("composed"))
    assert run.delta(epsilon).upper < 1e-323
