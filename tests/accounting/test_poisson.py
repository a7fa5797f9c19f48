"""Poisson subsampling: the step in closed form, its composition, and dp_accounting beside it."""

import mpmath as mp
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution

from ballsbins import Mechanism, Poisson
from ballsbins.accounting.curve import ADD, DIRECTIONS, REMOVE
from ballsbins.accounting.epochs.composition import ComposedCurve
from ballsbins.accounting.gaussian import GaussianCurve
from ballsbins.accounting.poisson import PoissonCurve, PoissonMaximumCurve, PoissonStepCurve


def log_step(sigma, steps, epsilon, direction):
    with mp.workdps(400):
        s, q = 1 / mp.mpf(sigma), mp.mpf(1) / steps
        k = (mp.exp(epsilon if direction == REMOVE else -mp.mpf(epsilon)) - 1 + q) / q
        if k <= 0:
            return mp.mpf("-inf") if direction == ADD else mp.log(1 - mp.exp(epsilon))
        call = mp.ncdf(s / 2 - mp.log(k) / s) - k * mp.ncdf(-s / 2 - mp.log(k) / s)
        delta = q * call if direction == REMOVE else mp.exp(epsilon) * q * (call + k - 1)
        return mp.log(delta)


def test_one_step_contains_high_precision():
    rng = np.random.default_rng(1)
    for _ in range(150):
        sigma, steps = 10 ** rng.uniform(-1, 1.5), int(10 ** rng.uniform(0, 9))
        direction = str(rng.choice(DIRECTIONS))
        epsilon = float(rng.choice([-1, 1]) * 10 ** rng.uniform(-8, 1))
        if rng.random() < 0.5:  # within the bounded side of the loss
            epsilon = float(-np.log1p(-rng.uniform(0, 1) / steps)) * (1 if direction == ADD else -1)
        truth = log_step(sigma, steps, epsilon, direction)
        if truth > -800:
            found = PoissonStepCurve(sigma, steps).log_delta(np.array([epsilon]), direction)
            assert mp.mpf(float(found.lower[0])) <= truth <= mp.mpf(float(found.upper[0])), (
                sigma,
                steps,
                epsilon,
            )


def test_every_batch_is_gaussian():
    """T = 1: q = 1."""
    epsilon = np.array([-1.0, 0.5, 8.0])
    for direction in DIRECTIONS:
        found = PoissonStepCurve(0.7, 1).log_delta(epsilon, direction)
        truth = GaussianCurve(0.7).log_delta(epsilon, direction)
        assert np.allclose(found.value, truth.value, rtol=1e-13)
        several = Mechanism(Poisson(1), 0.7, 6).curve.log_delta(epsilon, direction)
        truth = GaussianCurve(0.7, 6).log_delta(epsilon, direction)
        assert np.all(several.lower <= truth.upper)
        assert np.all(truth.lower <= several.upper)


def test_loss_is_bounded_on_one_side():
    """Beyond −log(1 − 1/T) the add direction has δ = 0, and nothing below that of remove is 1 − e^ε."""
    found = PoissonStepCurve(1.0, 100).log_delta(np.array([0.02]), ADD)
    assert np.isneginf(found.upper[0])


@pytest.mark.parametrize(
    ("sigma", "steps", "taken"),
    [
        (1.0, 100, 100),
        (0.5, 1000, 1000),
        (2.0, 500, 2500),
        (0.6, 4517, 4517),
        (0.8, 10000, 10000),
        (1.0, 50, 37),
    ],
)
def test_between_the_estimates_of_dp_accounting(sigma, steps, taken):
    """Ours must overlap theirs: upper at least their optimistic value, lower at most their pessimistic one.

    Where δ is well above the rounding of their transform, which is not tilted.
    """
    spacing = 1e-3 if sigma < 1.5 else 1e-4  # so that the lattice of their losses is short
    pld = privacy_loss_distribution.from_gaussian_mechanism(
        sigma, sampling_prob=1 / steps, value_discretization_interval=spacing
    ).self_compose(taken)
    optimistic = privacy_loss_distribution.from_gaussian_mechanism(
        sigma, sampling_prob=1 / steps, value_discretization_interval=spacing, pessimistic_estimate=False
    ).self_compose(taken)
    curve = PoissonCurve(sigma, steps, taken)
    epsilon = np.array([0.05, 0.2, 0.8])
    found = {d: curve.log_delta(epsilon, d) for d in DIRECTIONS}
    lower = np.exp(np.maximum(found[REMOVE].lower, found[ADD].lower))
    upper = np.exp(np.maximum(found[REMOVE].upper, found[ADD].upper))
    theirs = np.asarray(pld.get_delta_for_epsilon(epsilon))
    seen = theirs > 1e-9
    assert seen.any()
    assert np.all(lower[seen] <= theirs[seen] * (1 + 1e-6))
    assert np.all(
        upper[seen] >= np.asarray(optimistic.get_delta_for_epsilon(epsilon))[seen] * (1 - 1e-6) - 1e-13
    )
    assert np.all(upper[seen] <= theirs[seen] * 1.02)
    assert np.all(lower[seen] >= 0.97 * upper[seen])


