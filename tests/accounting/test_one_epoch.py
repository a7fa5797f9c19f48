"""One epoch of balls-and-bins against values that share no code with it.

Every random point of `sweep.json` and every entry of `reference_values.json`, direct quadrature for two and three
steps, the Gaussian for one step, the central limit for many, and the paper's own lower bound.
"""

import itertools
import json
from fractions import Fraction
from pathlib import Path

import mpmath
import numpy as np
import pytest
from scipy.special import log_ndtr, logsumexp, ndtr

from ballsbins.accounting.curve import ADD, DIRECTIONS, REMOVE
from ballsbins.accounting.gaussian import GaussianCurve
from ballsbins.accounting.one_epoch.curve import ExactCurve
from ballsbins.accounting.one_epoch.lower_bound import BallsAndBinsLowerBound

DATA = Path(__file__).parent.parent / "data"
SWEEP = json.loads((DATA / "sweep.json").read_text())["values"]
REFERENCE = json.loads((DATA / "reference_values.json").read_text(), parse_float=str)["values"]


def curve_of(point):
    groups = point.get("groups") or [[point["steps"], point["noise_multiplier"]]]
    visited = tuple((count, sigma) for count, sigma in groups if sigma is not None)
    return ExactCurve(visited, steps=sum(count for count, _ in groups))


def at(curve, epsilon, direction):
    found = curve.log_delta(np.array([epsilon]), direction)
    return float(found.lower[0]), float(found.value[0]), float(found.upper[0])


def in_the_box(point):
    return (
        0.1 <= point["noise_multiplier"] <= 20
        and point["steps"] <= 1e9
        and 1e-4 <= point["epsilon"] <= 30
        and float(point["log_delta"]) > np.log(1e-300)
    )


@pytest.mark.slow
def test_every_point_of_the_sweep_is_inside_and_the_box_is_narrow():
    """lower ≤ truth ≤ upper at all 452 points; upper/lower − 1 ≤ 10⁻⁹ wherever that is promised."""
    missed, wide = [], []
    for point in SWEEP:
        lower, _, upper = at(curve_of(point), point["epsilon"], point["direction"])
        if not lower <= float(point["log_delta"]) <= upper:
            missed.append((point, lower, upper))
        if in_the_box(point) and upper - lower > 1e-9:
            wide.append((point, upper - lower))
    assert not missed
    assert not wide
    assert sum(map(in_the_box, SWEEP)) > 200  # the box is not empty


@pytest.mark.parametrize("entry", REFERENCE, ids=lambda e: "-".join(str(v) for v in list(e.values())[:3]))
def test_reference_values_to_half_a_unit_of_the_last_digit(entry):
    """The file has σ and ε as decimals, the library gets doubles.

    What that changes is added to first order: the derivative of log δ in log σ and log ε (from the curve itself,
    three digits suffice) times the exactly known relative rounding of the two.
    """
    sigma, epsilon = float(entry["noise_multiplier"]), float(entry["epsilon"])

    def log_delta(sigma, epsilon, direction):
        return at(ExactCurve(((entry["steps"], sigma),)), epsilon, direction)

    for direction in DIRECTIONS:
        shown = entry.get(f"delta_{direction}")
        if shown is None:
            continue
        lower, value, upper = log_delta(sigma, epsilon, direction)
        moved, step = 0.0, 1e-6
        for name, double, changed in (
            ("noise_multiplier", sigma, (sigma * (1 + step), epsilon)),
            ("epsilon", epsilon, (sigma, epsilon * (1 + step))),
        ):
            slope = (log_delta(*changed, direction)[1] - value) / step
            moved += slope * float(Fraction(str(entry[name])) / Fraction(double) - 1)
        digits = len(shown.split("e")[0].replace(".", "").lstrip("0"))
        with mpmath.workdps(40):
            truth = mpmath.mpf(shown)
            unit = mpmath.mpf(10) ** (mpmath.floor(mpmath.log10(truth)) - digits + 1)
            least, most = mpmath.log(truth - unit / 2), mpmath.log(truth + unit / 2)
            assert lower + mpmath.mpf(moved) <= most
            assert upper + mpmath.mpf(moved) >= least
        assert upper - lower < 1e-9


def gaussian(epsilon, s):
    """Φ(s/2 − ε/s) − e^ε Φ(−s/2 − ε/s) with digits to spare."""
    with mpmath.workdps(400):
        epsilon, s = mpmath.mpf(epsilon), mpmath.mpf(s)
        first, second = mpmath.ncdf(s / 2 - epsilon / s), mpmath.ncdf(-s / 2 - epsilon / s)
        return float(mpmath.log(first - mpmath.exp(epsilon) * second))


@pytest.mark.parametrize("sigma", [0.05, 0.3, 1.0, 7.0, 100.0])
def test_one_step_is_the_gaussian_mechanism(sigma):
    for epsilon in (1e-6, 1e-3, 0.1, 1.0, 5.0, 20.0):
        with mpmath.workdps(60):
            truth = gaussian(epsilon, 1 / mpmath.mpf(sigma))
        if truth < -1500:
            continue
        for direction in DIRECTIONS:
            lower, value, upper = at(ExactCurve(((1, sigma),)), epsilon, direction)
            assert lower <= truth <= upper
            assert upper - lower <= 1e-11
            assert value == pytest.approx(
                at(GaussianCurve(sigma), epsilon, direction)[1], rel=1e-12, abs=1e-12
            )


