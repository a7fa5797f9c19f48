"""L(−r + i0) on the cut against mpmath: modulus and phase, from tiny r to where the saddles meet."""

import mpmath
import numpy as np
import pytest

from ballsbins.accounting.one_epoch.cut import LARGEST_LOG_RHO, larger_root, largest_log_r, on_cut
from ballsbins.accounting.one_epoch.transform import log_transform


@pytest.fixture(autouse=True)
def _quiet():
    """Overflow is met on purpose, far beyond the nodes that count; the curve that asks silences it."""
    with np.errstate(all="ignore"):
        yield


def direct(log_r, sigma):
    """(log|L|, log of −arg L) along the real axis and then straight down, right at the end: another contour.

    The steps: real axis to X₂, from there to X₂ + b − iπ on a line, then to the right where e^{−z e^X} is real and
    falls. Only the digits carried make up for the climb on the way.
    """
    with mpmath.workdps(60):
        sigma = mpmath.mpf(sigma)
        rho = mpmath.exp(mpmath.mpf(log_r)) / sigma**2 * mpmath.exp(-1 / (2 * sigma**2))
        x2 = -mpmath.lambertw(-rho, -1).real

        def f(x):
            return mpmath.exp(sigma**2 * (rho * mpmath.exp(x) - x * x / 2))

        spread = 1 / sigma
        low = [-14 * spread + k * spread for k in range(0, 60, 2)]
        real = mpmath.quad(f, [x for x in low if x < x2] + [x2]).real
        corner = x2 + mpmath.mpf("0.6") - 1j * mpmath.pi
        slant = [x2 + (corner - x2) * t for t in mpmath.linspace(0, 1, 33)]
        far = corner + mpmath.log(400 / (sigma**2 * rho)) + 2
        right = [corner + (far - corner) * t for t in mpmath.linspace(0, 1, 13)]
        total = (real + mpmath.quad(f, slant) + mpmath.quad(f, right)) * sigma / mpmath.sqrt(2 * mpmath.pi)
        return float(mpmath.log(abs(total))), float(mpmath.log(-mpmath.arg(total)))


@pytest.mark.parametrize(
    ("sigma", "below"), [(0.3, 0.0), (0.3, 6.0), (1.0, 0.001), (1.0, 0.5), (1.0, 4.0), (3.0, 0.0), (3.0, 1.0)]
)
def test_modulus_and_phase(sigma, below):
    """`below`: how far log r is below the end of the stretch, where ρ = 1/e."""
    log_r = largest_log_r(sigma) - below
    found = on_cut(np.array([log_r]), sigma)
    modulus, log_phase = direct(log_r, sigma)
    value = found.real[0] + (np.exp(log_r) if found.centred[0] else 0.0)
    assert value == pytest.approx(modulus, rel=1e-13, abs=1e-14)
    assert found.log_phase[0] == pytest.approx(log_phase, abs=1e-11)


def test_the_far_side_of_the_plane_joins_the_cut():
    """`log_transform` just above the cut and `on_cut` are one function."""
    for sigma in (0.2, 1.0, 5.0, 20.0):
        log_r = largest_log_r(sigma) - np.array([0.0, 0.01, 0.1, 0.4, 1.0, 2.5])
        on, off = on_cut(log_r, sigma), log_transform(-np.exp(log_r) + 0j, sigma)
        shift = np.where(on.centred, np.exp(log_r), 0.0) - np.where(off.centred, np.exp(log_r), 0.0)
        assert off.value.real == pytest.approx(on.real + shift, rel=1e-13, abs=1e-14)
        visible = on.log_phase > -25
        assert visible.sum() >= 2
        assert -off.value.imag[visible] == pytest.approx(np.exp(on.log_phase[visible]), rel=1e-4, abs=1e-15)
        assert -off.value.imag[:2] == pytest.approx(np.exp(on.log_phase[:2]), rel=1e-10)


def test_tiny_arguments():
    """As r → 0: log L + ω → r²(e^{s²}−1)/2, and −Im L ~ the log-normal tail integral, which is smooth in log r."""
    for sigma in (0.5, 1.0, 30.0):
        log_r = np.array([-25.0, -20.0])
        found = on_cut(log_r, sigma)
        assert found.centred.all()
        assert found.real == pytest.approx(0.5 * np.exp(2 * log_r) * np.expm1(sigma**-2), rel=1e-6)
    found = on_cut(np.array([-400.0, -100.0]), 0.3)
    assert np.isfinite(found.log_phase).all()
    assert np.diff(found.log_phase)[0] > 0


def test_phase_only_grows():
    """arg L is a distribution function (of the Thorin measure)."""
    for sigma in (0.1, 0.7, 3.0, 60.0):
        log_r = np.linspace(largest_log_r(sigma) - 12, largest_log_r(sigma), 400)
        found = on_cut(log_r, sigma)
        assert (np.diff(found.log_phase) > 0).all()
        finer = on_cut(log_r, sigma, 1.6)
        assert found.log_phase == pytest.approx(finer.log_phase, rel=3e-15, abs=1e-12)
        assert found.real == pytest.approx(finer.real, rel=1e-11)


def test_beyond_the_end_nothing_is_claimed():
    found = on_cut(np.array([largest_log_r(2.0) + 0.5]), 2.0)
    assert np.isnan(found.log_phase).all()


def test_larger_root():
    """a − log a = c, from the double root at c = 1 to c = 10⁶."""
    c = np.concatenate([1.0 + np.geomspace(1e-12, 4.0, 60), [-LARGEST_LOG_RHO], np.geomspace(5.0, 1e6, 40)])
    with mpmath.workdps(40):
        truth = [float(-mpmath.lambertw(-mpmath.exp(-mpmath.mpf(x)), -1).real) for x in c]
    # the root moves by √(2·ulp) with the rounding of c near 1
    assert larger_root(c) - 1 == pytest.approx(np.array(truth) - 1, rel=1e-9)
    assert larger_root(c[60:]) == pytest.approx(truth[60:], rel=1e-14)