def test_lower_bound_is_useful_after_ten_million_steps():
    """dp_accounting's optimistic estimate is 0 there."""
    found = PoissonCurve(1.0, 10**5, 10**7).log_delta(np.array([0.07]), REMOVE)
    assert found.lower[0] > np.log(1e-4)
    assert found.upper[0] - found.lower[0] < 0.02


def test_add_near_and_beyond_its_largest_loss():
    """The loss of `add` is at most −n·log(1 − q), 1.00001 here: beyond it δ is 0, just below it tiny, never 1."""
    curve = PoissonCurve(0.3, 36133, 36133)
    epsilon = np.array([0.5, 0.99, 1.0, 1.2, 4.0])
    together = curve.log_delta(epsilon, ADD).upper
    assert np.all(together < -14.0)
    assert np.all(together[3:] == -np.inf)
    for point in epsilon:
        assert curve.log_delta(np.array([point]), ADD).upper[0] < -14.0


def maximum_event(sigma, steps, taken, epsilon, direction, C):
    """Q(max < C) − e^ε P(max < C), or P(max ≥ C) − e^ε Q(max ≥ C), in high precision."""
    with mp.workdps(80):
        far, spiked = mp.ncdf(mp.mpf(C) / sigma), mp.ncdf((mp.mpf(C) - 1) / sigma)
        q = mp.mpf(1) / steps
        p_below, q_below = ((1 - q) * far + q * spiked) ** taken, far**taken
        if direction == ADD:
            return q_below - mp.exp(epsilon) * p_below
        return (1 - p_below) - mp.exp(epsilon) * (1 - q_below)


@pytest.mark.parametrize(("sigma", "steps", "taken"), [(0.1, 10, 1000), (0.2, 10**7, 10**9), (0.4, 100, 300)])
def test_the_maximum_is_bounded_from_below_by_its_best_event(sigma, steps, taken):
    most = -taken * np.log1p(-1 / steps)
    for direction in DIRECTIONS:
        for epsilon in (0.0, 0.1 * most, 0.9 * most):
            found = float(
                PoissonMaximumCurve(sigma, steps, taken).log_delta(np.array([epsilon]), direction).lower[0]
            )
            thresholds = np.linspace(0.0, 1.0 + 10.0 * sigma, 65)
            best = max(maximum_event(sigma, steps, taken, epsilon, direction, C) for C in thresholds)
            if best <= 0:
                assert np.isneginf(found)
            else:
                assert found <= mp.log(best)
                assert found == pytest.approx(float(mp.log(best)), abs=1e-4)


@pytest.mark.parametrize(("sigma", "steps", "taken"), [(0.3, 20, 20), (0.15, 5, 30), (1.0, 10, 10)])
def test_the_maximum_and_the_composition_do_not_contradict_each_other(sigma, steps, taken):
    most = -taken * np.log1p(-1 / steps)
    for direction in DIRECTIONS:
        epsilon = most * np.array([0.01, 0.2, 0.5, 0.8])
        closed = PoissonMaximumCurve(sigma, steps, taken).log_delta(epsilon, direction)
        composed = ComposedCurve([(PoissonStepCurve(sigma, steps), taken)], edge=-np.log1p(-1 / steps))
        found = composed.log_delta(epsilon, direction)
        assert (closed.lower <= found.upper + 1e-9).all()
        assert (found.lower <= closed.upper + 1e-9).all()


def test_little_noise_over_many_steps_is_answered_in_closed_form():
    """σ = 0.1, T = 10, 100 epochs: no lattice gives a bound, but `add` costs n·log(T/(T−1)) = 105.4 and no more."""
    bound = Mechanism(Poisson(10), 0.1, 100).epsilon(1e-6)
    add, remove = bound.directions["add"], bound.directions["remove"]
    most = 1000 * np.log(10 / 9)
    assert most - 1e-3 < add.lower <= add.upper <= most * (1 + 1e-9)
    assert (remove.lower, remove.upper) == (700.0, np.inf)


def test_add_is_not_composed_where_remove_decides_and_closed_forms_are_close(monkeypatch):
    """Composing took minutes here, for a direction that cannot decide."""
    curve = PoissonCurve(0.1262, 293_483, 6 * 293_483)
    monkeypatch.setattr(
        PoissonCurve, "_composed", lambda self, epsilon: pytest.fail(f"composed at {epsilon}")
    )
    found = curve.log_delta(np.array([0.5, 5.9995]), ADD)
    assert (found.lower < found.upper).all()
    assert found.upper[0] - found.lower[0] < 0.1
    assert (
        found.upper
        <= PoissonMaximumCurve(0.1262, 293_483, 6 * 293_483).log_delta(np.array([0.5, 5.9995]), REMOVE).lower
    ).all()
