"""Several epochs and Poisson steps by Mellin inversion, against closed forms, quadrature, and the other method."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from ballsbins import BallsAndBins, Mechanism, Poisson
from ballsbins.accounting.curve import ADD, REMOVE
from ballsbins.accounting.epochs.composition import ComposedCurve
from ballsbins.accounting.epochs.curve import ProductCurve
from ballsbins.accounting.epochs.curve_moments import CurveMoments
from ballsbins.accounting.epochs.fourier import Grid
from ballsbins.accounting.epochs.lines import ANY, Lines
from ballsbins.accounting.epochs.poisson_moments import StepMoments
from ballsbins.accounting.epochs.saddles import Product
from ballsbins.accounting.epochs.term_sizes import TermSizes
from ballsbins.accounting.gaussian import GaussianCurve
from ballsbins.accounting.one_epoch.curve import ExactCurve
from ballsbins.accounting.poisson import PoissonStepCurve

BRACKETS = json.loads((Path(__file__).parent.parent / "data" / "brackets.json").read_text())


def of(run):
    sampler = (Poisson if run["kind"] == "poisson" else BallsAndBins)(run["steps"])
    return Mechanism(sampler, run["sigma"], run["epochs"], run["last"])


def gaussian_product(sigma, epochs):
    one = GaussianCurve(sigma)
    return ProductCurve(lambda: [(CurveMoments(one), epochs)], ComposedCurve([(one, epochs)]))


@pytest.mark.parametrize("direction", [REMOVE, ADD])
@pytest.mark.parametrize(("sigma", "epochs"), [(0.7, 2), (1.0, 10), (3.0, 1000), (20.0, 10_000)])
def test_the_gaussian_composes_to_a_gaussian(sigma, epochs, direction):
    """In closed form, down to δ = 10⁻⁵⁰; both directions have the same curve but lines of their own."""
    deviation = math.sqrt(epochs) / sigma
    epsilon = 0.5 * deviation**2 + deviation * np.array([-0.4, 0.0, 2.0, 6.0, 14.0])
    epsilon = epsilon[epsilon > 0.0]
    found = gaussian_product(sigma, epochs).log_delta(epsilon, direction)
    truth = GaussianCurve(sigma, epochs).log_delta(epsilon, direction)
    assert (found.lower <= truth.upper).all()
    assert (truth.lower <= found.upper).all()
    assert found.value == pytest.approx(truth.value, rel=1e-11, abs=1e-11)
    assert (found.upper - found.lower < 1e-8).all()


@pytest.mark.parametrize(
    ("mechanism", "epsilon"),
    [
        (Mechanism(BallsAndBins(100), 1.0, 10), 1.964269612997),
        (Mechanism(BallsAndBins(1000), 1.0, 10), 0.5400505112057),
        (Mechanism(BallsAndBins(4517), 0.6, 3), 1.18996411884),
        (Mechanism(BallsAndBins(36133), 0.3, 2), 12.03721102659),
    ],
    ids=repr,
)
def test_digits_found_by_another_program(mechanism, epsilon):
    found = mechanism.epsilon(1e-6)
    assert found.method == "exact"
    assert found.value == pytest.approx(epsilon, rel=1e-11)
    assert found.upper - found.lower < 1e-8 * epsilon


def test_two_poisson_steps_against_quadrature():
    """E(S₁S₂ − K)₊ = E[S₂·c₁(K/S₂)], the single step in closed form."""
    sigma, steps = 1.0, 2
    s, q = 1.0 / sigma, 1.0 / steps
    one = PoissonStepCurve(sigma, steps)
    curve = ProductCurve(lambda: [(StepMoments(sigma, steps), 2)], ComposedCurve([(one, 2)]))
    for epsilon in (0.2, 1.0, 2.0):

        def inner(g, epsilon=epsilon):
            loss = math.log1p(q * math.expm1(s * g - 0.5 * s * s))
            value = math.exp(one.log_delta(np.array([epsilon - loss]), REMOVE).value[0])
            return math.exp(loss) * value * norm.pdf(g)

        kink = (math.log1p(math.expm1(epsilon) / q) + 0.5 * s * s) / s  # where S₂ = K
        truth = quad(inner, -10.0, 14.0, points=[kink], epsabs=0.0, epsrel=1e-11, limit=400)[0]
        found = curve.log_delta(np.array([epsilon]), REMOVE)
        assert found.value[0] == pytest.approx(math.log(truth), abs=1e-9)
        assert found.upper[0] - found.lower[0] < 1e-8


def test_two_epochs_of_two_bins_against_quadrature():
    """The same with S₂ = (Z₁ + Z₂)/2, a two-dimensional Gaussian integral."""
    sigma = 1.3
    s, exact = 1.0 / sigma, ExactCurve(((2, sigma),), 2)
    g = np.linspace(-9.0, 9.0, 241)
    x, y = np.meshgrid(g, g)
    loss = np.logaddexp(s * x - 0.5 * s * s, s * y - 0.5 * s * s) - math.log(2.0)
    weight = norm.pdf(x) * norm.pdf(y) * (g[1] - g[0]) ** 2
    for epsilon in (0.3, 2.0):
        value = np.exp(exact.log_delta((epsilon - loss).ravel(), REMOVE).value).reshape(loss.shape)
        truth = float((weight * np.exp(loss) * value).sum())
        found = Mechanism(BallsAndBins(2), sigma, 2).curve.log_delta(np.array([epsilon]), REMOVE)
        assert found.value[0] == pytest.approx(math.log(truth), abs=1e-8)


def test_moments_of_whole_numbers():
    """E S = 1, E S² = 1 + q²(e^{s²} − 1) for a step, 1 + (e^{s²} − 1)/T for an epoch, on the real end of a line."""
    line = Grid.covering(8.0, 4.0)
    step = StepMoments(0.7, 1000).line(2.0, line, 1, None, jumps=False).body
    assert step.value[0].real == pytest.approx(1e-6 * math.expm1(0.7**-2), rel=1e-13)
    epoch = CurveMoments(ExactCurve(((50, 0.7),), 50)).line(2.0, line, 1, None, jumps=False).body
    assert epoch.value[0].real == pytest.approx(math.expm1(0.7**-2) / 50, rel=1e-11)


@pytest.mark.parametrize("part", range(4))
def test_every_answer_is_within_the_bracket_of_the_other_method(part):
    """Random runs (σ in [0.2, 20], T ≤ 10⁹, δ down to 10⁻³⁰); nearly all of them exact."""
    exact, runs = 0, BRACKETS[part::4]
    for run in runs:
        curve = of(run).curve.curve
        rows = curve.exactly(np.array([run["epsilon"]]), run["direction"])
        if rows[2, 0] - rows[0, 0] < 1e-5:
            exact += 1
            assert rows[0, 0] <= run["upper"], run
            assert run["lower"] <= rows[2, 0], run
            width = run["upper"] - run["lower"]
            assert run["lower"] - 1e-9 * width <= rows[1, 0] <= run["upper"] + 1e-9 * width + 1e-12, run
    assert exact >= 0.9 * len(runs)


def test_a_wrong_moment_is_found_out_by_the_brackets():
    """The control for the test above: a variance of the loss that is 1 % too large leaves every bracket."""
    outside = 0
    for run in BRACKETS[:12]:
        wrong = of({**run, "sigma": run["sigma"] * 0.995}).curve.curve
        rows = wrong.exactly(np.array([run["epsilon"]]), run["direction"])
        outside += not run["lower"] <= rows[1, 0] <= run["upper"]
    assert outside >= 10


@pytest.mark.parametrize(
    ("sigma", "steps", "end"), [(0.3, 36133, 3.0), (0.32, 10**5, 10.0)], ids=["one bad point", "nine of them"]
)
def test_poisson_has_no_jumps_and_no_history(sigma, steps, end):
    """δ falls in ε, whatever was asked before; with σ = 0.3, T = 36133 it was five times too high at ε = 0.75."""
    grid = np.linspace(0.0, end, 11)
    together = Mechanism(Poisson(steps), sigma).log_delta(grid)
    assert (np.diff(together.upper) < 0.0).all()
    assert (np.diff(together.lower) < 0.0).all()
    alone = Mechanism(Poisson(steps), sigma).log_delta(grid[4])
    assert alone.value == pytest.approx(together.value[4], abs=1e-9)
    if steps == 36133:
        assert Mechanism(Poisson(steps), sigma).delta(0.75).value == pytest.approx(
            0.03987406865655, rel=1e-12
        )


def test_a_run_of_many_steps_has_an_answer_at_once():
    found = Mechanism(Poisson(16_000_000), 3.5, 581).epsilon(1e-6)
    assert found.method == "exact"
    assert found.upper - found.lower < 1e-9 * found.value
    assert found.value < Mechanism(Poisson(16_000_000), 3.4, 581).epsilon(1e-6).value


def test_what_a_sheet_cannot_state_the_bracket_answers(monkeypatch):
    """A sheet that claims few digits is not believed to be exact."""
    mechanism = Mechanism(BallsAndBins(50), 1.0, 3)
    exact = mechanism.log_delta(1.0)
    read = Lines.log_value
    monkeypatch.setattr(Lines, "log_value", lambda self, k: (read(self, k)[0], np.full(k.shape, 1e-3)))
    bracket = Mechanism(BallsAndBins(50), 1.0, 3).log_delta(1.0)
    assert 1e-6 < bracket.upper - bracket.lower < 1e-2
    assert bracket.lower <= exact.lower <= exact.upper <= bracket.upper


def test_the_line_says_what_a_shorter_period_costs():
    """With a tenth of the period the images are there, and are stated."""
    moments = CurveMoments(GaussianCurve(1.0))
    product = Product([(moments, 4)], REMOVE)
    truth = GaussianCurve(1.0, 4).log_delta(np.array([5.0]), REMOVE).value[0]
    period = TermSizes.period
    for shorter in (1.0, 2.5, 4.0):
        product._sizes.period = lambda *a, shorter=shorter: period(product._sizes, *a) / shorter
        log, error = product.sheet(5.0, 0.5).log_value(np.array([5.0]))
        assert not np.isfinite(error[0]) or abs(log[0] - truth) <= error[0] + 1e-12


@pytest.mark.parametrize(
    ("mechanism", "delta", "low", "high"),
    [
        # brackets of the second method
        (Mechanism(BallsAndBins(300), 0.9, 2, 4), 1e-6, 0.6185528, 0.6185716),
        (Mechanism(Poisson(15), 0.409), 1.2e-7, 23.302996, 23.303999),
        (Mechanism(BallsAndBins(10**5), 0.4, 2, 10), 1e-6, 2.9895104, 2.9896141),
    ],
)
def test_few_steps_are_exact_too(mechanism, delta, low, high):
    """Losses that end with v still large on the left, and lines that go on for thousands of widths."""
    found = mechanism.epsilon(delta)
    assert found.kind == "exact"
    assert low < found.lower <= found.upper < high
    assert found.upper - found.lower < 1e-6


def test_beyond_the_largest_loss_nothing_is_left():
    """A Poisson step multiplies the likelihood of absence by no more than 1/(1 − q)."""
    most = -1000 * math.log1p(-1e-3)
    epsilon = np.array([most - 0.5, most * (1.0 + 1e-9), most + 3.0, 60.0])
    for sigma in (0.2, 1.0):
        found = Mechanism(Poisson(1000), sigma).curve.log_delta(epsilon, ADD)
        assert np.isneginf(found.upper).tolist() == [False, True, True, True]


@pytest.mark.parametrize(("sigma", "steps", "count"), [(1.0, 1000, 10), (0.5, 10_000, 40), (3.0, 100, 300)])
def test_a_rough_survey_is_as_good_as_a_sharp_one(sigma, steps, count):
    """What was looked at roughly decides where lines are laid, and nothing else."""
    curve = ExactCurve(((steps, sigma),))
    bracket = ComposedCurve([(curve, count)])
    rough = ProductCurve(lambda: [(CurveMoments(curve, curve.sketch), count)], bracket)
    sharp = ProductCurve(lambda: [(CurveMoments(curve), count)], bracket)
    epsilon = rough.scale * np.array([0.1, 1.0, 2.0])
    for direction in (REMOVE, ADD):
        found, truth = (each.exactly(epsilon, direction) for each in (rough, sharp))
        assert (found[0] <= truth[2]).all()
        assert (truth[0] <= found[2]).all()
        assert (found[2] - found[0] < 1e-6).all()


def test_a_sketch_proves_no_loss_impossible():
    """δ of `add` is called 0 beyond the least loss, so that must come from the curve and not from a guess."""
    whole, part = ExactCurve(((1000, 1.0),)), ExactCurve(((4, 0.9),), 300)

    def lying(epsilon, direction):
        return np.where((epsilon > 1.0) & (direction == ADD), -np.inf, whole.sketch(epsilon, direction))

    assert CurveMoments(whole, lying).least == -math.inf
    assert CurveMoments(part, part.sketch).least <= math.log1p(-4 / 300)
    assert CurveMoments(part, part.sketch).least > -1.0


@pytest.mark.parametrize(
    ("sigma", "steps", "k"), [(0.3, 36133, 11.0), (0.25, 10**4, 20.0), (0.32, 10**5, 7.84)]
)
def test_all_jumps_together_are_the_whole(sigma, steps, k):
    """Where M falls off and M^n − M_body^n, too, a line of either has the same value within its error."""
    product = Product([(StepMoments(sigma, steps), steps)], REMOVE)
    [whole] = product._ways(k, k)
    [jumps] = product._any_jumps(k, whole.split.until)
    assert (jumps.terms[0].jumps, whole.terms[0].jumps) == (ANY, 0)
    at = np.array([0.95, 1.0, 1.05]) * k
    (one, off), (other, more) = (product._lay(way, k, 0.1 * k).log_value(at) for way in (jumps, whole))
    assert off.max() < 1e-11
    assert np.abs(one - other).max() < (off + more).max()


def test_one_epoch_of_very_many_steps():
    """Within the bracket that was the answer before."""
    found = Mechanism(Poisson(183919308), 0.309).epsilon(3.75e-14)
    assert found.method == "exact"
    assert 9.89188 < found.lower <= found.upper < 10.27244


def test_little_noise_and_as_many_steps_as_an_epoch_has():
    """No jump has probability 1/e, so that M^n hardly falls off: the answer was a bracket of width 56."""
    found = Mechanism(Poisson(52246533), 0.156).epsilon(4.38e-12)
    assert found.method == "exact"
    assert found.upper - found.lower < 1e-9 * found.upper
    line = Mechanism(Poisson(52246533), 0.156).curve.log_delta(np.array([62.0]), REMOVE)
    assert (
        -15.2230 <= line.lower[0] <= line.upper[0] <= -12.7406
    )  # the bracket of PoissonCurve, in some seconds