def call(strike, sigma):
    """E(Z − strike)₊ by Black and Scholes, in mpmath; put by parity with digits to spare."""
    if strike <= 0:
        return 1 - strike
    far = -sigma * mpmath.log(strike)
    return mpmath.ncdf(far + 1 / (2 * sigma)) - strike * mpmath.ncdf(far - 1 / (2 * sigma))


def two_steps(sigma, epsilon, direction, digits):
    """The first bin by quadrature, the second in closed form."""
    with mpmath.workdps(digits):
        sigma, sign = mpmath.mpf(sigma), 1 if direction == REMOVE else -1
        strike, s = mpmath.exp(sign * mpmath.mpf(epsilon)), 1 / sigma
        top = sigma * mpmath.log(2 * strike) + s / 2  # Z₁ = 2K

        def body(x):
            rest = 2 * strike - mpmath.exp(s * x - s * s / 2)
            value = call(rest, sigma)
            return mpmath.npdf(x) * (value if direction == REMOVE else value - 1 + rest)

        edges = [-30, -20, -14, -10, -7, -5, -3, -1, 1, 3, 5, 7, 10, 14, 20]
        cuts = [e for e in edges if e < top - 2] + [top - mpmath.mpf(2) ** -k for k in range(-1, 12)] + [top]
        total = mpmath.quad(body, cuts)
        if direction == REMOVE:  # beyond, Z₁ alone is enough: E(Z₁ + 1 − 2K; x > top)
            total += mpmath.ncdf(s - top) + (1 - 2 * strike) * mpmath.ncdf(-top)
            return float(mpmath.log(total / 2))
        return float(mpmath.log(total / 2) + mpmath.mpf(epsilon))


@pytest.mark.parametrize(
    ("sigma", "epsilon", "digits"),
    [(0.3, 2.0, 25), (0.6, 0.05, 25), (1.0, 1.5, 25), (2.0, 0.7, 25), (5.44, 1.63, 60)],
)
def test_two_steps_by_direct_quadrature(sigma, epsilon, digits):
    for direction in DIRECTIONS:
        lower, _, upper = at(ExactCurve(((2, sigma),)), epsilon, direction)
        truth = two_steps(sigma, epsilon, direction, digits)
        assert lower <= truth <= upper
        assert upper - lower <= 1e-9


def two_steps_in_logs(sigma, epsilon, direction):
    """The same with logarithms of doubles: all terms are positive, and the exponents may be as large as they like."""
    s, sign = 1 / sigma, 1 if direction == REMOVE else -1
    log_strike = np.log(2.0) + sign * epsilon
    top = sigma * log_strike + s / 2
    x, w = np.polynomial.legendre.leggauss(40)
    edges = np.concatenate([top - np.linspace(60.0, 2.0, 59), top - 0.5 ** np.arange(40)])
    panel = np.diff(edges)[:, None] / 2
    first = (edges[:-1, None] + panel * (x + 1)).ravel()
    rest = log_strike + np.log(-np.expm1(np.minimum(s * first - s * s / 2 - log_strike, 0.0)))
    terms = GaussianCurve(sigma).log_delta(np.abs(rest), direction).value
    if direction == ADD:
        terms += rest
    terms += np.log((panel * w).ravel()) - first**2 / 2 - np.log(2 * np.pi) / 2
    if direction == REMOVE:
        alone, taken = log_ndtr(s - top), np.log(np.expm1(log_strike)) + log_ndtr(-top)
        terms = np.append(terms, alone + np.log1p(-np.exp(taken - alone)))
    return logsumexp(terms) - np.log(2.0) + (0.0 if direction == REMOVE else epsilon)


@pytest.mark.parametrize("epsilon", [100.0, 190.0, 250.0, 400.0, 600.0, 700.0])
def test_next_to_no_noise_is_exact_up_to_the_largest_epsilon(epsilon):
    """Saddles at e^700 and integrands that are 0 where their slope is infinite are no reason to give up."""
    for direction in DIRECTIONS:
        lower, _, upper = at(ExactCurve(((2, 0.05),)), epsilon, direction)
        assert lower <= two_steps_in_logs(0.05, epsilon, direction) <= upper
        assert upper - lower <= 1e-9


def test_strikes_times_steps_beyond_the_doubles():
    """T·e^ε overflows; the paper's lower bound is below and next to it."""
    for steps in (10**6, 10**12):
        lower, _, upper = at(ExactCurve(((steps, 0.05),)), 700.0, REMOVE)
        assert upper - lower <= 1e-9
        paper = BallsAndBinsLowerBound(0.05, steps).log_delta(np.array([700.0]), REMOVE).lower[0]
        assert paper <= upper <= paper + 1e-9


