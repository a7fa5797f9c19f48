"""Which accounting belongs to which sampler, and the shape of its answers."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from ballsbins import BallsAndBins, Deterministic, Mechanism, Poisson, Shuffle
from ballsbins.accounting.gaussian import GaussianCurve


def test_the_numbers_of_the_design():
    assert Mechanism(BallsAndBins(1000), 0.35).epsilon(1e-6).value == pytest.approx(10.168696127, rel=1e-10)
    assert Mechanism(BallsAndBins(36133), 0.3).epsilon(1e-6).value == pytest.approx(10.286294502, rel=1e-10)
    assert Mechanism(BallsAndBins(1000), 0.35).delta(10.0).value == pytest.approx(
        1.331225910870904e-6, rel=1e-12
    )


def test_scalars_give_floats_and_arrays_give_arrays():
    mechanism = Mechanism(BallsAndBins(50), 0.7)
    one = mechanism.delta(1.0)
    assert all(type(part) is float for part in (one.lower, one.value, one.upper))
    many = mechanism.delta(np.array([[0.5, 1.0], [2.0, 3.0]]))
    assert many.value.shape == many.directions["add"].upper.shape == (2, 2)
    assert many.value[0, 1] == pytest.approx(one.value, rel=1e-9)
    both = mechanism.epsilon([1e-5, 1e-9])
    assert both.upper.shape == (2,)
    assert both.value[0] < both.value[1]
    assert mechanism.delta(np.array([])).value.shape == (0,)


def test_the_bound_is_the_larger_direction_and_ordered():
    bound = Mechanism(BallsAndBins(50), 0.7).delta(np.linspace(-2.0, 6.0, 40))
    remove, add = bound.directions["remove"], bound.directions["add"]
    np.testing.assert_array_equal(bound.upper, np.maximum(remove.upper, add.upper))
    for part in (bound, remove, add):
        assert (part.lower <= part.value).all()
        assert (part.value <= part.upper).all()
        assert (part.upper <= 1.0).all()


def test_log_delta_where_delta_is_below_the_doubles():
    mechanism = Mechanism(BallsAndBins(3), 10.0)
    assert mechanism.delta(5.0).upper < 1e-300
    log = mechanism.log_delta(5.0)
    assert log.quantity == "log_delta"
    assert log.lower <= log.value <= log.upper < math.log(1e-300)


def test_json_is_stable_and_plain():
    mechanism = Mechanism(BallsAndBins(1000), 0.35)
    one, two = (json.dumps(Mechanism(BallsAndBins(1000), 0.35).epsilon(1e-6).to_dict()) for _ in range(2))
    assert one == two
    data = json.loads(one)
    assert list(data) == [
        "quantity",
        "lower",
        "value",
        "upper",
        "kind",
        "method",
        "confidence",
        "directions",
        "mechanism",
    ]
    assert data["quantity"] == "epsilon"
    assert data["method"] == "exact"
    assert data["confidence"] == 1.0
    assert Mechanism.from_dict(data["mechanism"]) == mechanism
    assert set(data["directions"]) == {"remove", "add"}


def test_one_step_is_the_gaussian_mechanism():
    for epochs in (1, 9):
        ours = Mechanism(BallsAndBins(1), 1.5, epochs).log_delta(1.0)
        gauss = GaussianCurve(1.5, epochs).log_delta(np.array([1.0]), "add")
        assert ours.value == pytest.approx(gauss.value[0], rel=1e-12)


def test_fixed_bins_are_one_epoch_with_less_noise():
    fixed = Mechanism(BallsAndBins(1000, redraw=False), 1.0, epochs=9).epsilon(1e-6)
    assert fixed.method == "exact"
    assert fixed.value == pytest.approx(
        Mechanism(BallsAndBins(1000), 1.0 / 3.0).epsilon(1e-6).value, rel=1e-12
    )


def test_fixed_bins_cost_twenty_times_as_much():
    fixed = Mechanism(BallsAndBins(1000, redraw=False), 1.0, epochs=10).epsilon(1e-6)
    redrawn = Mechanism(BallsAndBins(1000), 1.0, epochs=10).epsilon(1e-6)
    assert 12.4 < fixed.lower <= fixed.upper < 12.6
    assert 0.535 < redrawn.lower <= redrawn.upper < 0.545


def test_a_run_that_stops_early_costs_less():
    for redraw in (True, False):
        steps = [
            Mechanism(BallsAndBins(40, redraw=redraw), 0.8, 2, last).epsilon(1e-5)
            for last in (1, 20, 39, None)
        ]
        whole = Mechanism(BallsAndBins(40, redraw=redraw), 0.8, 1).epsilon(1e-5)
        values = [whole.value, *(bound.value for bound in steps)]
        assert values == sorted(values)


def test_an_unfinished_first_epoch_in_closed_form():
    # T = 2, t = 1: S = ½ + Z/2, so δ(ε) = ½·δ_G(log(2e^ε − 1))
    ours = Mechanism(BallsAndBins(2), 1.3, last_epoch_steps=1).delta(0.4)
    inner = math.log(2.0 * math.exp(0.4) - 1.0)
    gauss = GaussianCurve(1.3).log_delta(np.array([inner]), "remove").value[0]
    assert ours.directions["remove"].value == pytest.approx(0.5 * math.exp(gauss), rel=1e-12)


def test_deterministic_does_not_depend_on_steps():
    one, many = Mechanism(Deterministic(1), 2.0, 4), Mechanism(Deterministic(10**6), 2.0, 4)
    assert one.epsilon(1e-6).upper == many.epsilon(1e-6).upper
    assert one.epsilon(1e-6).value == pytest.approx(
        Mechanism(Deterministic(5), 1.0).epsilon(1e-6).value, rel=1e-12
    )


@pytest.mark.parametrize(("sigma", "steps"), [(0.4, 500), (1.0, 100), (3.0, 20)])
def test_propositions_of_the_paper(sigma, steps):
    """δ_B ≤ δ_S ≤ δ_D in the sense of the bounds, and δ_B < δ_P for large ε."""
    epsilon = np.array([0.2, 1.0, 3.0, 8.0])
    bins, shuffle, fixed = (
        Mechanism(kind(steps), sigma).log_delta(epsilon) for kind in (BallsAndBins, Shuffle, Deterministic)
    )
    assert (bins.lower <= shuffle.upper).all()
    assert (bins.value <= shuffle.lower + 1e-9).all()  # the exact δ_B is one of shuffle's lower bounds
    np.testing.assert_array_equal(shuffle.upper, fixed.upper)
    far = Mechanism(BallsAndBins(steps), sigma).epsilon(1e-9).value
    assert (
        Mechanism(BallsAndBins(steps), sigma).log_delta(far).upper
        < Mechanism(Poisson(steps), sigma).log_delta(far).lower
    )


def test_outside_of_the_exact_methods_domain_bounds_are_given():
    bound = Mechanism(BallsAndBins(1000), 0.01).epsilon(1e-6)
    assert bound.method == "bounds"
    assert bound.lower <= bound.upper
    assert bound.upper > 700  # no ε that a double can hold meets δ = 10⁻⁶ for sure
    tiny = Mechanism(BallsAndBins(1000), 0.04).delta(100.0)
    assert tiny.lower <= tiny.upper <= 1.0
    large = Mechanism(BallsAndBins(10), 300.0).delta(0.001)
    assert 0.0 <= large.lower <= large.upper < 1e-3


@pytest.mark.parametrize(
    "mechanism",
    [
        Mechanism(Poisson(1000), 1e-3),
        Mechanism(Poisson(1000), 0.04, 2),
        Mechanism(BallsAndBins(1000), 0.04, 3),
        Mechanism(BallsAndBins(1000), 0.001, 3, 500),
        Mechanism(Shuffle(1000), 0.01, 3),
    ],
    ids=repr,
)
def test_next_to_no_noise_gets_bounds_at_once(mechanism):
    bound = mechanism.epsilon(1e-6)
    assert bound.method == "bounds"
    assert 300.0 < bound.lower <= bound.upper


def test_several_epochs_with_more_noise_than_the_exact_method_knows():
    """Bounds of the whole run, found by themselves: wide bounds of one epoch are not composed, which took minutes."""
    bins = Mechanism(BallsAndBins(7), 2e4, 588).epsilon(1e-6)
    assert bins.method == "bounds"
    assert bins.upper == Mechanism(Deterministic(7), 2e4, 588).epsilon(1e-6).upper
    assert 1e-4 < bins.lower < bins.upper


def test_next_to_no_noise_has_an_exact_answer_at_tiny_delta():
    """σ = 0.05, T = 2: far out one bin decides, so ε is that of the Gaussian less log T; or beyond the doubles."""
    mechanism = Mechanism(BallsAndBins(2), 0.05)
    gauss = Mechanism(Deterministic(2), 0.05)
    bound = mechanism.epsilon(1e-100)
    assert bound.method == "exact"
    assert bound.lower == pytest.approx(gauss.epsilon(1e-100).value - math.log(2.0), rel=1e-11)
    assert bound.upper - bound.lower < 1e-9
    beyond = mechanism.epsilon(1e-300)
    assert (beyond.lower, beyond.upper) == (700.0, math.inf)


def test_a_truncated_run_without_any_privacy_says_so():
    bound = Mechanism(BallsAndBins(1, max_batch_size=2, num_examples=2), 0.01).epsilon(1e-3)
    assert (bound.lower, bound.upper) == (700.0, math.inf)


def test_shuffle_answers_where_a_lower_bound_cannot_be_composed():
    """Over 50 epochs at σ = 2 the bound S_C is not to be had at every ε; that of balls-and-bins is."""
    shuffled = Mechanism(Shuffle(500), 2.0, 50).epsilon(1e-6)
    assert shuffled.lower == pytest.approx(
        Mechanism(BallsAndBins(500), 2.0, 50).epsilon(1e-6).lower, rel=1e-2
    )
    assert shuffled.upper == pytest.approx(
        Mechanism(Deterministic(500), 2.0, 50).epsilon(1e-6).upper, rel=1e-9
    )


def test_truncated_poisson_is_accounted_for_as_the_sum():
    """σ = 0.4 and few steps: far out Poisson's lower bound is lost, which must not stop the upper one."""
    plain = Mechanism(Poisson(79), 0.4)
    cut = Mechanism(Poisson(79, max_batch_size=1285, num_examples=80_000), 0.4)
    bound = cut.epsilon(1e-5)
    assert bound.lower <= bound.upper == pytest.approx(plain.epsilon(1e-5 - bound.penalty).upper, rel=2e-3)
    assert bound.upper >= plain.epsilon(1e-5).lower


def test_truncation_is_part_of_every_answer_and_shown():
    plain = Mechanism(BallsAndBins(1000), 0.5)
    cut = Mechanism(BallsAndBins(1000, max_batch_size=1300, num_examples=10**6), 0.5)
    bound = cut.delta(4.0)
    assert bound.penalty > 0.0
    assert bound.upper == pytest.approx(plain.delta(4.0).upper + bound.penalty, rel=1e-9)
    assert "penalty" in bound.to_dict()
    assert "penalty" not in plain.delta(4.0).to_dict()
    assert cut.epsilon(1e-6).upper >= plain.epsilon(1e-6).upper
