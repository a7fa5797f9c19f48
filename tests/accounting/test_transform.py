"""The transform of the log-normal against mpmath, off the cut and close to it."""

import mpmath
import numpy as np
import pytest

from ballsbins.accounting.one_epoch.basket import real_axis
from ballsbins.accounting.one_epoch.transform import (
    complex_log1p,
    log_transform,
    saddle,
    second_remainder,
)


def direct(omega, sigma, centred):
    """log L(ω), or log L(ω) + ω, by the trapezoidal rule on Im x = −σψ with ψ = arg ω − π/4, in 50 digits.

    The rule's error is below e^{−2π·(π/4)σ/h}, the tails beyond |x| = 30 below 10⁻¹⁹⁰ before cancellation.
    """
    with mpmath.workdps(50):
        omega, sigma = mpmath.mpc(omega), mpmath.mpf(sigma)
        s, phi = 1 / sigma, mpmath.arg(omega)
        psi = max(phi - mpmath.pi / 4, mpmath.mpf(0))
        h = min(mpmath.mpf(1) / 8, sigma / 26)
        turned, total = omega * mpmath.expj(-psi), mpmath.mpc(0)
        reach = 16 + 2 * float(psi * sigma)
        for j in range(-int(reach / h), int((reach + s) / h)):
            x = j * h
            total += mpmath.exp(-turned * mpmath.exp(s * x - s * s / 2) - x * x / 2 + 1j * psi * sigma * x)
        value = mpmath.log(total * h / mpmath.sqrt(2 * mpmath.pi)) + psi**2 * sigma**2 / 2
        return complex(value + (omega if centred else 0))


def unwound(difference):
    return complex(difference.real, (difference.imag + np.pi) % (2 * np.pi) - np.pi)


@pytest.mark.parametrize("sigma", [0.2, 0.35, 1.0, 2.5, 5.0])
def test_random_points_of_the_half_plane(sigma):
    """To 2·10⁻¹⁵ relative to log L: T·log L is what enters, so small values need all their digits too."""
    rng = np.random.default_rng(int(100 * sigma))
    size = np.exp(rng.uniform(-6, 9, 9)) * min(sigma**2, 1.0) * np.exp(min(0.25 / sigma**2, 5.0))
    omega = size * np.exp(1j * rng.uniform(0, 0.93 * np.pi, 9))
    found = log_transform(omega, sigma)
    for k, point in enumerate(omega):
        truth = direct(point, sigma, found.centred[k])
        assert abs(unwound(found.value[k] - truth)) < 5e-15 * (abs(truth) + 1e-3 * abs(point)), (sigma, point)


def test_small_arguments_keep_every_digit():
    """log L(ω) + ω = ω²(e^{s²}−1)/2 − …, known by the moments of Z when |ω| is tiny."""
    for sigma in (0.7, 1.0, 20.0):
        variance = np.expm1(sigma**-2)
        third = np.exp(3 / sigma**2) - 3 * np.exp(sigma**-2) + 2
        for omega in (1e-11 + 0j, 1e-10j, -1e-12 + 1e-12j):
            found = log_transform(np.array([omega]), sigma)
            assert found.centred[0]
            series = 0.5 * omega**2 * variance - omega**3 * third / 6
            assert abs(found.value[0] / series - 1) < 1e-14


def test_the_flat_stretch_between_meeting_saddles_counts():
    """At σ = 5.83, ω ≈ −6.52 the integrand rises again behind the Gaussian: 10⁻¹⁴ of log L lies there."""
    omega = np.array([-6.5208191203301125 + 0.10441308422514743j])
    found = log_transform(omega, 5.834591205413442)
    truth = direct(omega[0], 5.834591205413442, found.centred[0])
    assert abs(found.value[0] - truth) < 2e-15 * abs(truth)


def test_more_nodes_change_nothing():
    rng = np.random.default_rng(3)
    for sigma in (0.06, 0.3, 1.0, 8.0, 90.0):
        omega = np.exp(rng.uniform(-8, 8, 40)) * sigma * np.exp(1j * rng.uniform(0, 0.99 * np.pi, 40))
        base, finer = log_transform(omega, sigma), log_transform(omega, sigma, 1.7)
        known = np.isfinite(base.value)
        assert known.mean() > 0.9
        gap = np.array([unwound(d) for d in (base.value - finer.value)[known]])
        assert (np.abs(gap) <= 1e-13 * np.maximum(np.abs(finer.value[known]), 1e-3)).all()


def test_complex_log1p_and_second_remainder_do_not_cancel():
    rng = np.random.default_rng(4)
    z = np.exp(rng.uniform(-40, 1, 300)) * np.exp(1j * rng.uniform(-3, 3, 300))
    e2 = second_remainder(z.copy())
    with mpmath.workdps(60):
        for k, point in enumerate(z):
            exact = mpmath.log1p(mpmath.mpc(point))
            found = complex_log1p(z[k : k + 1])[0]
            assert abs(found - complex(exact)) < 1e-15 * max(abs(complex(exact)), 1e-3 * abs(point))
            truth = mpmath.exp(-mpmath.mpc(point)) - 1 + mpmath.mpc(point)
            assert abs(e2[k] - complex(truth)) < 3e-15 * abs(complex(truth))
    assert second_remainder(np.array([1e-4, 0.2, 5.0])) == pytest.approx(
        [4.99983333749991667e-9, 0.018730753077981858, 4.0067379469990856], rel=1e-14
    )


def test_saddles_solve_their_equation():
    """X = −W solves z e^X = −X with z = ω s² e^{−s²/2}, the second the one farther out."""
    rng = np.random.default_rng(5)
    for sigma in (0.05, 1.0, 100.0):
        omega = np.exp(rng.uniform(-30, 30, 200)) * np.exp(1j * rng.uniform(0, np.pi, 200))
        first, second = saddle(omega, sigma), saddle(omega, sigma, -1)
        log_z = np.log(np.abs(omega)) - 2 * np.log(sigma) - 0.5 / sigma**2 + 1j * np.angle(omega)
        for root in (first, second):
            miss = np.array([unwound(d) for d in log_z + root - np.log(-root)])
            assert (np.abs(miss) < 1e-9 * (1 + np.abs(root))).all()
        assert (second.real > first.real - 1e-9).all()


def test_real_axis_gives_the_derivatives_of_the_transform():
    for sigma, c in ((0.3, 5.0), (1.0, 0.01), (1.0, 40.0), (10.0, 3.0)):
        h = 1e-4 * c
        left, middle, right = (log_transform(np.array([c + d + 0j]), sigma) for d in (-h, 0.0, h))
        plain = [
            v.value[0].real - (v.centred[0] * w) for v, w in ((left, c - h), (middle, c), (right, c + h))
        ]
        log, centred, mean, gap, variance = (part[0] for part in real_axis(np.array([c]), sigma))
        assert log - centred * c == pytest.approx(plain[1], rel=1e-9, abs=1e-9 * c)
        assert mean == pytest.approx(-c * (plain[2] - plain[0]) / (2 * h), rel=1e-4)
        assert gap == pytest.approx(c - mean, rel=1e-6, abs=1e-9 * c)
        assert variance == pytest.approx(c * c * (plain[2] - 2 * plain[1] + plain[0]) / h**2, rel=0.02)
