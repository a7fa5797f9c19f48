"""One contour on its own: built for one strike and asked for all others, it must not claim more than it knows."""

import numpy as np
import pytest

from ballsbins.accounting.curve import ADD, REMOVE
from ballsbins.accounting.one_epoch import cut
from ballsbins.accounting.one_epoch.basket import Basket
from ballsbins.accounting.one_epoch.call import CutLattice, LiftContour
from ballsbins.accounting.one_epoch.contours import PutContour
from ballsbins.accounting.one_epoch.curve import ExactCurve
from ballsbins.accounting.one_epoch.quadrature import INNER_SAFETY, Strikes, gauss_error, trapezoidal_error

CASES = [
    (2, 0.3),
    (3, 6.0),
    (10, 1.0),
    (40, 20.0),
    (1000, 0.35),
    (10**4, 3.0),
    (10**6, 0.8),
    (10**9, 0.3),
    (10**12, 5.0),
]


@pytest.fixture(autouse=True)
def _quiet():
    """Overflow is met on purpose, in terms that do not count; the curve that asks silences it."""
    with np.errstate(all="ignore"):
        yield


def spread(curve):
    """ε from far below to far above the standard deviation of the loss."""
    return np.geomspace(1e-2, 40.0, 60) * min(curve.deviation, 1.0)


def truth(curve, epsilon, direction):
    """log of the option: answers of a curve of its own for every ε, and their errors."""
    found = [ExactCurve(curve.basket.kinds).log_delta(np.array([e]), direction) for e in epsilon]
    value = np.array([f.value[0] for f in found]) - (epsilon if direction == ADD else 0.0)
    return value, np.array([f.upper[0] - f.lower[0] for f in found])


def check(estimate, value, width):
    """No claim below the difference to the truth; returns how many claims there were."""
    claimed = (estimate.error < 0.1) & np.isfinite(width)
    gap = np.abs(estimate.log - value)[claimed]
    assert (
        gap <= np.log1p(estimate.error[claimed]) + width[claimed] + 1e-12 * (1 + np.abs(value[claimed]))
    ).all()
    return int((claimed & (estimate.error < 1e-8)).sum())


@pytest.mark.parametrize(("steps", "sigma"), CASES)
def test_puts(steps, sigma):
    curve = ExactCurve(((steps, sigma),))
    epsilon = spread(curve)
    value, width = truth(curve, epsilon, ADD)
    strikes = Strikes.from_log(-epsilon)
    served = 0
    for k in (0, 25, 40, 50):
        for step in (0.1, 0.3):  # the wide one does not resolve much, and has to say so
            contour = PutContour.through(curve.basket, strikes[k : k + 1], step)[0]
            served += check(contour(strikes), value, width)
    assert served >= 3


@pytest.mark.parametrize(("steps", "sigma"), CASES)
def test_lattices_and_lifts(steps, sigma):
    curve = ExactCurve(((steps, sigma),))
    epsilon = spread(curve)
    value, width = truth(curve, epsilon, REMOVE)
    strikes = Strikes.from_log(epsilon)
    lattice = CutLattice.covering(curve.basket, strikes)
    estimate, _, leave = lattice.explore(strikes)
    served = check(estimate, value, width) + check(lattice.finer()(strikes), value, width)
    for k in (30, 45, 55):
        for shift in (-0.7, 0.0, 0.7, 3.0):  # 3.0: beyond the end of the cut
            lift = LiftContour(curve.basket, strikes[k : k + 1], leave[k] + shift, lattice)
            served += check(lift(strikes), value, width)
    assert served >= 3


def test_a_lattice_that_has_only_begun_to_converge_says_so():
    """Its distance to every second node is 5·10⁻⁵, and its error not the square of that."""
    curve = ExactCurve(((1000, 0.8),))
    epsilon = spread(curve)[20:50:3]
    value, width = truth(curve, epsilon, REMOVE)
    strikes = Strikes.from_log(epsilon)
    estimate = CutLattice.covering(curve.basket, strikes)(strikes)
    check(estimate, value, width)
    assert ((estimate.error > 1e-5) & (estimate.error < 1e-3)).any()


def test_errors_of_rules():
    """A power of a small distance; two sums that agree by accident are not believed when the third does not."""
    one = np.ones(4)
    coarse = np.array([1.0, 1.0 + 1e-6, 1.05, 3.0])
    assert gauss_error(one, coarse) == pytest.approx([0.0, (8e-6) ** 1.25, 1.0, 2.0], rel=1e-6)
    coarser = np.array([1.0, 1.0 + 2e-3, 1.2, 1.0])
    assert trapezoidal_error(one, coarse, coarser) == pytest.approx([0.0, (8e-6) ** 1.4, 1.0, 2.0], rel=1e-6)
    accident = trapezoidal_error(one, one, np.array([1.002, 1.1, 1.5, 0.0]))
    assert accident == pytest.approx([(8e-6) ** 1.4, 2.5e-3, 1.0, 1.0], rel=1e-3)


@pytest.mark.parametrize("spoiled", ["real part", "phase"])
@pytest.mark.parametrize(("steps", "sigma"), [(1000, 0.8), (10**4, 3.0), (50, 0.5)])
def test_a_poor_transform_on_the_cut_shows_in_the_stated_error(steps, sigma, spoiled, monkeypatch):
    """With too few nodes for L itself, on the axis or on the descent: the probes must see both."""
    curve = ExactCurve(((steps, sigma),))
    epsilon = spread(curve)[20:50:3]
    value, width = truth(curve, epsilon, REMOVE)
    strikes = Strikes.from_log(epsilon)
    good = CutLattice.covering(curve.basket, strikes)
    leave = good.explore(strikes)[2]
    coarse = (
        {"_DESCENT": 12} if spoiled == "phase" else {"_STEP": 1.2, "_AXIS_PANEL": 8.0, "_AXIS_TURN": 12.0}
    )
    for name, number in coarse.items():
        monkeypatch.setattr(cut, name, number)
    poor = CutLattice.covering(curve.basket, strikes)
    calm = good.log_phase < 0.0  # before the sine turns: what comes later hardly counts
    if spoiled == "phase":
        off, seen = np.abs(poor.log_phase - good.log_phase)[calm], poor.inner_phase
    else:
        off, seen = np.abs(poor.real / good.real - 1.0)[calm], poor.inner
    assert off.max() > 1e-7
    assert off.max() <= INNER_SAFETY * seen
    check(poor(strikes), value, width)
    for k in (2, 5, 8):
        lift = LiftContour(curve.basket, strikes[k : k + 1], leave[k], good)
        if lift.usable:
            check(lift(strikes), value, width)


def test_two_kinds_share_one_lattice():
    mixed, whole = Basket(((30, 0.9), (70, 0.9))), Basket(((100, 0.9),))
    strikes = Strikes.from_log(np.array([0.5, 1.0, 4.0]))
    first, second = (CutLattice.covering(b, strikes)(strikes) for b in (mixed, whole))
    served = np.minimum(first.error, second.error) < 0.1
    assert served.any()
    assert first.log[served] == pytest.approx(second.log[served], abs=1e-10)
