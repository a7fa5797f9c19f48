"""The oracle against what it does not use: closed forms, a direct integral for two steps, known digits."""

from __future__ import annotations

import importlib.util
import json
import math
from fractions import Fraction
from pathlib import Path

import flint
import pytest

HERE = Path(__file__).parent
_spec = importlib.util.spec_from_file_location("oracle", HERE / "oracle.py")
oracle = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(oracle)
arb, ctx = flint.arb, flint.ctx

CHECKED = [(0.35, 1000, 2.0), (0.32, 100000, 1.0), (1.0, 2, 10.0), (0.5, 3, 9.0), (1.5, 100000, 0.03)]
REFERENCE = json.loads((HERE / "data" / "reference_values.json").read_text(), parse_float=str)["values"]


def relative(value, truth):
    ctx.prec = 2000
    return abs(float((value.mid() / truth - 1).mid()))


def cdf(x):
    return (-x / arb(2).sqrt()).erfc() / 2


def one_bin(sigma, strike):
    """E(Z − strike)₊ for Z = exp(s g − s²/2), the formula of Black and Scholes."""
    far = -sigma * strike.log()
    return cdf(far + 1 / (2 * sigma)) - strike * cdf(far - 1 / (2 * sigma))


def two_bins(sigma, other, epsilon, direction, bits):
    """E((Z + Z′)/2 − K)₊ or e^ε E(K − (Z + Z′)/2)₊: the first bin by quadrature, the second in closed form.

    The integrand φ(x) · one_bin(2K − Z) is smooth on x < x*, where Z < 2K. With x = x* − e^{v − e^−v} it goes
    to nothing at both ends and the trapezoidal rule converges geometrically; beyond x* the value is linear in
    Z and known. The put follows by parity, with bits to spare.
    """
    ctx.prec = bits
    sigma, other, epsilon = (oracle._exact(x) for x in (sigma, other, epsilon))
    strike = (epsilon if direction == "remove" else -epsilon).exp()
    s = 1 / sigma
    top = sigma * (2 * strike).log() + s / 2

    def density(v):
        e = (-v).exp()
        gap = (v - e).exp()
        x = top - gap
        rest = -2 * strike * (-s * gap).expm1()  # 2K − Z, without cancelling
        return (-x * x / 2).exp() * one_bin(other, rest) * gap * (1 + e)

    low, high = -math.log(bits) - 0.5, math.log(float(abs(top)) + math.sqrt(2 * bits))

    def rule(n):
        h = (oracle._exact(high) - oracle._exact(low)) / n
        return sum((density(oracle._exact(low) + h * k) for k in range(n + 1)), arb(0)) * h

    body = rule(bits * 2) / (2 * arb.pi()).sqrt()
    beyond = cdf(s - top) - (2 * strike - 1) * cdf(-top)  # E(Z + E Z′ − 2K; x > x*)
    call = (body + beyond) / 2
    return call if direction == "remove" else (call + strike - 1) / strike


def test_one_step_is_the_gaussian_mechanism():
    for sigma, epsilon, direction in [(1.0, 3.0, "remove"), (0.3, 0.01, "add"), (4.0, 2.5, "remove")]:
        value = oracle.delta([(1, sigma)], epsilon, direction)
        ctx.prec = 2000
        assert relative(value, one_bin(arb(sigma), arb(epsilon).exp())) < 1e-20
        assert abs(value.rad()) < 1e-20 * value.mid()


@pytest.mark.parametrize(
    ("first", "second", "epsilon", "direction", "bits"),
    [
        (1.0, 1.0, 0.1, "remove", 250),
        (1.0, 1.0, 6.0, "add", 350),
        (0.25, 0.25, 9.0, "remove", 250),
        (5.0, 5.0, 0.8, "remove", 300),
        (11.0, 11.0, 0.9, "remove", 500),
        (1.5, 0.75, 2.0, "add", 300),
        (2.0, 1.0, 5.0, "remove", 300),
    ],
)
def test_two_steps_by_direct_integration(first, second, epsilon, direction, bits):
    value = oracle.delta([(1, first), (1, second)], epsilon, direction)
    assert relative(value, two_bins(first, second, epsilon, direction, bits)) < 1e-19


@pytest.mark.parametrize(("sigma", "steps", "epsilon"), CHECKED)
def test_known_digits(sigma, steps, epsilon):
    (entry,) = (
        e
        for e in REFERENCE
        if (float(e["noise_multiplier"]), e["steps"], float(e["epsilon"])) == (sigma, steps, epsilon)
    )
    for direction in ("remove", "add"):
        if text := entry.get(f"delta_{direction}"):
            group = (steps, Fraction(entry["noise_multiplier"]))
            value = oracle.delta([group], Fraction(entry["epsilon"]), direction)
            assert relative(value, arb(text)) < 5e-16  # half a unit of the last digit shown


def test_unfinished_epoch_is_an_epoch_of_its_steps_at_another_threshold():
    """After t of T steps S = 1 − t/T + (t/T) S_t, so the call is t/T of a call on S_t at K′."""
    done, left, epsilon = 30, 70, 0.25
    value = oracle.delta([(done, 0.8), (left, math.inf)], epsilon, "remove")
    ctx.prec = 400
    threshold = ((arb(epsilon).exp() - 1) * (done + left) / done + 1).log()
    inner = Fraction(int((threshold * 2**300).floor().mid().unique_fmpz()), 2**300)
    assert relative(value, oracle.delta([(done, 0.8)], inner, "remove", 25) * done / (done + left)) < 1e-19
    assert oracle.delta([(done, 0.8), (left, math.inf)], 0.5, "add") == 0  # S ≥ 0.7 > e^−0.5 always


def test_splitting_a_group_changes_nothing():
    whole = oracle.delta([(1000, 1.25)], 0.3, "remove")
    assert relative(oracle.delta([(400, 1.25), (600, 1.25)], 0.3, "remove"), whole.mid()) < 1e-19


def test_larger_precision_gives_the_same_digits():
    for groups, epsilon in [([(5122, 12.24)], 0.01), ([(10**12, 0.5)], 0.5), ([(3, 0.1)], 20.0)]:
        value = oracle.delta(groups, epsilon, "remove")
        assert relative(value, oracle.delta(groups, epsilon, "remove", digits=34).mid()) < 1e-20


def test_too_small_a_delta_is_refused():
    with pytest.raises(oracle.OutOfRangeError):
        oracle.delta([(2, 5.0)], 5.0, "remove", most=60)