def three_steps(sigma, epsilon, direction, panels=40):
    """Two bins by Gauss–Legendre up to where their sum alone exceeds 3K, the third in closed form; in doubles."""
    s, sign = 1 / sigma, 1 if direction == REMOVE else -1
    strike = 3 * np.exp(sign * epsilon)
    x, w = np.polynomial.legendre.leggauss(16)
    share = np.concatenate([np.linspace(0, 0.75, panels // 2), 1 - 0.25 * 0.6 ** np.arange(1, panels), [1.0]])
    t = (share[:-1, None] + np.diff(share)[:, None] * 0.5 * (x + 1)).ravel()
    weight = (np.diff(share)[:, None] * 0.5 * w).ravel()

    def value(rest):
        far = -sigma * np.log(rest)
        if direction == REMOVE:
            return np.exp(log_ndtr(far + s / 2)) - rest * np.exp(log_ndtr(far - s / 2))
        return rest * np.exp(log_ndtr(s / 2 - far)) - np.exp(log_ndtr(-s / 2 - far))

    def top(rest):
        return sigma * np.log(rest) + s / 2

    low = -11.0
    first = low + (top(strike) - low) * t
    rest = np.maximum(strike - np.exp(s * first - s * s / 2), 1e-300)
    high = top(rest)[:, None]
    second = low + (high - low) * t[None, :]
    left = np.maximum(rest[:, None] - np.exp(s * second - s * s / 2), 1e-300)
    inner = (np.exp(-0.5 * second**2) * value(left) * (high - low)) @ weight / np.sqrt(2 * np.pi)
    beyond = 0.0
    if direction == REMOVE:
        inner += ndtr(s - high[:, 0]) + (1 - rest) * ndtr(-high[:, 0])
        beyond = ndtr(s - top(strike)) + (2 - strike) * ndtr(-top(strike))
    outer = np.exp(-0.5 * first**2) * inner * (top(strike) - low)
    total = outer @ weight / np.sqrt(2 * np.pi) + beyond
    return np.log(total / 3) + (0.0 if direction == REMOVE else epsilon)


@pytest.mark.parametrize(("sigma", "epsilon"), [(0.5, 1.0), (1.0, 0.2), (1.0, 1.2), (2.0, 0.5)])
def test_three_steps_by_direct_quadrature(sigma, epsilon):
    for direction in DIRECTIONS:
        _, value, _ = at(ExactCurve(((3, sigma),)), epsilon, direction)
        coarse, fine = (three_steps(sigma, epsilon, direction, panels) for panels in (24, 40))
        assert abs(fine - coarse) < 1e-12  # the check itself has converged
        assert value == pytest.approx(fine, abs=2e-12)


@pytest.mark.parametrize("sigma", [1.0, 2.0, 4.0])
def test_many_steps_approach_the_central_limit_at_the_right_rate(sigma):
    """Against Gaussian DP with μ² = (e^{1/σ²} − 1)/T: each direction misses by T^−½, their mean by T^−1."""
    steps = [10**6, 10**8, 10**10, 10**12]
    misses = {REMOVE: [], ADD: []}
    for count in steps:
        mu = np.sqrt(np.expm1(sigma**-2) / count)
        curve = ExactCurve(((count, sigma),))
        for direction in DIRECTIONS:
            miss = at(curve, 1.5 * mu, direction)[1] - gaussian(1.5 * mu, mu)
            misses[direction].append(miss)
    remove, add = np.array(misses[REMOVE]), np.array(misses[ADD])
    assert (remove > 0).all()
    assert (add < 0).all()
    for miss in (remove, -add):
        order = np.log10(miss[:-1] / miss[1:]) / 2
        assert order == pytest.approx(np.full(3, 0.5), abs=0.02)
    mean = np.abs(remove + add)[:2]  # beyond T = 10⁸ the mean is below the numerical error
    assert np.log10(mean[0] / mean[1]) / 2 == pytest.approx(1.0, abs=0.1)
    assert abs(remove[-1]) < 1e-4


def test_the_lower_bound_of_the_paper_is_below_everywhere_and_tight_for_small_noise():
    epsilon = np.array([0.1, 1.0, 3.0, 8.0, 12.0])
    for sigma in (0.15, 0.3, 0.5, 1.0, 3.0):
        for steps in (2, 50, 10**4, 10**7):
            for direction in DIRECTIONS:
                ours = ExactCurve(((steps, sigma),)).log_delta(epsilon, direction)
                paper = BallsAndBinsLowerBound(sigma, steps).log_delta(epsilon, direction)
                assert (ours.upper >= paper.lower).all()
    gaps = []
    for sigma in (0.6, 0.4, 0.3, 0.2, 0.15, 0.1):
        at_2 = np.array([2.0])
        ours = ExactCurve(((10, sigma),)).log_delta(at_2, REMOVE).value[0]
        gaps.append(ours - BallsAndBinsLowerBound(sigma, 10).log_delta(at_2, REMOVE).lower[0])
    assert all(0 < later < sooner for sooner, later in itertools.pairwise(gaps))
    assert gaps[0] > 0.01
    assert gaps[-1] < 1e-12
